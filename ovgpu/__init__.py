"""ovgpu: run OpenVINO IR models on NVIDIA GPUs, with a NumPy fallback, through the API OpenVINO users know.

    import ovgpu as ov

    compiled = ov.Core().compile_model("model.xml", "AUTO")
    result = compiled([array])[compiled.output(0)]
"""

from __future__ import annotations

from dataclasses import dataclass

from ovgpu import properties
from ovgpu.core import CompiledModel, Core, compile_model
from ovgpu.debug import DEBUG, STOP_AT
from ovgpu.errors import DeviceError, Error, ModelError, OpError, UnsupportedOpError
from ovgpu.ir import read_model
from ovgpu.model import Input, Model, Node, Output, get_batch, set_batch
from ovgpu.ops import op
from ovgpu.request import InferRequest, VariableState
from ovgpu.results import OVDict
from ovgpu.runtime.profile import ProfilingInfo
from ovgpu.tensor import Tensor
from ovgpu.types import Dimension, Layout, PartialShape, Shape, Type

__version__ = "0.1.0"

ConstOutput = Output


@dataclass(frozen=True)
class Version:
    """What `Core.get_versions` tells of a device."""

    build_number: str
    description: str


def get_version() -> str:
    """The version of ovgpu."""
    return __version__
