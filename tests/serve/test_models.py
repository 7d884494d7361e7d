"""Repositories: versions that are found, loaded beside each other, replaced and unloaded."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

import ovgpu as ov
from ovgpu._util import short_turns
from ovgpu.batching.gathering import Observer
from ovgpu.errors import ModelError
from ovgpu.model.node import Node
from ovgpu.serve import models
from ovgpu.serve.engines import Engine, EngineOptions, open_engine
from ovgpu.serve.repository import ModelFiles, Repository
from tests.harness.ir import Net
from tests.harness.servers.serving import INTERFACES, SECONDS, Serving, fails, serving, write
from tests.serve.wire import Wire

X = np.ones((1, 4), np.float32)


def counting(first: float) -> ov.Model:
    """A state that counts from ``first``, plus an input: y = x + state."""
    net = Net("counting")
    x = net.parameter("f32", (1, 4), "x")
    state = net.read_value("n", "f32", (1, 4), net.const(np.full((1, 4), first, np.float32)))
    total = net.layer("Add", "opset1", [state, net.const(np.ones((1, 1), np.float32))])
    net.assign("n", total)
    net.result(net.layer("Add", "opset1", [x, total], names=["y"]))
    return ov.Core().read_model(*net.build())


def adding(number: float) -> ov.Model:
    """y = x + number."""
    net = Net("adding")
    x = net.parameter("f32", (-1, 4), "x")
    net.result(net.layer("Add", "opset1", [x, net.const(np.full((1, 4), number, np.float32))], names=["y"]))
    return ov.Core().read_model(*net.build())


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def version(server: Serving, name: str) -> str:
    """Return the number of the version that serves a model, "" if there is none."""
    found = server.server.service.models.current.get(name)
    return found.number if found else ""


# ---- files


def test_a_model_is_found_by_its_file_its_folder_and_its_repository(tmp_path: Path) -> None:
    folder = write(tmp_path / "all", adding(1), "add", 2)
    write(tmp_path / "all", adding(1), "add", 10)
    write(tmp_path / "all", adding(1), "other", 1)
    found = Repository(tmp_path / "all").scan()
    assert {name: served.numbers for name, served in found.items()} == {"add": [10], "other": [1]}
    assert found["add"].versions[0].path == tmp_path / "all" / "add" / "10" / "model.xml"
    assert list(Repository(folder / "model.xml").scan()) == ["model"]
    assert list(Repository(folder).scan()) == ["2"]
    assert list(Repository(folder, "mine").scan()) == ["mine"]
    exported = tmp_path / "tiny-llama"
    shutil.copytree(folder, exported)
    for suffix in ("xml", "bin"):
        (exported / f"model.{suffix}").rename(exported / f"openvino_model.{suffix}")
    (exported / "openvino_tokenizer.xml").write_text("another model")
    assert list(Repository(exported).scan()) == ["tiny-llama"]
    assert Repository(exported).scan()["tiny-llama"].versions[0].path.name == "openvino_model.xml"
    assert list(Repository(exported / "openvino_model.xml").scan()) == ["tiny-llama"]


def test_the_folder_of_a_models_versions(tmp_path: Path) -> None:
    """OpenVINO Model Server has such a path for each model."""
    for number in (1, 2):
        write(tmp_path, adding(number), "add", number)
    (tmp_path / "add" / "ovgpu.toml").write_text("versions = 2")
    assert Repository(tmp_path / "add").scan()["add"].numbers == [2, 1]
    found = Repository(tmp_path / "add", "mine")
    assert found.scan()["mine"].numbers == [2, 1]
    older = found.version("mine", "1")
    assert older is not None and older.path == tmp_path / "add" / "1" / "model.xml"
    assert found.version("add", "1") is None and found.version("mine", "3") is None
    with serving(tmp_path / "add", name="mine") as server, server.client("gRPC") as client:
        assert client.infer("mine", {"x": X}, "1")["y"][0, 0] == 2
    write(tmp_path / "numbers", adding(1), "1", 2)  # a repository of a model with the name 1
    assert list(Repository(tmp_path / "numbers").scan()) == ["1"]


def test_folders_that_are_no_versions_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, adding(1), "add", 1)
    for name in ("add/02", "add/-3", "add/latest", "add/9", ".hidden/1", "empty"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "README.md").write_text("no model")
    found = Repository(tmp_path).scan()
    assert {name: served.numbers for name, served in found.items()} == {"add": [1]}


def test_a_path_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no file or folder"):
        Repository(tmp_path / "nothing")
    write(tmp_path, adding(1), "add")
    with pytest.raises(ModelError, match="is a repository"):
        Repository(tmp_path, "name")


# ---- versions


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_new_version_takes_over_without_losing_a_request(tmp_path: Path, interface: str) -> None:
    write(tmp_path, adding(1), "add", 1)
    with serving(tmp_path, poll_seconds=0.05) as server:
        stop = threading.Event()
        found: list[list[float]] = [[] for _ in range(4)]

        def ask(number: int) -> None:
            with server.client(interface) as client:
                while not stop.is_set():
                    found[number].append(float(client.infer("add", {"x": X})["y"][0, 0]))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for number in (2, 3, 4):
            write(tmp_path, adding(number), "add", number)
            until(lambda number=number: version(server, "add") == str(number))
        until(lambda: all(values and values[-1] == 5 for values in found))
        stop.set()
        for thread in threads:
            thread.join(SECONDS)
        until(lambda: len(server.server.service.models.versions()) == 1)
    for values in found:
        assert values == sorted(values)
        assert set(values) <= {2, 3, 4, 5}


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_sequence_ends_on_the_version_on_which_it_began(tmp_path: Path, interface: str) -> None:
    write(tmp_path, counting(0), "count", 1)
    with serving(tmp_path, poll_seconds=0.05) as server, server.client(interface) as client:

        def step(id: int, **flags: bool) -> float:
            return float(client.infer("count", {"x": X}, sequence_id=id, **flags)["y"][0, 0])

        assert step(1, sequence_start=True) == 2
        write(tmp_path, counting(100), "count", 2)
        until(lambda: version(server, "count") == "2")
        assert step(2, sequence_start=True) == 102
        assert [step(1), step(2), step(1)] == [3, 103, 4]
        fails("INVALID_ARGUMENT", client.infer, "count", {"x": X}, "2", sequence_id=1)
        assert len(server.server.service.models.versions()) == 2
        assert step(1, sequence_end=True) == 5
        until(lambda: len(server.server.service.models.versions()) == 1)
        assert step(1, sequence_start=True) == 102  # the next one is on the new version
        assert step(2, sequence_end=True) == 104


def test_files_that_change_in_place_are_loaded_again(tmp_path: Path) -> None:
    write(tmp_path, adding(1), "add")
    with serving(tmp_path, poll_seconds=0.05) as server, server.client("gRPC") as client:
        assert client.infer("add", {"x": X})["y"][0, 0] == 2
        write(tmp_path, adding(7), "add")
        until(lambda: client.infer("add", {"x": X})["y"][0, 0] == 8)


def test_a_version_that_cannot_be_loaded_leaves_the_old_one(tmp_path: Path) -> None:
    write(tmp_path, adding(1), "add", 1)
    with serving(tmp_path, poll_seconds=0.05) as server, server.client("REST") as client:
        (tmp_path / "add" / "2").mkdir()
        (tmp_path / "add" / "2" / "model.xml").write_text("<net")
        (tmp_path / "bad" / "1").mkdir(parents=True)
        (tmp_path / "bad" / "1" / "model.xml").write_text("<net")
        until(lambda: {"add", "bad"} <= server.server.service.models.failures.keys())
        assert client.infer("add", {"x": X})["y"][0, 0] == 2
        index = {x["name"]: x for x in client.client.get_model_repository_index() if x["version"] == "1"}
        assert index["add"]["state"] == "READY"
        assert index["bad"]["state"] == "UNAVAILABLE"
        assert index["bad"]["reason"] not in ("", "loading")
        assert str(tmp_path) not in index["bad"]["reason"]
        fails("UNAVAILABLE", client.infer, "bad", {"x": X})
        write(tmp_path, adding(4), "bad")
        until(lambda: version(server, "bad"))
        assert client.infer("bad", {"x": X})["y"][0, 0] == 5


def test_a_model_that_is_removed_is_no_longer_served(tmp_path: Path) -> None:
    write(tmp_path, adding(1), "add")
    write(tmp_path, counting(0), "count")
    with serving(tmp_path, poll_seconds=0.05) as server, server.client("gRPC") as client:
        client.infer("count", {"x": X}, sequence_id=1, sequence_start=True)
        shutil.rmtree(tmp_path / "add")
        shutil.rmtree(tmp_path / "count")
        until(lambda: not version(server, "add") and not version(server, "count"))
        fails("NOT_FOUND", client.infer, "add", {"x": X})
        fails("NOT_FOUND", client.infer, "count", {"x": X}, sequence_id=2, sequence_start=True)
        # Sequences that have begun still end.
        assert client.infer("count", {"x": X}, sequence_id=1, sequence_end=True)["y"][0, 0] == 3


@pytest.mark.parametrize("interface", INTERFACES)
def test_clients_load_and_unload(tmp_path: Path, interface: str) -> None:
    write(tmp_path, adding(1), "add")
    with serving(tmp_path, poll_seconds=0) as server, server.client(interface) as client:
        api = client.client
        api.unload_model("add")
        assert not api.is_model_ready("add")
        fails("UNAVAILABLE", client.infer, "add", {"x": X})
        api.load_model("add")
        assert client.infer("add", {"x": X})["y"][0, 0] == 2
        write(tmp_path, adding(2), "add", 2)  # without polls, it waits for a client
        assert client.infer("add", {"x": X})["y"][0, 0] == 2
        api.load_model("add")
        assert client.infer("add", {"x": X})["y"][0, 0] == 3
        fails("NOT_FOUND", api.load_model, "nothing")
        fails("NOT_FOUND", api.unload_model, "nothing")
        (tmp_path / "add" / "3").mkdir()
        (tmp_path / "add" / "3" / "model.xml").write_text("<net")
        fails("INVALID_ARGUMENT", api.load_model, "add")
        assert client.infer("add", {"x": X})["y"][0, 0] == 3


def test_a_model_that_was_unloaded_stays_so_until_it_is_loaded(tmp_path: Path) -> None:
    write(tmp_path, adding(1), "add")
    with serving(tmp_path, poll_seconds=0.02) as server, server.client("REST") as client:
        client.client.unload_model("add")
        write(tmp_path, adding(2), "add", 2)
        write(tmp_path, adding(3), "later")
        until(lambda: version(server, "later"))
        assert version(server, "add") == ""
        client.client.load_model("add")
        assert client.infer("add", {"x": X})["y"][0, 0] == 3


def test_models_run_before_clients_ask(tmp_path: Path) -> None:
    """All sizes of batches run when a model is loaded. They do not count."""
    write(tmp_path, adding(1), "add")
    write(tmp_path, counting(0), "count")
    with serving(tmp_path, engine={"max_batch_size": 8, "max_sequences": 4}) as server:
        for current in server.server.service.models.current.values():
            assert current.statistics.computed.count == 0
        engines: Any = [current.engine for current in server.server.service.models.current.values()]
        assert engines[1]._batcher.batch_size == 4
        with server.client("gRPC") as client:
            assert client.infer("count", {"x": X}, sequence_id=1, sequence_start=True)["y"][0, 0] == 2


def test_onnx_models(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "relu",
        [helper.make_tensor_value_info("x", kind, ["n", 4])],
        [helper.make_tensor_value_info("y", kind, ["n", 4])],
    )
    (tmp_path / "relu" / "1").mkdir(parents=True)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "relu" / "1" / "model.onnx",
    )
    with serving(tmp_path) as server, server.client("gRPC") as client:
        assert client.infer("relu", {"x": -X})["y"].tolist() == [[0] * 4]


def test_other_models_have_many_turns_while_one_is_loaded(tmp_path: Path) -> None:
    """Reading and compiling a large model is Python code: other threads need not wait for long, nor for collections."""
    write(tmp_path, adding(0), "m")
    seen = []

    def open_in_turns(path: Path, observer: Observer) -> Engine:
        seen.append((sys.getswitchinterval(), gc.isenabled()))
        return open_engine(path, EngineOptions("CPU"), observer)

    before = sys.getswitchinterval(), gc.isenabled()
    with serving(tmp_path, opener=open_in_turns) as server, server.client("REST") as client:
        client.client.load_model("m")
        assert (sys.getswitchinterval(), gc.isenabled()) == before
    assert seen == [(pytest.approx(short_turns.SECONDS), False)] * 2


@pytest.mark.parametrize("fault", ["warm-up", "digest"])
def test_an_engine_is_closed_if_its_version_cannot_be_served(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "models", counting(0), "m")
    closed = []

    def fail(*arguments: Any) -> Any:
        raise OSError("no memory, or no file")

    def open_and_watch(path: Path, observer: Observer) -> Engine:
        engine = open_engine(path, EngineOptions("CPU"), observer)
        monkeypatch.setattr(engine, "close", lambda close=engine.close: closed.append(close()))
        if fault == "warm-up":
            monkeypatch.setattr(engine, "warm_up", fail)
        return engine

    if fault == "digest":
        monkeypatch.setattr(ModelFiles, "digest", fail)
    with serving(tmp_path / "models", opener=open_and_watch, keep_going=True, state_dir=tmp_path / "states") as server:
        assert "m" in server.server.service.models.failures
        assert len(closed) == 1


@pytest.mark.parametrize("make", [adding, counting], ids=["batches", "sequences"])
def test_a_version_that_has_ended_is_freed(tmp_path: Path, make: Callable[[float], ov.Model]) -> None:
    write(tmp_path, make(0), "m")
    before = set(threading.enumerate())
    with serving(tmp_path) as server, server.client("REST") as client:
        client.infer("m", {"x": X}, sequence_id=1, sequence_start=True, sequence_end=True)
        engines = [weakref.ref(server.server.service.models.current["m"].engine)]
        for _ in range(3):
            client.client.load_model("m")
            engines.append(weakref.ref(server.server.service.models.current["m"].engine))

        def freed() -> bool:
            gc.collect()
            return [engine() is None for engine in engines] == [True, True, True, False]

        until(freed)
        names = ("ovgpu-batches", "ovgpu-sequences")
        until(lambda: sum(thread.name in names for thread in set(threading.enumerate()) - before) == 1)


def test_the_graph_of_a_version_that_has_ended_is_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is full of cycles. Its weights, too, need not wait for a full collection, which may be hours away."""

    def nodes() -> int:
        return sum(isinstance(found, Node) for found in gc.get_objects())

    monkeypatch.setattr(models, "COLLECT_SECONDS", 0.05)
    write(tmp_path, adding(0), "m")
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with serving(tmp_path) as server, server.client("REST") as client:
            gc.collect()
            alone = nodes()
            for _ in range(3):
                client.client.load_model("m")
            until(lambda: nodes() <= alone)
    finally:
        gc.set_threshold(*before)


