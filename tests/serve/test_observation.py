"""The status page, the access log and traces."""

from __future__ import annotations

import json
import logging
import re
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from lxml import etree
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ovgpu.batching.gathering import BatchRun
from ovgpu.serve import calls
from ovgpu.serve.errors import Status
from ovgpu.serve.statistics import Statistics, percentile
from tests.harness.servers.serving import Serving, fails, serving, write
from tests.serve.test_models import X, adding, counting


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("repository")
    write(folder, adding(1), "add")
    write(folder, counting(0), "count")
    write(folder, adding(1), "<b>&'")
    (folder / "bad" / "1").mkdir(parents=True)
    (folder / "bad" / "1" / "model.xml").write_text("<net")
    with serving(folder, engine={"max_wait_ms": 0}) as found:
        yield found


def get(server: Serving, path: str) -> str:
    with urllib.request.urlopen(f"http://{server.http}{path}", timeout=60) as response:
        return response.read().decode()


class Page(HTMLParser):
    """Words, rows of the table, and number of pictures of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.pictures, self.words = 0, list[str]()
        self.rows = list[list[str]]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.pictures += tag == "svg"
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def test_the_status_page_shows_every_model(server: Serving) -> None:
    with server.client("gRPC") as client:
        for rows in range(1, 30):
            client.infer("add", {"x": np.ones((rows, 4), np.float32)})
    text = get(server, "/")
    page = Page(text)
    shown = " ".join(page.words)
    for word in ("add", "count", "<b>&'", "bad", "unavailable", "p99", "ready", "sequences in a batch on CPU"):
        assert word in shown, word
    assert "<b>&" not in text
    assert page.pictures >= 1
    picture = etree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])  # well-formed
    assert len(picture.findall("path")) == 3


def test_the_status_page_has_errors_queue_sequences_and_memory(server: Serving) -> None:
    def numbers(name: str) -> dict[str, str]:
        rows = Page(get(server, "/")).rows
        (index,) = [i for i, row in enumerate(rows) if row and row[0].startswith(f"{name} 1 ")]
        return dict(zip(rows[0], rows[index + 1], strict=True))

    with server.client("gRPC") as client:
        before = int(numbers("count")["errors"])
        client.infer("count", {"x": X}, sequence_id=1, sequence_start=True)
        for _ in range(2):
            fails("INVALID_ARGUMENT", client.infer, "count", {"y": X}, sequence_id=1)
        found = numbers("count")
        assert int(found["errors"]) == before + 2
        assert found["sequences"] == "1 of 64"
        assert found["wait"] == found["run"] == "0"
        assert float(found["queue ms"]) >= 0
        client.infer("count", {"x": X}, sequence_id=1, sequence_end=True)
        assert numbers("count")["sequences"] == "0 of 64"
        assert numbers("add")["sequences"] == ""
    text = get(server, "/")
    assert "slots" not in text
    memory = re.search(r"memory: ([\d,]+) MiB on host", text)
    assert memory and int(memory[1].replace(",", "")) > 50


def test_the_table_of_the_status_page_is_narrow(server: Serving) -> None:
    """All columns fit a window of 500 pixels, 16 of them at its sides: a character is 7.5 wide, a cell 6.4 more."""
    busy = ["12,345", "1,234", "1,234", "1,234", "1,234", "12,345", "1,024", "1,024", "64 of 64"]
    heads = Page(get(server, "/")).rows[0]
    assert len(heads) == len(busy)
    words = [max(map(len, f"{head} {number}".split())) for head, number in zip(heads, busy)]
    assert sum(7.5 * length + 6.4 for length in words) < 484


def test_times_in_the_queue_are_kept_for_a_time() -> None:
    statistics = Statistics()
    assert statistics.mean_wait(300) == 0
    statistics.add_batch(BatchRun(2, 2, (0.25, 0.75), 1.0))
    statistics.add_batch(BatchRun(1, 1, (2.0,), 1.0))
    assert statistics.mean_wait(300) == 1.0
    assert statistics.mean_wait(-1) == 0


def test_latencies_are_kept_for_a_time() -> None:
    statistics = Statistics()
    for number in range(100):
        statistics.add_request("REST", "ModelInfer", Status.OK, number / 1000)
    statistics.add_request("REST", "ModelInfer", Status.INTERNAL, 100)
    latencies = sorted(latency for _, latency in statistics.latencies(300))
    assert [percentile(latencies, percent) for percent in (0, 50, 99, 100)] == [0, 0.05, 0.099, 0.099]
    assert statistics.latencies(-1) == []
    assert percentile([], 50) == 0


def test_the_access_log_has_a_line_of_json_for_each_call(server: Serving, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "ovgpu.serve.access"):
        with server.client("REST") as rest, server.client("gRPC") as grpc:
            rest.infer("add", {"x": X}, request_id="first")
            grpc.infer("count", {"x": X}, sequence_id="s", sequence_start=True, sequence_end=True)
            fails("NOT_FOUND", grpc.infer, "nothing", {"x": X})
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "ovgpu.serve.access"]
    for line in lines:
        assert line.pop("time").endswith("+00:00")
        assert line.pop("ms") >= 0
        assert "127.0.0.1" in line.pop("peer")
    assert lines == [
        {"interface": "REST", "method": "ModelInfer", "model": "add", "version": "1", "id": "first", "status": "OK"},
        {
            "interface": "gRPC",
            "method": "ModelInfer",
            "model": "count",
            "version": "1",
            "sequence": "s",
            "status": "OK",
        },
        {
            "interface": "gRPC",
            "method": "ModelInfer",
            "model": "nothing",
            "status": "NOT_FOUND",
            "error": "there is no model 'nothing'",
        },
    ]


@pytest.mark.parametrize("interface", ["REST", "gRPC"])
def test_spans_continue_the_trace_of_the_client(
    server: Serving, interface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(calls, "tracer", lambda: provider.get_tracer("test"))
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with server.client(interface) as client:
        client.infer("add", {"x": X}, headers={"traceparent": f"00-{trace}-{parent}-01"})
    (span,) = exporter.get_finished_spans()
    assert span.name == f"{interface} ModelInfer"
    assert span.context is not None and span.parent is not None
    assert f"{span.context.trace_id:032x}" == trace
    assert f"{span.parent.span_id:016x}" == parent
    assert dict(span.attributes or {}) == {"model": "add", "version": "1", "status": "OK"}


def test_calls_are_answered_without_opentelemetry(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    assert calls.tracer() is None  # it is installed, but not set up
    monkeypatch.setattr(calls, "has_opentelemetry", False)
    assert calls.tracer() is None
    with server.client("gRPC") as client:
        assert client.infer("add", {"x": X})["y"][0, 0] == 2
