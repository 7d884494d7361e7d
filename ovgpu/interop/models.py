"""Conversion of models of the openvino package. Import this module only where openvino is installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ovgpu._util.openvino_package import required
from ovgpu.errors import Error
from ovgpu.ir import is_onnx
from ovgpu.ir.read import read_model
from ovgpu.ir.write import serialize
from ovgpu.model import Model, all_nodes
from ovgpu.ops.arithmetic.arithmetic import Divide

openvino: Any = required(__name__)

ORIGIN, ONNX = ["conversion_parameters", "framework"], "onnx"  # where runtime information names a framework
BODIES = ("get_body", "get_then_body", "get_else_body")  # methods of TensorIterator, Loop and If


def from_openvino(model: Any) -> Model:
    """Return an `openvino.Model` as an ovgpu model, whose constants share the memory of openvino's.

    Constants are matched by friendly name. If names are ambiguous, or some constants are strings or in bodies that
    openvino does not show, all are copied through a temporary file instead.

    Integer divisions of a model that `mark_onnx` has marked are truncated.

    Raises: ModelError and OpError for a model that ovgpu cannot represent.
    """
    if not isinstance(model, openvino.Model):  # the C++ class, which `openvino.compile_model` unwraps
        model = openvino.Model(model)
    try:
        converted = _read_shared(model)
    except Error:
        converted = None
    converted = _read_copied(model) if converted is None else converted
    if model.has_rt_info(ORIGIN) and model.get_rt_info(ORIGIN).value == ONNX:
        for node in all_nodes(converted):
            if isinstance(node.op, Divide):
                node.op = replace(node.op, m_pythondiv=False)
    return converted


def mark_onnx(source: Any, model: Any) -> Any:
    """Mark a model that openvino has read from ``source`` as Model Optimizer did, if it is ONNX. Return the model.

    ONNX truncates quotients of integers. Its frontend, like that of PyTorch, asks for floored ones, and relies on
    OpenVINO's plugins, which truncate always.
    """
    if is_onnx(source):
        model.set_rt_info(ONNX, ORIGIN)
    return model


def to_openvino_model(model: Model, core: Any = None) -> Any:
    """Return a copy of an ovgpu model as an `openvino.Model`, read by ``core``, by default a new `openvino.Core`."""
    with TemporaryDirectory(prefix="ovgpu-") as folder:
        path = Path(folder, "model.xml")
        serialize(model, path)
        core = openvino.Core() if core is None else core
        return core.read_model(path.read_bytes(), path.with_suffix(".bin").read_bytes())


def _read_shared(model: Any) -> Model | None:
    """Return the model with shared constants, None if they cannot be matched."""
    constants: dict[str, Any] = {}
    for constant in _constants(model):
        if constants.setdefault(constant.friendly_name, constant) is not constant:
            return None
    with TemporaryDirectory(prefix="ovgpu-") as folder:
        path = Path(folder, "model.xml")
        openvino.serialize(model, path, os.devnull)  # all offsets in this XML are meaningless
        text = path.read_bytes()
    if text.count(b' type="Const" ') != len(constants):
        return None
    return read_model(text, lambda name: constants[name].data)


def _read_copied(model: Any) -> Model:
    # The mapped weights outlive their file, except on Windows, where the file stays.
    with TemporaryDirectory(prefix="ovgpu-", ignore_cleanup_errors=True) as folder:
        path = Path(folder, "model.xml")
        openvino.serialize(model, path)
        return read_model(path)


def _constants(model: Any) -> Iterator[Any]:
    """Yield the constants of a model and its bodies, except strings."""
    for node in model.get_ops():
        if node.get_type_name() == "Constant":
            if node.get_element_type() != openvino.Type.string:
                yield node
        for body in BODIES:
            if hasattr(node, body):
                yield from _constants(getattr(node, body)())
