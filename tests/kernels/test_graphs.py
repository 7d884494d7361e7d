"""Captured graphs: when they are made, what they hold, and what becomes of them."""
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

CALLS = (0, 3)  # of `infer`, call by call: two of Doubled, and one of the layers after it
BESIDE: dict[str, Callable[[], object]] = {}


@ov.op("Doubled", "graph_tests")
class Doubled(ov.Op):
    """Twice its input; its form for the device does something of the tests' on the way."""

    def infer(self, x: Any) -> Any:
        return (x,)

    def evaluate(self, xp: Any, x: Any) -> Any:
        return (x + x,)

    def cuda(self, k: Any, inputs: Any, outputs: Any, workspace: Any) -> None:
        k.copy(inputs[0], outputs[0])
        copy = k.calls.pop()
        k.calls.append(lambda: (BESIDE["call"](), copy()))
        k.elementwise(Add(), [inputs[0], outputs[0]], outputs[0])


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    monkeypatch.setitem(BESIDE, "call", lambda: None)
    return lambda function: monkeypatch.setitem(BESIDE, "call", function)


@pytest.fixture(autouse=True)
def nothing_beside(beside: Any) -> None:
    """Unless a test asks for it."""


def net(shape: tuple[int, ...] = (2, 3)) -> Net:
    """relu(2x) + 1"""
    found = Net("graphs")
    x = found.layer("Doubled", "graph_tests", [found.parameter("f32", shape, "x")], name="doubled")
    x = found.layer("Relu", "opset1", [x], name="relu")
    found.result(found.layer("Add", "opset1", [x, found.const(np.ones(1, "f4"))], name="add"))
    return found


def request_of(found: Net, device: str) -> Any:
    core = ov.Core()
    return core.compile_model(core.read_model(*found.build()), device).create_infer_request()


def infer(request: Any, x: np.ndarray[Any, Any]) -> tuple[int, int]:
    """(graph launches, other launches) of one inference, whose result is checked."""
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


def test_what_cannot_be_captured_runs_call_by_call(emulated: str, beside: Any) -> None:
    """An allocation within a call: one warning names the layer; the stream and the results are as ever."""
    request = request_of(net(), emulated)

    beside(lambda: cp.empty(4, np.float32))
    assert infer(request, draw(0)) == CALLS
    with pytest.warns(RuntimeWarning, match=r"be captured: \[Doubled\] .*16 bytes are allocated.*layer 'doubled'"):
        assert infer(request, draw(1)) == CALLS
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [infer(request, draw(n)) for n in range(3)] == [CALLS] * 3
    assert not request._backend.stream.is_capturing() and request.plan().captured == (False,)


def test_a_call_that_fails_while_captured_leaves_the_request_usable(emulated: str, beside: Any) -> None:
    """It fails when it is run as well, and is named; another inference succeeds."""
    request = request_of(net(), emulated)
    infer(request, draw(0))

    def fail() -> None:
        raise ValueError("no such thing")

    beside(fail)
    with pytest.warns(RuntimeWarning, match="no such thing"), pytest.raises(
            ov.Error, match=r"\[Doubled\] .*no such thing.*layer 'doubled'"):
        request.infer([draw(1)])
    beside(lambda: None)
    assert infer(request, draw(2)) == CALLS and not request._backend.stream.is_capturing()


def test_a_capture_that_is_spoilt_once_is_tried_again(emulated: str, beside: Any) -> None:
    """If another thread, for example, spoils a capture, the second attempt succeeds and there is no warning."""
    request, spoilt = request_of(net(), emulated), list[bool]()
    infer(request, draw(0))

    def spoil() -> None:
        if not spoilt and request._backend.stream.is_capturing():
            spoilt.append(True)
            raise RuntimeError("spoilt")

    beside(spoil)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [infer(request, draw(n)) for n in range(3)] == [(1, 0)] * 3
    plan = request.plan()
    assert spoilt and plan.captured == (True,) and not plan.uncaptured


def test_the_plan_says_why_there_is_no_graph(emulated: str, beside: Any) -> None:
    request = request_of(net(), emulated)
    beside(lambda: cp.empty(4, np.float32))
    infer(request, draw(0))
    with pytest.warns(RuntimeWarning):
        infer(request, draw(1))
    (reason,) = request.plan().uncaptured
    assert "[Doubled]" in reason and "16 bytes are allocated while capturing" in reason
    assert "call by call: [Doubled]" in " ".join(str(request.plan()).split())


def test_the_garbage_collector_waits_for_a_capture(emulated: str, beside: Any) -> None:
    request, enabled = request_of(net(), emulated), dict[bool, bool]()
    beside(lambda: enabled.update({request._backend.stream.is_capturing(): gc.isenabled()}))
    for n in range(3):
        infer(request, draw(n))
    assert enabled == {False: True, True: False} and gc.isenabled()


@pytest.mark.emulator
def test_an_invalidated_capture_is_left(emulated: str, beside: Any) -> None:
    """Something used the null stream: the driver tells only at the end of the capture."""
    request = request_of(net(), emulated)
    infer(request, draw(0))

    def spoil() -> None:
        if request._backend.stream.is_capturing():
            request._backend.stream.capture.invalid = "the null stream was used"

    beside(spoil)
    with pytest.warns(RuntimeWarning, match="the capture was invalidated"):
        assert infer(request, draw(1)) == CALLS
    beside(lambda: None)
    assert infer(request, draw(2)) == CALLS


