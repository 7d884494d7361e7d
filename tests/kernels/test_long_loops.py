"""Loops of any length on the emulated device: numbers of launches and captures, and of graph nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cuda import CudaBackend
from ovgpu.lowering.program import Copy
from ovgpu.runtime.loops import bind, repeated
from ovgpu.types import Type
from tests.control_flow import test_slices, test_tensor_iterator
from tests.control_flow.loop_nets import ONES, X, looped
from tests.emulator import cupy_emu as cp
from tests.harness.ir import Net, Port, feed, take
from tests.harness.layers import add, convert, gather, i64, mul, numbers, reshape, scalar, slice_
from tests.harness.private import read_private

F = np.float32


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unroll loops up to 20 calls only."""
    monkeypatch.setattr(bind, "MAX_UNROLLED_CALLS", 20)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of streams that are captured."""
    found: list[Any] = []
    begin = cp.cuda.Stream.begin_capture
    monkeypatch.setattr(
        cp.cuda.Stream, "begin_capture", lambda self, mode=None: (found.append(self), begin(self, mode))[1]
    )
    return found


@dataclass
class Run:
    """A request on the emulated device, checked against one on the CPU."""

    net: Net
    device: str
    host: Any = field(init=False)
    request: Any = field(init=False)

    def __post_init__(self) -> None:
        core = ov.Core()
        self.host, self.request = (
            core.compile_model(read_private(self.net), name).create_infer_request() for name in ("CPU", self.device)
        )

    def __call__(self, *inputs: Any) -> Any:
        """Check the results of one inference, and return its device counters."""
        cp.counters.reset()
        found = self.request.infer(list(inputs)).to_tuple()
        counters = replace(cp.counters)
        for a, b in zip(found, self.host.infer(list(inputs)).to_tuple(), strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
        return counters

    @property
    def nodes(self) -> int:
        return int(self.request._session.backend.graphs.nodes)


def halved(b: Net, i: Port, p: Sequence[Port]) -> tuple[None, Sequence[Port]]:
    """Build a loop body of (h + x) / 2."""
    return None, [mul(b, add(b, p[1], p[0]), scalar(b, 0.5))]


def counted(b: Net, i: Port, p: Sequence[Port]) -> tuple[None, Sequence[Port]]:
    """Build a loop body of h / 2 + i."""
    return None, [add(b, mul(b, p[1], scalar(b, 0.5)), convert(b, i, "f32"))]


def accumulated(b: Net, p: Sequence[Port]) -> Sequence[Port]:
    """Build a loop body of h / 2 + row."""
    return [add(b, mul(b, p[1], scalar(b, 0.5)), p[0])]


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("trips", "kind"), [(0, "i64"), (1, "i64"), (2, "i64"), (3, "i64"), (3_000, "i32"), (10_000, "i64")]
)
def test_trip_counts(trips: int, kind: str, emulated: str) -> None:
    """A loop with a counter, a last value and all values has few launches, and graphs of bounded size."""
    run = Run(looped(counted, [ONES], [(0, 0), (0, None)], trips=trips, counter=(kind, (1,))), emulated)
    launched = [run(X[n]) for n in range(3)][-1]
    plan = run.request.plan()
    assert (launched.launches, launched.allocs, launched.d2d_bytes) == (0, 0, 0)
    assert launched.graph_launches == plan.launches <= 12 + trips * 4 // 120
    assert launched.graph_kernels == plan.kernels
    assert run.nodes <= 300 and plan.count("eager") == 0 and plan.copies() == []
    if trips > 3:  # the body, and one kernel between iterations; two begin the loop, and one ends it
        assert (plan.kernels - 3) % trips == 0 and plan.kernels <= 4 * trips + 3


def test_a_loop_without_slices_or_a_counter(emulated: str, short: None) -> None:
    run = Run(looped(halved, [ONES], [(0, None)], trips=50), emulated)
    for n in range(3):
        run(X[n])
    assert run.request.plan().kernels == 50 + 1  # the last value is copied to its output


def test_changing_trip_counts_capture_nothing_new(emulated: str, short: None, captures: list[Any]) -> None:
    """Once the cycle is captured, a new trip count costs a few calls and no capture."""
    run = Run(looped(counted, [ONES], [(0, 0), (0, None)], trips="n"), emulated)
    run(X[0], np.array(200))
    run(X[1], np.array(200))
    captures.clear()
    for trips in (300, 77, 1000, 31, 201, 40, 999, 64, 50):
        counters = run(X[trips % 4], np.array(trips))
        assert counters.graph_launches <= 12 + trips * 4 // 120
    assert len(captures) <= 2 and run.nodes <= 250  # cycles for the few remaining iterations, of which 200 has one


@pytest.mark.parametrize("repeats", [True, False])
def test_cached_cycles_hold_their_inputs(
    repeats: bool, emulated: str, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache finds cycles by the ids of input arrays. It holds the arrays, also of loops that cannot be repeated, so
    that no other array gets one of these ids."""
    monkeypatch.setattr(repeated, "MAX_CYCLE_ITERATIONS", repeated.MAX_CYCLE_ITERATIONS if repeats else -1)
    run = Run(looped(halved, [ONES], [(0, None)], trips=50), emulated)
    run(X[0])
    (cache,) = run.request._session.last.loops.values()
    assert cache.cycles
    for key, cycle in cache.cycles.items():
        assert (cycle.iterations is not None) == repeats
        assert [id(array) for array in cycle.inputs] == [part for part in key if isinstance(part, int)]


