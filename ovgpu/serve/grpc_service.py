"""GRPCInferenceService of KServe v2, with Triton's streams, repository, configuration and statistics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from tritonclient.grpc import service_pb2_grpc

from ovgpu.serve import descriptions, log_settings
from ovgpu.serve.calls import Call, recorded
from ovgpu.serve.errors import ServeError, Status
from ovgpu.serve.grpc_guard import INTERFACE, metadata
from ovgpu.serve.grpc_messages import format, messages, parameters_of, parse, set_parameters
from ovgpu.serve.held_bytes import HeldAnswers, HeldBytes
from ovgpu.serve.load_options import load_options
from ovgpu.serve.models import Models
from ovgpu.serve.service import Service
from ovgpu.serve.shared_memory import NO_CUDA

LARGE = 1 << 18  # bytes: longer messages are converted on another thread than the event loop's
MAX_OUTSTANDING = 128  # inferences of a stream: no more are read until the client has taken their responses


def _whole(models: Models, request: Any) -> Models:
    """Return the models of the only repository. Raise ServeError if a request names one."""
    if request.repository_name:
        raise ServeError(Status.UNIMPLEMENTED, "repository_name is not supported: there is one repository")
    return models


def _refusing(method: str, text: str) -> Any:
    """Return the method of a call that Triton has, and this server has not."""

    async def refuse(self: GrpcService, request: Any, context: Any) -> Any:
        def fail() -> Any:
            raise ServeError(Status.UNIMPLEMENTED, text)

        return await self._describe(method, request, context, fail)

    return refuse


class GrpcService(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Methods of the service, named as the protocol has them. They raise ServeError."""

    def __init__(self, service: Service, held: HeldBytes) -> None:
        self._service, self._held = service, held
        self._readers: set[asyncio.Task[None]] = set()

    # ---- inference

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        """Run an inference."""
        return await self._answer("ModelInfer", request, context, lambda call: self._infer(request, context, call))

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Run the inferences of a stream, side by side, and yield their responses in the order of the requests."""
        answers = asyncio.Queue[asyncio.Task[Any] | None]()
        capacity = asyncio.Semaphore(MAX_OUTSTANDING)
        running = set[asyncio.Task[Any]]()
        unread = HeldAnswers(self._held)

        async def read() -> None:
            try:
                while True:
                    await capacity.acquire()
                    task = asyncio.create_task(self._streamed(await anext(requests), context, unread))
                    running.add(task)
                    task.add_done_callback(running.discard)
                    answers.put_nowait(task)
            except StopAsyncIteration:
                pass
            finally:
                answers.put_nowait(None)

        reader = asyncio.create_task(read())
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)
        try:
            while (task := await answers.get()) is not None:
                response = await task
                yield response
                unread.remove(response.ByteSize())
                capacity.release()
        finally:
            unread.close()
            for running_task in (reader, *running):
                running_task.cancel()

    def end_streams(self) -> None:
        """Read no more requests from streams. They end with the responses to the requests that were read."""
        for reader in self._readers:
            reader.cancel()

    async def _streamed(self, request: Any, context: Any, unread: HeldAnswers) -> Any:
        """Return the response to an inference of a stream, which has a field for an error."""
        with recorded(INTERFACE, "ModelStreamInfer", context.peer(), partial(metadata, context)) as call:
            call.model, call.id = request.model_name, request.id
            try:
                response = messages.ModelStreamInferResponse(infer_response=await self._infer(request, None, call))
            except Exception as error:
                empty = messages.ModelInferResponse(model_name=request.model_name, id=request.id)
                response = messages.ModelStreamInferResponse(error_message=str(call.fail(error)), infer_response=empty)
        response.infer_response.parameters["triton_final_response"].bool_param = True  # each request has one response
        unread.add(response.ByteSize())
        return response

    async def _infer(self, request: Any, context: Any | None, call: Call) -> Any:
        size, left = request.ByteSize(), None if context is None else context.time_remaining()
        with self._held.holding(size):
            inference = parse(request, left) if size < LARGE else await asyncio.to_thread(parse, request, left)
            response = await self._service.infer(inference, INTERFACE, call.method)
        call.version, call.sequence = response.version, response.parameters.get("sequence_id", "")
        return format(response)

    # ---- server and models

    async def ServerLive(self, request: Any, context: Any) -> Any:
        """Tell that the server runs."""
        return messages.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:
        """Tell whether inferences are accepted for all models."""
        return messages.ServerReadyResponse(ready=self._service.ready)

    async def ModelReady(self, request: Any, context: Any) -> Any:
        """Tell whether a model is loaded."""

        def ready() -> Any:
            try:
                self._service.models.find(request.name, request.version)
            except ServeError:
                return messages.ModelReadyResponse(ready=False)
            return messages.ModelReadyResponse(ready=self._service.accepting)

        return await self._describe("ModelReady", request, context, ready)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        """Return the server's metadata."""
        return await self._describe(
            "ServerMetadata",
            request,
            context,
            lambda: messages.ServerMetadataResponse(**descriptions.server(self._service.memory.enabled)),
        )

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        """Return a model's metadata."""
        return await self._describe(
            "ModelMetadata",
            request,
            context,
            lambda: messages.ModelMetadataResponse(
                **descriptions.model(self._service.models, request.name, request.version)
            ),
        )

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        """Return a model's configuration."""
        return await self._describe(
            "ModelConfig",
            request,
            context,
            lambda: messages.ModelConfigResponse(
                config=descriptions.config(self._service.models.find(request.name, request.version))
            ),
        )

    async def ModelStatistics(self, request: Any, context: Any) -> Any:
        """Return the statistics of a model, or of all."""
        return await self._describe(
            "ModelStatistics",
            request,
            context,
            lambda: messages.ModelStatisticsResponse(
                model_stats=descriptions.all_statistics(self._service.models, request.name, request.version)
            ),
        )

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:
        """Return the models of the repository."""
        return await self._describe(
            "RepositoryIndex",
            request,
            context,
            lambda: messages.RepositoryIndexResponse(
                models=descriptions.index(_whole(self._service.models, request), request.ready)
            ),
        )

    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:
        """Load a model."""

        async def load(call: Call) -> Any:
            call.model = request.model_name
            options = await asyncio.to_thread(load_options, parameters_of(request.parameters))
            await _whole(self._service.models, request).load(request.model_name, options)
            return messages.RepositoryModelLoadResponse()

        return await self._answer("RepositoryModelLoad", request, context, load)

    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:
        """Unload a model."""

        async def unload(call: Call) -> Any:
            call.model = request.model_name
            await _whole(self._service.models, request).unload(request.model_name)
            return messages.RepositoryModelUnloadResponse()

        return await self._answer("RepositoryModelUnload", request, context, unload)

    # ---- shared memory

    async def SystemSharedMemoryStatus(self, request: Any, context: Any) -> Any:
        """Return a region of shared memory, or all."""
        return await self._describe(
            "SystemSharedMemoryStatus",
            request,
            context,
            lambda: messages.SystemSharedMemoryStatusResponse(
                regions={region["name"]: region for region in self._service.memory.status(request.name)}
            ),
        )

    async def SystemSharedMemoryRegister(self, request: Any, context: Any) -> Any:
        """Register a region of shared memory."""

        def register() -> Any:
            self._service.memory.register(request.name, request.key, request.offset, request.byte_size)
            return messages.SystemSharedMemoryRegisterResponse()

        return await self._describe("SystemSharedMemoryRegister", request, context, register)

    async def SystemSharedMemoryUnregister(self, request: Any, context: Any) -> Any:
        """Unregister a region of shared memory, or all."""

        def unregister() -> Any:
            self._service.memory.unregister(request.name)
            return messages.SystemSharedMemoryUnregisterResponse()

        return await self._describe("SystemSharedMemoryUnregister", request, context, unregister)

    CudaSharedMemoryStatus = _refusing("CudaSharedMemoryStatus", NO_CUDA)
    CudaSharedMemoryRegister = _refusing("CudaSharedMemoryRegister", NO_CUDA)
    CudaSharedMemoryUnregister = _refusing("CudaSharedMemoryUnregister", NO_CUDA)

    # ---- settings

    async def LogSettings(self, request: Any, context: Any) -> Any:
        """Change settings of the log, and return all."""

        def change() -> Any:
            log_settings.settings.update(parameters_of(request.settings))
            response = messages.LogSettingsResponse()
            set_parameters(response.settings, log_settings.settings.values())
            return response

        return await self._describe("LogSettings", request, context, change)

    TraceSetting = _refusing("TraceSetting", log_settings.NO_TRACE)

    # ---- calls

    async def _describe(self, method: str, request: Any, context: Any, describe: Callable[[], Any]) -> Any:
        async def answer(call: Call) -> Any:
            return describe()

        return await self._answer(method, request, context, answer)

    async def _answer(self, method: str, request: Any, context: Any, answer: Callable[[Call], Awaitable[Any]]) -> Any:
        """Return the response to a call, or raise its error as the client may see it. Record the call."""
        with recorded(INTERFACE, method, context.peer(), partial(metadata, context)) as call:
            call.model = getattr(request, "model_name", "") or getattr(request, "name", "")
            call.id = getattr(request, "id", "")
            try:
                return await answer(call)
            except Exception as error:
                failure = call.fail(error)
            except asyncio.CancelledError:
                call.status = Status.CANCELLED
                raise
        raise failure
