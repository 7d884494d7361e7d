"""Device arrays: CuPy's interface, and the rules that keep host and device apart."""

from __future__ import annotations

import ctypes
import gc
from importlib.util import find_spec
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from . import cupy_emu as cp
from . import cupy_names
from .state import CUDARuntimeError

HOST = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def equal(device: cp.ndarray, host: np.ndarray) -> None:
    assert isinstance(device, cp.ndarray)
    assert (device.shape, device.dtype) == (host.shape, host.dtype)
    np.testing.assert_array_equal(device.get(), host)


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint16, np.int64, np.float16, np.float64, ml_dtypes.bfloat16])
def test_round_trip(dtype: type) -> None:
    host = (HOST % 2).astype(dtype)
    array = cp.asarray(host)
    equal(array, host)
    out = np.empty_like(host)
    assert array.get(out=out) is out
    np.testing.assert_array_equal(out, host)
    array.set(host[::-1].copy())
    equal(array, host[::-1])


def test_layout() -> None:
    array = cp.asarray(HOST)
    assert (array.ndim, array.size, array.nbytes, array.itemsize) == (3, 24, 96, 4)
    assert array.strides == (48, 16, 4)
    assert array.flags.c_contiguous and not array.flags.f_contiguous and array.flags["C_CONTIGUOUS"]
    transposed = array.transpose(2, 0, 1)
    assert transposed.strides == (4, 48, 16) and not transposed.flags.c_contiguous
    assert transposed.data.ptr == array.data.ptr
    equal(transposed, HOST.transpose(2, 0, 1))
    assert array.T.flags.f_contiguous
    assert array[1:, ::-1].data.ptr == array.data.ptr + 48 + 32
    assert cp.empty((2, 3), order="F").strides == (8, 16)


def test_array_over_given_memory() -> None:
    pointer = cp.cuda.alloc(64)
    whole = cp.ndarray((16,), np.int32, pointer)
    whole[...] = cp.arange(16, dtype=np.int32)
    part = cp.ndarray((2, 3), np.int32, pointer + 8, strides=(16, 4))
    assert part.data.ptr == pointer.ptr + 8 and part.data.mem is pointer.mem
    equal(part, np.array([[2, 3, 4], [6, 7, 8]], np.int32))
    equal(cp.ndarray((4,), np.int32, pointer + 60, strides=(-4,)), np.array([15, 14, 13, 12], np.int32))
    with pytest.raises(CUDARuntimeError, match="no living device array covers"):
        cp.ndarray((17,), np.int32, pointer).get()


def test_views_share_memory() -> None:
    array = cp.asarray(HOST)
    for view in (
        array.reshape(6, 4),
        array.ravel(),
        array[None],
        array[0],
        array.view(np.int32),
        array.swapaxes(0, 1),
    ):
        assert cp.may_share_memory(view, array) and view.base is array
    assert not cp.may_share_memory(array.copy(), array)
    array[0, 1:, ::2] = -1
    host = HOST.copy()
    host[0, 1:, ::2] = -1
    equal(array, host)
    assert array[0, 0, 0].shape == ()  # an element is a view, not a scalar
    array[0, 0, 0] += 5
    assert array[0, 0, 0].item() == 5


@pytest.mark.parametrize(
    "expression",
    [
        "x + y",
        "2 - x",
        "x / 3",
        "x // y",
        "-x",
        "abs(-x)",
        "x ** 2",
        "x @ y",
        "x < y",
        "(x > 2) & (y > 1)",
        "x.sum(1)",
        "x.max()",
        "x.astype(xp.int32)",
        "x[[0, 1]]",
        "x[x > 3]",
        "xp.where(x > y, x, y)",
        "xp.concatenate([x, y])",
        "xp.take(x, xp.asarray([1, 0]), axis=0)",
        "xp.exp(x)",
        "xp.stack([x, y], 1)",
        "xp.linalg.norm(x)",
        "x.T.copy()",
        "xp.zeros((2, 3), 'i4')",
        "xp.full_like(x, 7)",
        "xp.argsort(-x)",
        "xp.einsum('ij,kj->ik', x, y)",
        "xp.pad(x, 1)",
        "xp.add(x, y, out=x)",
        "xp.clip(x, 1, 2)",
        "xp.float32(3) * x",
        "xp.arange(5)",
        "xp.isnan(x)",
        "xp.divmod(x, y + 1)[1]",
        "x.reshape(-1)",
        "xp.broadcast_to(x, (2, *x.shape))",
        "xp.repeat(x, 2, axis=0)",
    ],
)
def test_same_as_numpy(expression: str) -> None:
    x, y = HOST[0, :3, :3].copy(), HOST[1, :3, :3].T.copy() - 14
    result = eval(expression, {"xp": cp, "x": cp.asarray(x), "y": cp.asarray(y)})
    with np.errstate(all="ignore"):
        equal(result, np.asarray(eval(expression, {"xp": np, "x": x, "y": y})))


