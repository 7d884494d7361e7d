"""ovgpu: run OpenVINO IR models on NVIDIA GPUs, with a NumPy fallback, through the API OpenVINO users know.

    import ovgpu as ov

    compiled = ov.Core().compile_model("model.xml", "AUTO")
    result = compiled([array])[compiled.output(0)]

A custom operation is a class. Its annotations are the attributes of the layer, `infer_specs` returns the types and
shapes of the outputs, and `evaluate` computes them with ``xp``, which is NumPy or CuPy.

    @ov.register_op("Rotate", "my_opset")
    class Rotate(ov.Op):
        shift: int = 1

        def infer_specs(self, x):
            return (ov.Spec(x.type, x.shape),)

        def evaluate(self, xp, x):
            return (xp.roll(x, self.shift, axis=-1),)
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import ovgpu._util.interrupt  # before the other imports, which take most of the time until a command starts
from ovgpu import passes, preprocess, properties
from ovgpu.api.async_infer_queue import AsyncInferQueue
from ovgpu.api.compiled_model import CompiledModel
from ovgpu.api.core import Core, compile_model
from ovgpu.api.infer_request import InferRequest
from ovgpu.compile.ports import ConstOutput
from ovgpu.debug import DEBUG, STOP_AT
from ovgpu.errors import DeviceError, Error, ModelError, OpError, UnsupportedOpError
from ovgpu.interop import names
from ovgpu.interop.formats import read_model
from ovgpu.ir import save_model, serialize
from ovgpu.model import Input, Model, Node, Output, RTMap, get_batch, set_batch
from ovgpu.ops import Op
from ovgpu.ops import op as register_op
from ovgpu.request.remote_tensor import RemoteContext, RemoteTensor
from ovgpu.request.results import OVDict
from ovgpu.request.variables import VariableState
from ovgpu.runtime.profile import ProfilingInfo
from ovgpu.spec import Spec
from ovgpu.tensor import Tensor, tensor_from_file
from ovgpu.types import Dimension, Layout, OVAny, PartialShape, Shape, Strides, Type
from ovgpu.version import Version, __version__, get_version

__all__ = [
    "DEBUG",
    "STOP_AT",
    "AsyncInferQueue",
    "BatchFullError",
    "BatchedSequence",
    "CompiledModel",
    "ConstOutput",
    "Core",
    "DeviceError",
    "Dimension",
    "DynamicBatcher",
    "Error",
    "InferRequest",
    "Input",
    "Layout",
    "Model",
    "ModelError",
    "Node",
    "OVAny",
    "OVDict",
    "Op",
    "OpError",
    "Output",
    "PartialShape",
    "PoolFullError",
    "ProfilingInfo",
    "RTMap",
    "RemoteContext",
    "RemoteTensor",
    "SequenceBatcher",
    "Shape",
    "Spec",
    "Strides",
    "Tensor",
    "Type",
    "UnsupportedOpError",
    "VariableState",
    "Version",
    "__version__",
    "compile_model",
    "get_batch",
    "get_version",
    "install",
    "preprocess",
    "properties",
    "read_model",
    "register_op",
    "replace_openvino",
    "save_model",
    "serialize",
    "set_batch",
    "tensor_from_file",
    "uninstall",
]


BATCHING = ("BatchFullError", "BatchedSequence", "DynamicBatcher", "PoolFullError", "SequenceBatcher")
LAZY_MODULES = ("exceptions", "helpers", "layout_helpers", "utils")

sys.meta_path.append(names.Finder())
passes.__getattr__ = names.names_of("ovgpu.passes")  # type: ignore[method-assign]  # names of openvino.passes


def __dir__() -> list[str]:
    """Return the names that programs use, those of openvino among them."""
    special = [name for name in globals() if name.startswith("__")]
    return sorted({*__all__, *special, *LAZY_MODULES, *names.NAMES, *names.MODULES, "passes", "ray"} - {"_pyopenvino"})


def _lazy(name: str) -> Any:
    """Return a name of batching, integrations or openvino, which is imported when it is first used."""
    if name in ("install", "uninstall"):
        return getattr(import_module("ovgpu.integrations.openvino"), name)
    if name == "replace_openvino":
        return import_module("ovgpu.integrations.openvino.replacement").replace_openvino
    if name == "ray":
        return import_module("ovgpu.integrations.ray")
    if name in BATCHING:
        return getattr(import_module("ovgpu.batching"), name)
    if name in names.MODULES or name in LAZY_MODULES:
        return import_module(f"ovgpu.{name}")
    if name in names.NAMES:
        globals()[name] = value = names.attribute("ovgpu", name)
        return value
    raise AttributeError(f"module 'ovgpu' has no attribute '{name}'")


if TYPE_CHECKING:  # with a module's __getattr__, a type checker would accept any name
    from ovgpu import exceptions as exceptions
    from ovgpu import helpers as helpers
    from ovgpu import layout_helpers as layout_helpers
    from ovgpu import utils as utils
    from ovgpu.batching import BatchedSequence, BatchFullError, DynamicBatcher, PoolFullError, SequenceBatcher
    from ovgpu.integrations import ray as ray
    from ovgpu.integrations.openvino import install, uninstall
    from ovgpu.integrations.openvino.replacement import replace_openvino

    AxisSet: Any
    AxisVector: Any
    Coordinate: Any
    CoordinateDiff: Any
    DiscreteTypeInfo: Any
    Extension: Any
    OpExtension: Any
    Symbol: Any
    TensorVector: Any
    VAContext: Any
    VASurfaceTensor: Any
    convert_model: Any
    shutdown: Any
    _offline_transformations: Any
    experimental: Any
    frontend: Any
    op: Any
    package_utils: Any
    tools: Any
    torch: Any
    opset1: Any
    opset2: Any
    opset3: Any
    opset4: Any
    opset5: Any
    opset6: Any
    opset7: Any
    opset8: Any
    opset9: Any
    opset10: Any
    opset11: Any
    opset12: Any
    opset13: Any
    opset14: Any
    opset15: Any
    opset16: Any
    opset17: Any
else:
    __getattr__ = _lazy
