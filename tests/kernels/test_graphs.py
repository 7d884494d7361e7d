"""Captured graphs: when they are captured, the memory they retain, and their eviction."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cuda import CudaBackend, graphs
from ovgpu.ops.arithmetic.arithmetic import Add
from tests.emulator import cupy_emu as cp
from tests.harness.ir import Net

CALLS = (0, 3)  # result of `infer` without a graph: two launches of Doubled, and one of the layers after it
EXTRA_CALL: dict[str, Callable[[], object]] = {}


@ov.register_op("Doubled", "graph_tests")
class Doubled(ov.Op):
    """Twice its input; its CUDA form also calls a function that a test sets."""

    def infer_specs(self, x: Any) -> Any:
        return (x,)

    def evaluate(self, xp: Any, x: Any) -> Any:
        return (x + x,)

    def cuda(self, k: Any, inputs: Any, outputs: Any, workspace: Any) -> None:
        k.copy(inputs[0], outputs[0])
        copy = k.calls.pop()
        k.calls.append(lambda: (EXTRA_CALL["call"](), copy()))
        k.elementwise(Add(), [inputs[0], outputs[0]], outputs[0])


@pytest.fixture
def extra_call(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    monkeypatch.setitem(EXTRA_CALL, "call", lambda: None)
    return lambda function: monkeypatch.setitem(EXTRA_CALL, "call", function)


@pytest.fixture(autouse=True)
def _no_extra_call(extra_call: Any) -> None:
    """Reset the extra call of Doubled before each test."""


def net(shape: tuple[int, ...] = (2, 3)) -> Net:
    """Return a model of relu(2x) + 1."""
    found = Net("graphs")
    x = found.layer("Doubled", "graph_tests", [found.parameter("f32", shape, "x")], name="doubled")
    x = found.layer("Relu", "opset1", [x], name="relu")
    found.result(found.layer("Add", "opset1", [x, found.const(np.ones(1, "f4"))], name="add"))
    return found


def request_of(found: Net, device: str) -> Any:
    core = ov.Core()
    return core.compile_model(core.read_model(*found.build()), device).create_infer_request()


def infer(request: Any, x: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Check the result of one inference; return its numbers of graph launches and other launches."""
    cp.counters.reset()
    (y,) = request.infer([x]).to_tuple()
    counters = replace(cp.counters)
    np.testing.assert_allclose(y, np.maximum(2 * x, 0) + 1, rtol=1e-6)
    return counters.graph_launches, counters.launches


def draw(seed: int, shape: tuple[int, ...] = (2, 3)) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def test_captured_at_the_second_run(emulated: str) -> None:
    request = request_of(net(), emulated)
    assert [infer(request, draw(n)) for n in range(4)] == [CALLS, (1, 0), (1, 0), (1, 0)]
    plan = request.plan()
    assert plan.captured == (True,) and (plan.launches, plan.kernels) == (1, 3)


def test_a_failed_capture_runs_call_by_call(emulated: str, extra_call: Any) -> None:
    """An allocation during capture gives one warning that names the layer; the stream and the results are correct."""
    request = request_of(net(), emulated)

    extra_call(lambda: cp.empty(4, np.float32))
    assert infer(request, draw(0)) == CALLS
    with pytest.warns(RuntimeWarning, match=r"be captured: \[Doubled\] .*16 bytes are allocated.*layer 'doubled'"):
        assert infer(request, draw(1)) == CALLS
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [infer(request, draw(n)) for n in range(3)] == [CALLS] * 3
    assert not request._session.backend.stream.is_capturing() and request.plan().captured == (False,)


def test_a_call_that_fails_while_captured_leaves_the_request_usable(emulated: str, extra_call: Any) -> None:
    """The call also fails eagerly, and the error names its layer; the next inference succeeds."""
    request = request_of(net(), emulated)
    infer(request, draw(0))

    def fail() -> None:
        raise ValueError("no such thing")

    extra_call(fail)
    with (
        pytest.warns(RuntimeWarning, match="no such thing"),
        pytest.raises(ov.Error, match=r"\[Doubled\] .*no such thing.*layer 'doubled'"),
    ):
        request.infer([draw(1)])
    extra_call(lambda: None)
    assert infer(request, draw(2)) == CALLS and not request._session.backend.stream.is_capturing()


