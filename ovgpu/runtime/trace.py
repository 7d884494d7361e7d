"""Timelines in the Chrome trace event format, which chrome://tracing, Perfetto and Speedscope show.

Specification: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ovgpu.runtime.profile import Span


class Trace:
    """Timeline of the steps of one or several requests. Each request has a row for the host and one for the device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._events: list[dict[str, Any]] = []
        self._requests: set[int] = set()

    def add(self, spans: Sequence[Span], request: int = 0) -> None:
        """Add the steps of an inference of request number ``request``."""
        if request not in self._requests:
            self._requests.add(request)
            for process in (0, 1):
                self._events.append(
                    {
                        "ph": "M",
                        "name": "thread_name",
                        "pid": process,
                        "tid": request,
                        "args": {"name": f"request {request}"},
                    }
                )
        for span in spans:
            details = {"op": span.op, "kind": span.kind}
            for process, (start, end) in enumerate((span.host, span.device)):
                self._events.append(
                    {
                        "ph": "X",
                        "name": span.name,
                        "cat": span.op,
                        "pid": process,
                        "tid": request,
                        "ts": start * 1e6,
                        "dur": (end - start) * 1e6,
                        "args": details,
                    }
                )

    def document(self) -> dict[str, Any]:
        """Return the trace as a JSON object; times are in microseconds."""
        names: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
            for pid, name in enumerate(("host", f"device {self.device}"))
        ]
        return {"traceEvents": [*names, *self._events], "displayTimeUnit": "ms"}

    def save(self, path: str | Path) -> None:
        """Write the trace to a JSON file."""
        Path(path).write_text(json.dumps(self.document()) + "\n", encoding="utf-8")
