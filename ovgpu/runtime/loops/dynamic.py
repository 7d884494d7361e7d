"""Execution of control steps whose shapes or trip counts are known only at run time: bodies run one by one.

Inputs and results of bodies lie in memory that is reused, so that bindings and captured graphs of one iteration serve
later ones. Only the condition is read back to the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from ovgpu.lowering.program import Program, Step
from ovgpu.lowering.program_for import program_for
from ovgpu.model import Model
from ovgpu.ops.base.op import Array
from ovgpu.ops.base.shapes import first
from ovgpu.ops.infrastructure.control_flow import If, Loop, TensorIterator, part
from ovgpu.runtime.backend import Backend
from ovgpu.runtime.blocks import Block
from ovgpu.types import Type

if TYPE_CHECKING:
    from ovgpu.runtime.executor import Executor

COLLECTED_BYTES = 1 << 26  # from this many bytes of parts on, the memory to concatenate them is checked
PART_BYTES = 256  # bytes of a part's Python objects, besides its elements


def run(executor: Executor, step: Step, inputs: Sequence[Array | None]) -> Sequence[Array]:
    """Run a control step and return its results. They stay valid until it runs again."""
    stepwise = executor.stepwise.get(id(step))
    if stepwise is None:
        stepwise = executor.stepwise[id(step)] = Stepwise(executor.backend, step)
    run_bodies = stepwise.branch if isinstance(step.op, If) else stepwise.iterate
    return run_bodies(executor, inputs)


class Stepwise:
    """Runner of the bodies of one step for the executor that owns it, and `binding.MemoryProvider` of their
    programs."""

    def __init__(self, backend: Backend, step: Step) -> None:
        self.backend, self.step = backend, step
        self.blocks: dict[tuple[Any, int], Block[Array]] = {}
        self.block_of_parameter: dict[int, tuple[Any, int]] = {}  # parameter -> block of its value
        self.block_of_result: dict[int, tuple[Any, int]] = {}  # result -> block that it is written to

    def branch(self, executor: Executor, inputs: Sequence[Array | None]) -> Sequence[Array]:
        """Run the branch of an If that the condition selects, and return its outputs."""
        op: Any = self.step.op
        taken = first(inputs[0], "the condition")
        body, input_maps, output_maps = (
            (op.then_body, op.then_inputs, op.then_outputs)
            if taken
            else (op.else_body, op.else_inputs, op.else_outputs)
        )
        given: list[Any] = [None] * len(body.parameters)
        for m in input_maps:
            given[m.parameter] = self._contiguous(inputs[m.port], ("in", m.port))
        results = self._run(executor, body, given)
        outputs = {m.port: results[m.result] for m in output_maps}
        return tuple(outputs[i] for i in sorted(outputs))

    def iterate(self, executor: Executor, inputs: Sequence[Array | None]) -> Sequence[Array]:
        """Run the iterations of a Loop or TensorIterator, and return its outputs."""
        op: Any = self.step.op
        assert isinstance(op, (TensorIterator, Loop))
        limit, counter, condition = _loop_limits(op, inputs)
        constant_condition = None if condition is None else op.body.results[condition].ports[0].spec.constant
        whole = {m.port: self._contiguous(inputs[m.port], ("in", m.port)) for m in op.inputs if m.axis is None}
        carried: dict[int, Array] = {}
        parts: dict[int, list[Array]] = {m.port: [] for m in op.outputs if m.axis is not None}
        results: Sequence[Array] = ()
        self.block_of_parameter = {}
        collected, checked = 0, COLLECTED_BYTES
        i = 0
        while limit < 0 or i < limit:
            executor.cancellation.check()
            given: list[Any] = [None] * len(op.body.parameters)
            for entry in op.inputs:
                p = entry.parameter
                if p in carried:
                    given[p] = carried[p]
                else:
                    given[p] = (
                        whole[entry.port]
                        if entry.axis is None
                        else self._copy_to_block(part(inputs[entry.port], entry, i), ("part", p))
                    )
            results = self._run(executor, op.body, given, counter, i)
            carried = self._carry(results)
            for m in op.outputs:
                if m.axis is not None:
                    parts[m.port].append(results[m.result].copy())
                    collected += parts[m.port][-1].nbytes + PART_BYTES
            if collected > checked:
                self.backend.require(collected)
                checked = 2 * collected
            i += 1
            if condition is not None:
                condition_value = (
                    self.backend.to_host(results[condition]) if constant_condition is None else constant_condition
                )
                if not first(condition_value, "the body's condition"):
                    break
        outputs: Sequence[Array] = op._collect(self.backend.xp, inputs, results, parts, counter)
        return outputs

    def _run(
        self, executor: Executor, model: Model, given: list[Any], counter: int | None = None, i: int = 0
    ) -> Sequence[Array]:
        """Run a body and return its results. Parameter ``counter`` gets the iteration's index ``i`` on the host and, if
        the program uses it there, on the device."""
        iteration, hosts = None, None
        if counter is not None:
            op: Any = model.parameters[counter].op
            given[counter] = iteration = np.full((1,) if len(op.shape) else (), i, op.element_type.storage)
        program, child = self._child(executor, model, given)
        if counter is not None:
            hosts = list(given)
            if _is_read_on_device(program, program.inputs[counter]):
                given[counter] = self._block("counter", 0).array(iteration.shape, Type.of(iteration.dtype))  # type: ignore[union-attr]
                for call in self.backend.upload(iteration, given[counter]):
                    call()
        self.block_of_result = {}
        return child.run(given, {}, self, tuple(sorted(self.block_of_parameter.items())), hosts=hosts)

    def _child(self, executor: Executor, model: Model, given: Sequence[Any]) -> tuple[Program, Executor]:
        branch = next(n for n, body in enumerate(self.step.bodies) if body.model is model)
        program = program_for(model, given, executor.body_programs.setdefault(id(model), {}))
        return program, executor.child((id(self.step), branch, id(program)), program)

    def _carry(self, results: Sequence[Array]) -> dict[int, Array]:
        """Return the carried values of the next iteration's parameters, copied to blocks of this step if needed."""
        back = [(b.result, b.parameter) for b in self.step.op.back_edges]  # type: ignore[attr-defined]
        carried_results = {r: results[r] for r, _ in back}
        for r, x in carried_results.items():
            if x.dtype == object:
                continue
            shape, element_type, block_of_result = tuple(x.shape), Type.of(x.dtype), self.block_of_result.get(r)
            if block_of_result is None or x is not self.blocks[block_of_result].array(shape, element_type):
                carried_results[r] = self.output(r, shape, element_type)
                for call in self.backend.copy(x, carried_results[r]):
                    call()
        self.block_of_parameter = {p: self.block_of_result[r] for r, p in back if r in self.block_of_result}
        return {p: carried_results[r] for r, p in back}

    def _contiguous(self, array: Any, name: Any) -> Array:
        """Return the array if it is contiguous, else a contiguous copy."""
        return array if array is None or array.flags.c_contiguous else self._copy_to_block(array, name)

    def _copy_to_block(self, array: Any, name: Any) -> Array:
        """Copy the array to a block, at the same address each time."""
        if array.dtype == object:
            return np.ascontiguousarray(array)
        target = self._block(name, 0).array(tuple(array.shape), Type.of(array.dtype))
        for call in self.backend.copy(array, target):
            call()
        return target

    def _block(self, name: Any, index: int) -> Block[Array]:
        block = self.blocks.get((name, index))
        if block is None:
            block = self.blocks[name, index] = Block(self.backend.allocate, self.backend.dense, True)
        return block

    # ---- binding.MemoryProvider

    def output(self, result: int, shape: tuple[int, ...], element_type: Type) -> Array:
        """Return an array for a result, in a block whose value the iteration does not read."""
        used = set(self.block_of_parameter.values())
        key = self.block_of_result[result] = next((result, k) for k in count() if (result, k) not in used)
        return self._block(*key).array(shape, element_type)

    def variable(
        self, name: str, shape: tuple[int, ...], element_type: Type, strides: tuple[int, ...], append: bool
    ) -> Array:
        raise AssertionError("a body sets no variable")

    def host(self, index: int) -> None:
        return None


def _loop_limits(op: Any, inputs: Sequence[Any]) -> tuple[int, int | None, int | None]:
    """Return (maximum trip count, negative if unlimited; parameter for the iteration's index; condition result)."""
    if isinstance(op, TensorIterator):
        counts = [m.trips(inputs[m.port].shape[m.axis]) for m in op.inputs if m.axis is not None]
        return counts[0] if counts else 1, None, None
    limit, start = first(inputs[0], "the trip count"), first(inputs[1], "the execution condition")
    return limit if start else 0, op.current_iteration, op.condition


def _is_read_on_device(program: Program, value: int) -> bool:
    """Return whether the program uses the value on the device: in a step, as a result or in its deferred model."""
    roots = {program.values[i].root for step in program.steps for i in step.inputs if i >= 0}
    deferred = program.deferred.inputs if program.deferred else ()
    results = {program.values[i].root for i in (*program.results, *deferred)}
    return value in roots | results