@pytest.mark.emulator
def test_the_first_few_trip_counts_are_unrolled(emulated: str, captures: list[Any]) -> None:
    """Later trip counts use the cycle, so that captures stop."""
    run = Run(looped(counted, [ONES], [(0, 0)], trips="n"), emulated)
    for trips in range(3, 3 + repeated.CACHED_CYCLES):
        for n in range(2):
            counters = run(X[n], np.array(trips))
        assert (counters.graph_launches, counters.launches) == (1, 0)
    first = len(captures)
    assert first == repeated.CACHED_CYCLES
    for trips in range(20, 40):
        run(X[0], np.array(trips))
    assert len(captures) <= first + 4  # cycles, of different lengths


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("attrs", [{}, test_slices.BACKWARDS], ids=["forwards", "backwards"])
@pytest.mark.parametrize("kind", ["f32", "i8"])
def test_slices_and_concatenations(axis: int, attrs: dict[str, int], kind: str, emulated: str, short: None) -> None:
    """Slices run along any axis, into any other, from either end, also in parts of 3 bytes and rows of one element."""
    net, body = Net(), Net()
    shape = [2, 3, 5]
    shape[axis] = 30
    part = [1 if a == axis else n for a, n in enumerate(shape)]
    x = net.parameter(kind, shape, "x")
    xi, h = body.parameter(kind, part), body.parameter(kind, part)
    new = body.result(add(body, xi, h))
    start = net.const(np.ones(part, np.int8), kind)
    for port in net.tensor_iterator(
        body,
        [feed(x, xi, axis=axis, **attrs), feed(start, h)],
        [take(new, axis=axis, **attrs), take(new, axis=(axis + 1) % 3), take(new)],
        [(new, h)],
    ):
        net.result(port)
    run = Run(net, emulated)
    for n in range(3):
        counters = run((numbers(*shape, seed=n) * 3).astype(F if kind == "f32" else np.int8))
    assert counters.launches == 0 and counters.graph_launches < 30 and run.request.plan().kernels == 2 * 30 + 3


@pytest.mark.parametrize("values", [2, 3, 4])
def test_rotations(values: int, emulated: str, short: None) -> None:
    """Loop-carried values rotate, and one of them changes."""
    starts = [numbers(2, 3, seed=n) for n in range(values)]
    net = looped(
        lambda b, i, p: (None, [mul(b, add(b, p[values], p[0]), scalar(b, 0.5)), *p[1:values]]),
        starts,
        [(n, None) for n in range(values)],
        trips="n",
    )
    run = Run(net, emulated)
    for trips in (50, 50, 51, 52, 53, 50):
        run(X[trips % 4], np.array(trips))
    assert run.nodes <= 250


