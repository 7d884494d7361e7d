"""Deployments of models with Ray Serve: the application, and its replicas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from ray import serve
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ovgpu.errors import Error
from ovgpu.integrations.ray.models import digest, read
from ovgpu.serve.access import AllowedHosts
from ovgpu.serve.client_sequence import Checkpoints
from ovgpu.serve.engines import EngineOptions, Inputs, engine_of
from ovgpu.serve.errors import ServeError, Status
from ovgpu.serve.held_bytes import HeldBytes
from ovgpu.serve.http_app import HttpApp
from ovgpu.serve.inference import infer, named_output
from ovgpu.serve.models import LoadOptions, Models
from ovgpu.serve.protocol import SequenceId, SequenceStep
from ovgpu.serve.repository import ModelFiles, ServedFiles
from ovgpu.serve.sequences import OpenSequences
from ovgpu.serve.service import Service
from ovgpu.serve.shared_memory import SharedMemory
from ovgpu.serve.store import open_store
from ovgpu.serve.tokens import Tokens

log = logging.getLogger(__name__)

MIB = 1 << 20
MAX_QUEUE = 1 << 16  # inferences over HTTP: Ray limits them before
ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
Outputs = dict[str, np.ndarray[Any, Any]]


def deployment(
    model: Any,
    name: str = "ovgpu",
    *,
    device: str = "AUTO",
    config: Mapping[str, Any] | None = None,
    batching: bool = True,
    max_batch_size: int = 32,
    max_sequences: int = 64,
    max_wait_ms: float = 2.0,
    requests: int = 1,
    store: str | None = None,
    checkpoint_steps: int = 0,
    checkpoint_seconds: float = 0.0,
    idle_seconds: float = 600.0,
    token_file: str | None = None,
    allowed_hosts: Sequence[str] = (),
    max_body_mib: int = 64,
    max_json_mib: int = 8,
    max_held_mib: int = 1024,
    **options: Any,
) -> Any:
    """Return an application of Ray Serve that runs a model: `serve.run` takes it, and other deployments bind it.

        handle = serve.run(ovgpu.ray.deployment("model.xml", num_replicas=2, ray_actor_options={"num_gpus": 1}))
        outputs = await handle.infer.remote({"x": x})

    ``model`` is a file that every node can read, a result of `ovgpu.ray.share`, or a model. Each replica runs batches
    as ``ovgpu serve`` does: up to ``max_batch_size`` inferences of a model without states, or up to ``max_sequences``
    sequences of a model with states, in the slots of a batch. ``options`` are those of `ray.serve.deployment`, such as
    ``num_replicas``, ``autoscaling_config`` and ``ray_actor_options``.

    For a model with states, callers use `Sequence`. Each sequence has an id, by which every step goes to the replica
    that has the state. If a replica leaves or dies, its sequences are lost, and if replicas come, those that would now
    be on them. With ``store``, Redis or Valkey at a URL that all nodes reach, replicas hand their sequences over, and
    continue those of a replica that dies from their last checkpoints: every ``checkpoint_steps`` steps, or
    ``checkpoint_seconds`` after a step. `Sequence` repeats the steps since then. Sequences without steps for
    ``idle_seconds`` end.

    Over HTTP, replicas take the requests of ``ovgpu serve``, with its limits: inferences of KServe v2, with
    ``sequence_id``, ``sequence_start`` and ``sequence_end``, and health. The header ``x-session-id`` must have the
    sequence's id, so that every step goes to the same replica. ``token_file``, a file on every node, has the token that
    clients send. Without it, the header ``Host`` must have an address, localhost, or one of ``allowed_hosts``; "*" is
    any.

    Raises: ModelError for a malformed file, Error for checkpoints without a store.
    """
    checkpoints = Checkpoints(checkpoint_steps, checkpoint_seconds)
    if checkpoints and store is None:
        raise Error("checkpoints need a store")
    stateful = any(node.get_type_name() == "ReadValue" for node in read(model).get_ops())
    if stateful:  # the id of a sequence determines its replica
        options.setdefault(
            "request_router_config",
            {"request_router_class": ROUTER, "request_router_kwargs": {"num_fallback_replicas": 0}},
        )
    options.setdefault("max_ongoing_requests", 4 * max(max_sequences if stateful else max_batch_size, 16))
    engine = EngineOptions(device, dict(config or {}), batching, max_batch_size, max_sequences, max_wait_ms, requests)
    replica = ReplicaOptions(
        engine,
        store,
        checkpoints,
        idle_seconds,
        token_file,
        tuple(allowed_hosts),
        max_body_mib * MIB,
        max_json_mib * MIB,
        max_held_mib * MIB,
    )
    made: Any = serve.deployment(Replica, name=name, **options)
    return made.bind(model, replica)


@dataclass(frozen=True)
class ReplicaOptions:
    """Options of replicas; see `deployment`."""

    engine: EngineOptions
    store: str | None = field(repr=False)  # may have a password
    checkpoints: Checkpoints
    idle_seconds: float
    token_file: str | None
    allowed_hosts: tuple[str, ...]
    body_bytes: int
    json_bytes: int
    held_bytes: int


@dataclass(frozen=True)
class _DeployedFiles(ModelFiles):
    """Model of a deployment, in place of files."""

    model: Any = field(default=None, compare=False)

    def digest(self) -> str:
        return digest(self.model)


class _Deployed:
    """The model of a deployment, in place of a repository."""

    def __init__(self, name: str, model: Any) -> None:
        self._files = _DeployedFiles(name, 1, Path(name), (), model=model)

    def scan(self) -> dict[str, ServedFiles]:
        return {self._files.name: ServedFiles((self._files,))}

    def version(self, name: str, number: str) -> ModelFiles | None:
        return self._files if (name, number) == (self._files.name, "1") else None


class _DeployedModels(Models):
    """The model of a replica. Only another deployment changes it."""

    async def load(self, name: str, options: LoadOptions | None = None) -> None:
        raise ServeError(Status.UNIMPLEMENTED, "the model of a deployment changes when it is deployed again")

    async def unload(self, name: str) -> None:
        await self.load(name)


class _Asgi(Response):
    """Response that an ASGI application gives to the request that Ray Serve is answering."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


