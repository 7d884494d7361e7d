"""Large inputs: the host copies them by several threads, chunk by chunk, while the chunks before are uploaded."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu._util import host_memory
from ovgpu.backends.cuda import pinned_arrays
from ovgpu.ops.base.op import Array
from ovgpu.request import host_copies, large_uploads
from tests.emulator import cupy_emu as cp
from tests.emulator import memory
from tests.harness.ir import Net
from tests.harness.layers import add

from .test_direct_calls import Count, general, warm

__all__ = ["general"]  # a fixture
COLUMNS, SIZE = 64, 20
X = np.arange(SIZE * COLUMNS, dtype=np.float32).reshape(SIZE, COLUMNS)
Y = np.ones((1, COLUMNS), np.float32)


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let inputs from 4,000 bytes on be large, in chunks of 1,536 bytes, each copied by three threads."""
    monkeypatch.setattr(large_uploads, "LARGE_BYTES", 4000)
    monkeypatch.setattr(large_uploads, "CHUNK", 1536)
    monkeypatch.setattr(host_copies, "PARALLEL_BYTES", 1000)
    monkeypatch.setattr(host_copies, "THREADS", 3)


def model() -> tuple[bytes, bytes]:
    """Return a model of x + y, where x is large and y is not."""
    net = Net()
    x, y = (net.parameter("f32", (-1, COLUMNS), name) for name in "xy")
    net.result(add(net, x, y))
    return net.build()


@pytest.fixture(params=["infer", "start_async"])
def infer(request: pytest.FixtureRequest, compiled: Any) -> Any:
    """Return a function that runs an inference, of one request, and returns the result."""
    of_model = compiled(model()).create_infer_request()

    def run(inputs: Any = None, share: bool = False) -> Any:
        if request.param == "infer":
            return of_model.infer(inputs, share)[0]
        of_model.start_async(inputs, share_inputs=share)
        of_model.wait()
        return of_model.results[0]

    run.request = of_model  # type: ignore[attr-defined]
    return run


@pytest.mark.parametrize("share", [False, True], ids=["copied", "shared"])
def test_arrays(infer: Any, general: Count, share: bool) -> None:
    for n in range(8):
        x, y = X * n, Y * n
        np.testing.assert_array_equal(infer([x, y], share), x + y)
        assert not general() or n < 3
    y[...] = 50  # a shared array is read again
    np.testing.assert_array_equal(infer({"x": X}, share), X + (50 if share else 7))
    np.testing.assert_array_equal(infer({"y": Y}, share), X + 1)


def test_other_arrays(infer: Any) -> None:
    """Other layouts and types are converted, other shapes move the tensor, and read-only arrays are copied."""
    for _ in range(4):
        infer([X, Y])
    readonly = X.copy()
    readonly.flags.writeable = False
    others = [np.asfortranarray(X), X[::-1], X.astype(np.float64), X.astype(np.int16), readonly, X.tolist(), X[:2]]
    for share in (False, True):
        for x in [*others, np.tile(X, (3, 1)), X]:
            for _ in range(3):
                np.testing.assert_array_equal(infer([x, Y], share), np.asarray(x) + Y)


def test_own_tensors(infer: Any, general: Count) -> None:
    """Inferences read what the caller writes to the tensor of the input, also after a call that failed."""
    for n in range(6):
        infer([X * n, Y])
    tensor = infer.request.get_tensor("x")
    for n in range(6):
        tensor.data[...] = n
        general()
        np.testing.assert_array_equal(infer(), n + np.tile(Y, (SIZE, 1)))
        assert not general()
        for share in (False, True):
            with pytest.raises(RuntimeError, match="are incompatible"):
                infer([X, Y[:, :5]], share)
        infer([X, Y])
        tensor = infer.request.get_tensor("x")
        np.testing.assert_array_equal(tensor.data, X)


def test_after_a_call_that_failed(infer: Any) -> None:
    """The upload that a refused call has begun is not taken for that of the next one."""
    infer([X, Y])
    with pytest.raises(RuntimeError, match="are incompatible"):
        infer([X * 2, Y[:, :5]])
    tensor = infer.request.get_tensor("x")
    tensor.data[...] = 3
    for _ in range(4):
        np.testing.assert_array_equal(infer(), 3 + np.tile(Y, (SIZE, 1)))
    with pytest.raises(RuntimeError, match="are incompatible"):
        infer([X * 2, Y[:, :5]])
    tensor.data[...] = 4
    np.testing.assert_array_equal(infer(), 4 + np.tile(Y, (SIZE, 1)))


