"""Tables of estimates: a plan's steps, its kernels, and the budget of single instances."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from bench.kernels.budget import Budget
from bench.kernels.estimate import budget
from bench.kernels.launches import Launch
from bench.kernels.sequence import Estimate
from ovgpu.runtime.plan import PlanStep

Steps = Sequence[tuple[PlanStep, Sequence[Estimate]]]
MICRO = 1e6


@dataclass(frozen=True)
class Row:
    """Launches of one kernel with the same grid and estimate: how many, and one of them."""

    step: PlanStep
    estimate: Estimate
    count: int

    @property
    def seconds(self) -> float:
        return self.count * self.estimate.seconds

    @property
    def name(self) -> str:
        return self.estimate.launch.name


def total(steps: Steps) -> float:
    """Return the seconds of all launches. Transfers to and from the host count as a launch each."""
    return sum(x.seconds for _, estimates in steps for x in estimates)


def rows_of(steps: Steps) -> list[Row]:
    """Return the launches grouped by kernel, grid and estimate, the longest first."""
    found: dict[tuple[str, tuple[int, ...], int], list[tuple[PlanStep, Estimate]]] = {}
    for step, estimates in steps:
        for x in estimates:
            grid = x.launch.grid if isinstance(x.launch, Launch) else ()
            found.setdefault((x.launch.name, grid, round(x.seconds * 1e9)), []).append((step, x))
    rows = [Row(*group[0], len(group)) for group in found.values()]
    return sorted(rows, key=lambda row: -row.seconds)


def _table(*columns: str, left: int) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number >= left else "right", no_wrap=True)
    return table


def steps_table(steps: Steps) -> Table:
    """Return the estimate of each step, what bounds its longest launch, and its share of the whole."""
    whole = total(steps) or 1.0
    table = _table("#", "us", "share", "bound", "op", "layer", "launches", left=3)
    for step, estimates in steps:
        seconds = sum(x.seconds for x in estimates)
        longest = max(estimates, key=lambda x: x.seconds, default=None)
        table.add_row(
            str(step.number),
            f"{MICRO * seconds:.2f}",
            f"{seconds / whole:.1%}",
            longest.bound if longest else "",
            step.op,
            step.layer[-40:],
            " + ".join(x.launch.name.partition("<")[0] for x in estimates),
        )
    return table


COLUMNS = ("us", "count", "each", "bound", "bytes", "instructions", "tensor", "latency", "blocks", "kernel")


def kernel_cells(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of `COLUMNS` for each row, times in microseconds."""
    for row in rows:
        x = row.estimate
        times = (f"{MICRO * t:.2f}" if t else "" for t in (x.bytes, x.instructions, x.tensor, x.start + x.latency))
        blocks = str(x.launch.blocks) if isinstance(x.launch, Launch) else ""
        yield (
            f"{MICRO * row.seconds:.1f}",
            str(row.count),
            f"{MICRO * x.seconds:.2f}",
            x.bound,
            *times,
            blocks,
            row.name,
        )


def kernels_table(rows: Sequence[Row]) -> Table:
    """Return the estimates by kernel."""
    table = _table(*COLUMNS, left=9)
    for cells in kernel_cells(rows):
        table.add_row(*cells)
    return table


BUDGET = (
    "work",
    "per element",
    "instructions",
    "elements",
    "load",
    "predicated",
    "registers",
    "shared",
    "spills",
    "most frequent",
    "kernel",
)


def budget_cells(name: str, found: Budget) -> tuple[str, ...]:
    """Return the cells of `BUDGET` for an instance."""
    frequent = " ".join(f"{count} {opcode}" for opcode, count in found.counts.most_common(6))
    return (
        {"tensor": "MMA", "fma": "FMA", "bytes": "byte"}[found.work],
        f"{found.per_element:.2f}",
        str(found.instructions),
        str(found.elements),
        str(found.load_width),
        str(found.predicated),
        str(found.code.usage.registers),
        str(found.code.usage.shared),
        str(found.spills),
        frequent,
        name,
    )


def budget_table(budgets: Iterable[tuple[str, Budget]]) -> Table:
    """Return the budgets of kernels by name."""
    table = _table(*BUDGET, left=9)
    for name, found in budgets:
        table.add_row(*budget_cells(name, found))
    return table


def budgets_of(rows: Sequence[Row]) -> dict[str, Budget]:
    """Return the budgets of the kernels of these rows by name."""
    return {
        row.name: budget(row.estimate.launch.code, bool(row.estimate.products))
        for row in reversed(rows)
        if isinstance(row.estimate.launch, Launch)
    }