def test_an_invalidated_capture_is_retried(emulated: str, extra_call: Any) -> None:
    """If another thread invalidates a capture, the second attempt succeeds without a warning."""
    request, invalidated = request_of(net(), emulated), list[bool]()
    infer(request, draw(0))

    def invalidate() -> None:
        if not invalidated and request._session.backend.stream.is_capturing():
            invalidated.append(True)
            raise RuntimeError("invalidated")

    extra_call(invalidate)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [infer(request, draw(n)) for n in range(3)] == [(1, 0)] * 3
    plan = request.plan()
    assert invalidated and plan.captured == (True,) and not plan.uncaptured


def test_the_plan_says_why_there_is_no_graph(emulated: str, extra_call: Any) -> None:
    request = request_of(net(), emulated)
    extra_call(lambda: cp.empty(4, np.float32))
    infer(request, draw(0))
    with pytest.warns(RuntimeWarning):
        infer(request, draw(1))
    (reason,) = request.plan().uncaptured
    assert "[Doubled]" in reason and "16 bytes are allocated while capturing" in reason
    assert "call by call: [Doubled]" in " ".join(str(request.plan()).split())


def test_the_garbage_collector_waits_for_a_capture(emulated: str, extra_call: Any) -> None:
    request, enabled = request_of(net(), emulated), dict[bool, bool]()
    extra_call(lambda: enabled.update({request._session.backend.stream.is_capturing(): gc.isenabled()}))
    for n in range(3):
        infer(request, draw(n))
    assert enabled == {False: True, True: False} and gc.isenabled()


@pytest.mark.emulator
def test_a_capture_invalidated_silently(emulated: str, extra_call: Any) -> None:
    """The null stream was used: the driver reports this only at the end of the capture."""
    request = request_of(net(), emulated)
    infer(request, draw(0))

    def invalidate() -> None:
        if request._session.backend.stream.is_capturing():
            request._session.backend.stream.capture.invalid = "the null stream was used"

    extra_call(invalidate)
    with pytest.warns(RuntimeWarning, match="the capture was invalidated"):
        assert infer(request, draw(1)) == CALLS
    extra_call(lambda: None)
    assert infer(request, draw(2)) == CALLS


def test_one_capture_at_a_time(emulated: str, extra_call: Any) -> None:
    """Two requests in two threads do not capture at the same time, though each capture waits for the other to begin."""
    requests = [request_of(net(), emulated) for _ in range(2)]
    for request in requests:
        infer(request, draw(0))
    inside, most = [0], [0]

    def linger() -> None:
        if any(r._session.backend.stream.is_capturing() for r in requests):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            threading.Event().wait(0.05)
            inside[0] -= 1

    extra_call(linger)
    failures: list[BaseException] = []

    def run(request: Any) -> None:
        try:
            with request._session.backend.stream:
                graphs_before = request._session.backend.graphs.nodes
                request.infer([draw(1)])
                assert request._session.backend.graphs.nodes > graphs_before
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=run, args=(r,)) for r in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and most == [1]


