"""Printing of a plan as a table, for terminals of any width."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from ovgpu.runtime.plan import Plan, PlanStep

STYLES = {
    "bound": "green",
    "copy": "yellow",
    "eager": "red",
    "control": "magenta",
    "host": "blue",
    "view": "dim",
    "upload": "cyan",
    "download": "cyan",
}
MEANINGS = {
    "bound": "writes into memory that was allocated before the inference",
    "in place": "overwrites one of its inputs",
    "copy": "moves a tensor, and computes nothing",
    "eager": "allocates its result when it runs, since its size is not known before",
    "control": "runs the steps of a loop or branch",
    "host": "is computed on the host, as shapes are",
    "view": "takes no time: its result lies in the memory of its input",
    "upload": "brings a tensor of the host to the card",
    "download": "brings a tensor of the card to the host",
}
"""Meanings of the kinds of steps, for people who read a plan."""
WORDS = {
    "calls": "functions that a step calls at each inference: kernels, on a card",
    "-": "an input of a step that is absent, or whose value is known on the host, as axes and target shapes are",
    "symbol values": "numbers that are known when the model runs, such as the length of a sequence",
}
MIN_WIDE_COLUMNS = 100  # a narrower terminal gets no columns for memory and calls


def bytes_text(count: int | None) -> str:
    """Format a number of bytes with a suitable unit: ``512 B``, ``1.5 KB``, ``3.0 MB``; ``?`` for None."""
    if count is None:
        return "?"
    size, units = float(count), iter(("KB", "MB", "GB", "TB"))
    unit = "B"
    while size >= 1024 and unit != "TB":
        size, unit = size / 1024, next(units)
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def counted(count: int, singular: str, plural: str = "") -> str:
    """Format a count with its noun: ``1 step``, ``2 steps``. The plural defaults to the singular with an s."""
    return f"{count} {singular if count == 1 else plural or singular + 's'}"


@dataclass(frozen=True)
class FoldedPlan:
    """Plan that prints only the steps at the positions ``shown``: equal blocks once, and no views.

    ``blocks``: the positions of steps in blocks; ``titles``: by the position of a block's first step, the texts that
    say how often the block occurs, and in which layers.
    """

    plan: Plan
    shown: Sequence[int]
    blocks: frozenset[int]
    titles: Mapping[int, tuple[str, str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from render(self.plan, options.max_width, self)


def render(plan: Plan, width: int, folded: FoldedPlan | None = None) -> Iterator[RenderableType]:
    """Yield the table of a plan and a summary below it. A bound step that overwrites an input is called "in place"."""
    wide = width >= MIN_WIDE_COLUMNS
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("op", no_wrap=True, max_width=28 if wide else 16, overflow="ellipsis")
    table.add_column("layer", no_wrap=True, max_width=24 if wide else 16, overflow="ellipsis")
    table.add_column("shapes", overflow="fold", ratio=1, min_width=32 if wide else None)
    if wide:
        table.add_column("memory", no_wrap=True, max_width=20, overflow="ellipsis")
    table.add_column("bytes", justify="right", no_wrap=True)
    if wide:
        table.add_column("calls", justify="right", no_wrap=True)
    if wide and any(step.seconds is not None for step in plan.steps):
        table.add_column("us", justify="right", no_wrap=True)
    if folded is None:
        _rows(table, plan, plan.steps, wide, 0)
    else:
        for position in folded.shown:
            if position in folded.titles:
                times, layers = folded.titles[position]
                table.add_row("", Text(times, "bold magenta"), "", "", Text(layers, "bold magenta"))
            step = replace(plan.steps[position], fused=())
            _rows(table, plan, [step], wide, int(position in folded.blocks))
    yield table
    yield _summary(plan)
    if folded is not None:
        steps = sum(step.kind != "view" for step in plan.steps)
        yield Text(f"{len(folded.shown)} of {steps} steps are listed: equal blocks once, and no views", "bold")


def legend(plan: Plan) -> list[tuple[str, str]]:
    """Return the words in a plan's table and their meanings."""
    kinds = {"in place" if step.in_place else step.kind for step in plan.all_steps()}
    shown = {
        "calls": True,
        "-": any(x is None for step in plan.all_steps() for x in step.inputs),
        "symbol values": any(plan.symbol_values),
    }
    meanings = [(kind, meaning) for kind, meaning in MEANINGS.items() if kind in kinds]
    return meanings + [(word, meaning) for word, meaning in WORDS.items() if shown[word]]


