"""Tensors in system shared memory."""

from __future__ import annotations

import errno
import json
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.utils.shared_memory as shm
from tritonclient.grpc import service_pb2

from ovgpu.serve.shared_memory import FOLDER, SharedMemory
from tests.harness.servers.serving import INTERFACES, Client, Serving, fails, serving, write
from tests.serve.test_inference import affine, echo, post
from tests.serve.test_models import counting
from tests.serve.test_predict import strings
from tests.serve.wire import MIB, Wire, message, set_parameters

pytestmark = pytest.mark.skipif(not Path(FOLDER).is_dir(), reason="the system has no folder of shared memory")

X = np.arange(6, dtype=np.float32).reshape(2, 3)
BYTES = X.nbytes


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    write(folder, echo("f32"), "echo")
    write(folder, affine(), "affine")
    write(folder, strings(), "strings")
    write(folder, counting(0), "count")
    return folder


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Serving]:
    with serving(repository, shared_memory=True, body_mib=1) as found:
        yield found


@pytest.fixture(params=INTERFACES)
def client(request: pytest.FixtureRequest, server: Serving) -> Iterator[Client]:
    with server.client(request.param) as found:
        yield found
        found.client.unregister_system_shared_memory()
    held = server.server.held
    assert held.free == server.server._options.held_mib * MIB


def some_key() -> str:
    return f"/ovgpu_test_{uuid.uuid4().hex}"


@contextmanager
def memory(size: int) -> Iterator[tuple[str, Any]]:
    """A shared memory object, and its handle, while the block runs."""
    key = some_key()
    handle = shm.create_shared_memory_region("region", key, size, create_only=True)
    try:
        yield key, handle
    finally:
        with suppress(FileNotFoundError):
            shm.destroy_shared_memory_region(handle)


@pytest.fixture
def region(client: Client) -> Iterator[Any]:
    """A region "all" of 4096 bytes, whose handle this is."""
    with memory(4096) as (key, handle):
        client.client.register_system_shared_memory("all", key, 4096)
        yield handle


def placed_input(client: Client, name: str = "x", shape: Any = X.shape, kind: str = "FP32", **place: Any) -> Any:
    found = client.triton.InferInput(name, list(shape), kind)
    found.set_shared_memory(**({"region_name": "all", "byte_size": BYTES} | place))
    return found


def placed_output(client: Client, name: str = "y", **place: Any) -> Any:
    found = client.triton.InferRequestedOutput(name)
    found.set_shared_memory(**({"region_name": "all", "byte_size": BYTES} | place))
    return found


# ---- inferences


def test_inputs_and_outputs(client: Client, region: Any) -> None:
    shm.set_shared_memory_region(region, [X], 64)
    outputs = [placed_output(client, byte_size=1000, offset=1024)]
    result = client.client.infer("echo", [placed_input(client, offset=64)], outputs=outputs)
    assert shm.get_contents_as_numpy(region, np.float32, X.shape, 1024).tolist() == X[:, ::-1].tolist()
    output = result.get_output("y")
    if client.interface == "REST":
        assert output == {"name": "y", "datatype": "FP32", "shape": [2, 3]}
    else:
        assert list(output.shape) == [2, 3] and list(result.get_response().raw_output_contents) == [b""]


def test_some_are_there_and_others_are_not(client: Client, region: Any) -> None:
    a, b = np.ones((2, 4), np.float32), np.full((2, 4), 2, np.float32)
    shm.set_shared_memory_region(region, [b])
    inputs = [*client.inputs({"a": a}), placed_input(client, "b", b.shape, byte_size=b.nbytes)]
    outputs = [placed_output(client, "sum", byte_size=32, offset=512), client.triton.InferRequestedOutput("product")]
    for given in (inputs, inputs[::-1]):
        result = client.client.infer("affine", given, outputs=outputs)
        assert result.as_numpy("product").shape == (2, 5)
        assert shm.get_contents_as_numpy(region, np.float32, (2, 4), 512).tolist() == [[5] * 4] * 2


