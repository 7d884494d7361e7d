"""Utilities of ``openvino.utils.data_helpers``: `OVDict` and `tensor_from_file` are ovgpu's, all others openvino's."""

from ovgpu.interop.names import names_of
from ovgpu.request.results import OVDict
from ovgpu.tensor import tensor_from_file

__all__ = ["OVDict", "tensor_from_file"]

__getattr__ = names_of(__name__)
