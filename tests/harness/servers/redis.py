"""A Redis server on loopback, which can die, hang and come back."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SECONDS = 30.0  # that it has to start


class RedisServer:
    """``redis-server`` on a free port. With ``durable``, it has its data again after it was killed."""

    def __init__(self, folder: Path, durable: bool = True) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._folder, self._durable = folder, durable
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start, or start again after `kill`."""
        options = {
            "--port": self.port,
            "--bind": "127.0.0.1",
            "--dir": self._folder,
            "--save": "",
            "--appendonly": "yes" if self._durable else "no",
            "--appendfsync": "no",
        }
        command = ["redis-server", *(str(word) for option in options.items() for word in option)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + SECONDS
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), SECONDS) as connection:
                    connection.sendall(b"PING\r\n")
                    if connection.recv(100).startswith(b"+PONG"):
                        return
            except OSError:
                pass
            assert self._process.poll() is None and time.monotonic() < end, "redis-server did not start"
            time.sleep(0.02)

    def kill(self) -> None:
        """End at once, by SIGKILL."""
        self._process.kill()
        self._process.wait()

    def hang(self) -> None:
        """Answer nothing until `resume`."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def redis_server(folder: Path, durable: bool = True) -> Iterator[RedisServer]:
    """Run a server while the block runs. Skip the test where there is none."""
    pytest.importorskip("redis", reason="the client of Redis comes with the extra `store`")
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    server = RedisServer(folder, durable)
    try:
        yield server
    finally:
        server.kill()
