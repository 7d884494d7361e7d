"""KV caches append in place: rows stay where they are until the capacity is exhausted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.passes import prepare
from tests.harness import Infer, Net, Reset, Scenario, SetState, check
from tests.harness.ir import Port
from tests.harness.layers import (
    add,
    broadcast,
    concat,
    extent,
    gather,
    i64,
    matmul,
    mul,
    numbers,
    reduce,
    reshape,
    scalar,
)

ROW = 128  # elements per step of a head, so that the initial capacity is eight steps


def cache(axis: int = 2, beams: bool = True, twice: bool = False) -> Net:
    """Build a cache of two heads to which the input is appended along ``axis``. Outputs are sums per head, of the new
    and of the old value."""
    net = Net()
    shape = [-1, 2, -1, ROW] if axis == 2 else [-1, 2, ROW, -1]
    x = net.parameter("f32", shape, "x")
    empty = [2, 0, ROW] if axis == 2 else [2, ROW, 0]
    start = broadcast(net, scalar(net, 0), concat(net, [extent(net, x, 0), i64(net, empty)], 0))
    before = net.read_value("cache", "f32", shape, start)
    past = gather(net, before, net.parameter("i32", (-1,), "beams")) if beams else before
    after = concat(net, [past, x, x] if twice else [past, x], axis)
    net.assign("cache", after)
    net.result(reduce(net, "ReduceSum", mul(net, after, after), [axis]))
    net.result(reduce(net, "ReduceSum", before, [axis]))
    return net


class Steps:
    """Steps of a scenario with their expected results: the plugin treats the initial value as empty."""

    def __init__(self, axis: int = 2, beams: bool = True, parts: int = 1) -> None:
        self.axis, self.beams, self.parts = axis, beams, parts
        self.value: Any = None
        self.steps: list[Any] = []

    def feed(self, *lengths: int, beams: Sequence[int] = (0, 1)) -> Steps:
        for n in lengths:
            x = numbers(len(beams), 2, n, ROW, seed=len(self.steps))
            x = x if self.axis == 2 else np.swapaxes(x, 2, 3).copy()
            old = x[..., :0, :] if self.axis == 2 else x[..., :0]
            before = old if self.value is None else self.value
            past = before if self.value is None or not self.beams else before[list(beams)]
            self.value = np.concatenate([past, *[x] * self.parts], self.axis)
            inputs = {"x": x, "beams": np.array(beams, np.int32)} if self.beams else {"x": x}
            outputs = [(self.value**2).sum(self.axis), before.sum(self.axis)]
            self.steps.append(Infer(outputs, {"cache": self.value}, **inputs))
        return self

    def reset(self, *names: str) -> Steps:
        self.value = None
        self.steps.append(Reset(*names))
        return self

    def set(self, value: Any) -> Steps:
        self.value = value
        self.steps.append(SetState("cache", value))
        return self


def case(id: str, net: Net, cached: Steps) -> Scenario:
    return Scenario(id, net, cached.steps, oracle="value")


SCENARIOS = [
    case("in-order", cache(), Steps().feed(3, 1, 1, 1, 1, 1, 1, 1, 1)),
    case("along-the-last-axis", cache(3), Steps(3).feed(3, 1, 1, 1, 1, 1, 1)),
    case("without-beams", cache(beams=False), Steps(beams=False).feed(3, 1, 1, 1, 1, 1, 1, 1)),
    case("two-parts", cache(twice=True), Steps(parts=2).feed(1, 1, 1, 1, 1)),
    case("by-nothing", cache(), Steps().feed(2, 0, 1, 0)),
    case(
        "reordered-now-and-then",
        cache(),
        Steps().feed(3, 1).feed(1, 1, beams=(1, 0)).feed(1, 1).feed(1, beams=(1, 1)).feed(1, 1),
    ),
    case("reordered-when-there-is-no-room", cache(), Steps().feed(7).feed(2, beams=(1, 0)).feed(1)),
    case(
        "other-numbers-of-beams",
        cache(),
        Steps().feed(3, 1).feed(1, beams=(1,)).feed(1, 1, beams=(0,)).feed(1, beams=(0, 0, 0)).feed(1, beams=(0, 1, 2)),
    ),
    case(
        "reset-and-set",
        cache(),
        Steps()
        .feed(3, 1, 1)
        .reset()
        .feed(2, 1)
        .set(numbers(2, 2, 20, ROW))
        .feed(1, 1)
        .set(numbers(2, 2, 1, ROW))
        .feed(1)
        .reset("cache")
        .feed(30, 1),
    ),
]
test_scenarios = check(SCENARIOS)


def test_an_initial_value_is_computed_from_a_cache(device: str) -> None:
    """It is computed from the rows that the cache holds, not from its capacity."""
    net = Net()
    x = net.parameter("f32", (1, 2, -1, ROW), "x")
    old = net.read_value("cache", "f32", (1, 2, -1, ROW), net.const(np.zeros((1, 2, 0, ROW), np.float32)))
    flat = net.read_value("flat", "f32", (-1,), reshape(net, old, [-1]))
    net.assign("cache", concat(net, [old, x], 2))
    net.assign("flat", flat)
    net.result(add(net, flat, flat))
    request = request_of(net, device)
    rows = numbers(1, 2, 3, ROW)
    request.infer([rows])
    next(state for state in request.query_state() if state.name == "flat").reset()
    (found,) = request.infer([rows]).to_tuple()
    np.testing.assert_array_equal(found, 2 * rows.ravel())


def test_an_error_of_beams_names_the_layer_of_the_file(device: str) -> None:
    net = Net()
    x, beams = net.parameter("f32", (-1, 2, -1, ROW), "x"), net.parameter("dynamic", (-1,), "beams")
    start = broadcast(net, scalar(net, 0), concat(net, [extent(net, x, 0), i64(net, [2, 0, ROW])], 0))
    past = gather(net, net.read_value("cache", "f32", (-1, 2, -1, ROW), start), beams)
    after = concat(net, [past, x], 2)
    net.assign("cache", after)
    net.result(after)
    with pytest.raises(RuntimeError, match=r"^\[Gather\] indices must be integers, not f32 \(layer 'Gather"):
        request_of(net, device).infer([numbers(2, 2, 1, ROW), np.zeros(2, np.float32)])


def request_of(net: Net, device: str) -> Any:
    return ov.Core().compile_model(ov.read_model(*net.build()), device).create_infer_request()


def address(array: Any) -> int:
    found: int = array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr
    return found


def test_rows_stay_in_place(device: str) -> None:
    """Rows stay until the capacity is exhausted; then the cache moves to twice the capacity."""
    request = request_of(cache(), device)
    addresses = []
    for i in range(70):
        request.infer([numbers(2, 2, 1, ROW, seed=i), np.arange(2, dtype=np.int32)])
        addresses.append(address(request._session.variables.value("cache").array))
    assert [i for i in range(1, 70) if addresses[i] != addresses[i - 1]] == [8, 16, 32, 64]
    assert [b.memory is None for b in request._session.variables.all["cache"].buffers].count(True) == 1


def test_only_new_rows_move(device: str) -> None:
    request = request_of(cache(), device)
    for _ in range(3):
        request.infer([numbers(2, 2, 1, ROW), np.arange(2, dtype=np.int32)])
    moved = [s.bytes_written for s in request.plan().steps if s.outputs and s.outputs[0].location == "variable cache"]
    assert sum(moved) == 2 * 2 * ROW * 4
    request.infer([numbers(2, 2, 1, ROW), np.array([1, 0], np.int32)])
    (reorder,) = (s for s in request.plan().steps if s.op == "Reorder")
    assert reorder.bytes_written == 3 * 2 * 2 * ROW * 4


def test_a_state_has_only_its_rows(device: str) -> None:
    """A state has the rows that it holds, not its capacity."""
    request = request_of(cache(beams=False), device)
    parts = [numbers(1, 2, n, ROW, seed=n) for n in (3, 1)]
    for part in parts:
        request.infer([part])
    (state,) = request.query_state()
    assert tuple(state.state.shape) == (1, 2, 4, ROW)
    np.testing.assert_array_equal(state.state.data, np.concatenate(parts, 2))


@ov.register_op("Failing", "growth")
class Failing(ov.Op):
    """Op that returns its input, and raises if it holds 13."""

    def infer_specs(self, x: Any) -> Any:
        return (x,)

    def evaluate(self, xp: Any, x: Any) -> Any:
        if (xp.asarray(x) == 13).any():
            raise ValueError("13")
        return (x,)


def test_a_failed_inference_leaves_the_cache_unchanged(device: str) -> None:
    """Rows that the failed inference has written are not part of the cache."""
    net = Net()
    x = net.parameter("f32", (1, 2, -1, ROW), "x")
    start = net.const(np.zeros((1, 2, 0, ROW), np.float32))
    after = concat(net, [net.read_value("cache", "f32", (1, 2, -1, ROW), start), x], 2)
    net.assign("cache", after)
    net.result(net.layer("Failing", "growth", [add(net, after, scalar(net, 0))]))
    request = request_of(net, device)
    request.infer([numbers(1, 2, 2, ROW, seed=1, high=9)])
    expected = request.query_state()[0].state.data.copy()
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"^\[Failing\] .*13"):
            request.infer([np.full((1, 2, 1, ROW), 13, np.float32)])
        np.testing.assert_array_equal(request.query_state()[0].state.data, expected)
    (found,) = request.infer([np.ones((1, 2, 1, ROW), np.float32)]).to_tuple()
    np.testing.assert_array_equal(found[:, :, :2], expected)
    np.testing.assert_array_equal(found[:, :, 2:], 1)


def layers(net: Net) -> list[str]:
    model = prepare(ov.Core().read_model(*net.build()))
    return [n.op.name for n in model.ops if n.op.version == "ovgpu"]


def crossed() -> Net:
    """Build two caches, each of which appends to the other's rows."""
    net = Net()
    x = net.parameter("f32", (1, -1, 3), "x")
    a, b = (net.read_value(name, "f32", (1, -1, 3), net.const(np.zeros((1, 0, 3), np.float32))) for name in "ab")
    net.assign("a", concat(net, [b, x], 1))
    net.assign("b", concat(net, [a, x], 1))
    net.result(add(net, x, x))
    return net


