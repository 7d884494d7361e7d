"""The benchmark of the server: engines agree, and latency in an open loop includes the time in queues."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from bench import engines
from tests.harness.models.recurrent import lstm_state
from tests.harness.servers import load
from tests.harness.servers.serving import serving as served
from tests.harness.servers.serving import write

SECONDS = 0.01  # of an inference of `Server`


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(Path(engines.__file__).parent))
    yield __import__("serving")
    for name in ("serving", "sequences"):
        del sys.modules[name]


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("engine", "kind", "interface"),
    [
        ("slots", "decoder", "gRPC"),
        ("slots", "lstm", "stream"),
        ("requests", "lstm", "REST"),
        ("openvino", "decoder", "REST"),
        ("openvino", "decoder", "stream"),
        ("naive", "decoder", "gRPC"),
    ],
)
def test_engines_agree(engine: str, kind: str, interface: str, serving: Any) -> None:
    runs = serving.worker(engine, "tiny", "CPU", {kind: {interface: ["closed", "single", "200.0"]}})[kind][interface]
    size = serving.SIZES["tiny"]
    (wanted,) = serving.alone(kind, size, serving.WARM_UP + size.steps)
    engines.agree(kind, {"a single request": wanted, engine: runs["closed"]["sample"]})
    assert runs["closed"]["count"] == runs["single"]["count"] == size.sequences * size.steps
    assert all(run["throughput"] > 0 and run["p99_ms"] >= run["p50_ms"] > 0 for run in runs.values())


def test_the_naive_server_speaks_grpc_alone(serving: Any) -> None:
    loads = {"small_lstm": {interface: ["single"] for interface in serving.INTERFACES}}
    assert [*serving.worker("naive", "tiny", "CPU", loads)["small_lstm"]] == ["gRPC"]


BUSY = """
import subprocess, sys, time
def spend():
    ends = time.process_time() + 0.1
    while time.process_time() < ends: pass
if len(sys.argv) > 1:  # the last generation ends, or waits for its end
    spend()
    print(time.process_time(), flush=True)
    if sys.argv[1] == "waits":
        sys.stdin.read()
else:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    ended = subprocess.run([sys.executable, __file__, "ends"], **pipes)
    child = subprocess.Popen([sys.executable, __file__, "waits"], **pipes)
    other = child.stdout.readline()
    spend()
    print(float(ended.stdout) + float(other) + time.process_time(), flush=True)
    sys.stdin.read()
    child.communicate()
