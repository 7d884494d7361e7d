"""`OVDict`, the class of an inference's results, which programs also import from openvino's module of this name."""

from ovgpu.request.results import OVDict

__all__ = ["OVDict"]
