"""Deployments of models with Ray Serve: the application, and its replicas."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ovgpu.errors import Error
from ovgpu.integrations.ray.directory import SequenceLostError, open_directory
from ovgpu.integrations.ray.models import read
from ovgpu.integrations.ray.sequences import ReplicaSequences
from ovgpu.integrations.ray.states import SequenceId
from ovgpu.serve import rest
from ovgpu.serve.engines import EngineOptions, Inputs, engine_of
from ovgpu.serve.errors import ServeError, Status, invalid, public
from ovgpu.serve.inference import infer, named_output, named_outputs, numbered_inputs, outputs_of, wanted_outputs
from ovgpu.serve.protocol import InferenceResponse

log = logging.getLogger(__name__)

ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
JSON_LENGTH = "inference-header-content-length"
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
    checkpoint_steps: int = 0,
    idle_seconds: float = 600.0,
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
    that has the state. If replicas come or go, states are handed over. If a replica dies, its states are lost, unless
    ``checkpoint_steps`` is set: then all sequences are copied every ``checkpoint_steps`` steps, and `Sequence` repeats
    the steps since the last copy. Sequences without steps for ``idle_seconds`` end.

    Over HTTP, replicas take the inferences of KServe v2, with ``sequence_id``, ``sequence_start`` and ``sequence_end``.
    The header ``x-session-id`` must have the sequence's id, so that every step goes to the same replica.

    Raises: ModelError for a malformed file.
    """
    stateful = any(node.get_type_name() == "ReadValue" for node in read(model).get_ops())
    if stateful:  # the id of a sequence determines its replica
        options.setdefault(
            "request_router_config",
            {"request_router_class": ROUTER, "request_router_kwargs": {"num_fallback_replicas": 0}},
        )
    options.setdefault("max_ongoing_requests", 4 * max(max_sequences if stateful else max_batch_size, 16))
    engine = EngineOptions(device, dict(config or {}), batching, max_batch_size, max_sequences, max_wait_ms, requests)
    made: Any = serve.deployment(Replica, name=name, **options)
    return made.bind(model, engine, checkpoint_steps, idle_seconds)


class Replica:
    """Replica of a deployment, see `deployment`. Values of inputs and outputs are arrays by name."""

    def __init__(self, model: Any, options: EngineOptions, checkpoint_steps: int, idle: float) -> None:
        context = serve.get_replica_context()
        self._name = context.deployment
        self._engine = engine_of(read(model), f"model '{self._name}'", options, lambda run: None)
        try:
            self._engine.warm_up()
        except Error as error:  # zeros may be no valid inputs
            log.info("model '%s' runs for the first time when it is asked for: %s", self._name, error)
        self._sequences = ReplicaSequences(
            self._engine,
            context.replica_id.unique_id,
            ray.get_runtime_context().current_actor,
            partial(open_directory, f"{context.app_name}/{self._name}", idle),
            checkpoint_steps,
            idle,
        )

    async def infer(self, inputs: Any) -> Outputs:
        """Run an inference of a model without states. ``inputs`` is a dict by name or index, or the only input."""
        if self._engine.stateful:
            raise Error(f"model '{self._name}' has states: run it by a Sequence")
        return self._named(await outputs_of(self._engine.submit(self._numbered(inputs))))

    async def step(self, inputs: Any, id: SequenceId, number: int, end: bool = False) -> tuple[Outputs, int | None]:
        """Run a step of a sequence: number 1 starts it. See `ReplicaSequences.infer`."""
        self._check_stateful()
        outputs, saved = await self._sequences.infer(id, self._numbered(inputs), number == 1, end, number)
        return self._named(outputs), saved

    async def resume(self, id: SequenceId) -> int:
        """Return the number of steps that a sequence has made; see `ReplicaSequences.resume`."""
        self._check_stateful()
        return await self._sequences.resume(id)

    async def end(self, id: SequenceId) -> None:
        """End a sequence."""
        self._check_stateful()
        await self._sequences.end(id)

    async def open_sequences(self) -> int:
        """Return the number of sequences on this replica."""
        return len(self._sequences)

    async def __call__(self, request: Request) -> Response:
        """Answer an inference of KServe v2."""
        try:
            return await self._answer(request)
        except Exception as error:
            answer = public(error)
            if answer.status is Status.INTERNAL:
                log.exception("an inference of model '%s' failed", self._name)
            return JSONResponse({"error": str(answer)}, answer.status.value)

    async def _answer(self, request: Request) -> Response:
        if request.method != "POST" or not request.url.path.endswith("/infer"):
            raise ServeError(Status.NOT_FOUND, "there are only inferences: POST /v2/models/NAME/infer")
        length = request.headers.get(JSON_LENGTH)
        if length is not None and not length.isdecimal():
            raise invalid(f"the header {JSON_LENGTH} is no number")
        body = bytearray(await request.body())
        inference, wanted = rest.parse(body, None if length is None else int(length), self._name, "")
        inference.refuse_shared_memory()
        step = inference.sequence(frozenset[str]().union(*(port.names for port in self._engine.inputs)))
        inputs = numbered_inputs(self._engine, inference, False)
        chosen = wanted_outputs(self._engine, inference)
        parameters: dict[str, Any] = {}
        if not self._engine.stateful:
            outputs = await infer(self._engine, inputs)
        elif step is None:
            raise invalid(f"model '{self._name}' has states: an inference needs a sequence_id")
        else:
            parameters = {"sequence_id": step.id, "sequence_start": step.start, "sequence_end": step.end}
            try:
                outputs, _ = await self._sequences.infer(step.id, inputs, step.start, step.end)
            except SequenceLostError as error:
                raise ServeError(Status.NOT_FOUND, str(error)) from None
        named = named_outputs(self._engine, chosen, outputs)
        content, json_length = rest.format(InferenceResponse(self._name, "1", inference.id, named, parameters), wanted)
        if json_length is None:
            return Response(content, media_type="application/json")
        return Response(content, media_type="application/octet-stream", headers={JSON_LENGTH: str(json_length)})

    async def __del__(self) -> None:
        """Hand over the sequences. Ray Serve calls it when the replica leaves."""
        await self._sequences.close()
        self._engine.close()

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
