"""Inputs and outputs of an inference: from a request to a model's ports, and back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import numpy as np

from ovgpu.batching.gathering import Work
from ovgpu.errors import Error
from ovgpu.serve.classification import CLASSIFIED, classified
from ovgpu.serve.engines import Engine, Inputs, Port
from ovgpu.serve.errors import invalid
from ovgpu.serve.protocol import CONTROL, CONTROL_ID, InferenceRequest, NamedTensor, RequestedOutput
from ovgpu.types import Type

Wait = tuple["asyncio.Future[None]", Callable[[], object] | None]
"""Future that a task waits for, and a function to call before."""

LARGE = 1 << 18  # bytes: more than these are copied on another thread than the event loop's


def named_output(port: Port, array: Any) -> NamedTensor:
    """Return an output with its name and type."""
    if port.dtype is Type.bf16:  # results show its bits as float16
        array = array.view(Type.bf16.storage)
    return NamedTensor(port.name, port.dtype, array)


def named_outputs(engine: Engine, wanted: list[tuple[int, RequestedOutput]], outputs: Any) -> list[NamedTensor]:
    """Return the wanted outputs with their names and types, or the classes of their values."""
    named = [(named_output(engine.outputs[index], outputs[index]), output.classes) for index, output in wanted]
    return [classified(tensor, count, engine.has_rows) if count else tensor for tensor, count in named]


def numbered_inputs(engine: Engine, request: InferenceRequest, controlled: bool) -> dict[int, Any]:
    """Return the inputs of a request by index. Raise ServeError for inputs that the model does not take.

    With ``controlled``, the control inputs of sequences are skipped.
    """
    inputs: dict[int, Any] = {}
    for tensor in request.inputs:
        index = engine.input_indices.get(tensor.name)
        if index is None:
            if controlled and tensor.name in (CONTROL_ID, CONTROL):
                continue
            known = ", ".join(port.name for port in engine.inputs)
            raise invalid(f"model '{request.model}' has no input '{tensor.name}'; it has {known}")
        port = engine.inputs[index]
        if tensor.dtype is not port.dtype:
            raise invalid(f"input '{tensor.name}' of model '{request.model}' has the datatype {port.datatype}")
        if index in inputs:
            raise invalid(f"input '{port.name}' is given twice")
        if not fits(tensor.array.shape, port, engine.batch_axis(index)):
            raise invalid(
                f"input '{tensor.name}' of model '{request.model}' has the shape {list(port.shape or ())}, "
                f"not {list(tensor.array.shape)}"
            )
        inputs[index] = tensor.array
    for i, port in enumerate(engine.inputs):
        if i not in inputs and i not in engine.optional_inputs:
            raise invalid(f"input '{port.name}' of model '{request.model}' is missing")
    return inputs


def fits(shape: tuple[int, ...], port: Port, batch_axis: int | None) -> bool:
    """Return whether a port takes an input of this shape, with any extent on the batch axis."""
    return port.shape is None or (
        len(shape) == len(port.shape)
        and all(
            extent in (-1, given) or axis == batch_axis for axis, (extent, given) in enumerate(zip(port.shape, shape))
        )
    )


def wanted_outputs(engine: Engine, request: InferenceRequest) -> list[tuple[int, RequestedOutput]]:
    """Return the outputs that a request asks for, with their indices. Raise ServeError for those that cannot be had."""
    if not request.outputs:
        return [(i, RequestedOutput(port.name)) for i, port in enumerate(engine.outputs)]
    wanted = []
    for output in request.outputs:
        index = next((i for i, port in enumerate(engine.outputs) if output.name in port.names), None)
        if index is None:
            if output.name == CONTROL_ID:
                continue
            known = ", ".join(port.name for port in engine.outputs)
            raise invalid(f"model '{request.model}' has no output '{output.name}'; it has {known}")
        if output.classes and engine.outputs[index].dtype not in CLASSIFIED:
            raise invalid(f"output '{output.name}' of {engine.outputs[index].datatype} has no classes")
        wanted.append((index, output))
    return wanted


async def infer(engine: Engine, inputs: Inputs) -> Any:
    """Run an inference of a model without states, and return its outputs.

    If it has more rows than a batch, it is split into several batches, whose outputs are joined in the order of the
    rows. If one of them fails, the whole inference does. Raises: ServeError for inputs whose numbers of rows differ.
    """
    axes = {i: axis for i in inputs if (axis := engine.batch_axis(i)) is not None}
    counts, most = {inputs[i].shape[axis] for i, axis in axes.items()}, engine.max_batch_size
    if not counts or max(counts) <= most:
        return await outputs_of(engine.submit(inputs))  # which refuses different numbers
    if len(counts) > 1:
        raise invalid(f"the inputs have different numbers of rows: {', '.join(map(str, sorted(counts)))}")
    submitted, joined = deque[tuple[int, Future[Any]]](), list[Any]()
    total = max(counts)

    async def join_first() -> None:
        start, future = submitted.popleft()
        outputs = await outputs_of(future)
        if not joined:
            shapes = [_resized(output.shape, axis, total) for output, axis in zip(outputs, engine.output_batch_axes)]
            joined.extend([np.empty(shape, output.dtype) for shape, output in zip(shapes, outputs)])
        parts = [whole[_rows(axis, start, most)] for whole, axis in zip(joined, engine.output_batch_axes)]
        if sum(output.nbytes for output in outputs) < LARGE:
            _copy(outputs, parts)
        else:
            await asyncio.to_thread(_copy, outputs, parts)

    try:
        for start in range(0, total, most):
            if len(submitted) == 2 * engine.parallel:  # one runs, one waits: other clients have their turn in between
                await join_first()
            part = {i: x[_rows(axes[i], start, most)] if i in axes else x for i, x in inputs.items()}
            submitted.append((start, engine.submit(part)))
        while submitted:
            await join_first()
    except BaseException:
        for _, future in submitted:
            future.cancel()
        raise
    return joined


def _rows(axis: int, start: int, count: int) -> tuple[slice, ...]:
    """Return the index of some rows of an array."""
    return (*(slice(None),) * axis, slice(start, start + count))


def _resized(shape: tuple[int, ...], axis: int, extent: int) -> tuple[int, ...]:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _copy(sources: Sequence[Any], targets: Sequence[Any]) -> None:
    for source, target in zip(sources, targets):
        if source.shape != target.shape:
            raise Error(f"an output has the shape {source.shape} in one batch, and {target.shape} in another")
        target[...] = source


async def outputs_of(future: Future[Any], ended: Callable[[], object] | None = None) -> Any:
    """Wait for the outputs of an inference. If this task is cancelled, an inference that has not begun is cancelled.

    ``ended`` is called on the thread of the event loop when the inference has ended, also if the task is cancelled.
    """
    if future.done():  # it has run at once
        if ended is not None:
            ended()
        return future.result().to_tuple()
    # asyncio.wrap_future would make a cycle of references, which keeps the outputs until garbage is collected.
    waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    if isinstance(future, Work):
        future.tell(_wake_from_thread, (waiting, ended))
    else:
        future.add_done_callback(lambda _: _wake_from_thread([(waiting, ended)]))
    try:
        await waiting
    except asyncio.CancelledError:
        future.cancel()
        raise
    return future.result().to_tuple()


def _wake_from_thread(waits: list[Wait]) -> None:
    """Wake up the tasks that wait for the inferences of a batch, all at once: each call from a thread costs much."""
    with suppress(RuntimeError):  # the loop has ended
        waits[0][0].get_loop().call_soon_threadsafe(_wake, waits)


def _wake(waits: list[Wait]) -> None:
    for waiting, ended in waits:
        if ended is not None:
            with suppress(Exception):  # others wait as well
                ended()
        if not waiting.done():
            waiting.set_result(None)