def test_numpy_functions_dispatch_to_the_device() -> None:
    array = cp.asarray(HOST)
    equal(np.add(array, 1), HOST + 1)
    equal(np.concatenate([array, array]), np.concatenate([HOST, HOST]))


@pytest.mark.parametrize(
    "mix",
    [
        lambda d, h: np.asarray(d),
        lambda d, h: np.array([d, d]),
        lambda d, h: d + h,
        lambda d, h: h + d,
        lambda d, h: cp.add(d, h),
        lambda d, h: np.add(h, d),
        lambda d, h: cp.concatenate([d, h]),
        lambda d, h: cp.where(d > 1, d, h),
        lambda d, h: d.__setitem__(0, h[0]),
        lambda d, h: cp.add(d, d, out=h),
        lambda d, h: cp.copyto(d, h),
        lambda d, h: cp.copyto(h, d),
        lambda d, h: np.copyto(h, d),
        lambda d, h: d.set(d),
        lambda d, h: h.__setitem__(0, d[0]),
        lambda d, h: cp.exp(h),
        lambda d, h: d.fill(h),
        lambda d, h: cp.add(d, [1.0, 2.0, 3.0, 4.0]),
        lambda d, h: np.float32(1) + h + d,
        lambda d, h: cp.asnumpy(d, out=d),
        lambda d, h: d.get(out=d),
        lambda d, h: d.get(out=h.astype(np.float64)),
    ],
)
def test_host_and_device_do_not_mix(mix: object) -> None:
    with pytest.raises(TypeError):
        mix(cp.asarray(HOST), HOST.copy())


def test_set_checks() -> None:
    array = cp.asarray(HOST)
    with pytest.raises(TypeError, match="float64 array cannot be set"):
        array.set(HOST.astype(np.float64))
    with pytest.raises(ValueError, match="Shape mismatch"):
        array.set(HOST[0])
    with pytest.raises(RuntimeError, match="non-contiguous"):
        array[:, ::2].set(HOST[:, ::2])


def test_dtypes_without_kernels() -> None:
    for host in (np.array(["a"]), np.array([None]), np.zeros(2, "f4,i4"), np.zeros(2, ">f4")):
        with pytest.raises(ValueError, match="Unsupported dtype"):
            cp.asarray(host)


def test_views_of_dtypes_without_kernels() -> None:
    array = cp.empty((3, 4), np.uint8).view(ml_dtypes.float8_e5m2)
    assert array[:, 1:3].shape == (3, 2) and array[:, 5:].shape == (3, 0)
    assert array[:, 5:].view(np.uint8).dtype == np.uint8


def test_fresh_memory_is_poison() -> None:
    assert set(cp.empty(37, np.uint8).get().tolist()) == {0xFB}
    assert abs(float(cp.empty((), np.float32))) > 1e36


def test_freed_memory_is_an_error_and_never_reused() -> None:
    array = cp.zeros(10, np.float32)
    address = array.data.ptr
    del array
    gc.collect()
    lost = cp.ndarray((10,), np.float32, cp.cuda.MemoryPointer(cp.cuda.UnownedMemory(address, 40, None), 0))
    with pytest.raises(CUDARuntimeError, match="of a freed device array of 40 bytes"):
        lost.get()
    assert all(cp.empty(10, np.float32).data.ptr != address for _ in range(20))


