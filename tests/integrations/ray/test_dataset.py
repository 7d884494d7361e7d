"""Predictor on a local cluster of several nodes, of which actors and nodes are killed."""
from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

import ovgpu as ov
from tests.batching import nets
from tests.harness.ir import Net
from tests.integrations.ray import faults
from tests.integrations.ray.faults import compared, perceptron, values

Array = np.ndarray[Any, Any]
ROWS = 300
POOL = ray.data.ActorPoolStrategy(size=faults.NODES)
WEIGHT_BYTES = 8 << 20

pytestmark = pytest.mark.timeout(150)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Yield a cluster of two nodes and a head. No processes are left behind."""
    with faults.local_cluster() as started:
        session = started.head_node.get_session_dir_path()
        assert processes(session)
        yield started
    assert not processes(session)


def processes(session: str) -> list[str]:
    """Return the command lines that name the folder of a session of Ray, as those of nodes and new workers do."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            lines.append(file.read_text(errors="replace").replace("\0", " "))
    return [line for line in lines if session in line]


def numbered_rows(rows: int, blocks: int) -> ray.data.Dataset:
    """Return a dataset of the columns id and x."""
    return ray.data.from_items([{"id": id, "x": x} for id, x in enumerate(values(np.arange(rows)))],
                               override_num_blocks=blocks)


def wanted(ids: Array) -> Array:
    return ov.ray.Predictor(perceptron(), "CPU")({"x": values(ids)})["y"]


def test_every_row_once(cluster: Cluster) -> None:
    """Results are those of a single process. Columns that are no inputs are kept."""
    dataset = numbered_rows(ROWS, 7).map_batches(
        ov.ray.Predictor, fn_constructor_args=[perceptron(), "CPU"], fn_constructor_kwargs={"max_batch_size": 16},
        batch_size=32, num_cpus=0.4, compute=POOL)
    rows = sorted(dataset.take_all(), key=lambda row: row["id"])
    assert all(list(row) == ["id", "y"] for row in rows)
    assert [row["id"] for row in rows] == list(range(ROWS))
    found = np.stack([row["y"] for row in rows])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted(np.arange(ROWS)), 0, faults.TOLERANCE)


def test_empty_blocks_and_ragged_rows(cluster: Cluster) -> None:
    """Lists of different lengths, some of whose blocks have lost all rows."""
    net = Net("ragged")
    net.result(net.layer("Relu", "opset1", [net.parameter("f32", (1, -1), "x")], names=["y"]))
    items = [{"id": i, "x": [float(i - 20)] * (1 + i % 3)} for i in range(40)]
    dataset = ray.data.from_items(items, override_num_blocks=4).filter(lambda row: row["id"] >= 15, num_cpus=0.1)
    rows = dataset.map_batches(ov.ray.Predictor, fn_constructor_args=[nets.model(net), "CPU"], batch_size=None,
                               num_cpus=0.4, compute=POOL).take_all()
    assert {row["id"]: row["y"].tolist() for row in rows} == {
        row["id"]: [max(x, 0) for x in row["x"]] for row in items[15:]}


def test_models_with_states(cluster: Cluster) -> None:
    """Rows are sequences of different lengths."""
    model = nets.streaming_lstm()
    rng = np.random.default_rng(0)
    frames = [rng.standard_normal((1 + i % 5, 40)).astype(np.float32) for i in range(24)]
    dataset = ray.data.from_items([{"id": i, "frame": x} for i, x in enumerate(frames)], override_num_blocks=4)
    rows = dataset.map_batches(ov.ray.Predictor, fn_constructor_args=[ov.ray.share(model), "CPU"], batch_size=6,
                               fn_constructor_kwargs={"max_sequences": 4}, num_cpus=0.4, compute=POOL).take_all()
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
        return {**super().__call__(batch), "pid": np.full(count, os.getpid()), "grown": np.full(count, self._grown),
                "place": np.array([self._place] * count), "node": np.array([node] * count)}


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


def test_weights_are_in_shared_memory_once_per_node(cluster: Cluster) -> None:
    """Two actors on each of two nodes."""
    model = wide()
    shared = ov.ray.share(model)
    rows = numbered_rows(48, 16).map_batches(Located, fn_constructor_args=[shared], batch_size=3, num_cpus=0.4,
                               compute=ray.data.ActorPoolStrategy(size=4)).take_all()
    workers = {row["pid"]: row for row in rows}
    nodes = {row["node"] for row in rows}
    assert len(workers) == 4 and len(nodes) == 2
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


def test_killed_actors(cluster: Cluster) -> None:
    found = faults.run(cluster, period=1.5, node_every=0, number=3)
    assert not found.mistakes, found
    assert found.faults == {"killed actors": 3} and found.rows == found.rounds * faults.ROWS, found


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
