"""The end of a server: SIGTERM, sequences that come back, clients that vanish, and slow ones."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.serve.engines import Engine, EngineOptions, open_engine
from ovgpu.serve.server import Server, ServerOptions
from tests.batching.nets import SIZE, streaming_lstm, sums
from tests.harness.models.transformer import llama
from tests.harness.servers.serving import INTERFACES, SECONDS, Client, fails, serving, write
from tests.serve.test_inference import echo
from tests.serve.test_models import counting, until
from tests.serve.test_served_sequences import DECODER, alone, frame, tokens

ROOT = Path(__file__).parents[2]
X = np.ones((1, SIZE), np.float32)


class Process:
    """``ovgpu serve`` in a process of its own."""

    def __init__(self, path: Path, *options: object) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "ovgpu",
                "serve",
                str(path),
                "-d",
                "CPU",
                "--port",
                "0",
                "--grpc-port",
                "0",
                "--no-access-log",
                *map(str, options),
            ],
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.lines: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._ready.wait(SECONDS), self.lines

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if " INFO ready: " in line:
                self._ready.set()
        self._ready.set()

    def address(self, interface: str) -> str:
        """Return the address of an interface, which the server has printed."""
        for line in self.lines:
            found = re.search(rf"{interface} on (\S+?)(,|$)", line)
            if found:
                return found[1]
        raise AssertionError("".join(self.lines))

    def client(self, interface: str) -> Client:
        return Client(interface, self.address(interface))

    def stop(self) -> int:
        """Send SIGTERM, and return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        status = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        return status


@contextmanager
def process(path: Path, *options: object) -> Iterator[Process]:
    found = Process(path, *options)
    try:
        yield found
    finally:
        if found.process.poll() is None:
            found.process.kill()
            found.wait()


@pytest.mark.drawn(2)
@pytest.mark.parametrize("interface", INTERFACES)
def test_sigterm_in_full_load_loses_nothing(tmp_path: Path, interface: str) -> None:
    """Every inference is either answered or refused: after a restart, sequences have taken the steps of the answers."""
    write(tmp_path / "models", sums(), "sums")
    states = tmp_path / "states"
    with process(tmp_path / "models", "--state-dir", states) as server:
        running = threading.Barrier(9)
        answered, errors = [0] * 8, [""] * 8

        def ask(number: int) -> None:
            with server.client(interface) as client:
                client.infer("sums", {"x": X}, sequence_id=number + 1, sequence_start=True)
                running.wait(SECONDS)
                try:
                    while True:
                        answered[number] = int(client.infer("sums", {"x": X}, sequence_id=number + 1)["steps"][0])
                except Exception as error:
                    errors[number] = str(error)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        running.wait(SECONDS)
        time.sleep(0.3)
        assert server.stop() == 0
        for thread in threads:
            thread.join(SECONDS)
    assert min(answered) > 0
    for error in errors:  # gRPC cancels calls that arrive while it shuts down
        assert re.search(r"is stopping|UNAVAILABLE|refused|No connection|\[StatusCode.CANCELLED\]", error), errors
    with process(tmp_path / "models", "--state-dir", states) as server, server.client(interface) as client:
        found = [int(client.infer("sums", {"x": X}, sequence_id=id)["steps"][0]) for id in range(1, 9)]
    assert found == [count + 1 for count in answered]


@pytest.mark.drawn(2)
@pytest.mark.parametrize(("model", "inputs"), [("lstm", frame), ("decoder", tokens)], ids=["lstm", "decoder"])
def test_sequences_come_back_after_a_restart(tmp_path: Path, model: str, inputs: Any) -> None:
    source = streaming_lstm() if model == "lstm" else llama(1, DECODER).ir
    write(tmp_path / "models", source, model)
    states = tmp_path / "states"
    given = {id: [inputs(number, step) for step in range(6)] for number, id in enumerate((1, "a/b", "1"))}
    found: dict[Any, list[Any]] = {id: [] for id in given}
    for part in range(3):
        with process(tmp_path / "models", "--state-dir", states) as server:
            with server.client("gRPC") as client:
                for step in (2 * part, 2 * part + 1):
                    for id, steps in given.items():
                        outputs = client.infer(
                            model, steps[step], sequence_id=id, sequence_start=step == 0, sequence_end=step == 5
                        )
                        found[id].append(next(iter(outputs.values())))
            assert server.stop() == 0
            assert len(list(states.iterdir())) == (3 if part < 2 else 0), server.lines
    loaded = ov.Core().read_model(tmp_path / "models" / model / "1" / "model.xml")
    for id, steps in given.items():
        for ours, theirs in zip(found[id], alone(loaded, steps), strict=True):
            np.testing.assert_allclose(ours, theirs, 2e-4, 2e-5)


