"""CuPy without a GPU: this module takes the place of `cupy`.

    from tests.emulator import cupy_emu as cupy

Kernels run on the CPU (kernel.py, elementwise.py). Arrays live in separate device memory (memory.py) and follow the
rules of a device. Captured work is recorded as data and replayed (stream.py). Tests read `counters`, and vary the
order of threads with `thread_order`, and of asynchronous copies with `landing`."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from . import array_ops, cuda, driver_emu, memory
from .array_ops import CopyNode, call
from .cupy_names import FUNCTIONS, LINALG, VALUES
from .device import devices, memory_limit
from .elementwise import ElementwiseKernel
from .interchange import from_dlpack, from_interface
from .kernel import RawKernel, RawModule
from .ndarray import check_dtype, ndarray, upload
from .state import CaptureError, EmulatorError, counters, landing, thread_order, time_limit
from .stream import enqueue

__version__ = "14.2.0"
__all__ = [
    "CaptureError", "ElementwiseKernel", "EmulatorError", "RawKernel", "RawModule", "counters", "cuda",
    "devices", "from_dlpack", "landing", "memory_limit", "ndarray",
    "thread_order", "time_limit",
]  # fmt: skip

is_emulated = True
driver = driver_emu  # what `ovgpu.backends.cuda.rt` takes in place of cuda.bindings.driver
# cupy._core.core: its function tells NVRTC where CUDA's headers are.
_core = SimpleNamespace(core=SimpleNamespace(assemble_cupy_compiler_options=lambda options: options))


is_available = cuda.is_available


def asnumpy(a: Any, stream: Any = None, order: str = "C", out: Any = None, *, blocking: bool = True) -> Any:
    if isinstance(a, ndarray):
        return a.get(stream, order, out, blocking)
    return np.asarray(a, order=order)


def get_array_module(*args: Any) -> Any:
    import sys

    return sys.modules[__name__] if any(isinstance(arg, ndarray) for arg in args) else np


def array(
    obj: Any, dtype: Any = None, copy: bool = True, order: str = "K", subok: bool = False, ndmin: int = 0
) -> ndarray:
    """Return a fresh device array. Only this function and asarray take NumPy arrays."""
    if isinstance(obj, ndarray):
        same = dtype is None or check_dtype(dtype) == obj.dtype
        result = obj if same and not copy else obj.astype(obj.dtype if dtype is None else dtype, order)
        return result.reshape((1,) * (ndmin - result.ndim) + result.shape) if ndmin > result.ndim else result
    if isinstance(obj, (list, tuple)) and array_ops._device_arrays(obj):
        result = call("stack", (list(obj),), {})
        return result if dtype is None else result.astype(dtype)
    if hasattr(obj, "__cuda_array_interface__"):
        return array(from_interface(obj), dtype, copy, order, subok, ndmin)
    host = np.array(obj, dtype=dtype, ndmin=ndmin)
    check_dtype(host.dtype)
    keeps_f = order in "KA" and host.flags.f_contiguous and not host.flags.c_contiguous
    return upload(host, "F" if order == "F" or keeps_f else "C")


def asarray(a: Any, dtype: Any = None, order: str = "K", *, blocking: bool = False) -> ndarray:
    return array(a, dtype, copy=False, order=order)


def ascontiguousarray(a: Any, dtype: Any = None) -> ndarray:
    result = asarray(a, dtype)
    return result if result.flags.c_contiguous else result.copy()


def asfortranarray(a: Any, dtype: Any = None) -> ndarray:
    result = asarray(a, dtype)
    return result if result.flags.f_contiguous else result.copy("F")


def empty(shape: Any, dtype: Any = "float64", order: str = "C") -> ndarray:
    return ndarray(shape, dtype, order=order)


def empty_like(
    prototype: ndarray, dtype: Any = None, order: str = "K", subok: Any = None, shape: Any = None
) -> ndarray:
    chosen = "F" if order == "F" or (order in "KA" and prototype.flags.fnc) else "C"
    return ndarray(
        prototype.shape if shape is None else shape, prototype.dtype if dtype is None else dtype, order=chosen
    )


def copyto(dst: ndarray, src: Any, casting: str = "same_kind", where: Any = None) -> None:
    """Copy elementwise with broadcasting; can be captured."""
    if not isinstance(dst, ndarray):
        raise TypeError("copyto: dst must be a cupy.ndarray")
    if where is not None:
        call("copyto", (dst, src), {"casting": casting, "where": where})
        return
    if isinstance(src, np.ndarray):
        raise TypeError(f"Unsupported type {type(src)}: copy it to the device first")
    source_type = src.dtype if isinstance(src, ndarray) else src
    if isinstance(src, ndarray) and not np.can_cast(source_type, dst.dtype, casting):  # type: ignore[arg-type]
        raise TypeError(f"Cannot cast array data from {src.dtype} to {dst.dtype} according to the rule '{casting}'")
    if isinstance(src, ndarray) and np.broadcast_shapes(src.shape, dst.shape) != dst.shape:
        raise ValueError(f"could not broadcast input array from shape {src.shape} into shape {dst.shape}")
    enqueue(CopyNode(dst._view, src._view if isinstance(src, ndarray) else src), count=True)


def may_share_memory(a: ndarray, b: ndarray, max_work: Any = None) -> bool:
    (a_low, a_high), (b_low, b_high) = a._view.bounds(), b._view.bounds()
    return a_low < b_high and b_low < a_high


def shares_memory(a: ndarray, b: ndarray, max_work: Any = None) -> bool:
    return bool(np.shares_memory(a._host(), b._host()))


def get_default_memory_pool() -> memory.MemoryPool:
    return memory.default_pool


class _Functions:
    """A namespace of NumPy functions, such as cupy.linalg."""

    def __init__(self, prefix: str, names: frozenset[str]) -> None:
        self._prefix, self._names = prefix, names

    def __getattr__(self, name: str) -> Any:
        if name not in self._names:
            raise AttributeError(f"module 'cupy.{self._prefix}' has no attribute {name!r}")
        return lambda *args, **kwargs: call(f"{self._prefix}.{name}", args, kwargs)


linalg = _Functions("linalg", LINALG)
fft = _Functions("fft", frozenset("fft ifft fft2 ifft2 fftn ifftn rfft irfft rfft2 irfft2 rfftn irfftn".split()))
random = _Functions("random", frozenset("rand randn random uniform normal standard_normal randint seed".split()))


def _map(function: Any) -> Any:
    """Return a function of device arrays that applies a scalar function, as in cupyx.scipy.special; NumPy has none."""

    def apply(x: ndarray, out: ndarray | None = None) -> ndarray:
        result = x if out is None else out
        host = np.vectorize(function, otypes=[np.float64])(x._host()) if x.size else x._host()
        if out is None:
            result = ndarray(x.shape, x.dtype if x.dtype.kind == "f" else np.float64)
        array_ops.refuse_while_capturing("cupyx.scipy.special")
        np.copyto(result._host(), host, casting="unsafe")
        return result

    return apply


# CuPy has these in a separate package.
cupyx = SimpleNamespace(
    scipy=SimpleNamespace(
        special=SimpleNamespace(
            erf=_map(math.erf), erfc=_map(math.erfc), gammaln=_map(math.lgamma), gamma=_map(math.gamma)
        )
    )
)


def __getattr__(name: str) -> Any:
    if name in VALUES:
        return getattr(np, name)
    if name in FUNCTIONS:
        return lambda *args, **kwargs: call(name, args, kwargs)
    raise AttributeError(f"module 'cupy' has no attribute {name!r}")
