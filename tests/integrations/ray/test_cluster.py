"""Predictor and deployments on a local cluster of several nodes, of which actors and nodes are killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import tritonclient.http as http_client
from ray.cluster_utils import Cluster
from tritonclient.utils import InferenceServerException

import ovgpu as ov
from ovgpu.integrations.ray.models import SharedModel, digest
from tests.batching import nets
from tests.batching.test_dynamic_batcher import perceptron as scored
from tests.harness.ir import Net
from tests.harness.servers.redis import RedisServer, redis_server
from tests.integrations.ray import faults
from tests.integrations.ray import served as serving_faults
from tests.integrations.ray.faults import compared, perceptron, values
from tests.integrations.ray.served import Client, Served, served, started

Array = np.ndarray[Any, Any]
ROWS = 300
POOL = ray.data.ActorPoolStrategy(size=faults.NODES)
WEIGHT_BYTES = 8 << 20
MARK = "OVGPU_TEST_CLUSTER"  # an environment variable

pytestmark = pytest.mark.timeout(200)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Yield a cluster of two nodes and a head. No processes are left behind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(MARK, str(os.getpid()))  # all processes of the cluster inherit it; workers rename themselves
        with faults.local_cluster() as started:
            assert len(processes()) > faults.NODES
            yield started
        wait_for(lambda: not processes())


def processes() -> list[str]:
    """Return the command lines of the processes of this program's cluster."""
    mark, lines = f"{MARK}={os.getpid()}\0".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (folder / "environ").read_bytes():
                lines.append((folder / "cmdline").read_text(errors="replace").replace("\0", " "))
    return lines


def numbered_rows(rows: int, blocks: int) -> ray.data.Dataset:
    """Return a dataset of the columns id and x."""
    return ray.data.from_items(
        [{"id": id, "x": x} for id, x in enumerate(values(np.arange(rows)))], override_num_blocks=blocks
    )


def wanted(ids: Array) -> Array:
    return ov.ray.Predictor(perceptron(), "CPU")({"x": values(ids)})["y"]


def test_every_row_once(cluster: Cluster) -> None:
    """Results are those of a single process. Columns that are no inputs are kept."""
    dataset = numbered_rows(ROWS, 7).map_batches(
        ov.ray.Predictor,
        fn_constructor_args=[perceptron(), "CPU"],
        fn_constructor_kwargs={"max_batch_size": 16},
        batch_size=32,
        num_cpus=0.4,
        compute=POOL,
    )
    rows = sorted(dataset.take_all(), key=lambda row: row["id"])
    assert all(list(row) == ["id", "y"] for row in rows)
    assert [row["id"] for row in rows] == list(range(ROWS))
    found = np.stack([row["y"] for row in rows])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted(np.arange(ROWS)), 0, faults.TOLERANCE)


@pytest.mark.long
def test_empty_blocks_and_ragged_rows(cluster: Cluster) -> None:
    """Lists of different lengths, some of whose blocks have lost all rows."""
    net = Net("ragged")
    net.result(net.layer("Relu", "opset1", [net.parameter("f32", (1, -1), "x")], names=["y"]))
    items = [{"id": i, "x": [float(i - 20)] * (1 + i % 3)} for i in range(40)]
    dataset = ray.data.from_items(items, override_num_blocks=4).filter(lambda row: row["id"] >= 15, num_cpus=0.1)
    rows = dataset.map_batches(
        ov.ray.Predictor, fn_constructor_args=[nets.model(net), "CPU"], batch_size=None, num_cpus=0.4, compute=POOL
    ).take_all()
    assert {row["id"]: row["y"].tolist() for row in rows} == {
        row["id"]: [max(x, 0) for x in row["x"]] for row in items[15:]
    }


def test_models_with_states(cluster: Cluster) -> None:
    """Rows are sequences of different lengths."""
    model = nets.streaming_lstm()
    rng = np.random.default_rng(0)
    frames = [rng.standard_normal((1 + i % 5, 40)).astype(np.float32) for i in range(24)]
    dataset = ray.data.from_items([{"id": i, "frame": x} for i, x in enumerate(frames)], override_num_blocks=4)
    rows = dataset.map_batches(
        ov.ray.Predictor,
        fn_constructor_args=[ov.ray.share(model), "CPU"],
        batch_size=6,
        fn_constructor_kwargs={"max_sequences": 4},
        num_cpus=0.4,
        compute=POOL,
    ).take_all()
    assert sorted(row["id"] for row in rows) == list(range(len(frames)))
    compiled = ov.Core().compile_model(model, "CPU")
    (name,) = set(rows[0]) - {"id"}
    for row in rows:
        request = compiled.create_infer_request()
        steps = [np.array(request.infer([frame[None]])[0][0]) for frame in frames[row["id"]]]
        np.testing.assert_allclose(row[name], np.stack(steps), 1e-5, 1e-5)


