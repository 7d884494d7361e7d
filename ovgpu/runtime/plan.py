"""Plan of a program as plain data: its steps, the memory of their operands, and the bytes that they move.

`plan_of` takes an executor, whose last inference (or binding) gives exact shapes, locations and calls;
`plan_of_program` takes a program and the symbol values of its segments, as far as they are known.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ovgpu._util import notebooks
from ovgpu.lowering.loops import TRIP_COUNT_KEY
from ovgpu.lowering.program import (
    Copy,
    ElidedNode,
    HostInput,
    HostNode,
    MemoryKind,
    Program,
    Segment,
    Step,
    Value,
    constants,
)
from ovgpu.ops.attention.attention import CachedAttention
from ovgpu.ops.base.op import Op
from ovgpu.ops.fused._codes import OpWithCodes
from ovgpu.ops.fused._elementwise import Fused, Layer
from ovgpu.ops.fused._epilogue import OpWithEpilogue
from ovgpu.ops.fused.add_norm import AddNorm
from ovgpu.ops.fused.channels_last import ChannelsLastConvolution
from ovgpu.ops.fused.kv_cache import PAGE_TOKENS
from ovgpu.ops.fused.matmul_prologue import MatMulWithPrologue
from ovgpu.ops.fused.rotary_attention import RotaryAttention
from ovgpu.ops.infrastructure.control_flow import If
from ovgpu.runtime.backend import Counts, RoundingCall, counts
from ovgpu.runtime.loops.unrolled import Calls
from ovgpu.runtime.memory import Layout, lay_out
from ovgpu.symbolic import Int, Sym
from ovgpu.types import Type

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from ovgpu.runtime.executor import Executor

Kind = Literal["bound", "copy", "eager", "control", "host", "view", "upload", "download"]
SymbolValues = Sequence["tuple[int, ...] | None"]


@dataclass(frozen=True, slots=True)
class Operand:
    """Operand of a step. An extent known only at run time is None, and then ``nbytes`` is None as well.

    ``location`` is ``arena+256``, ``input 0``, ``output 1``, ``state h``, ``variable h``, ``constant``, or ``fresh``
    (allocated by the step that computes it). ``nbytes`` counts every element of memory once, even if a broadcast
    repeats it. ``value`` is the same number for the step that computes a value and for the steps that read it.
    ``root`` is the number of the value that owns the memory, such as a concatenation whose parts are computed in place.
    """

    type: Type
    shape: tuple[int | None, ...]
    memory: MemoryKind
    location: str
    nbytes: int | None
    value: int = field(default=-1, repr=False, compare=False)
    root: int = field(default=-1, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.type.get_type_name()}[{','.join('?' if d is None else str(d) for d in self.shape)}]"


@dataclass(frozen=True, slots=True)
class BodyPlan:
    """A body of a control flow step, and its trip count; ``trips`` is None if it is known only at run time."""

    name: str
    trips: int | None
    plan: Plan


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One row of a plan. ``number`` is None for a view, which takes no time and moves nothing. ``fused`` lists the
    layers of a fused step, of which ``layer`` is the last one. ``calls`` is None if unknown. ``host_inputs`` lists the
    numbers of the host steps whose results the step reads. ``seconds`` is the measured time, None if there is none.
    ``tf32``: whether f32 operands may be rounded to TF32; a plan without bindings does not know it."""

    number: int | None
    segment: int
    kind: Kind
    op: str
    version: str
    layer: str
    inputs: tuple[Operand | None, ...] = ()
    outputs: tuple[Operand, ...] = ()
    in_place: bool = False
    bytes_read: int = 0
    bytes_written: int = 0
    calls: int | None = 0
    bodies: tuple[BodyPlan, ...] = ()
    fused: tuple[str, ...] = ()
    host_inputs: tuple[int, ...] = field(default=(), repr=False)
    seconds: float | None = None
    tf32: bool = False

    @property
    def bytes_moved(self) -> int:
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True, slots=True)
class PlanPort:
    """An input or a result of the program."""

    name: str
    operand: Operand