def as_text(plan: Plan, width: int) -> str:
    """Return the table and its summary as text without colours."""
    # Otherwise rich displays the table in a notebook, instead of writing it.
    console = Console(file=io.StringIO(), width=width, color_system=None, force_jupyter=False)
    console.print(plan)
    return console.file.getvalue().rstrip("\n")  # type: ignore[attr-defined, no-any-return]


def shapes_text(step: PlanStep) -> str:
    """Format the operands of a step: ``[2,3] [3] → f32[2,3]``. An input that is absent or on the host is a dash.

    An input shows its type only if it differs from the output's type. ``in tf32`` follows if it computes in TF32.
    """
    type_name = step.outputs[0].type.get_type_name() if step.outputs else ""
    left = " ".join("-" if x is None else str(x).removeprefix(type_name) for x in step.inputs)
    right = " ".join(map(str, step.outputs))
    return (f"{left} → {right}" if right else left) + (" in tf32" if step.tf32 else "")


def memory_text(step: PlanStep, plan: Plan) -> str:
    """Return the locations of a step's results. Results of the model have their tensor names instead."""
    names = {f"output {index}": f"result {port.name}" for index, port in enumerate(plan.results) if port.name}
    return ", ".join(dict.fromkeys(names.get(x.location, x.location) for x in step.outputs))


def _rows(table: Table, plan: Plan, steps: Iterable[PlanStep], wide: bool, depth: int) -> None:
    indent = "  " * depth
    for step in steps:
        number = "" if step.number is None else str(step.number)
        version = f" {step.version.removeprefix('opset')}" if wide and step.version.startswith("opset") else ""
        calls = "" if step.calls is None or step.kind in ("view", "host") else str(step.calls)
        moved = "" if step.kind in ("view", "host") and not step.bytes_moved else bytes_text(step.bytes_moved)
        kind = Text("in place" if step.in_place else step.kind, STYLES[step.kind])
        cells: list[RenderableType] = [number, kind, Text(f"{indent}{step.op}{version}")]
        cells += [Text(step.layer), Text(shapes_text(step))]
        cells += [Text(memory_text(step, plan))] if wide else []
        cells += [moved]
        if wide:
            cells += [calls] if step.seconds is None else [calls, f"{1e6 * step.seconds:.1f}"]
        table.add_row(*cells, style="dim" if step.kind == "view" else "")
        if step.fused:
            text = Text(f"{indent}fused: {', '.join(step.fused)}")
            table.add_row("", "", "", "", text, style="dim")
        for body in step.bodies:
            times = "?" if body.trips is None else str(body.trips)
            title = Text(f"{indent}  {body.name} × {times}", "bold magenta")
            table.add_row("", "", title)
            if body.trips != 0:
                _rows(table, body.plan, body.plan.steps, wide, depth + 2)


def _summary(plan: Plan) -> Text:
    kinds = [(kind, plan.count(kind)) for kind in STYLES]  # type: ignore[arg-type]
    kinds_text = ", ".join(f"{count} {kind}" for kind, count in kinds if count)
    parts = [f"device {plan.device}"] if plan.device else []
    parts += [
        kinds_text or "no steps",
        f"{counted(plan.launches, 'launch', 'launches')} of {counted(plan.kernels, 'kernel')}",
        f"arena {bytes_text(plan.arena) if None not in plan.arenas else '?'}",
        f"constants {bytes_text(plan.constants)}",
        f"state {bytes_text(plan.state)}",
        *([counted(sum(map(len, plan.symbol_values)), "symbol value")] if any(plan.symbol_values) else []),
        f"{bytes_text(plan.bytes_moved)} moved per inference",
    ]
    times = [step.seconds for step in plan.steps if step.seconds is not None]
    parts += [f"{1e6 * sum(times):.0f} us in {counted(len(times), 'step')}"] if times else []
    parts += [f"runs call by call: {reason}" for reason in plan.uncaptured]
    return Text("; ".join(parts), "bold")
