"""Compilation of models with a dynamic batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ovgpu._util.openvino_package import owns
from ovgpu.api.compiled_model import CompiledModel
from ovgpu.api.core import Core
from ovgpu.batching.model import BatchedModel, batched
from ovgpu.model import Model


def compile_batched(
    model: Any, device: str | None, config: Mapping[str, Any] | None, batch_axes: Mapping[Any, int | None] | None
) -> tuple[CompiledModel, BatchedModel]:
    """Compile a model with a dynamic batch; see `SequenceBatcher` for the arguments and errors.

    The model, device, properties and constants of a `CompiledModel` are taken. ``config`` has further properties.
    """
    core, properties = Core(), dict(config or {})
    if isinstance(model, CompiledModel):
        core._donors = model._compilations
        compilation = model._compilation
        dynamic = batched(compilation.source, batch_axes)
        device = model._device if device is None else device
        properties = {**compilation.settings.exported(), **properties}
    else:
        source = model if isinstance(model, Model) and not owns(model) else core.read_model(model)
        dynamic = batched(source, batch_axes)
    return core.compile_model(dynamic.model, device, properties), dynamic