def test_strings(client: Client, region: Any) -> None:
    given = [b"a", b"", b"\xff\xfe"]
    data = b"".join([len(x).to_bytes(4, "little") + x for x in given])
    shm.set_shared_memory_region(region, [np.frombuffer(data, np.uint8)])
    x, y = placed_input(client, shape=[3], kind="BYTES", byte_size=len(data)), placed_output(client, offset=256)
    client.client.infer("strings", [x], outputs=[y])
    assert shm.get_contents_as_numpy(region, np.object_, [3], 256).tolist() == given


def test_a_step_that_cannot_be_answered_does_not_run(client: Client, region: Any) -> None:
    x = {"x": np.zeros((1, 4), np.float32)}
    assert client.infer("count", x, sequence_id=1, sequence_start=True)["y"][0, 0] == 1
    for wrong in ({"byte_size": 15}, {"offset": 4096, "byte_size": 16}, {"region_name": "other", "byte_size": 16}):
        with pytest.raises(Exception, match=r"has 16 bytes|has no 16 bytes|no region"):
            client.infer("count", x, sequence_id=1, outputs=[placed_output(client, **wrong)])
    assert client.infer("count", x, sequence_id=1, sequence_end=True)["y"][0, 0] == 2


@pytest.mark.parametrize("interface", INTERFACES)
def test_wrong_places(server: Serving, interface: str) -> None:
    with server.client(interface) as client, memory(4096) as (key, _):
        client.client.register_system_shared_memory("all", key, 2048, 1024)
        infer = client.client.infer
        for place, status, text in (
            ({"region_name": "other"}, "NOT_FOUND", "no region 'other'"),
            ({"offset": 2048}, "INVALID_ARGUMENT", "has no 24 bytes from byte 2048 on"),
            ({"offset": 2040}, "INVALID_ARGUMENT", "has no 24 bytes"),
            ({"offset": 2**62 - 1}, "INVALID_ARGUMENT", "has no 24 bytes"),
            ({"offset": -1}, "INVALID_ARGUMENT", "a string and a number"),
            ({"byte_size": -1}, "INVALID_ARGUMENT", "a string and a number"),
            ({"byte_size": 20}, "INVALID_ARGUMENT", "needs 24 bytes, but has 20"),
        ):
            assert text in fails(status, infer, "echo", [placed_input(client, **place)])
        given = client.inputs({"x": X})
        for place, status, text in (
            ({"region_name": "other"}, "NOT_FOUND", "no region 'other'"),
            ({"offset": 2040}, "INVALID_ARGUMENT", "has no 24 bytes"),
            ({"byte_size": 23}, "INVALID_ARGUMENT", "output 'y' has 24 bytes, but shared_memory_byte_size is 23"),
        ):
            assert text in fails(status, infer, "echo", given, outputs=[placed_output(client, **place)])
        with_classes = client.triton.InferRequestedOutput("y", class_count=1)
        with suppress(Exception):  # tritonclient refuses it itself
            with_classes.set_shared_memory("all", BYTES)
            assert "classes of output 'y'" in fails("INVALID_ARGUMENT", infer, "echo", given, outputs=[with_classes])
        client.client.unregister_system_shared_memory("all")


def test_tensors_with_data_and_a_place(server: Serving) -> None:
    place = {"shared_memory_region": "all", "shared_memory_byte_size": 12}
    x = {"name": "x", "datatype": "FP32", "shape": [1, 3]}
    for more, text in (
        ({"data": [1, 2, 3], "parameters": place}, "has data and a place"),
        ({"parameters": place | {"binary_data_size": 0}}, "has data and a place"),
        ({"parameters": {"shared_memory_region": "all"}}, "needs shared_memory_region and"),
        ({"parameters": {"shared_memory_byte_size": 12}}, "needs shared_memory_region and"),
        ({"parameters": place | {"shared_memory_offset": 1.5}}, "needs shared_memory_region and"),
        ({"parameters": place | {"shared_memory_region": 5}}, "needs shared_memory_region and"),
    ):
        status, _, body = post(server, "/v2/models/echo/infer", {"inputs": [x | more]})
        assert status == 400 and text in json.loads(body)["error"]
    with Wire(server) as wire:
        request = service_pb2.ModelInferRequest(model_name="echo")
        tensor = request.inputs.add(name="x", datatype="FP32", shape=[1, 3])
        tensor.contents.fp32_contents.extend([1, 2, 3])
        set_parameters(tensor, place)
        assert "has contents and a place" in wire.call(request).text
        both = message(model="echo")
        set_parameters(both.inputs.add(name="x", datatype="FP32", shape=[1, 3]), place)
        both.raw_input_contents.append(bytes(12))
        assert "has 0 inputs, but raw contents of 1" in wire.call(both).text


