"""Engines that infer a model for a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ovgpu._util.openvino_package import own_core, package
from ovgpu.api.core import Core
from ovgpu.cli._print import strings_as_bytes
from ovgpu.ir import is_other_format, model_file
from ovgpu.model import Model, Node
from ovgpu.ops.infrastructure.graph import Result
from ovgpu.types import Type
from ovgpu.types.packing import pack, unpack

Array = np.ndarray[Any, Any]
OutputKey = tuple[str, int]  # layer name, output index
SKIPPED_OPS = ("Constant", "Result", "Assign")  # ops that compute nothing
EXACT = {"EXECUTION_MODE_HINT": "ACCURACY"}  # f32 is not rounded to TF32
F32 = {
    "INFERENCE_PRECISION_HINT": "f32",
    "EXECUTION_MODE_HINT": "ACCURACY",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}
"""Properties of OpenVINO's CPU plugin for f32; between FakeQuantize layers it computes in 8 bits."""
NO_INT8 = {"LP_TRANSFORMS_MODE": "NO"}


class Engine(Protocol):
    """Engine that runs a model and returns the outputs of all its layers."""

    def infer(self, inputs: Mapping[int, Array]) -> dict[OutputKey, Array]: ...


class OvgpuEngine:
    """ovgpu, with a Result for every output of a layer. A loop or an If counts as one layer."""

    def __init__(self, model: Model, device: str, precision: Type) -> None:
        full_model = model.clone()
        ports = [port for node in full_model.ops if node.op.name not in SKIPPED_OPS for port in node.ports]
        self.first = len(full_model.results)
        self.port_keys = [(port.node.friendly_name, port.index) for port in ports]
        full_model.add_results(
            [Node(Result(), [port], name=f"{port.node.friendly_name}/{port.index}") for port in ports]
        )
        full_model.validate_nodes_and_infer_types()
        config = {"INFERENCE_PRECISION_HINT": precision, **EXACT}
        self.request = Core().compile_model(full_model, device, config).create_infer_request()

    def infer(self, inputs: Mapping[int, Array]) -> dict[OutputKey, Array]:
        self.request.infer(dict(inputs))
        return {
            output_key: self.request.get_output_tensor(self.first + i).array
            for i, output_key in enumerate(self.port_keys)
        }


class OpenVINOEngine:
    """OpenVINO's CPU plugin in f32, with a Result for every output of a layer unless ``only_outputs``.

    ``int8`` lets it compute in 8 bits between FakeQuantize layers, as it does by default.
    """

    def __init__(self, path: str, *, only_outputs: bool = False, int8: bool = False) -> None:
        openvino: Any = package()
        if openvino is None:
            raise ValueError("--against openvino needs openvino: pip install openvino")
        self.openvino, core = openvino, own_core()
        model = core.read_model(path if is_other_format(path) else model_file(Path(path)))
        self.element_types = [port.get_element_type() for port in model.inputs]
        ports = [
            port
            for node in model.get_ordered_ops()
            if not only_outputs and node.get_type_name() not in SKIPPED_OPS
            for port in node.outputs()
        ]
        self.first = len(model.outputs)
        self.port_keys = [(port.get_node().get_friendly_name(), port.get_index()) for port in ports]
        if ports:
            model.add_results([openvino.opset1.result(port) for port in ports])
            model.set_rt_info(11, "version")  # in version 10, the names of these Results are refused
        self.request = core.compile_model(model, "CPU", F32 if int8 else F32 | NO_INT8).create_infer_request()

    def infer(self, inputs: Mapping[int, Array]) -> dict[OutputKey, Array]:
        """Return the outputs of all layers."""
        return dict(zip(self.port_keys, self._infer(inputs)[self.first :]))

    def outputs(self, inputs: Mapping[int, Array]) -> list[Array]:
        """Return the outputs of the model."""
        return self._infer(inputs)[: self.first]

    def _infer(self, inputs: Mapping[int, Array]) -> list[Array]:
        self.request.infer({i: self._tensor(x, self.element_types[i]) for i, x in inputs.items()})
        return [_array(tensor) for tensor in self.request.output_tensors]

    def _tensor(self, x: Array, element_type: Any) -> Any:
        if x.dtype == object:
            return self.openvino.Tensor(strings_as_bytes(x))
        if x.dtype.isbuiltin == 1:
            return self.openvino.Tensor(np.ascontiguousarray(x))
        tensor = self.openvino.Tensor(element_type, self.openvino.Shape(x.shape))  # NumPy lacks the type
        tensor.data.reshape(-1).view(np.uint8)[...] = pack(x, getattr(Type, element_type.get_type_name()))
        return tensor


def _array(tensor: Any) -> Array:
    """Return a copy of a tensor of openvino in the storage dtype of its element type."""
    name = tensor.element_type.get_type_name()
    if name == "string":
        return np.array(tensor.bytes_data)
    return np.array(unpack(np.ascontiguousarray(tensor.data), getattr(Type, name), tensor.shape))
