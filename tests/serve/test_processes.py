"""Servers with several front-end processes: what they answer, and what is left when one of the processes dies."""

from __future__ import annotations

import asyncio
import errno
import gc
import http.client
import json
import os
import re
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2

import ovgpu as ov
from ovgpu.serve import front_ends
from ovgpu.serve.front_ends import FrontEnds
from ovgpu.serve.link import SHARED, Link
from ovgpu.serve.server import Server, ServerOptions
from tests.batching.nets import SIZE, sums
from tests.harness.ir import Net
from tests.harness.servers.serving import INTERFACES, SECONDS, Client, Serving, fails, serving, write
from tests.serve.test_access import call
from tests.serve.test_drain import OWN_CONNECTION
from tests.serve.test_inference import echo
from tests.serve.test_limits import Gate
from tests.serve.test_predict import strings
from tests.serve.test_stop import process
from tests.serve.test_tokens import ALL, FILE, INFER, READ, bearer
from tests.serve.wire import JSON_INPUT, MIB, Input, Output, Wire, message, until

PROCESSES = 2
T = TypeVar("T")
ESTABLISHED, LISTEN = "01", "0A"  # states of a socket in /proc/net/tcp
X = np.ones((1, SIZE), np.float32)


def owners(port: int, state: str, pids: Iterable[int]) -> Counter[int]:
    """Return the numbers of sockets with a local port, and a state, of each process."""
    found, inodes = Counter[int](), set[str]()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1].endswith(f":{port:04X}") and fields[3] == state:
                inodes.add(f"socket:[{fields[9]}]")
    for pid in pids:
        with suppress(OSError):  # it has ended
            for file in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    found[pid] += os.readlink(file) in inodes
    return +found


def processes(port: int, models: int | None = None) -> set[int]:
    """Return the front ends of a server: the children of the process of the models that have its port of REST."""
    children = set[int]()
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            if int(file.read_text().rpartition(") ")[2].split()[1]) == (models or os.getpid()):
                children.add(int(file.parent.name))
    return set(owners(port, LISTEN, children))


def alive(pid: int) -> bool:
    """Return whether a process runs. One that has ended, and has not been waited for, does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def of_each(server: Serving, port: int, connect: Callable[[], T]) -> dict[int, T]:
    """Return what ``connect`` returns, by the front end that has its connection: one of each."""
    found, pids = dict[int, T](), processes(server.server.port)
    for _ in range(100):
        before = owners(port, ESTABLISHED, pids)
        connected = connect()
        until(lambda before=before: bool(owners(port, ESTABLISHED, pids) - before))
        (owner,) = owners(port, ESTABLISHED, pids) - before
        found[owner] = connected
        if len(found) == PROCESSES:
            return found
    raise AssertionError("one process has all connections")


def clients(server: Serving, interface: str, stack: ExitStack) -> dict[int, Client]:
    """Return a client of each front end."""

    def connect() -> Client:
        options = {} if interface == "REST" else {"channel_args": OWN_CONNECTION}
        client = Client(interface, server.http if interface == "REST" else server.grpc, **options)
        client.client.get_server_metadata() if interface == "REST" else client.client.is_server_live()
        return stack.enter_context(client)

    return of_each(server, server.server.port if interface == "REST" else server.server.grpc_port, connect)


def links(server: Serving) -> set[Link]:
    """Return the connections of a server to its front ends."""
    interfaces = server.server._interfaces
    assert isinstance(interfaces, FrontEnds)
    return set(interfaces._started)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    models = {
        "echo": echo("f32"),
        "f32": positive("f32"),
        "bf16": positive("bf16"),
        "strings": strings(),
        "sums": sums(),
    }
    for name, model in models.items():
        write(folder, model, name)
    return folder


def positive(dtype: str) -> ov.Model:
    """Rows of any length, with 0 for negative values."""
    net = Net("positive")
    net.result(net.layer("Relu", "opset1", [net.parameter(dtype, (-1, -1), "x")], names=["y"]))
    return ov.Core().read_model(*net.build())


@pytest.fixture(scope="module")
def one(repository: Path) -> Iterator[Serving]:
    """A server of one process."""
    with serving(repository, body_mib=4, json_mib=1, held_mib=16, shared_memory=True) as found:
        yield found


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Serving]:
    """A server of two front ends, each with 1 MiB of shared memory in each direction."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(front_ends, "SHARED_BYTES", MIB)
        with serving(repository, processes=PROCESSES, body_mib=4, json_mib=1, held_mib=16, shared_memory=True) as found:
            yield found


