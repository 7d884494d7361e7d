"""NVIDIA as a device inside the openvino package.

    import openvino as ov, ovgpu

    ovgpu.install()
    compiled = ov.Core().compile_model("model.xml", "NVIDIA")

    ovgpu.install(instead_of=["AUTO", "GPU"])
    compiled = ov.Core().compile_model("model.xml", "GPU")

Programs and libraries that use openvino then need only the name of the device to run on an NVIDIA card. ovgpu compiles
models of all formats that openvino reads, and models in memory; everything else stays openvino's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from types import ModuleType

from ovgpu._util.openvino_package import is_replaced, required

_lock = threading.RLock()  # openvino, which a call imports, may call it in turn: `startup.py`


def install(instead_of: str | Iterable[str] = ()) -> None:
    """Add the devices NVIDIA and NVIDIA.n to `openvino.Core`. Calling it again adds names.

    ``instead_of`` has names of openvino's devices that are to mean a card, too: any of AUTO, GPU and CPU, in a list or
    separated by commas. ``GPU.n`` is the card ``NVIDIA.n``. Models that ovgpu cannot run go on to openvino's own
    device, with a warning. ``CPU`` computes in f32 unless the program sets another precision.

    The function does nothing if `replace_openvino` was called before.

    Raises: ImportError if openvino is not installed, ValueError for another name.
    """
    with _lock:
        if not is_replaced():
            _core().install(instead_of)


def uninstall() -> None:
    """Remove the devices from `openvino.Core`. Models that are compiled keep working."""
    with _lock:
        if not is_replaced():
            _core().uninstall()


def _core() -> ModuleType:
    required("ovgpu.install()")
    from ovgpu.integrations.openvino import core

    return core
