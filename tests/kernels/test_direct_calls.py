"""Direct calls: inferences that only copy, launch a graph and wait, and the ways out of them."""

from __future__ import annotations

import gc
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from weakref import ref

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cuda.graphs import Graphs
from ovgpu.debug import NVTX, STOP_AT
from ovgpu.errors import DeviceError
from ovgpu.request.session import Session
from tests.emulator import cupy_emu as cp
from tests.emulator import stream
from tests.harness.ir import Net
from tests.harness.layers import add

SHAPE = (2, 3)
X, Y = (np.arange(6, dtype=np.float32).reshape(SHAPE) + n for n in (1, 20))
Count = Callable[[], int]


@pytest.fixture
def general(monkeypatch: pytest.MonkeyPatch) -> Count:
    """Return a function that gives the number of inferences in the general way since its last call."""
    counted, run = [0], Session.run

    def counting(*args: Any) -> Any:
        counted[0] += 1
        return run(*args)

    def take() -> int:
        count, counted[0] = counted[0], 0
        return count

    monkeypatch.setattr(Session, "run", counting)
    return take


class Subclass(np.ndarray):
    """Array of a class of its own."""


def two() -> tuple[bytes, bytes]:
    """Return a model of the sum and the difference of two inputs of any number of rows."""
    net = Net()
    x, y = (net.parameter("f32", (-1, 3), name) for name in "xy")
    net.result(net.layer("Add", "opset1", [x, y], names=["sum"]))
    net.result(net.layer("Subtract", "opset1", [x, y], names=["difference"]))
    return net.build()


def running() -> tuple[bytes, bytes]:
    """Return a model that adds its inputs to a state."""
    net = Net()
    x, y = (net.parameter("f32", SHAPE, name) for name in "xy")
    both = net.layer("Subtract", "opset1", [x, y])
    total = add(net, net.read_value("total", "f32", SHAPE, net.const(np.zeros(SHAPE, np.float32))), both)
    net.assign("total", total)
    net.result(net.layer("Relu", "opset1", [total], names=["sum"]))
    return net.build()


def warm(request: Any, inputs: Any = (X, Y), **options: Any) -> None:
    for _ in range(4):
        request.infer(list(inputs) if isinstance(inputs, tuple) else inputs, **options)


