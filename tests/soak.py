"""Soak test: threads read, compile, run and drop models for a long time, and must leave nothing behind.

    python -m tests.soak --seconds 1800 [--threads 8] [--device CPU] [--seed 0] [--every 60] [--models NAME ...]

Each thread runs scenarios that it draws: models of the catalogue read, compiled, compared with their expectations and
dropped; random shapes on a compiled model that all threads share; states saved and restored; queues; requests that
fail, are cancelled, or are dropped while they run. After every interval the threads drop everything, and the command
prints what the process holds: objects, open files, threads, mapped weights, resident memory, and memory of the device.
The first half of the time fills caches. The exit status is 1 if a result was wrong, or if the process holds more in the
end than after the first half. Allocators retain varying amounts of freed memory, so the minimum of the last quarter is
compared with the minimum of the second one.

The device is CPU, NVIDIA, or EMULATED for the emulator.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import random
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

import ovgpu as ov
from ovgpu.backends.cuda import rt
from tests.harness import Net
from tests.harness.cuda import registered
from tests.harness.held import held
from tests.harness.models.drive import infer, replay
from tests.harness.replay import EMULATED
from tests.models.test_models import NAMES, STATEFUL, check, load

FEATURES = 8
CALLS = 3  # the most calls of a model of the catalogue
GROWTH = {
    "objects": 200,
    "files": 0,
    "threads": 0,
    "mapped bytes": 0,
    "resident MB": 16,
    "device MB": 16,
    "pool MB": 512,
}
"""Growth that is allowed in the second half. Bounded caches may not be full before, and the size of CuPy's pool depends
on how many requests run at the same time."""


class Soak:
    """The scenarios, on one device."""

    def __init__(self, device: str, models: Sequence[str]) -> None:
        self.device, self.models = device, models
        net = Net()
        x = net.parameter("f32", (-1, -1, FEATURES), "x")
        self.weights = np.random.default_rng(0).standard_normal((FEATURES, FEATURES), np.float32)
        product = net.layer("MatMul", "opset1", [x, net.const(self.weights)])
        net.result(net.layer("Softmax", "opset8", [product], {"axis": 1}))
        self.model = net.build()
        self.shared = self.compiled()
        self.scenarios: list[Callable[[random.Random], None]] = [
            self.catalogue,
            self.shapes,
            self.states,
            self.queue,
            self.failures,
            self.in_flight,
        ]

    def compiled(self) -> Any:
        core = ov.Core()
        return core.compile_model(core.read_model(*self.model), self.device)

    def catalogue(self, rng: random.Random) -> None:
        """Read, compile, run and drop a model."""
        self._run(rng.choice(self.models), rng.randint(1, CALLS))

    def shapes(self, rng: random.Random) -> None:
        """Run a request of the shared model on random shapes."""
        request = self.shared.create_infer_request()
        for _ in range(rng.randint(1, 20)):
            x = self._drawn(rng)
            self._check(request.infer({"x": x})[0], x)

    def states(self, rng: random.Random) -> None:
        """Save and restore states; the next step must give the same answer again."""
        compiled, expected = load(rng.choice([name for name in self.models if name in STATEFUL]), self.device)
        request = compiled.create_infer_request()
        last = rng.randrange(1, min(4, len(expected.calls)))
        for call in expected.calls[:last]:
            infer(request, call)
        saved = {state.name: np.array(state.state.data) for state in request.query_state()}
        call = expected.calls[last]
        first = infer(request, call)
        for state in request.query_state():
            state.state = ov.Tensor(saved[state.name])
        for a, b in zip(first, infer(request, call)):
            np.testing.assert_allclose(a, b, 1e-5, 1e-5)

    def queue(self, rng: random.Random) -> None:
        """Run inferences side by side in a queue, which reports each one's number."""
        found: dict[int, Any] = {}
        queue = ov.AsyncInferQueue(self.shared, rng.randint(1, 4))
        queue.set_callback(lambda request, number: found.update({number: np.array(request.results[0])}))
        inputs = [self._drawn(rng) for _ in range(rng.randint(1, 12))]
        for number, x in enumerate(inputs):
            queue.start_async({"x": x}, number)
        queue.wait_all()
        for number, x in enumerate(inputs):
            self._check(found[number], x)

    def failures(self, rng: random.Random) -> None:
        """Let inferences fail, or cancel them; the request must work afterwards."""
        request = self.compiled().create_infer_request()
        for _ in range(3):
            try:
                request.infer({"x": np.zeros((2, 3, FEATURES + 1), np.float32)})
            except RuntimeError:
                pass
            else:
                raise AssertionError("a wrong shape was taken")
            request.start_async({"x": self._drawn(rng)})
            request.cancel()
            try:
                request.wait()
            except RuntimeError as e:
                if "cancel" not in str(e).lower():
                    raise
            x = self._drawn(rng)
            self._check(request.infer({"x": x})[0], x)

    def in_flight(self, rng: random.Random) -> None:
        """Drop a request while it runs."""
        self.shared.create_infer_request().start_async({"x": self._drawn(rng)})

    def all_models(self, rng: random.Random) -> None:
        """Run every model of the catalogue once."""
        for name in self.models:
            self._run(name, CALLS)

    def _run(self, name: str, count: int) -> None:
        """Run the first calls of a model of the catalogue."""
        compiled, expected = load(name, self.device)
        calls = expected.calls[:count]
        for call, outputs in zip(calls, replay(compiled, calls)):
            check(outputs, call, name, expected.tolerance)

    def _drawn(self, rng: random.Random) -> Any:
        shape = rng.randint(1, 9), rng.randint(1, 40), FEATURES
        return np.random.default_rng(rng.getrandbits(32)).standard_normal(shape, np.float32)

    def _check(self, found: Any, x: Any) -> None:
        raised = np.exp(x @ self.weights)
        np.testing.assert_allclose(found, raised / raised.sum(1, keepdims=True), 1e-2, 1e-4)  # TF32 included


