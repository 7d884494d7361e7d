"""Whole-array operations: NumPy computes on the device views, results go to fresh device memory.

A graph records data only: elementwise functions with `out=` and copies between views."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import device
from .memory import check_span, is_device
from .state import CaptureError, counters
from .stream import device_lock, enqueue, get_current_stream, refuse_while_capturing

# CuPy hands these to cuBLAS, cuSOLVER and the like, which it refuses to call while capturing.
LIBRARY_CALLS = frozenset(
    "matmul dot vdot inner outer tensordot einsum kron cross trace method:dot method:trace".split()
)
# The size of these results depends on values, so that CuPy reads a count back from the device.
HOST_RESULTS = frozenset(
    "nonzero flatnonzero argwhere unique compress extract trim_zeros bincount method:nonzero method:compress".split()
)


def check_dtype(dtype: Any) -> np.dtype[Any]:
    """Return `dtype` as a NumPy dtype. Raise ValueError if CuPy has no kernels for it: such arrays only have views."""
    dtype = np.dtype(dtype)
    if dtype.name != "bfloat16" and (dtype.kind not in "biufc" or dtype.isbuiltin != 1):  # the others of ml_dtypes
        raise ValueError(f"Unsupported dtype {dtype}")
    if dtype.byteorder == ">":
        raise ValueError(f"Unsupported dtype {dtype}: not in native byte order")
    return dtype


@dataclass(frozen=True, slots=True)
class View:
    """Address, shape, strides in bytes and element type of an array in device memory."""

    ptr: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    def bounds(self) -> tuple[int, int]:
        """Return the addresses of the first byte and one past the last byte that the elements occupy."""
        if self.size == 0:
            return self.ptr, self.ptr
        reach = [(extent - 1) * stride for extent, stride in zip(self.shape, self.strides)]
        low = self.ptr + sum(step for step in reach if step < 0)
        return low, self.ptr + sum(step for step in reach if step > 0) + self.dtype.itemsize

    def is_contiguous(self, order: str) -> bool:
        step = self.dtype.itemsize
        axes = zip(self.shape, self.strides)
        for extent, stride in reversed(list(axes)) if order == "C" else axes:
            if extent != 1 and stride != step and self.size:
                return False
            step *= extent
        return True


def device_view(view: View) -> np.ndarray[Any, Any]:
    """Return a NumPy view of live device memory. Raise CUDARuntimeError unless the whole range is live."""
    low, high = view.bounds()
    if low == high:
        return np.empty(view.shape, view.dtype)
    check_span(low, high - low, "array access")
    buffer = (ctypes.c_char * (high - low)).from_address(low)
    return np.ndarray(view.shape, view.dtype, buffer, view.ptr - low, view.strides)


@dataclass(frozen=True, slots=True)
class CopyNode:
    """Elementwise copy with conversion and broadcasting; `src` is a View or a scalar."""

    dst: View
    src: Any

    def __post_init__(self) -> None:
        views = [view for view in (self.dst, self.src) if isinstance(view, View)]
        if len(views) < 2 or not all(view.is_contiguous("C") for view in views):  # else the driver copies
            for view in views:
                check_dtype(view.dtype)

    def accesses(self) -> tuple[list[int], list[int]]:
        return [self.src.ptr] if isinstance(self.src, View) else [], [self.dst.ptr]

    def run(self) -> None:
        source = device_view(self.src) if isinstance(self.src, View) else self.src
        with np.errstate(all="ignore"):
            np.copyto(device_view(self.dst), np.array(source), casting="unsafe")


@dataclass(frozen=True, slots=True)
class UfuncNode:
    """A call of a NumPy ufunc, given by name, on views and scalars."""

    name: str
    args: tuple[Any, ...]
    outs: tuple[View, ...]
    casting: str

    def accesses(self) -> tuple[list[int], list[int]]:
        return [arg.ptr for arg in self.args if isinstance(arg, View)], [out.ptr for out in self.outs]

    def run(self) -> None:
        args = [device_view(arg) if isinstance(arg, View) else arg for arg in self.args]
        outs = tuple(device_view(out) for out in self.outs)
        with np.errstate(all="ignore"):
            getattr(np, self.name)(*args, out=outs, casting=self.casting)


def _is_device_array(value: Any) -> bool:
    return hasattr(value, "_device_array_pointer")


def to_host_view(value: Any) -> Any:
    """Return `value` with NumPy views in place of device arrays. Raise TypeError if it holds a NumPy array."""
    if _is_device_array(value):
        return value._host()
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}: copy it to the device first")
    if isinstance(value, (tuple, list)):
        return type(value)(to_host_view(item) for item in value)
    if isinstance(value, slice):
        return slice(*(to_host_view(part) for part in (value.start, value.stop, value.step)))
    return value


def _device_arrays(value: Any) -> list[Any]:
    if _is_device_array(value):
        return [value]
    if isinstance(value, (tuple, list)):
        return [array for item in value for array in _device_arrays(item)]
    return []


def wrap(result: Any, sources: list[Any]) -> Any:
    """Return NumPy results as device arrays: a view stays a view, anything else is copied to fresh device memory."""
    from .ndarray import ndarray

    if isinstance(result, np.generic):
        result = np.asarray(result)
    if isinstance(result, np.ndarray):
        address = result.__array_interface__["data"][0]
        if result.size and is_device(address):
            for source in sources:
                mem = source.data.mem
                if mem.ptr <= address < mem.ptr + mem.size:
                    return ndarray._of(View(address, result.shape, result.strides, result.dtype), source)
        if not result.size and result.base is not None and sources:  # an empty view
            source = sources[0]
            return ndarray._of(View(source.data.ptr, result.shape, result.strides, result.dtype), source)
        for dtype in {source.dtype for source in sources} | ({result.dtype} if sources else set()):
            check_dtype(dtype)
        order = "F" if result.flags.f_contiguous and not result.flags.c_contiguous else "C"
        array = ndarray(result.shape, result.dtype, order=order)
        if result.size:
            np.copyto(array._host(), result)
        return array
    if isinstance(result, tuple):
        values = [wrap(item, sources) for item in result]
        return type(result)(*values) if hasattr(result, "_fields") else tuple(values)
    if isinstance(result, list):
        return [wrap(item, sources) for item in result]
    return result


def call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one of NumPy's functions (or "method:", "property:", "getitem", "setitem") on device arrays."""
    with device_lock:
        return _call(name, args, kwargs)


