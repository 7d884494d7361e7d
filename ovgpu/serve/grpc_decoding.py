"""Class DecodingInterceptor: answers gRPC messages that cannot be decoded with INVALID_ARGUMENT.

The package grpc itself answers them with UNKNOWN.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

MALFORMED = object()  # stands for a message that cannot be decoded
TEXT = "the message is malformed"


class DecodingInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Interceptor that wraps the handlers of all methods."""

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """Return the handler of a method, wrapped so that it gets decoded messages only."""
        handler = await continuation(details)
        if handler is None:  # there is no such method
            return None

        def decode(data: bytes) -> Any:
            try:
                return handler.request_deserializer(data)
            except DecodeError:
                return MALFORMED

        async def answer(request: Any, context: Any) -> Any:
            if request is MALFORMED:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, TEXT)
            return await handler.unary_unary(request, context)

        async def stream(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            malformed = False

            async def decoded() -> AsyncIterator[Any]:
                nonlocal malformed
                async for request in requests:
                    malformed = request is MALFORMED
                    if malformed:
                        return
                    yield request

            async for response in handler.stream_stream(decoded(), context):
                yield response
            if malformed:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, TEXT)

        if handler.stream_stream:
            return grpc.stream_stream_rpc_method_handler(stream, decode, handler.response_serializer)
        return grpc.unary_unary_rpc_method_handler(answer, decode, handler.response_serializer)
