"""Requests and responses in the messages of gRPC, whose classes are in the package tritonclient."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2

from ovgpu.serve.errors import invalid
from ovgpu.serve.protocol import (
    InferenceRequest,
    InferenceResponse,
    NamedTensor,
    PlacedInput,
    placement,
    requested_output,
)
from ovgpu.serve.rest import MAX_TENSORS, deadline
from ovgpu.serve.tensors import NAMES, Array, check_shape, element_type, from_bytes, objects, shaped, to_bytes
from ovgpu.types import Type

messages: Any = service_pb2  # Any, because the module makes its classes when it is imported

METHODS = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name

FIELDS = {
    Type.boolean: "bool_contents",
    Type.i8: "int_contents",
    Type.i16: "int_contents",
    Type.i32: "int_contents",
    Type.i64: "int64_contents",
    Type.u8: "uint_contents",
    Type.u16: "uint_contents",
    Type.u32: "uint_contents",
    Type.u64: "uint64_contents",
    Type.f32: "fp32_contents",
    Type.f64: "fp64_contents",
    Type.string: "bytes_contents",
}
WIDE = {"int_contents": np.int32, "uint_contents": np.uint32}  # types of the fields that serve several element types


def parse(message: Any, time_remaining: float | None) -> InferenceRequest:
    """Return the request in a ModelInferRequest. Raise ServeError if it does not follow the protocol."""
    if not 0 < len(message.inputs) <= MAX_TENSORS or len(message.outputs) > MAX_TENSORS:
        raise invalid(
            f"the request has {len(message.inputs)} inputs and {len(message.outputs)} outputs, not 1 to {MAX_TENSORS}"
        )
    places = [placement(tensor.name, parameters_of(tensor.parameters)) for tensor in message.inputs]
    raw = message.raw_input_contents
    if raw and len(raw) != places.count(None):
        raise invalid(f"the request has {places.count(None)} inputs, but raw contents of {len(raw)}")
    inputs, placed, contents = [], [], iter(raw)
    for tensor, place in zip(message.inputs, places):
        dtype, shape = element_type(tensor.name, tensor.datatype), check_shape(tensor.name, list(tensor.shape))
        if place is not None:
            if tensor.HasField("contents"):
                raise invalid(f"input '{tensor.name}' has contents and a place in shared memory")
            placed.append(PlacedInput(tensor.name, dtype, shape, place))
            continue
        array = (
            from_bytes(tensor.name, dtype, shape, next(contents))
            if raw
            else _from_contents(tensor.name, dtype, shape, tensor.contents)
        )
        inputs.append(NamedTensor(tensor.name, dtype, array))
    outputs = {output.name: parameters_of(output.parameters) for output in message.outputs}  # each once
    requested = tuple([requested_output(name, given) for name, given in outputs.items()])
    parameters = parameters_of(message.parameters)
    ends = deadline(parameters)
    if time_remaining is not None:
        ends = min(time.monotonic() + time_remaining, ends or float("inf"))
    return InferenceRequest(
        message.model_name, message.model_version, inputs, requested, message.id, parameters, ends, placed
    )


def parameters_of(messages: Any) -> dict[str, Any]:
    """Return the values in a map of messages for parameters."""
    parameters = {}
    for name, parameter in messages.items():
        field = parameter.WhichOneof("parameter_choice")
        parameters[name] = getattr(parameter, field) if field else None
    return parameters


def _from_contents(name: str, dtype: Type, shape: tuple[int, ...], contents: Message) -> Array:
    """Return an input from the field of ``contents`` for its element type. Raises: ServeError as `from_bytes` does."""
    field = FIELDS.get(dtype)
    if field is None:
        raise invalid(f"input '{name}' of {NAMES[dtype]} must have raw contents")
    values = getattr(contents, field)
    if dtype is Type.string:
        return shaped(name, shape, objects(values))
    wide = np.fromiter(values, WIDE.get(field, dtype.storage), len(values))
    array = wide.astype(dtype.storage)
    if dtype.integral and not np.array_equal(array, wide):
        raise invalid(f"input '{name}' has a number out of the range of {NAMES[dtype]}")
    return shaped(name, shape, array)


def format(response: InferenceResponse) -> Any:
    """Return a response as a ModelInferResponse, with raw contents."""
    message = messages.ModelInferResponse(model_name=response.model, model_version=response.version, id=response.id)
    set_parameters(message.parameters, response.parameters)
    for tensor in response.outputs:
        message.outputs.add(name=tensor.name, datatype=NAMES[tensor.dtype], shape=tensor.array.shape)
        message.raw_output_contents.append(b"" if tensor.placed else to_bytes(tensor.array, tensor.dtype))
    return message


def set_parameters(messages: Any, parameters: Mapping[str, Any]) -> None:
    """Set values in a map of messages for parameters, or for settings."""
    for name, value in parameters.items():
        parameter = messages[name]
        if isinstance(value, bool):
            parameter.bool_param = value
        elif isinstance(value, int) and hasattr(parameter, "uint32_param"):
            parameter.uint32_param = value
        elif isinstance(value, int) and value >= 2**63:
            parameter.uint64_param = value
        elif isinstance(value, int):
            parameter.int64_param = value
        else:
            parameter.string_param = value
