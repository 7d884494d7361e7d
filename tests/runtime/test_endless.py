"""Endless work can be cancelled, and work that needs more memory than available does not begin."""

from __future__ import annotations

import _thread
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu._util import host_memory
from ovgpu.runtime.faults import fault
from ovgpu.runtime.loops import dynamic
from tests.emulator import cupy_emu
from tests.harness import Net
from tests.harness.ir import Port, feed, take
from tests.harness.private import read_private
from tests.kernels.test_failures import little_memory

X = np.ones((1, 4), np.float32)
CANCELED = "^Infer Request was canceled$"


def add_one(body: Net, x: Port) -> Port:
    port: Port = body.layer("Add", "opset1", [x, body.const(np.ones((1, 4), np.float32))])
    return port


def same(body: Net, x: Port) -> Port:
    return x


def looping(
    trips: int, step: Callable[[Net, Port], Port] = add_one, *, tested: bool = False, joined: bool = False
) -> Net:
    """Build a counter as a state, and a loop over x. If ``tested``, the body computes whether to go on."""
    net = Net()
    x, one = net.parameter("f32", (1, 4), "x"), net.const(np.ones(1, np.float32))
    read = net.read_value("count", "f32", (1,), net.const(np.zeros(1, np.float32)))
    net.assign("count", net.layer("Add", "opset1", [read, one]))
    body = Net()
    carried = body.parameter("f32", (1, 4))
    stepped = step(body, carried)
    result = body.result(stepped)
    goes_on = body.const(np.array(True))
    if tested:
        total = body.layer("ReduceSum", "opset1", [stepped, body.const(np.array([0, 1]))])
        goes_on = body.layer("Less", "opset1", [total, body.const(np.array(1e30, np.float32))])
    last = net.loop(
        net.const(np.array(trips)),
        net.const(np.array(True)),
        body,
        [feed(x, carried)],
        [take(result, **({"axis": 0} if joined else {}))],
        [(result, carried)],
        body_condition=body.result(goes_on),
    )
    net.result(last)
    net.result(read)
    return net


def request_of(net: Net, device: str) -> Any:
    return ov.Core().compile_model(read_private(net), device).create_infer_request()


def count_of(request: Any) -> float:
    (state,) = request.query_state()
    return float(state.state.data[0])


LOOPS = {
    "2^40": looping(1 << 40),
    "2^62": looping(1 << 62),
    "without end": looping(-1),
    "a test that holds": looping(-1, tested=True),
    "nothing to do": looping(1 << 40, same),
    "joined": looping(-1, tested=True, joined=True),
}


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_cancelled(name: str, device: str) -> None:
    request = request_of(LOOPS[name], device)
    for start in (lambda: request.infer([X]), lambda: (request.start_async([X]), request.wait())):
        canceller = threading.Timer(0.2, request.cancel)
        canceller.start()
        with pytest.raises(RuntimeError, match=CANCELED):
            start()
        canceller.join()
        assert count_of(request) == 0


def test_a_loop_is_interrupted(device: str) -> None:
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
    request = request_of(LOOPS["2^40"], device)
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.2, _thread.interrupt_main).start()
        request.infer([X])
    signal.signal(signal.SIGINT, usual)
    assert count_of(request) == 0