def measured(device: str) -> dict[str, int]:
    """Measure the process after freed memory has been given back."""
    before = held(device)
    if device != "CPU":
        rt.cupy().get_default_memory_pool().free_all_blocks()
    ctypes.CDLL(None).malloc_trim(0)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    found = {
        "objects": before.objects,
        "files": before.files,
        "threads": int(status["Threads"]),
        "mapped bytes": before.mapped,
        "resident MB": int(status["VmRSS"].split()[0]) >> 10,
    }
    if device != "CPU":
        free, whole = rt.cupy().cuda.runtime.memGetInfo()
        found["device MB"] = (whole - free) >> 20  # what the libraries and captured graphs hold, the emulator's is 0
        found["pool MB"] = before.pool >> 20
    return found


def wait_for_requests(seconds: float) -> None:
    """Wait until the threads of dropped requests have ended."""
    deadline = time.monotonic() + seconds
    gc.collect()
    while any(t.name.startswith("ovgpu-request") for t in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)
        gc.collect()


def grown(marks: Sequence[dict[str, int]]) -> dict[str, int]:
    """Return the growth since the first half, by what was measured in at least two intervals."""
    half, quarter = len(marks) // 2, len(marks) // 4
    return {
        name: min(mark[name] for mark in marks[3 * len(marks) // 4 :]) - min(mark[name] for mark in marks[quarter:half])
        if name.endswith("MB")
        else value - marks[half - 1][name]
        for name, value in marks[-1].items()
    }


def run(options: argparse.Namespace) -> int:
    """Run the scenarios; return the exit status."""
    soak = Soak(options.device, options.models)
    done, failed = Counter[str](), list[str]()
    barrier, ended = threading.Barrier(options.threads + 1), threading.Event()

    def attempt(scenario: Callable[[random.Random], None], rng: random.Random) -> None:
        try:
            scenario(rng)
        except Exception:
            failed.append(traceback.format_exc())
        done[scenario.__name__] += 1

    def work(number: int) -> None:
        rng = random.Random(f"{options.seed} {number}")
        while True:
            while time.monotonic() < interval[0]:
                attempt(rng.choice(soak.scenarios), rng)
            barrier.wait()  # all have dropped what they had
            barrier.wait()  # and the process has been measured
            if ended.is_set():
                return

    for scenario in (*soak.scenarios * 3, soak.all_models):
        attempt(scenario, random.Random(options.seed))
    until, interval = time.monotonic() + options.seconds, [time.monotonic() + options.every]
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(options.threads)]
    for thread in threads:
        thread.start()
    marks: list[dict[str, int]] = []
    while not ended.is_set():
        barrier.wait()
        wait_for_requests(60)
        marks.append(measured(options.device))
        print(
            f"{sum(done.values())} scenarios, {len(failed)} failed:",
            ", ".join(f"{value} {name}" for name, value in marks[-1].items()),
            flush=True,
        )
        interval[0] = time.monotonic() + options.every
        if time.monotonic() >= until:  # the same end for all threads
            ended.set()
        barrier.wait()
    for thread in threads:
        thread.join()
    print(", ".join(f"{count} {name}" for name, count in sorted(done.items())))
    print(*failed[:5], sep="\n")
    if len(marks) < 2:
        print("nothing to compare: there was one interval")
        return 1
    more = [f"{growth} more {name}" for name, growth in grown(marks).items() if growth > GROWTH[name]]
    print("; ".join(more) or "nothing is left behind")
    return int(bool(more or failed))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--every", type=float, default=60, help="seconds of an interval")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--device", default="CPU", help="CPU, NVIDIA or EMULATED")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", nargs="+", default=NAMES, metavar="NAME", help="at least one of them with states")
    options = parser.parse_args(arguments)
    emulated = options.device == EMULATED and EMULATED not in ov.Core().available_devices
    with registered("emulator") if emulated else nullcontext():
        return run(options)


if __name__ == "__main__":
    sys.exit(main())
