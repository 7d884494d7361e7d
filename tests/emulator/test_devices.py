"""Several devices, their memory, events, and arrays that other libraries share."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from threading import Thread

import ml_dtypes
import numpy as np
import pytest

from . import cupy_emu as cp
from .state import CaptureError, CUDARuntimeError
from .test_capture import SCALE
from .test_kernels import kernel

runtime = cp.cuda.runtime


@pytest.fixture
def two() -> Iterator[None]:
    with cp.devices(2):
        yield


def test_the_device_in_use(two: None) -> None:
    assert runtime.getDeviceCount() == 2 and runtime.getDevice() == 0
    with cp.cuda.Device(1) as second:
        assert runtime.getDevice() == cp.cuda.get_device_id() == cp.cuda.Device().id == 1
        x = cp.zeros(3)
        found: list[int] = []
        thread = Thread(target=lambda: found.append(runtime.getDevice()))
        thread.start()
        thread.join()
        assert found == [0]  # every thread has its own current device
    assert runtime.getDevice() == 0 and x.device == second and x.device != cp.cuda.Device(0)
    assert runtime.pointerGetAttributes(x.data.ptr).device == 1
    assert second.pci_bus_id != cp.cuda.Device(0).pci_bus_id
    assert runtime.getDeviceProperties(1)["pciBusID"] == 1
    with pytest.raises(CUDARuntimeError, match="invalid device ordinal"):
        cp.cuda.Device(2).use()


def test_no_device() -> None:
    with cp.devices(0):
        assert not cp.is_available()
        with pytest.raises(CUDARuntimeError, match="cudaErrorNoDevice"):
            runtime.getDeviceCount()


def test_streams_belong_to_a_device(two: None) -> None:
    first = cp.cuda.Stream(non_blocking=True)
    with cp.cuda.Device(1):
        second = cp.cuda.Stream(non_blocking=True)
        x = cp.ones(4, np.float32)
        with second:
            assert cp.cuda.get_current_stream() is second
            assert cp.cuda.get_current_stream(0).ptr == 0
        with pytest.raises(CUDARuntimeError, match="the stream is of device 0, device 1 is in use"):
            kernel(SCALE)((1,), (4,), (x, x, np.float32(2)), stream=first)
        second.begin_capture()
        kernel(SCALE)((1,), (4,), (x, x, np.float32(2)), stream=second)
        graph = second.end_capture()
        graph.launch(second)
        assert x.get().tolist() == [2] * 4
    with pytest.raises(CUDARuntimeError, match="of device 1, device 0 is in use"):
        graph.launch(second)
    with pytest.raises(CUDARuntimeError, match="different devices"):
        second.record(cp.cuda.Event())


def test_memory_of_another_device(two: None) -> None:
    x = cp.ones(4, np.float32)
    with cp.cuda.Device(1):
        with pytest.raises(CUDARuntimeError, match="memory of device 0, the kernel runs on device 1"):
            kernel(SCALE)((1,), (4,), (x, x, np.float32(2)))
        for use in (lambda: cp.add(x, 1, out=x), lambda: cp.ElementwiseKernel("T x", "T y", "y = x")(x)):
            with pytest.raises(ValueError, match="array device = 0 while current = 1"):
                use()


def test_out_of_memory() -> None:
    free, total = runtime.memGetInfo()
    with cp.devices(3), cp.memory_limit(total - free + 1000):
        assert runtime.memGetInfo() == (1000, total - free + 1000)
        assert cp.cuda.Device(2).mem_info[0] == total - free + 1000
        x = cp.empty(600, np.int8)
        with pytest.raises(cp.cuda.memory.OutOfMemoryError, match=r"Out of memory allocating 500 bytes"):
            cp.empty(500, np.int8)
        with pytest.raises(CUDARuntimeError, match="cudaErrorMemoryAllocation"):
            cp.cuda.Memory(500)
        with cp.cuda.Device(2):  # nothing else has used it
            cp.empty(500, np.int8)
        del x
        gc.collect()
        cp.empty(500, np.int8)
    pool = cp.cuda.MemoryPool()
    pool.set_limit(1)
    with pytest.raises(MemoryError, match="limit set to: 1 bytes"):
        pool.malloc(10)


def test_elapsed_time() -> None:
    start, end, untimed = cp.cuda.Event(), cp.cuda.Event(), cp.cuda.Event(disable_timing=True)
    with pytest.raises(CUDARuntimeError, match="holds no time"):
        cp.cuda.get_elapsed_time(start, end)
    stream = cp.cuda.Stream(non_blocking=True)
    start.record(stream)
    kernel(SCALE)((1,), (4,), (cp.ones(4, np.float32), cp.ones(4, np.float32), np.float32(2)), stream=stream)
    end.record(stream)
    untimed.record(stream)
    end.synchronize()
    assert cp.cuda.get_elapsed_time(start, end) > 0
    with pytest.raises(CUDARuntimeError, match="holds no time"):
        cp.cuda.get_elapsed_time(start, untimed)


def test_copies_of_a_graph_in_every_direction() -> None:
    """A replay reads what the addresses hold at that time, and fails if the memory has been freed."""
    stream = cp.cuda.Stream(non_blocking=True)
    source, target = (np.frombuffer(cp.cuda.alloc_pinned_memory(16), np.float32, 4) for _ in range(2))
    x, y = cp.empty(4, np.float32), cp.empty(4, np.float32)
    stream.begin_capture()
    runtime.memcpyAsync(x.data.ptr, source.ctypes.data, 16, runtime.memcpyHostToDevice, stream.ptr)
    runtime.memcpyAsync(y.data.ptr, x.data.ptr, 16, runtime.memcpyDeviceToDevice, stream.ptr)
    runtime.memcpyAsync(target.ctypes.data, y.data.ptr, 16, runtime.memcpyDefault, stream.ptr)
    graph = stream.end_capture()
    cp.counters.reset()
    for value in (1, 2):
        source[...] = value
        graph.launch(stream)
        assert target.tolist() == [value] * 4
    assert (cp.counters.h2d_bytes, cp.counters.d2d_bytes, cp.counters.d2h_bytes) == (32, 32, 32)
    del target
    gc.collect()
    with pytest.raises(CUDARuntimeError, match="pinned memory that has been freed"):
        graph.launch(stream)


def test_profiler_ranges() -> None:
    cp.cuda.nvtx.RangePush("step")
    cp.cuda.nvtx.RangePop()
    cp.cuda.profiler.start()
    cp.cuda.profiler.stop()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.uint8, np.bool_])
@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[1:, ::2], lambda x: x.T, lambda x: x[0, 0]])
def test_dlpack(dtype: object, view: Callable[[cp.ndarray], cp.ndarray]) -> None:
    x = cp.asarray((np.arange(12) % 5).reshape(3, 4).astype(dtype))
    given = view(x)
    assert given.__dlpack_device__() == (2, 0)
    taken = cp.from_dlpack(given)
    assert (taken.shape, taken.dtype, taken.data.ptr) == (given.shape, given.dtype, given.data.ptr)
    np.testing.assert_array_equal(taken.get(), given.get())
    taken[...] = 1
    assert (given.get() == 1).all()
    address = x.data.ptr
    del x, given
    gc.collect()
    assert taken.get().all()  # the consumer keeps the memory alive
    del taken
    gc.collect()
    assert runtime.pointerGetAttributes(address).type == runtime.memoryTypeDevice
    assert cp.cuda.memory.describe(address).find("freed") > 0


def test_dlpack_of_nobody() -> None:
    x = cp.zeros(3)
    capsule = x.__dlpack__(stream=-1)
    address = x.data.ptr
    del x, capsule
    gc.collect()
    assert "freed" in cp.cuda.memory.describe(address)
    with pytest.raises(TypeError, match="device type 1"):
        cp.from_dlpack(np.zeros(3))
    with pytest.raises(BufferError, match="is on device"):
        np.from_dlpack(cp.zeros(3), device="cpu")


def test_dlpack_orders_streams() -> None:
    """The consumer's stream waits for the producer's: it joins the producer's capture, which only an event can do."""
    producer, consumer = cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    x = cp.ones(4, np.float32)
    with producer:
        producer.begin_capture()
        x.__dlpack__(stream=consumer.ptr)
        assert consumer.is_capturing()
        producer.wait_event(consumer.record())
        producer.end_capture()


