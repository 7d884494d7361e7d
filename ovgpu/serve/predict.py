"""TensorFlow Serving's REST API, which clients of OpenVINO Model Server use: status, metadata and predict.

Its JSON has no element types: values are converted to the types of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ovgpu.serve.engines import Engine, Port
from ovgpu.serve.errors import invalid
from ovgpu.serve.models import Models, Version
from ovgpu.serve.protocol import CONTROL, CONTROL_ID, InferenceRequest, InferenceResponse, NamedTensor
from ovgpu.serve.tensors import MAX_RANK, dump, dump_tensor, from_json, json_bytes, objects, shaped
from ovgpu.types import Type

DTYPES = {
    Type.boolean: "DT_BOOL",
    Type.string: "DT_STRING",
    Type.f16: "DT_HALF",
    Type.bf16: "DT_BFLOAT16",
    Type.f32: "DT_FLOAT",
    Type.f64: "DT_DOUBLE",
    Type.i8: "DT_INT8",
    Type.i16: "DT_INT16",
    Type.i32: "DT_INT32",
    Type.i64: "DT_INT64",
    Type.u8: "DT_UINT8",
    Type.u16: "DT_UINT16",
    Type.u32: "DT_UINT32",
    Type.u64: "DT_UINT64",
}


def parse(document: dict[str, Any], engine: Engine, model: str, version: str) -> tuple[InferenceRequest, bool]:
    """Return the request in a JSON object, and whether it has rows ("instances") instead of columns ("inputs").

    Raises: ServeError for an object that does not follow the API.
    """
    rows = "instances" in document
    if rows == ("inputs" in document):
        raise invalid("the request has neither or both of 'inputs' and 'instances'")
    columns = _columns(document["instances"]) if rows else document["inputs"]
    if not isinstance(columns, dict) or set(columns) == {"b64"}:
        columns = {engine.inputs[0].name: columns}
    return InferenceRequest(model, version, [_tensor(name, value, engine) for name, value in columns.items()]), rows


def _columns(instances: Any) -> Any:
    """Return the columns of rows if they are objects with the same names. Other rows, the values of the only input, are
    returned as they are."""
    if not isinstance(instances, list) or not instances:
        raise invalid("'instances' is no list of rows")
    if not all(isinstance(row, dict) and set(row) != {"b64"} for row in instances):
        return instances
    if any(row.keys() != instances[0].keys() for row in instances):
        raise invalid("the rows of 'instances' have different names")
    return {name: [row[name] for row in instances] for name in instances[0]}


def _tensor(name: str, value: Any, engine: Engine) -> NamedTensor:
    port = next((port for port in engine.inputs if name in port.names), None)
    if port is None and name not in (CONTROL, CONTROL_ID):
        known = ", ".join(port.name for port in engine.inputs)
        raise invalid(f"the model has no input '{name}'; it has {known}")
    dtype = Type.u64 if port is None else port.dtype
    data = value if isinstance(value, list) else [value]
    shape = _shape(name, data)
    if dtype is Type.string:
        strings = objects([json_bytes(name, element) for element in np.array(data, object).flat])
        return NamedTensor(name, dtype, shaped(name, shape, strings))
    return NamedTensor(name, dtype, from_json(name, dtype, shape, data))


def _shape(name: str, data: Any, depth: int = 0) -> tuple[int, ...]:
    """Return the shape of nested lists. Raise ServeError if they have different lengths, or are nested too deeply."""
    if not isinstance(data, list):
        return ()
    if depth == MAX_RANK:
        raise invalid(f"the data of input '{name}' is nested more than {MAX_RANK} times")
    shapes = {_shape(name, element, depth + 1) for element in data} or {()}
    if len(shapes) > 1:
        raise invalid(f"the data of input '{name}' has lists of different lengths")
    return (len(data), *shapes.pop())


def format(response: InferenceResponse, rows: bool) -> bytes:
    """Return the JSON of a response, with the outputs as columns or rows.

    Outputs without rows, or with different numbers of them, are always columns: an error would deny that the inference
    has run.
    """
    outputs = response.outputs
    lengths = {tensor.array.shape[:1] for tensor in outputs}
    if not rows or len(lengths) > 1 or () in lengths:
        columns = _objects([tensor.name for tensor in outputs], outputs)
        return b'{"outputs":%b}' % (columns if len(outputs) > 1 else dump_tensor(outputs[0].array, outputs[0].dtype))
    if len(outputs) == 1:
        return b'{"predictions":%b}' % dump_tensor(outputs[0].array, outputs[0].dtype)
    names = [tensor.name for tensor in outputs]
    each = [
        _objects(names, [NamedTensor(tensor.name, tensor.dtype, tensor.array[i, ...]) for tensor in outputs])
        for i in range(len(outputs[0].array))
    ]
    return b'{"predictions":[%b]}' % b",".join(each)


def _objects(names: Sequence[str], tensors: Sequence[NamedTensor]) -> bytes:
    """Return the JSON of an object with a member for each tensor."""
    members = [b"%b:%b" % (dump(name), dump_tensor(tensor.array, tensor.dtype)) for name, tensor in zip(names, tensors)]
    return b"{%b}" % b",".join(members)


def status(versions: Sequence[Version]) -> dict[str, Any]:
    """Return the status of versions of a model."""
    return {"model_version_status": [_status(version.number, "AVAILABLE", "OK", "OK") for version in versions]}


def statuses(models: Models) -> dict[str, Any]:
    """Return the status of each model of the repository, by name."""
    found: dict[str, Any] = {}
    for name, number, state, reason in models.index():
        loaded = state == "READY"
        code = "OK" if loaded or name not in models.failures else "UNKNOWN"
        state = "AVAILABLE" if loaded else "END" if reason == "unloaded" else "LOADING"
        versions = found.setdefault(name, {"model_version_status": []})["model_version_status"]
        versions.append(_status(number, state, code, reason or "OK"))
    return found


def _status(number: str, state: str, code: str, message: str) -> dict[str, Any]:
    return {"version": number, "state": state, "status": {"error_code": code, "error_message": message}}


def metadata(version: Version) -> dict[str, Any]:
    """Return the metadata of a model."""

    def described(ports: tuple[Port, ...]) -> dict[str, Any]:
        return {
            port.name: {
                "dtype": DTYPES[port.dtype],
                "name": port.name,
                "tensorShape": {
                    "dim": [{"size": str(extent), "name": ""} for extent in port.shape or ()],
                    "unknownRank": port.shape is None,
                },
            }
            for port in ports
        }

    signature = {
        "inputs": described(version.engine.inputs),
        "outputs": described(version.engine.outputs),
        "methodName": "",
    }
    return {
        "modelSpec": {"name": version.name, "signatureName": "", "version": version.number},
        "metadata": {
            "signature_def": {
                "@type": "type.googleapis.com/tensorflow.serving.SignatureDefMap",
                "signatureDef": {"serving_default": signature},
            }
        },
    }