def _call(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    stream = get_current_stream()
    if stream.capture is not None:
        if name in LIBRARY_CALLS or name.startswith(("linalg.", "random.", "fft.")):
            raise RuntimeError(
                f"{name}: calling cuBLAS API during stream capture is currently unsupported "
                "(the same holds for cuSOLVER, cuSPARSE, cuFFT and cuRAND)"
            )
        if name in HOST_RESULTS:
            refuse_while_capturing(f"{name}: reading a size from the device")
    if name == "setitem":
        return _setitem(*args)
    out = kwargs.pop("out", None)
    function = getattr(np, name, None)
    if isinstance(function, np.ufunc) and function.signature is None:
        _check_operands(name, args)
        if out is not None and set(kwargs) <= {"casting"}:
            return _ufunc_into(name, args, out, **kwargs)
    if out is not None:
        if stream.capture is not None:
            raise CaptureError(f"{name}(out=...) cannot be recorded by the emulator: use a kernel of the project")
        outs = out if isinstance(out, tuple) else (out,)
        kwargs["out"] = tuple(to_host_view(item) for item in outs) if isinstance(out, tuple) else to_host_view(out)
    sources = _device_arrays(args) + _device_arrays(list(kwargs.values())) + _device_arrays(out)
    host_args = to_host_view(args)
    host_kwargs = {key: value if key == "out" else to_host_view(value) for key, value in kwargs.items()}
    with np.errstate(all="ignore"):
        result = _evaluate(name, host_args, host_kwargs)
    if out is not None:
        return out
    if not isinstance(result, (np.ndarray, np.generic, tuple, list)):
        return result
    wrapped = wrap(result, sources)
    if _is_device_array(wrapped) and wrapped.base is None:
        counters.launches += 1
    return wrapped


def _evaluate(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if name == "getitem":
        array, index = args
        # `...` keeps the result an array, so that an element is a view as in CuPy.
        parts = index if isinstance(index, tuple) else (index,)
        basic = all(isinstance(part, (int, np.integer, slice, type(None))) for part in parts)
        return array[(*parts, ...)] if basic else array[index]
    kind, _, attribute = name.partition(":")
    if kind == "method":
        return getattr(args[0], attribute)(*args[1:], **kwargs)
    if kind == "property":
        return getattr(args[0], attribute)
    function: Any = np
    for part in name.split("."):
        function = getattr(function, part)
    return function(*args, **kwargs)


def _check_operands(name: str, args: tuple[Any, ...]) -> None:
    for arg in args:
        if not (_is_device_array(arg) or isinstance(arg, (bool, int, float, complex, np.generic))):
            raise TypeError(f"{name}: Unsupported type {type(arg)}")
        if _is_device_array(arg):
            check_dtype(arg.dtype)
            check_here(arg)


def check_here(array: Any) -> None:
    """Raise ValueError unless the array lies on the current device."""
    if array.data.device_id != device.current():
        raise ValueError(
            "Array device must be same as the current device: "
            f"array device = {array.data.device_id} while current = {device.current()}"
        )


def _ufunc_into(name: str, args: tuple[Any, ...], out: Any, casting: str = "same_kind") -> Any:
    outs = out if isinstance(out, tuple) else (out,)
    for item in outs:
        if not _is_device_array(item):
            raise TypeError("Output arguments type must be cupy.ndarray")
    shape = np.broadcast_shapes(*(arg.shape for arg in args if _is_device_array(arg)))
    if any(np.broadcast_shapes(shape, item.shape) != item.shape for item in outs):
        raise ValueError(f"{name}: non-broadcastable output operand")
    data = tuple(arg._view if _is_device_array(arg) else arg for arg in args)
    enqueue(UfuncNode(name, data, tuple(item._view for item in outs), casting), count=True)
    return out


def _setitem(array: Any, index: Any, value: Any) -> None:
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}: copy it to the device first")
    if _is_basic(index):
        target = call("getitem", (array, index), {})
        if _is_device_array(value):
            np.broadcast_to(np.empty(value.shape, np.bool_), target.shape)  # ValueError where it does not fit
        enqueue(CopyNode(target._view, value._view if _is_device_array(value) else value), count=True)
        return
    refuse_while_capturing("assignment through an index array or mask")
    with np.errstate(all="ignore"):
        array._host()[to_host_view(index)] = to_host_view(value)


def _is_basic(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or part is ... or isinstance(part, (int, np.integer, slice)) for part in parts)
