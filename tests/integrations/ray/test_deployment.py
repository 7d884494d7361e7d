"""Deployments on a local cluster: results, sequences on several replicas, and replicas and nodes that come and go."""
from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import ray
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

import ovgpu as ov
from ovgpu.integrations.ray.models import SharedModel
from tests.batching import nets
from tests.batching.test_dynamic_batcher import perceptron
from tests.integrations.ray import served as fault_run
from tests.integrations.ray.faults import local_cluster
from tests.integrations.ray.served import Client, Served, served, started

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.timeout(200)


class EmulatedModel(SharedModel):
    """Model whose worker has the emulated card as a device."""

    def read(self) -> ov.Model:
        from tests.harness import cuda

        EmulatedModel.registration = cuda.registered("emulator")
        EmulatedModel.registration.__enter__()
        return super().read()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with local_cluster(cpus=fault_run.CPUS) as found:
        yield found


@pytest.fixture(scope="module")
def port(cluster: Any) -> Iterator[int]:
    with started() as found:
        yield found


def numbers(rows: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, nets.SIZE)).astype(np.float32)


def run(app: Served, count: int, steps: int, clients: list[Client] | None = None) -> list[Client]:
    """Run steps of sequences side by side, and return the sequences."""
    found = [Client(app.handle, seed) for seed in range(count)] if clients is None else clients

    async def drive(client: Client) -> None:
        for _ in range(steps):
            await client.step()

    async def all_of_them() -> None:
        await asyncio.gather(*map(drive, found))

    asyncio.run(all_of_them())
    return found


def wait_for(condition: Any, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition has not come true"
        time.sleep(0.05)


def test_models_without_states(port: int) -> None:
    """Many callers get what a compiled model computes for them alone; wrong calls get clear errors."""
    model = perceptron()
    compiled = ov.Core().compile_model(model, "CPU")
    with served(port, ov.ray.share(model), num_replicas=2) as app, ThreadPoolExecutor(16) as pool:
        def call(seed: int) -> None:
            x = numbers(1 + seed % 3, seed)
            found = app.handle.infer.remote({"x": x, "offset": np.float32(2)}).result()
            for row, value in enumerate(x):
                np.testing.assert_allclose(found["y"][row], compiled([value[None], np.float32(2)])[0][0], atol=1e-6)

        list(pool.map(call, range(64)))
        with pytest.raises(ov.Error, match="has no input 'z'; it has x, offset"):
            app.handle.infer.remote({"z": numbers(1)}).result()
        with pytest.raises(ov.Error, match="the input has no value"):
            app.handle.infer.remote({"x": numbers(1)}).result()
        with pytest.raises(ov.Error, match="takes 2 inputs, as a dict by name"):
            app.handle.infer.remote(numbers(1)).result()
        with pytest.raises(ov.Error, match="has no states: use infer"):
            ov.ray.Sequence(app.handle).infer({"x": numbers(1)})
        client = http_client.InferenceServerClient(f"127.0.0.1:{port}/{app.app}")
        given = http_client.InferInput("x", [2, nets.SIZE], "FP32"), http_client.InferInput("offset", [], "FP32")
        given[0].set_data_from_numpy(numbers(2))
        given[1].set_data_from_numpy(np.array(2, np.float32))
        found = client.infer("ovgpu", given).as_numpy("y")
        np.testing.assert_allclose(found[1], compiled([numbers(2)[1:], np.float32(2)])[0][0], atol=1e-6)
        with pytest.raises(InferenceServerException, match="input 'offset' of model 'ovgpu' is missing"):
            client.infer("ovgpu", given[:1])
        client.close()


def test_sequences_are_handed_over_when_replicas_come_and_leave(port: int) -> None:
    model = ov.ray.share(nets.sums())
    with served(port, model, num_replicas=2, max_sequences=32) as app:
        clients = run(app, 12, 5)
        assert sum(app.sequences()) == 12
        assert 0 not in app.sequences()
        app.scale(model, 1, max_sequences=32)
        run(app, 12, 5, clients)
        wait_for(lambda: app.sequences() == [12])
        app.scale(model, 3, max_sequences=32)
        run(app, 12, 5, clients)
        assert sum(app.sequences()) == 12
        assert len(app.sequences()) == 3
        before = app.replicas()
        app.scale(model, 1, max_sequences=16)  # a new version: its replicas replace the old ones
        run(app, 12, 2, clients)
        assert not set(before) & set(app.replicas())
        for client in clients:
            client.sequence.close()
        assert sum(app.sequences()) == 0
        assert ray.get(app.directory().counts.remote())[1:] == (0, 0)


def test_a_replica_that_dies(port: int) -> None:
    """Its sequences go on from their checkpoints, each step exactly once."""
    with served(port, ov.ray.share(nets.sums()), num_replicas=2, checkpoint_steps=3) as app:
        clients = run(app, 8, 5)
        os.kill(app.replicas()[0], signal.SIGKILL)
        run(app, 8, 5, clients)


def test_a_full_replica_and_wrong_steps(port: int) -> None:
    with served(port, nets.sums(), num_replicas=1, max_sequences=2) as app:
        first, second = run(app, 2, 2)
        with pytest.raises(ov.BatchFullError, match="all 2 sequences are open"):
            run(app, 1, 1)
        with pytest.raises(ov.Error, match="Parameter"):
            first.sequence.infer({"x": np.zeros((1, nets.SIZE + 1), np.float32)})
        with pytest.raises(ov.Error, match="has states: run it by a Sequence"):
            app.handle.infer.remote({"x": numbers(1)}).result()
        run(app, 1, 2, [first, second])
        second.sequence.close()
        run(app, 1, 2)


def test_sequences_over_http(port: int) -> None:
    with served(port, nets.sums(), num_replicas=2) as app:
        client = http_client.InferenceServerClient(f"127.0.0.1:{port}/{app.app}")
        x = http_client.InferInput("x", [1, nets.SIZE], "FP32")
        x.set_data_from_numpy(np.ones((1, nets.SIZE), np.float32))

        def step(id: int, **flags: bool) -> int:
            found = client.infer("ovgpu", [x], sequence_id=id, headers={"x-session-id": str(id)}, **flags)
            return int(found.as_numpy("steps")[0])

        for number in range(1, 5):
            for id in (7, 8, 9):
                assert step(id, sequence_start=number == 1, sequence_end=number == 4) == number
        assert sum(app.sequences()) == 0
        with pytest.raises(InferenceServerException, match=r"^\[404\] sequence 7 is not open: [^/]*$"):
            step(7)
        with pytest.raises(InferenceServerException, match="has states: an inference needs a sequence_id"):
            client.infer("ovgpu", [x])
        client.close()


def test_the_emulated_card(port: int) -> None:
    shared = ov.ray.share(nets.sums())
    model = EmulatedModel(shared.xml, shared.weights)
    with served(port, model, num_replicas=1, device="EMULATED", max_sequences=4) as app:
        clients = run(app, 3, 3)
        app.scale(model, 2, device="EMULATED", max_sequences=4)
        run(app, 3, 3, clients)


def test_what_is_killed_loses_no_step(cluster: Any, port: int, pytestconfig: pytest.Config) -> None:
    """A short run of faults: a replica and the directory; with --long also a node, and the number of replicas."""
    figures = fault_run.run(0, cluster, port, least=12 if pytestconfig.getoption("--long") else 2)
    assert not figures.mistakes
    assert figures.faults.total() >= 2
    assert figures.steps > 100