def nested(outer: int, inner: int) -> Net:
    """Return a loop over planes with a loop over their rows, which carry one state."""
    net, plane_body, row_body = Net(), Net(), Net()
    x = net.parameter("f32", (outer, inner, 3), "x")
    row, total = row_body.parameter("f32", (1, 1, 3)), row_body.parameter("f32", (1, 1, 3))
    new = row_body.result(add(row_body, row, mul(row_body, total, scalar(row_body, 0.5))))
    plane, carried = plane_body.parameter("f32", (1, inner, 3)), plane_body.parameter("f32", (1, 1, 3))
    links = [feed(plane, row, axis=1), feed(carried, total)]
    last, every = map(
        plane_body.result, plane_body.tensor_iterator(row_body, links, [take(new), take(new, axis=1)], [(new, total)])
    )
    links = [feed(x, plane, axis=0), feed(net.const(np.ones((1, 1, 3), F)), carried)]
    for port in net.tensor_iterator(plane_body, links, [take(last), take(every, axis=0)], [(last, carried)]):
        net.result(port)
    return net


@pytest.mark.drawn(3)
@pytest.mark.parametrize(("outer", "inner", "nodes"), [(100, 100, 1500), (3, 2100, 600), (1100, 3, 400)])
def test_nested_loops(outer: int, inner: int, nodes: int, emulated: str) -> None:
    """A short inner loop is unrolled within the outer one, and a long one repeats its cycle."""
    run = Run(nested(outer, inner), emulated)
    for n in range(3):
        launched = run(numbers(outer, inner, 3, seed=n))
    plan = run.request.plan()
    assert launched.launches == 0 and launched.graph_launches == plan.launches <= outer * inner // 20
    assert run.nodes <= nodes and launched.graph_kernels == plan.kernels >= outer * inner


def test_rows_by_the_counter(emulated: str, short: None) -> None:
    """Gather reads the iteration number from device memory."""
    net = looped(
        lambda b, i, p: (None, [add(b, mul(b, p[1], scalar(b, 0.5)), gather(b, p[0], i, 0))]),
        [ONES[0]],
        [(0, None)],
        trips=60,
        x_shape=(60, 3),
    )
    run = Run(net, emulated)
    for n in range(3):
        counters = run(numbers(60, 3, seed=n))
    assert counters.launches == 0 and counters.graph_launches < 20 and run.nodes < 300


def test_slices_by_the_counter(emulated: str, short: None) -> None:
    """Each iteration is bound to another slice; many iterations run one by one."""

    def body(b: Net, i: Port, p: Sequence[Port]) -> tuple[None, Sequence[Port]]:
        start = reshape(b, i, [1])
        return None, [add(b, p[1], slice_(b, p[0], start, add(b, start, i64(b, [1]))))]

    for trips in (9, 60):
        run = Run(looped(body, [ONES[:1]], [(0, None)], trips=trips, x_shape=(60, 3)), emulated)
        for n in range(3):
            counters = run(numbers(60, 3, seed=n))
        assert run.request.plan().steps[1].kind == "control"
        assert trips > 20 or (counters.graph_launches, counters.launches) == (1, 0)


def test_long_axes_of_dynamic_extent(emulated: str, captures: list[Any]) -> None:
    """Loops over the rows of an input use the graphs of the first length for all lengths."""
    run = Run(test_tensor_iterator.rows(accumulated, [ONES[:1]], [(0, False), (0, True)]), emulated)
    for rows in (2500, 2500, 2400, 3000, 2201):
        if rows == 2400:
            captures.clear()
        run(numbers(rows, 3, seed=rows))
    assert len(captures) <= 2 and run.nodes < 300


def test_memory_does_not_grow_with_the_trip_count(emulated: str) -> None:
    run = Run(looped(halved, [ONES], [(0, None)], trips="n"), emulated)
    pool = cp.get_default_memory_pool()
    for n in range(2):
        run(X[n], np.array(3000))
    before = pool.used_bytes(), run.nodes
    for trips in (10_000, 5_000, 9_999):
        run(X[0], np.array(trips))
    assert pool.used_bytes() <= before[0] + 4096 and run.nodes <= before[1]


def test_cycles_depend_on_the_arrays_that_they_read(emulated: str, short: None) -> None:
    """A state that is invariant in the loop has two buffers and so two cycles, without later captures."""
    net, body = Net(), Net()
    x = net.parameter("f32", (40, 3), "x")
    state = net.read_value("s", "f32", (1, 3))
    row, h, s = (body.parameter("f32", (1, 3)) for _ in range(3))
    new = body.result(add(body, mul(body, h, scalar(body, 0.5)), mul(body, row, s)))
    last = net.tensor_iterator(body, [feed(x, row, axis=0), feed(state, h), feed(state, s)], [take(new)], [(new, h)])
    net.assign("s", add(net, last, scalar(net, 0.25)))
    net.result(last)
    run = Run(net, emulated)
    found = [run(numbers(40, 3, seed=n)) for n in range(8)]
    assert all(c.launches == c.allocs == 0 for c in found[4:]) and run.nodes < 400
    assert len({c.graph_launches for c in found[4:]}) == 1