@dataclass(frozen=True, slots=True)
class PlanState:
    """A variable: the value that ReadValue returns, and the one that Assign takes; None without such a layer."""

    name: str
    read: Operand | None
    assigned: Operand | None


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """Rows of a program in order of execution, and the memory that they use.

    ``arenas``: bytes per segment; ``constants``, ``state``: bytes in all, bodies included; ``symbol_values``:
    (expression, number) per segment; ``captured``: whether each segment runs as graphs; ``uncaptured``: reasons
    why segments cannot be captured; ``counts``: launches and kernels of one run per segment, 0 if the run did not reach
    it.
    """

    device: str
    source: str
    steps: tuple[PlanStep, ...]
    arenas: tuple[int | None, ...]
    constants: int
    state: int
    symbol_values: tuple[tuple[tuple[str, int | None], ...], ...]
    captured: tuple[bool, ...]
    counts: tuple[Counts, ...]
    uncaptured: tuple[str, ...] = ()
    inputs: tuple[PlanPort, ...] = ()
    results: tuple[PlanPort, ...] = ()
    states: tuple[PlanState, ...] = ()

    def all_steps(self) -> Iterator[PlanStep]:
        """Yield the rows of this plan and of its bodies, each once."""
        for step in self.steps:
            yield step
            for body in step.bodies:
                yield from body.plan.all_steps()

    def count(self, kind: Kind) -> int:
        """Return the number of rows of a kind, bodies included."""
        return sum(step.kind == kind for step in self.all_steps())

    def copies(self) -> list[PlanStep]:
        """Return the copies that lowering inserted, bodies included."""
        return [step for step in self.all_steps() if step.kind == "copy"]

    @property
    def arena(self) -> int:
        """Bytes of memory for intermediate tensors; unknown sizes count as 0."""
        return sum(a or 0 for a in self.arenas)

    @property
    def bytes_read(self) -> int:
        return sum(step.bytes_read for step in self.steps)

    @property
    def bytes_written(self) -> int:
        return sum(step.bytes_written for step in self.steps)

    @property
    def bytes_moved(self) -> int:
        """Bytes that the steps read and write, iterations of loops included; unknown sizes count as 0."""
        return self.bytes_read + self.bytes_written

    @property
    def launches(self) -> int:
        """Launches by the host at each inference: graphs, eager steps, and calls that are in no graph."""
        return sum(c.launches for c in self.counts) + self._evaluated

    @property
    def kernels(self) -> int:
        """Kernels that the device runs at each inference, in graphs or not; an eager step counts as one."""
        return sum(c.kernels for c in self.counts) + self._evaluated

    @property
    def _evaluated(self) -> int:
        return sum(step.kind == "eager" for step in self.steps)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from ovgpu.runtime.printing import render

        yield from render(self, options.max_width)

    def __str__(self) -> str:
        from ovgpu.runtime.printing import as_text

        return as_text(self, 140)

    def __repr__(self) -> str:
        steps = sum(step.number is not None for step in self.steps)
        where = f" on {self.device}" if self.device else ""
        return f"<Plan: {steps} steps{where}, {self.bytes_moved:,} bytes moved; print it to see them>"

    def _repr_html_(self) -> str:
        return notebooks.printed(self)


def plan_of(executor: Executor, seconds: Mapping[tuple[int, int], float] | None = None) -> Plan:
    """Return the plan of an executor's last run. Of a segment that has not run yet, it has only the static numbers.

    ``seconds`` are the times of steps by segment and position, see `ovgpu.runtime.timing`.
    """
    plan = _Planner(
        executor.program,
        [_symbol_values_of(executor, i) for i in range(len(executor.program.segments))],
        executor,
        seconds or {},
    ).plan()
    deferred = executor.children.get("deferred")
    if deferred is None or executor.program.deferred is None:
        return plan
    return _joined(plan, plan_of(deferred), executor.program.deferred.inputs)


