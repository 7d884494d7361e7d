"""Drawing of a plan as plain data: boxes for steps, states, inputs and results, and edges for tensors.

Equal blocks of steps, such as the layers of a decoder, are drawn once. Views take no time: they are parts of edges.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from ovgpu.cli.graph.folding import Fold, folds
from ovgpu.runtime.plan import Operand, Plan, PlanStep
from ovgpu.runtime.printing import FoldedPlan, bytes_text, counted

NAME_CHARACTERS = 44
MAX_LABELS = 2  # tensors that the label of an edge lists

BoxKind = Literal[
    "bound", "in place", "copy", "eager", "control", "host", "upload", "download", "input", "result", "state"
]
EdgeKind = Literal["tensor", "next", "host"]
Source = int | str
"""Index of the step that computes a value, or name of the box of an input or state."""


@dataclass
class Box:
    """Box of a step, or of a tensor that outlives a run.

    It stands for ``times`` equal ones, each of which moves ``nbytes``.
    """

    name: str
    kind: BoxKind
    title: str
    lines: list[str] = field(default_factory=list)
    times: int = 1
    nbytes: int = 0
    bodies: list[Drawing] = field(default_factory=list)


@dataclass(frozen=True)
class Edge:
    """Tensors that one box computes and another one reads.

    Kinds: tensor, next (the reader belongs to the next block of the fold), and host (a number that the host computes).
    """

    source: str
    target: str
    labels: tuple[str, ...] = ()
    kind: EdgeKind = "tensor"


@dataclass
class Block:
    """Boxes that stand for ``count`` equal blocks of steps, which move ``nbytes`` together.

    ``first`` and ``last`` are the layers of the first and the last step.
    """

    count: int
    first: str
    last: str
    nbytes: int
    boxes: list[str]


@dataclass
class Drawing:
    """Boxes in order of execution, edges, and blocks.

    ``steps`` counts the boxes of steps, without those of bodies. ``names`` has the name of the box of each step of the
    plan except views.
    """

    title: str
    subtitle: str = ""
    boxes: dict[str, Box] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    steps: int = 0
    names: list[str] = field(default_factory=list)


def draw(plan: Plan, title: str, fold: bool = True) -> Drawing:
    """Return the drawing of a plan. Unless ``fold`` is false, equal blocks of steps are drawn once."""
    drawing = _Drawer(plan, title, fold, "").drawing
    steps = sum(step.kind != "view" for step in plan.steps)
    parts = [
        plan.device,
        f"{drawing.steps} of {counted(steps, 'step')} drawn" if drawing.blocks else counted(steps, "step"),
        f"{bytes_text(plan.bytes_moved)} moved per inference",
    ]
    drawing.subtitle = ", ".join(part for part in parts if part)
    return drawing


def folded(plan: Plan) -> Plan | FoldedPlan:
    """Return a plan that prints equal blocks once and no views; the plan itself if it has no equal blocks."""
    drawing = _Drawer(plan, "", True, "").drawing
    if not drawing.blocks:
        return plan
    shown: dict[str, int] = {}  # the position of each box's first step
    for name, position in zip(drawing.names, (p for p, step in enumerate(plan.steps) if step.kind != "view")):
        shown.setdefault(name, position)
    blocks = [[shown[name] for name in block.boxes if name in shown] for block in drawing.blocks]
    titles = {
        min(steps): (f"× {block.count}", f"{block.first} to {block.last}, {bytes_text(block.nbytes)} moved in all")
        for block, steps in zip(drawing.blocks, blocks)
    }
    return FoldedPlan(plan, tuple(shown.values()), frozenset(chain(*blocks)), titles)


class _Drawer:
    """Builder of a drawing. ``prefix`` distinguishes the boxes of a body from those around it."""

    def __init__(self, plan: Plan, title: str, fold: bool, prefix: str) -> None:
        self.plan, self.fold, self.prefix = plan, fold, prefix
        self.drawing = Drawing(title)
        self.steps = [step for step in plan.steps if step.kind != "view"]
        self.views = {
            x.value: [i for i in step.inputs if i is not None and i.memory != "constant"]
            for step in plan.steps
            if step.kind == "view"
            for x in step.outputs
        }
        self.inputs = {port.operand.value: f"{prefix}i{i}" for i, port in enumerate(plan.inputs)}
        self.made: dict[int, Source] = dict(self.inputs)
        self.made |= {
            state.read.value: f"{prefix}v{i}" for i, state in enumerate(plan.states) if state.read is not None
        }
        self.writers: dict[int, list[Source]] = {}  # root -> steps that write to its memory
        for index, step in enumerate(self.steps):
            for x in step.outputs:
                self.made[x.value] = index
                self.writers.setdefault(x.root, []).append(index)
        reads = [[self._sources(x, step.kind == "host") for x in step.inputs] for step in self.steps]
        step_reads = [
            [*([s for s in sources if isinstance(s, int)] for sources in operands), *([n] for n in step.host_inputs)]
            for operands, step in zip(reads, self.steps)
        ]
        all_folds = folds([_signature(step) for step in self.steps], step_reads) if fold else []
        self.place = {
            step: (fold_index, block_index)
            for fold_index, blocks in enumerate(all_folds)
            for block_index, block in enumerate(blocks)
            for step in block
        }
        self.names = [f"{prefix}s{i}" for i in range(len(self.steps))]
        for blocks in all_folds:
            self._add_block(blocks)
        self._add_steps()
        self.tensors: dict[tuple[str, str, EdgeKind], dict[str, None]] = {}
        for index, (step, operands) in enumerate(zip(self.steps, reads)):
            for operand, sources in zip(step.inputs, operands):
                for source in sources:
                    self._connect(source, index, operand)
            for source in step.host_inputs:
                self._connect(source, index)
        self._add_ports()
        self._add_states()
        self.drawing.edges = [
            Edge(source, target, tuple(labels), kind) for (source, target, kind), labels in self.tensors.items()
        ]

    # ---- boxes

    def _add_block(self, blocks: Fold) -> None:
        for block in blocks:
            for step, name in zip(block, blocks[0]):
                self.names[step] = f"{self.prefix}s{name}"
        self.drawing.blocks.append(
            Block(
                len(blocks),
                _short(self.steps[blocks[0][0]].layer),
                _short(self.steps[blocks[-1][-1]].layer),
                sum(self.steps[step].bytes_moved for block in blocks for step in block),
                [self.names[step] for step in blocks[0]],
            )
        )

    def _add_steps(self) -> None:
        for name, step in zip(self.names, self.steps):
            if name in self.drawing.boxes:
                self.drawing.boxes[name].times += 1
            else:
                self.drawing.boxes[name] = self._box(name, step)
        self.drawing.steps, self.drawing.names = len(self.drawing.boxes), self.names

    def _box(self, name: str, step: PlanStep) -> Box:
        lines = [_short(step.layer)] if step.layer not in ("", step.op) else []
        if len(step.fused) > 1:
            first, last = _short(step.fused[0]), _short(step.fused[-1])
            lines = [first, f"and {last}"] if len(step.fused) == 2 else [first, f"to {last}, {len(step.fused)} layers"]
        lines.append(", ".join(map(str, step.outputs)))
        constants = sum(x.nbytes or 0 for x in step.inputs if x is not None and x.memory == "constant")
        if step.bytes_moved:
            lines.append(f"{bytes_text(step.bytes_moved)} moved")
        if constants:
            lines.append(f"{bytes_text(constants)} of constants")
        bodies = [
            _Drawer(
                body.plan, f"{body.name} × {'?' if body.trips is None else body.trips}", self.fold, f"{name}b{i}"
            ).drawing
            for i, body in enumerate(step.bodies)
            if body.trips != 0
        ]
        return Box(
            name,
            "in place" if step.in_place else step.kind,  # type: ignore[arg-type]
            step.op,
            [line for line in lines if line],
            1,
            step.bytes_moved,
            bodies,
        )

    def _add_ports(self) -> None:
        uploads = {step.outputs[0].value: index for index, step in enumerate(self.steps) if step.kind == "upload"}
        downloads = {
            x.value: index
            for index, step in enumerate(self.steps)
            if step.kind == "download"
            for x in step.inputs
            if x is not None
        }
        for port in self.plan.inputs:
            name = self.inputs[port.operand.value]
            self.drawing.boxes[name] = Box(name, "input", _short(port.name), [str(port.operand)])
            if port.operand.value in uploads:
                self._connect(name, uploads[port.operand.value], port.operand)
        for index, port in enumerate(self.plan.results):
            name = f"{self.prefix}r{index}"
            self.drawing.boxes[name] = Box(name, "result", _short(port.name), [str(port.operand)])
            download = downloads.get(port.operand.value)
            for source in self._sources(port.operand) if download is None else [download]:
                self._connect(source, name, port.operand)

    def _add_states(self) -> None:
        """Add a box for each group of variables that the same boxes read and write, as in the blocks of a fold."""
        groups: dict[tuple[object, ...], list[tuple[str, str, Operand]]] = {}
        for index, state in enumerate(self.plan.states):
            name, operand = f"{self.prefix}v{index}", state.read or state.assigned
            if operand is None:
                continue
            written = {} if state.read is None else dict.fromkeys(self.writers.get(state.read.root, ()))
            for source in {**written, **dict.fromkeys(self._sources(state.assigned))}:
                self._connect(source, name, state.assigned or operand)
            ends = frozenset(
                (source if target == name else "", target if source == name else "", kind)
                for source, target, kind in self.tensors
                if name in (source, target)
            )
            groups.setdefault((ends, str(operand)) if self.fold else (name,), []).append((name, state.name, operand))
        for (name, first, operand), *others in groups.values():
            more = [f"to {_short(others[-1][1])}", f"{len(others) + 1} variables"] if others else []
            self.drawing.boxes[name] = Box(name, "state", _short(first), [*more, str(operand)], len(others) + 1)
            same = {other for other, _, _ in others}
            self.tensors = {ends: x for ends, x in self.tensors.items() if not same & set(ends[:2])}
            neighbours = {
                end for source, target, _ in self.tensors if name in (source, target) for end in (source, target)
            } - {name}
            for block in self.drawing.blocks:
                if neighbours and neighbours <= set(block.boxes):
                    block.boxes.append(name)

    # ---- edges

    def _sources(self, operand: Operand | None, on_host: bool = False) -> list[Source]:
        """Return the steps or boxes that compute a tensor: several for a concatenation, none for a constant."""
        sources: dict[Source, None] = {}
        waiting, visited = [] if operand is None else [operand], set[int]()
        while waiting:
            x = waiting.pop()
            if x.value in visited:
                continue
            visited.add(x.value)
            if on_host and x.value in self.inputs:
                sources[self.inputs[x.value]] = None
            elif x.value in self.made:
                sources[self.made[x.value]] = None
            elif x.value in self.views:
                waiting += reversed(self.views[x.value])
            else:
                sources |= dict.fromkeys(self.writers.get(x.root, ()))
        return list(sources)

    def _connect(self, source: Source, target: Source, operand: Operand | None = None) -> None:
        """Add an edge for a tensor, or for a number on the host if there is no operand."""
        kind: EdgeKind = "host" if operand is None else "tensor"
        if isinstance(source, int) and isinstance(target, int) and source in self.place and target in self.place:
            (source_fold, source_block), (target_fold, target_block) = self.place[source], self.place[target]
            kind = "next" if source_fold == target_fold and source_block != target_block else kind
        start, end = (self.names[x] if isinstance(x, int) else x for x in (source, target))
        size = "" if operand is None or not operand.nbytes else f" {bytes_text(operand.nbytes)}"
        self.tensors.setdefault((start, end, kind), {}).update({f"{operand}{size}": None} if operand else {})


def _signature(step: PlanStep) -> tuple[object, ...]:
    """Return a key that is equal for steps that do the same with different tensors."""
    inputs = tuple(None if x is None else (str(x), x.memory == "constant") for x in step.inputs)
    bodies = tuple((body.name, body.trips, *map(_signature, body.plan.steps)) for body in step.bodies)
    return (
        step.kind,
        step.op,
        step.version,
        step.in_place,
        len(step.fused),
        inputs,
        tuple(map(str, step.outputs)),
        step.bytes_read,
        step.bytes_written,
        len(step.host_inputs),
        bodies,
    )


def _short(name: str) -> str:
    """Return the end of a long name, which tells layers apart."""
    return name if len(name) <= NAME_CHARACTERS else f"…{name[1 - NAME_CHARACTERS :]}"
