"""The CUDA runtime: CuPy and the cuBLAS bindings, bound at first use. The only module that imports them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ovgpu.errors import DeviceError

_cupy: Any = None
_cublas: Any = None


def bind(cupy: Any, cublas: Any) -> None:
    """Uses these modules from now on; None for what `import` finds."""
    global _cupy, _cublas
    _cupy, _cublas = cupy, cublas


def cupy() -> Any:
    """CuPy. DeviceError with what to install if it is not there."""
    global _cupy
    if _cupy is None:
        try:
            _cupy = import_module("cupy")
        except ImportError as e:
            raise DeviceError(f'CUDA needs CuPy: pip install "ovgpu[cuda13]" or "ovgpu[cuda12]" ({e})') from None
    return _cupy


def cublas() -> Any:
    """NVIDIA's low-level cuBLAS bindings: unlike CuPy's, they may be called while a stream is captured."""
    global _cublas
    if _cublas is None:
        try:
            _cublas = import_module("nvmath.bindings.cublas")
        except ImportError as e:
            raise DeviceError(f'CUDA needs nvmath: pip install "ovgpu[cuda13]" or "ovgpu[cuda12]" ({e})') from None
    return _cublas