def test_cancelled_at_the_end(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancellation after the last step still restores the old state."""
    request = request_of(looping(3), emulated)
    for _ in range(4):
        request.infer([X])
    with monkeypatch.context() as patch:
        patch.setattr(request._session.backend, "synchronize", request.cancel)
        with pytest.raises(RuntimeError, match=CANCELED):
            request.infer([X])
    assert count_of(request) == 4
    np.testing.assert_array_equal(request.infer([X])[0], X + 3)
    assert count_of(request) == 5


def test_the_request_goes_on(device: str) -> None:
    """`cancel` does nothing while nothing runs, and the inference after a cancelled one runs as usual."""
    net = looping(3000)  # too many to unroll
    request = request_of(net, device)
    request.cancel()
    np.testing.assert_array_equal(request.infer([X])[0], X + 3000)
    request.start_async([X])
    request.cancel()
    before = count_of_finished(request)
    np.testing.assert_array_equal(request.infer([X])[0], X + 3000)
    assert count_of(request) == before + 1


def count_of_finished(request: Any) -> float:
    """Return the count after an inference that was cancelled at an unknown moment."""
    try:
        request.wait()
    except RuntimeError as e:
        assert str(e) == "Infer Request was canceled"
        assert count_of(request) == 1
    return count_of(request)


def test_a_chain_of_layers_is_cancelled() -> None:
    """After a cancellation the next step does not begin, also without loops."""
    net = Net()
    port = net.parameter("f32", (700, 700), "x")
    weights = net.const(np.eye(700, dtype=np.float32))
    for _ in range(600):
        port = net.layer("MatMul", "opset1", [port, weights])
    net.result(port)
    request = request_of(net, "CPU")
    x = np.ones((700, 700), np.float32)
    start = time.perf_counter()
    request.infer([x])
    whole = time.perf_counter() - start
    request.start_async([x])
    time.sleep(whole / 20)
    request.cancel()
    with pytest.raises(RuntimeError, match=CANCELED):
        request.wait()


def test_results_of_a_loop_that_outgrow_the_memory(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The inference ends before it has used all memory of the host or the device."""
    if device != "CPU" and not cupy_emu.is_emulated:
        pytest.skip("a card has all of its memory")
    monkeypatch.setattr(dynamic, "COLLECTED_BYTES", 1 << 12)
    request = request_of(LOOPS["joined"], device)
    if device == "CPU":
        monkeypatch.setattr(host_memory, "LARGE_BYTES", 1 << 10)
        monkeypatch.setattr(host_memory, "free_bytes", lambda: 100_000)
        with pytest.raises(ov.OpError, match=r"\[Loop\] out of memory: 1\d\d,\d{3} bytes .* host has 100,000 \(layer"):
            request.infer([X])
    else:
        with little_memory(100_000), pytest.raises(ov.OpError, match=r"\[Loop\] out of memory: .*\(layer"):
            request.infer([X])
    assert count_of(request) == 0


def tiled(extent: int) -> tuple[Net, list[Any]]:
    net = Net()
    x, repeats = net.parameter("f32", (1,), "x"), net.parameter("i64", (1,), "repeats")
    port = net.layer("Tile", "opset1", [x, repeats])
    net.result(net.layer("Relu", "opset1", [net.layer("Exp", "opset1", [port])]))
    return net, [np.ones(1, np.float32), np.array([extent])]


def huge(op: str) -> Net:
    """Build a layer whose result takes terabytes."""
    net, extent = Net(), 1 << 21
    x = net.parameter("f32", (1, 1, 8, 8), "x")
    if op == "Broadcast":
        shape = net.const(np.array([extent, 1, extent // 8, 8, 8]))
        port = net.layer(op, "opset3", [x, shape], {"mode": "bidirectional"})
    elif op == "ROIPooling":
        boxes = net.const(np.array([[0, 0, 0, 7, 7]], np.float32))
        port = net.layer(
            op, "opset2", [x, boxes], {"pooled_h": extent, "pooled_w": extent, "spatial_scale": 1, "method": "max"}
        )
    else:
        port = net.layer(
            op,
            "opset1",
            [x],
            {
                "kernel": "2,2",
                "strides": "1,1",
                "pads_begin": f"{extent},{extent}",
                "pads_end": "0,0",
                "rounding_type": "floor",
                "auto_pad": "explicit",
                "exclude-pad": False,
            },
        )
    net.result(port)
    return net


@pytest.mark.parametrize("op", ["Broadcast", "ROIPooling", "AvgPool"])
def test_terabytes(op: str, device: str) -> None:
    """The error names the layer, also for a Broadcast, which is a view that is copied to the result."""
    with pytest.raises(
        ov.OpError,
        match=rf"^\[({op}|Copy)\] out of memory: a result of shape \[.*\] takes "
        rf"(17|140),[\d,]+ bytes, the plan needs [\d,]+; .*\(layer '{op}",
    ):
        request_of(huge(op), device).infer([np.ones((1, 1, 8, 8), np.float32)])


def test_a_plan_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One error states the needed and the available memory, and nothing is allocated."""
    monkeypatch.setattr(host_memory, "LARGE_BYTES", 1 << 10)
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 1 << 20)
    net, inputs = tiled(1 << 20)
    request = request_of(net, "CPU")
    with pytest.raises(
        ov.OpError,
        match=r"\[\w+\] out of memory: a result of shape \[1048576\] takes 4,194,304 bytes, "
        r"the plan needs [\d,]{9,}; [\d,]+ bytes were asked for, the host has "
        r"1,048,576 \(layer '",
    ):
        request.infer(inputs)
    assert request.infer([inputs[0], [5]])[0].shape == (5,)


@pytest.mark.parametrize("doing", ["Bucketize", "Result"])
def test_memory_beside_the_plan(doing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporary results and copies of results must fit as well. The state does not change."""
    monkeypatch.setattr(host_memory, "LARGE_BYTES", 1 << 10)
    net = Net()
    x, one = net.parameter("f32", (1000,), "x"), net.const(np.ones(1, np.float32))
    read = net.read_value("count", "f32", (1,), net.const(np.zeros(1, np.float32)))
    net.assign("count", net.layer("Add", "opset1", [read, one]))
    limits = net.const(np.array([5, 10], np.float32))
    net.result(net.layer("Bucketize", "opset3", [x, limits], {"output_type": "i32"}))
    request = request_of(net, "CPU")
    x = np.arange(1000, dtype=np.float32)
    np.testing.assert_array_equal(request.infer([x])[0], np.searchsorted([5, 10], x))
    free = iter([3000] if doing == "Bucketize" else [1 << 20, 3000])
    monkeypatch.setattr(host_memory, "free_bytes", lambda: next(free))
    with pytest.raises(
        ov.OpError,
        match=rf"\[{doing}\] out of memory: 4,000 bytes were asked for, the host has 3,000 "
        r"\(layer '",
    ):
        request.infer([x])
    assert count_of(request) == 1


def test_compiling_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """One error names the layer and reports no fault of ovgpu."""
    net = Net()
    x = net.parameter("f32", (2, 1 << 40, 5), "x")
    net.result(net.layer("MVN", "opset1", [x], {"across_channels": False, "normalize_variance": True, "eps": 1e-5}))
    with pytest.raises(ov.Error, match=r"^(?!.*fault).*out of memory: Unable to allocate 8.00 TiB"):
        request_of(net, "CPU")


@pytest.mark.parametrize(
    "error",
    [MemoryError("no"), ValueError("array is too big; ..."), ValueError("Maximum allowed size exceeded")],
    ids=str,
)
def test_missing_memory_is_no_fault(error: Exception) -> None:
    """NumPy raises ValueError for more elements than it can count."""
    assert str(fault("compiling", error)).startswith("out of memory: ")
    assert "fault of ovgpu" in str(fault("compiling", ValueError("no")))


def test_allocated_blocks_that_are_not_resident_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "LARGE_BYTES", 1 << 10)
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 1000_000)
    monkeypatch.setattr(host_memory, "resident_bytes", lambda: 0)
    monkeypatch.setattr(host_memory, "_sizes", {})
    first = host_memory.empty((600, 1000), np.int8)
    with pytest.raises(MemoryError, match="600,000 bytes were asked for, the host has 400,000"):
        host_memory.empty((600, 1000), np.int8)
    del first
    host_memory.empty((600, 1000), np.int8)


def test_limits_of_control_groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("800000\n")
    (tmp_path / "memory.stat").write_text("anon 700000\ninactive_file 50000\nactive_file 50000\n")
    monkeypatch.setattr(host_memory, "GROUPS", tmp_path)
    swap = host_memory._table(Path("/proc/meminfo"))["SwapFree:"] << 10
    assert host_memory.free_bytes() == 250_000 + swap
    (tmp_path / "memory.swap.max").write_text("0\n")
    (tmp_path / "memory.swap.current").write_text("0\n")
    assert host_memory.free_bytes() == 250_000
    (tmp_path / "memory.max").write_text("max\n")
    free = host_memory.free_bytes()
    assert free is not None and free > 250_000
    monkeypatch.setenv("OVGPU_HOST_MEMORY", "123")
    assert host_memory.free_bytes() == 123
    monkeypatch.setenv("OVGPU_HOST_MEMORY", "12 GB")
    with pytest.warns(RuntimeWarning, match="OVGPU_HOST_MEMORY is a number of bytes: '12 GB' is ignored"):
        free = host_memory.free_bytes()
    assert free is not None and free > 250_000
