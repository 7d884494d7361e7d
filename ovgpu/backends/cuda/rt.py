"""The CUDA runtime: CuPy and the bindings of cuBLAS, cuBLASLt and cuDNN, imported at first use and only here."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from ovgpu._util.extras import WHERE
from ovgpu.errors import DeviceError

INSTALL = f'pip install ".[cuda13]" (for NVIDIA drivers from 580 on) or ".[cuda12]" (from 525 on) {WHERE}'

_cupy: Any = None
_cublas: Any = None
_cublaslt: Any = None
_cudnn: Any = None
_driver: Any = None
_replaced = False


def bind(cupy: Any, cublas: Any, cudnn: Any = None, cublaslt: Any = None) -> None:
    """Replace the modules, as tests do. None restores the installed one, False makes cuDNN or cuBLASLt missing."""
    global _cupy, _cublas, _cublaslt, _cudnn, _replaced
    _cupy, _cublas, _cublaslt, _cudnn = cupy, cublas, cublaslt, cudnn
    _replaced = cupy is not None


@contextmanager
def replacing(cupy: Any, cublas: Any, cudnn: Any = None, cublaslt: Any = None) -> Iterator[None]:
    """Replace the modules within the block; see `bind`."""
    global _cupy, _cublas, _cublaslt, _cudnn, _replaced
    before = _cupy, _cublas, _cublaslt, _cudnn, _replaced
    bind(cupy, cublas, cudnn, cublaslt)
    try:
        yield
    finally:
        _cupy, _cublas, _cublaslt, _cudnn, _replaced = before


def replaced() -> bool:
    """Return whether another module replaces CuPy. A GPU cannot run the kernels that it compiles."""
    return _replaced


def cupy() -> Any:
    """Return CuPy. DeviceError that says how to install it if it cannot be imported."""
    global _cupy
    if _cupy is None:
        _cupy = _import("cupy", "CuPy")
    return _cupy


def cublas() -> Any:
    """Return NVIDIA's low-level cuBLAS bindings: unlike CuPy's, they may be called while a stream is captured.

    DeviceError that says how to install them if they cannot be imported.
    """
    global _cublas
    if _cublas is None:
        _cublas = _import("nvmath.bindings.cublas", "nvmath-python")
    return _cublas


def cublaslt() -> Any:
    """Return the bindings of cuBLASLt, None if they or the library cannot be loaded."""
    global _cublaslt
    if _cublaslt is None:
        try:
            _cublaslt = import_module("nvmath.bindings.cublasLt")
            _cublaslt.get_version()
        except Exception:  # cuBLAS works without it
            _cublaslt = False
    return _cublaslt or None


def driver() -> Any:
    """Return NVIDIA's bindings of the CUDA driver, None if they or the driver cannot be loaded. A module that replaces
    CuPy may bring its own as ``driver``."""
    global _driver
    if _replaced:
        return getattr(_cupy, "driver", None)
    if _driver is None:
        try:
            _driver = import_module("cuda.bindings.driver")
            _driver.cuDriverGetVersion()
        except Exception:  # CuPy launches kernels as well
            _driver = False
    return _driver or None


def cudnn() -> Any:
    """Return the bindings of cuDNN's graph API, None if they or the library are not installed."""
    global _cudnn
    if _cudnn is None:
        _cudnn = _import_cudnn()
    return _cudnn or None


def _import_cudnn() -> Any:
    """Import cuDNN's bindings. Return False if that fails, and warn unless they are just not installed."""
    try:
        bindings = import_module("cudnn")
        bindings.backend_version()  # raises if the library is missing
        return bindings
    except Exception as e:
        if not isinstance(e, ModuleNotFoundError) or e.name != "cudnn":
            warnings.warn(
                f"cuDNN's bindings are installed, but cannot be used: {type(e).__name__}: {e}. "
                f'pip install ".[cudnn13]" or ".[cudnn12]" {WHERE}',
                RuntimeWarning,
                3,
            )
        return False


def _import(module: str, project: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as e:
        if e.name != module.partition(".")[0]:
            raise DeviceError(f"{project} is installed, but a module that it needs is not: {e}. {INSTALL}") from None
        raise DeviceError(f"{project} is not installed: {INSTALL}") from None
    except Exception as e:  # CuPy wraps the cause into a page of advice
        reason = e.__cause__ or e
        raise DeviceError(f"{project} is installed, but cannot be imported: {type(reason).__name__}: {reason}") from e
