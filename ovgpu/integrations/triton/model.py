"""Class TritonPythonModel, which Triton's Python backend runs: the ``model.py`` of ``ovgpu triton`` imports it."""

from __future__ import annotations

import asyncio
import json
import threading
import traceback
from collections.abc import Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import triton_python_backend_utils as triton

from ovgpu.batching import BatchFullError
from ovgpu.batching.sequence_batcher import MAX_SEQUENCES
from ovgpu.errors import Error
from ovgpu.integrations.triton.config import triton_type
from ovgpu.integrations.triton.device_engine import open_device_engine
from ovgpu.integrations.triton.sequences import TritonSequence, TritonSequences
from ovgpu.integrations.triton.tensors import inputs_of, response, steps_of
from ovgpu.serve.engines import EngineOptions, EngineSequence, Port, open_engine
from ovgpu.serve.errors import Status, public
from ovgpu.serve.inference import outputs_of
from ovgpu.serve.repository import Repository

CODES = {
    Status.INVALID_ARGUMENT: "INVALID_ARG",
    Status.NOT_FOUND: "NOT_FOUND",
    Status.CANCELLED: "CANCELLED",
    Status.RESOURCE_EXHAUSTED: "UNAVAILABLE",
}
PENDING = 2  # requests of a decoupled model for each sequence, before Triton has to keep further ones
# Sequences of the engine for each sequence that Triton may have open. Sequences that Triton has ended without telling
# stay open here until they have been idle for long enough.
SEQUENCES = 2
OTHERS = {"batching", "EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS"}  # parameters that are no properties

Request = Any
Response = Any