def test_many_blocks() -> None:
    """Freed pages merge, so that the number of mappings does not grow with the number of allocations."""

    def mappings() -> int:
        return len(Path("/proc/self/maps").read_text().splitlines())

    before = mappings()
    for _ in range(3000):
        cp.empty(100, np.float32)
    assert mappings() < before + 100


def test_an_overrun_is_reported_after_the_block_is_freed() -> None:
    array = cp.empty(77, np.float32)
    ctypes.memset(array.data.ptr + 308, 1, 1)
    del array
    gc.collect()
    with pytest.raises(CUDARuntimeError, match="went past the end of a device array of 308 bytes"):
        cp.zeros(1)
    cp.zeros(1)


def test_counters() -> None:
    array = cp.zeros(100, np.float32)
    cp.counters.reset()
    array.get()
    array.set(np.ones(100, np.float32))
    cp.add(array, 1, out=array)
    other = cp.empty_like(array)
    cp.cuda.runtime.memcpyAsync(other.data.ptr, array.data.ptr, 400, cp.cuda.runtime.memcpyDeviceToDevice, 0)
    seen = cp.counters
    assert (seen.d2h_bytes, seen.h2d_bytes, seen.d2d_bytes, seen.allocs, seen.launches) == (
        400,
        400,
        400,
        1,
        1,
    )
    equal(other, np.full(100, 2, np.float32))


def test_memcpy_checks() -> None:
    runtime = cp.cuda.runtime
    array, host = cp.zeros(4, np.float32), np.zeros(8, np.float32)
    with pytest.raises(CUDARuntimeError, match="kind 1 does not fit"):
        runtime.memcpyAsync(host.ctypes.data, array.data.ptr, 16, runtime.memcpyHostToDevice, 0)
    with pytest.raises(CUDARuntimeError, match="no living device array covers"):
        runtime.memcpyAsync(array.data.ptr, host.ctypes.data, 20, runtime.memcpyHostToDevice, 0)
    with pytest.raises(CUDARuntimeError, match="no stream has the handle"):
        runtime.memcpyAsync(array.data.ptr, host.ctypes.data, 16, runtime.memcpyHostToDevice, 77)


def test_pinned_memory() -> None:
    memory = cp.cuda.alloc_pinned_memory(1000)
    host = np.frombuffer(memory, np.float32, 10)
    assert memory.ptr == host.ctypes.data and set(np.frombuffer(memory, np.uint8).tolist()) == {0xFB}
    host[...] = 3
    array = cp.empty(10, np.float32)
    array.set(host)
    equal(array, host)


def test_names_are_cupys() -> None:
    with pytest.raises(AttributeError, match="no attribute 'vecdot'"):
        _ = cp.vecdot
    with pytest.raises(AttributeError, match="no attribute 'tobytearray'"):
        _ = cp.zeros(1).tobytearray
    cupy = pytest.importorskip("cupy", reason="compares with the installed CuPy")
    ours = cupy_names.FUNCTIONS | cupy_names.VALUES | {name for name in cp.__all__ if name[0].isupper()}
    missing = sorted(name for name in ours - {"CaptureError", "EmulatorError"} if not hasattr(cupy, name))
    assert not missing
    assert not [name for name in cupy_names.LINALG if not hasattr(cupy.linalg, name)]
    methods = cupy_names.METHODS | {name for name in vars(cp.ndarray) if not name.startswith("_")}
    assert not [name for name in methods if not hasattr(cupy.ndarray, name)]
    cuda_names = {name for name in cp.cuda.__all__ if name != "cufft"}  # importing this module needs the library
    assert find_spec("cupy.cuda.cufft") and not [name for name in cuda_names if not hasattr(cupy.cuda, name)]
    ours = {name for name, value in vars(cp.cuda.runtime).items() if callable(value) and name[0].islower()}
    ours -= {"find_stream", "query_event", "refuse_device_wide", "refuse_while_capturing", "space"}
    assert not [name for name in ours if not hasattr(cupy.cuda.runtime, name)]
    for kind in ("Stream", "Event", "Graph", "MemoryPointer", "Memory", "MemoryPool"):
        names = {name for name in vars(getattr(cp.cuda, kind)) if not name.startswith("_")}
        names -= {"node_count", "nodes", "capture"}
        assert not [name for name in names if not hasattr(getattr(cupy.cuda, kind), name)], kind