# ---- regions


def regions(client: Client) -> dict[str, Any]:
    """Return the status of all regions by name."""
    if client.interface == "REST":
        return {region["name"]: region for region in client.client.get_system_shared_memory_status()}
    found = client.client.get_system_shared_memory_status().regions
    return {
        name: {"name": x.name, "key": x.key, "offset": x.offset, "byte_size": x.byte_size} for name, x in found.items()
    }


def test_registering(client: Client) -> None:
    api = client.client
    with memory(4096) as (key, _):
        api.register_system_shared_memory("one", key, 4096)
        api.register_system_shared_memory("two", key.removeprefix("/"), 96, 4000)
        assert regions(client) == {
            "one": {"name": "one", "key": key, "offset": 0, "byte_size": 4096},
            "two": {"name": "two", "key": key.removeprefix("/"), "offset": 4000, "byte_size": 96},
        }
        assert "'two'" in fails("ALREADY_EXISTS", api.register_system_shared_memory, "two", key, 96)
        assert "no region 'three'" in fails("NOT_FOUND", api.get_system_shared_memory_status, "three")
        api.unregister_system_shared_memory("three")
        api.unregister_system_shared_memory("one")
        assert list(regions(client)) == ["two"]
        api.unregister_system_shared_memory()
        assert regions(client) == {}


def link(path: Path, target: str) -> None:
    path.symlink_to(target)


def listen(path: Path, _: str) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def folder(path: Path, _: str) -> None:
    path.mkdir()


def fifo(path: Path, _: str) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("make", [link, listen, folder, fifo])
def test_files_that_are_no_shared_memory(client: Client, tmp_path: Path, make: Callable[[Path, str], None]) -> None:
    """A link does not lead out of the folder."""
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(4096))
    key = some_key()
    path = Path(FOLDER + key)
    make(path, str(secret))
    try:
        text = fails("INVALID_ARGUMENT", client.client.register_system_shared_memory, "r", key, 16)
        assert key in text and str(tmp_path) not in text
    finally:
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    "key", ["", "/", "//x", "/a/b", "../etc/passwd", "/../etc/passwd", "..", "/.", "x\0y", "x" * 256, "/\ud800"]
)
def test_keys_that_are_no_names(server: Serving, key: str) -> None:
    status, _, body = post(
        server, "/v2/systemsharedmemory/region/r/register", {"key": key, "offset": 0, "byte_size": 16}
    )
    assert status == 400, body


@pytest.mark.parametrize(
    ("offset", "size"),
    [(0, 4097), (4096, 1), (4000, 97), (-1, 16), (0, 0), (0, -1), (2**64, 16), (0, 2**64), (1.5, 16), (True, 16)],
)
def test_parts_that_an_object_does_not_have(server: Serving, offset: Any, size: Any) -> None:
    with memory(4096) as (key, _):
        status, _, body = post(
            server, "/v2/systemsharedmemory/region/r/register", {"key": key, "offset": offset, "byte_size": size}
        )
    assert status == 400, body


def test_requests_that_are_no_registrations(server: Serving) -> None:
    for body in (
        {},
        {"key": 5, "byte_size": 1},
        {"key": "x"},
        {"key": "x", "byte_size": "1"},
        {"key": "x", "offset": 0},
    ):
        assert post(server, "/v2/systemsharedmemory/region/r/register", body)[0] == 400