def test_values_in_the_own_tensor(infer: Any) -> None:
    """A value that overlaps the tensor it is copied to is copied as NumPy does."""
    for _ in range(4):
        infer([X, Y])
    tensor = infer.request.get_tensor("x")
    for n in range(4):
        tensor.data[...] = X * n
        np.testing.assert_array_equal(infer([tensor.data[::-1], Y]), X[::-1] * n + Y)
        np.testing.assert_array_equal(tensor.data, X[::-1] * n)


def test_tensors_that_the_caller_sets(infer: Any, general: Count) -> None:
    array = X.copy()
    infer.request.set_tensor("x", ov.Tensor(array, shared_memory=True))
    for n in range(6):
        array[...] = n
        np.testing.assert_array_equal(infer({"y": Y}), n + np.tile(Y, (SIZE, 1)))
        assert not general() or n < 3


def test_the_graph_uploads_no_large_input(infer: Any) -> None:
    """Chunks are uploaded before the launch: one copy each, of all bytes once."""
    for _ in range(4):
        infer([X, Y])
    cp.counters.reset()
    infer([X, Y])
    counters = cp.counters
    assert (counters.graph_launches, counters.h2d_bytes, counters.allocs) == (1, X.nbytes + Y.nbytes, 0)


def test_chunks_are_uploaded_while_others_are_copied(infer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread uploads a chunk when it has copied it."""
    for _ in range(4):
        infer([X, Y])
    events: list[tuple[int, str]] = []
    copy, upload = np.copyto, memory.copy

    def copying(*args: Any, **options: Any) -> None:
        events.append((threading.get_ident(), "copy"))
        copy(*args, **options)

    def uploading(*args: Any) -> Any:
        events.append((threading.get_ident(), "upload"))
        return upload(*args)

    monkeypatch.setattr(np, "copyto", copying)
    monkeypatch.setattr(memory, "copy", uploading)
    infer([X, Y])
    chunks = -(-X.nbytes // 1536)
    by_thread = [[event for thread, event in events if thread == each] for each in {thread for thread, _ in events}]
    assert all(run[: len(run) // 2 * 2] == ["copy", "upload"] * (len(run) // 2) for run in by_thread)
    assert len(events) == 2 * chunks + 1  # the copy of the small input


def test_wider_type(emulated: str) -> None:
    """An inference that is repeated in a wider type uploads its large input again."""
    net, value = Net(), None
    value = net.parameter("f32", (SIZE, COLUMNS), "x")
    for factor in (1000, 0.1):
        matrix = net.const(np.eye(COLUMNS, dtype=np.float32) * np.float32(factor))
        value = net.layer("MatMul", "opset1", [value, matrix])
    net.result(value)
    core = ov.Core()
    compiled = core.compile_model(core.read_model(*net.build()), emulated, {"EXECUTION_MODE_HINT": "PERFORMANCE"})
    for share in (False, True):
        request = compiled.create_infer_request()
        warm(request, (X / 1e4,), share_inputs=share)
        np.testing.assert_allclose(request.infer([X], share_inputs=share)[0], X * 100, 0.02)


# ---- copies on the host


@pytest.mark.parametrize("shape", [(7,), (1, 900), (2, 3, 200), (1, 1, 1200), (5000,)])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", ">f4"])
def test_copy(shape: tuple[int, ...], dtype: str) -> None:
    source = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    for view in (source, source[..., ::-1], np.asfortranarray(source)):
        target = np.empty(shape, np.float32)
        host_copies.copy(target, view)
        np.testing.assert_array_equal(target, view)


def test_overlapping_copies() -> None:
    array = np.arange(5000.0)
    host_copies.copy(array[1:], array[:-1])
    np.testing.assert_array_equal(array, [0, *range(4999)])
    host_copies.copy(array, array[::-1])
    np.testing.assert_array_equal(array, [*range(4998, -1, -1), 0])


def test_copies_raise() -> None:
    with pytest.raises(ValueError, match="could not convert"):
        host_copies.copy(np.empty(5000, np.float32), np.array(["no"] * 5000))


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return a function that gives the bytes that the host has copied since its last call."""
    total = [0]
    copy = np.copyto

    def counting(target: Array, source: Any, *args: Any, **options: Any) -> None:
        total[0] += target.nbytes
        copy(target, source, *args, **options)

    monkeypatch.setattr(np, "copyto", counting)

    def take() -> int:
        count, total[0] = total[0], 0
        return count

    return take


def test_bytes_that_the_host_copies(compiled: Any, copied: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The host copies a large input once, and a large result not at all: it is downloaded to where it stays."""
    monkeypatch.setattr("ovgpu.request.downloads.LARGE_BYTES", 4000)
    request, pageable = compiled(model()).create_infer_request(), []
    monkeypatch.setattr(host_memory, "empty", lambda *args: pageable.append(args))
    for _ in range(4):
        request.infer([X, Y])[0]
    copied()
    result = request.infer([X, Y])[0]
    np.testing.assert_array_equal(result, X + Y)
    assert copied() == X.nbytes + Y.nbytes and not pageable
    assert memory.is_pinned(result.ctypes.data)


# ---- arrays that are pinned where they are


@pytest.fixture
def pinned() -> Iterator[Callable[[Any], bool]]:
    """Return a function that returns whether the memory of an array is pinned."""
    pinned_arrays.release_all()
    yield lambda array: memory.is_pinned(array.ctypes.data)
    pinned_arrays.release_all()


def test_shared_arrays_are_pinned(infer: Any, pinned: Any, copied: Callable[[], int]) -> None:
    """From its third use on, a shared array is read where it is, whatever it holds then."""
    x = X.copy()
    for n in range(6):
        x[...] = n
        copied()
        np.testing.assert_array_equal(infer([x, Y], True), n + np.tile(Y, (SIZE, 1)))
        assert (copied() < X.nbytes) == pinned(x) == (n >= 2)
    np.testing.assert_array_equal(infer([X, Y], True), X + Y)
    np.testing.assert_array_equal(infer([x, Y], False), 5 + np.tile(Y, (SIZE, 1)))  # a copy: the tensor keeps it
    np.testing.assert_array_equal(infer.request.get_tensor("x").data, x)


def test_pinned_arrays_are_released(infer: Any, pinned: Any) -> None:
    x = X.copy()
    for _ in range(4):
        infer([x[:18], Y], True)
    assert pinned(x)
    address = x.ctypes.data
    with pytest.raises(ValueError, match="cannot resize"):
        x.resize((SIZE * 2, COLUMNS), refcheck=False)
    infer([X, Y], True)
    del x
    assert not memory.is_pinned(address)


def test_arrays_that_are_not_pinned(
    infer: Any, pinned: Any, monkeypatch: pytest.MonkeyPatch, copied: Callable[[], int]
) -> None:
    """Memory that NumPy does not own may be freed without notice; also, the system may refuse, and the user."""
    foreign = np.frombuffer(bytearray(X.tobytes()), np.float32).reshape(X.shape)
    for n in range(5):
        np.testing.assert_array_equal(infer([foreign, Y * n], True), X + Y * n)
    assert not pinned(foreign)

    def refuse(*args: Any) -> None:
        raise cp.cuda.runtime.CUDARuntimeError(1, "cudaErrorInvalidValue")

    for change in (
        lambda patch: patch.setattr(cp.cuda.runtime, "hostRegister", refuse),
        lambda patch: patch.setenv(pinned_arrays.SWITCH, "0"),
        lambda patch: patch.setattr(pinned_arrays, "MAX_BYTES", X.nbytes - 1),
    ):
        with monkeypatch.context() as patch:
            change(patch)
            x = X.copy()
            for n in range(5):
                np.testing.assert_array_equal(infer([x, Y * n], True), X + Y * n)
            assert not pinned(x)


def test_many_arrays(infer: Any, pinned: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arrays used last stay pinned."""
    monkeypatch.setattr(pinned_arrays, "MAX_RANGES", 3)
    arrays = [X + n for n in range(5)]
    for x in arrays:
        for _ in range(4):
            np.testing.assert_array_equal(infer([x, Y], True), x + Y)
    assert [pinned(x) for x in arrays] == [False, False, True, True, True]


def test_other_arrays_at_the_same_address(pinned: Any) -> None:
    """Ranges are those of one array: another one, or a longer view, begins anew."""
    x = X.copy()
    for _ in range(3):
        used = pinned_arrays.use(x)
    assert used and pinned(x) and not pinned_arrays.use(x[:10]) and not pinned(x)
    assert [pinned_arrays.use(x) for _ in range(3)] == [False, False, True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_forks_release_all(pinned: Any) -> None:
    x = X.copy()
    for _ in range(3):
        pinned_arrays.use(x)
    assert pinned(x)
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    assert not pinned(x)
