"""The class of an inference's results, where openvino has it too."""

from ovgpu.request.results import OVDict

__all__ = ["OVDict"]
