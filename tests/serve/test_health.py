"""gRPC's health checking protocol: single checks, and watchers that hear of changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ovgpu.serve import health_calls
from tests.harness.servers.serving import SECONDS, Serving, serving, write
from tests.serve.http2 import Http2
from tests.serve.test_access import TOKEN
from tests.serve.test_models import adding
from tests.serve.test_readiness import write_broken
from tests.serve.wire import until

X = np.ones((1, 4), np.float32)
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"

messages: Any = health_pb2


@contextmanager
def health(server: Serving) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield health_pb2_grpc.HealthStub(channel)


def check(stub: Any, service: str = "") -> str:
    """Return the status of a service, or the code of an error."""
    try:
        return name(stub.Check(messages.HealthCheckRequest(service=service), timeout=SECONDS))
    except grpc.RpcError as error:
        return str(error.code().name)


def watch(stub: Any, service: str = "") -> Iterator[str]:
    """Yield the status of a service when it changes, and at last the code of the stream's end."""
    call = stub.Watch(messages.HealthCheckRequest(service=service), timeout=SECONDS)
    try:
        yield from map(name, call)
    except grpc.RpcError as error:
        yield error.code().name
    yield call.code().name


def name(response: Any) -> str:
    found: str = messages.HealthCheckResponse.ServingStatus.Name(response.status)
    return found


def test_the_server_and_its_models_are_services(tmp_path: Path) -> None:
    """A probe of Kubernetes sends the message of a Check with ``service``, by default empty, and no token."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    write(tmp_path / "models", adding(1), "add")
    write_broken(tmp_path / "models")
    with serving(tmp_path / "models", token_file=token, poll_seconds=0) as server, health(server) as stub:
        assert check(stub) == check(stub, "bad") == check(stub, "inference.GRPCInferenceService") == "NOT_SERVING"
        assert check(stub, "add") == "SERVING"
        assert check(stub, "nothing") == "NOT_FOUND"
        headers = {"authorization": f"Bearer {TOKEN}"}
        with server.client("gRPC") as client:
            client.client.unload_model("bad", headers=headers)
            assert check(stub) == check(stub, "inference.GRPCInferenceService") == "SERVING"
            assert check(stub, "bad") == "NOT_SERVING"


def test_watchers_hear_of_changes(tmp_path: Path) -> None:
    write(tmp_path, adding(1), "add")
    with serving(tmp_path, poll_seconds=0) as server, health(server) as stub, server.client("REST") as client:
        whole, model, again, none = watch(stub), watch(stub, "add"), watch(stub, "add"), watch(stub, "nothing")
        assert [next(each) for each in (whole, model, again, none)] == ["SERVING"] * 3 + ["SERVICE_UNKNOWN"]
        model.close()  # others still hear
        client.client.unload_model("add")
        assert next(again) == "NOT_SERVING"
        write(tmp_path, adding(1), "nothing")
        client.client.load_model("nothing")
        assert next(status for status in none if status != "NOT_SERVING") == "SERVING"  # it may be seen while it loads
        server.server.stop()
        assert list(whole) == ["NOT_SERVING", "OK"]
        assert list(none) == ["NOT_SERVING", "OK"] and list(again) == ["OK"]


def test_while_the_server_stops_it_does_not_serve(tmp_path: Path) -> None:
    write(tmp_path, adding(1), "add")
    with serving(tmp_path) as server, health(server) as stub:
        found = server.server.service
        assert check(stub) == check(stub, "add") == "SERVING"
        found.draining = True
        assert check(stub) == check(stub, "add") == "NOT_SERVING"
        found.draining = False
        with found.models.current["add"].admitted():  # the server waits for it
            server.server.stop()
            until(lambda: not found.accepting)
            assert check(stub) == check(stub, "add") == "NOT_SERVING"


def test_calls_of_health_have_limits_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come from anyone: those that hang do not keep others from inferences, nor hold memory."""
    write(tmp_path, adding(1), "add")
    with serving(tmp_path, max_calls=4) as server, health(server) as stub, health(server) as watching:
        free = server.server.held.free
        watchers = [watch(watching, "add") for _ in range(2)]
        assert [next(watcher) for watcher in watchers] == ["SERVING"] * 2
        assert check(stub) == "UNAVAILABLE" and list(watch(stub)) == ["UNAVAILABLE"] * 2
        with server.client("gRPC") as client:
            assert client.infer("add", {"x": X})["y"][0, 0] == 2
        watchers.pop().close()
        until(lambda: check(stub) == "SERVING")
        monkeypatch.setattr(health_calls, "MESSAGE_SECONDS", 0.05)
        assert asyncio.run(hanging(server.grpc)) == "DEADLINE_EXCEEDED"
        assert server.server.held.free == free


def test_a_host_that_floods_the_server_leaves_calls_to_others(tmp_path: Path) -> None:
    """It begins calls, and sends no messages."""
    write(tmp_path, adding(1), "add")
    with serving(tmp_path, max_calls=64) as server, health(server) as stub, ExitStack() as stack:
        flood = stack.enter_context(closing(Http2(server.server.grpc_port, host="127.0.0.2")))
        for _ in range(200):
            flood.call(CHECK)
        for _ in range(20):
            assert check(stub) == "SERVING"


async def hanging(address: str) -> str:
    """Return the code of a Check whose message never comes."""
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_unary(CHECK)()
        return str((await call.code()).name)


def test_messages_that_are_none(tmp_path: Path) -> None:
    write(tmp_path, adding(1), "add")
    with serving(tmp_path) as server, grpc.insecure_channel(server.grpc) as channel:
        for sent in ([b"\xff"], []):
            for call in (channel.stream_unary(CHECK), channel.stream_stream(WATCH)):
                with pytest.raises(grpc.RpcError) as error:
                    list(call(iter(sent), timeout=SECONDS))
                assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