WAYS: dict[str, Any] = {
    "list": lambda x, y: [x, y],
    "tuple": lambda x, y: (x, y),
    "names": lambda x, y: {"x": x, "y": y},
    "other order": lambda x, y: {"y": y, "x": x},
    "numbers": lambda x, y: {0: x, 1: y},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("share", [False, True], ids=["copied", "shared"])
def test_arrays(compiled: Any, general: Count, way: str, share: bool) -> None:
    request = compiled(two()).create_infer_request()
    for n in range(8):
        x, y = n * X, Y + n
        results = request.infer(WAYS[way](x, y), share_inputs=share)
        np.testing.assert_array_equal(results["sum"], x + y)
        np.testing.assert_array_equal(results[1], x - y)
        assert [set(names) for names in results.names()] == [{"sum"}, {"difference"}]
        assert len(results) == 2 and request.latency > 0
        assert (general() == 0) == (n > 2)


def test_arrays_of_other_processes(compiled: Any, general: Count) -> None:
    """NumPy gives pickled arrays other objects as types, which are equal to the usual ones."""
    x, y = pickle.loads(pickle.dumps((X, Y)))
    assert x.dtype is not X.dtype and x.dtype == X.dtype
    request = compiled(two()).create_infer_request()
    warm(request)
    general()
    np.testing.assert_array_equal(request.infer([x, y])["sum"], X + Y)
    assert not general()


def test_a_compiled_model(compiled: Any, general: Count) -> None:
    """Arrays are shared by default: their contents are read at each call, and are not kept."""
    model = compiled(two())
    x, y = X.copy(), Y.copy()
    for n in range(8):
        x += 1
        results = model([x, y])
        np.testing.assert_array_equal(results[model.output(0)], x + y)
        assert (general() == 0) == (n > 2)
    np.testing.assert_array_equal(results[0], x + y)
    model({"x": X})  # y is still the array that was shared
    y[...] = 7
    np.testing.assert_array_equal(model({"x": X})[0], X + 7)
    assert not general()


def test_own_tensors(compiled: Any, general: Count) -> None:
    request = compiled(two()).create_infer_request()
    warm(request)
    general()
    request.get_tensor("x").data[...] = 3
    results = request.infer(share_outputs=True)
    np.testing.assert_array_equal(results[0], 3 + Y)
    request.get_tensor("x").data[...] = 4
    request.infer(share_outputs=True)
    np.testing.assert_array_equal(results[0], 4 + Y)  # a view
    results[0].shape = (6,)
    assert request.infer(share_outputs=True)[0].shape == SHAPE and not general()


def test_results_are_copies(compiled: Any) -> None:
    request = compiled(two()).create_infer_request()
    warm(request)
    first = request.infer([X, Y])
    second = request.infer([Y, X])
    np.testing.assert_array_equal(first[1], X - Y)
    np.testing.assert_array_equal(second[1], Y - X)
    assert first.to_dict() is first.to_dict() and list(first) == list(second)


def test_other_values(compiled: Any, general: Count) -> None:
    """Values that a direct call does not take are converted, or refused, in the general way."""
    request = compiled(two()).create_infer_request()
    warm(request)
    general()
    readonly = X.copy()
    readonly.flags.writeable = False
    for x in (X.astype(np.float64), X.tolist(), X.astype(">f4"), ov.Tensor(X), X.view(Subclass), X.astype(np.int32)):
        np.testing.assert_array_equal(request.infer({"x": x, "y": Y})[0], X + Y)
        assert general() == 1
    request = compiled(two()).create_infer_request()  # whose tensors are its own
    warm(request)
    general()
    for x in (np.asfortranarray(X), readonly, np.repeat(X, 2, 1)[:, ::2]):
        np.testing.assert_array_equal(request.infer([x, Y])[0], X + Y)
        assert not general()
    for x in (X[:1], X[:, :1]):
        if x.shape[1] == 3:
            np.testing.assert_array_equal(request.infer([x, Y[:1]])[0], x + Y[:1])
        else:
            with pytest.raises(RuntimeError, match="are incompatible"):
                request.infer([x, Y])
    with pytest.raises(RuntimeError, match="tensor name z was not found"):
        request.infer({"z": X})
    with pytest.raises(RuntimeError, match="index 2 was not found"):
        request.infer([X, Y, Y])
    np.testing.assert_array_equal(request.infer([X, Y])[0], X + Y)


def test_shared_arrays_that_are_copied(compiled: Any) -> None:
    """A read-only array is copied to the input's own memory, as in OpenVINO, and one of another layout too."""
    request = compiled(two()).create_infer_request()
    x, y = X.copy(), Y.copy()
    warm(request, (x, y), share_inputs=True)
    readonly = X * 2
    readonly.flags.writeable = False
    for value in (readonly, np.asfortranarray(X * 3)):
        np.testing.assert_array_equal(request.infer([value, y], share_inputs=True)[0], value + y)
    y[...] = 5
    np.testing.assert_array_equal(request.infer()[0], X * 3 + 5)


def test_tensors_that_the_caller_sets(compiled: Any) -> None:
    request = compiled(two()).create_infer_request()
    warm(request)
    result = ov.Tensor(np.zeros(SHAPE, np.float32))
    request.set_tensor("sum", result)
    for n in range(5):
        request.infer([X, Y * n])
        np.testing.assert_array_equal(result.data, X + Y * n)
    device = ov.Tensor(cp.asarray(X * 2), shared_memory=True)
    request.set_tensor("x", device)
    for n in range(5):
        np.testing.assert_array_equal(request.infer({"y": Y * n})[0], X * 2 + Y * n)
    request.get_output_tensor(1).shape = (1, 3)
    np.testing.assert_array_equal(request.infer([X, Y])[1], X - Y)


def test_states(compiled: Any, general: Count) -> None:
    """States alternate between buffers, so that two direct calls take turns. A set or reset state counts."""
    request = compiled(running()).create_infer_request()
    total = 0 * X

    def check(times: int) -> None:
        nonlocal total
        for _ in range(times):
            total = total + Y - X
            np.testing.assert_array_equal(request.infer([Y, X])[0], total)
        np.testing.assert_array_equal(request.query_state()[0].state.data, total)

    check(8)
    general()
    check(4)
    assert general() <= 2  # the query above handed the state out
    request.reset_state()
    total = 0 * X
    check(5)
    request.query_state()[0].state = ov.Tensor(X)
    total = X
    check(5)


@pytest.mark.parametrize("where", ["launch", "synchronize"])
def test_an_error_keeps_the_state(compiled: Any, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    request = compiled(running()).create_infer_request()
    warm(request)
    before = request.query_state()[0].state.data.copy()
    warm(request)
    before = before + 4 * (X - Y)

    def failing(self: Any, *args: Any) -> Any:
        raise cp.cuda.runtime.CUDARuntimeError(719, "cudaErrorLaunchFailure: unspecified launch failure")

    with monkeypatch.context() as patch:
        if where == "launch":
            patch.setattr(Graphs, "launch_whole", failing)
        else:
            patch.setattr(stream.Stream, "synchronize", failing)
        with pytest.raises((DeviceError, ov.OpError), match="launch failure"):
            request.infer([X, Y])
    np.testing.assert_array_equal(request.infer([X, Y])[0], np.maximum(before + X - Y, 0))


def test_an_interrupt_keeps_the_state(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    request = compiled(running()).create_infer_request()
    warm(request)
    synchronize, calls = stream.Stream.synchronize, [0]

    def interrupted(self: Any) -> None:
        calls[0] += 1
        synchronize(self)
        if calls[0] == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stream.Stream, "synchronize", interrupted)
        with pytest.raises(KeyboardInterrupt):
            request.infer([X, Y])
    np.testing.assert_array_equal(request.infer([X, Y])[0], np.maximum(5 * (X - Y), 0))


def test_cancelled(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    request = compiled(running()).create_infer_request()
    warm(request)
    synchronize = stream.Stream.synchronize

    def cancelling(self: Any) -> None:
        request.cancel()
        synchronize(self)

    with monkeypatch.context() as patch:
        patch.setattr(stream.Stream, "synchronize", cancelling)
        with pytest.raises(RuntimeError, match="was canceled"):
            request.infer([X, Y])
    np.testing.assert_array_equal(request.infer([X, Y])[0], np.maximum(5 * (X - Y), 0))


def test_observed(compiled: Any, general: Count) -> None:
    request = compiled(two()).create_infer_request()
    warm(request)
    general()
    with NVTX(1):
        request.infer([X, Y])
    with STOP_AT("no such layer"), pytest.raises(RuntimeError, match="no such layer"):
        request.infer([X, Y])
    assert general() == 2
    request.infer([X, Y])
    assert general() == 0


def test_released_memory(compiled: Any, general: Count) -> None:
    model = compiled(two())
    for _ in range(4):
        model([X, Y])
    model.release_memory()
    general()
    np.testing.assert_array_equal(model([X, Y])[0], X + Y)
    assert general() == 1


def test_threads(compiled: Any) -> None:
    """A request that is busy says so, whichever way its inferences take."""
    request = compiled(two()).create_infer_request()
    warm(request)
    busy, results = [0], []

    def infer(n: int) -> None:
        for _ in range(50):
            try:
                results.append((n, request.infer([X * n, Y])[0]))
            except RuntimeError as e:
                assert "busy" in str(e)
                busy[0] += 1

    threads = [threading.Thread(target=infer, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) + busy[0] == 200
    for n, result in results:
        np.testing.assert_array_equal(result, X * n + Y)


def widening(device: str) -> Any:
    """Return a compiled model that computes in f16, or in bf16 if a value leaves its range: 100 x, in two steps."""
    net = Net()
    value = net.parameter("f32", SHAPE, "x")
    for factor in (1000, 0.1):
        matrix = net.const(np.eye(3, dtype=np.float32) * np.float32(factor))
        value = net.layer("MatMul", "opset1", [value, matrix])
    net.result(value)
    core = ov.Core()
    return core.compile_model(core.read_model(*net.build()), device, {"EXECUTION_MODE_HINT": "PERFORMANCE"})


def test_overflow(emulated: str) -> None:
    """A model in f16 whose results leave its range is compiled again in bf16, also after direct calls."""
    request = widening(emulated).create_infer_request()
    for _ in range(6):
        np.testing.assert_allclose(request.infer([X])[0], X * 100, rtol=1e-2)
    narrow = request._session.compilation
    assert request._session._direct
    np.testing.assert_allclose(request.infer([X * 100])[0], X * 1e4, rtol=1e-2)
    assert request._session.compilation is not narrow


@pytest.mark.parametrize("way", ["copied", "shared", "tensor", "on the device"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["infer", "start_async"])
def test_results_that_come_back(emulated: str, way: str, asynchronous: bool) -> None:
    """A view of a result is an input that is read once, even if the inference is repeated in a wider type."""
    request, expected = widening(emulated).create_infer_request(), 0.009 * np.ones(SHAPE)
    if way == "on the device":
        request.set_output_tensor(ov.Tensor(cp.zeros(SHAPE, np.float32), shared_memory=True))
    elif way == "tensor":
        request.set_input_tensor(request.get_output_tensor())
    share = way == "shared"

    def infer(inputs: Any) -> Any:
        if not asynchronous:
            return request.infer(inputs, share, share_outputs=True)[0]
        request.start_async(inputs, share_inputs=share)
        request.wait()
        return request._session.results(True, True)[0]

    result = infer([expected.astype(np.float32)])
    for _ in range(6):  # until inferences are direct calls, if they can be
        small = result if isinstance(result, np.ndarray) else result.get()
        small[...] = expected
        result = infer([small])
    if way == "on the device":
        request.set_input_tensor(request.get_output_tensor())
    for _ in range(3):
        inputs = None if way in ("tensor", "on the device") else [result]
        result, expected = infer(inputs), expected * 100
        found = result if isinstance(result, np.ndarray) else result.get()
        np.testing.assert_allclose(found, expected * 100, rtol=2e-2)


def test_values_in_tensors_of_the_request(compiled: Any) -> None:
    """They are copied once, whichever way the call takes in the end."""
    for model, other in ((running, Y), (two, Y.astype(np.float64))):
        for share in (list, lambda values: dict(zip("xy", values))):
            request = compiled(model()).create_infer_request()
            warm(request)
            warm(request)
            own = request.get_tensor("x").data
            own[...] = X
            request.infer(share([own[::-1], other]))
            np.testing.assert_array_equal(own, X[::-1])


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("wrong", [{"nope": Y}, {-1: Y}, {2: Y}, {0.5: Y}, {b"y": Y}, {None: Y}, {0.0: Y}, {1j * 0: Y}])
def test_refused_inputs_change_nothing(compiled: Any, share: bool, wrong: dict[Any, Any]) -> None:
    request = compiled(two()).create_infer_request()
    x, y = X.copy(), Y.copy()
    warm(request, (x, y), share_inputs=share)
    with pytest.raises((RuntimeError, TypeError)):
        request.infer({"x": X * 100} | wrong, share_inputs=share)
    np.testing.assert_array_equal(request.infer()[0], X + Y)


def test_an_input_of_any_type(compiled: Any, general: Count) -> None:
    """Its arrays are copied also if they are shared, as its type follows them."""
    net = Net()
    net.result(net.layer("Abs", "opset1", [net.parameter("dynamic", SHAPE, "x")]))
    request = compiled(net.build()).create_infer_request()
    x = -X
    for _ in range(6):
        request.infer([x], share_inputs=True)
    x[...] = -77
    np.testing.assert_array_equal(request.infer()[0], X)
    assert request.infer([X.astype(np.float64)])[0].dtype == np.float64


def test_memory_that_is_lacking_once(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The general way frees memory, and tries again."""
    request = compiled(two()).create_infer_request()
    warm(request)
    error = cp.cuda.runtime.CUDARuntimeError(2, "cudaErrorMemoryAllocation: out of memory")
    left = [1]

    def failing(original: Any) -> Any:
        def launch(*args: Any) -> Any:
            if left[0]:
                left[0] -= 1
                raise error
            return original(*args)

        return launch

    monkeypatch.setattr(Graphs, "launch_whole", failing(Graphs.launch_whole))
    np.testing.assert_array_equal(request.infer([X * 2, Y])[0], X * 2 + Y)
    assert not left[0]


def test_errors_keep_no_inputs(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    request = compiled(two()).create_infer_request()
    warm(request)

    def failing(self: Any) -> None:
        raise cp.cuda.runtime.CUDARuntimeError(719, "cudaErrorLaunchFailure: unspecified launch failure")

    x = X.copy()
    alive = ref(x)
    gc.disable()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(stream.Stream, "synchronize", failing)
            with suppress(DeviceError):
                request.infer([x, Y])
        del x
        assert alive() is None
    finally:
        gc.enable()


def test_device_arrays_are_released(compiled: Any) -> None:
    request = compiled(two()).create_infer_request()
    x, y = X.copy(), Y.copy()
    warm(request, (x, y), share_inputs=True)
    array = cp.asarray(X)
    alive = ref(array)
    with pytest.raises(RuntimeError):
        request.infer([array, Y[:, :2]], share_inputs=True)
    request.infer([x, y], share_inputs=True)
    del array
    assert alive() is None


@pytest.mark.parametrize("way", ["direct", "general"])
def test_mappings_of_results(compiled: Any, way: str) -> None:
    """A program that changes a mapping of results changes that one alone, as in OpenVINO."""
    request = compiled(two()).create_infer_request()
    for _ in range(1 if way == "general" else 5):
        results = request.infer([X, Y])
    for names in results.names():
        names.clear()
    assert request.infer([X, Y])["sum"] is not None and type(results) is ov.OVDict
    changed = results.to_dict()
    del changed[next(iter(changed))]
    np.testing.assert_array_equal(results["difference"], X - Y)
    assert "sum" not in results and len(results.names()) == len(results) == 1
    with pytest.raises(KeyError):
        results["sum"]
    array = results[0]
    alive = ref(array)
    changed.clear()
    del array
    assert alive() is None and not len(results)


def walk(request: Any, seed: int) -> Iterator[Any]:
    """Yield the results, or errors, of calls in a random order of ways, each of which is repeated a few times."""
    rng = np.random.default_rng(seed)
    shared = [rng.normal(size=SHAPE).astype(np.float32) for _ in "xy"]
    own = [*WAYS, "none", "only x", "bind", "state", "double", "rows", "wrong", "async"]
    other = ["set", "output", "tensor"]  # from which on no tensor of the request's own is read or written
    drawn = [*rng.choice(own, 14), *rng.choice([*own, *other], 6)]
    ways = [way for way in drawn for _ in range(int(rng.integers(1, 7)))]
    share = view = False
    for n, way in enumerate(ways):
        x, y = (rng.integers(-9, 9, size=SHAPE).astype(np.float32) for _ in "xy")
        if n and ways[n - 1] != way:
            share, view = bool(rng.integers(2)), bool(rng.integers(2))
        for array in shared:
            array += 1
        try:
            if way in WAYS:
                inputs = WAYS[way](*(shared if share else (x, y)))
                results = request.infer(inputs, share, view)
            elif way == "none":
                results = request.infer(None, share, view)
            elif way == "only x":
                results = request.infer({"x": shared[0] if share else x}, share, view)
            elif way == "set":
                request.set_tensor("y", ov.Tensor(shared[1], shared_memory=True))
                results = request.infer([x] if share else {"x": x})
            elif way == "tensor":
                request.set_tensor("x", request.get_tensor("x"))
                request.set_tensor("sum", request.get_tensor("sum"))
                results = request.infer({"y": y}, share, view)
            elif way == "bind":
                request.get_tensor("x").data[...] = x
                results = request.infer()
            elif way == "output":
                request.set_tensor("sum", ov.Tensor(np.zeros(SHAPE, np.float32)))
                results = request.infer({"y": y})
            elif way == "state":
                request.reset_state()
                results = request.infer([x, y])
            elif way == "double":
                results = request.infer([x.astype(np.float64), y], share)
            elif way == "rows":
                results = request.infer([x[:1], y[:1]], share, view)
            elif way == "wrong":
                results = request.infer([x, y[:, :2]], share, view)
            else:
                request.start_async([x, y], share_inputs=share)
                request.wait()
                results = request.results
            yield [np.copy(results[i]) for i in range(len(results))]
        except Exception as e:
            yield type(e), str(e)


@pytest.mark.parametrize("model", [two, running], ids=["two", "running"])
@pytest.mark.parametrize("seed", range(12))
def test_random_walks(compiled: Any, monkeypatch: pytest.MonkeyPatch, seed: int, model: Any) -> None:
    """A request with direct calls returns the results, and raises the errors, of a request without them."""
    direct = list(walk(compiled(model()).create_infer_request(), seed))
    monkeypatch.setattr(Session, "_make_direct", lambda *_: None)
    expected = list(walk(compiled(model()).create_infer_request(), seed))
    for n, (one, other) in enumerate(zip(direct, expected, strict=True)):
        np.testing.assert_equal(one, other, err_msg=f"call {n}")
