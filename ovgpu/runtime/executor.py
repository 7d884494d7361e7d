"""Execution of a program: compute symbol values, bind arrays and calls to them, run the calls.

A `Binding` is a segment specialised for one set of symbol values: its arrays and its calls. Bindings are cached by
these values (LRU). A new binding is derived from the last one: if a model meets a new length at every call, only the
steps that depend on the length are bound again.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import chain, compress, count
from math import prod
from operator import length_hint, ne
from typing import Any

import numpy as np

from ovgpu.errors import Error, OpError
from ovgpu.lowering.loops import TRIP_COUNT_KEY
from ovgpu.lowering.program import Program, Segment, Step
from ovgpu.lowering.program_for import program_for
from ovgpu.ops.base.lazy import sources_of
from ovgpu.ops.base.op import Array
from ovgpu.ops.base.strided import same_memory
from ovgpu.runtime.backend import Backend, Call, Uncaptured
from ovgpu.runtime.binding import Binding, Constants, MemoryProvider, Recorded, host_value, host_values
from ovgpu.runtime.blocks import Block
from ovgpu.runtime.cancellation import Cancellation
from ovgpu.runtime.loops import bind, dynamic
from ovgpu.runtime.loops.repeated import LoopCache
from ovgpu.runtime.loops.unrolled import failing_step
from ovgpu.runtime.memory import Layout, lay_out, reserve
from ovgpu.spec import Spec
from ovgpu.symbolic import Sym, Table, atoms
from ovgpu.types import Type
from ovgpu.types.mapped import check_unchanged

CACHED_BINDINGS = 8  # bindings per segment
CACHED_CHANGES = 8 * CACHED_BINDINGS  # results of `Executor._affected`
Observe = Callable[[Step, Sequence[Call]], None]
MIN_OVERLAPPED_STEPS = 16  # with this many steps to bind, the device runs each one while the host binds the next


class Executor:
    """Executor of one program for one request; not thread-safe. A cancelled run raises Error."""

    def __init__(
        self, program: Program, backend: Backend, constants: Constants, cancellation: Cancellation | None = None
    ) -> None:
        self.program, self.backend = program, backend
        self.cancellation = cancellation or Cancellation()
        # Indexed by value id, then the inputs on the host for the shape function; index -1, an absent input, is None.
        self.arrays: list[Any] = [None] * (len(program.values) + len(program.inputs) + 1)
        self.hosts: Sequence[Array] | None = None  # last inputs on the host, if `arrays` has their device copies
        for value in program.values:
            if value.memory == "constant" and value.is_root:
                source = value.source
                entry = constants.get(id(source))
                if entry is None:  # the entry also holds the source, so that its id is not reused
                    check_unchanged(sources_of(source))
                    entry = constants[id(source)] = source, backend.constant(source)
                self.arrays[value.id] = entry[1]
        self.constants = constants
        self.arenas: list[Any] = [None] * len(program.segments)
        self.layouts: list[Layout | None] = [None] * len(program.segments)
        self.bindings: list[OrderedDict[Any, Binding]] = [OrderedDict() for _ in program.segments]
        self.affected: dict[Any, tuple[list[int], list[int]]] = {}  # results of `_affected`
        self.children: dict[Any, Executor] = {}  # executors of bodies, and of the deferred model
        self.body_programs: dict[int, dict[tuple[Any, ...], Program]] = {}
        self.spare: dict[tuple[int, int], Array] = {}  # buffers of a loop body's back edges
        self.loops: dict[int, LoopCache] = {}  # by `id` of the step
        self.stepwise: dict[int, dynamic.Stepwise] = {}  # by `id` of the step
        self.stable_blocks: dict[int, Block[Array]] = {}  # for values that eager steps compute and later segments read
        # Key and binding of the first segment in the last run.
        self.bound: tuple[Any, Binding] | None = None
        self._observe: Observe | None = None

    @property
    def arena_bytes(self) -> int:
        """The bytes of the arenas, including those of bodies."""
        own = sum(layout.nbytes for layout in self.layouts if layout is not None)
        return own + sum(child.arena_bytes for child in list(self.children.values()))

    def run(
        self,
        inputs: Sequence[Array],
        states: dict[str, Array],
        memory: MemoryProvider,
        key: Any = None,
        *,
        hosts: Sequence[Array] | None = None,
        observe: Observe | None = None,
    ) -> list[Array]:
        """Run the program and return its results. Afterwards `assigned` returns the variables' new values.

        Args:
            key: distinguishes bindings for different state buffers.
            hosts: the inputs on the host, where ``inputs`` are their copies on a device.
            observe: runs the calls of each step, to time or print them; no graph is launched then.
        """
        A, self._observe = self.arrays, observe
        self.set_inputs(inputs, states, hosts)
        with np.errstate(all="ignore"):
            for segment_index, segment in enumerate(self.program.segments):
                binding = self._binding_for(
                    segment_index, segment, memory, key, observe is None and self.backend.captures_graphs
                )
                if binding.started:
                    binding.started = False
                else:
                    self._run_calls(segment, binding)
                if segment.steps and segment.steps[-1].kind == "eager":
                    self._run_eager(segment.steps[-1], binding)
        if self.program.deferred is not None:
            return self._run_deferred(states, memory, key)
        return [A[i] for i in self.program.results]

    def prepare(
        self,
        inputs: Sequence[Array],
        states: dict[str, Array],
        memory: MemoryProvider,
        hosts: Sequence[Array] | None = None,
    ) -> None:
        """Bind the first segment as `run` would, without running anything."""
        self.set_inputs(inputs, states, hosts)
        if self.program.segments:
            self._binding_for(0, self.program.segments[0], memory, None)

    def set_inputs(
        self, inputs: Sequence[Array], states: dict[str, Array], hosts: Sequence[Array] | None = None
    ) -> None:
        """Set the inputs and states that shape functions and steps read. See `run` for ``hosts``."""
        A, self.hosts = self.arrays, hosts
        for i, array in zip(self.program.inputs, inputs, strict=True):
            A[i] = array
        for index in self.program.host_parameters:
            A[len(self.program.values) + index] = (inputs if hosts is None else hosts)[index]
        for name, i in self.program.states.items():
            A[i] = states[name]

    def assigned(self) -> dict[str, Array]:
        """Return the new values of the variables after `run`."""
        values = {name: self.arrays[i] for name, i in self.program.assigns.items()}
        if self.program.deferred is not None:
            values.update(self.children["deferred"].assigned())
        return values

    def child(self, key: Any, program: Program) -> Executor:
        """Return the executor of a nested program, such as a body's, created on first use."""
        executor = self.children.get(key)
        if executor is None:
            executor = self.children[key] = Executor(program, self.backend, self.constants, self.cancellation)
        return executor

    # ---- bindings

    def bind(
        self,
        inputs: Sequence[Array],
        memory: MemoryProvider,
        base: Binding | None,
        hosts: Sequence[Array] | None = None,
    ) -> Binding:
        """Bind a program of one segment to these inputs, starting from ``base``. The binding is not cached here."""
        A = self.arrays
        self.set_inputs(inputs, {}, hosts)
        segment = self.program.segments[0]
        for i in segment.caller_roots:  # the shape function reads the strides of a part of the caller's tensor
            value = self.program.values[i]
            if any(a.op == "stride" for s in value.view.strides if isinstance(s, Sym) for a in atoms(s)):
                A[i] = memory.output(value.source, (), value.type)
        symbol_values, hosts = segment.shape_function(A)
        binding = self._derive(0, segment, symbol_values, hosts, memory, base)
        self._publish(segment, binding)
        return binding

    def _binding_for(
        self, segment_index: int, segment: Segment, memory: MemoryProvider, key: Any, start: bool = False
    ) -> Binding:
        """Return the segment's binding for the current arrays. With ``start`` a new one runs while it is bound."""
        symbol_values, hosts = segment.shape_function(self.arrays)
        cached = self.bindings[segment_index]
        full_key = (symbol_values, key, *(hosts[i].tobytes() for i in segment.read_host_nodes))
        base = cached.get(full_key)
        if base is None:  # the last binding for other lengths, but for the same buffers of the variables
            base = next((b for k, b in reversed(cached.items()) if k[1] == key), None)
        try:
            binding = self._derive(segment_index, segment, symbol_values, hosts, memory, base, start)
        except MemoryError as e:
            raise self._out_of_memory(segment, symbol_values, e) from None
        if binding is not base:
            cached[full_key] = binding
            if len(cached) > CACHED_BINDINGS:
                cached.popitem(last=False)
        else:
            binding.started = False  # an interrupted inference may have left it set
            self._publish(segment, binding)
        cached.move_to_end(full_key)
        if not segment_index:
            self.bound = full_key, binding
        return binding

    @cached_property
    def depends_on_addresses_only(self) -> bool:
        """True if the calls depend only on shapes and on the addresses of inputs, outputs and states."""
        program = self.program
        return (
            len(program.segments) == 1
            and program.deferred is None
            and not program.host_parameters
            and not program.segments[0].read_host_nodes
            and not program.segments[0].host_nodes
            and not (program.steps and program.steps[-1].kind == "eager")
        )

    @property
    def captured(self) -> bool:
        """True if the first segment's binding in the last run has a captured graph."""
        return self.bound is not None and bool(self.bound[1].graph)

    def holds(self, key: Any, binding: Binding | None) -> bool:
        """Return whether a binding of the first segment is still cached, and mark it as used."""
        cached = self.bindings[0]
        if binding is None or cached.get(key) is not binding:
            return False
        cached.move_to_end(key)
        self.bound = key, binding
        return True

    def _publish(self, segment: Segment, binding: Binding) -> None:
        A = self.arrays
        for i, array in zip(segment.values, binding.arrays):
            A[i] = array

    def _derive(
        self,
        segment_index: int,
        segment: Segment,
        symbol_values: tuple[int, ...],
        hosts: list[Any],
        memory: MemoryProvider,
        base: Binding | None,
        start: bool = False,
    ) -> Binding:
        A, values = self.arrays, self.program.values
        for i, geometry in segment.caller_roots.items():
            value = values[i]
            shape, strides, _ = geometry(symbol_values)
            try:
                A[i] = (
                    memory.output(value.source, shape, value.type)
                    if value.memory == "output"
                    else memory.variable(
                        value.source,
                        shape,
                        value.type,
                        strides,
                        self._appends(segment, value.source, symbol_values, hosts),
                    )
                )
            except (TypeError, ValueError, OverflowError) as e:  # no array can have these extents
                raise MemoryError from e
        outside = {i: A[i] for i in segment.external_users}
        layout = self._lay_out(segment_index, segment, symbol_values)
        todo_values: Sequence[int]
        todo_steps: Sequence[int]
        if base is None or base.layout is not layout:
            todo_values, todo_steps = range(len(segment.values)), range(len(segment.steps))
            binding = Binding(
                symbol_values,
                host_values(segment, hosts),
                outside,
                layout,
                [None] * len(todo_values),
                [()] * len(todo_steps),
            )
        else:
            changed = tuple(compress(count(), map(ne, base.symbol_values, symbol_values)))
            moved = tuple([i for i, array in outside.items() if array is not base.outside[i]])
            reported = any([hosts[i].tobytes() != base.hosts[i].tobytes() for i in segment.read_host_nodes])
            if not changed and not moved and not reported:
                return base
            todo_values, todo_steps = self._affected(segment_index, segment, changed, moved, reported)
            binding = Binding(
                symbol_values, host_values(segment, hosts), outside, layout, list(base.arrays), list(base.calls)
            )
        arrays, arena, offsets = binding.arrays, self.arenas[segment_index], layout.offsets
        make_array, view = self.backend.make_array, self.backend.view
        for position in todo_values:
            geometry, root, buffer, element_type = segment.geometries[position]
            shape, strides, offset = geometry(symbol_values)
            try:
                arrays[position] = (
                    view(A[root], offset, shape, strides)
                    if buffer < 0
                    else make_array(arena, offsets[buffer] + offset, shape, strides, element_type)
                )
            except (ValueError, OverflowError) as e:  # no array can have these extents
                raise MemoryError from e
        self._publish(segment, binding)
        if start and len(todo_steps) >= MIN_OVERLAPPED_STEPS:
            self._bind_and_run(segment, binding, set(todo_steps), memory)
        else:
            for position in todo_steps:
                binding.calls[position] = self._bind_step(
                    segment, segment.steps[position], symbol_values, binding.hosts, memory
                )
        binding.flat = list(chain.from_iterable(binding.calls))
        return binding

    def _bind_and_run(self, segment: Segment, binding: Binding, todo: set[int], memory: MemoryProvider) -> None:
        """Bind steps and run each one as soon as it can: the device works while the host binds the next ones.

        A step whose kernels are being compiled waits, so that those of later steps are compiled at the same time.
        """
        calls, bound = binding.calls, 0
        for position, step in enumerate(segment.steps):
            while bound < len(calls) and (bound == position or not self.backend.ready(calls[position])):
                if bound in todo:
                    calls[bound] = self._bind_step(
                        segment, segment.steps[bound], binding.symbol_values, binding.hosts, memory
                    )
                bound += 1
            try:
                for call in calls[position]:
                    call()
            except Exception as e:
                raise self._step_error(e, step) from e
        binding.runs, binding.started = 1, True

    def _appends(self, segment: Segment, variable: str, symbol_values: tuple[int, ...], hosts: list[Any]) -> bool:
        """Return whether a variable's new value begins with the old one."""
        if variable not in self.program.appended:
            return False
        given = self.program.appended[variable]
        return given is None or bool(host_value(segment, given, symbol_values, hosts))

    def _out_of_memory(self, segment: Segment, symbol_values: tuple[int, ...], error: MemoryError) -> Error:
        """Return the error for a segment that does not fit in memory. It names the step with the largest result, and
        the bytes that the segment needs."""

        def shape(i: int) -> list[int]:
            return [segment.resolve(d, symbol_values) for d in self.program.values[i].view.shape]

        def size(i: int) -> int:
            return prod(shape(i)) * self.program.values[i].type.storage.itemsize

        made = [(i, step) for step in segment.steps if step.kind != "eager" for i in step.outputs]
        for i, step in made:
            if min(shape(i), default=0) < 0:
                return _with_location(OpError(f"the result would have the shape {shape(i)}"), step)
        if not made and error.__cause__ is None:
            return Error(self.backend.explain(error))
        if not made:  # no array has the extents of a view, which no step makes
            worst = max([*segment.values, *segment.caller_roots], key=lambda i: prod(map(abs, shape(i))))
            return Error(f"the result of layer '{self.program.values[worst].name}' would have the shape {shape(worst)}")
        largest, step = max(made, key=lambda pair: size(pair[0]))
        arena = lay_out(
            segment.buffers,
            [segment.resolve(b.nbytes, symbol_values) for b in segment.buffers],
            [isinstance(b.nbytes, Sym) for b in segment.buffers],
        )
        reported = self.backend.explain(error).removeprefix("out of memory: ")
        return _with_location(
            OpError(
                f"out of memory: a result of shape {shape(largest)} takes {size(largest):,} bytes, "
                f"the plan needs {arena.nbytes + sum(map(size, segment.caller_roots)):,}"
                + (f"; {reported}" if reported else "")
            ),
            step,
        )

    def _affected(
        self, segment_index: int, segment: Segment, changed: tuple[int, ...], moved: tuple[int, ...], reported: bool
    ) -> tuple[list[int], list[int]]:
        """Return the positions of the values and steps that a new binding cannot take from its base.

        The ``changed`` symbols and the ``moved`` arrays from outside differ; with ``reported``, results of host nodes
        do as well.
        """
        key = (segment_index, changed, moved, reported)
        affected = self.affected.get(key)
        if affected is None:
            values: set[int] = set()
            steps: set[int] = set()
            for symbol in changed:
                values.update(segment.value_deps.get(symbol, ()))
                steps.update(segment.step_deps.get(symbol, ()))
            for i in moved:
                values.update(segment.external_users[i][0])
                steps.update(segment.external_users[i][1])
            if reported:
                steps.update(i for i, s in enumerate(segment.steps) if any(h.host_node >= 0 for h in s.host.values()))
            affected = self.affected[key] = (sorted(values), sorted(steps))
            if len(self.affected) > CACHED_CHANGES:
                del self.affected[next(iter(self.affected))]
        return affected

    def _lay_out(self, segment_index: int, segment: Segment, symbol_values: tuple[int, ...]) -> Layout:
        layout = self.layouts[segment_index]
        if layout is None or not all([symbol_values[s] <= layout.capacities[i] for i, s in segment.dynamic_sizes]):
            sizes = [segment.resolve(b.nbytes, symbol_values) for b in segment.buffers]
            dynamic = [isinstance(b.nbytes, Sym) for b in segment.buffers]
            wanted = needed = lay_out(segment.buffers, sizes, dynamic)
            if layout is not None:  # sizes that have grown will likely grow again: dynamic ones get 50 % more
                sizes = [max(s + s // 2, c) if d else s for s, c, d in zip(sizes, layout.capacities, dynamic)]
                wanted = lay_out(segment.buffers, sizes, dynamic)
            self.layouts[segment_index] = self.arenas[segment_index] = (
                None  # free the old arena first, even if allocation then fails
            )
            self.bindings[segment_index].clear()
            self.bound = None
            self.arenas[segment_index], size = reserve(self.backend.allocate, wanted.nbytes, needed.nbytes)
            layout = self.layouts[segment_index] = wanted if size == wanted.nbytes else needed
        return layout

    def _bind_step(
        self, segment: Segment, step: Step, symbol_values: tuple[int, ...], hosts: list[Any], memory: MemoryProvider
    ) -> Sequence[Call]:
        if step.kind == "eager":
            return ()
        A = self.arrays
        if step.kind in ("upload", "download"):
            return self._transfer(step, memory)
        if step.kind == "copy" and not step.host:
            source, target = A[step.inputs[0]], A[step.outputs[0]]
            return () if same_memory(source, target) else self.backend.copy(source, target)
        outputs = [A[i] for i in step.outputs]
        try:
            inputs = self._inputs(segment, step, symbol_values, hosts) if step.host else [A[i] for i in step.inputs]
            if step.kind == "control":
                return bind.bind(
                    self, step, inputs, outputs, self._host(segment, step, TRIP_COUNT_KEY, symbol_values, hosts)
                )
            return self.backend.bind(step.op, inputs, outputs, [A[i] for i in step.workspace], step.types)
        except MemoryError:
            raise
        except Exception as e:
            raise self._step_error(e, step) from (e.__cause__ if isinstance(e, Error) else e)

    def _transfer(self, step: Step, memory: MemoryProvider) -> Sequence[Call]:
        """Return the calls that upload an input or download a result; none if it needs no copy."""
        value_id = step.outputs[0] if step.kind == "upload" else step.inputs[0]
        array, source = self.arrays[value_id], self.program.values[value_id].source
        if step.kind == "upload":
            host_array = array if self.hosts is None else self.hosts[source]
            return () if host_array is array else self.backend.upload(host_array, array)
        target = memory.host(source)
        return () if target is None else self.backend.download(array, target)

    def _inputs(
        self, segment: Segment, step: Step, symbol_values: tuple[int, ...], hosts: list[Any]
    ) -> list[Array | None]:
        A = self.arrays
        inputs = [A[i] for i in step.inputs]
        for i, given in step.host.items():
            if i >= 0:
                inputs[i] = host_value(segment, given, symbol_values, hosts)
        return inputs

    def _host(
        self, segment: Segment, step: Step, input_index: int, symbol_values: tuple[int, ...], hosts: list[Any]
    ) -> Any:
        return host_value(segment, step.host[input_index], symbol_values, hosts) if input_index in step.host else None

    # ---- running

    def _run_calls(self, segment: Segment, binding: Binding) -> None:
        if self._observe is not None:
            for step, calls in zip(segment.steps, binding.calls):
                if step.kind != "eager":
                    try:
                        self._observe(step, calls)
                    except Exception as e:
                        raise self._step_error(e, step) from e
            return
        self.run_recording(segment.steps, binding)

    def run_recording(self, steps: Sequence[Step], recording: Recorded) -> None:
        """Run a recording of calls of ``steps``: launch its graphs if the backend captures it, else run each call."""
        launched = False
        try:
            launched = self.backend.launch(recording)
        except Uncaptured as e:
            assert isinstance(e.__cause__, Exception)
            reason = self._step_error(e.__cause__, failing_step(steps, recording.calls, recording.number))
            recording.reason = str(reason)
            warnings.warn(f"runs call by call, as it cannot be captured: {reason}", RuntimeWarning, 2)
        except Exception as e:
            raise self._step_error(e, failing_step(steps, recording.calls, recording.number)) from e
        if not launched:
            self.run_flat(steps, recording)
            recording.runs += 1

    def launch_error(self, recording: Recorded, error: Exception) -> Exception:
        """Return the error for an exception of `Backend.launch_whole` with a binding of the first segment."""
        steps = self.program.segments[0].steps
        return self._step_error(error, failing_step(steps, recording.calls, recording.number))

    def run_flat(self, steps: Sequence[Step], recording: Recorded) -> None:
        """Run the calls of a recording one by one. Raise an exception that names the step that failed."""
        rest, cancellation = iter(recording.flat), self.cancellation
        try:
            for call in rest:
                if cancellation.requested:
                    break
                call()
        except Exception as e:
            call_index = len(recording.flat) - length_hint(rest) - 1
            raise self._step_error(e, failing_step(steps, recording.calls, call_index)) from e
        cancellation.check()

    def _step_error(self, error: Exception, step: Step) -> Exception:
        """Return the exception to raise when a step failed; it names op, layer and file."""
        if isinstance(error, Error) and not isinstance(error, MemoryError):
            return _with_location(error, step)
        return _with_location(OpError(self.backend.explain(error)), step)

    def _run_eager(self, step: Step, binding: Binding) -> None:
        if self._observe is not None:
            self._observe(step, [partial(self._compute, step, binding)])
        else:
            self._compute(step, binding)

    def _compute(self, step: Step, binding: Binding) -> None:
        A, values = self.arrays, self.program.values
        segment = next(s for s in self.program.segments if s.steps and s.steps[-1] is step)
        self.cancellation.check()
        inputs = self._inputs(segment, step, binding.symbol_values, binding.hosts)
        types = [values[i].type for i in step.outputs]
        try:
            if step.bodies:
                results = dynamic.run(self, step, inputs)
            else:
                self._check(step, inputs)
                results = self.backend.evaluate(step.op, inputs, types)
        except Exception as e:
            raise self._step_error(e, step) from e
        for i, result in zip(step.outputs, results):
            A[i] = self._stable_copy(i, result)

    def _check(self, step: Step, inputs: Sequence[Array | None]) -> None:
        """Have the op check host values that were not known when the model was compiled."""
        if all(host.constant is not None for host in step.host.values()):
            return
        assert step.node is not None
        specs = [
            None
            if port is None or x is None
            else Spec(port.spec.type, tuple(x.shape), x if index in step.host else None)
            for index, (port, x) in enumerate(zip(step.node.sources, inputs))
        ]
        with Table():
            step.op.infer_specs(*specs)

    def _stable_copy(self, i: int, result: Array) -> Array:
        """Copy an eager result that later segments read to the memory of earlier results of its shape, so that bindings
        and captured graphs can be reused."""
        if not self.backend.captures_graphs or result.dtype == object:
            return result
        if not any(any(segment.external_users.get(i, ())) for segment in self.program.segments):
            return result
        block = self.stable_blocks.setdefault(i, Block(self.backend.allocate, self.backend.dense, True))
        target = block.array(tuple(result.shape), Type.of(result.dtype))
        for call in self.backend.copy(result, target):
            call()
        return target

    def _run_deferred(self, states: dict[str, Array], memory: MemoryProvider, key: Any) -> list[Array]:
        deferred = self.program.deferred
        assert deferred is not None
        inputs = [self.arrays[i] for i in deferred.inputs]
        ranks = tuple(x.ndim for x in inputs)
        child = self.child(
            ("deferred", ranks), program_for(deferred.model, inputs, deferred.programs, downloads=self.backend.remote)
        )
        self.children["deferred"] = child
        return child.run(inputs, {}, memory, key, observe=self._observe)


def _with_location(error: Error, step: Step) -> Error:
    op = step.op if step.kind != "copy" or step.node is None else step.node.op
    return error.at(op.name, step.source_location) if isinstance(error, OpError) else error
