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
    """Rows and lines that report a measurement.

    ``percentile`` is reported in place of the median. ``groups`` are the names of the groups of inputs whose latencies
    are reported, if there are several. An inference computes ``tokens`` tokens (0 unless the model is a language model
    with a state), one that begins a sequence ``prompt`` tokens.
    """

    measurement: Measurement
    percentile: int
    groups: Sequence[str]
    tokens: int
    prompt: int

    def rows(self) -> Rows:
        """Return the rows of the report, with benchmark_app's keys."""
        measurement, p = self.measurement, self.percentile
        rows = [
            ("total execution time (ms)", f"{measurement.seconds * 1000:.2f}"),
            ("total number of iterations", str(measurement.iterations)),
            ("latency (ms)" if p == 50 else f"latency ({p} percentile) (ms)", f"{measurement.percentile(p):.2f}"),
            *_latency_rows(measurement),
        ]
        for name, latencies in self._groups():
            rows += [("group", name), *_latency_rows(latencies)]
        rows.append(("throughput", f"{measurement.frames_per_second:.2f}"))
        return rows + [(f"{name} (tokens/s)", f"{rate:.2f}") for name, rate, _ in self._rates()]

    def print_latencies(self, print_line: Print) -> None:
        """Print count, duration, latencies and throughput."""
        measurement = self.measurement
        print_line(f"Count:            {measurement.iterations} iterations")
        print_line(f"Duration:         {measurement.seconds * 1000:.2f} ms")
        print_line("Latency:")
        self._print(measurement, 15, print_line)
        groups = self._groups()
        if groups:
            print_line("Latency for each data shape group:")
        for index, (name, latencies) in enumerate(groups, 1):
            print_line(f"{index}. {name}")
            self._print(latencies, 12, print_line)
        print_line(f"Throughput:   {measurement.frames_per_second:.2f} FPS")
        if self.tokens:
            print_line(f"Tokens:       {measurement.per_second * self.tokens:.2f} tokens/s")
        for name, rate, time in self._rates():
            print_line(f"   {name.capitalize() + ':':<11}{rate:.2f} tokens/s, {time:.2f} ms")

    def percentiles_text(self) -> str:
        """Return the larger percentiles of the latencies as text."""
        return ", ".join(f"{q}%: {self.measurement.percentile(q):.3f}" for q in PERCENTILES) + " ms"

    def _groups(self) -> list[tuple[str, Latencies]]:
        if len(self.groups) < 2:
            return []
        return [(self.groups[group], latencies) for group, latencies in sorted(self.measurement.groups.items())]

    def _rates(self) -> list[tuple[str, float, float]]:
        """Return (name, tokens per second, milliseconds) of prefill and decode, by median latencies."""
        if not self.measurement.prompts:
            return []
        parts = ("prefill", self.prompt, self.measurement.prompts), ("decode", self.tokens, self.measurement.latencies)
        return [(name, 1000 * tokens / median(times), median(times)) for name, tokens, times in parts]

    def _print(self, latencies: Latencies, columns: int, print_line: Print) -> None:
        unit, factor = ("us", 1000) if latencies.average < 1 else ("ms", 1)
        p = self.percentile
        for title, value in (
            ("Median:" if p == 50 else f"{p} percentile:     ", latencies.percentile(p)),
            ("Average:", latencies.average),
            ("Min:", min(latencies.latencies)),
            ("Max:", max(latencies.latencies)),
        ):
            print_line(f"   {title:<{columns}}{value * factor:.2f} {unit}")


def _latency_rows(latencies: Latencies) -> Rows:
    return [
        ("avg latency", f"{latencies.average:.2f}"),
        ("min latency", f"{min(latencies.latencies):.2f}"),
        ("max latency", f"{max(latencies.latencies):.2f}"),
    ]
