"""Comparison of estimates with times measured on an H100, and the constants that fit best.

    python -m bench.kernels.calibration

`results/gpu-h100-estimates.json` has the parts of the estimates of the code that was measured, which is older than
today's: the machine code of the project's state on 2026-11-26, as `bench.kernels.estimate` takes it apart, with
constants of 1. Times in a row named "early" are of a graph whose kernels begin early; the others are sums over kernels
that a profiler ran one after the other. Constants are fitted to every other row; the remaining ones show how far they
carry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp, log, sqrt
from pathlib import Path
from typing import Any

from bench.kernels import estimate, sequence
from bench.kernels.launches import Launch, LibraryCall
from bench.kernels.sequence import Estimate, overlap

FILE = Path(__file__).resolve().parents[1] / "results" / "gpu-h100-estimates.json"
NEAR = 1.2  # factor within which an estimate is near


@dataclass(frozen=True)
class Constants:
    """The constants of `bench.kernels.estimate` and `bench.kernels.sequence` that measured times decide."""

    exposed: float = estimate.EXPOSED
    arriving: float = sequence.ARRIVING


CANDIDATES = [Constants(*x) for x in product((0, 0.4, 0.5, 0.6, 0.7, 0.8, 1), (0, 0.2, 0.5, 1))]


@dataclass(frozen=True)
class Row:
    """Microseconds of a workload or a single layer, measured and estimated."""

    name: str
    measured: float
    estimate: float

    @property
    def ratio(self) -> float:
        return self.estimate / self.measured


def rows(constants: Constants = Constants()) -> list[Row]:
    """Return all rows that were measured."""
    recorded = json.loads(FILE.read_text())
    return [
        Row(name, row["measured_us"], sum(x.seconds for x in _estimates(row, recorded["parts"], constants)))
        for name, row in recorded["rows"].items()
    ]


def _estimates(row: dict[str, Any], parts: Sequence[str], constants: Constants) -> Iterator[Estimate]:
    """Return the estimates of a row, in microseconds. Single layers run alone."""
    found = []
    for number in row["order"]:
        name, early, *times = row["launches"][number]
        code: Any = None
        launch = Launch(name, "", code, (1,), 32, 0, 0, early) if early is not None else LibraryCall(name)
        values = dict(zip(parts, times))
        values["exposed"] *= constants.exposed
        found.append(Estimate(launch, **values))
    return overlap(found, constants.arriving)


def error(found: Sequence[Row]) -> float:
    """Return the typical factor between estimates and times: e to the root of the mean squared logarithm."""
    return exp(sqrt(sum(log(row.ratio) ** 2 for row in found) / len(found)))


def fitted() -> Constants:
    """Return the candidate with the smallest error of every other row."""
    return min(CANDIDATES, key=lambda constants: error(rows(constants)[::2]))


def table() -> Iterator[str]:
    """Yield the lines of a Markdown table of all rows, and of what their errors are."""
    found = rows()
    for title, half in (("rows that the constants are fitted to", found[::2]), ("other rows", found[1::2])):
        near = sum(1 / NEAR <= row.ratio <= NEAR for row in half)
        yield f"- {len(half)} {title}: a typical factor of {error(half):.2f}; {near} within {NEAR}."
    yield from ("", "| | estimate | measured | estimate / measured |", "| --- | ---: | ---: | ---: |")
    for row in found:
        yield f"| {row.name} | {row.estimate:.1f} | {row.measured:.1f} | {row.ratio:.2f} |"


def main() -> None:
    """Print the table, and the constants that fit best."""
    print(*table(), "", f"{fitted()} fits best; in use: {Constants()}", sep="\n")


if __name__ == "__main__":
    main()
