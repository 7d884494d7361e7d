"""Libraries of operations for openvino, such as openvino_tokenizers. openvino's CPU runs models that need them.

Import this module only where openvino is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from ovgpu._util.openvino_package import own_core
from ovgpu.interop.models import to_openvino_model
from ovgpu.model import Model


@cache
def core_with(extensions: tuple[str, ...]) -> Any:
    """Return an `openvino.Core` with the operations of libraries. Raises: RuntimeError for a library it cannot load."""
    core = own_core()
    for path in extensions:
        core.add_extension(path)
    return core


def compile_for_cpu(model: Model, extensions: tuple[str, ...], properties: Mapping[str, str]) -> Any:
    """Compile an ovgpu model with operations of these libraries for openvino's CPU: an `openvino.CompiledModel`.

    It computes in f32, as ovgpu's CPU does, unless ``properties`` say otherwise. Properties that openvino's CPU lacks
    are left out.
    """
    core = core_with(extensions)
    known = core.get_property("CPU", "SUPPORTED_PROPERTIES")
    config = {"INFERENCE_PRECISION_HINT": "f32", **properties}
    return core.compile_model(
        to_openvino_model(model, core), "CPU", {name: value for name, value in config.items() if name in known}
    )