def plan_of_program(program: Program, symbol_values: SymbolValues = ()) -> Plan:
    """Return the plan of a program for symbol values, a tuple or None per segment. Numbers of calls are unknown."""
    return _Planner(program, [*symbol_values, *[None] * (len(program.segments) - len(symbol_values))], None, {}).plan()


def distinct(shape: Sequence[int], strides: Sequence[Int]) -> int:
    """Return the number of distinct elements in a tensor's memory: an axis of stride 0 repeats the same ones."""
    count = 1
    for extent, stride in zip(shape, strides):
        count *= extent if isinstance(stride, Sym) or stride or not extent else 1
    return count


def traffic(step: Step, inputs: Mapping[int, int], outputs: Sequence[int]) -> tuple[int, int]:
    """Return (bytes read, bytes written) by a step, from the bytes of its inputs (by value id) and of its outputs."""
    read, written = sum(inputs.values()), sum(outputs)
    if step.op.updates:
        changed = {index: (step.inputs[i], step.inputs[j]) for index, (i, j) in step.op.updates.items()}
        read -= 0 if step.op.reads_updated else sum(inputs[i] for i, _ in changed.values())
        written = sum(inputs[changed[index][1]] if index in changed else size for index, size in enumerate(outputs))
    for value in {step.inputs[i] for i in step.op.partial_inputs}:
        read -= max(0, inputs.get(value, 0) - written)
    return read, written


def _symbol_values_of(executor: Executor, segment_index: int) -> tuple[int, ...] | None:
    segment = executor.program.segments[segment_index]
    cached = executor.bindings[segment_index]
    if cached:
        symbol_values: tuple[int, ...] = next(reversed(cached.values())).symbol_values
        return symbol_values
    if not segment.symbols:
        return ()
    if segment_index == 0 and all(executor.arrays[i] is not None for i in executor.program.inputs):
        return segment.shape_function(executor.arrays)[0]  # an unrolled body: the loop holds the bindings
    return None


def _joined(plan: Plan, rest: Plan, values: Sequence[int]) -> Plan:
    """Return a plan extended by the plan of the separate program that follows a result of unknown rank.

    ``values`` are the values of ``plan`` that the separate program takes as its inputs.
    """
    segments = len(plan.captured)
    first = sum(step.number is not None for step in plan.steps)
    free = 1 + max((x.value for x in _operands(plan)), default=-1)
    same = {port.operand.value: value for port, value in zip(rest.inputs, values)}

    def renumbered(x: Operand) -> Operand:
        return replace(x, value=same.get(x.value, x.value + free), root=same.get(x.root, x.root + free))

    shifted = [
        replace(
            s,
            segment=s.segment + segments,
            number=None if s.number is None else s.number + first,
            inputs=tuple(None if x is None else renumbered(x) for x in s.inputs),
            outputs=tuple(map(renumbered, s.outputs)),
            host_inputs=tuple(number + first for number in s.host_inputs),
        )
        for s in rest.steps
    ]
    results = tuple(replace(port, operand=renumbered(port.operand)) for port in rest.results)
    states = {state.name: state for state in plan.states}
    for state in rest.states:
        read = None if state.read is None else renumbered(state.read)
        assigned = None if state.assigned is None else renumbered(state.assigned)
        known = states.get(state.name, PlanState(state.name, None, None))
        states[state.name] = PlanState(state.name, known.read or read, assigned or known.assigned)
    return replace(
        plan,
        steps=(*plan.steps, *shifted),
        arenas=plan.arenas + rest.arenas,
        symbol_values=plan.symbol_values + rest.symbol_values,
        constants=plan.constants + rest.constants,
        captured=plan.captured + rest.captured,
        counts=plan.counts + rest.counts,
        uncaptured=plan.uncaptured + rest.uncaptured,
        results=plan.results + results,
        states=tuple(states.values()),
    )


