"""Class HttpProtocol: limits for the heads of HTTP requests and for unread answers, which uvicorn does not have."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ovgpu.serve.held_bytes import HeldBytes

MAX_HEAD = 1 << 16  # bytes
HEAD_SECONDS = 30.0  # within which a head must arrive
ANSWER_SECONDS = 60.0  # within which a client must read an answer
LAST_SECONDS = 0.1  # within which a request that has already been sent arrives at a server that stops


class HttpProtocol(HttpToolsProtocol):
    """Connection of HTTP/1.1. It is closed if the head of a request, or data after a body, is too long or too slow.

    It is also closed if its client does not read an answer in time. Until then, the answer counts as ``held``, and the
    next request of the connection waits. A server that stops answers a request that has been sent by then.
    """

    def __init__(self, *args: Any, held: HeldBytes, **options: Any) -> None:
        super().__init__(*args, **options)
        self._head = 0  # bytes since the last end of a head, part of a body, or end of a request
        self._timer: asyncio.TimerHandle | None = None
        self._held, self._unread = held, 0  # bytes that the operating system has not taken yet
        self._unread_timer: asyncio.TimerHandle | None = None
        self._is_last = False
        answer = self.app

        async def answer_when_writable(scope: Any, receive: Any, send: Any) -> None:
            await self.flow.drain()
            await answer(scope, receive, partial(self._send, send))

        self.app = answer_when_writable

    async def _send(self, send: Any, message: Any) -> None:
        """Send a message, or nothing if the client has disconnected.

        uvloop's transport raises an exception for that until the event loop calls `connection_lost`.
        """
        if self.transport.is_closing():
            send.__self__.disconnected = True
        await send(message)

    def shutdown(self) -> None:
        """Close the connection behind the answer to the request that runs, or that the client has already sent."""
        if self.cycle is None or self.cycle.response_complete:
            self._is_last = True
            self.loop.call_later(LAST_SECONDS, super().shutdown)
        else:
            super().shutdown()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(1)  # `pause_writing` tells that bytes wait; for TLS, 0 would always pause
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._end_unread()
        self.app = self.config.loaded_app  # ends the cycle of references, for requests with much memory
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.transport.get_write_buffer_size()
        self._held.keep(self._unread)
        self._unread_timer = self.loop.call_later(ANSWER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        self._end_unread()
        super().resume_writing()

    def _end_unread(self) -> None:
        self._held.release(self._unread)
        self._unread = 0
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def data_received(self, data: bytes) -> None:
        self._head += len(data)
        super().data_received(data)
        if self._head > MAX_HEAD:
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start_timer()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._head = 0
        super().on_headers_complete()
        if self._is_last:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._head = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._head = 0
        super().on_message_complete()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
