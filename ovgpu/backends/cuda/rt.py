"""The CUDA runtime: CuPy, the bindings of cuBLAS, cuBLASLt and cuDNN, bound at first use. The only module that
imports them."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

from ovgpu.errors import DeviceError

INSTALL = 'pip install "ovgpu[cuda13]" (for NVIDIA drivers from 580 on) or "ovgpu[cuda12]" (from 525 on)'

_cupy: Any = None
_cublas: Any = None
_cublaslt: Any = None
_cudnn: Any = None
_replaced = False


def bind(cupy: Any, cublas: Any, cudnn: Any = None, cublaslt: Any = None) -> None:
    """Uses these modules from now on; None for what `import` finds, False for a cuDNN or cuBLASLt that is not there."""
    global _cupy, _cublas, _cublaslt, _cudnn, _replaced
    _cupy, _cublas, _cublaslt, _cudnn = cupy, cublas, cublaslt, cudnn
    _replaced = cupy is not None


def replaced() -> bool:
    """Return whether another module stands in for CuPy, whose kernels no card can run."""
    return _replaced


def cupy() -> Any:
    """CuPy. DeviceError with what to install if it is not there."""
    global _cupy
    if _cupy is None:
        _cupy = _import("cupy", "CuPy")
    return _cupy


def cublas() -> Any:
    """NVIDIA's low-level cuBLAS bindings: unlike CuPy's, they may be called while a stream is captured."""
    global _cublas
    if _cublas is None:
        _cublas = _import("nvmath.bindings.cublas", "nvmath-python")
    return _cublas


def cublaslt() -> Any:
    """The bindings of cuBLASLt, which come with those of cuBLAS; None where they, or the library, cannot be loaded."""
    global _cublaslt
    if _cublaslt is None:
        try:
            _cublaslt = import_module("nvmath.bindings.cublasLt")
            _cublaslt.get_version()
        except Exception:  # cuBLAS does without it
            _cublaslt = False
    return _cublaslt or None


def cudnn() -> Any:
    """The bindings of cuDNN's graphs; None where they, or the library itself, are not installed."""
    global _cudnn
    if _cudnn is None:
        _cudnn = _found_cudnn()
    return _cudnn or None


def _found_cudnn() -> Any:
    """What `import` finds; False, with a warning if that is not because nobody installed it."""
    try:
        found = import_module("cudnn")
        found.backend_version()  # of the library, which has to be there as well
        return found
    except Exception as e:
        if not isinstance(e, ModuleNotFoundError) or e.name != "cudnn":
            warnings.warn(f"cuDNN's bindings are installed, but cannot be used: {type(e).__name__}: {e}. "
                          'pip install "ovgpu[cudnn13]" or "ovgpu[cudnn12]"', RuntimeWarning, 3)
        return False


def _import(module: str, project: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as e:
        if e.name != module.partition(".")[0]:
            raise DeviceError(f"{project} is installed, but a module that it needs is not: {e}. {INSTALL}") from None
        raise DeviceError(f"{project} is not installed: {INSTALL}") from None
    except Exception as e:  # CuPy wraps what went wrong into a page of advice
        reason = e.__cause__ or e
        raise DeviceError(f"{project} is installed, but cannot be imported: {type(reason).__name__}: {reason}") from e
