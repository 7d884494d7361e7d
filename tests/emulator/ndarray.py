"""cupy.ndarray over emulated device memory: a wrapper whose data NumPy cannot reach implicitly."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from . import memory
from .array_ops import CopyNode, View, call, check_dtype, device_view
from .memory import H2D, MemoryPointer
from .state import counters
from .stream import Stream, device_lock, enqueue, get_current_stream, refuse_while_capturing

_IMPLICIT = (
    "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array explicitly."
)


class Flags(SimpleNamespace):
    """`.c_contiguous`, `.f_contiguous`, `.owndata`, `.forc`, `.fnc`, also by name in brackets."""

    def __getitem__(self, name: str) -> bool:
        return bool(getattr(self, name.lower()))


class ndarray:
    """cupy.ndarray(shape, dtype=float, memptr=None, strides=None, order='C').

    Fresh memory is poison (0xFB bytes). Implicit conversion to NumPy, or mixing with NumPy arrays, raises TypeError;
    reading a value on the host raises while the stream is being captured."""

    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        shape: Any,
        dtype: Any = float,
        memptr: MemoryPointer | None = None,
        strides: tuple[int, ...] | None = None,
        order: str = "C",
    ) -> None:
        shape = tuple(int(n) for n in shape) if isinstance(shape, (tuple, list)) else (int(shape),)
        dtype = np.dtype(dtype)
        if dtype.hasobject or dtype.byteorder == ">":
            raise ValueError(f"Unsupported dtype {dtype}")
        if min(shape, default=0) < 0:
            raise ValueError("negative dimensions are not allowed")
        if strides is None:
            strides = dense_strides(shape, dtype.itemsize, order or "C")
        elif memptr is None:
            raise ValueError("memptr is required if strides is given.")
        if memptr is None:
            if dtype.type is not np.void:  # CuPy allocates structs, and dtypes for which it has kernels
                check_dtype(dtype)
            memptr = memory.alloc(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        self._set(View(memptr.ptr, shape, tuple(strides), dtype), memptr, None)

    def _set(self, view: View, memptr: MemoryPointer, base: ndarray | None) -> None:
        self._view, self.data, self.base = view, memptr, base

    @classmethod
    def _of(cls, view: View, base: ndarray) -> ndarray:
        """Return a view of `base`'s memory."""
        array = cls.__new__(cls)
        array._set(view, base.data + (view.ptr - base.data.ptr), base if base.base is None else base.base)
        return array

    def _device_array_pointer(self) -> int:
        return self._view.ptr

    # ---- attributes ---------------------------------------------------------------------------------------
    shape = property(lambda self: self._view.shape)
    strides = property(lambda self: self._view.strides)
    dtype = property(lambda self: self._view.dtype)
    ndim = property(lambda self: len(self._view.shape))
    size = property(lambda self: self._view.size)
    itemsize = property(lambda self: self._view.dtype.itemsize)
    nbytes = property(lambda self: self._view.size * self._view.dtype.itemsize)

    @shape.setter
    def shape(self, shape: Any) -> None:
        reshaped = self.reshape(shape)
        if reshaped.data.mem is not self.data.mem:
            raise AttributeError("incompatible shape")
        self._view = reshaped._view

    @property
    def flags(self) -> Flags:
        c, f = self._view.is_contiguous("C"), self._view.is_contiguous("F")
        return Flags(c_contiguous=c, f_contiguous=f, owndata=self.base is None, forc=c or f, fnc=f and not c)

    @property
    def device(self) -> Any:
        from .cuda import Device

        return Device(self.data.device_id)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        strides = None if self._view.is_contiguous("C") else self.strides
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.data.ptr, False),
            "strides": strides,
            "version": 3,
            "stream": get_current_stream(self.data.device_id).ptr or 1,
        }

    def __dlpack__(self, *, stream: int | None = None, dl_device: tuple[int, int] | None = None, **_: object) -> Any:
        from .interchange import to_dlpack

        if dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"the array is on device {self.__dlpack_device__()}, not {dl_device}")
        return to_dlpack(self, stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.data.device_id

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return int(self.shape[0])

    def __repr__(self) -> str:
        if get_current_stream().capture is not None:
            return f"<device array {self.shape} {self.dtype}>"
        return repr(self._host())

    # ---- to and from the host -----------------------------------------------------------------------------
    def _host(self) -> np.ndarray[Any, Any]:
        return device_view(self._view)

    def get(
        self,
        stream: Stream | None = None,
        order: str = "C",
        out: np.ndarray[Any, Any] | None = None,
        blocking: bool = True,
    ) -> np.ndarray[Any, Any]:
        refuse_while_capturing("ndarray.get()", stream)
        counters.d2h_bytes += self.nbytes
        counters.synchronizations += int(blocking)
        if out is None:
            with device_lock:
                return np.array(self._host(), order="F" if order == "F" else "C")
        if not isinstance(out, np.ndarray):
            raise TypeError("Only numpy.ndarray can be obtained from cupy.ndarray")
        if out.dtype != self.dtype:
            raise TypeError(f"{out.dtype} array cannot be obtained from {self.dtype} array")
        if out.shape != self.shape:
            raise ValueError(f"Shape mismatch. Expected shape: {self.shape}, actual shape: {out.shape}")
        with device_lock:
            np.copyto(out, self._host())
        return out

    def set(self, arr: np.ndarray[Any, Any], stream: Stream | None = None) -> None:
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if arr.dtype != self.dtype:
            raise TypeError(f"{arr.dtype} array cannot be set to {self.dtype} array")
        if arr.shape != self.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {arr.shape}")
        order = next((order for order in "CF" if self._view.is_contiguous(order)), None)
        if order is None:
            raise RuntimeError("Cannot set to non-contiguous array")
        source = np.asarray(arr, order="F" if order == "F" else "C")
        memory.copy(self.data.ptr, source.ctypes.data, self.nbytes, H2D, stream)

    def item(self, *index: int) -> Any:
        refuse_while_capturing("ndarray.item()")
        counters.d2h_bytes += self.itemsize
        counters.synchronizations += 1
        with device_lock:
            return self._host().item(*index)

    def tolist(self) -> Any:
        return self.get().tolist()

    def tobytes(self, order: str = "C") -> bytes:
        return self.get().tobytes("F" if order == "F" else "C")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(_IMPLICIT)

    def __bool__(self) -> bool:
        return bool(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __float__(self) -> float:
        return float(self.get())

    def __complex__(self) -> complex:
        return complex(self.get())

    def __index__(self) -> int:
        return operator.index(self.get()[()])

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    # ---- NumPy's protocols: np.add(a, b) on device arrays means cupy.add ---------------------------------
    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__":
            return NotImplemented
        out = kwargs.pop("out", None)
        if out is not None:
            kwargs["out"] = out[0] if len(out) == 1 else out
        return call(ufunc.__name__, inputs, kwargs)

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        from . import cupy_emu

        return getattr(cupy_emu, function.__name__)(*args, **kwargs)

    # ---- views and copies ---------------------------------------------------------------------------------
    def __getitem__(self, index: Any) -> ndarray:
        return call("getitem", (self, index), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        call("setitem", (self, index, value), {})

    def fill(self, value: Any) -> None:
        if isinstance(value, np.ndarray):
            raise TypeError(f"Unsupported type {type(value)}")
        enqueue(CopyNode(self._view, value if not isinstance(value, ndarray) else value._view), count=True)

    def copy(self, order: str = "C") -> ndarray:
        result = ndarray(self.shape, self.dtype, order="F" if order == "F" else "C")
        counters.d2d_bytes += self.nbytes
        enqueue(CopyNode(result._view, self._view))
        return result

    def astype(
        self, dtype: Any, order: str = "K", casting: str = "unsafe", subok: Any = None, copy: bool = True
    ) -> ndarray:
        dtype = np.dtype(dtype)
        if not copy and dtype == self.dtype:
            return self
        check_dtype(self.dtype)
        check_dtype(dtype)
        if not np.can_cast(self.dtype, dtype, casting):  # type: ignore[arg-type]
            raise TypeError(f"Cannot cast array data from {self.dtype} to {dtype} according to the rule '{casting}'")
        keeps_f = order in "KA" and self._view.is_contiguous("F") and not self._view.is_contiguous("C")
        result = ndarray(self.shape, dtype, order="F" if order == "F" or keeps_f else "C")
        enqueue(CopyNode(result._view, self._view), count=True)
        return result

    @property
    def T(self) -> ndarray:
        return self.transpose()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        from .cupy_names import METHODS, PROPERTIES

        if name in METHODS:
            return lambda *args, **kwargs: call(f"method:{name}", (self, *args), kwargs)
        if name in PROPERTIES:
            return call(f"property:{name}", (self,), {})
        raise AttributeError(f"'cupy.ndarray' object has no attribute {name!r}")


def dense_strides(shape: tuple[int, ...], itemsize: int, order: str) -> tuple[int, ...]:
    strides, step = [], itemsize
    for extent in shape if order == "F" else reversed(shape):
        strides.append(step)
        step *= extent if extent else 1
    return tuple(strides if order == "F" else reversed(strides))


def _binary(name: str, reflected: bool = False) -> Callable[[ndarray, Any], Any]:
    def method(self: ndarray, other: Any) -> Any:
        if isinstance(other, (str, bytes, list, tuple, dict, type(None))):
            return NotImplemented
        return call(name, (other, self) if reflected else (self, other), {})

    return method


def _inplace(name: str) -> Callable[[ndarray, Any], Any]:
    return lambda self, other: call(name, (self, other), {"out": self})


_OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "matmul": "matmul", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor", "lshift": "left_shift", "rshift": "right_shift",
}  # fmt: skip
for _operator, _name in _OPERATORS.items():
    setattr(ndarray, f"__{_operator}__", _binary(_name))
    setattr(ndarray, f"__r{_operator}__", _binary(_name, reflected=True))
    setattr(ndarray, f"__i{_operator}__", _inplace(_name))
for _operator, _name in {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal",
}.items():  # fmt: skip
    setattr(ndarray, f"__{_operator}__", _binary(_name))
for _operator, _name in {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}.items():
    setattr(ndarray, f"__{_operator}__", lambda self, _name=_name: call(_name, (self,), {}))


def upload(host: np.ndarray[Any, Any], order: str = "C") -> ndarray:
    """Return a device copy of a host array."""
    host = np.asarray(host, order="F" if order == "F" else "C")
    result = ndarray(host.shape, host.dtype, order="F" if order == "F" else "C")
    if host.nbytes:
        refuse_while_capturing("a copy from host memory that is not pinned")
        memory.copy(result.data.ptr, host.ctypes.data, host.nbytes, H2D)
    return result
