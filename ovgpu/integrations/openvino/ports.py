"""Ports of a compiled model as openvino's own `ConstOutput` objects, which programs use as keys and compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import openvino  # type: ignore[import-untyped]
from openvino import opset13 as ops

from ovgpu._util.openvino_package import own_core
from ovgpu.api.compiled_model import CompiledModel
from ovgpu.interop.values import to_openvino_type
from ovgpu.model import Output


class PairedPorts:
    """Inputs or outputs of a compiled model: openvino's and ovgpu's, in the same order."""

    def __init__(self, openvino_ports: Sequence[Any], ovgpu_ports: Sequence[Output]) -> None:
        self.openvino = list(openvino_ports)
        self._to_ovgpu = dict(zip(openvino_ports, ovgpu_ports, strict=True))
        self._to_openvino = dict(zip(ovgpu_ports, openvino_ports, strict=True))

    def to_openvino(self, port: Output) -> Any:
        return self._to_openvino[port]

    def to_ovgpu(self, port: Any) -> Output | None:
        """Return ovgpu's port, or None if the openvino port is not one of these."""
        return self._to_ovgpu.get(port)


@dataclass(frozen=True)
class PortsOfModel:
    """Ports of a compiled model, and the `openvino.CompiledModel` to which they belong, its stand-in."""

    inputs: PairedPorts
    outputs: PairedPorts
    stand_in: Any


def make_ports(compiled: CompiledModel) -> PortsOfModel:
    """Return the inputs and outputs of a compiled model.

    openvino makes such ports only for models that it has compiled. It therefore compiles a stand-in: a model of
    Parameters and Results alone, with the names, types and shapes of this model, which takes a few milliseconds. Its
    CPU plugin rejects inputs of some packed types. In this case, the ports are those of the stand-in before its
    compilation, of class `openvino.Output`.
    """
    parameters = {port.source: _parameter(port) for port in compiled.inputs}
    for port, parameter in zip(compiled.inputs, parameters.values()):
        parameter.set_friendly_name(port.node.friendly_name)
    results = []
    for port in compiled.outputs:
        source = port.source.tensor_port
        if source not in parameters:
            parameters[source] = _parameter(port)
            parameters[source].set_friendly_name(source.node.friendly_name)
        result = ops.result(parameters[source])
        result.set_friendly_name(port.node.friendly_name)
        results.append(result)
    with_ports = openvino.Model(results, list(parameters.values()), "ports")
    try:
        with_ports = stand_in = own_core().compile_model(with_ports, "CPU")
    except RuntimeError:
        stand_in = _empty()
    return PortsOfModel(
        PairedPorts(with_ports.inputs[: len(compiled.inputs)], compiled.inputs),
        PairedPorts(with_ports.outputs, compiled.outputs),
        stand_in,
    )


@cache
def _empty() -> Any:
    """Return a compiled model with one input, which has no elements."""
    nothing = ops.parameter([0], np.float32)
    return own_core().compile_model(openvino.Model([nothing], [nothing], "empty"), "CPU")


def _parameter(port: Output) -> Any:
    parameter = ops.parameter(openvino.PartialShape(str(port.partial_shape)), to_openvino_type(port.element_type))
    parameter.output(0).get_tensor().set_names(port.get_names())
    return parameter


def key_to_ovgpu(ports: Sequence[PairedPorts], key: Any) -> Any:
    """Return ovgpu's key for an index, a name or a port. A port of another model stands for the port of that name."""
    if isinstance(key, np.integer):
        return int(key)
    if not hasattr(key, "get_any_name"):
        return key
    for pairs in ports:
        port = pairs.to_ovgpu(key)
        if port is not None:
            return port
    names = key.get_names()
    return min(names) if names else key.get_node().get_friendly_name()
