"""Reader of model files: IR, and other formats such as ONNX, which openvino reads where it is installed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ovgpu import ir
from ovgpu._util import openvino_package
from ovgpu.errors import ModelError
from ovgpu.model import Model


def read_model(model: str | bytes | os.PathLike[str], weights: Any = None) -> Model:
    """Return the model in an IR file, or in a file of another format.

    ``model`` is the path of an .xml file, or of a folder with an openvino_model.xml or a single .xml file in it, or
    the XML itself as str or bytes. openvino reads other formats, such as ONNX, where it is installed.

    ``weights`` is the path of the .bin file (by default the one beside the .xml), or its contents: bytes, a
    memoryview, an array, a Tensor; or a function from the name of a constant's layer to its contents, for models whose
    weights lie in memory here and there. Such buffers are not copied and must not change while the model is in use.
    The files must not change either, but they may be replaced by new files.

    As in OpenVINO, inputs of f16 of an IR of version 10 become f32, its outputs become f32 or i32, and the names of
    layers are names of inputs and outputs. If two inputs or outputs have the same name, the second becomes ``name_1``.

    Raises: ModelError for a malformed file, OpError for a layer that the specification does not allow. Layers
    of unknown type raise no error until the model is compiled.
    """
    return _read_other_format(model) if ir.is_other_format(model) else ir.read_model(model, weights)


def _read_other_format(model: Any) -> Model:
    name = "the model" if isinstance(model, (bytes, bytearray, memoryview)) else Path(os.fsdecode(model)).name
    package = openvino_package.package()
    if package is None:
        raise ModelError(
            f"{name} is no OpenVINO IR; ovgpu can read it where openvino is installed: {openvino_package.HINT}"
        )
    from ovgpu.interop.models import from_openvino, mark_onnx  # needs openvino

    try:
        other = mark_onnx(model, package.Core().read_model(model))
    except RuntimeError as e:
        raise ModelError(f"openvino cannot read {name}: {e}") from None
    return from_openvino(other)