class Replica:
    """Replica of a deployment, see `deployment`. Values of inputs and outputs are arrays by name."""

    async def __init__(self, model: Any, options: ReplicaOptions) -> None:  # type: ignore[misc]
        context = serve.get_replica_context()
        self._name = context.deployment
        store = None
        if options.store is not None:
            store = open_store(options.store, options.idle_seconds, f"ovgpu:{context.app_name}/{self._name}")
        models = _DeployedModels(
            _Deployed(self._name, model),  # type: ignore[arg-type]
            lambda path, observer, **_: engine_of(read(model), f"model '{self._name}'", options.engine, observer),
            MAX_QUEUE,
            digests=store is not None,
        )
        self._sequences = OpenSequences(options.idle_seconds, models.version, store, options.checkpoints)
        held = HeldBytes(options.held_bytes)
        memory = SharedMemory(False, held, options.body_bytes)
        self._service = Service(models, self._sequences, keep_going=True, memory=memory)
        await self._service.start()
        if self._name in models.failures:
            raise Error(f"model '{self._name}' was not loaded: {models.failures[self._name]}")
        self._version = models.find(self._name)
        self._engine = self._version.engine
        access = (
            Tokens(Path(options.token_file)) if options.token_file else AllowedHosts("0.0.0.0", options.allowed_hosts)
        )
        self._http = HttpApp(self._service, access, options.body_bytes, options.json_bytes, held)
        self._sweeping = asyncio.create_task(self._sequences.sweep_regularly())

    async def infer(self, inputs: Any) -> Outputs:
        """Run an inference of a model without states. ``inputs`` is a dict by name or index, or the only input."""
        if self._engine.stateful:
            raise Error(f"model '{self._name}' has states: run it by a Sequence")
        return self._named(await infer(self._engine, self._numbered(inputs)))

    async def step(self, inputs: Any, id: SequenceId, number: int, end: bool = False) -> tuple[Outputs, int | None]:
        """Run a step of a sequence: number 1 starts it. See `OpenSequences.infer`."""
        self._check_stateful()
        step = SequenceStep(id, number == 1, end, number=number)
        result = await self._sequences.infer(self._version, self._name, step, lambda version: self._numbered(inputs))
        return self._named(result.outputs), result.saved_steps

    async def resume(self, id: SequenceId) -> int:
        """Return the number of steps that a sequence has made, which is taken from another replica if need be."""
        self._check_stateful()
        return await self._sequences.steps(self._name, id)

    async def end(self, id: SequenceId) -> None:
        """End a sequence."""
        self._check_stateful()
        await self._sequences.end(self._name, id)

    async def open_sequences(self) -> int:
        """Return the number of sequences on this replica."""
        return len(self._sequences)

    async def __call__(self, request: Request) -> Response:
        """Answer a request over HTTP."""
        return _Asgi(self._http.asgi)

    async def __del__(self) -> None:
        """Hand over the sequences. Ray Serve calls it when the replica leaves."""
        self._sweeping.cancel()
        await self._service.stop(0)
        await self._service.models.close()

    def _check_stateful(self) -> None:
        if not self._engine.stateful:
            raise Error(f"model '{self._name}' has no states: use infer")

    def _numbered(self, inputs: Any) -> Inputs:
        """Return inputs by index. Raise Error for an input that the model does not have."""
        ports = self._engine.inputs
        given = inputs if isinstance(inputs, Mapping) else {0: inputs} if len(ports) == 1 else None
        if given is None:
            raise Error(f"model '{self._name}' takes {len(ports)} inputs, as a dict by name")
        numbered = {}
        for key, value in given.items():
            index = key if key in range(len(ports)) else next((i for i, p in enumerate(ports) if key in p.names), None)
            if index is None:
                raise Error(f"model '{self._name}' has no input {key!r}; it has {', '.join(p.name for p in ports)}")
            numbered[index] = value
        return numbered

    def _named(self, outputs: Any) -> Outputs:
        return {port.name: named_output(port, array).array for port, array in zip(self._engine.outputs, outputs)}