class TritonPythonModel:
    """Model for Triton's Python backend: the file beside ``model.py``, configured by ``config.pbtxt``.

    Requests that Triton batches run in one batch of the engine. Sequences have slots of a batch, where their states
    stay. A request to a decoupled model may have several steps, one in each row of its inputs. The model answers each
    step as soon as it is computed.
    """

    def initialize(self, args: dict[str, str]) -> None:
        """Read and compile the model, and run it for the first time. Raise TritonModelException if that fails."""
        try:
            self._start(args, json.loads(args["model_config"]))
        except RuntimeError as error:
            raise triton.TritonModelException(f"model '{args['model_name']}': {error}") from error

    def execute(self, requests: Sequence[Request]) -> list[Response] | Coroutine[Any, Any, None]:
        """Return the responses, or, for a decoupled model, a coroutine that sends them."""
        if not self._decoupled:
            return self._answered(requests)
        for _ in requests:
            self._pending.acquire()
        return self._stream(requests)

    def finalize(self) -> None:
        """End all threads."""
        self._engine.close()

    def _start(self, args: dict[str, str], config: dict[str, Any]) -> None:
        folder = Path(args["model_repository"], args["model_version"])
        models = Repository(folder).scan()
        if not models:
            raise Error(f"there is no model in {folder}")
        ((files,),) = [found.versions for found in models.values()]
        parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        batcher = config.get("sequence_batching", {})
        oldest = batcher.get("oldest", {})
        self._decoupled = config.get("model_transaction_policy", {}).get("decoupled", False)
        options = EngineOptions(
            f"NVIDIA.{args['model_instance_device_id']}" if args["model_instance_kind"] == "GPU" else "CPU",
            {key: value for key, value in parameters.items() if key not in OTHERS},
            parameters.get("batching") != "no",
            max(int(config["max_batch_size"]), 1),
            min(SEQUENCES * max(int(oldest.get("max_candidate_sequences", 0)), 1), MAX_SEQUENCES),
            # Requests that Triton has batched need not wait for others.
            int(oldest.get("max_queue_delay_microseconds", 0)) / 1000 if self._decoupled else 0,
        )
        on_device = parameters.get("FORCE_CPU_ONLY_INPUT_TENSORS") == "no" and options.device != "CPU"
        self._engine = (open_device_engine if on_device else open_engine)(files.path, options, lambda run: None)
        self._sequences = TritonSequences(self._engine, int(batcher.get("max_sequence_idle_microseconds", 0)) / 1e6)
        self._answer_sent = asyncio.Event()
        self._pending = threading.BoundedSemaphore(PENDING * options.max_sequences)
        try:
            _check(config["input"], self._engine.inputs)
            _check(config["output"], self._engine.outputs)
        except Error:
            self._engine.close()
            raise
        try:
            self._engine.warm_up()
        except Error as error:  # zeros may be no valid inputs
            triton.Logger.log_info(f"model '{args['model_name']}' runs for the first time for a request: {error}")
        triton.Logger.log_info(f"model '{args['model_name']}': {self._engine.description}")

    # ---- one response for each request

    def _answered(self, requests: Sequence[Request]) -> list[Response]:
        with self._engine.together():
            submitted = [self._submitted(request) for request in requests]
        responses = []
        for request, (answer, sequence) in zip(requests, submitted):
            try:
                if isinstance(answer, BaseException):
                    raise answer
                responses.append(response(self._engine, request, answer.result().to_tuple()))
            except Exception as error:
                responses.append(_error(error))
            if sequence is not None:
                self._sequences.end_request(sequence)
        return responses

    def _submitted(self, request: Request) -> tuple[Future[Any] | Exception, TritonSequence | None]:
        """Submit a request. Return its future, or the error that prevented it, and its sequence if it has one."""
        sequence = None
        try:
            if self._engine.stateful:
                sequence = self._sequence(request)
            if request.is_cancelled():
                raise CancelledError
            submit = self._engine.submit if sequence is None else self._sequences.handle(sequence).submit
            return submit(inputs_of(self._engine, request)), sequence
        except Exception as error:
            return error, sequence

    def _sequence(self, request: Request) -> TritonSequence:
        flags = request.flags()
        return self._sequences.begin_request(
            request.correlation_id(),
            bool(flags & triton.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START),
            bool(flags & triton.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END),
        )

    # ---- a response for each step

    async def _stream(self, requests: Sequence[Request]) -> None:
        await asyncio.gather(*[self._send_steps(request) for request in requests])

    async def _send_steps(self, request: Request) -> None:
        """Answer a request step by step. An error ends the request: its further steps do not run."""
        sender = request.get_response_sender()
        final = triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        sequence = None
        try:
            sequence = self._sequence(request)
            async with sequence.turn:
                handle = await self._handle(sequence)
                steps = steps_of(self._engine, request)
                for i, step in enumerate(steps):
                    if sender.is_cancelled():
                        raise asyncio.CancelledError
                    answer = response(self._engine, request, await outputs_of(handle.submit(step)))
                    if i + 1 < len(steps):
                        sender.send(answer)
                sender.send(answer, final)
        except asyncio.CancelledError:
            sender.send(_error(CancelledError()), final)
        except Exception as error:
            sender.send(_error(error), final)
        finally:
            if sequence is not None:
                self._sequences.end_request(sequence)
            self._answer_sent.set()
            self._pending.release()

    async def _handle(self, sequence: TritonSequence) -> EngineSequence:
        """Return the handle of a sequence. If too many are open, wait until a sequence that ends is closed."""
        while True:
            try:
                return self._sequences.handle(sequence)
            except BatchFullError:
                self._answer_sent.clear()
                await self._answer_sent.wait()


def _error(error: BaseException) -> Response:
    """Return the response for an error. Errors of the server itself are logged."""
    answer = public(error)
    if answer.status is Status.INTERNAL:
        triton.Logger.log_error("".join(traceback.format_exception(error)))
    return triton.InferenceResponse(
        error=triton.TritonError(str(answer), getattr(triton.TritonError, CODES.get(answer.status, "INTERNAL")))
    )


def _check(configured: Sequence[dict[str, Any]], ports: Sequence[Port]) -> None:
    """Raise Error if the model does not have the ports of the configuration, with their types."""
    for fields in configured:
        port = next((port for port in ports if fields["name"] in port.names), None)
        if port is None:
            raise Error(
                f"config.pbtxt has a port '{fields['name']}', but the model has "
                f"{', '.join(port.name for port in ports)}: write its folder again with `ovgpu triton`"
            )
        if fields["data_type"] != triton_type(port):
            raise Error(
                f"config.pbtxt has the type {fields['data_type']} for '{fields['name']}', the model {triton_type(port)}"
            )