def test_saved_sequences_that_fit_nothing_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "models", sums(), "sums", 1)
    states = tmp_path / "states"
    with serving(tmp_path / "models", state_dir=states) as server, server.client("gRPC") as client:
        for id in range(1, 4):
            client.infer("sums", {"x": X}, sequence_id=id, sequence_start=True)
    assert states.stat().st_mode & 0o077 == 0
    (states / "broken.sequence").write_bytes(b"not a file of arrays")
    with serving(tmp_path / "models", state_dir=states, engine={"max_sequences": 2}) as server:
        assert len(server.server.service.sequences) == 2
    assert "all 2 sequences are open" in caplog.text
    assert "broken.sequence is no saved sequence" in caplog.text
    (tmp_path / "models" / "sums" / "1").rename(tmp_path / "models" / "sums" / "2")
    with serving(tmp_path / "models", state_dir=states) as server, server.client("gRPC") as client:
        assert len(server.server.service.sequences) == 0
        fails("NOT_FOUND", client.infer, "sums", {"x": X}, sequence_id=1)
    assert "its version 1 is not loaded" in caplog.text


def test_saved_sequences_go_on_on_the_version_on_which_they_began(tmp_path: Path) -> None:
    write(tmp_path / "models", counting(0), "count", 1)
    states, x = tmp_path / "states", np.ones((1, 4), np.float32)

    def step(client: Client, id: int, **flags: bool) -> float:
        return float(client.infer("count", {"x": x}, sequence_id=id, **flags)["y"][0, 0])

    with serving(tmp_path / "models", state_dir=states) as server, server.client("gRPC") as client:
        assert [step(client, id, sequence_start=True) for id in (1, 2)] == [2, 2]
    write(tmp_path / "models", counting(100), "count", 2)
    for part in (3, 4):
        with serving(tmp_path / "models", state_dir=states) as server, server.client("gRPC") as client:
            assert [step(client, 1), step(client, 2)] == [part, part]
            assert step(client, 3, sequence_start=True, sequence_end=True) == 102
            assert len(server.server.service.models.versions()) == 2
            if part == 4:
                assert [step(client, id, sequence_end=True) for id in (1, 2)] == [5, 5]
                until(lambda: len(server.server.service.models.versions()) == 1)


def test_states_of_other_weights_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The files of a version have changed: its sequences wait for the old ones, or are deleted."""
    states, x = tmp_path / "states", np.ones((1, 4), np.float32)

    def steps(**options: Any) -> list[float]:
        """Return the next result of sequence 1; none if it is not open."""
        with serving(tmp_path / "models", state_dir=states, **options) as server, server.client("gRPC") as client:
            if not len(server.server.service.sequences):
                fails("NOT_FOUND", client.infer, "count", {"x": x}, sequence_id=1)
                return []
            return [float(client.infer("count", {"x": x}, sequence_id=1)["y"][0, 0])]

    write(tmp_path / "models", counting(0), "count", 1)
    with serving(tmp_path / "models", state_dir=states) as server, server.client("gRPC") as client:
        client.infer("count", {"x": x}, sequence_id=1, sequence_start=True)
    assert steps() == [3]
    write(tmp_path / "models", counting(100), "count", 1)
    assert steps() == [] and len(list(states.iterdir())) == 1
    assert "version 1 has other files than the one that computed its state" in caplog.text
    write(tmp_path / "models", counting(0), "count", 1)
    assert steps() == [4]
    write(tmp_path / "models", counting(100), "count", 1)
    assert steps(discard_states=True) == [] and not list(states.iterdir())


def test_a_shared_folder_keeps_its_permissions(tmp_path: Path) -> None:
    write(tmp_path / "models", sums(), "sums")
    states = tmp_path / "states"
    states.mkdir(mode=0o755)
    states.chmod(0o755)
    with serving(tmp_path / "models", state_dir=states) as server, server.client("gRPC") as client:
        client.infer("sums", {"x": X}, sequence_id=1, sequence_start=True)
    assert states.stat().st_mode & 0o777 == 0o755
    assert [file.stat().st_mode & 0o777 for file in states.iterdir()] == [0o600]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    write(tmp_path / "models", sums(), "sums")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ov.Error, match=r"states cannot be saved in .*file"):
        asyncio.run(Server(ServerOptions(tmp_path / "models", state_dir=tmp_path / "file", port=0, grpc_port=0)).run())


def test_the_exit_code_tells_of_lost_states(tmp_path: Path) -> None:
    write(tmp_path / "models", sums(), "sums")
    states = tmp_path / "states"
    with process(tmp_path / "models", "--state-dir", states) as server:
        with server.client("gRPC") as client:
            for id in (1, 2):
                client.infer("sums", {"x": X}, sequence_id=id, sequence_start=True)
        states.rmdir()
        assert server.stop() == 1
        assert any("2 sequences could not be saved" in line for line in server.lines), server.lines


CLIENT = """
import sys, numpy as np, threading
from tests.harness.servers.serving import Client
client = Client(sys.argv[1], sys.argv[2])
x = np.ones((1, {size}), np.float32)
for step in range(10**9):
    client.infer("sums", {{"x": x}}, sequence_id=int(sys.argv[3]), sequence_start=step == 0)
    if step == 20:
        print("running", flush=True)