def around(put: Any) -> Net:
    net = Net()
    x = net.parameter("f32", (1, -1, 3), "x")
    before = net.read_value("v", "f32", (1, -1, 3), net.const(np.zeros((1, 0, 3), np.float32)))
    net.assign("v", put(net, before, x))
    net.result(matmul(net, before, x, tb=True))
    return net


def before(net: Net, old: Port, new: Port) -> Port:
    return concat(net, [new, old], 1)


def picked(net: Net, old: Port, new: Port) -> Port:
    return concat(net, [gather(net, old, net.parameter("i32", (-1,), "i"), 1), new], 1)


def test_variables_that_become_caches() -> None:
    assert layers(cache()) == ["BeamsAreIdentity", "Reorder", "Concat"]
    assert layers(cache(beams=False)) == ["Concat"]
    assert layers(crossed()) == layers(around(before)) == layers(around(picked)) == []


def run(net: Net, steps: Sequence[dict[str, Any]], device: str) -> tuple[list[list[Any]], Any]:
    """Return the outputs of each inference with one request, and the request."""
    core = ov.Core()
    request = core.compile_model(core.read_model(*net.build()), device).create_infer_request()
    return [[np.array(x) for x in request.infer(step).values()] for step in steps], request


def test_a_rank_known_at_run_time(device: str) -> None:
    """A variable is read in one program, and assigned in one that is built when a rank is known."""
    net = Net()
    x, target = net.parameter("f32", (-1, 2, -1, ROW), "x"), net.parameter("i64", (-1,), "target")
    start = broadcast(net, scalar(net, 0), concat(net, [extent(net, x, 0), i64(net, [2, 0, ROW])], 0))
    before = net.read_value("cache", "f32", (-1, 2, -1, ROW), start)
    after = concat(net, [before, net.layer("Reshape", "opset1", [x, target], {"special_zero": False})], 2)
    net.assign("cache", after)
    net.result(reduce(net, "ReduceSum", after, [2]))
    steps = [{"x": numbers(1, 2, 3, ROW, seed=n), "target": np.array([1, 2, 3, ROW])} for n in range(4)]
    found, request = run(net, steps, device)
    whole = np.concatenate([step["x"] for step in steps], 2)
    np.testing.assert_array_equal(request.query_state()[0].state.data, whole)
    for n, (total,) in enumerate(found):
        np.testing.assert_allclose(total, whole[:, :, : 3 * n + 3].sum(2), 1e-5, 1e-5)