# ---- answers


@pytest.mark.parametrize("interface", INTERFACES)
def test_each_front_end_infers(server: Serving, interface: str) -> None:
    numbers = np.random.default_rng(0)
    with ExitStack() as stack:
        for client in clients(server, interface, stack).values():
            for model, x in (
                ("echo", numbers.random((2, 3), np.float32)),
                ("strings", np.array([b"a", b"\0\xff"], object)),
            ):
                (found,) = client.infer(model, {"x": x}).values()
                np.testing.assert_array_equal(found, x[:, ::-1] if model == "echo" else x)


def test_streams(server: Serving) -> None:
    with Wire(server) as wire:
        *answers, status = wire.stream(*[message(Input(np.float32([i] * 3).tobytes())) for i in range(8)], b"\xff")
    values = [answer.infer_response.raw_output_contents[0] for answer in answers]
    assert values == [np.float32([i] * 3).tobytes() for i in range(8)] and status == "INVALID_ARGUMENT"


@pytest.mark.parametrize("interface", INTERFACES)
def test_steps_of_a_sequence_may_go_through_any_front_end(server: Serving, interface: str) -> None:
    with ExitStack() as stack:
        both = list(clients(server, interface, stack).values())
        for step in range(1, 7):
            outputs = both[step % 2].infer(
                "sums", {"x": X}, sequence_id=interface, sequence_start=step == 1, sequence_end=step == 6
            )
            assert outputs["steps"] == [step]


CALLS: dict[str, Callable[[Wire], Any]] = {
    "no model": lambda wire: [wire.send(interface, Input(), model="none") for interface in INTERFACES],
    "wrong shape": lambda wire: [wire.send(interface, Input(bytes(8), (1, 2))) for interface in INTERFACES],
    "wrong type": lambda wire: [wire.send(interface, Input(datatype="INT32")) for interface in INTERFACES],
    "no input": lambda wire: [wire.send(interface, Input(name="z")) for interface in INTERFACES],
    "no output": lambda wire: [wire.send(interface, Input(), outputs=(Output("z"),)) for interface in INTERFACES],
    "no sequence": lambda wire: [
        wire.send(interface, Input(bytes(4 * SIZE), (1, SIZE)), model="sums", parameters=parameters)
        for interface in INTERFACES
        for parameters in ({}, {"sequence_id": 99})
    ],
    "deadline": lambda wire: [wire.send(interface, Input(), parameters={"timeout": 1}) for interface in INTERFACES],
    "no JSON": lambda wire: wire.post(b"{"),
    "large JSON": lambda wire: wire.post(bytes(MIB + 1)),
    "large body": lambda wire: wire.post(bytes(5 * MIB), {"Inference-Header-Content-Length": "2"}),
    "many values": lambda wire: wire.post(b"[" + b"0," * (1 << 18) + b"0]"),
    "encoding": lambda wire: wire.post(b"", {"Content-Encoding": "br"}),
    "other site": lambda wire: wire.post({"inputs": [JSON_INPUT]}, {"Origin": "http://elsewhere.invalid"}),
    "other host": lambda wire: wire.post({"inputs": [JSON_INPUT]}, {"Host": "elsewhere.invalid"}),
    "no route": lambda wire: wire.post(b"", path="/v3"),
    "predict": lambda wire: [
        (answer.status, answer.text, answer.content)
        for data in ({"instances": [[1, 2, 3]]}, {"instances": [[1]]}, {"inputs": {"z": 1}}, {})
        for answer in [wire.post(data, path="/v1/models/echo:predict")]
    ],
    "large predict": lambda wire: wire.post(b"[" + b"0," * (1 << 18) + b"0]", path="/v1/models/echo:predict"),
    "index": lambda wire: [wire.post(data, path="/v2/repository/index") for data in ({}, {"ready": True}, [])],
    "load": lambda wire: [
        wire.post({}, path=f"/v2/repository/models/{name}/{verb}") for name in ("none", "bf16") for verb in ("load",)
    ],
    "memory": lambda wire: wire.post({"key": "none"}, path="/v2/systemsharedmemory/region/r/register"),
    "log": lambda wire: [wire.post(data, path="/v2/logging") for data in ({"log_info": False}, {"log_info": 3}, {})],
    "trace": lambda wire: wire.post({}, path="/v2/trace/setting"),
    "gRPC": lambda wire: [
        wire.call(request, method)
        for method, request in (
            ("ServerLive", service_pb2.ServerLiveRequest()),
            ("ServerReady", service_pb2.ServerReadyRequest()),
            ("ServerMetadata", service_pb2.ServerMetadataRequest()),
            *[(f"Model{what}", b"\x0a\x04none") for what in ("Ready", "Metadata", "Config", "Statistics", "Infer")],
            *[(f"Model{what}", b"\x0a\x04echo") for what in ("Ready", "Metadata", "Config", "Infer")],
            ("RepositoryIndex", service_pb2.RepositoryIndexRequest()),
            ("RepositoryModelLoad", service_pb2.RepositoryModelLoadRequest(model_name="none")),
            ("SystemSharedMemoryStatus", service_pb2.SystemSharedMemoryStatusRequest(name="none")),
            ("CudaSharedMemoryStatus", service_pb2.CudaSharedMemoryStatusRequest()),
            ("LogSettings", service_pb2.LogSettingsRequest(settings={"none": {"bool_param": True}})),
            ("Unknown", b""),
            ("ModelMetadata", b"\xff"),
        )
    ],
}


