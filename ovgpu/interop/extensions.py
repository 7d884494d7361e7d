"""Libraries of operations for openvino, such as that of openvino_tokenizers, whose models openvino's CPU runs.

Import this module only where openvino is installed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ovgpu._util.openvino_package import required
from ovgpu.interop.models import to_openvino_model
from ovgpu.model import Model

openvino: Any = required(__name__)


def core_with(extensions: Iterable[str]) -> Any:
    """Return an `openvino.Core` with the operations of libraries. Raises: RuntimeError for a library it cannot load."""
    core = openvino.Core()
    for path in extensions:
        core.add_extension(path)
    return core


def compile_for_cpu(model: Model, extensions: Iterable[str]) -> Any:
    """Return the `openvino.CompiledModel` of an ovgpu model with operations of these libraries, for openvino's CPU."""
    core = core_with(extensions)
    return core.compile_model(to_openvino_model(model, core), "CPU")