def test_one_capture_at_a_time(emulated: str, beside: Any) -> None:
    """Two requests in two threads, each held up in the midst of its capture until the other had time to begin."""
    requests = [request_of(net(), emulated) for _ in range(2)]
    for request in requests:
        infer(request, draw(0))
    inside, most = [0], [0]

    def linger() -> None:
        if any(r._backend.stream.is_capturing() for r in requests):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            threading.Event().wait(0.05)
            inside[0] -= 1

    beside(linger)
    failures: list[BaseException] = []

    def run(request: Any) -> None:
        try:
            with request._backend.stream:
                graphs_before = request._backend.graphs.nodes
                request.infer([draw(1)])
                assert request._backend.graphs.nodes > graphs_before
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=run, args=(r,)) for r in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and most == [1]


@pytest.mark.emulator
def test_the_mode_lets_other_threads_go_on(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    begin = cp.cuda.Stream.begin_capture
    monkeypatch.setattr(cp.cuda.Stream, "begin_capture",
                        lambda self, mode=None: (modes.append(mode), begin(self, mode))[1])
    request = request_of(net(), emulated)
    for n in range(2):
        infer(request, draw(n))
    assert modes == [cp.cuda.runtime.streamCaptureModeThreadLocal]


def test_graphs_keep_what_they_read_and_write(emulated: str) -> None:
    """Another shape grows the arena and rebinds the output; the first graph still runs, on its own memory."""
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
    """Of nine shapes the last eight have graphs."""
    request = request_of(net((-1, 3)), emulated)
    for rows in range(1, 10):
        for n in range(2):
            infer(request, draw(n, (rows, 3)))
    gc.collect()
    assert request._backend.graphs.nodes == 8 * 5  # kernels, an upload and a download
    assert infer(request, draw(0, (9, 3))) == (1, 0) and infer(request, draw(0, (1, 3))) == CALLS


@dataclass
class Recorded:
    """A recording of so many copies of one array to another."""

    flat: list[Any]
    runs: int = 0
    graph: Any = None
    number: int = 0


def recorded(backend: CudaBackend, count: int) -> Recorded:
    x, y = cp.zeros(4, np.float32), cp.empty(4, np.float32)
    return Recorded([call for _ in range(count) for call in backend.copy(x, y)])


def test_shapes_in_turn_keep_their_graphs(emulated: str) -> None:
    request = request_of(net((-1, 3)), emulated)
    for rows in (3, 1, 2, 3, 1, 2):
        infer(request, draw(rows, (rows, 3)))
    assert [infer(request, draw(n, (rows, 3))) for n, rows in enumerate((1, 2, 3, 2, 1, 3))] == [(1, 0)] * 6


def states() -> Net:
    """Three variables: two totals, and one that is read and never set."""
    found = Net("states")
    x = found.parameter("f32", (2, 3), "x")
    a, b, c = (found.read_value(name, "f32", (2, 3), found.const(np.full((2, 3), k, "f4"))) for k, name in
               enumerate("abc"))
    a = found.layer("Add", "opset1", [a, x], name="a")
    b = found.layer("Add", "opset1", [b, found.layer("Multiply", "opset1", [a, c])], name="b")
    found.assign("a", a)
    found.assign("b", b)
    found.result(b)
    return found


def test_two_graphs_serve_all_states(emulated: str) -> None:
    """One for either side of the variables' buffers, whatever is reset or set in between."""
    core = ov.Core()
    host, device = (core.compile_model(core.read_model(*states().build()), name).create_infer_request()
                    for name in ("CPU", emulated))

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
    kept = device._last.bindings[0].values()
    assert len(kept) == 2 and all(binding.graph for binding in kept)


def test_nodes_are_limited(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for two graphs of three: the one that was not used for the longest time goes, and comes again when it
    has been used twice."""
    monkeypatch.setattr(graphs, "BUDGET", 11)
    backend = CudaBackend()
    a, b, c = (recorded(backend, 4) for _ in range(3))

    def replayed(*recordings: Recorded) -> list[bool]:
        found = []
        for recording in recordings:
            found.append(backend.replay(recording))
            recording.runs += not found[-1]  # else its calls run one by one
        return found

    assert replayed(a, a, b, b, a) == [False, True, False, True, True]
    assert backend.graphs.nodes == 8
    assert replayed(c, c, a, c) == [False, True, True, True] and backend.graphs.nodes == 8
    assert replayed(b, b, c, a) == [False, True, True, False] and backend.graphs.nodes == 8
    del b, c
    gc.collect()
    assert backend.graphs.nodes == 0 and replayed(a) == [True]


def test_what_exceeds_the_limit_alone_is_never_captured(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "BUDGET", 3)
    request = request_of(net(), emulated)
    assert [infer(request, draw(n)) for n in range(4)] == [CALLS] * 4
    assert request._backend.graphs.nodes == 0


def test_another_error_than_an_exception_ends_the_capture(backend: CudaBackend) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backend.replay(Recorded([interrupt], runs=1))
    assert not backend.stream.is_capturing()
