"""Expected values from OpenVINO: its CPU plugin, configured for f32, or the reference `Model.evaluate`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

from .elements import ELEMENTS, name_of, pack, unpack

Oracle = Literal["auto", "cpu", "evaluate", "value"]
Array = np.ndarray[Any, Any]
Value = tuple[Array, str]  # a logical array and its element type

CONFIG = {
    "INFERENCE_PRECISION_HINT": "f32",
    "EXECUTION_MODE_HINT": "ACCURACY",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    "CPU_DENORMALS_OPTIMIZATION": False,
    "NUM_STREAMS": "1",
    "INFERENCE_NUM_THREADS": 1,
    "LP_TRANSFORMS_MODE": "NO",  # 8-bit arithmetic between FakeQuantize layers: its sums saturate on older processors
}


@dataclass(frozen=True)
class Expected:
    """An expected output; `computed` is the element type in which the judge really computed."""

    array: Array
    type: str
    computed: str

    @classmethod
    def of(cls, values: Any) -> Expected:
        """Return an expected output given by value, an `Expected` or an array, which has its element type."""
        if isinstance(values, Expected):
            return values
        array = np.asarray(values)
        return cls(array, name_of(array.dtype), name_of(array.dtype))


class Refused(Exception):
    """OpenVINO cannot compute this model in the way asked for."""


@functools.cache
def openvino() -> Any:
    """Return the openvino module, imported by the first test that needs a judge. Skip that test without openvino."""
    return pytest.importorskip("openvino")


@functools.cache
def core() -> Any:
    return openvino().Core()


def to_array(tensor: Any) -> Array:
    """Return the logical array of a Tensor of openvino or of ovgpu (the two have one interface)."""
    name, shape = tensor.element_type.get_type_name(), tuple(tensor.shape)
    if name == "string":
        return np.array(tensor.str_data).reshape(shape)
    data, element = np.asarray(tensor.data), ELEMENTS[name]
    if data.dtype == element.dtype and data.shape == shape and (element.bits >= 8 or data.dtype.kind == "V"):
        return data.copy()
    return unpack(np.ascontiguousarray(data).tobytes(), name, shape)


def to_tensor(library: Any, array: Array, name: str) -> Any:
    """Return a Tensor of `library` (openvino or ovgpu) holding a logical array."""
    if name == "string" or (array.dtype.isbuiltin == 1 and name == name_of(array.dtype)):
        return library.Tensor(array.copy())
    tensor = library.Tensor(getattr(library.Type, name), library.Shape(array.shape))
    if array.size:
        tensor.data.reshape(-1).view(np.uint8)[...] = np.frombuffer(pack(array, name), np.uint8)
    return tensor


def infer(library: Any, request: Any, inputs: Sequence[Value] | Mapping[str, Value]) -> list[Value]:
    """Run one inference with a request of `library`, inputs by position or name; return the outputs."""
    named = inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs)
    request.infer({key: to_tensor(library, array, kind) for key, (array, kind) in named})
    return [(to_array(tensor), tensor.element_type.get_type_name()) for tensor in request.output_tensors]


class Plugin:
    """A request of OpenVINO's CPU plugin."""

    def __init__(self, xml: bytes, weights: bytes) -> None:
        model = core().read_model(xml, weights)
        self.declared = types_of(model)
        self.request = core().compile_model(model, "CPU", CONFIG).create_infer_request()

    def expect(self, outputs: Sequence[Value]) -> list[Expected]:
        """Return the request's outputs in the types that the model declares; the plugin computes f64 in f32."""
        return [expected_of(a, kind, "f32") for (a, _), kind in zip(outputs, self.declared)]


def evaluate(xml: bytes, weights: bytes, inputs: Sequence[Value]) -> list[Expected]:
    """Return the outputs of a stateless model by OpenVINO's reference implementations, or raise `Refused`."""
    ov, model = openvino(), core().read_model(xml, weights)
    shapes = [p.shape if p.get_partial_shape().is_static else ov.Shape([0]) for p in model.outputs]
    outputs = ov.TensorVector([ov.Tensor(p.get_element_type(), s) for p, s in zip(model.outputs, shapes)])
    tensors = ov.TensorVector([to_tensor(ov, array, kind) for array, kind in inputs])
    if not model.evaluate(outputs, tensors):
        raise Refused("the model has no reference evaluation")
    for port, tensor in zip(model.outputs, outputs):
        if not port.get_partial_shape().compatible(ov.PartialShape(tensor.shape)):
            raise Refused(f"the reference gives shape {tensor.shape}, not {port.get_partial_shape()}")
    return [expected_of(to_array(t), kind, kind) for t, kind in zip(outputs, types_of(model), strict=True)]


class Judge:
    """Source of expected outputs of a stateless model, for inputs in order.

    "auto" asks the CPU plugin first, except for f64 inputs, with which the plugin would compute in f32.
    """

    def __init__(self, xml: bytes, weights: bytes, oracle: Oracle = "auto") -> None:
        self.ir, self.oracle = (xml, weights), oracle

    @functools.cached_property
    def plugin(self) -> Plugin:
        return Plugin(*self.ir)

    def expect(self, inputs: Sequence[Value]) -> list[Expected]:
        ways = {"cpu": [self._by_plugin], "evaluate": [self._by_reference]}.get(
            self.oracle, [self._by_plugin, self._by_reference]
        )
        if self.oracle == "auto" and any(kind == "f64" for _, kind in inputs):
            ways.reverse()
        refusals = []
        for way in ways:
            try:
                return way(inputs)
            except (RuntimeError, Refused) as error:
                refusals.append(f"{way.__name__.removeprefix('_')}: {str(error).strip()[-400:]}")
        raise Refused("\n".join(refusals))

    def _by_plugin(self, inputs: Sequence[Value]) -> list[Expected]:
        return self.plugin.expect(infer(openvino(), self.plugin.request, inputs))

    def _by_reference(self, inputs: Sequence[Value]) -> list[Expected]:
        return evaluate(*self.ir, inputs)


def types_of(model: Any) -> list[str]:
    """Return the element types of a model's outputs."""
    return [port.get_element_type().get_type_name() for port in model.outputs]


def expected_of(array: Array, kind: str, computed: str) -> Expected:
    """Return an output of type ``kind``; the judge computed f64 as ``computed``."""
    array = array if kind == "string" else array.astype(ELEMENTS[kind].dtype, copy=False)
    return Expected(array, kind, computed if kind == "f64" else kind)
