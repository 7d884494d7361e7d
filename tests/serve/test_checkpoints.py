"""Sequences that continue on another server, or when a server that was killed starts again."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from geventhttpclient.response import HTTPConnectionClosed, HTTPParseError
from tritonclient.utils import InferenceServerException

import ovgpu as ov
from ovgpu.serve import redis_store
from ovgpu.serve.client_sequence import Checkpoints
from ovgpu.serve.server import Server, ServerOptions
from tests.batching.nets import SIZE, sums
from tests.harness.servers.redis import RedisServer, redis_server
from tests.harness.servers.serving import INTERFACES, SECONDS, Client, fails, serving, status, write
from tests.serve.faults import FACTOR, MODULUS, REFUSED, ledger
from tests.serve.test_inference import echo
from tests.serve.test_models import counting, until
from tests.serve.test_stop import process

X = np.ones((1, SIZE), np.float32)
EACH = Checkpoints(steps=1)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def store(redis: RedisServer, request: pytest.FixtureRequest) -> str:
    """Return the URL of a database, which only this test uses, and which is empty."""
    import redis as client

    database = client.Redis(port=redis.port)
    database.flushall()
    database.close()
    return redis.url


def count(client: Client, id: Any, number: int | None = None, **flags: Any) -> int:
    """Run a step of the model `sums`, and return the number of steps that it has counted."""
    parameters = {"parameters": {"sequence_step": number}} if number else {}
    return int(client.infer("sums", {"x": X}, sequence_id=id, **parameters, **flags)["steps"][0])


class Writer:
    """Sequence of the model `ledger`, whose results tell lost, doubled and mixed steps. It has a choice of servers.

    Steps that are refused or not answered are repeated with their number. The inputs since the last checkpoint are
    kept, and sent again if the sequence has lost their steps.
    """

    def __init__(self, id: int, addresses: list[str], interface: str = "gRPC") -> None:
        self._id, self._interface, self._addresses = id, interface, addresses
        self._rng = np.random.default_rng(id)
        self._inputs: list[int] = []
        self._states = [0]
        self._saved = 0
        self.repeated = 0  # steps that were lost with their server

    @property
    def steps(self) -> int:
        return len(self._inputs)

    def step(self) -> None:
        x = int(self._rng.integers(MODULUS))
        self._inputs.append(x)
        self._states.append((FACTOR * self._states[-1] + x) % MODULUS)
        number, end = self.steps, time.monotonic() + SECONDS
        while number <= self.steps:
            assert time.monotonic() < end, f"sequence {self._id} does not go on"
            address = self._addresses[self._rng.integers(len(self._addresses))]
            try:
                with Client(self._interface, address) as client:
                    result = client.client.infer(
                        "ledger",
                        client.inputs({"x": np.array([[self._inputs[number - 1]]])}),
                        sequence_id=self._id,
                        sequence_start=number == 1,
                        parameters={"sequence_step": number},
                    )
            except InferenceServerException as error:
                behind = re.search(r"cannot follow step (\d+)", error.message())
                if behind:
                    assert self._saved <= int(behind[1]) < number
                    number = int(behind[1]) + 1
                    self.repeated += self.steps - number
                elif status(error) not in REFUSED:
                    raise
                time.sleep(0.02)
                continue
            except (OSError, HTTPConnectionClosed, HTTPParseError):  # the server has died
                time.sleep(0.02)
                continue
            assert int(result.as_numpy("y")[0, 0]) == self._states[number]
            response = result.get_response()
            saved = (
                response["parameters"].get("sequence_saved")
                if self._interface == "REST"
                else (
                    response.parameters["sequence_saved"].int64_param
                    if "sequence_saved" in response.parameters
                    else None
                )
            )
            self._saved = self._saved if saved is None else saved
            number += 1


def write_until(over: threading.Event, writers: list[Writer], least: int) -> Callable[[], None]:
    """Let all writers make steps, at least so many, until it is over. Return a function that waits for them."""
    errors: list[BaseException] = []

    def run(writer: Writer) -> None:
        try:
            while not over.is_set() or writer.steps < least:
                writer.step()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()

    def join() -> None:
        for thread in threads:
            thread.join(SECONDS)
        if errors:
            raise errors[0]

    return join


@pytest.mark.drawn(4)
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("interface", INTERFACES)
def test_a_server_dies_and_another_goes_on(tmp_path: Path, store: str, interface: str, steps: int) -> None:
    """Under load, of two servers that share sequences one is killed. Each step counts once."""
    write(tmp_path, ledger(), "ledger")
    options = ("--state-store", store, "--checkpoint-steps", steps)
    with process(tmp_path, *options) as first, process(tmp_path, *options) as second:
        writers = [Writer(id, [first.address(interface), second.address(interface)], interface) for id in range(1, 7)]
        over = threading.Event()
        join = write_until(over, writers, 24)
        while min(writer.steps for writer in writers) < 10:
            time.sleep(0.02)
        os.kill(first.process.pid, signal.SIGKILL)
        time.sleep(0.5)
        over.set()
        join()
        assert second.stop() == 0
    if steps == 1:
        assert not any(writer.repeated for writer in writers)


@pytest.mark.long
def test_steps_without_numbers_go_on_after_the_last_one(tmp_path: Path, store: str) -> None:
    write(tmp_path, sums(), "sums")
    options = ("--state-store", store, "--checkpoint-steps", 1)
    with process(tmp_path, *options) as first, process(tmp_path, *options) as second:
        with first.client("gRPC") as client:
            assert [count(client, 1, sequence_start=i == 0) for i in range(3)] == [1, 2, 3]
        first.process.kill()
        with second.client("gRPC") as client:
            assert [count(client, 1), count(client, 1, sequence_end=True)] == [4, 5]


@pytest.mark.parametrize("checkpoints", [Checkpoints(), EACH], ids=["none", "each step"])
def test_steps_alternate_between_servers(tmp_path: Path, store: str, checkpoints: Checkpoints) -> None:
    """Each server hands the sequence over to the other one; the last step is answered again by both."""
    write(tmp_path, sums(), "sums")
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(tmp_path, state_store=store, checkpoints=checkpoints)) for _ in range(2)]
        clients = [stack.enter_context(server.client("gRPC")) for server in servers]
        for id in (1, "1"):
            for number in range(1, 9):
                flags = {"sequence_start": number == 1, "sequence_end": number == 8}
                assert count(clients[number % 2], id, number, **flags) == number
                if number > 1:
                    assert count(clients[1 - number % 2], id, number, sequence_end=number == 8) == number
            fails("NOT_FOUND", count, clients[0], id)
        assert sum(len(server.server.service.sequences) for server in servers) == 0
        assert count(clients[0], 2, sequence_start=True) == count(clients[1], 2, sequence_start=True) == 1
        assert count(clients[0], 2) == 2
        controls = {
            "x": X,
            "sequence_id": np.array([2], np.uint64),
            "sequence_control_input": np.array([1], np.uint32),
        }
        for client in clients:
            fails("ALREADY_EXISTS", client.infer, "sums", controls)


def test_a_server_that_stops_leaves_its_sequences(tmp_path: Path, store: str) -> None:
    write(tmp_path, sums(), "sums")
    with serving(tmp_path, state_store=store) as second, second.client("gRPC") as later:
        with serving(tmp_path, state_store=store) as first, first.client("gRPC") as client:
            for id in range(1, 5):
                assert count(client, id, sequence_start=True) == 1
        assert [count(later, id) for id in range(1, 5)] == [2] * 4


def test_other_weights_and_old_versions(tmp_path: Path, store: str) -> None:
    """A sequence goes on only on the files that have computed its state, also if they are of an older version."""
    x = np.ones((1, 4), np.float32)

    def step(client: Client, id: int, **flags: Any) -> float:
        return float(client.infer("count", {"x": x}, sequence_id=id, **flags)["y"][0, 0])

    write(tmp_path / "a", counting(0), "count", 1)
    write(tmp_path / "b", counting(100), "count", 1)
    for folder in ("c", "d"):
        write(tmp_path / folder, counting(0), "count", 1)
        write(tmp_path / folder, counting(100), "count", 2)
    with serving(tmp_path / "a", state_store=store) as server, server.client("gRPC") as client:
        assert [step(client, id, sequence_start=True) for id in (1, 2, 3)] == [2, 2, 2]
    with serving(tmp_path / "b", state_store=store) as server, server.client("gRPC") as client:
        text = fails("NOT_FOUND", step, client, 1)
        assert "version 1 has other files than the one that computed its state" in text
    with serving(tmp_path / "c", state_store=store) as server, server.client("gRPC") as client:
        assert [step(client, id) for id in (1, 2)] == [3, 3]
        assert step(client, 4, sequence_start=True) == 102
        assert len(server.server.service.models.versions()) == 2
    with serving(tmp_path / "b", state_store=store, discard_states=True) as server, server.client("gRPC") as client:
        assert "which is deleted" in fails("NOT_FOUND", step, client, 1)
        assert "is not open" in fails("NOT_FOUND", step, client, 1)
        assert "version 2 is not loaded" in fails("NOT_FOUND", step, client, 4)
    with serving(tmp_path / "d", state_store=store) as server, server.client("gRPC") as client:
        fails("NOT_FOUND", step, client, 1)
        assert step(client, 2, sequence_end=True) == 4


@pytest.mark.long
def test_a_server_that_stops_without_its_store(tmp_path: Path) -> None:
    """It tries to reach the store once, not for each sequence. The exit code tells of the loss."""
    write(tmp_path / "models", sums(), "sums")
    (tmp_path / "redis").mkdir()
    with (
        redis_server(tmp_path / "redis") as redis,
        process(tmp_path / "models", "--state-store", redis.url) as server,
        server.client("gRPC") as client,
    ):
        for id in range(1, 41):
            count(client, id, sequence_start=True)
        redis.hang()
        assert server.stop() == 1  # within a minute
        assert any("40 sequences could not be saved" in line for line in server.lines), server.lines
        redis.resume()


# ---- the store is not available


def test_a_store_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Steps are refused and change nothing; other models are served; all is well when the store is back, even empty.

    Only the log has the store's address, once for each outage.
    """
    monkeypatch.setattr(redis_store, "COMMAND_SECONDS", 0.5)
    monkeypatch.setattr(redis_store, "POLL_SECONDS", 0.1)
    write(tmp_path / "models", sums(), "sums")
    write(tmp_path / "models", echo("f32"), "echo")
    (tmp_path / "redis").mkdir()
    with (
        redis_server(tmp_path / "redis", durable=False) as redis,
        serving(tmp_path / "models", state_store=redis.url, checkpoints=EACH) as server,
        server.client("REST") as client,
        server.client("gRPC") as other,
    ):
        assert [count(client, 1, sequence_start=i == 0) for i in range(2)] == [1, 2]
        assert count(client, 2, 1, sequence_start=True) == 1
        expected = 3
        for outages, (fault, repair) in enumerate([(redis.kill, redis.start), (redis.hang, redis.resume)], 1):
            fault()
            for _ in range(2):
                assert fails("UNAVAILABLE", count, client, 1).endswith("the store of sequences is not available")
                fails("UNAVAILABLE", count, other, 2, expected - 1)
                fails("UNAVAILABLE", count, client, 3, sequence_start=True)
                assert other.infer("echo", {"x": np.ones((1, 3), np.float32)})["y"].shape == (1, 3)
            fails("UNAVAILABLE", count, client, 1, sequence_end=True)
            repair()
            assert answered(client, 1) == expected
            assert count(other, 2, expected - 1) == expected - 1
            fails("NOT_FOUND", count, client, 3)
            expected += 1
            until(lambda outages=outages: caplog.text.count("is back") == outages)
        assert count(client, 1, sequence_end=True) == expected
    assert caplog.text.count(f"at 127.0.0.1:{redis.port} is not available: ") == 2
    with pytest.raises(ov.Error, match=r"127.0.0.1:\d+ is not available"):
        with serving(tmp_path / "models", state_store=redis.url):
            pass


