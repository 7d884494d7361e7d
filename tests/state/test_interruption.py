"""KeyboardInterrupt at any line of an inference: it raises and keeps the old state, or it returns with the new state.

Python raises it between any two instructions of the main thread. Here a trace function raises it in turn before each
line that `infer` runs in the calling thread.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cuda import current, kernel_cache
from ovgpu.runtime import executor
from tests.harness import Net, feed, take
from tests.harness.interruption import Interruption
from tests.harness.layers import add, gather, matmul, mul, numbers, reshape, scalar
from tests.harness.replay import DEVICES

from .test_kv_decode import attending
from .test_values import INIT, accumulator

Inputs = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """Model, the inputs that lead to a state, and the inputs of the inference that is interrupted."""

    net: Net
    before: Sequence[Inputs]
    step: Inputs

    def request(self, device: str) -> Any:
        return ov.Core().compile_model(ov.read_model(*self.net.build()), device).create_infer_request()

    def lead(self, request: Any) -> None:
        """Bring the request to the state before the step."""
        request.reset_state()
        for inputs in self.before:
            request.infer(inputs)

    @cached_property
    def expected(self) -> tuple[Any, Any, list[Any]]:
        """The states before and after the step, and its results."""
        request = self.request("CPU")
        self.lead(request)
        before = states(request)
        results = list(request.infer(self.step).to_tuple())
        return before, states(request), results

    def interrupt(self, request: Any, at: int) -> int:
        """Interrupt the step at a line, then repeat it. Returns its number of lines, or 0 if it was interrupted."""
        before, after, results = self.expected
        interruption = Interruption(at)
        try:
            with interruption:
                found = request.infer(self.step)
        except KeyboardInterrupt:
            assert same(states(request), before), f"line {at}: interrupted, and the state is not the old one"
            found = request.infer(self.step)
            lines = 0
        else:
            lines = interruption.lines
        assert gc.isenabled() and (kernel_cache.entered(), current.depth()) == (1, 0), f"line {at}"
        assert same(states(request), after), f"line {at}: after the step the state is not the new one"
        assert same(found.to_tuple(), results), f"line {at}: other results"
        return lines


def states(request: Any) -> list[Any]:
    return [state.state.data.copy() for state in request.query_state()]


def same(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    return all(a.shape == b.shape and np.allclose(a, b, 2e-5, 2e-5) for a, b in zip(found, expected, strict=True))


def totals() -> Net:
    """Build three variables: a sum, a value carried through a loop, and one that takes the value of another."""
    net, body = Net(), Net()
    x = net.parameter("f32", (4, 3), "x")
    a, b, c = (net.read_value(name, "f32", (4, 3), net.const(numbers(4, 3, seed=n))) for n, name in enumerate("abc"))
    row, h = body.parameter("f32", (1, 3)), body.parameter("f32", (1, 3))
    new = body.result(mul(body, add(body, row, h), scalar(body, 0.5)))
    looped = net.tensor_iterator(
        body, [feed(x, row, axis=0), feed(gather(net, b, np.array([0])), h)], [take(new, axis=0)], [(new, h)]
    )
    net.assign("a", add(net, a, x))
    net.assign("b", looped)
    net.assign("c", a)
    net.result(add(net, b, c))
    return net


def large() -> Net:
    """Build a product and a sum that the cores of the host share."""
    net = Net()
    x = net.parameter("f32", (512, 512), "x")
    a = net.read_value("a", "f32", (512, 512), net.const(numbers(512, 512, seed=1) / 999))
    net.assign("a", add(net, mul(net, a, x), matmul(net, x, reshape(net, a, [512, 512]))))
    net.result(a)
    return net


def fed(rows: int, had: int) -> Inputs:
    """Return inputs of `attending` with ``rows`` new rows after ``had`` earlier ones."""
    q, k, v = (numbers(2, 2, rows, 64, seed=had + i) / 9 for i in range(3))
    hidden = np.zeros((2, had + rows), np.float32)
    hidden[:, : had // 2] = 1
    return {"q": q, "k": k, "v": v, "beams": np.arange(2, dtype=np.int32), "hidden": hidden}


def x(*shape: int, seed: int) -> Inputs:
    return {"x": numbers(*shape, seed=seed) / 9}


CASES = {
    "any-rank": Case(accumulator(INIT, shape="...", declared=(2, 3)), [], x(2, 3, seed=1)),
    "first": Case(totals(), [], x(4, 3, seed=1)),
    "totals": Case(totals(), [x(4, 3, seed=1)], x(4, 3, seed=2)),
    "large": Case(large(), [x(512, 512, seed=1)], x(512, 512, seed=2)),
    "prompt": Case(attending(), [], fed(5, 0)),
    "step": Case(attending(), [fed(5, 0), fed(1, 5)], fed(1, 6)),
    "several-rows": Case(attending(), [fed(5, 0), fed(1, 5)], fed(4, 6)),
    "reordered": Case(attending(), [fed(5, 0), fed(1, 5)], {**fed(1, 6), "beams": np.array([1, 0], np.int32)}),
    "no-room": Case(attending(), [fed(14, 0), fed(1, 14)], fed(9, 15)),
}
WARM_UP = 8  # inferences after which the same lines run each time
QUICK = ("first", "totals", "any-rank")


interrupted: dict[str, set[tuple[str, int]]] = {device: set() for device in DEVICES}  # lines, in any case so far


def places_of(lines: Interruption, name: str, device: str, long: bool) -> list[int]:
    """Return the places to interrupt. With ``--long``, each line each time it runs; else its first time, and in slow
    cases the lines that no case before has run."""
    if long:
        return lines.passes(1 << 62)
    places = lines.passes(1)
    if name not in QUICK:
        places = [at for at in places if lines.passed[at - 1] not in interrupted[device]]
    interrupted[device].update(lines.passed)
    return places


@pytest.mark.parametrize("name", CASES)
def test_every_line(name: str, device: str, pytestconfig: pytest.Config) -> None:
    """Every line of a warm inference, which binds nothing, is interrupted."""
    case = CASES[name]
    request = case.request(device)
    for _ in range(WARM_UP):
        case.lead(request)
        request.infer(case.step)
    case.lead(request)
    with Interruption(0) as all_lines:
        request.infer(case.step)
    places = places_of(all_lines, name, device, pytestconfig.getoption("--long"))
    returned = 0
    for at in places:
        case.lead(request)
        lines = case.interrupt(request, at)
        returned += bool(lines)
        assert not lines or lines < at
    assert len(all_lines.passed) > 100 and returned <= len(places) / 10  # after an interruption, others may run


@pytest.mark.parametrize("name", ["totals", "no-room", "any-rank"])
def test_lines_of_the_first_inference(name: str, device: str, pytestconfig: pytest.Config) -> None:
    """A sample of the thousands of lines that build programs and bind steps is interrupted."""
    case = CASES[name]
    model = ov.read_model(*case.net.build())

    def interrupted(at: int) -> int:
        request = ov.Core().compile_model(model, device).create_infer_request()
        case.lead(request)
        return case.interrupt(request, at)

    count = interrupted(1 << 62)
    samples = 1000 if pytestconfig.getoption("--long") else 20
    for at in np.random.default_rng(len(name)).choice(count, samples) + 1:
        interrupted(int(at))


@pytest.mark.parametrize("interrupted", ["start_async", "wait"])
def test_every_line_of_an_asynchronous_inference(device: str, interrupted: str) -> None:
    """An interrupted `start_async` has started the inference or not; `wait` returns when it is over. An interrupted
    `wait` can be repeated."""
    case = CASES["totals"]
    before, after, _ = case.expected
    request = case.request(device)
    for _ in range(WARM_UP):
        case.lead(request)
        request.infer(case.step)
    interruption, at = Interruption(0), 0
    while interruption.lines >= at:
        at += 1
        case.lead(request)
        interruption = Interruption(at)
        try:
            if interrupted == "wait":
                request.start_async(case.step)
            with interruption:
                request.start_async(case.step) if interrupted == "start_async" else request.wait()
        except KeyboardInterrupt:
            request.wait()
            old = interrupted == "start_async" and same(states(request), before)
            assert old or same(states(request), after), f"line {at}"
        else:
            request.wait()
            assert same(states(request), after), f"line {at}"
    assert at > (30 if interrupted == "start_async" or device != "CPU" else 3)


def test_a_state_that_is_reset_after_an_interrupted_wait(device: str) -> None:
    """At whatever line `wait` was interrupted, the next one does not set the state again."""
    case = CASES["totals"]
    request = case.request(device)
    for _ in range(WARM_UP):
        case.lead(request)
        request.infer(case.step)
    request.reset_state()
    initial = states(request)
    interruption, at = Interruption(0), 0
    while interruption.lines >= at:
        at += 1
        case.lead(request)
        request.start_async(case.step)
        interruption = Interruption(at)
        with suppress(KeyboardInterrupt), interruption:
            request.wait()
        if device == "CPU":
            request.wait()  # the request's thread runs the inference
        request.reset_state()
        request.wait()
        assert same(states(request), initial), f"line {at}"
    assert at > (30 if device != "CPU" else 3)


@pytest.mark.parametrize("called", [False, True], ids=["alone", "with-a-callback"])
@pytest.mark.parametrize("interrupted", ["start_async", "wait_all"])
def test_every_line_of_a_queue(device: str, called: bool, interrupted: str) -> None:
    """All requests are idle in the end, whether the inference has started or not, and each has called back once."""
    case, ended = CASES["totals"], list[int]()
    queue = ov.AsyncInferQueue(ov.Core().compile_model(ov.read_model(*case.net.build()), device), 2)
    for request in queue:
        for _ in range(WARM_UP):
            request.infer(case.step)
    if called:
        queue.set_callback(lambda request, item: ended.append(item))
    interruption, at = Interruption(0), 0
    while interruption.lines >= at:
        at += 1
        interruption = Interruption(at)
        queue.start_async(case.step, -at)
        try:
            if interrupted == "wait_all":
                queue.start_async(case.step, at)
            with interruption:
                queue.start_async(case.step, at) if interrupted == "start_async" else queue.wait_all()
        except KeyboardInterrupt:
            pass
        queue.wait_all()
        assert sorted(queue._idle) == [0, 1], f"line {at}"
        assert not called or sorted(ended) in ([-at], [-at, at]), f"line {at}"
        assert not called or interrupted == "start_async" or len(ended) == 2
        ended.clear()
    assert at > (50 if interrupted == "start_async" else 10)


def test_between_binding_and_running(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that ran while they were bound for the interrupted inference run again for the next one."""
    monkeypatch.setattr(executor, "MIN_OVERLAPPED_STEPS", 1)
    case = CASES["first"]
    request = case.request(emulated)

    def interrupted(*args: Any) -> Any:
        found = bound(*args)
        if found.started and args[0].program.assigns:
            raise KeyboardInterrupt
        return found

    bound = executor.Executor._binding_for
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(executor.Executor, "_binding_for", interrupted)
        request.infer(x(4, 3, seed=5))
    assert case.interrupt(request, 1 << 62)
