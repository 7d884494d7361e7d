"""Requests and responses in JSON, also with the binary extension, in which bytes of tensors follow the JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from ovgpu.serve.errors import invalid
from ovgpu.serve.protocol import (
    InferenceRequest,
    InferenceResponse,
    NamedTensor,
    PlacedInput,
    placement,
    requested_output,
)
from ovgpu.serve.tensors import NAMES, check_shape, dump, dump_tensor, element_type, from_bytes, from_json, to_bytes

MAX_TENSORS = 1024
MAX_TIMEOUT = 10**15  # us: longer timeouts are cut to this one, which never ends
MAX_OTHER_VALUES = 1 << 17
"""Values of JSON that only Python's module reads, while no other thread runs: some 25 ms."""


@dataclass(frozen=True)
class Wanted:
    """Form of a response: whether an output is sent as bytes, by name, and by default."""

    binary: dict[str, bool]
    binary_by_default: bool


def parse(body: bytearray, json_length: int | None, model: str, version: str) -> tuple[InferenceRequest, Wanted]:
    """Return the request in a body, and the form of the response.

    The first ``json_length`` bytes of the body are JSON, or all if it is None.

    Raises: ServeError for a body that does not follow the protocol.
    """
    if json_length is not None and not 0 <= json_length <= len(body):
        raise invalid(f"the header's length of {json_length} bytes does not fit a body of {len(body)} bytes")
    document = load(body if json_length is None else body[:json_length])
    data = memoryview(body)[json_length:] if json_length is not None else memoryview(b"")
    tensors = _objects(document, "inputs")
    if not tensors:
        raise invalid("the request has no inputs")
    inputs, placed, offset = [], [], 0
    for tensor in tensors:
        name = _text(tensor, "name")
        dtype, shape = element_type(name, tensor.get("datatype")), check_shape(name, tensor.get("shape", ()))
        parameters = parameters_of(tensor)
        size = parameters.get("binary_data_size")
        place = placement(name, parameters)
        if place is not None:
            if size is not None or "data" in tensor:
                raise invalid(f"input '{name}' has data and a place in shared memory")
            placed.append(PlacedInput(name, dtype, shape, place))
            continue
        if size is None:
            array = from_json(name, dtype, shape, tensor.get("data"))
        else:
            left = len(data) - offset
            if type(size) is not int or not 0 <= size <= left:
                raise invalid(
                    f"binary_data_size {size!r} of input '{name}' does not fit the {left} bytes that are left"
                )
            array = from_bytes(name, dtype, shape, data[offset : offset + size])
            offset += size
        inputs.append(NamedTensor(name, dtype, array))
    if offset != len(data):
        raise invalid(f"the body has {len(data) - offset} bytes that belong to no input")
    parameters = parameters_of(document)
    outputs = {_text(output, "name"): parameters_of(output) for output in _objects(document, "outputs")}
    binary = {name: bool(given["binary_data"]) for name, given in outputs.items() if "binary_data" in given}
    wanted = Wanted(binary, bool(parameters.get("binary_data_output", False)))
    requested = tuple([requested_output(name, given) for name, given in outputs.items()])
    return InferenceRequest(
        model, version, inputs, requested, _text(document, "id", ""), parameters, deadline(parameters), placed
    ), wanted


def deadline(parameters: Mapping[str, Any]) -> float | None:
    """Return the time at which a request's parameter ``timeout``, in microseconds, ends; None without a timeout."""
    timeout = parameters.get("timeout")
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
        raise invalid(f"timeout {timeout!r} is no number of microseconds")
    return time.monotonic() + min(timeout, MAX_TIMEOUT) / 1e6 if timeout else None


def load(text: bytearray) -> dict[str, Any]:
    """Return the JSON object in a text; empty for an empty text. Raise ServeError for anything else."""
    try:
        document = _parsed(text) if text else {}
    except (ValueError, RecursionError) as error:
        raise invalid(f"the body is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise invalid("the body is no JSON object")
    return document


def _parsed(text: bytearray) -> Any:
    """Return the value in a text. Raise ValueError or RecursionError if it has none."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if text.count(b",") >= MAX_OTHER_VALUES:
            raise ValueError(f"{error}; NaN and infinities are known up to {MAX_OTHER_VALUES} values") from None
        return json.loads(text)  # takes four times as long, but knows NaN, infinities and halves of surrogate pairs


def _objects(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    objects = document.get(key, [])
    if not isinstance(objects, list) or len(objects) > MAX_TENSORS or not all(isinstance(x, dict) for x in objects):
        raise invalid(f"'{key}' is not a list of at most {MAX_TENSORS} objects")
    return objects


def _text(document: dict[str, Any], key: str, default: str | None = None) -> str:
    text = document.get(key, default)
    if not isinstance(text, str):
        raise invalid(f"'{key}' is no string")
    return text


def parameters_of(document: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a request, an input or an output. Raise ServeError if they are no object."""
    parameters = document.get("parameters", {})
    if not isinstance(parameters, dict):
        raise invalid("'parameters' is no object")
    return parameters


def format(response: InferenceResponse, wanted: Wanted) -> tuple[bytes, int | None]:
    """Return the body of a response, and the length of its JSON, or None if no bytes follow the JSON."""
    outputs, parts = [], []
    for tensor in response.outputs:
        output: dict[str, Any] = {"name": tensor.name, "datatype": NAMES[tensor.dtype], "shape": tensor.array.shape}
        if tensor.placed:
            outputs.append(dump(output))
        elif wanted.binary.get(tensor.name, wanted.binary_by_default):
            parts.append(to_bytes(tensor.array, tensor.dtype))
            outputs.append(dump({**output, "parameters": {"binary_data_size": len(parts[-1])}}))
        else:
            outputs.append(_joined(output, "data", dump_tensor(tensor.array.reshape(-1), tensor.dtype)))
    document: dict[str, Any] = {"model_name": response.model, "model_version": response.version}
    if response.id:
        document["id"] = response.id
    if response.parameters:
        document["parameters"] = response.parameters
    head = _joined(document, "outputs", b"[%b]" % b",".join(outputs))
    return b"".join([head, *parts]), len(head) if parts else None


def _joined(document: dict[str, Any], name: str, value: bytes) -> bytes:
    """Return the JSON of an object with one more member, whose value is JSON already."""
    return b"%b,%b:%b}" % (dump(document)[:-1], dump(name), value)
