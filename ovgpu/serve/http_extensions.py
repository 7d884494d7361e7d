"""Triton's extensions over REST that are beside inferences and models: shared memory, settings, generate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ovgpu.serve.calls import Call
from ovgpu.serve.errors import ServeError, Status
from ovgpu.serve.log_settings import NO_TRACE, settings
from ovgpu.serve.shared_memory import NO_CUDA, SharedMemory

Handler = Callable[[Request, Call], Awaitable[Response]]
MakeRoute = Callable[[str, str, str, Handler], Route]
"""Function of a verb, a path, the name of the call in gRPC, and its handler."""
ReadJson = Callable[[Request], Awaitable[dict[str, Any]]]


def extension_routes(route: MakeRoute, read_json: ReadJson, memory: SharedMemory) -> list[Route]:
    """Return the routes of the extensions."""
    return [
        *_system_memory(route, read_json, memory),
        *_cuda_memory(route),
        *_log(route, read_json),
        *_trace(route),
        *_generate(route),
    ]


def _system_memory(route: MakeRoute, read_json: ReadJson, memory: SharedMemory) -> list[Route]:
    def region(request: Request) -> str:
        name: str = request.path_params.get("region", "")
        return name

    async def status(request: Request, call: Call) -> Response:
        return JSONResponse(memory.status(region(request)))

    async def register(request: Request, call: Call) -> Response:
        given = await read_json(request)
        memory.register(region(request), given.get("key"), given.get("offset", 0), given.get("byte_size"))
        return JSONResponse({})

    async def unregister(request: Request, call: Call) -> Response:
        memory.unregister(region(request))
        return JSONResponse({})

    all_regions, one = "/v2/systemsharedmemory", "/v2/systemsharedmemory/region/{region}"
    return [
        route("POST", f"{one}/register", "SystemSharedMemoryRegister", register),
        *[route("GET", f"{path}/status", "SystemSharedMemoryStatus", status) for path in (all_regions, one)],
        *[
            route("POST", f"{path}/unregister", "SystemSharedMemoryUnregister", unregister)
            for path in (all_regions, one)
        ],
    ]


def _cuda_memory(route: MakeRoute) -> list[Route]:
    refuse = _refusing(NO_CUDA)
    all_regions, one = "/v2/cudasharedmemory", "/v2/cudasharedmemory/region/{region}"
    return [
        route("POST", f"{one}/register", "CudaSharedMemoryRegister", refuse),
        *[route("GET", f"{path}/status", "CudaSharedMemoryStatus", refuse) for path in (all_regions, one)],
        *[route("POST", f"{path}/unregister", "CudaSharedMemoryUnregister", refuse) for path in (all_regions, one)],
    ]


def _log(route: MakeRoute, read_json: ReadJson) -> list[Route]:
    async def show(request: Request, call: Call) -> Response:
        return JSONResponse(settings.values())

    async def change(request: Request, call: Call) -> Response:
        settings.update(await read_json(request))
        return JSONResponse(settings.values())

    return [route("GET", "/v2/logging", "LogSettings", show), route("POST", "/v2/logging", "LogSettings", change)]


def _trace(route: MakeRoute) -> list[Route]:
    refuse = _refusing(NO_TRACE)
    paths = ("/v2/trace/setting", "/v2/models/{model}/trace/setting")
    return [route(verb, path, "TraceSetting", refuse) for path in paths for verb in ("GET", "POST")]


def _generate(route: MakeRoute) -> list[Route]:
    refuse = _refusing("generate is not supported: text is computed by inferences of a model with states")
    model = "/v2/models/{model}"
    return [
        route("POST", f"{path}/{call}", "Generate", refuse)
        for path in (model, f"{model}/versions/{{version}}")
        for call in ("generate", "generate_stream")
    ]


def _refusing(text: str) -> Handler:
    """Return the handler of a call that Triton has, and this server has not."""

    async def refuse(request: Request, call: Call) -> Response:
        raise ServeError(Status.UNIMPLEMENTED, text)

    return refuse
