"""Latency of a server for others, while one client asks for what takes long.

    python -m tests.serve.latency --seconds 10

The server has a process of its own, and so have the client that is measured and the one that disturbs it. Prints a row
for each disturbance. Fails if more than 1 % of the answers about health take more than 50 ms.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from http.client import HTTPConnection
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import ovgpu as ov
from tests.harness.ir import Net
from tests.harness.servers.faults import ROOT, free_ports
from tests.harness.servers.serving import SECONDS, write
from tests.serve.http2 import Http2, prefixed
from tests.serve.test_inference import echo

LIMIT = 0.05  # seconds, for 99 % of the answers about health
LAYERS = 3000
ROWS = 120_000  # of a body of some 7 MiB in JSON, which is below the limit
PAUSE = 0.002  # seconds between two requests that are measured

Ports = tuple[int, int]


def deep() -> ov.Model:
    """Product, softmax and sum, a thousand times."""
    net, numbers = Net("deep"), np.random.default_rng(0)
    x = net.parameter("f32", (-1, 8), "x")
    for _ in range(LAYERS // 3):
        weights = net.const(numbers.standard_normal((8, 8)).astype(np.float32))
        product = net.layer("MatMul", "opset1", [x, weights], {"transpose_a": False, "transpose_b": False})
        added = net.const(numbers.standard_normal((1, 8)).astype(np.float32))
        x = net.layer("Add", "opset1", [net.layer("Softmax", "opset8", [product], {"axis": 1}), added])
    net.result(x)
    return ov.Core().read_model(*net.build())


def tensor(rows: int, data: str) -> bytes:
    """Return the body of a request with an input [rows, 3]."""
    head = {"name": "x", "datatype": "FP32", "shape": [rows, 3], "data": []}
    return json.dumps({"inputs": [head]}).replace("[]", f"[{data}]").encode()


def post(port: int, path: str, body: bytes) -> int:
    """Send a request on a connection of its own, and return the status of the answer, which is read."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as connection:
        connection.request("POST", path, body)
        response = connection.getresponse()
        response.read()
        return response.status


def nothing(ports: Ports) -> None:
    """Disturb nobody."""
    time.sleep(0.1)


def json_of_numbers(ports: Ports, body: bytes = tensor(ROWS, ",".join([str(random.random())] * 3 * ROWS))) -> None:
    """Send as many numbers in JSON as the server takes, and read as many."""
    assert post(ports[0], "/v2/models/echo/infer", body) == 200


def json_of_wrong_shape(ports: Ports, body: bytes = tensor(1, ",".join(["0"] * 1_040_000))) -> None:
    """Send as many numbers as JSON may have, to an input of three."""
    assert post(ports[0], "/v2/models/echo/infer", body) == 400


def json_with_nan(ports: Ports, body: bytes = tensor(40_000, ",".join(["NaN"] * 3 * 40_000))) -> None:
    """Send numbers that only the slow parser of JSON knows."""
    assert post(ports[0], "/v2/models/echo/infer", body) == 200


def too_large_json(ports: Ports, body: bytes = tensor(1, ",".join(["NaN"] * 2_000_000))) -> None:
    """Send more numbers than JSON may have."""
    assert post(ports[0], "/v2/models/echo/infer", body) == 413


def half_messages(ports: Ports) -> None:
    """Send most of some messages of gRPC."""
    for _ in range(8):
        with closing(Http2(ports[1])) as connection:
            connection.send(connection.call("ModelInfer"), prefixed(bytes(4_000_000), 4_100_000))


def loading(ports: Ports) -> None:
    """Have the server load a model of `LAYERS` layers."""
    assert post(ports[0], "/v2/repository/models/deep/load", b"{}") == 200


DISTURBANCES: tuple[Callable[[Ports], None], ...] = (
    nothing, json_of_numbers, json_of_wrong_shape, json_with_nan, too_large_json, half_messages, loading
)  # fmt: skip


def disturb(name: str, ports: Ports, seconds: float) -> None:
    """Disturb the server for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        globals()[name](ports)


def measure(port: int, seconds: float) -> dict[str, list[float]]:
    """Return the latencies in seconds of health and of inferences of one row, by turns."""
    latencies: dict[str, list[float]] = {"health": [], "infer": []}
    body, end = tensor(1, "1,2,3"), time.monotonic() + seconds
    with closing(HTTPConnection("127.0.0.1", port, timeout=SECONDS)) as connection:
        while time.monotonic() < end:
            for what, request in (
                ("health", ("GET", "/v2/health/live")),
                ("infer", ("POST", "/v2/models/echo/infer", body)),
            ):
                start = time.perf_counter()
                connection.request(*request)  # type: ignore[arg-type]
                response = connection.getresponse()
                response.read()
                latencies[what].append(time.perf_counter() - start)
                assert response.status == 200
                time.sleep(PAUSE)
    return latencies


def row(name: str, latencies: list[float]) -> str:
    """Return a line with median, 99th percentile and maximum in milliseconds."""
    ordered = sorted(latencies)
    figures = [1e3 * ordered[int(part * (len(ordered) - 1))] for part in (0.5, 0.99, 1.0)]
    return f"{name:32}{len(ordered):8}" + "".join(f"{figure:8.1f}" for figure in figures)


def wait_until_ready(port: int) -> None:
    """Wait until the server has loaded its models."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        with suppress(OSError), closing(HTTPConnection("127.0.0.1", port)) as connection:
            connection.request("GET", "/v2/health/ready")
            if connection.getresponse().status == 200:
                return
        time.sleep(0.1)
    raise TimeoutError("the server is not ready")


def run(seconds: float, processes: int, log: Any) -> float:
    """Print the rows, and return the highest 99th percentile of health."""
    worst, context = 0.0, get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), echo("f32"), "echo")
        write(Path(folder), deep(), "deep")
        ports = tuple(free_ports(2))
        arguments = (
            "--port",
            str(ports[0]),
            "--grpc-port",
            str(ports[1]),
            "-d",
            "CPU",
            "--no-batching",
            "--no-access-log",
            "--processes",
            str(processes),
        )
        command = [sys.executable, "-m", "ovgpu", "serve", folder, *arguments]
        server = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            wait_until_ready(ports[0])
            print(f"{'milliseconds':32}{'answers':>8}{'median':>8}{'99 %':>8}{'most':>8}")
            for disturbance in DISTURBANCES:
                name = disturbance.__name__
                other = context.Process(target=disturb, args=(name, ports, seconds + 1))
                other.start()
                time.sleep(1)  # until the process has imported this module
                found = measure(ports[0], seconds)
                other.join()
                assert not other.exitcode, name
                for what, latencies in found.items():
                    print(row(f"{what}, {name.replace('_', ' ')}", latencies), flush=True)
                worst = max(worst, sorted(found["health"])[int(0.99 * (len(found["health"]) - 1))])
        finally:
            server.terminate()
            server.wait(SECONDS)
    return worst


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each disturbance (10)")
    parser.add_argument("--processes", type=int, default=1, help="of the server, that answer calls (1)")
    parser.add_argument("--log", type=argparse.FileType("w"), default=subprocess.DEVNULL, help="of the server")
    options = parser.parse_args()
    worst = run(options.seconds, options.processes, options.log)
    sys.exit(f"health took {1e3 * worst:.0f} ms" if worst > LIMIT else 0)


if __name__ == "__main__":
    main()
