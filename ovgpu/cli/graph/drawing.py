"""Drawing of a plan as plain data: boxes for steps, states, inputs and results, and edges for tensors.

Equal blocks of steps that follow each other, such as the layers of a decoder, are drawn once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ovgpu.runtime.plan import Operand, Plan, PlanStep
from ovgpu.runtime.printing import bytes_text

MIN_REPEATS, MIN_STEPS = 3, 3  # of a block that is folded, and in it
NAME_CHARACTERS = 44

BoxKind = Literal["bound", "in place", "copy", "eager", "control", "host", "upload", "download", "input", "result",
                  "state"]


@dataclass
class Box:
    """A step, or what steps read and write. ``times`` counts the equal ones that the box stands for."""

    name: str
    kind: BoxKind
    title: str
    lines: list[str] = field(default_factory=list)
    times: int = 1
    nbytes: int = 0
    """The bytes that one of them moves."""
    bodies: list[Drawing] = field(default_factory=list)


@dataclass(frozen=True)
class Edge:
    """A tensor on its way from a box to another one; ``next`` if it is one for the next block of its kind."""

    source: str
    target: str
    label: str = ""
    next: bool = False


@dataclass
class Block:
    """Boxes that stand for several equal blocks of steps."""

    title: str
    boxes: list[str]


@dataclass
class Drawing:
    """Boxes in order of execution, edges, and blocks."""

    title: str
    boxes: dict[str, Box] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    steps: int = 0
    """The number of steps that are drawn, each of a folded block counted once; without those of bodies."""


def draw(plan: Plan, title: str, fold: bool = True, prefix: str = "") -> Drawing:
    """Return the drawing of a plan. ``prefix`` distinguishes the boxes of a body from those around it."""
    return _Drawer(plan, title, fold, prefix).drawing


def repeats(signatures: Sequence[object]) -> list[tuple[int, int, int]]:
    """Return the folds of a sequence as (first, period, count): runs of equal blocks, which do not overlap.

    The run that saves the most is taken first, then those before and after it.
    """
    numbers: dict[object, int] = {}
    return sorted(_folds(np.array([numbers.setdefault(s, len(numbers)) for s in signatures], np.int64), 0))


def _folds(codes: np.ndarray, start: int) -> Iterator[tuple[int, int, int]]:
    best = (0, 0, 0, 0)  # steps saved, first, period, count
    for period in range(MIN_STEPS, len(codes) // MIN_REPEATS + 1):
        equal = codes[:-period] == codes[period:]
        ends = np.flatnonzero(np.diff(np.concatenate(([False], equal, [False])).astype(np.int8)))
        for first, end in zip(ends[::2], ends[1::2]):
            count = int(end - first) // period + 1
            if count >= MIN_REPEATS and (count - 1) * period > best[0]:
                best = (count - 1) * period, int(first), period, count
    saved, first, period, count = best
    if not saved:
        return
    yield start + first, period, count
    yield from _folds(codes[:first], start)
    yield from _folds(codes[first + period * count:], start + first + period * count)


class _Drawer:
    def __init__(self, plan: Plan, title: str, fold: bool, prefix: str) -> None:
        self.plan, self.fold, self.prefix = plan, fold, prefix
        self.drawing = Drawing(title)
        self.steps = [step for step in plan.steps if step.kind != "view"]
        self.views = {x.value: [i for i in step.inputs if i is not None and i.memory != "constant"]
                      for step in plan.steps if step.kind == "view" for x in step.outputs}
        folds = repeats([_signature(step) for step in self.steps]) if fold else []
        self.boxes = self._step_boxes(folds)
        self.producers: dict[int, tuple[str, int]] = {}  # value -> box, and the number of its block
        for number, step in enumerate(self.steps):
            for x in step.outputs:
                self.producers[x.value] = self.boxes[number]
        self._input_boxes()
        self.seen: Counter[tuple[str, str, bool]] = Counter()
        for number, step in enumerate(self.steps):
            for operand in step.inputs:
                if operand is not None:
                    self._connect(operand, *self.boxes[number])
        self._result_boxes()
        self._state_boxes()

    # ---- boxes

    def _step_boxes(self, folds: Sequence[tuple[int, int, int]]) -> list[tuple[str, int]]:
        """Make the boxes of all steps; return for each step its box and the number of its block."""
        found = [(f"{self.prefix}s{number}", 0) for number in range(len(self.steps))]
        for first, period, count in folds:
            for i in range(period * count):
                found[first + i] = found[first + i % period][0], i // period
            last = self.steps[first + period * count - 1]
            self.drawing.blocks.append(Block(
                f"× {count}: from {_short(self.steps[first].layer)} to {_short(last.layer)}",
                [found[first + i][0] for i in range(period)]))
        for number, step in enumerate(self.steps):
            name = found[number][0]
            if name in self.drawing.boxes:
                self.drawing.boxes[name].times += 1
            else:
                self.drawing.boxes[name] = self._box(name, step)
        self.drawing.steps = len(self.drawing.boxes)
        return found

    def _box(self, name: str, step: PlanStep) -> Box:
        lines = [_short(step.layer)] if step.layer and step.layer != step.op else []
        if step.fused:
            more = f" and {len(step.fused) - 2} more" if len(step.fused) > 2 else ""
            lines.append(f"fused: {', '.join(map(_short, step.fused[:2]))}{more}")
        lines.append(", ".join(map(str, step.outputs)))
        if step.bytes_moved:
            lines.append(f"{bytes_text(step.bytes_moved)} moved")
        bodies = [draw(body.plan, f"{body.name} × {'?' if body.trips is None else body.trips}", self.fold,
                       f"{name}b{i}") for i, body in enumerate(step.bodies) if body.trips != 0]
        return Box(name, "in place" if step.in_place else step.kind, step.op,  # type: ignore[arg-type]
                   [line for line in lines if line], 1, step.bytes_moved, bodies)

    def _input_boxes(self) -> None:
        for number, port in enumerate(self.plan.inputs):
            name = f"{self.prefix}i{number}"
            self.drawing.boxes[name] = Box(name, "input", _short(port.name), [str(port.operand)])
            self.producers.setdefault(port.operand.value, (name, 0))

    def _result_boxes(self) -> None:
        for number, port in enumerate(self.plan.results):
            name = f"{self.prefix}r{number}"
            self.drawing.boxes[name] = Box(name, "result", _short(port.name), [str(port.operand)])
            self._connect(port.operand, name, 0)

    def _state_boxes(self) -> None:
        """Make the boxes of variables. Those with the same readers and writers, as in folded blocks, are one box."""
        readers: dict[int, set[str]] = {}
        for number, step in enumerate(self.steps):
            for operand in step.inputs:
                for value in self._origins(operand):
                    readers.setdefault(value, set()).add(self.boxes[number][0])
        written: dict[str, set[str]] = {}
        for number, step in enumerate(self.steps):
            for x in step.outputs:
                if x.location.startswith("variable "):
                    written.setdefault(x.location.removeprefix("variable "), set()).add(self.boxes[number][0])
        groups: dict[tuple[frozenset[str], frozenset[str], str], list[tuple[str, Operand]]] = {}
        for state in self.plan.states:
            operand = state.read or state.assigned
            if operand is None:
                continue
            reads = readers.get(state.read.value, set()) if state.read is not None else set()
            writes = written.get(state.name, set()) | {
                self.producers[value][0] for value in self._origins(state.assigned) if value in self.producers}
            key = frozenset(reads), frozenset(writes), str(operand) if self.fold else state.name
            groups.setdefault(key, []).append((state.name, operand))
        for number, ((readers_of, writers_of, _), members) in enumerate(groups.items()):
            name = f"{self.prefix}v{number}"
            named = ", ".join(member for member, _ in members)
            title = named if len(named) <= NAME_CHARACTERS else _short(members[0][0])
            more = [f"and {len(members) - 1} more"] if title != named and len(members) > 1 else []
            self.drawing.boxes[name] = Box(name, "state", title, [*more, str(members[0][1])], len(members))
            self.drawing.edges += [Edge(name, box) for box in sorted(readers_of)]
            self.drawing.edges += [Edge(box, name) for box in sorted(writers_of)]

    # ---- edges

    def _origins(self, operand: Operand | None) -> list[int]:
        """Return the values that steps compute, or inputs, of which a value is a view."""
        found, waiting, visited = [], [] if operand is None else [operand.value], set()
        while waiting:
            value = waiting.pop()
            if value in visited:
                continue
            visited.add(value)
            if value in self.views and value not in self.producers:
                waiting += [x.value for x in reversed(self.views[value])]
            else:
                found.append(value)
        return found

    def _connect(self, operand: Operand, target: str, block: int) -> None:
        """Add the edges of a value that a box reads."""
        for value in self._origins(operand):
            if value not in self.producers:
                continue
            source, of = self.producers[value]
            following = of != block and self._same_block(source, target)
            if source == target and not following:
                continue
            self.seen[source, target, following] += 1
            if self.seen[source, target, following] == 1:
                size = f" {bytes_text(operand.nbytes)}" if operand.nbytes else ""
                self.drawing.edges.append(Edge(source, target, f"{operand}{size}", following))

    def _same_block(self, source: str, target: str) -> bool:
        return any(source in block.boxes and target in block.boxes for block in self.drawing.blocks)


def _signature(step: PlanStep) -> tuple[object, ...]:
    """Return what two steps share if they do the same with other tensors."""
    bodies = tuple((body.trips, len(body.plan.steps)) for body in step.bodies)
    inputs = tuple(None if x is None else (str(x), x.memory == "constant") for x in step.inputs)
    return (step.kind, step.op, step.version, step.in_place, len(step.fused), inputs, tuple(map(str, step.outputs)),
            step.bytes_moved, bodies)


def _short(name: str) -> str:
    """Return the end of a long name, which tells layers apart."""
    return name if len(name) <= NAME_CHARACTERS else f"…{name[1 - NAME_CHARACTERS:]}"
