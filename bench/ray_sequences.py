"""Milliseconds of a step of a sequence with Ray Serve: on the replica that has its state, and on another one.

    python bench/ray_sequences.py [--rounds 5] [--out bench/results]

Two replicas on this machine have a model with a state, which a step reads and writes. A step that stays goes to the
replica that has the state. A step that moves goes to the other one, which gets the state by way of the store, a
redis-server on this machine. A step with a checkpoint stays, and its state is copied to the store before the answer.
One sequence runs at a time.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import engines
import numpy as np

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # read when ray is imported: it listens on loopback only

import ray
from ray import serve

import ovgpu
from tests.harness.ir import Net
from tests.harness.layers import add, i64
from tests.harness.servers.redis import RedisServer

SIZES = {"4 KB": 1 << 12, "1 MB": 1 << 20, "16 MB": 1 << 24}
STEPS = 20  # of each kind in a round
STORE_BYTES = 512 << 20
QUIET = {"log_level": "ERROR", "enable_access_log": False}


def model(size: int) -> ovgpu.Model:
    """Return a model with a state of ``size`` bytes, to which it adds x, and of which it returns the mean."""
    net = Net("state")
    x = net.parameter("f32", (1, 1), "x")
    state = net.read_value("s", "f32", (1, size // 4), net.const(np.zeros((1, size // 4), np.float32)))
    total = add(net, state, x)
    net.assign("s", total)
    net.result(net.layer("ReduceMean", "opset1", [total, i64(net, [1])], {"keep_dims": True}, names=["y"]))
    return ovgpu.Core().read_model(*net.build())


@contextmanager
def deployed(size: int, **options: Any) -> Iterator[Any]:
    """Run two replicas. Give their handle."""
    app = ovgpu.ray.deployment(
        ovgpu.ray.share(model(size)),
        device="CPU",
        max_sequences=2,
        max_wait_ms=0,
        num_replicas=2,
        ray_actor_options={"num_cpus": 0.5},
        graceful_shutdown_wait_loop_s=0.1,
        **options,
    )
    handle = serve.run(app, name="steps", route_prefix=None)
    try:
        yield handle
    finally:
        serve.delete("steps")


class Driver:
    """A sequence whose steps go to a replica by choice."""

    def __init__(self, handle: Any) -> None:
        self._handle, self._number = handle, 0
        self.step("0")
        on_first = handle.options(session_id="0").open_sequences.remote().result()
        self.sessions = [
            "0",
            next(
                session
                for session in map(str, range(1, 1000))
                if on_first != handle.options(session_id=session).open_sequences.remote().result()
            ),
        ]  # one for each replica

    def step(self, session: str) -> float:
        """Return the seconds of a step on the replica for a session."""
        self._number += 1
        began = time.perf_counter()
        outputs, _ = (
            self._handle.options(session_id=session)
            .step.remote(np.ones((1, 1), np.float32), "sequence", self._number)
            .result()
        )
        seconds = time.perf_counter() - began
        assert round(float(outputs["y"][0, 0])) == self._number  # a sum of 16 MB in f32 is not exact
        return seconds


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Return the median seconds of a step, by size of the state and kind of step."""
    found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in SIZES}
    ray.init(
        "local",
        include_dashboard=False,
        object_store_memory=STORE_BYTES,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": {"PYTHONPATH": str(engines.ROOT)}},
    )
    serve.start(proxy_location="Disabled", logging_config=QUIET)
    folder = TemporaryDirectory()
    store = RedisServer(Path(folder.name), durable=False)
    try:
        for name, size in SIZES.items():
            with deployed(size, store=store.url) as handle:
                driver = Driver(handle)
                for _ in range(3):
                    driver.step("0")
                for _ in range(rounds):
                    driver.step("0")
                    found[name]["stays"] += [driver.step("0") for _ in range(STEPS)]
                    found[name]["moves"] += [driver.step(driver.sessions[(i + 1) % 2]) for i in range(STEPS)]
            with deployed(size, store=store.url, checkpoint_steps=1) as handle:
                driver = Driver(handle)
                found[name]["checkpoint"] += [driver.step("0") for _ in range(rounds * STEPS)]
    finally:
        serve.shutdown()
        ray.shutdown()
        store.kill()
        folder.cleanup()
    return {name: {kind: statistics.median(times) for kind, times in kinds.items()} for name, kinds in found.items()}


def main() -> None:
    """Run the command line."""
    options = engines.parser(__doc__).parse_args()
    found = measure(options.rounds)
    rows = [[name, *(f"{1e3 * found[name][kind]:.2f}" for kind in ("stays", "moves", "checkpoint"))] for name in SIZES]
    engines.report(
        options.out,
        "ray-sequences",
        "Milliseconds of a step of a sequence with ovgpu.ray.deployment (CPU)",
        ["State", "stays", "moves to another replica", "with a checkpoint"],
        rows,
        {"rounds": options.rounds, **found},
        f"{STEPS} steps of each kind in a round; ray {version('ray')}",
    )


if __name__ == "__main__":
    main()