class Foreign:
    """Another library's array."""

    def __init__(self, array: cp.ndarray, stream: int | None) -> None:
        self.array = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, "stream": stream}


def test_cuda_array_interface() -> None:
    x = cp.asarray(np.arange(12, dtype=np.float32).reshape(3, 4))
    cp.counters.reset()
    taken = cp.asarray(Foreign(x[:, 1::2], None))
    assert taken.data.ptr == x[:, 1::2].data.ptr and taken.get().tolist() == x.get()[:, 1::2].tolist()
    stream = cp.cuda.Stream(non_blocking=True)
    cp.counters.reset()
    assert cp.asarray(Foreign(x, stream.ptr)).shape == (3, 4)
    assert cp.counters.synchronizations == 1 and cp.counters.allocs == 0
    assert cp.array(Foreign(x, 1)).data.ptr != x.data.ptr
    stream.begin_capture()
    with pytest.raises(CaptureError):
        cp.asarray(Foreign(x, stream.ptr))
    stream.end_capture()


def test_current_streams() -> None:
    """As in CuPy, the end of a block makes the stream of the block around it current, not one that `use` had made."""
    used, inner, outer = (cp.cuda.Stream(non_blocking=True) for _ in range(3))
    used.use()
    with outer:
        with inner:
            assert cp.cuda.get_current_stream() == inner
        assert cp.cuda.get_current_stream() == outer
    assert cp.cuda.get_current_stream() == cp.cuda.Stream.null
    with cp.devices(2), cp.cuda.Device(1), pytest.raises(RuntimeError, match="does not match with the current device"):
        used.use()