def test_objects_that_shrink(client: Client, region: Any) -> None:
    """Their owner may make them smaller at any time. The server notices, and does not make them larger."""
    file = Path(FOLDER + region._shm_key)
    os.truncate(file, 16)
    text = fails("INVALID_ARGUMENT", client.client.infer, "echo", [placed_input(client)])
    assert "has become smaller" in text
    given = client.inputs({"x": X})
    text = fails("INVALID_ARGUMENT", client.client.infer, "echo", given, outputs=[placed_output(client)])
    assert "has become smaller" in text and file.stat().st_size == 16
    assert client.infer("echo", {"x": X})["y"].shape == (2, 3)


def test_memory_that_the_system_does_not_have(client: Client, region: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object takes memory when it is written for the first time."""

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    given = client.inputs({"x": X})
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        text = fails("RESOURCE_EXHAUSTED", client.client.infer, "echo", given, outputs=[placed_output(client)])
    assert "No space left" in text
    client.client.infer("echo", given, outputs=[placed_output(client)])


def test_a_step_that_has_run_is_answered_in_its_response(
    client: Client, region: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If its output cannot be written, an error would hide that the state has moved."""

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    given, output = client.inputs({"x": np.zeros((1, 4), np.float32)}), placed_output(client, byte_size=16)
    client.client.infer("count", given, outputs=[output], sequence_id=1, sequence_start=True)
    assert shm.get_contents_as_numpy(region, np.float32, (1, 4))[0, 0] == 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        second = client.client.infer("count", given, outputs=[output], sequence_id=1)
    assert second.as_numpy("y")[0, 0] == 2
    last = client.client.infer("count", given, outputs=[output], sequence_id=1, sequence_end=True)
    assert shm.get_contents_as_numpy(region, np.float32, (1, 4))[0, 0] == 3 and last.get_output("y") is not None


def test_large_inputs_are_limited_like_bodies(client: Client) -> None:
    rows = MIB // 12 + 1
    with memory(2 * MIB) as (key, _):
        client.client.register_system_shared_memory("large", key, 2 * MIB)
        x = placed_input(client, shape=(rows, 3), region_name="large", byte_size=12 * rows)
        assert "more than 1048576 bytes" in fails("RESOURCE_EXHAUSTED", client.client.infer, "echo", [x])


def test_files_are_closed(server: Serving) -> None:
    """A file is closed when its region is unregistered, and no inference uses it."""

    def count() -> int:
        return len(os.listdir("/dev/fd"))

    registry = SharedMemory(True, server.server.held, MIB)
    with memory(64) as (key, _):
        before = count()
        registry.register("r", key, 0, 64)
        used = registry._regions["r"]
        with pytest.raises(Exception, match="does not have"):
            registry.register("s", key, 0, 65)
        registry.unregister()
        assert count() == before + 1 and used.read(0, 64) == bytes(64)
        del used
        assert count() == before


# ---- where there is none


@pytest.mark.parametrize("interface", INTERFACES)
def test_it_is_off_by_default(repository: Path, interface: str) -> None:
    with serving(repository) as server, server.client(interface) as client, memory(64) as (key, _):
        api = client.client
        for call, *arguments in (
            (api.register_system_shared_memory, "r", key, 64),
            (api.unregister_system_shared_memory,),
            (api.get_system_shared_memory_status,),
            (api.infer, "echo", [placed_input(client)]),
        ):
            assert "--shared-memory" in fails("UNIMPLEMENTED", call, *arguments)
        given = client.inputs({"x": X})
        assert "--shared-memory" in fails("UNIMPLEMENTED", api.infer, "echo", given, outputs=[placed_output(client)])
        with server.client("REST") as rest:
            assert "system_shared_memory" not in rest.client.get_server_metadata()["extensions"]


def test_the_memory_of_cards_is_not_supported(client: Client, server: Serving) -> None:
    api = client.client
    for call, *arguments in (
        (api.register_cuda_shared_memory, "r", b"aGFuZGxl", 0, 64),
        (api.unregister_cuda_shared_memory,),
        (api.unregister_cuda_shared_memory, "r"),
        (api.get_cuda_shared_memory_status,),
        (api.get_cuda_shared_memory_status, "r"),
    ):
        assert "CUDA shared memory is not supported" in fails("UNIMPLEMENTED", call, *arguments)
    with server.client("REST") as rest:
        assert "system_shared_memory" in rest.client.get_server_metadata()["extensions"]