def test_an_error_in_a_cycle_names_the_layer(emulated: str, short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(looped(counted, [ONES], [(0, None)], trips=40), emulated)
    bound = CudaBackend.bind

    def bind(self: Any, op: Any, inputs: Any, *rest: Any) -> Any:
        def fail() -> None:
            raise ValueError("no such thing")

        return bound(self, op, inputs, *rest) if isinstance(op, Copy) else [fail]

    with monkeypatch.context() as patch:
        patch.setattr(CudaBackend, "bind", bind)
        with pytest.raises(ov.Error, match=r"^\[\w+\] .*no such thing .layer '(Add|Convert)_"):
            run.request.infer([X[0]])
    fresh = Run(run.net, emulated)
    for n in range(3):
        fresh(X[n])


def test_irregular_loops_run_iteration_by_iteration(emulated: str, short: None) -> None:
    """Loops with an 8-bit counter, or more slices than one launch moves, have no cycle."""
    run = Run(looped(counted, [ONES], [(0, None)], trips=40, counter=("u8", ())), emulated)
    for n in range(3):
        run(X[n])
    net, body = Net(), Net()
    x = net.parameter("f32", (30, 3), "x")
    inner = [body.parameter("f32", (1, 3)) for _ in range(20)]
    total = inner[0]
    for port in inner[1:]:
        total = add(body, total, port)
    net.result(net.tensor_iterator(body, [feed(x, p, axis=0) for p in inner], [take(body.result(total), axis=0)]))
    run = Run(net, emulated)
    for n in range(3):
        run(numbers(30, 3, seed=n))


# ---- the kernel


@pytest.fixture(params=["ascending", "descending", 7])
def order(request: pytest.FixtureRequest) -> Iterator[None]:
    with cp.thread_order(request.param):
        yield


@pytest.mark.parametrize("shape", [(6, 4), (3, 6, 5), (2, 6, 4), (6, 700, 3), (6,)])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.float16, np.float64])
def test_slices_and_writes(shape: tuple[int, ...], dtype: Any, order: None, backend: CudaBackend) -> None:
    """Parts of 2 are sliced from the end of a tensor, and written to another one from its beginning."""
    axis = shape.index(6)
    x = (np.arange(np.prod(shape)) % 120).astype(dtype).reshape(shape)
    given, result = cp.asarray(x), cp.asarray(np.zeros_like(x))
    slices = [(slice(None),) * axis + (slice(b, b + 2),) for b in range(0, 6, 2)]
    parts = [cp.empty(given[slices[0]].shape, dtype) for _ in range(2)]
    slicing = backend.slicing(1, 1)
    assert slicing is not None
    i64, i32 = slicing.number(Type.i64, ()), slicing.number(Type.i32, (1,))
    begin = slicing.begin(3, [given[slices[2]], result[slices[0]]], [given[slices[1]], result[slices[1]]], parts)
    assert begin is not None and slicing.number(Type.u8, ()) is None
    for call in begin:
        call()
    for i in range(3):
        assert (int(i64.get()), int(i32.get()[0])) == (i, i)
        np.testing.assert_array_equal(parts[0].get(), x[slices[2 - i]])
        parts[1].set(parts[0].get())
        for call in slicing.advance(parts):
            call()
    expected = np.concatenate([x[s] for s in reversed(slices)], axis)
    np.testing.assert_array_equal(result.get(), expected)
    assert int(i64.get()) == 3


def test_irregular_parts_are_declined(backend: CudaBackend) -> None:
    x = cp.zeros((6, 4, 5, 6), np.float32)
    slicing = backend.slicing(1, 0)
    assert slicing is not None and backend.slicing(9, 8) is None
    part = cp.empty((2, 2, 5, 3), np.float32)
    assert slicing.begin(2, [x[:2, ::2, :, ::2]], [x[2:4, ::2, :, ::2]], [part]) is None