@pytest.mark.parametrize("name", CALLS)
def test_other_calls_and_errors_are_those_of_one_process(one: Serving, server: Serving, name: str) -> None:
    with Wire(one) as wire:
        wanted = CALLS[name](wire)
    with Wire(server) as wire:
        assert CALLS[name](wire) == wanted
    answer = call(server, "POST", "/v2/logging", {}, json.dumps({"log_info": True}))
    assert answer[0] == 200


@pytest.mark.parametrize(
    "path",
    ["", "health/ready", "models/echo", "models/echo/ready", "models/echo/config", "models/none", "logging", "no"],
)
def test_documents_are_those_of_one_process(one: Serving, server: Serving, path: str) -> None:
    status, headers, body = call(one, "GET", f"/v2/{path}".rstrip("/"), {})
    found, found_headers, found_body = call(server, "GET", f"/v2/{path}".rstrip("/"), {})
    assert (found, found_body) == (status, body)
    assert sorted(found_headers.keys()) == sorted(headers.keys())


def test_health_checking(server: Serving) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", "echo"):
            assert stub.Check(health_pb2.HealthCheckRequest(service=name)).status == 1
            assert next(stub.Watch(health_pb2.HealthCheckRequest(service=name))).status == 1
        with pytest.raises(grpc.RpcError, match="there is no model 'none'"):
            stub.Check(health_pb2.HealthCheckRequest(service="none"))


