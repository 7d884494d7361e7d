"""Report files of the benchmark in benchmark_app's format: CSV with semicolons, or JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ovgpu._util.atomic_file import check_writable
from ovgpu.cli.benchmark.counters import Share, average, milliseconds, totals
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

    def check_writable(self) -> None:
        """Make the folder. Raises OSError if no report can be written there."""
        if self.kind:
            check_writable(self._path("benchmark_report"))

    def write(self, info: Callable[[str], None]) -> None:
        """Write benchmark_report.csv or .json."""
        path = self._path("benchmark_report")
        if self.as_json:
            text = json.dumps(
                {
                    "cmd_options": dict(self.command_line),
                    "configuration_setup": dict(self.configuration),
                    "execution_results": dict(self.results),
                },
                indent=4,
            )
        else:
            text = "\n".join(
                _section(title, rows)
                for title, rows in (
                    ("Command line parameters", self.command_line),
                    ("Configuration setup", self.configuration),
                    ("Execution results", self.results),
                )
            )
        path.write_text(text + "\n", encoding="utf-8")
        info(f"Statistics report is stored to {path}")

    def write_counters(self, requests: Sequence[Sequence[ProfilingInfo]], info: Callable[[str], None]) -> None:
        """Write the times per layer: those of every request, or their average."""
        if self.kind in ("", NO_COUNTERS):
            info("Statistics collecting for performance counters was not requested. No reports are dumped.")
            return
        path = self._path(f"benchmark_{self.kind}_report")
        tables = [average(requests)] if self.kind == AVERAGE else list(requests)
        if self.as_json:
            performance = [_as_json(table) for table in tables]
            document: dict[str, Any] = (
                {"report_type": "average", "avg_performance": performance[0]}
                if self.kind == AVERAGE
                else {"report_type": "detailed", "detailed_performance": performance}
            )
            path.write_text(json.dumps(document, indent=4) + "\n", encoding="utf-8")
        else:
            path.write_text("\n".join(map(_as_csv, tables)), encoding="utf-8")
        info(f"Performance counters report is stored to {path}")

    def write_shares(self, shares: Sequence[Share], info: Callable[[str], None]) -> None:
        """Write the times per layer with their shares, in the order of -pcsort."""
        path = self._path("benchmark_sorted_report")
        real, cpu = map(milliseconds, totals([share.info for share in shares]))
        if self.as_json:
            nodes = [{**_node(share.info), "%": share.text} for share in shares]
            performance = {"nodes": nodes, "total_real_time": real, "total_cpu_time": cpu}
            path.write_text(
                json.dumps({"report_type": "sorted", "avg_performance": performance}, indent=4) + "\n", encoding="utf-8"
            )
        else:
            with path.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow([*HEADER, "proportion (%)"])
                writer.writerows([*_cells(share.info), share.text] for share in shares)
                writer.writerows([[], [f"Total time: {real} milliseconds"], [f"Total CPU time: {cpu} milliseconds"]])
        info(f"Sorted performance counters report is stored to {path}")

    def _path(self, name: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{name}.{'json' if self.as_json else 'csv'}"


def _section(title: str, rows: Rows) -> str:
    return "\n".join([title, *(f"{key};{value}" for key, value in rows), ""])


def _cells(info: ProfilingInfo) -> tuple[str, ...]:
    return (
        info.node_name,
        str(info.status),
        info.node_type,
        info.exec_type,
        milliseconds(info.real_time),
        milliseconds(info.cpu_time),
    )


def _as_csv(infos: Sequence[ProfilingInfo]) -> str:
    rows = [HEADER, *map(_cells, infos), ("Total", "", "", "", *map(milliseconds, totals(infos)))]
    return "".join(f"{';'.join(row)}\n" for row in rows)


def _node(info: ProfilingInfo) -> dict[str, str]:
    return {
        "name": info.node_name,
        "node_type": info.node_type,
        "status": str(info.status),
        "real_time": milliseconds(info.real_time),
        "cpu_time": milliseconds(info.cpu_time),
        "exec_type": info.exec_type,
    }


def _as_json(infos: Sequence[ProfilingInfo]) -> dict[str, Any]:
    real, cpu = map(milliseconds, totals(infos))
    return {"nodes": list(map(_node, infos)), "total_real_time": real, "total_cpu_time": cpu}
