"""Class GuardInterceptor: limits of gRPC calls that apply before a message is received, and until its answer is read.

The package grpc receives the message of a unary call before it calls the handler. It tells nothing of a message until
all of it is there, and cannot take an answer back. Therefore all handlers are handlers of streams here, which read
their messages themselves, and an answer that nobody reads ends with its connection.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import Any
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError

from ovgpu.serve.calls import recorded
from ovgpu.serve.deadlines import Deadlines, Limit, Timer
from ovgpu.serve.errors import ServeError, Status, invalid
from ovgpu.serve.health_calls import HealthCalls
from ovgpu.serve.held_bytes import HeldBytes
from ovgpu.serve.tokens import Tokens

INTERFACE = "gRPC"
LIVE = ("ServerLive", "ServerReady")  # methods that need no token; their messages, which are empty, are not read
HEALTH = "/grpc.health.v1.Health/"  # service that needs no token
LATE_SECONDS = 0.25  # after which a message that has not arrived counts as held
MESSAGE_SECONDS = 60.0  # within which a message must arrive
ANSWER_SECONDS = 60.0  # within which a client must read an answer
COPIES = 2  # of the bytes of an answer until they are read: grpc copies them
LATE = "the message has not arrived in time"
SOCKETS = "/dev/fd"  # folder of the open files of this process

log = logging.getLogger(__name__)


class GuardInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Interceptor that wraps the handlers of all methods. They may raise ServeError.

    At most ``max_calls`` calls are open at a time. A message has up to ``message_bytes``. A stream ends when no message
    has arrived for ``idle_seconds``.
    """

    def __init__(
        self, tokens: Tokens | None, held: HeldBytes, message_bytes: int, max_calls: int, idle_seconds: float
    ) -> None:
        self._tokens, self._held, self._message_bytes = tokens, held, message_bytes
        self._max_calls, self._idle_seconds = max_calls, idle_seconds
        self._calls, self._health = 0, HealthCalls(max_calls)
        self._late, self._messages = Deadlines(LATE_SECONDS), Deadlines(MESSAGE_SECONDS - LATE_SECONDS)
        self._idle, self._unread = Deadlines(idle_seconds), Deadlines(ANSWER_SECONDS)
        self._wrapped: dict[str, Any] = {}  # handlers by method

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """Return the handler of a method, wrapped; None if there is no such method."""
        wrapped = self._wrapped.get(details.method)
        if wrapped is None:
            handler = await continuation(details)
            if handler is None:
                return None
            wrapped = self._wrapped[details.method] = self._wrap(handler, details.method)
        return wrapped

    def _wrap(self, handler: Any, path: str) -> Any:
        """Return a handler that receives its messages itself."""
        method, health = path.rpartition("/")[2], path.startswith(HEALTH)

        async def received(context: Any) -> Any:
            try:
                if health:
                    return _decoded(handler, await self._received_health(context))
                self._admit(method, context)
                return _decoded(handler, await self._received(context))
            except ServeError as error:
                _record_refusal(method, context, error)
                raise

        async def answer(requests: Any, context: Any) -> Any:
            try:
                request = None if method in LIVE else await received(context)
                data: bytes = handler.response_serializer(await handler.unary_unary(request, context))
                self._count_until_sent(context, COPIES * len(data))
                return data
            except ServeError as error:
                failure = _without_frames(error)
            await self._abort(context, failure)

        async def stream(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            failure: ServeError | None = None

            async def decoded() -> AsyncIterator[Any]:
                nonlocal failure
                try:
                    while True:
                        data = await self._idle.limit(context.read())
                        if data is grpc.aio.EOF:
                            return
                        self._authorise(method, context)  # again: the token may have been withdrawn
                        yield _decoded(handler, data)
                except TimeoutError:
                    text = f"the stream had no inference for {self._idle_seconds:g} seconds"
                    failure = ServeError(Status.DEADLINE_EXCEEDED, text)
                except ServeError as error:
                    failure = _without_frames(error)

            try:
                if handler.stream_stream:
                    try:
                        self._admit(method, context)
                    except ServeError as error:
                        _record_refusal(method, context, error)
                        raise
                    responses = handler.stream_stream(decoded(), context)
                else:
                    responses = handler.unary_stream(await received(context), context)
                async for response in responses:
                    timer = self._close_if_unread(context)
                    try:
                        yield handler.response_serializer(response)
                    finally:
                        timer.cancel()
            except ServeError as error:
                failure = _without_frames(error)
            if failure is not None:
                await self._abort(context, failure)

        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.stream_unary_rpc_method_handler(answer)

    def _admit(self, method: str, context: Any) -> None:
        """Count a call until it ends. Raise ServeError if no token allows it, or if too many are open."""
        self._authorise(method, context)
        if self._calls >= self._max_calls:
            raise ServeError(Status.UNAVAILABLE, f"{self._calls} calls are open already", 1)
        self._calls += 1
        _when_done(self._end)

    def _authorise(self, method: str, context: Any) -> None:
        """Raise ServeError if no token allows a call."""
        if self._tokens is not None:
            self._tokens.authorise(metadata(context).get("authorization", ""), method)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._calls -= 1

    async def _received_health(self, context: Any) -> bytes:
        """Return the message of a call of health. Raise ServeError if it is late, or if too many others are open."""
        host = context.peer().rpartition(":")[0]
        self._health.admit(host)
        _when_done(lambda task: self._health.end(host))
        try:
            return _present(await self._health.received(context, host))
        except TimeoutError:
            raise ServeError(Status.DEADLINE_EXCEEDED, LATE) from None

    async def _received(self, context: Any) -> bytes:
        """Return the message of a unary call. Raise ServeError if it is late, or if too many others are.

        Nothing is known of a message that has not arrived, so that it counts as if it were as large as possible. Small
        messages of clients that are not slow arrive before that.
        """
        limit, claimed = Limit(), 0
        timer: Timer

        def claim() -> None:
            nonlocal claimed, timer
            try:
                self._held.reserve(self._message_bytes)
            except ServeError as error:
                limit.end(error)
            else:
                claimed = self._message_bytes
                timer = self._messages.start(partial(limit.end, ServeError(Status.DEADLINE_EXCEEDED, LATE)))

        timer = self._late.start(claim)
        try:
            return _present(await limit.wait(context.read()))
        finally:
            timer.cancel()
            self._held.release(claimed)

    def _count_until_sent(self, context: Any, size: int) -> None:
        """Count the answer of a unary call as held until its client has read it, which it must do in time."""
        timer = self._close_if_unread(context)
        self._held.keep(size)

        def sent(task: asyncio.Task[Any]) -> None:
            timer.cancel()
            self._held.release(size)

        _when_done(sent)

    async def _abort(self, context: Any, error: ServeError) -> None:
        """End a call with the status of an error. Raises: the exception by which grpc ends the handler."""
        retry = error.retry_after
        pushback = () if retry is None else (("grpc-retry-pushback-ms", str(1000 * retry)),)
        timer = self._close_if_unread(context)
        try:
            await context.abort(getattr(grpc.StatusCode, error.status.name), str(error), pushback)
        finally:
            timer.cancel()

    def _close_if_unread(self, context: Any) -> Timer:
        """Return a timer that closes the connection of a call, unless it is cancelled when the answer is sent."""
        return self._unread.start(lambda: _close_connection(context.peer()))


def _record_refusal(method: str, context: Any, error: ServeError) -> None:
    """Record a call that ends before its handler learns of it."""
    with recorded(INTERFACE, method, context.peer(), partial(metadata, context)) as call:
        call.fail(error)


def _when_done(callback: Callable[[asyncio.Task[Any]], None]) -> None:
    """Call a function when this call has ended: its answer is read, or it is cancelled.

    A callback of the context would make a cycle of references, which keeps the call until garbage is collected.
    """
    task = asyncio.current_task()
    assert task is not None
    task.add_done_callback(callback)


def metadata(context: Any) -> dict[str, str]:
    """Return the metadata of a call that are text, by their keys."""
    return {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}


def _present(data: Any) -> bytes:
    """Return a message that was received. Raise ServeError if the call has ended without one."""
    if data is grpc.aio.EOF:
        raise invalid("the call has no message")
    received: bytes = data
    return received


def _decoded(handler: Any, data: bytes) -> Any:
    try:
        return handler.request_deserializer(data)
    except DecodeError:
        raise invalid("the message is malformed") from None


def _without_frames(error: ServeError) -> ServeError:
    """Return an error without its frames: they hold messages, and grpc keeps an error as long as its call."""
    error.__traceback__ = error.__context__ = None
    return error


def _close_connection(peer: str) -> None:
    """Close the connection of a peer, such as ``ipv4:127.0.0.1:5000``. With it, all its calls end.

    grpc has no function for this. Its answers stay in memory until the client reads them or the connection is gone.
    """
    host, _, port = unquote(peer.partition(":")[2]).rpartition(":")
    wanted = (_plain(host.strip("[]")), int(port))
    log.warning("the connection of %s is closed: its client has not read an answer in time", peer)
    for name in os.listdir(SOCKETS):
        with suppress(OSError):  # the file was closed meanwhile, or is a socket without a peer
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as connection:
                    found = connection.getpeername()
                    if isinstance(found, tuple) and (_plain(found[0]), found[1]) == wanted:
                        connection.shutdown(socket.SHUT_RDWR)


def _plain(host: str) -> str:
    """Return an address in its canonical form, as IPv4 if it is one that IPv6 maps."""
    address = ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)