def _operands(plan: Plan) -> Iterator[Operand]:
    for step in plan.steps:
        yield from (x for x in (*step.inputs, *step.outputs) if x is not None)
    yield from (port.operand for port in (*plan.inputs, *plan.results))
    yield from (x for state in plan.states for x in (state.read, state.assigned) if x is not None)


def layers_of(op: Op) -> tuple[Layer, ...]:
    """Return the layers that a fused op computes; empty for another op."""
    fused = (Fused, OpWithEpilogue, ChannelsLastConvolution, AddNorm, MatMulWithPrologue, OpWithCodes)
    return op.layers if isinstance(op, fused) else ()


class _Planner:
    """Builder of a plan from a program, symbol values per segment and, if there is one, an executor's bindings."""

    def __init__(
        self,
        program: Program,
        symbol_values: SymbolValues,
        executor: Executor | None,
        seconds: Mapping[tuple[int, int], float],
    ) -> None:
        self.program, self.symbol_values, self.executor, self.seconds = program, symbol_values, executor, seconds
        self.bindings = [next(reversed(cached.values()), None) for cached in executor.bindings] if executor else []
        self.layouts = [self._layout(i, segment) for i, segment in enumerate(program.segments)]
        self.operands: dict[int, Operand] = {}
        self.first_host = 0  # number of the segment's first host step

    def plan(self) -> Plan:
        program = self.program
        steps: list[PlanStep] = []
        for i, segment in enumerate(program.segments):
            self.first_host = sum(step.kind != "view" for step in steps)
            rows = [self._host(i, node) for node in segment.host_nodes]
            views = [view for view in program.views if view.segment == i]
            for position, step in enumerate(segment.steps):
                while views and views[0].position <= position:
                    rows.append(self._view(i, views.pop(0)))
                rows.append(self._step(i, position, step))
            steps += rows + [self._view(i, view) for view in views]
        bindings = self.bindings or [None] * len(program.segments)
        numbers = itertools.count()
        numbered = [step if step.kind == "view" else replace(step, number=next(numbers)) for step in steps]
        return Plan(
            device=self.executor.backend.name if self.executor else "",
            source=program.source,
            steps=tuple(numbered),
            arenas=tuple(None if a is None else a.nbytes for a in self.layouts),
            constants=sum(int(array.nbytes) for array in constants(program).values()),
            state=sum(
                self._operand(v).nbytes or 0
                for v in (*program.states.values(), *(program.inputs[index] for index in program.caches))
            ),
            symbol_values=tuple(
                tuple((repr(symbol), None if known is None else known[i]) for i, symbol in enumerate(segment.symbols))
                for segment, known in zip(program.segments, self.symbol_values)
            ),
            captured=tuple(b is not None and bool(b.graph) for b in bindings),
            counts=tuple(Counts(0, 0) if b is None else counts(b.flat, bool(b.graph)) for b in bindings),
            uncaptured=tuple(b.reason for b in bindings if b is not None and b.reason),
            inputs=tuple(
                PlanPort(program.values[i].name or f"input {index}", self._operand(i))
                for index, i in enumerate(program.inputs)
                if index not in program.caches
            ),
            results=tuple(
                PlanPort(program.values[i].name or f"output {index}", self._operand(i))
                for index, i in enumerate(program.results)
            ),
            states=tuple(self._states()),
        )

    def _states(self) -> Iterator[PlanState]:
        program = self.program
        for index, name in program.caches.items():
            yield PlanState(name, self._operand(program.inputs[index]), None)
        for name in dict.fromkeys((*program.states, *program.assigns)):
            values = program.states.get(name), program.assigns.get(name)
            yield PlanState(name, *(None if i is None else self._operand(i) for i in values))

    # ---- rows

    def _step(self, segment_index: int, position: int, step: Step) -> PlanStep:
        segment = self.program.segments[segment_index]
        fused = tuple(layer.name for layer in layers_of(step.op))
        inputs = tuple(self._operand(i) if i >= 0 else None for i in step.inputs)
        outputs = tuple(self._operand(i) for i in step.outputs)
        bodies = tuple(self._bodies(segment_index, position, step))
        if bodies and all(b.trips is not None for b in bodies):
            read = sum(b.plan.bytes_read * (b.trips or 0) for b in bodies)
            written = sum(b.plan.bytes_written * (b.trips or 0) for b in bodies)
        else:
            sizes = {i: x.nbytes or 0 for i, x in zip(step.inputs, inputs) if x is not None}
            read, written = traffic(step, sizes | self._attended_bytes(step), [x.nbytes or 0 for x in outputs])
        binding = self.bindings[segment_index] if self.bindings else None
        calls = 1 if step.kind == "eager" else None if binding is None else len(binding.calls[position])
        tf32 = binding is not None and any(isinstance(call, RoundingCall) for call in binding.calls[position])
        if calls == 0 and not bodies:  # the step has nothing to do
            read = written = 0
        buffer = segment.position_of.get(self.program.values[step.outputs[0]].root) if step.outputs else None
        in_place = (
            buffer is not None and segment.buffers[buffer].shares >= 0 and segment.buffers[buffer].first == position
        )
        name = step.name or self.program.values[(step.outputs or step.inputs)[0]].name
        return PlanStep(
            0,
            segment_index,
            step.kind,
            step.op.name,
            step.op.version,
            name,
            inputs,
            outputs,
            in_place,
            read,
            written,
            calls,
            bodies,
            fused,
            self._host_inputs(step.host.values()),
            self.seconds.get((segment_index, position)),
            tf32,
        )

    def _attended_bytes(self, step: Step) -> dict[int, int]:
        """Return, by value id, the bytes that attention reads of caches and masks with capacity for more keys."""
        hosts = None if self.executor is None else self.executor.hosts
        if not isinstance(step.op, (CachedAttention, RotaryAttention)) or hosts is None:
            return {}
        keys, values, mask, lengths = (step.inputs[i] for i in step.op.attended)
        given, capacity = hosts[self.program.values[lengths].source], self._operand(keys).shape[-2]
        if given.ndim == 2:  # a table of pages
            read = int(given[:, 1].sum())  # tokens of all sequences
            held = {i: (self._operand(i).shape[0] or 0) * PAGE_TOKENS for i in (keys, values)}
            if mask >= 0 and self._operand(mask).shape[-1] != 1:
                held[mask] = prod(d or 0 for d in (self._operand(mask).shape[0], self._operand(mask).shape[-1]))
            return {i: (self._operand(i).nbytes or 0) // max(tokens, 1) * read for i, tokens in held.items()}
        length = int(given[1])
        return {
            i: (self._operand(i).nbytes or 0) // (capacity or 1) * length
            for i in (keys, values, mask)
            if i >= 0 and self._operand(i).shape[-1 if i == mask else -2] == capacity
        }

    def _view(self, segment_index: int, view: ElidedNode) -> PlanStep:
        inputs = tuple(self._operand(i) if i >= 0 else None for i in view.inputs)
        outputs = tuple(self._operand(i) for i in view.outputs)
        op: Any = view.node.op
        return PlanStep(None, segment_index, "view", op.name, op.version, view.node.friendly_name, inputs, outputs)

    def _host(self, segment_index: int, node: HostNode) -> PlanStep:
        inputs = tuple(self._operand(i) if isinstance(i, int) else None for i in node.inputs)
        read = sum(x.nbytes or 0 for x in inputs if x is not None)
        layer = node.source_location.split(", id ")[0].removeprefix("layer ").strip("'")
        name = "Fetch" if isinstance(node.op, Copy) else node.op.name
        return PlanStep(
            0,
            segment_index,
            "host",
            name,
            node.op.version,
            layer,
            inputs,
            bytes_read=read,
            calls=1,
            host_inputs=self._host_inputs(x for x in node.inputs if isinstance(x, HostInput)),
        )

    def _host_inputs(self, given: Iterable[HostInput]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.first_host + x.host_node for x in given if x.host_node >= 0))

    def _bodies(self, segment_index: int, position: int, step: Step) -> Iterator[BodyPlan]:
        names = ("then", "else") if isinstance(step.op, If) else ("body",)
        children = self.executor.children if self.executor else {}
        trips = self._trips(segment_index, step)
        binding = self.bindings[segment_index] if self.bindings else None
        calls = binding.calls[position] if binding is not None else ()
        bound = calls.child if isinstance(calls, Calls) else None
        for branch, (name, body) in enumerate(zip(names, step.bodies)):
            ran = [child for key, child in children.items() if key[:2] == (id(step), branch)]
            if bound in ran:  # ignore executors that were bound for other trip counts
                ran = [bound]
            if ran:
                yield from (BodyPlan(name, trips[branch], plan_of(child)) for child in ran)
            elif body.program is not None:
                yield BodyPlan(name, trips[branch], plan_of_program(body.program))

    def _trips(self, segment_index: int, step: Step) -> Sequence[int | None]:
        """Return the trip count of each body, None if unknown."""
        if step.kind != "control" and not isinstance(step.op, If):
            return (None,)
        key = 0 if isinstance(step.op, If) else TRIP_COUNT_KEY
        given = step.host.get(key)
        count: int | None = None
        if given is not None and given.constant is not None:
            count = int(np.asarray(given.constant).reshape(-1)[0])
        elif given is not None and given.ints is not None:
            count = self._known(given.ints[0])
        elif given is not None and self.bindings and (binding := self.bindings[segment_index]) is not None:
            count = int(np.asarray(binding.hosts[given.host_node]).reshape(-1)[0])
        if not isinstance(step.op, If):
            return (count,)
        return (None, None) if count is None else (int(bool(count)), int(not count))

    # ---- tensors

    def _operand(self, i: int) -> Operand:
        if i not in self.operands:
            value = self.program.values[i]
            shape = self._shape(value)
            nbytes = None
            if None not in shape:
                nbytes = distinct(shape, value.view.strides) * value.type.storage.itemsize  # type: ignore[arg-type]
            self.operands[i] = Operand(value.type, shape, value.memory, self._location(value), nbytes, i, value.root)
        return self.operands[i]

    def _shape(self, value: Value) -> tuple[int | None, ...]:
        array = self.executor.arrays[value.id] if self.executor else None
        return tuple(map(self._known, value.view.shape)) if array is None else tuple(array.shape)

    def _known(self, extent: Int) -> int | None:
        """Return the value of an extent if the symbol values of any segment give it, else None."""
        if not isinstance(extent, Sym):
            return int(extent)
        for segment, symbol_values in zip(self.program.segments, self.symbol_values):
            if symbol_values is not None and extent.index in segment.index:
                return symbol_values[segment.index[extent.index]]
        return None

    def _location(self, value: Value) -> str:
        if value.memory == "eager":
            return "fresh"
        if value.memory == "constant":
            return "constant"
        if value.memory == "input" and value.source in self.program.caches:
            return f"variable {self.program.caches[value.source]}"
        if value.memory != "buffer":
            return f"{value.memory} {value.source}"
        for segment, layout in zip(self.program.segments, self.layouts):
            position = segment.position_of.get(value.root)
            if position is not None and layout is not None:
                offset = self._known(value.view.offset)
                if offset is not None:
                    return f"arena+{layout.offsets[position] + offset * value.type.storage.itemsize}"
        return "arena"

    def _layout(self, segment_index: int, segment: Segment) -> Layout | None:
        if self.executor is not None and self.executor.layouts[segment_index] is not None:
            return self.executor.layouts[segment_index]
        sizes = [self._known(b.nbytes) for b in segment.buffers]
        if None in sizes:
            return None
        return lay_out(segment.buffers, sizes, [isinstance(b.nbytes, Sym) for b in segment.buffers])  # type: ignore[arg-type]