# ---- shared memory


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_large_arrays_are_in_shared_memory(server: Serving, interface: str, dtype: str) -> None:
    """Small ones, and those for which there is no room, are in the frames. Memory is free when nobody uses it."""
    with ExitStack() as stack:
        for client in clients(server, interface, stack).values():
            for size, shared in ((SHARED - 8, 0), (SHARED, 1), (MIB + 8, 0)):
                before = sum(link.shared for link in links(server))
                x = np.arange(size // 2 // 4 if dtype == "f32" else size // 2 // 2) % 100
                x = np.stack([x, x]).astype(getattr(ov.Type, dtype).storage)
                (found,) = client.infer(dtype, {"x": x}).values()
                np.testing.assert_array_equal(found, x)
                assert sum(link.shared for link in links(server)) - before == shared
            fails("INVALID_ARGUMENT", client.infer, "echo", {"x": np.zeros((1, SHARED), np.float32)})
    gc.collect()
    until(lambda: all(link._sending.free == MIB for link in links(server)))


# ---- cancellation and deaths


def test_lost_clients_and_front_ends(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Their inferences that have not begun are not computed. A new front end comes, and sequences stay open."""
    gate = Gate(False)
    body = json.dumps({"inputs": [JSON_INPUT]})
    request = f"POST /v2/models/echo/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    with serving(repository, processes=PROCESSES, opener=gate) as server, ExitStack() as stack:
        version = server.server.service.models.current["echo"]  # type: ignore[union-attr]
        before, old = clients(server, "gRPC", stack), links(server)
        (killed, lost), (_, kept) = before.items()
        assert lost.infer("sums", {"x": X}, sequence_id=1, sequence_start=True)["steps"] == [1]
        gate.watches, begun = True, list[Any]()
        inputs = kept.inputs({"x": np.ones((1, 3), np.float32)})

        def begin(client: Client, count: int) -> Any:
            found = client.client.async_infer("echo", inputs, lambda result, error: begun.append(error))
            until(lambda: version.in_flight == count)
            return found

        begin(kept, 1)
        until(lambda: gate.rows == [1])
        begin(kept, 2).cancel()
        until(lambda: version.in_flight == 1)
        with socket.create_connection(("127.0.0.1", server.server.port)) as connection:
            connection.sendall(request.encode())
            until(lambda: version.in_flight == 2)
        until(lambda: version.in_flight == 1)
        begin(lost, 2)
        os.kill(killed, signal.SIGKILL)
        until(lambda: version.in_flight == 1)
        gate.opened.set()
        until(lambda: None in begun)
        assert gate.rows == [1] and begun.count(None) == 1 and version.in_flight == 0

        assert kept.infer("sums", {"x": X}, sequence_id=1)["steps"] == [2]
        until(lambda: len(links(server) - old) == 1)
        after = clients(server, "gRPC", stack)
        (new,) = after.keys() - before.keys()
        assert after[new].infer("sums", {"x": X}, sequence_id=1)["steps"] == [3]
    assert "a front-end process has ended with exit code -9: another one starts" in caplog.text


def test_front_ends_that_end_at_once_end_the_server(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_ends, "MAX_QUICK", 1)
    with pytest.raises(ov.Error, match="front-end processes end as soon as they have started"):
        with serving(repository / "sums" / "1", name="sums", processes=PROCESSES) as server:
            running = processes(server.server.port)
            os.kill(min(running), signal.SIGKILL)
            server.thread.join(SECONDS)
    assert not any(map(alive, running))


def test_a_front_end_that_finds_a_malformed_file_leaves_the_others(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It starts when the file is mended."""
    monkeypatch.setattr(front_ends, "MAX_QUICK", 2)
    monkeypatch.setattr(front_ends, "RETRY_SECONDS", 0.01)
    file = tmp_path / "tokens"
    file.write_text(FILE)
    with serving(repository, processes=PROCESSES, token_file=file, poll_seconds=0) as server:
        file.write_text("short")
        os.kill(min(processes(server.server.port)), signal.SIGKILL)
        until(lambda: caplog.text.count("a front-end process cannot start: tokens, line 1, has no token") >= 3)
        assert call(server, "GET", "/v2", bearer(ALL))[0] == 200
        file.write_text(FILE)
        until(lambda: len(links(server)) == PROCESSES)


def test_a_system_that_cannot_start_a_process_leaves_the_others(
    repository: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(front_ends, "RETRY_SECONDS", 0.01)

    def fail(*arguments: Any, **options: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    with serving(repository / "sums" / "1", name="sums", processes=PROCESSES) as server:
        with monkeypatch.context() as patch:
            patch.setattr(front_ends.subprocess, "Popen", fail)
            os.kill(min(processes(server.server.port)), signal.SIGKILL)
            failures = lambda: caplog.text.count("cannot start: [Errno 11] no more processes")
            until(lambda: failures() >= 1)
            before = len(os.listdir("/proc/self/fd"))
            until(lambda: failures() >= 30)
            assert len(os.listdir("/proc/self/fd")) < before + 10
            assert call(server, "GET", "/v2", {})[0] == 200
        until(lambda: len(links(server)) == PROCESSES)


def test_front_ends_end_with_the_process_of_the_models(repository: Path) -> None:
    """While it is busy, the server tells that it lives; when it is killed, nothing is left."""
    with process(repository, "--processes", PROCESSES) as server:
        address = server.address("REST")
        running = processes(int(address.rpartition(":")[2]), server.process.pid)
        assert len(running) == PROCESSES
        server.process.send_signal(signal.SIGSTOP)
        for _ in range(8):
            with closing(http.client.HTTPConnection(address, timeout=SECONDS)) as connection:
                connection.request("GET", "/v2/health/live")
                assert connection.getresponse().status == 200
        server.process.kill()
        until(lambda: not any(map(alive, running)))


def test_sigterm_leaves_nothing(repository: Path) -> None:
    """Signals to all processes, as a terminal and some managers of services send them, end the server as one does."""
    with process(repository, "--processes", PROCESSES) as server, server.client("gRPC") as client:
        running = processes(int(server.address("REST").rpartition(":")[2]), server.process.pid)
        for pid in running:
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGINT)
        client.infer("sums", {"x": X}, sequence_id=1, sequence_start=True)
        assert all(map(alive, running))
        assert server.stop() == 0
        assert not any(map(alive, running))


def test_a_start_that_is_cancelled_leaves_nothing(repository: Path) -> None:
    async def cancel() -> None:
        server = Server(ServerOptions(repository, processes=PROCESSES, port=0, grpc_port=0))
        running = asyncio.create_task(server.run())
        while not isinstance(server._interfaces, FrontEnds) or not getattr(server._interfaces, "_links", None):
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert asyncio.all_tasks() == {asyncio.current_task()} and not server._interfaces._links

    asyncio.run(cancel())


# ---- ports, tokens and limits


@pytest.mark.parametrize("interface", INTERFACES)
def test_ports_are_not_shared_with_other_programs(repository: Path, interface: str) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        ports = {"port": 0, "grpc_port": 0, "port" if interface == "REST" else "grpc_port": other.getsockname()[1]}
        with pytest.raises(ov.Error, match=f"{interface} cannot listen on 127.0.0.1"):
            asyncio.run(Server(ServerOptions(repository, processes=PROCESSES, **ports)).run())


def test_tokens(repository: Path, tmp_path: Path) -> None:
    """Quotas are those of all front ends, which read the tokens again, and refusals are counted."""
    file = tmp_path / "tokens"
    file.write_text(FILE)
    with serving(repository, processes=PROCESSES, token_file=file) as server, ExitStack() as stack:

        def code(token: str) -> int:
            return call(server, "GET", "/v2", bearer(token))[0]

        def refused() -> int:
            """Return how many inferences were refused, also by servers of earlier tests in this process."""
            page = call(server, "GET", "/metrics", bearer(READ))[2].decode()
            counts = re.findall(r'method="ModelInfer",status="UNAUTHENTICATED"} (\d+)', page)
            return sum(map(int, counts))

        before = refused()
        both = list(clients(server, "gRPC", stack).values())
        infer = lambda client, id, **options: client.infer(
            "sums", {"x": X}, headers=bearer(INFER), sequence_id=id, **options
        )
        for id, client in enumerate(both, 1):
            infer(client, id, sequence_start=True)
        for client in both:
            fails("UNAUTHENTICATED", client.infer, "sums", {"x": X}, sequence_id=1)
            assert "2 sequences are open" in fails("RESOURCE_EXHAUSTED", infer, client, 3, sequence_start=True)
        until(lambda: refused() == before + 2)
        assert [code(ALL), code("none")] == [200, 401]
        file.write_text(FILE.replace(ALL, "another-with-16-characters"))
        server.server.reload()
        until(lambda: [code(ALL) for _ in range(8)] == [401] * 8)
        assert [code("another-with-16-characters") for _ in range(8)] == [200] * 8


def test_numbers_that_make_no_sense(repository: Path) -> None:
    for processes, held_mib in ((0, 1024), (65, 1 << 20), (3, 128)):
        with pytest.raises(ov.Error, match="--processes"):
            Server(ServerOptions(repository, processes=processes, held_mib=held_mib))
