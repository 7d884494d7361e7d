"""Class HealthService: gRPC's health checking protocol, by which Kubernetes and load balancers ask for health."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from ovgpu.serve.errors import ServeError, Status
from ovgpu.serve.service import Service

messages: Any = health_pb2  # Any, because the module makes its classes when it is imported

SERVER = ("", "inference.GRPCInferenceService")  # services that are the server; others are models
WATCH_SECONDS = 0.5  # after which a watched status is looked at again


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Service ``grpc.health.v1.Health``. The service "" is the server, and the name of a model is a service, too.

    NOTE: The package has a servicer, but when one of several watchers of a service leaves, the others hear no more.
    """

    def __init__(self, service: Service) -> None:
        self._service = service

    async def Check(self, request: Any, context: Any) -> Any:
        """Return the status of a service. Raise ServeError if there is no such service."""
        status = await self.status(request.service)
        if status is None:
            raise ServeError(Status.NOT_FOUND, f"there is no model '{request.service}'")
        return messages.HealthCheckResponse(status=status)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """Yield the status of a service now, and whenever it has changed, until the server stops."""
        last, stopping = None, self._service.stopping
        while True:
            status = await self.status(request.service)
            if status is None:
                status = messages.HealthCheckResponse.SERVICE_UNKNOWN
            if status != last:
                yield messages.HealthCheckResponse(status=status)
            if stopping.is_set():
                return
            last = status
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_SECONDS):
                    await stopping.wait()

    async def status(self, name: str) -> int | None:
        """Return the status of a service, or None if it is no model of the repository."""
        service, models = self._service, self._service.models
        if name in SERVER:
            serving = service.ready
        elif models.has(name):
            serving = service.accepting and not service.draining and name in models.current
        else:
            return None
        found: int = messages.HealthCheckResponse.SERVING if serving else messages.HealthCheckResponse.NOT_SERVING
        return found
