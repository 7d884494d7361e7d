"""Conversion of tensors of Triton's Python backend to inputs of an engine, and of outputs to such tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as triton

from ovgpu._util.dlpack import drop_strides, from_dlpack, to_dlpack
from ovgpu.batching.row_inputs import part
from ovgpu.serve.engines import Engine, Inputs, Port
from ovgpu.serve.errors import invalid
from ovgpu.serve.inference import fits
from ovgpu.serve.tensors import objects, string_bytes
from ovgpu.tensor import Tensor
from ovgpu.types import Type


def inputs_of(engine: Engine, request: Any, steps: bool = False) -> Inputs:
    """Return the inputs of a request by index, in the memory of its tensors.

    With ``steps``, the batch axis may have any extent: it has a row for each step.

    Raises: ServeError for inputs that do not fit the model.
    """
    inputs = {}
    for tensor in request.inputs():
        index = next((i for i, port in enumerate(engine.inputs) if tensor.name() in port.names), None)
        if index is None:  # Triton adds inputs of its configuration, such as controls, that the model does not have
            continue
        port = engine.inputs[index]
        axis = engine.batch_axes[index] if steps and engine.batch_axes else engine.batch_axis(index)
        value = _value(port, tensor)
        if not fits(tuple(value.shape), port, axis):
            raise invalid(f"input '{port.name}' has the shape {list(port.shape or ())}, not {list(value.shape)}")
        inputs[index] = value
    return inputs


def steps_of(engine: Engine, request: Any) -> list[Inputs]:
    """Return the inputs of each step of a request: one row of all inputs that have a batch axis.

    Raises: ServeError for inputs that do not fit the model, or that have different numbers of rows, or no rows.
    """
    inputs = inputs_of(engine, request, steps=True)
    axes = {i: axis for i, axis in enumerate(engine.batch_axes or ()) if axis is not None and i in inputs}
    if not axes:
        return [inputs]
    rows = [inputs[i].shape[axis] for i, axis in axes.items()]
    if len(set(rows)) > 1 or not rows[0]:
        counts = ", ".join(f"{count} of '{engine.inputs[i].name}'" for i, count in zip(axes, rows))
        raise invalid(f"all inputs of a request have a row for each step, not {counts}")
    return [
        {i: value[part(axes[i], slice(step, step + 1))] if i in axes else value for i, value in inputs.items()}
        for step in range(rows[0])
    ]


def _value(port: Port, tensor: Any) -> Any:
    """Return the value of an input, which shares the memory of its tensor."""
    if not tensor.is_cpu():
        return Tensor(tensor, shared_memory=True)
    array = tensor.as_numpy() if port.dtype is Type.string else from_dlpack(tensor)  # DLPack has no strings
    return array.reshape(()) if port.shape == () and array.size == 1 else array


def response(engine: Engine, request: Any, outputs: Sequence[Any]) -> Any:
    """Return the response with the outputs that a request asks for."""
    wanted = set(request.requested_output_names())
    return triton.InferenceResponse(
        [_tensor(port, value, name) for port, value in zip(engine.outputs, outputs) for name in wanted & port.names]
    )


def _tensor(port: Port, value: Any, name: str) -> Any:
    """Return the tensor of an output, which shares its memory."""
    if isinstance(value, Tensor):  # in device memory
        return triton.Tensor.from_dlpack(name, value)
    array = np.atleast_1d(value)  # Triton has no scalars
    if port.dtype is Type.string:
        return triton.Tensor(name, objects([string_bytes(text) for text in array.flat]).reshape(array.shape))
    if port.dtype is Type.bf16:  # results show its bits as float16
        array = array.view(Type.bf16.storage)
    capsule = to_dlpack(np.require(array, requirements=["C", "W"]))
    if not array.size:
        drop_strides(capsule)  # Triton refuses NumPy's strides of empty arrays
    tensor = triton.Tensor.from_dlpack(name, capsule)
    _rename(capsule, USED)  # Triton calls it "used_dlpack", at which NumPy prints an error when it frees it
    return tensor


USED = b"used_dltensor"  # the standard's name of a capsule whose tensor has been taken
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
