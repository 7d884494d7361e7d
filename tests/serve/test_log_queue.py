"""Logs that nobody reads do not stop the server."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ovgpu.serve.log_queue import GATHER_SECONDS, MAX_LINES, QueuedHandler, dropped_lines
from tests.harness.servers.faults import free_ports
from tests.harness.servers.serving import SECONDS, Client, write
from tests.serve.test_inference import echo
from tests.serve.test_stop import ROOT
from tests.serve.wire import until


@contextmanager
def pipe(full: bool = False) -> Iterator[tuple[int, int]]:
    """Open a pipe, which may be full already."""
    reading, writing = os.pipe()
    if full:
        os.set_blocking(writing, False)
        try:
            while True:
                os.write(writing, bytes(1 << 12))
        except BlockingIOError:
            os.set_blocking(writing, True)
    try:
        yield reading, writing
    finally:
        os.close(writing)
        os.close(reading)


@contextmanager
def server(folder: Path, **streams: Any) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """Start the command in a process of its own, and wait until it is ready."""
    write(folder, echo("f32"), "echo")
    ports = free_ports(2)
    command = [sys.executable, "-m", "ovgpu", "serve", str(folder), "-d", "CPU"]
    command += ["--port", str(ports[0]), "--grpc-port", str(ports[1])]
    process = subprocess.Popen(
        command, cwd=ROOT, **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | streams
    )
    try:

        def ready() -> bool:
            assert process.poll() is None
            with Client("gRPC", f"127.0.0.1:{ports[1]}") as client:
                try:
                    return bool(client.client.is_server_ready(client_timeout=5))
                except Exception:
                    time.sleep(0.05)
                    return False

        until(ready)
        yield process, ports
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_server_whose_log_nobody_reads(tmp_path: Path, stream: str) -> None:
    with pipe(full=True) as (_, writing), server(tmp_path, **{stream: writing}) as (process, ports):
        for interface, port in (("REST", ports[0]), ("gRPC", ports[1])):
            with Client(interface, f"127.0.0.1:{port}") as client:
                for _ in range(10):
                    assert client.client.is_model_ready("echo")
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0


def test_the_access_log_of_a_server(tmp_path: Path) -> None:
    """All lines are there when the server has stopped."""
    with server(tmp_path, stdout=subprocess.PIPE) as (process, ports):
        with Client("REST", f"127.0.0.1:{ports[0]}") as client:
            for _ in range(50):
                assert client.client.is_model_ready("echo")
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=SECONDS)
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["method"] for line in lines].count("ModelReady") == 50


def record(text: str) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": text})


def test_lines_are_dropped_and_counted() -> None:
    with pipe(full=True) as (reading, writing):
        handler = QueuedHandler(writing, "%d lines lost")
        handler.emit(record("first"))
        until(lambda: handler._lines.empty())
        time.sleep(10 * GATHER_SECONDS)  # the thread waits for the pipe now
        for number in range(MAX_LINES + 7):
            handler.emit(record(f"line {number}"))
        assert handler.dropped == 7
        started = time.monotonic()
        handler.close()  # it does not wait for long
        assert handler._thread.is_alive()
        assert time.monotonic() - started < SECONDS / 2
        read = b""
        while not read.endswith(b"\nline %d\n" % (MAX_LINES - 1)):
            read += os.read(reading, 1 << 16)
        handler._thread.join(SECONDS)
        assert not handler._thread.is_alive()
    lines = read.lstrip(b"\0").decode().splitlines()
    assert lines == ["first", "7 lines lost", *(f"line {number}" for number in range(MAX_LINES))]


def test_a_descriptor_that_does_not_block() -> None:
    with pipe() as (reading, writing):
        os.set_blocking(writing, False)
        handler = QueuedHandler(writing, "")
        for _ in range(20):
            handler.emit(record("x" * 9999))
        read = b""
        while len(read) < 200_000:
            read += os.read(reading, 1 << 16)
        assert read == (b"x" * 9999 + b"\n") * 20
        handler.close()
    assert handler.dropped == 0


def test_a_reader_that_is_gone() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    handler = QueuedHandler(writing, "%d lines lost")
    logging.getLogger().addHandler(handler)
    try:
        handler.emit(record("x"))
        until(lambda: dict(dropped_lines())["messages"] == 1)
        handler.emit(record("y"))
        until(lambda: handler.dropped >= 2)
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
        os.close(writing)
    assert not handler._thread.is_alive()


def test_lines_with_any_text() -> None:
    with pipe() as (reading, writing):
        handler = QueuedHandler(writing, "")
        handler.emit(record("\ud800"))
        assert os.read(reading, 100) == b"?\n"
        handler.close()