# ---- weights


class Located(ov.ray.Predictor):
    """Predictor that adds columns: its process, and the places of the weights that it was made from."""

    def __init__(self, model: ov.ray.SharedModel) -> None:
        before = private_bytes()
        super().__init__(model, "CPU")
        self._grown = private_bytes() - before
        data = [node.data for node in model.read().get_ops() if node.get_type_name() == "Constant"]
        self._place = " ".join(shared_place(array) for array in data if array.nbytes >= WEIGHT_BYTES)

    def __call__(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        time.sleep(0.2)  # or one actor would do everything
        count = len(batch["id"])
        node = ray.get_runtime_context().get_node_id()
        return {
            **super().__call__(batch),
            "pid": np.full(count, os.getpid()),
            "grown": np.full(count, self._grown),
            "place": np.array([self._place] * count),
            "node": np.array([node] * count),
        }


def private_bytes() -> int:
    """Return the memory of this process that it shares with no other."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


def shared_place(array: Array) -> str:
    """Return the file in shared memory that an array is mapped from, and its offset, or "" if it is not shared."""
    address = array.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, mode, offset, _, inode, *path = line.split()
        first, last = (int(word, 16) for word in span.split("-"))
        if first <= address < last:
            is_shared = mode[3] == "s" and path and path[0].startswith("/dev/shm/")
            return f"{inode}:{int(offset, 16) + address - first}" if is_shared else ""
    return ""


def wide() -> ov.Model:
    """A layer of more than `WEIGHT_BYTES`."""
    net = Net("wide")
    x = net.parameter("f32", (1, nets.SIZE), "x")
    w = nets.weights(net, nets.SIZE, WEIGHT_BYTES // 4 // nets.SIZE)
    y = net.layer("MatMul", "opset1", [x, w], {"transpose_a": False, "transpose_b": False})
    net.result(net.layer("ReduceMax", "opset1", [y, net.const([1])], {"keep_dims": False}, names=["y"]))
    return nets.model(net)


@pytest.mark.long
def test_weights_are_in_shared_memory_once_per_node(cluster: Cluster) -> None:
    """Two actors on each of two nodes."""
    model = wide()
    shared = ov.ray.share(model)
    rows = (
        numbered_rows(48, 16)
        .map_batches(
            Located,
            fn_constructor_args=[shared],
            batch_size=3,
            num_cpus=0.4,
            compute=ray.data.ActorPoolStrategy(size=4),
        )
        .take_all()
    )
    workers = {row["pid"]: row for row in rows}
    nodes = {row["node"] for row in rows}
    assert len(workers) > len(nodes) == 2  # a fourth actor may start when the others have done all rows
    places = {(row["node"], row["place"]) for row in workers.values()}
    assert len(places) == len(nodes), places  # actors of a node have the same memory
    assert all(place for _, place in places)
    assert all(row["grown"] < WEIGHT_BYTES // 2 for row in workers.values())
    locations = ray.experimental.get_object_locations([shared.weights])[shared.weights]
    assert nodes <= set(locations["node_ids"]) and len(locations["node_ids"]) <= 1 + len(nodes)
    expected = ov.ray.Predictor(model, "CPU")({"x": values(np.arange(48))})["y"]
    found = np.array([row["y"] for row in sorted(rows, key=lambda row: row["id"])])
    np.testing.assert_allclose(found, expected, 1e-5, 1e-5)


# ---- faults


@pytest.mark.long
def test_killed_actors(cluster: Cluster) -> None:
    found = faults.run(cluster, period=1.5, node_every=0, number=3)
    assert not found.mistakes, found
    assert found.faults == {"killed actors": 3} and found.rows == found.rounds * faults.ROWS, found


@pytest.mark.long
def test_a_removed_node(cluster: Cluster) -> None:
    """A node is killed in the middle, and another one is added."""
    found = faults.run(cluster, period=3, node_every=1, number=1, batch_seconds=0.2)
    assert not found.mistakes, found
    assert found.faults == {"removed nodes": 1} and found.rows == found.rounds * faults.ROWS, found


def test_mistakes_are_found() -> None:
    ids = np.arange(4) + 10
    y = wanted(ids)
    assert not compared([{"id": ids[::-1], "y": y[::-1]}], y, 10)
    assert "row 12 was returned 2 times" in compared([{"id": ids[[0, 1, 2, 2]], "y": y}], y, 10)
    assert "row 13 was returned 0 times" in compared([{"id": ids[:3], "y": y[:3]}], y, 10)
    assert any("row 11 differs" in mistake for mistake in compared([{"id": ids, "y": y[[0, 2, 1, 3]]}], y, 10))


# ---- deployments


class EmulatedModel(SharedModel):
    """Model whose worker has the emulated card as a device."""

    def read(self) -> ov.Model:
        from tests.harness import cuda

        EmulatedModel.registration = cuda.registered("emulator")
        EmulatedModel.registration.__enter__()
        return super().read()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as found:
        yield found


@pytest.fixture(scope="module")
def port(cluster: Cluster) -> Iterator[int]:
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


def wait_for(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition has not come true"
        time.sleep(0.05)


def test_models_without_states(port: int) -> None:
    """Many callers get what a compiled model computes for them alone; wrong calls get clear errors."""
    model = scored()
    compiled = ov.Core().compile_model(model, "CPU")
    with served(port, ov.ray.share(model), num_replicas=2) as app, ThreadPoolExecutor(16) as pool:

        def call(x: Array) -> Array:
            return app.handle.infer.remote({"x": x, "offset": np.float32(2)}).result()["y"]

        given = [numbers(1 + seed % 3, seed) for seed in range(64)]
        for x, found in zip(given, pool.map(call, given)):
            wanted = [compiled([row[None], np.float32(2)])[0][0] for row in x]
            np.testing.assert_allclose(found, wanted, atol=1e-6)
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


@pytest.mark.long
def test_sequences_are_handed_over_when_replicas_come_and_leave(port: int, store: RedisServer) -> None:
    model = ov.ray.share(nets.sums())
    options = {"max_sequences": 32, "store": store.url}
    with served(port, model, num_replicas=2, **options) as app:
        clients = run(app, 12, 5)
        assert sum(app.sequences()) == 12
        assert 0 not in app.sequences()
        app.scale(model, 1, **options)
        run(app, 12, 5, clients)
        wait_for(lambda: app.sequences() == [12])
        app.scale(model, 3, **options)
        run(app, 12, 5, clients)
        assert sum(app.sequences()) == 12
        assert len(app.sequences()) == 3
        before = app.replicas()
        app.scale(model, 1, max_sequences=16, store=store.url)  # a new version: its replicas replace the old ones
        run(app, 12, 2, clients)
        assert not set(before) & set(app.replicas())
        for client in clients:
            client.sequence.close()
        assert sum(app.sequences()) == 0
        assert not open_records(store, app)


@pytest.mark.long
def test_the_load_decides_how_many_replicas_there_are(port: int, store: RedisServer) -> None:
    """Sequences move to replicas that autoscaling starts, and stay when it stops them again."""
    scaling = {
        "min_replicas": 1,
        "max_replicas": 2,
        "target_ongoing_requests": 2,
        "upscale_delay_s": 0.5,
        "downscale_delay_s": 2,
        "metrics_interval_s": 0.2,
        "look_back_period_s": 1,
    }
    with served(port, ov.ray.share(nets.sums()), autoscaling_config=scaling, store=store.url) as app:
        clients = run(app, 24, 1)

        def loaded_by_two() -> bool:
            run(app, 24, 20, clients)
            return len(app.sequences()) == 2

        wait_for(loaded_by_two)
        run(app, 24, 2, clients)
        assert 0 not in app.sequences() and sum(app.sequences()) == 24
        wait_for(lambda: len(app.sequences()) == 1)  # the others are in the store until their next step
        run(app, 24, 2, clients)
        assert app.sequences() == [24]


@pytest.mark.long
def test_a_replica_that_dies(port: int) -> None:
    """Its sequences go on from their checkpoints, each step exactly once."""
    with served(port, ov.ray.share(nets.sums()), num_replicas=2, checkpoint_steps=3, store=store.url) as app:
        clients = run(app, 8, 5)
        os.kill(app.replicas()[0], signal.SIGKILL)
        run(app, 8, 5, clients)


@pytest.mark.long
def test_states_end_when_they_are_idle(port: int, store: RedisServer) -> None:
    """A replica that leaves gives its states to the store, which forgets them after a while."""
    model = ov.ray.share(nets.sums())
    with served(port, model, num_replicas=1, idle_seconds=4, store=store.url) as app:
        run(app, 2, 2)
        wait_for(lambda: not open_records(store, app))
        run(app, 2, 2)
        before = app.replicas()
        app.scale(model, 1, idle_seconds=4, store=store.url, max_sequences=8)
        assert set(before) != set(app.replicas())
    wait_for(lambda: not open_records(store, app))


def open_records(store: RedisServer, app: Served) -> list[str]:
    """Return the keys of open sequences in the store, and of states."""
    with client_of(store) as client:
        keys = [key.decode() for key in client.scan_iter(f"ovgpu:{app.app}/ovgpu:sequence:*")]
        return [key for key in keys if not client.hexists(key, "ended") or client.hexists(key, "checkpoint")]


@contextmanager
def client_of(store: RedisServer) -> Iterator[Any]:
    import redis

    client = redis.Redis(port=store.port)
    try:
        yield client
    finally:
        client.close()


@pytest.mark.long
def test_states_of_another_model_are_refused(port: int, store: RedisServer) -> None:
    with served(port, ov.ray.share(nets.sums()), num_replicas=1, store=store.url) as app:
        (client,) = run(app, 1, 3)
        app.scale(ov.ray.share(nets.sums(initial=0.75)), 1, store=store.url)
        with pytest.raises(ov.ray.SequenceLostError, match="has other files than the one that computed its state"):
            run(app, 1, 1, [client])
        app.scale(nets.sums(), 1, store=store.url)  # the same model again, in another form
        run(app, 1, 1, [client])


def test_a_digest_is_that_of_the_files(cluster: Cluster, tmp_path: Path) -> None:
    models = nets.sums(), scored()
    digests = []
    for model in models:
        ov.save_model(model, tmp_path / "model.xml", compress_to_fp16=False)
        digests.append(digest(tmp_path / "model.xml"))
        assert digests[-1] == digest(str(tmp_path / "model.xml")) == digest(ov.ray.share(tmp_path / "model.xml"))
    assert digests[0] != digests[1]
    assert digest(models[0]) == digest(ov.ray.share(models[0])) == digest(nets.sums()) != digest(models[1])


def test_checkpoints_need_a_store() -> None:
    with pytest.raises(ov.Error, match="checkpoints need a store"):
        ov.ray.deployment(nets.sums(), checkpoint_steps=1)


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


@pytest.mark.long
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
        with pytest.raises(InferenceServerException, match=r"^\[404\] sequence 7 of model 'ovgpu' is not open: [^/]*$"):
            step(7)
        with pytest.raises(InferenceServerException, match="has states: an inference needs a sequence_id"):
            client.infer("ovgpu", [x])
        client.close()


def test_http_has_the_limits_token_and_health_of_the_server(port: int, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token-of-many-letters")
    with served(port, nets.sums(), num_replicas=1, token_file=str(tmp_path / "token"), max_body_mib=1) as app:

        def call(method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
            connection = HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request(method, f"/{app.app}{path}", body, headers)
            response = connection.getresponse()
            content = response.read()
            connection.close()
            return response.status, json.loads(content)

        token = {"Authorization": "Bearer a-token-of-many-letters"}
        infer = "/v2/models/ovgpu/infer"
        assert call("GET", "/v2/health/ready") == (200, {"ready": True})
        assert call("GET", "/v2/models/ovgpu")[0] == 401
        assert call("GET", "/v2/models/ovgpu", **token)[1]["name"] == "ovgpu"
        assert call("POST", infer, b"{}", Authorization="Bearer wrong")[0] == 401
        status, answer = call("POST", infer, bytes((1 << 20) + 1), **token)
        assert status == 413 and "more than 1048576 bytes" in answer["error"]
        assert call("POST", infer, b"{", **token)[0] == 400
        assert call("POST", "/v2/repository/models/ovgpu/unload", **token)[0] == 501
    with served(port, nets.sums(), num_replicas=1) as app:
        assert call("GET", "/v2/models/ovgpu")[0] == 200
        assert call("GET", "/v2/models/ovgpu", Host="evil.example")[0] == 403


@pytest.mark.long
def test_the_emulated_card(port: int, store: RedisServer) -> None:
    shared = ov.ray.share(nets.sums())
    model = EmulatedModel(shared.xml, shared.weights)
    with served(port, model, num_replicas=1, device="EMULATED", max_sequences=4, store=store.url) as app:
        clients = run(app, 3, 3)
        app.scale(model, 2, device="EMULATED", max_sequences=4, store=store.url)
        run(app, 3, 3, clients)


@pytest.mark.long
def test_what_is_killed_loses_no_step(
    cluster: Cluster, port: int, store: RedisServer, pytestconfig: pytest.Config
) -> None:
    """A replica and the store die; with --long also nodes, and the number of replicas changes."""
    figures = serving_faults.run(0, cluster, port, store, least=12 if pytestconfig.getoption("--long") else 3)
    assert not figures.mistakes
    assert figures.faults.total() >= 3
    assert figures.steps > 100