def test_threads_of_the_command_use_one_heap() -> None:
    """It is one of glibc, which is asked here. Without `heap.set_up`, each of these threads has its own."""
    program = """
import ctypes, threading
from ovgpu.serve import heap
if {}: heap.set_up()
libc, together = ctypes.CDLL(None), threading.Barrier(4)
libc.malloc.restype = ctypes.c_void_p
def allocate():
    libc.malloc(100_000)
    together.wait()
threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc.fopen.restype = ctypes.c_void_p
libc.malloc_info(0, ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w")))
libc.fflush(None)
"""
    environment = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    for set_up, heaps in ((False, 5), (True, 1)):
        command = [sys.executable, "-c", program.format(set_up)]
        found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert found.stdout.count("<heap ") == heaps


def test_there_is_one_repository(tmp_path: Path) -> None:
    write(tmp_path, adding(1), "add")
    with serving(tmp_path) as server, Wire(server) as wire:
        for method, request in (
            ("RepositoryIndex", service_pb2.RepositoryIndexRequest(repository_name="other")),
            ("RepositoryModelLoad", service_pb2.RepositoryModelLoadRequest(repository_name="other", model_name="add")),
            (
                "RepositoryModelUnload",
                service_pb2.RepositoryModelUnloadRequest(repository_name="other", model_name="add"),
            ),
        ):
            answer = wire.call(request, method)
            assert answer.status == "UNIMPLEMENTED" and "there is one repository" in answer.text
        assert version(server, "add") == "1"
        assert wire.post({"text_input": "a"}, path="/v2/models/add/generate").status == "UNIMPLEMENTED"
        assert (
            wire.post({"text_input": "a"}, path="/v2/models/add/versions/1/generate_stream").status == "UNIMPLEMENTED"
        )
