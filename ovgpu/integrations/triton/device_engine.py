"""Class DeviceEngine, whose inputs and outputs may stay in the memory of a card for other models of Triton."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ovgpu.api.core import Core
from ovgpu.batching.gathering import Observer
from ovgpu.request.results import OVDict
from ovgpu.serve.engines import EngineOptions, Inputs, RequestEngine
from ovgpu.types import Type


class DeviceEngine(RequestEngine):
    """Engine of a card that runs each inference alone, and writes each output to new memory of the card."""

    def __init__(self, core: Core, path: Path, options: EngineOptions, observer: Observer) -> None:
        compiled = core.compile_model(core.read_model(path), options.device, options.properties)
        super().__init__(compiled, options, observer)
        self._context = core.get_default_context(options.device)

    def infer(self, request: Any, inputs: Inputs, submitted: float) -> OVDict:
        for i, port in enumerate(self.outputs):
            if port.dtype is not Type.string:
                extents = [max(extent, 0) for extent in port.shape or ()]
                request.set_output_tensor(i, self._context.create_tensor(port.dtype, extents))
        super().infer(request, inputs, submitted)
        return OVDict({i: request.get_output_tensor(i) for i in range(len(self.outputs))})


def open_device_engine(path: Path, options: EngineOptions, observer: Observer) -> DeviceEngine:
    """Read and compile a model for a card, and return its engine."""
    return DeviceEngine(Core(), path, options, observer)
