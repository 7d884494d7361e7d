"""Results of a benchmark: rows of the report, and the last lines of the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from ovgpu.cli.benchmark.measure import Latencies, Measurement
from ovgpu.cli.benchmark.report import Rows

PERCENTILES = (90, 95, 99)
Print = Callable[[str], None]


@dataclass(frozen=True)
class Results:
    """A measurement, and what is said about it.

    ``percentile`` is reported in place of the median. ``groups`` are the names of the groups of inputs whose latencies
    are reported, if there are several. An inference computes ``tokens`` tokens (0 unless the model is a language model
    with a state), one that begins a sequence ``prompt`` tokens.
    """

    found: Measurement
    percentile: int
    groups: Sequence[str]
    tokens: int
    prompt: int

    def rows(self) -> Rows:
        """Return the rows of the report, with benchmark_app's keys."""
        found, p = self.found, self.percentile
        rows = [
            ("total execution time (ms)", f"{found.seconds * 1000:.2f}"),
            ("total number of iterations", str(found.iterations)),
            ("latency (ms)" if p == 50 else f"latency ({p} percentile) (ms)", f"{found.percentile(p):.2f}"),
            *_latency_rows(found),
        ]
        for name, latencies in self._groups():
            rows += [("group", name), *_latency_rows(latencies)]
        rows.append(("throughput", f"{found.frames_per_second:.2f}"))
        return rows + [(f"{name} (tokens/s)", f"{rate:.2f}") for name, rate, _ in self._rates()]

    def print_latencies(self, print_line: Print) -> None:
        """Print count, duration, latencies and throughput."""
        found = self.found
        print_line(f"Count:            {found.iterations} iterations")
        print_line(f"Duration:         {found.seconds * 1000:.2f} ms")
        print_line("Latency:")
        self._print(found, 15, print_line)
        groups = self._groups()
        if groups:
            print_line("Latency for each data shape group:")
        for number, (name, latencies) in enumerate(groups, 1):
            print_line(f"{number}. {name}")
            self._print(latencies, 12, print_line)
        print_line(f"Throughput:   {found.frames_per_second:.2f} FPS")
        if self.tokens:
            print_line(f"Tokens:       {found.per_second * self.tokens:.2f} tokens/s")
        for name, rate, time in self._rates():
            print_line(f"   {name.capitalize() + ':':<11}{rate:.2f} tokens/s, {time:.2f} ms")

    def percentiles_text(self) -> str:
        """Return the larger percentiles of the latencies as text."""
        return ", ".join(f"{q}%: {self.found.percentile(q):.3f}" for q in PERCENTILES) + " ms"

    def _groups(self) -> list[tuple[str, Latencies]]:
        if len(self.groups) < 2:
            return []
        return [(self.groups[group], latencies) for group, latencies in sorted(self.found.groups.items())]

    def _rates(self) -> list[tuple[str, float, float]]:
        """Return (name, tokens per second, milliseconds) of prefill and decode, by median latencies."""
        if not self.found.prompts:
            return []
        parts = ("prefill", self.prompt, self.found.prompts), ("decode", self.tokens, self.found.latencies)
        return [(name, 1000 * tokens / median(times), median(times)) for name, tokens, times in parts]

    def _print(self, found: Latencies, columns: int, print_line: Print) -> None:
        unit, factor = ("us", 1000) if found.average < 1 else ("ms", 1)
        p = self.percentile
        for title, value in (
            ("Median:" if p == 50 else f"{p} percentile:     ", found.percentile(p)),
            ("Average:", found.average),
            ("Min:", min(found.latencies)),
            ("Max:", max(found.latencies)),
        ):
            print_line(f"   {title:<{columns}}{value * factor:.2f} {unit}")


def _latency_rows(found: Latencies) -> Rows:
    return [
        ("avg latency", f"{found.average:.2f}"),
        ("min latency", f"{min(found.latencies):.2f}"),
        ("max latency", f"{max(found.latencies):.2f}"),
    ]
