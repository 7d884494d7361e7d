"""Utilities of ``openvino.utils``: `types` is ovgpu's, all others are openvino's."""

from ovgpu.interop.names import names_of
from ovgpu.utils import types

__all__ = ["types"]

__getattr__ = names_of(__name__)
