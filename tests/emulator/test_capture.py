"""Stream capture: recorded work, refused work, and the memory that a replay reads and writes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from . import cupy_emu as cp
from .isolation import isolated
from .state import CaptureError, CUDARuntimeError
from .test_kernels import CODE, kernel, module

SCALE = """extern "C" __global__ void kernel(const float* x, float* y, float a) {
  y[threadIdx.x] = a * x[threadIdx.x];
}"""


@pytest.fixture
def stream() -> Iterator[cp.cuda.Stream]:
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        yield stream
        if stream.is_capturing():
            stream.end_capture()


def test_replay_with_changed_input(stream: cp.cuda.Stream) -> None:
    """One graph holds a raw kernel, an elementwise kernel, a ufunc with out=, copies and a memset."""
    x, y = cp.zeros((3, 8), np.float32), cp.empty((3, 8), np.float32)
    total, raised = cp.empty((3, 4), np.float32), cp.empty(4, np.float64)
    softmax = module(CODE, ("softmax<float>",)).get_function("softmax<float>")
    add = cp.ElementwiseKernel("T x, T y, T c", "T z", "z = x + y + c", "add")
    softmax((3,), (32,), (x, y, np.int32(8)))  # loads the modules before the capture
    add(y[:, :4], y[:, 4:], 1, total)
    y.fill(-1)
    cp.counters.reset()
    stream.begin_capture()
    assert stream.is_capturing()
    softmax((3,), (32,), (x, y, np.int32(8)))
    add(y[:, :4], y[:, 4:], 1, total)
    cp.sqrt(total[0], out=raised)
    raised[1:3] = total[1, :2]
    total.data.memset_async(0, 16)
    total[2].data.copy_from_device_async(y.data, 16)
    graph = stream.end_capture()
    assert graph.node_count == 6 and not stream.is_capturing()
    assert cp.counters.captured_loads == 0
    assert set(y.get().ravel().tolist()) == {-1}  # nothing ran
    for seed in (0, 1):
        host = np.random.default_rng(seed).standard_normal((3, 8)).astype(np.float32)
        x.set(host)
        cp.counters.reset()
        graph.launch(stream)
        assert (cp.counters.graph_launches, cp.counters.launches, cp.counters.allocs) == (1, 0, 0)
        e = np.exp(host - host.max(1, keepdims=True))
        expected = e / e.sum(1, keepdims=True)
        np.testing.assert_allclose(y.get(), expected, atol=1e-6)
        sums = expected[:, :4] + expected[:, 4:] + 1
        np.testing.assert_allclose(raised.get(), [sums[0, 0] ** 0.5, *sums[1, :2], sums[0, 3] ** 0.5], rtol=1e-6)
        assert total.get()[0].tolist() == [0] * 4
        np.testing.assert_allclose(total.get()[2], expected[0, :4], atol=1e-6)


def test_a_kernel_loaded_while_capturing_is_counted(stream: cp.cuda.Stream) -> None:
    x = cp.zeros(4, np.float32)
    cp.counters.reset()
    stream.begin_capture()
    kernel(SCALE)((1,), (4,), (x, x, np.float32(2)))
    assert cp.counters.captured_loads == 1


def test_pinned_copies_are_nodes(stream: cp.cuda.Stream) -> None:
    source = np.frombuffer(cp.cuda.alloc_pinned_memory(16), np.float32, 4)
    target = np.frombuffer(cp.cuda.alloc_pinned_memory(16), np.float32, 4)
    x = cp.empty(4, np.float32)
    stream.begin_capture()
    x.set(source)
    cp.multiply(x, 2, out=x)
    runtime = cp.cuda.runtime
    runtime.memcpyAsync(target.ctypes.data, x.data.ptr, 16, runtime.memcpyDeviceToHost, stream.ptr)
    graph = stream.end_capture()
    for value in (1, 5):
        source[...] = value
        graph.launch(stream)
        assert target.tolist() == [2 * value] * 4


REFUSED: dict[str, Callable[[cp.ndarray], object]] = {
    "allocation": lambda x: cp.empty(3),
    "cuda.alloc": lambda x: cp.cuda.alloc(3),
    "upload": lambda x: cp.asarray(np.zeros(3)),
    "operator": lambda x: x + 1,
    "function": lambda x: cp.exp(x),
    "copy": lambda x: x.copy(),
    "astype": lambda x: x.astype(np.float64),
    "reduction": lambda x: cp.sum(x, axis=0, out=x[0]),
    "get": lambda x: x.get(),
    "item": lambda x: x[0, 0].item(),
    "float": lambda x: float(x[0, 0]),
    "bool": lambda x: bool(x[0, 0]),
    "stream.synchronize": lambda x: cp.cuda.get_current_stream().synchronize(),
    "device.synchronize": lambda x: cp.cuda.Device().synchronize(),
    "deviceSynchronize": lambda x: cp.cuda.runtime.deviceSynchronize(),
    "nonzero": lambda x: cp.nonzero(x),
    "mask": lambda x: x.__setitem__(x > 0, 1),
    "set from pageable memory": lambda x: x.set(np.zeros((4, 4), np.float32)),
    "copy to pageable memory": lambda x: cp.cuda.runtime.memcpyAsync(
        np.zeros(1).ctypes.data, x.data.ptr, 8, 2, cp.cuda.get_current_stream().ptr
    ),
    "host function": lambda x: cp.cuda.get_current_stream().launch_host_func(print, None),
    "second capture": lambda x: cp.cuda.get_current_stream().begin_capture(),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_while_capturing(what: str, stream: cp.cuda.Stream) -> None:
    x = cp.zeros((4, 4), np.float32)
    stream.begin_capture()
    with pytest.raises(CaptureError):
        REFUSED[what](x)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: cp.matmul(x, x, out=x),
        lambda x: x @ x,
        lambda x: cp.dot(x, x),
        lambda x: cp.einsum("ij,jk", x, x),
        lambda x: cp.linalg.inv(x),
        lambda x: cp.random.rand(3),
        lambda x: x.dot(x),
    ],
)
def test_library_calls_are_refused_as_cupy_does(call: Callable[[cp.ndarray], object], stream: cp.cuda.Stream) -> None:
    x = cp.zeros((4, 4), np.float32)
    stream.begin_capture()
    with pytest.raises(RuntimeError, match="API during stream capture is currently unsupported"):
        call(x)


def test_null_stream_while_capturing() -> None:
    x = cp.zeros(4, np.float32)
    with pytest.raises(RuntimeError, match="cannot capture on the default"):
        cp.cuda.Stream.null.begin_capture()
    stream = cp.cuda.Stream(non_blocking=True)
    stream.begin_capture()
    with pytest.raises(CaptureError, match="null stream was used"):
        kernel(SCALE)((1,), (4,), (x, x, np.float32(2)))
    with pytest.raises(CaptureError, match="invalidated: the null stream was used"):
        stream.end_capture()
    kernel(SCALE)((1,), (4,), (x, x, np.float32(2)))


def test_explicit_stream_argument() -> None:
    x = cp.ones(4, np.float32)
    stream = cp.cuda.Stream(non_blocking=True)
    run = kernel(SCALE)
    stream.begin_capture()
    run((1,), (4,), (x, x, np.float32(2)), stream=stream)
    graph = stream.end_capture()
    graph.launch(stream)
    graph.launch(stream)
    assert x.get().tolist() == [4] * 4


def test_nodes_are_plain_data(stream: cp.cuda.Stream) -> None:
    """A rebound Python name does not affect a graph, which keeps the addresses that it was captured with."""
    x, y = cp.ones(4, np.float32), cp.empty(4, np.float32)
    captured = x
    stream.begin_capture()
    kernel(SCALE)((1,), (4,), (captured, y, np.float32(3)))
    graph = stream.end_capture()
    captured = cp.full(4, 9, np.float32)
    graph.launch(stream)
    assert captured.get()[0] == 9 and y.get().tolist() == [3] * 4
    node = graph.nodes[0]
    assert node.arguments == (
        x.data.ptr.to_bytes(8, "little"),
        y.data.ptr.to_bytes(8, "little"),
        np.float32(3).tobytes(),
    )
    assert node.grid == (1, 1, 1) and node.block == (4, 1, 1) and node.function.name == "kernel"


RECORDED: dict[str, Callable[[cp.ndarray, cp.ndarray], object]] = {
    "kernel": lambda x, y: kernel(SCALE)((1,), (4,), (x, y, np.float32(2))),
    "elementwise": lambda x, y: cp.ElementwiseKernel("T x", "T y", "y = x", "keep")(x, y),
    "ufunc": lambda x, y: cp.add(x, 1, out=y),
    "assignment": lambda x, y: y.__setitem__(..., x),
    "memcpy": lambda x, y: y.data.copy_from_device_async(x.data, 16),
}


@pytest.mark.parametrize("what", RECORDED)
@isolated
def test_replay_after_free(what: str) -> None:
    stream = cp.cuda.Stream(non_blocking=True).use()
    x, y = cp.ones(4, np.float32), cp.empty(4, np.float32)
    stream.begin_capture()
    RECORDED[what](x, y)
    graph = stream.end_capture()
    graph.launch(stream)
    del x
    gc.collect()
    with pytest.raises(CUDARuntimeError, match="freed device array of 16 bytes"):
        graph.launch(stream)


@isolated
def test_replay_after_free_behind_a_pointer_in_memory() -> None:
    stream = cp.cuda.Stream(non_blocking=True).use()
    code = 'extern "C" __global__ void kernel(const float* const* table, float* y) { y[0] = table[1][0]; }'
    x, y = cp.ones(4, np.float32), cp.empty(1, np.float32)
    table = cp.asarray(np.array([0, x.data.ptr], np.uint64))
    stream.begin_capture()
    kernel(code)((1,), (1,), (table, y))
    graph = stream.end_capture()
    graph.launch(stream)
    assert y.get()[0] == 1
    del x
    gc.collect()
    with pytest.raises(CUDARuntimeError, match=r"illegal memory access at .* freed device array of 16 bytes"):
        graph.launch(stream)


def test_forked_streams(stream: cp.cuda.Stream) -> None:
    x, y = cp.ones(4, np.float32), cp.empty(4, np.float32)
    side = cp.cuda.Stream(non_blocking=True)
    stream.begin_capture()
    side.wait_event(stream.record())
    with side:
        cp.add(x, 1, out=y)
    stream.wait_event(side.record())
    cp.add(y, 1, out=y)
    graph = stream.end_capture()
    assert graph.node_count == 2 and not side.is_capturing()
    graph.launch(stream)
    assert y.get().tolist() == [3] * 4


def test_unjoined_fork(stream: cp.cuda.Stream) -> None:
    x = cp.ones(4, np.float32)
    side = cp.cuda.Stream(non_blocking=True)
    stream.begin_capture()
    side.wait_event(stream.record())
    early = side.record()
    with side:
        cp.add(x, 1, out=x)
    stream.wait_event(early)  # joins what came before the addition only
    with pytest.raises(CaptureError, match="not joined"):
        stream.end_capture()


def test_captured_events_cannot_be_waited_for_on_the_host(stream: cp.cuda.Stream) -> None:
    stream.begin_capture()
    event = stream.record()
    with pytest.raises(CaptureError, match="recorded while capturing"):
        event.synchronize()
    graph = stream.end_capture()
    other = cp.cuda.Stream(non_blocking=True)
    other.begin_capture()
    with pytest.raises(CaptureError, match="cannot be launched into a stream"):
        graph.launch(other)
    other.end_capture()


def test_current_stream_is_restored() -> None:
    first, second = cp.cuda.Stream(), cp.cuda.Stream()
    assert cp.cuda.get_current_stream() == cp.cuda.Stream.null
    with first:
        with second:
            assert cp.cuda.get_current_stream() is second
        assert cp.cuda.get_current_stream() is first
    assert cp.cuda.get_current_stream().ptr == 0
    start, end = cp.cuda.Event(), cp.cuda.Event()
    start.record()
    end.record()
    assert cp.cuda.get_elapsed_time(start, end) >= 0