"""


@pytest.mark.drawn(2)
@pytest.mark.parametrize("interface", INTERFACES)
def test_clients_that_are_killed_leave_the_others_alone(tmp_path: Path, interface: str) -> None:
    """Their sequences end when they have been idle; the sequences of others keep their states."""
    write(tmp_path, sums(), "sums")
    with serving(tmp_path, idle_seconds=1.0, engine={"max_sequences": 3}) as server, server.client("gRPC") as client:
        address = server.http if interface == "REST" else server.grpc
        victims = [
            subprocess.Popen(
                [sys.executable, "-c", CLIENT.format(size=SIZE), interface, address, str(id)],
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for id in (2, 3)
        ]
        for victim in victims:
            assert victim.stdout is not None
            assert victim.stdout.readline() == "running\n"
        client.infer("sums", {"x": X}, sequence_id=1, sequence_start=True)
        for victim in victims:
            victim.kill()
            victim.wait()
            victim.stdout.close()
        steps = 1
        end = time.monotonic() + SECONDS
        while len(server.server.service.sequences) > 1:
            assert time.monotonic() < end
            steps += 1
            assert client.infer("sums", {"x": X}, sequence_id=1)["steps"][0] == steps
            time.sleep(0.05)
        for id in (2, 3):  # their slots are free
            assert client.infer("sums", {"x": X}, sequence_id=id, sequence_start=True)["steps"][0] == 1


def test_a_slow_reader_of_a_stream_does_not_hold_up_others(tmp_path: Path) -> None:
    """No more of its inferences are read than its responses are taken."""
    write(tmp_path, echo("f32"), "echo")
    with serving(tmp_path) as server, server.client("gRPC") as slow, server.client("gRPC") as quick:
        taking = threading.Event()
        answers: list[Any] = []
        done = threading.Semaphore(0)

        def take(result: Any, error: Any) -> None:
            taking.wait(SECONDS)
            answers.append(result)
            done.release()

        large = np.ones((32, 3), np.float32)
        slow.client.start_stream(take)
        count = 1000
        for _ in range(count):
            slow.client.async_stream_infer("echo", slow.inputs({"x": large}))
        for _ in range(20):
            assert quick.infer("echo", {"x": large})["y"].shape == (32, 3)
        taking.set()
        for _ in range(count):
            assert done.acquire(timeout=SECONDS)
        slow.client.stop_stream()
    assert len(answers) == count


def test_many_connections(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Idle connections cost no thread each, and do not keep others from being answered."""
    count = 10_000 if pytestconfig.getoption("--long") else 1000
    write(tmp_path, sums(), "sums")
    with process(tmp_path) as server:
        host, port = server.address("REST").split(":")
        connections = []
        try:
            for _ in range(count):
                connections.append(socket.create_connection((host, int(port)), SECONDS))
            for connection in connections:
                connection.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n")
            for connection in connections:
                assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
            with server.client("REST") as client:
                assert client.infer("sums", {"x": X}, sequence_id=1, sequence_start=True)["steps"][0] == 1
            threads = len(os.listdir(f"/proc/{server.process.pid}/task"))
        finally:
            for connection in connections:
                connection.close()
        assert threads < 100
        assert server.stop() == 0


def test_an_interrupt_ends_the_server_too(tmp_path: Path) -> None:
    write(tmp_path, sums(), "sums")
    with process(tmp_path) as server:
        server.process.send_signal(signal.SIGINT)
        assert server.wait() == 0


def test_a_server_answers_and_stops_while_it_loads(tmp_path: Path) -> None:
    write(tmp_path, sums(), "sums")
    loading, going = threading.Event(), threading.Event()

    def opener(path: Path, observer: Any) -> Engine:
        loading.set()
        going.wait(SECONDS)
        return open_engine(path, EngineOptions("CPU"), observer)

    server = Server(ServerOptions(tmp_path, port=0, grpc_port=0), opener)
    thread = threading.Thread(target=lambda: asyncio.run(server.run()))
    thread.start()
    assert loading.wait(SECONDS)
    for interface, port in (("REST", server.port), ("gRPC", server.grpc_port)):
        with Client(interface, f"127.0.0.1:{port}") as client:
            assert client.client.is_server_live()
            assert not client.client.is_server_ready()
            assert "is loading its models" in fails(
                "UNAVAILABLE", client.infer, "sums", {"x": X}, sequence_id=1, sequence_start=True
            )
    server.stop()
    going.set()
    thread.join(SECONDS)
    assert not thread.is_alive()
