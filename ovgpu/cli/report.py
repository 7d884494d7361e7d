"""Report files of the benchmark in benchmark_app's format: CSV with semicolons, or JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from ovgpu.runtime.profile import ProfilingInfo

Rows = list[tuple[str, str]]
HEADER = ("layerName", "execStatus", "layerType", "execType", "realTime (ms)", "cpuTime (ms)")
NO_COUNTERS, AVERAGE, DETAILED = "no_counters", "average_counters", "detailed_counters"


@dataclass
class Report:
    """Report of a benchmark: command line, configuration and results."""

    kind: str
    folder: Path
    as_json: bool
    command_line: Rows = field(default_factory=list)
    configuration: Rows = field(default_factory=list)
    results: Rows = field(default_factory=list)

    def write(self, info: Callable[[str], None]) -> None:
        """Write benchmark_report.csv or .json."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"benchmark_report.{'json' if self.as_json else 'csv'}"
        if self.as_json:
            text = json.dumps({"cmd_options": dict(self.command_line), "configuration_setup": dict(self.configuration),
                               "execution_results": dict(self.results)}, indent=4)
        else:
            text = "\n".join(_section(title, rows) for title, rows in (
                ("Command line parameters", self.command_line), ("Configuration setup", self.configuration),
                ("Execution results", self.results)))
        path.write_text(text + "\n", encoding="utf-8")
        info(f"Statistics report is stored to {path}")

    def write_counters(self, requests: Sequence[Sequence[ProfilingInfo]], info: Callable[[str], None]) -> None:
        """Write the times per layer: those of every request, or their average."""
        if self.kind in ("", NO_COUNTERS):
            info("Statistics collecting for performance counters was not requested. No reports are dumped.")
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"benchmark_{self.kind}_report.{'json' if self.as_json else 'csv'}"
        tables = [average(requests)] if self.kind == AVERAGE else list(requests)
        if self.as_json:
            performance = [_as_json(table) for table in tables]
            document: dict[str, Any] = (
                {"report_type": "average", "avg_performance": performance[0]} if self.kind == AVERAGE else
                {"report_type": "detailed", "detailed_performance": performance})
            path.write_text(json.dumps(document, indent=4) + "\n", encoding="utf-8")
        else:
            path.write_text("\n".join(map(_as_csv, tables)), encoding="utf-8")
        info(f"Performance counters report is stored to {path}")


def average(requests: Sequence[Sequence[ProfilingInfo]]) -> list[ProfilingInfo]:
    """Return the mean times of each layer over all requests that ran it."""
    layers: dict[tuple[str, str, int], list[ProfilingInfo]] = {}
    for infos in requests:
        seen: Counter[tuple[str, str]] = Counter()
        for info in infos:  # a layer may be several steps
            name = (info.node_name, info.exec_type)
            layers.setdefault((*name, seen[name]), []).append(info)
            seen[name] += 1
    return [ProfilingInfo(samples[0].node_name, samples[0].node_type, samples[0].exec_type, samples[0].status,
                          sum((i.real_time for i in samples), timedelta()) / len(samples),
                          sum((i.cpu_time for i in samples), timedelta()) / len(samples))
            for samples in layers.values()]


def milliseconds(time: timedelta) -> str:
    """Return a time in milliseconds as text."""
    return f"{time / timedelta(milliseconds=1):.3f}"


def totals(infos: Sequence[ProfilingInfo]) -> tuple[timedelta, timedelta]:
    """Return the sums of the real times and of the CPU times."""
    return (sum((i.real_time for i in infos), timedelta()), sum((i.cpu_time for i in infos), timedelta()))


def _section(title: str, rows: Rows) -> str:
    return "\n".join([title, *(f"{key};{value}" for key, value in rows), ""])


def _as_csv(infos: Sequence[ProfilingInfo]) -> str:
    rows = [HEADER, *((i.node_name, str(i.status), i.node_type, i.exec_type, milliseconds(i.real_time),
                       milliseconds(i.cpu_time)) for i in infos)]
    rows.append(("Total", "", "", "", *map(milliseconds, totals(infos))))  # type: ignore[arg-type]
    return "".join(f"{';'.join(row)}\n" for row in rows)


def _as_json(infos: Sequence[ProfilingInfo]) -> dict[str, Any]:
    real, cpu = totals(infos)
    nodes = [{"name": i.node_name, "node_type": i.node_type, "status": str(i.status),
              "real_time": milliseconds(i.real_time), "cpu_time": milliseconds(i.cpu_time), "exec_type": i.exec_type}
             for i in infos]
    return {"nodes": nodes, "total_real_time": milliseconds(real), "total_cpu_time": milliseconds(cpu)}