@pytest.mark.emulator
def test_the_capture_mode_is_thread_local(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    begin = cp.cuda.Stream.begin_capture
    monkeypatch.setattr(
        cp.cuda.Stream, "begin_capture", lambda self, mode=None: (modes.append(mode), begin(self, mode))[1]
    )
    request = request_of(net(), emulated)
    for n in range(2):
        infer(request, draw(n))
    assert modes == [cp.cuda.runtime.streamCaptureModeThreadLocal]


def test_graphs_retain_their_memory(emulated: str) -> None:
    """Another shape grows the arena and rebinds the output; the first graph still runs on its own memory."""
    request = request_of(net((-1, 3)), emulated)
    for n in range(2):
        infer(request, draw(n))
    for n in range(3):
        infer(request, draw(n, (5000, 3)))
    gc.collect()
    assert [infer(request, draw(n, (2, 3))) for n in range(3)][-1] == (1, 0)
    compiled = request.get_compiled_model()
    del request
    gc.collect()
    assert infer(compiled.create_infer_request(), draw(3)) == CALLS


def test_evicted_bindings_free_their_graphs(emulated: str) -> None:
    """After nine shapes, the last eight have graphs."""
    request = request_of(net((-1, 3)), emulated)
    for rows in range(1, 10):
        for n in range(2):
            infer(request, draw(n, (rows, 3)))
    gc.collect()
    assert request._session.backend.graphs.nodes == 8 * 5  # kernels, an upload and a download
    assert infer(request, draw(0, (9, 3))) == (1, 0) and infer(request, draw(0, (1, 3))) == CALLS


@dataclass
class Recorded:
    """A recording of calls, as `CudaBackend.replay` takes it."""

    flat: list[Any]
    runs: int = 0
    graph: Any = None
    number: int = 0


def recorded(backend: CudaBackend, count: int) -> Recorded:
    """Return a recording of ``count`` copies of one array to another."""
    x, y = cp.zeros(4, np.float32), cp.empty(4, np.float32)
    return Recorded([call for _ in range(count) for call in backend.copy(x, y)])


def test_alternating_shapes_keep_their_graphs(emulated: str) -> None:
    request = request_of(net((-1, 3)), emulated)
    for rows in (3, 1, 2, 3, 1, 2):
        infer(request, draw(rows, (rows, 3)))
    assert [infer(request, draw(n, (rows, 3))) for n, rows in enumerate((1, 2, 3, 2, 1, 3))] == [(1, 0)] * 6


def states() -> Net:
    """Return a model with three variables: two running totals, and one that is read and never assigned."""
    found = Net("states")
    x = found.parameter("f32", (2, 3), "x")
    a, b, c = (
        found.read_value(name, "f32", (2, 3), found.const(np.full((2, 3), k, "f4"))) for k, name in enumerate("abc")
    )
    a = found.layer("Add", "opset1", [a, x], name="a")
    b = found.layer("Add", "opset1", [b, found.layer("Multiply", "opset1", [a, c])], name="b")
    found.assign("a", a)
    found.assign("b", b)
    found.result(b)
    return found


def test_two_graphs_serve_all_states(emulated: str) -> None:
    """Each side of the variables' double buffers has a graph, whatever is reset or set in between."""
    core = ov.Core()
    host, device = (
        core.compile_model(core.read_model(*states().build()), name).create_infer_request()
        for name in ("CPU", emulated)
    )

    def both(change: Callable[[Any], Any]) -> list[Any]:
        return [change(request) for request in (host, device)]

    def state(request: Any, number: int) -> Any:
        return next(s for s in request.query_state() if s.name == "abc"[number])

    for n in range(24):
        cp.counters.reset()
        wanted, found = both(lambda request: request.infer([draw(n)])[0])  # noqa: B023
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        assert n < 4 or cp.counters.graph_launches == 1
        if n in (5, 6, 9):
            both(lambda request: request.reset_state())
        if n in (8, 11, 12):
            both(lambda request: state(request, n % 3).reset())  # noqa: B023
        if n in (7, 10, 13, 16):
            both(lambda request: setattr(state(request, n % 2), "state", ov.Tensor(draw(n))))  # noqa: B023
    cached = device._session.last.bindings[0].values()
    assert len(cached) == 2 and all(binding.graph for binding in cached)


def test_nodes_are_limited(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three graphs fit: the least recently used one is evicted, and captured again when it has been used
    twice."""
    monkeypatch.setattr(graphs, "MAX_NODES", 11)
    backend = CudaBackend()
    a, b, c = (recorded(backend, 4) for _ in range(3))

    def replayed(*recordings: Recorded) -> list[bool]:
        found = []
        for recording in recordings:
            found.append(backend.launch(recording))
            recording.runs += not found[-1]  # else its calls run one by one
        return found

    assert replayed(a, a, b, b, a) == [False, True, False, True, True]
    assert backend.graphs.nodes == 8
    assert replayed(c, c, a, c) == [False, True, True, True] and backend.graphs.nodes == 8
    assert replayed(b, b, c, a) == [False, True, True, False] and backend.graphs.nodes == 8
    del b, c
    gc.collect()
    assert backend.graphs.nodes == 0 and replayed(a) == [True]


def test_a_graph_beyond_the_limit_is_never_captured(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MAX_NODES", 3)
    request = request_of(net(), emulated)
    assert [infer(request, draw(n)) for n in range(4)] == [CALLS] * 4
    assert request._session.backend.graphs.nodes == 0


def test_another_error_than_an_exception_ends_the_capture(backend: CudaBackend) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backend.launch(Recorded([interrupt], runs=1))
    assert not backend.stream.is_capturing()
