"""Requests that no library of a client would send."""

from __future__ import annotations

import gc
import http.client
import json
import socket
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from ovgpu.serve.errors import Status
from tests.harness.servers.serving import INTERFACES, SECONDS, Serving

NAMES = {str(status.value): status.name for status in Status} | {"413": "RESOURCE_EXHAUSTED", "415": "INVALID_ARGUMENT"}
MIB = 1 << 20
SERVICE = "/inference.GRPCInferenceService/"
JSON_INPUT = {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
FIELDS = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}


@dataclass(frozen=True)
class Answer:
    """Status of a call by the name that gRPC has for it, its error, and seconds after which to try again."""

    status: str
    text: str = ""
    retry: float | None = None
    content: Any = None


@dataclass(frozen=True)
class Input:
    """Input as it is sent, right or wrong."""

    raw: bytes = bytes(12)
    shape: Any = (1, 3)
    datatype: Any = "FP32"
    name: Any = "x"
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Output:
    """Output that is asked for."""

    name: Any = "y"
    parameters: dict[str, Any] = field(default_factory=dict)


class Wire:
    """Client of a server that sends anything."""

    def __init__(self, server: Serving, token: str = "") -> None:
        self.port = server.server.port
        self.channel = grpc.insecure_channel(
            server.grpc, [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        )
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)
        self.token = token

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.channel.close()

    def send(
        self,
        interface: str,
        *inputs: Input,
        model: str = "echo",
        outputs: tuple[Output, ...] = (),
        parameters: dict[str, Any] | None = None,
    ) -> Answer:
        """Ask for an inference through an interface."""
        if interface == "gRPC":
            return self.call(message(*inputs, model=model, outputs=outputs, parameters=parameters))
        head, raw = body(*inputs, outputs=outputs, parameters=parameters)
        return self.post(head + raw, {"Inference-Header-Content-Length": str(len(head))}, model)

    def post(self, body: Any, headers: dict[str, str] | None = None, model: str = "echo", path: str = "") -> Answer:
        """Post a body: bytes, an iterator of chunks, or an object to be sent as JSON."""
        data = body if isinstance(body, (bytes, bytearray)) or hasattr(body, "__next__") else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        connection.request("POST", path or f"/v2/models/{model}/infer", data, headers or {})
        response = connection.getresponse()
        content = response.read()
        connection.close()
        retry = response.headers["Retry-After"]
        text = "" if response.status == 200 else json.loads(content)["error"]
        return Answer(NAMES[str(response.status)], text, retry and float(retry), content)

    def check_served(self) -> None:
        """Check that a correct request is answered by both interfaces."""
        for interface in INTERFACES:
            assert self.send(interface, Input()).status == "OK"

    def open(self, *parts: bytes) -> socket.socket:
        """Connect to the port of REST, and send bytes."""
        connection = socket.create_connection(("127.0.0.1", self.port), SECONDS)
        for part in parts:
            connection.sendall(part)
        return connection

    def call(self, request: Any, method: str = "ModelInfer") -> Answer:
        """Call a method of gRPC with a message, or with the bytes of one."""
        data = request if isinstance(request, bytes) else request.SerializeToString()
        parse = service_pb2.ModelInferResponse.FromString if method == "ModelInfer" else None
        try:
            found = self.channel.unary_unary(SERVICE + method, None, parse)(data, timeout=SECONDS)
            return Answer("OK", content=found)
        except grpc.RpcError as error:
            pushback = dict(error.trailing_metadata() or ()).get("grpc-retry-pushback-ms")
            return Answer(error.code().name, error.details(), pushback and int(pushback) / 1000)

    def stream(self, *requests: Any) -> list[Any]:
        """Return the responses of a stream of messages, or of the bytes of some, and its status."""
        data = [request if isinstance(request, bytes) else request.SerializeToString() for request in requests]
        call = self.channel.stream_stream(
            SERVICE + "ModelStreamInfer", None, service_pb2.ModelStreamInferResponse.FromString
        )
        found: list[Any] = []
        try:
            for response in call(iter(data), timeout=SECONDS):
                found.append(response)
        except grpc.RpcError as error:
            return [*found, error.code().name]
        return [*found, "OK"]


def body(
    *inputs: Input, outputs: tuple[Output, ...] = (), parameters: dict[str, Any] | None = None
) -> tuple[bytes, bytes]:
    """Return the JSON of a request, and the bytes behind it."""
    head = {
        "inputs": [
            {
                "name": x.name,
                "datatype": x.datatype,
                "shape": x.shape,
                "parameters": {"binary_data_size": len(x.raw), **x.parameters},
            }
            for x in inputs
        ],
        "outputs": [{"name": x.name, "parameters": x.parameters} for x in outputs],
        "parameters": parameters or {},
    }
    return json.dumps(head).encode(), b"".join([x.raw for x in inputs])


def message(
    *inputs: Input, model: str = "echo", outputs: tuple[Output, ...] = (), parameters: dict[str, Any] | None = None
) -> Any:
    """Return a ModelInferRequest."""
    found = service_pb2.ModelInferRequest(model_name=model, raw_input_contents=[x.raw for x in inputs])
    set_parameters(found, parameters or {})
    for x in inputs:
        set_parameters(found.inputs.add(name=x.name, datatype=x.datatype, shape=x.shape), x.parameters)
    for y in outputs:
        set_parameters(found.outputs.add(name=y.name), y.parameters)
    return found


def set_parameters(found: Any, parameters: dict[str, Any]) -> None:
    """Set the parameters of a message."""
    for name, value in parameters.items():
        setattr(found.parameters[name], FIELDS[type(value)], value)


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is True."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "the condition has never become True"
        time.sleep(0.002)


@contextmanager
def little_memory(peak: int = 8 * MIB, kept: int = MIB) -> Iterator[None]:
    """Check how much memory the block takes, and how much of it is still taken afterwards.

    Cycles of garbage count as taken: a server may run for long before they are collected.
    """
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield
        until(lambda: tracemalloc.get_traced_memory()[0] - before < kept)
        assert tracemalloc.get_traced_memory()[1] - before < peak
    finally:
        tracemalloc.stop()
        gc.enable()
