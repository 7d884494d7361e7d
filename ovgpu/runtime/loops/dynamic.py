"""Control steps whose shapes, or whose number of iterations, only running tells: bodies run one by one.

Whatever a body reads and writes lies in memory that is used again, so that what was bound for one iteration, and
captured where recordings are replayed, serves later ones. Only the condition comes back to the host.
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

COLLECTED_BYTES = 1 << 26  # parts of concatenated results; from here on the memory to join them is checked
PART_BYTES = 256  # of Python objects per part, beside its values


def run(executor: Executor, step: Step, inputs: Sequence[Array | None]) -> Sequence[Array]:
    """The results of a control step. They stay as they are until it runs again."""
    stepwise = executor.stepwise.get(id(step))
    if stepwise is None:
        stepwise = executor.stepwise[id(step)] = Stepwise(executor.backend, step)
    run_bodies = stepwise.branch if isinstance(step.op, If) else stepwise.iterate
    return run_bodies(executor, inputs)


class Stepwise:
    """Runs the bodies of one step for one executor, which owns it; `binding.Memory` of their programs."""

    def __init__(self, backend: Backend, step: Step) -> None:
        self.backend, self.step = backend, step
        self.blocks: dict[tuple[Any, int], Block[Array]] = {}
        self.held: dict[int, tuple[Any, int]] = {}  # parameter -> the block that its value is in
        self.written: dict[int, tuple[Any, int]] = {}  # result -> the block that it is written to

    def branch(self, executor: Executor, inputs: Sequence[Array | None]) -> Sequence[Array]:
        op: Any = self.step.op
        taken = first(inputs[0], "the condition")
        body, into, out = ((op.then_body, op.then_inputs, op.then_outputs) if taken
                           else (op.else_body, op.else_inputs, op.else_outputs))
        given: list[Any] = [None] * len(body.parameters)
        for m in into:
            given[m.parameter] = self._dense(inputs[m.port], ("in", m.port))
        results = self._run(executor, body, given)
        outputs = {m.port: results[m.result] for m in out}
        return tuple(outputs[i] for i in sorted(outputs))

    def iterate(self, executor: Executor, inputs: Sequence[Array | None]) -> Sequence[Array]:
        op: Any = self.step.op
        assert isinstance(op, (TensorIterator, Loop))
        limit, counter, condition = _bounds(op, inputs)
        known = None if condition is None else op.body.results[condition].outputs[0].spec.constant
        whole = {m.port: self._dense(inputs[m.port], ("in", m.port)) for m in op.inputs if m.axis is None}
        carried: dict[int, Array] = {}
        parts: dict[int, list[Array]] = {m.port: [] for m in op.outputs if m.axis is not None}
        results: Sequence[Array] = ()
        self.held = {}
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
                    given[p] = (whole[entry.port] if entry.axis is None
                                else self._copied(part(inputs[entry.port], entry, i), ("part", p)))
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
                going = self.backend.to_host(results[condition]) if known is None else known
                if not first(going, "the body's condition"):
                    break
        outputs: Sequence[Array] = op._collect(self.backend.xp, inputs, results, parts, counter)
        return outputs

    def _run(self, executor: Executor, model: Model, given: list[Any], counter: int | None = None,
             i: int = 0) -> Sequence[Array]:
        """The results of a body. A counter is given as iteration ``i``, on the host and, if it is used, beside it."""
        number = None
        if counter is not None:
            op: Any = model.parameters[counter].op
            given[counter] = number = np.full((1,) if len(op.shape) else (), i, op.element_type.storage)
        program, child = self._child(executor, model, given)
        if counter is not None:
            child.hosts = list(given)
            if _is_read(program, program.inputs[counter]):
                given[counter] = self._block("counter", 0).array(number.shape, Type.of(number.dtype))  # type: ignore[union-attr]
                for call in self.backend.upload(number, given[counter]):
                    call()
        self.written = {}
        return child.run(given, {}, self, tuple(sorted(self.held.items())))

    def _child(self, executor: Executor, model: Model, given: Sequence[Any]) -> tuple[Program, Executor]:
        branch = next(n for n, body in enumerate(self.step.bodies) if body.model is model)
        program = program_for(model, given, executor.body_programs.setdefault(id(model), {}))
        return program, executor.child((id(self.step), branch, id(program)), program)

    def _carry(self, results: Sequence[Array]) -> dict[int, Array]:
        """The values of the next iteration's parameters, in blocks of this step."""
        back = [(b.result, b.parameter) for b in self.step.op.back_edges]  # type: ignore[attr-defined]
        moved = {r: results[r] for r, _ in back}
        for r, x in moved.items():
            if x.dtype == object:
                continue
            shape, kind, written = tuple(x.shape), Type.of(x.dtype), self.written.get(r)
            if written is None or x is not self.blocks[written].array(shape, kind):
                moved[r] = self.output(r, shape, kind)
                for call in self.backend.copy(x, moved[r]):
                    call()
        self.held = {p: self.written[r] for r, p in back if r in self.written}
        return {p: moved[r] for r, p in back}

    def _dense(self, array: Any, name: Any) -> Array:
        """The array if it is contiguous, or a copy of it that is."""
        return array if array is None or array.flags.c_contiguous else self._copied(array, name)

    def _copied(self, array: Any, name: Any) -> Array:
        """The array's value, at the same place each time."""
        if array.dtype == object:
            return np.ascontiguousarray(array)
        target = self._block(name, 0).array(tuple(array.shape), Type.of(array.dtype))
        for call in self.backend.copy(array, target):
            call()
        return target

    def _block(self, name: Any, number: int) -> Block[Array]:
        block = self.blocks.get((name, number))
        if block is None:
            block = self.blocks[name, number] = Block(self.backend.allocate, self.backend.dense, True)
        return block

    # ---- binding.Memory

    def output(self, number: int, shape: tuple[int, ...], kind: Type) -> Array:
        """Memory of a result: a block that holds no value that the iteration reads."""
        used = set(self.held.values())
        key = self.written[number] = next((number, k) for k in count() if (number, k) not in used)
        return self._block(*key).array(shape, kind)

    def variable(self, name: str, shape: tuple[int, ...], kind: Type, strides: tuple[int, ...], append: bool) -> Array:
        raise AssertionError("a body sets no variable")

    def host(self, number: int) -> None:
        return None


def _bounds(op: Any, inputs: Sequence[Any]) -> tuple[int, int | None, int | None]:
    """(the most iterations, or a negative number; the parameter that gets the number; the result that goes on)"""
    if isinstance(op, TensorIterator):
        counts = [m.trips(inputs[m.port].shape[m.axis]) for m in op.inputs if m.axis is not None]
        return counts[0] if counts else 1, None, None
    limit, start = first(inputs[0], "the trip count"), first(inputs[1], "the execution condition")
    return limit if start else 0, op.current_iteration, op.condition


def _is_read(program: Program, value: int) -> bool:
    """Whether a step reads the value on the device."""
    roots = {program.values[i].root for step in program.steps for i in step.inputs if i >= 0}
    results = {program.values[i].root for i in (*program.results, *(program.rest.inputs if program.rest else ()))}
    return value in roots | results