"""


def test_processor_time_is_that_of_all_descendants(serving: Any, tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    before = serving.processor_seconds(os.getpid())
    command = [sys.executable, str(tmp_path / "busy.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        spent = float(process.stdout.readline())
        found = serving.processor_seconds(os.getpid()) - before
        process.communicate()
    assert 0.3 < spent
    assert spent - 0.06 < found < spent + 0.3  # a clock of 10 ms, two for each process; ends of interpreters


@pytest.mark.parametrize("kind", ["lstm", "decoder"])
def test_a_step_of_all_sequences_is_one_graph(kind: str, serving: Any) -> None:
    counts = serving.emulated(kind, "tiny")
    assert (counts["launches"], counts["graph_launches"], counts["allocations"]) == (0, 1, 0)


def test_tables(serving: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size, kinds = serving.SIZES["tiny"], ("lstm", serving.SMALL)
    rate = {"slots": 900.0, "requests": 300.0, "openvino": 850.0, "naive": 600.0}
    spoken = {engine: ["gRPC"] if engine == "naive" else serving.INTERFACES for engine in rate}
    monkeypatch.setattr(serving, "HEADS", {engine: serving.HEADS[engine] for engine in rate})
    wanted = {kind: serving.alone(kind, size, serving.WARM_UP + size.steps)[0] for kind in kinds}

    def loop(engine: str, kind: str, times: float) -> dict[str, Any]:
        cpu = times * 1e6 / rate[engine]
        return {"throughput": rate[engine], "start_ms": 20, "cpu_us": cpu, "sample": wanted[kind]}

    closed = {
        engine: [
            {
                kind: {
                    interface: {"closed": loop(engine, kind, 1), "single": loop(engine, kind, 2)}
                    for interface in interfaces
                }
                for kind in kinds
            }
        ]
        for engine, interfaces in spoken.items()
    }
    result = {kind: serving.closed_loops(kind, size, closed) for kind in kinds}
    rates = serving.rates_of(result["lstm"]["throughput"])
    assert rates == {interface: ["150.0", "450.0"] for interface in serving.INTERFACES}
    serving.open_loops(
        result,
        {
            engine: [
                {
                    "lstm": {
                        interface: {
                            wanted: {
                                "throughput": min(float(wanted), rate[engine]),
                                "p50_ms": 2,
                                "p99_ms": 4.56,
                                "late_p99_ms": 0,
                            }
                            for wanted in rates[interface]
                        }
                        for interface in interfaces
                    }
                }
            ]
            for engine, interfaces in spoken.items()
        },
    )
    counts = {"launches": 1, "graph_launches": 2, "kernels": 3, "allocations": 4, "h2d_bytes": 5, "d2h_bytes": 6000}
    serving.publish(argparse.Namespace(out=tmp_path, device="CPU", rounds=1), size, result, {"lstm": counts})
    text = (tmp_path / "serving.md").read_text()
    for row in (
        "| lstm | REST | 900 | 300 | 850 | - | 3.0 | 1.1 | - |",
        "| lstm | gRPC | 900 | 300 | 850 | 600 | 3.0 | 1.1 | 1.5 |",
        "| lstm | 4 | gRPC | 1,111 | 3,333 | 1,176 | 1,667 | 0.33 | 0.94 | 0.67 |",
        "| small_lstm | 1 | gRPC | 2,222 | 6,667 | 2,353 | 3,333 | 0.33 | 0.94 | 0.67 |",
        "| small_lstm | 1 | stream | 2,222 | 6,667 | 2,353 | - | 0.33 | 0.94 | - |",
        "| lstm | gRPC | 150 | 2.0 / 4.6 | 2.0 / 4.6 | 2.0 / 4.6 | 2.0 / 4.6 |",
        "| lstm | stream | 450 | 2.0 / 4.6 | overloaded: 300/s | 2.0 / 4.6 | - |",
        "| lstm | REST | 0.02 | 0.02 | 0.02 | - |",
        "| lstm | 1 | 2 | 3 | 4 | 0.0 kB | 6.0 kB |",
    ):
        assert row in text
    assert "| small_lstm | gRPC |" not in text  # it has no other table
    assert json.loads((tmp_path / "serving.json").read_text())["models"]["lstm"]["open"]["REST"]["450.0"]
    closed["openvino"][0]["lstm"]["gRPC"]["closed"]["sample"] = [2 * value for value in wanted["lstm"]]
    with pytest.raises(SystemExit, match="OpenVINO and a single request differ"):
        serving.closed_loops("lstm", size, closed)


# ---- load


class Server:
    """Client and server in one, which runs one inference at a time. ``fails`` may raise an exception for a call."""

    def __init__(self, fails: Any = lambda options: None) -> None:
        self.calls: list[dict[str, Any]] = []
        self._fails, self._lock = fails, asyncio.Lock()

    def inputs(self, arrays: load.Inputs) -> list[Any]:
        return list(arrays.values())

    async def infer(self, model: str, inputs: list[Any], **options: Any) -> Any:
        self.calls.append(options)
        async with self._lock:
            await asyncio.sleep(SECONDS)
        self._fails(options)
        return inputs[0]

    def outputs(self, result: Any) -> dict[str, Any]:
        return {"y": result}


LOAD = load.Load("m", lambda sequence, step: {"x": np.array([sequence, step])}, 4, 10)


def drive(found: load.Load, server: Any = None) -> list[load.Record]:
    return asyncio.run(load.drive(server or Server(), found))


def test_an_open_loop_counts_time_in_queues() -> None:
    """Inferences are due twice as fast as they are answered: half of the time of the load is still to do at its end."""
    server = Server()
    open_loop = replace(LOAD, rate=2 / SECONDS)
    records = drive(open_loop, server)
    assert {record.status for record in records} == {load.OK}
    assert sorted(record.due for record in records) == sorted(open_loop.due().ravel().tolist())
    assert max(record.latency for record in records) > 15 * SECONDS
    assert all(record.start > record.possible - 1e-3 and record.possible >= record.due for record in records)
    for sequence in range(4):
        steps = [record for record in records if record.sequence == sequence]
        assert [record.step for record in steps] == [*range(10)]
        assert all(later.start >= former.end for former, later in pairwise(steps))
    flags = [(c["sequence_id"], c["sequence_start"], c["sequence_end"]) for c in server.calls]
    assert [flag for flag in flags if flag[0] == 2] == [(2, True, False), *[(2, False, False)] * 8, (2, False, True)]
    found = load.summary(records)
    assert found["count"] == 40
    assert found["throughput"] < 1.05 / SECONDS
    assert found["p50_ms"] < found["p99_ms"]


def test_a_closed_loop_sends_the_next_step_after_the_answer() -> None:
    records = drive(replace(LOAD, keep=lambda sequence, step: step == 9))
    assert all(record.due == record.possible for record in records)
    outputs = {record.sequence: record.outputs["y"].tolist() for record in records if record.outputs}
    assert outputs == {sequence: [sequence, 9] for sequence in range(4)}


def test_a_load_goes_on_where_another_has_ended() -> None:
    server = Server()
    drive(replace(LOAD, steps=2, ends=False), server)
    drive(replace(LOAD, first=2, steps=1), server)
    last = server.calls[-4:]
    assert not any(call["sequence_end"] for call in server.calls[:-4])
    assert all(call["sequence_end"] and not call["sequence_start"] for call in last)


def test_single_inferences_do_not_wait_for_each_other() -> None:
    server = Server()
    records = drive(replace(LOAD, stateful=False, rate=2 / SECONDS), server)
    assert server.calls == [{}] * 40
    assert max(record.start - record.due for record in records) < 10 * SECONDS


def test_errors_are_counted() -> None:
    def fails(options: dict[str, Any]) -> None:
        if options["sequence_id"] == 1:
            raise InferenceServerException("no slot", "StatusCode.RESOURCE_EXHAUSTED")
        if options["sequence_id"] == 2 and options["sequence_end"]:
            raise ConnectionResetError("gone")

    records = drive(LOAD, Server(fails))
    assert load.summary(records)["errors"] == {"RESOURCE_EXHAUSTED": 10, "ConnectionResetError": 1}
    assert {record.error for record in records} == {"", "no slot", "gone"}
    stopped = load.summary(drive(replace(LOAD, stop_at_error=True), Server(fails)))
    assert (stopped["count"], stopped["errors"]) == (31, {"RESOURCE_EXHAUSTED": 1, "ConnectionResetError": 1})


class Streams:
    """A client of tritonclient whose streams answer the requests of each four in reverse order.

    ``fails`` is the number of the request at which the stream ends, with the error, if there is one.
    """

    def __init__(self, fails: int | None = None, error: Exception | None = None) -> None:
        self.requests: list[dict[str, Any]] = []
        self._fails, self._error = fails, error

    async def stream_infer(self, requests: AsyncIterator[dict[str, Any]]) -> AsyncIterator[Any]:
        async for request in requests:
            if len(self.requests) == self._fails:
                if self._error:
                    yield None, self._error
                return
            self.requests.append(request)
            if len(self.requests) % 4 == 0:
                for answered in reversed(self.requests[-4:]):
                    yield Result(answered), None


class Result:
    def __init__(self, request: dict[str, Any]) -> None:
        self.value = request["inputs"]
        self.id = request["request_id"]

    def get_response(self) -> Any:
        return self


def streamed(client: Streams, *counts: int) -> list[Any]:
    """Return the results and errors of inferences over one stream: of groups one after the other, each side by side."""

    async def run() -> list[Any]:
        stream, found = load.Stream(client, 10), list[Any]()
        for count in counts:
            calls = [stream.infer("m", [i], sequence_id=i) for i in range(count)]
            found += await asyncio.gather(*calls, return_exceptions=True)
        await stream.close()
        return [x.value if isinstance(x, Result) else x for x in found]

    return asyncio.run(run())


def test_results_of_a_stream_are_matched_by_id() -> None:
    client = Streams()
    assert streamed(client, 8, 4) == [[i] for i in (*range(8), *range(4))]
    assert [request["sequence_id"] for request in client.requests] == [*range(8), *range(4)]


@pytest.mark.parametrize("error", [InferenceServerException("no slot"), None])
def test_an_error_ends_a_stream(error: Exception | None) -> None:
    found = streamed(Streams(5, error), 8, 1)
    assert found[:4] == [[i] for i in range(4)]
    (raised,) = {*found[4:]}
    assert raised is error if error else isinstance(raised, ConnectionResetError)


def test_errors_of_a_stream_have_no_status() -> None:
    class Stream(Server):
        async def infer(self, model: str, inputs: list[Any], **options: Any) -> Any:
            raise InferenceServerException("no slot")

    assert load.summary(drive(LOAD, Stream()))["errors"] == {"InferenceServerException": 40}


@pytest.mark.parametrize("interface", ["REST", "gRPC", "stream"])
def test_command_line(interface: str, tmp_path: Path) -> None:
    write(tmp_path, lstm_state(1), "lstm")
    with served(tmp_path) as found:
        url = found.http if interface == "REST" else found.grpc
        words = f"--url {url} --interface {interface} --model lstm --sequences 3 --steps 2 --rate 500"
        summary = asyncio.run(load.measured(load.parser().parse_args(words.split())))
    assert (summary["count"], summary["errors"], summary["messages"]) == (6, {}, [])


def test_inputs_by_metadata() -> None:
    ports = [{"name": "frame", "datatype": "FP32", "shape": ["-1", "3"]}]  # as gRPC has them in JSON
    frame = load.feeds({"inputs": ports}, 50)(1, 2)["frame"]
    assert (frame.shape, frame.dtype) == ((1, 3), np.float32)
    ports = [{"name": name, "datatype": "INT64", "shape": [1, -1]} for name in ("input_ids", "attention_mask")]
    inputs = load.feeds({"inputs": ports}, 4)
    assert {name: array.tolist() for name, array in inputs(1, 1).items()} == {
        "input_ids": [[1]],
        "attention_mask": [[1] * 9],
    }
