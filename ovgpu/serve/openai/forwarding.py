"""Calls of OpenAI's protocol that a front end passes on to the process of the models, which writes their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from itertools import count
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ovgpu.serve.calls import Call
from ovgpu.serve.disconnects import while_connected
from ovgpu.serve.errors import Status
from ovgpu.serve.openai.routes import UPLOADS, Handler, OpenAI, ReadUpload
from ovgpu.serve.openai.running import INTERFACE

Endpoint = tuple[str, str]
"""Verb and path of a route."""

Forward = Callable[..., Awaitable[tuple[str, str, str, str]]]
"""Function that calls `answer` in the other process, with the number of a sender before the arguments."""


class Senders:
    """Functions that send an answer to a client, by numbers, for the process of the models.

    That process waits until a message was sent before it makes the next one: a client that reads slowly holds no
    memory.
    """

    def __init__(self) -> None:
        self._numbers, self._sends = count(), dict[int, Send]()

    def add(self, send: Send) -> int:
        """Return a number for the function of a call."""
        number = next(self._numbers)
        self._sends[number] = send
        return number

    def remove(self, number: int) -> None:
        """Forget the function of a call."""
        del self._sends[number]

    async def send(self, number: int, message: Message) -> None:
        """Send a message of ASGI, unless the client has disconnected."""
        send = self._sends.get(number)
        if send is not None:
            await send(message)


class Forwarding(OpenAI):
    """Handlers of a front end, which pass all calls on. ``read_body`` returns the bytes of JSON."""

    def __init__(
        self,
        service: Any,
        check_access: Callable[[Request, str], None],
        read_body: Callable[[Request], Awaitable[Any]],
        read_upload: ReadUpload,
        forward: Forward,
        senders: Senders,
    ) -> None:
        super().__init__(service, check_access, read_body, read_upload)
        self.forward, self.senders = forward, senders
        self.endpoints = {key: (method, self._passing(key, method)) for key, (method, _) in self.endpoints.items()}

    def _passing(self, endpoint: Endpoint, method: str) -> Handler:
        async def handler(request: Request, call: Call) -> Response:
            with ExitStack() as stack:
                body: Any = b""
                if method in UPLOADS:
                    body, free = await self._read_upload(request)
                    stack.callback(free)
                elif request.method == "POST":
                    body = await self._read_json(request)
                return _Forwarded(self, endpoint, request, bytes(body), call, stack.pop_all())

        return handler


class _Forwarded(Response):
    """Response that another process writes. If the client disconnects, it ends. It closes ``held`` at its end."""

    def __init__(
        self, openai: Forwarding, endpoint: Endpoint, request: Request, body: bytes, call: Call, held: ExitStack
    ) -> None:
        super().__init__()
        self._openai, self._endpoint, self._request, self._body, self._call = openai, endpoint, request, body, call
        self._held, self._begun = held, False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call, openai = self._call, self._openai

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._begun = True
                own = [header for header in self.raw_headers if header[0] == b"connection"]  # of a server that drains
                message = {**message, "headers": [*message["headers"], *own]}
            await send(message)

        number = openai.senders.add(sending)
        try:
            kind = self._request.headers.get("content-type", "")
            work = openai.forward(number, self._endpoint, self._request.path_params, self._body, kind)
            call.model, call.version, status, call.error = await while_connected(self._request, work)
            call.status = Status[status]
        except Exception as error:
            failure = openai.failure(call, error)
            if not self._begun:  # else the connection is closed before the end of the answer
                await failure(scope, receive, send)
        finally:
            openai.senders.remove(number)
            self._held.close()


async def answer(
    openai: OpenAI, send: Send, endpoint: Endpoint, parameters: dict[str, str], body: bytes, kind: str
) -> tuple[str, str, str, str]:
    """Answer a call, whose body has the content type ``kind``, by messages of ASGI.

    Return what the access log has of it: model, version, status and error.
    """
    method, handler = openai.endpoints[endpoint]
    call, messages = Call(INTERFACE, method, ""), iter([{"type": "http.request", "body": body}])

    async def receive() -> Message:
        for message in messages:
            return message
        never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        return await never  # the front end cancels the call if its client disconnects

    verb, path = endpoint
    headers = [(b"content-type", kind.encode("latin-1"))]
    scope = {"type": "http", "method": verb, "path": path, "headers": headers, "path_params": parameters}
    response = await openai.response(Request(scope, receive), call, method, handler)
    await response(scope, receive, send)
    return call.model, call.version, call.status.name, call.error
