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
        """Return ovgpu's port, None if an openvino port is not one of these."""
        return self._to_ovgpu.get(port)


@dataclass(frozen=True)
class PortsOfModel:
    """Ports of a compiled model, and the `openvino.CompiledModel` that they belong to, which stands in for it."""

    inputs: PairedPorts
    outputs: PairedPorts
    stand_in: Any


def make_ports(compiled: CompiledModel) -> PortsOfModel:
    """Return the inputs and outputs of a compiled model.

    openvino makes such ports only for models that it has compiled. It gets one of Parameters and Results alone, which
    takes a few milliseconds, with the names, types and shapes of this model. Its CPU plugin rejects inputs of some
    packed types; then the ports are those of the model itself, of class `openvino.Output`.
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
    found = openvino.Model(results, list(parameters.values()), "ports")
    try:
        found = stand_in = own_core().compile_model(found, "CPU")
    except RuntimeError:
        stand_in = _empty()
    return PortsOfModel(
        PairedPorts(found.inputs[: len(compiled.inputs)], compiled.inputs),
        PairedPorts(found.outputs, compiled.outputs),
        stand_in,
    )


@cache
def _empty() -> Any:
    """Return a compiled model of one input of no elements."""
    nothing = ops.parameter([0], np.float32)
    return own_core().compile_model(openvino.Model([nothing], [nothing], "empty"), "CPU")


def _parameter(port: Output) -> Any:
    found = ops.parameter(openvino.PartialShape(str(port.partial_shape)), to_openvino_type(port.element_type))
    found.output(0).get_tensor().set_names(port.get_names())
    return found


def key_to_ovgpu(ports: Sequence[PairedPorts], key: Any) -> Any:
    """Return a key of ovgpu's for a number, a name, a port of the compiled model, or a port of another model, which
    stands for the port of the same name."""
    if isinstance(key, np.integer):
        return int(key)
    if not hasattr(key, "get_any_name"):
        return key
    for some in ports:
        found = some.to_ovgpu(key)
        if found is not None:
            return found
    names = key.get_names()
    return min(names) if names else key.get_node().get_friendly_name()