def answered(client: Client, id: int) -> int:
    """Run a step as soon as it is not refused any more."""
    end = time.monotonic() + SECONDS
    while True:
        try:
            return count(client, id)
        except InferenceServerException as error:
            assert status(error) == "UNAVAILABLE" and time.monotonic() < end
        time.sleep(0.05)


def test_rare_checkpoints_do_not_hold_up_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While the store is away, steps run until the lease of the server ends."""
    monkeypatch.setattr(redis_store, "COMMAND_SECONDS", 0.5)
    monkeypatch.setattr(redis_store, "LEASE_SECONDS", 60.0)
    write(tmp_path / "models", sums(), "sums")
    (tmp_path / "redis").mkdir()
    with (
        redis_server(tmp_path / "redis", durable=False) as redis,
        serving(tmp_path / "models", state_store=redis.url, checkpoints=Checkpoints(2)) as server,
        server.client("gRPC") as client,
    ):
        assert count(client, 1, sequence_start=True) == 1
        redis.kill()
        assert [count(client, 1) for _ in range(3)] == [2, 3, 4]
        assert "sequence 1 of model 'sums' is not saved: the store of sequences" in caplog.text
        fails("UNAVAILABLE", count, client, 2, sequence_start=True)
        redis.start()
        assert [count(client, 1) for _ in range(2)] == [5, 6]
        with serving(tmp_path / "models", state_store=redis.url) as second, second.client("gRPC") as other:
            assert answered(other, 1) == 7


# ---- files


@pytest.mark.parametrize("options", [("--checkpoint-steps", 1), ("--checkpoint-seconds", 0.05)], ids=["steps", "time"])
def test_a_server_that_was_killed_goes_on_from_files(tmp_path: Path, options: Any) -> None:
    write(tmp_path / "models", sums(), "sums")
    states = tmp_path / "states"
    options = ("--state-dir", states, *options)
    with process(tmp_path / "models", *options) as server, server.client("gRPC") as client:
        for id in (1, 2):
            assert [count(client, id, number + 1, sequence_start=number == 0) for number in range(5)] == [1, 2, 3, 4, 5]
        count(client, 3, sequence_start=True)
        count(client, 3, sequence_end=True)
        until_saved(states, 2, 5)
        server.process.kill()
    with process(tmp_path / "models", *options) as server, server.client("gRPC") as client:
        assert count(client, 1, 5) == 5  # its answer was saved as well
        assert [count(client, 1, 6), count(client, 2, 6, sequence_end=True)] == [6, 6]
        fails("NOT_FOUND", count, client, 3)
        until_saved(states, 1, 6)


def until_saved(folder: Path, files: int, steps: int) -> None:
    """Wait until so many files have sequences of so many steps."""
    from ovgpu.serve.states import decode

    end = time.monotonic() + SECONDS
    while True:
        found = [decode(file.read_bytes()).steps for file in folder.glob("*.sequence")]
        if found == [steps] * files:
            return
        assert time.monotonic() < end, found
        time.sleep(0.02)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """If each step must be saved, steps are refused and change nothing. Else they go on."""
    write(tmp_path / "models", sums(), "sums")

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    for checkpoints in (EACH, Checkpoints(2)):
        states = tmp_path / f"states{checkpoints.steps}"
        with serving(tmp_path / "models", state_dir=states, checkpoints=checkpoints) as server:
            with server.client("REST") as client:
                assert [count(client, 1, sequence_start=i == 0) for i in range(2)] == [1, 2]
                with monkeypatch.context() as patch:
                    patch.setattr("ovgpu._util.atomic_file.os.fsync", full)
                    if checkpoints is EACH:
                        text = fails("UNAVAILABLE", count, client, 1)
                        assert text.endswith("the state of the sequence cannot be saved") and str(tmp_path) not in text
                        fails("UNAVAILABLE", count, client, 2, sequence_start=True)
                        fails("NOT_FOUND", count, client, 2)
                    else:
                        assert [count(client, 1), count(client, 1)] == [3, 4]
                assert count(client, 1) == (3 if checkpoints is EACH else 5)
    assert "No space left on device" in caplog.text
    with serving(tmp_path / "models", state_dir=tmp_path / "states2") as server, server.client("REST") as client:
        assert count(client, 1) == 6


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"state_dir": "states", "state_store": "redis://localhost"}, "exclude each other"),
        ({"checkpoints": EACH}, "checkpoints need --state-dir or --state-store"),
        ({"checkpoints": Checkpoints(-1, 1.0), "state_dir": "states"}, "must not be negative"),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    write(tmp_path, sums(), "sums")
    if "state_dir" in options:
        options["state_dir"] = tmp_path / "states"
    with pytest.raises(ov.Error, match=text):
        Server(ServerOptions(tmp_path, **options))
