"""NVIDIA as a device inside the openvino package.

    import openvino as ov, ovgpu

    ovgpu.install()
    compiled = ov.Core().compile_model("model.xml", "NVIDIA")

Programs and libraries that use openvino then run on an NVIDIA card by the name of the device alone. Models of all
formats that openvino reads, and models in memory, are compiled by ovgpu; everything else stays openvino's.
"""

from __future__ import annotations

import threading
from types import ModuleType

from ovgpu._util.openvino_package import required

_lock = threading.Lock()


def install() -> None:
    """Add the devices NVIDIA and NVIDIA.n to `openvino.Core`. Calling it again does nothing.

    Raises: ImportError if openvino is not installed.
    """
    with _lock:
        _core().install()


def uninstall() -> None:
    """Remove the devices from `openvino.Core`. Models that are compiled keep working."""
    with _lock:
        _core().uninstall()


def _core() -> ModuleType:
    required("ovgpu.install()")
    from ovgpu.integrations.openvino import core

    return core
