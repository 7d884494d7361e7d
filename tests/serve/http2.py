"""A client of gRPC that speaks HTTP/2 by hand, and leaves undone what a library would do."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.harness.servers.serving import SECONDS, Serving
from tests.serve.wire import SERVICE

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
ACK = END_STREAM = 1
END_HEADERS = 4
INITIAL_WINDOW_SIZE = 4  # a setting
WINDOW = 65535  # bytes, unless a setting says otherwise
MAX_FRAME = 1 << 14  # bytes


class Http2:
    """One connection of the loopback address ``host``. ``window`` is the number of bytes of an answer that the server
    may send."""

    def __init__(self, port: int, window: int = WINDOW, host: str = "127.0.0.1") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), SECONDS, (host, 0))
        self._received = b""
        self._window = self._initial_window = WINDOW
        self._windows: dict[int, int] = {}  # of open streams
        self.answered: set[int] = set()  # streams with an answer, or a part of it
        self.ended: set[int] = set()  # streams that the server has ended
        self.closed = False
        self._socket.sendall(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, window)))

    def close(self) -> None:
        self._socket.close()

    def call(self, method: str, token: str = "") -> int:
        """Begin a call, and return the number of its stream."""
        number = 2 * (len(self._windows) + len(self.ended)) + 1
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": method if method.startswith("/") else SERVICE + method,
            ":authority": "localhost",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        if token:
            headers["authorization"] = f"Bearer {token}"
        self._windows[number] = self._initial_window
        self._send(frame(HEADERS, END_HEADERS, number, b"".join(_header(*item) for item in headers.items())))
        return number

    def send(self, stream: int, data: bytes, end: bool = False) -> int:
        """Send bytes, and return how many the server takes before it ends the stream, or takes none for a second."""
        sent, stopped = 0, time.monotonic() + 1
        while sent < len(data) and stream in self._windows and not self.closed and time.monotonic() < stopped:
            size = min(self._window, self._windows[stream], MAX_FRAME, len(data) - sent)
            if size:
                last = END_STREAM * (end and sent + size == len(data))
                self._send(frame(DATA, last, stream, data[sent : sent + size]))
                self._window -= size
                self._windows[stream] -= size
                sent, stopped = sent + size, time.monotonic() + 1
            self.receive(0.0 if size else 0.02)
        return sent

    def receive(self, seconds: float) -> None:
        """Take frames for so many seconds, or until the connection is closed."""
        end = time.monotonic() + seconds
        while not self.closed:
            self._socket.settimeout(max(end - time.monotonic(), 1e-4))
            try:
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                return
            except ConnectionError:
                data = b""
            self.closed = not data
            self._received += data
            while len(self._received) >= 9 and len(self._received) >= 9 + (size := _number(self._received[:3])):
                kind, flags, stream = self._received[3], self._received[4], _number(self._received[5:9])
                self._take(kind, flags, stream, self._received[9 : 9 + size])
                self._received = self._received[9 + size :]

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == WINDOW_UPDATE and stream == 0:
            self._window += _number(payload)
        elif kind == WINDOW_UPDATE and stream in self._windows:
            self._windows[stream] += _number(payload)
        elif kind == SETTINGS and not flags & ACK:
            for setting, value in struct.iter_unpack(">HI", payload):
                if setting == INITIAL_WINDOW_SIZE:
                    change, self._initial_window = value - self._initial_window, value
                    self._windows = {number: size + change for number, size in self._windows.items()}
            self._send(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self._send(frame(PING, ACK, 0, payload))
        elif kind == DATA:
            self.answered.add(stream)
        elif kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM):
            self._windows.pop(stream, None)
            self.ended.add(stream)

    def _send(self, data: bytes) -> None:
        self._socket.settimeout(SECONDS)
        try:
            self._socket.sendall(data)
        except ConnectionError:
            self.closed = True


@contextmanager
def connections(server: Serving, count: int, window: int = WINDOW) -> Iterator[list[Http2]]:
    """Connect several times while the block runs."""
    found = [Http2(server.server.grpc_port, window) for _ in range(count)]
    try:
        yield found
    finally:
        for connection in found:
            connection.close()


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return a frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def prefixed(message: bytes, size: int | None = None) -> bytes:
    """Return a message of gRPC, uncompressed. ``size`` is the one it claims to have."""
    return b"\0" + (len(message) if size is None else size).to_bytes(4, "big") + message


def _header(name: str, value: str) -> bytes:
    """Return a header as a literal of HPACK (RFC 7541, 6.2.3)."""
    return b"\x10" + b"".join(_length(len(text)) + text.encode() for text in (name, value))


def _length(size: int) -> bytes:
    """Return a length as an integer with a prefix of 7 bits (RFC 7541, 5.1)."""
    if size < 127:
        return bytes([size])
    size -= 127
    return bytes([127, *([size % 128 + 128, size >> 7] if size > 127 else [size])])


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big")
