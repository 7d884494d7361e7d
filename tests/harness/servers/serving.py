"""A server in this process, on a thread of its own; and its clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from ml_dtypes import bfloat16
from tritonclient.utils import InferenceServerException

import ovgpu as ov
from ovgpu.serve.engines import EngineOptions
from ovgpu.serve.errors import Status
from ovgpu.serve.models import OpenEngine
from ovgpu.serve.server import Server, ServerOptions

INTERFACES = ("REST", "gRPC")
SECONDS = 60.0  # that a test waits at most

Inputs = dict[str, Any]


@dataclass
class Serving:
    """A running server: its ports on loopback."""

    server: Server
    thread: threading.Thread

    @property
    def http(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.server.grpc_port}"

    def stop(self) -> None:
        self.server.stop()
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()

    @contextmanager
    def client(self, interface: str) -> Iterator[Client]:
        with Client(interface, self.http if interface == "REST" else self.grpc) as client:
            yield client


@contextmanager
def serving(
    path: Path,
    device: str = "CPU",
    engine: dict[str, Any] | None = None,
    opener: OpenEngine | None = None,
    **options: Any,
) -> Iterator[Serving]:
    """Serve the models under a path while the block runs."""
    engine_options = EngineOptions(device, **(engine or {}))
    server = Server(ServerOptions(path, engine=engine_options, port=0, grpc_port=0, **options), opener)
    started = threading.Event()
    errors: list[BaseException] = []

    async def run() -> None:
        ready = asyncio.Event()
        serving = asyncio.create_task(server.run(ready))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
        started.set()
        await serving

    def work() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            errors.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert started.wait(SECONDS)
    if errors:
        raise errors[0]
    found = Serving(server, thread)
    try:
        yield found
    finally:
        found.stop()
    if errors:
        raise errors[0]


class Client:
    """tritonclient, through REST or gRPC, with the same methods for both."""

    def __init__(self, interface: str, address: str, **options: Any) -> None:
        self.interface = interface
        self.triton: Any = http_client if interface == "REST" else grpc_client
        self.client = self.triton.InferenceServerClient(address, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()

    def inputs(self, arrays: Inputs) -> list[Any]:
        """Return the inputs of an inference from arrays by name."""
        found = []
        for name, array in arrays.items():
            given = self.triton.InferInput(name, list(array.shape), datatype(array))
            given.set_data_from_numpy(array)
            found.append(given)
        return found

    def infer(self, model: str, arrays: Inputs, version: str = "", **options: Any) -> dict[str, Any]:
        """Run an inference, and return the outputs by name."""
        return self.outputs(self.client.infer(model, self.inputs(arrays), version, **options))

    def outputs(self, result: Any) -> dict[str, Any]:
        """Return the outputs in a result by name."""
        response = result.get_response()
        names = (
            [x["name"] for x in response["outputs"]] if self.interface == "REST" else [x.name for x in response.outputs]
        )
        return {name: result.as_numpy(name) for name in names}


def datatype(array: Any) -> str:
    """Return the protocol's name of an array's dtype."""
    if array.dtype.kind in "OSU":
        return "BYTES"
    if array.dtype == bfloat16:
        return "BF16"
    return (
        "BOOL"
        if array.dtype == bool
        else "FP" * (array.dtype.kind == "f")
        + "U" * (array.dtype.kind == "u")
        + ("INT" if array.dtype.kind in "iu" else "")
        + str(8 * array.dtype.itemsize)
    )


def write(folder: Path, model: ov.Model | tuple[bytes, bytes], name: str = "model", version: int = 1) -> Path:
    """Write a model into a repository, and return the folder of its version."""
    target = folder / name / str(version)
    target.mkdir(parents=True, exist_ok=True)
    if isinstance(model, tuple):
        (target / "model.bin").write_bytes(model[1])
        (target / "model.xml").write_bytes(model[0])
    else:
        ov.save_model(model, target / "model.xml", compress_to_fp16=False)
    return target


def expected(model: ov.Model, inputs: Inputs, device: str = "CPU") -> dict[str, Any]:
    """Return what a single request computes."""
    found = ov.Core().compile_model(model, device)(inputs)
    return {min(port.get_names()): np.asarray(value) for port, value in found.items()}


def status(error: InferenceServerException) -> str:
    """Return an error's status as gRPC names it."""
    names = {str(status.value): status.name for status in Status}
    return names.get(str(error.status()), str(error.status()).removeprefix("StatusCode."))


def fails(wanted: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """Check that a call fails with a status, and return its message."""
    with pytest.raises(InferenceServerException) as error:
        call(*arguments, **options)
    assert status(error.value) == wanted, error.value.message()
    text: str = error.value.message()
    return text
