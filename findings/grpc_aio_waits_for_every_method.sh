#!/usr/bin/env bash
# A server of grpc.aio waits, for each call, for all registered methods one by one: the more methods a service has, the more a call costs.
# Version: grpcio 1.85.3.
# Source: generated code registers the methods of a service (add_registered_method_handlers) "to look up handlers faster".
# Expected from that: a call costs the same whatever other methods there are. Seen: asyncio.wait gets a task of each method for
# each call, and adds and removes a callback of each. Without registered methods it gets a single task.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet grpcio==1.85.3
"$folder/venv/bin/python" <<'PYTHON'
import asyncio

import grpc

CALLS = 50


async def waits(methods, registered):
    """Return the number of calls of asyncio.wait, and the most tasks in one, while the first method is called."""

    async def echo(request, context):
        return request

    sizes, original = [], asyncio.wait

    async def counted(tasks, *args, **options):
        sizes.append(len(tasks))
        return await original(tasks, *args, **options)

    handlers = {f"Method{i}": grpc.unary_unary_rpc_method_handler(echo) for i in range(methods)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", handlers),))
    if registered:  # as generated code does
        server.add_registered_method_handlers("test.Service", handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    asyncio.wait = counted
    try:
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/test.Service/Method0")
            for _ in range(CALLS):
                assert await call(b"x") == b"x"
        await server.stop(None)
    finally:
        asyncio.wait = original
    return len(sizes), max(sizes, default=0)


print("grpcio", grpc.__version__)
for methods in (1, 20, 200):
    for registered in (False, True):
        number, most = asyncio.run(waits(methods, registered))
        print(f"{methods:3} methods, registered: {registered!s:5} -> {number} waits for {CALLS} calls, of up to {most} tasks")
        assert number >= CALLS and most == 1 + registered * methods
PYTHON
