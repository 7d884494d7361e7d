"""Views against NumPy's views: the same steps with static and with symbolic extents."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovgpu.ops.base.view import View, dense_strides
from ovgpu.ops.movement.slicing import Span, sliced
from ovgpu.symbolic import Atom, Sym, Table, apply

Env = dict[Any, int]


def at(value: Any, env: Env) -> int:
    """Return the value of an Int, given the values of the symbols."""
    if not isinstance(value, Sym):
        return int(value)

    def atom(a: Atom) -> int:
        return env[a.args] if a.op == "dim" else apply(a.op, *(at(arg, env) for arg in a.args))

    return sum(factor * prod(atom(a) for a in monomial) for monomial, factor in value.terms)


def seen(view: View, memory: np.ndarray, env: Env) -> np.ndarray:
    """Return the view as a NumPy array of ``memory``."""
    shape = [at(d, env) for d in view.shape]
    strides, offset = [at(s, env) for s in view.strides], at(view.offset, env)
    if not prod(shape):
        return np.empty(shape, memory.dtype)
    ends = [(d - 1) * s for d, s in zip(shape, strides)]
    assert 0 <= offset + sum(min(e, 0) for e in ends)
    assert offset + sum(max(e, 0) for e in ends) < memory.size
    return np.ndarray(shape, memory.dtype, memory, offset * memory.itemsize, [s * memory.itemsize for s in strides])


def step(draw: Any, view: View, array: np.ndarray, env: Env) -> tuple[View, np.ndarray] | None:
    """Apply one random step to both and return them, or None if the view declines it."""
    rank = len(view.shape)
    kind = draw(st.sampled_from(["permute", "slice", "expand", "reshape", "merge", "ones"]))
    if kind == "permute":
        order = draw(st.permutations(range(rank)))
        return view.permute(order), array.transpose(order)
    if kind == "slice" and rank:
        axis = draw(st.integers(0, rank - 1))
        bound = st.none() | st.integers(-6, 6)
        span = Span(draw(bound), draw(bound), draw(st.sampled_from([1, 1, 2, 3, -1, -1, -2])))
        first, count = sliced(view.shape[axis], span)
        index = (slice(None),) * axis + (slice(span.start, span.stop, span.step),)
        return view.slice(axis, first, count, span.step), array[index]
    if kind == "expand":
        lead = draw(st.integers(0, 1))
        shape = [draw(st.integers(0, 3)) for _ in range(lead)]
        shape += [draw(st.integers(0, 3)) if not isinstance(d, Sym) and d == 1 else d for d in view.shape]
        grown = view.expand(shape, range(lead, lead + rank))
        return None if grown is None else (grown, np.broadcast_to(array, [at(d, env) for d in shape]))
    return reshape(view, array, target(draw, kind, view.shape), env)


def target(draw: Any, kind: str, shape: tuple[Any, ...]) -> list[Any]:
    """Return a shape with as many elements: neighbours merged, ones inserted, or static extents split in two."""
    result: list[Any] = []
    for d in shape:
        if kind == "merge" and result and draw(st.booleans()):
            result[-1] = result[-1] * d
        elif kind == "reshape" and not isinstance(d, Sym) and d > 1:
            factor = draw(st.sampled_from([f for f in range(1, d + 1) if d % f == 0]))
            result += [factor, d // factor]
        else:
            result.append(d)
        if kind == "ones" and draw(st.booleans()):
            result.append(1)
    return result


def reshape(view: View, array: np.ndarray, shape: list[Any], env: Env) -> tuple[View, np.ndarray] | None:
    """Reshape both, or return None if the view declines. A static view declines only where NumPy would copy."""
    reshaped = view.reshape(shape)
    if reshaped is None:
        if array.size and not any(isinstance(d, Sym) for d in (*view.shape, *view.strides, *shape)):
            with pytest.raises(ValueError, match="copy"):
                np.reshape(array, shape, copy=False)
        return None
    return reshaped, array.reshape([at(d, env) for d in shape])


def check_steps(draw: Any, extents: list[int], symbolic: list[bool]) -> None:
    table, env = Table(), dict[Any, int]()
    shape: list[Any] = []
    for i, (extent, is_symbolic) in enumerate(zip(extents, symbolic)):
        env[0, i] = extent
        low = draw(st.integers(0, extent)) if is_symbolic else extent
        shape.append(table.atom("dim", 0, i, lo=low) if is_symbolic else extent)
    memory = np.arange(prod(extents), dtype=np.int64)
    array, view = memory.reshape(extents), View.dense(shape)
    with table:
        for _ in range(draw(st.integers(1, 5))):
            view, array = step(draw, view, array, env) or (view, array)
            np.testing.assert_array_equal(seen(view, memory, env), array)
            if view.is_dense:
                assert seen(view, memory, env).flags.c_contiguous
            if view.is_blas and array.ndim > 1 and array.size:
                strides = [at(s, env) for s in view.strides[-2:]]
                assert 1 in strides
                assert all(s > 0 for s, d in zip(strides, array.shape[-2:]) if d > 1)


extents = st.lists(st.integers(0, 6), min_size=0, max_size=4)


@settings(max_examples=600, deadline=None)
@given(st.data(), extents)
def test_steps_of_known_extents(data: st.DataObject, shape: list[int]) -> None:
    check_steps(data.draw, shape, [False] * len(shape))


@settings(max_examples=600, deadline=None)
@given(st.data(), extents)
def test_steps_of_symbolic_extents(data: st.DataObject, shape: list[int]) -> None:
    check_steps(data.draw, shape, [data.draw(st.booleans()) for _ in shape])


@settings(max_examples=600, deadline=None)
@given(st.integers(0, 6), st.integers(0, 6), *[st.none() | st.integers(-9, 9)] * 2, st.sampled_from([-3, -1, 1, 2]))
def test_spans(extent: int, low: int, start: int | None, stop: int | None, stride: int) -> None:
    table = Table()
    with table:
        dim = table.atom("dim", 0, 0, lo=min(low, extent))
        for d in (extent, dim):
            first, count = (at(v, {(0, 0): extent}) for v in sliced(d, Span(start, stop, stride)))
            wanted = list(range(extent))[start:stop:stride]
            assert [first + i * stride for i in range(count)] == wanted


@settings(max_examples=600, deadline=None)
@given(st.integers(0, 6), *[st.integers(-9, 9)] * 2, st.sampled_from([-3, -1, 1, 2]))
def test_spans_with_symbolic_bounds(extent: int, start: int, stop: int, stride: int) -> None:
    table = Table()
    with table:
        dim, a, b = (table.atom("dim", 0, i, lo=lo) for i, lo in enumerate([0, -(2**63), -(2**63)]))
        env = {(0, 0): extent, (0, 1): start, (0, 2): stop}
        first, count = (at(v, env) for v in sliced(dim, Span(a, b, stride)))
        assert [first + i * stride for i in range(count)] == list(range(extent))[start:stop:stride]


def symbols(*lows: int) -> tuple[Any, ...]:
    table = Table()
    return tuple(table.atom("dim", 0, i, lo=lo) for i, lo in enumerate(lows))


def test_simplified_lengths() -> None:
    s, t, n = symbols(0, 0, 1)
    both = s + t
    assert sliced(s, Span()) == (0, s)
    assert sliced(s, Span(0, 2**31 - 1)) == (0, s)
    assert sliced(s, Span(0, -(2**31), -1))[1] is not s
    assert sliced(s, Span(-1, -(2**31), -1))[1] is s
    assert sliced(n, Span(0, -1)) == (0, n - 1)
    assert sliced(n, Span(-1, None)) == (n - 1, 1)
    assert sliced(n, Span(None, None, -1)) == (n - 1, n)
    assert sliced(both, Span(s, both))[1] is t


def test_views_of_attention_heads() -> None:
    batch, length = symbols(0, 0)
    hidden = View.dense((batch, length, 12 * 64))
    heads = hidden.reshape((batch, length, 12, 64))
    assert heads is not None and heads.is_dense
    heads = heads.permute((0, 2, 1, 3))
    assert heads.strides == (768 * length, 64, 768, 1)
    assert heads.is_blas and not heads.is_dense
    assert heads.permute((0, 1, 3, 2)).is_blas
    assert heads.reshape((batch * 12, length, 64)) is None
    assert heads.permute((0, 2, 1, 3)).reshape((batch * length, 768)) == View.dense((batch * length, 768))


def test_fused_projection_splits_into_views() -> None:
    batch, length = symbols(0, 0)
    fused = View.dense((batch, length, 3 * 48))
    parts = [fused.slice(2, start, 48) for start in (0, 48, 96)]
    assert [p.offset for p in parts] == [0, 48, 96]
    heads = parts[1].reshape((batch, length, 4, 12))
    assert heads == View((batch, length, 4, 12), (144 * length, 144, 12, 1), 48)


def test_reshape_does_not_merge_axes_with_gaps() -> None:
    part = View.dense((4, 6)).slice(1, 0, 3)
    assert part.reshape((12,)) is None
    assert part.reshape((2, 2, 3)) == View((2, 2, 3), (12, 6, 1))
    assert View.dense((4, 6)).slice(0, 1, 2).reshape((12,)) == View((12,), (1,), 6)


def test_expand_declines_extents_that_may_be_1() -> None:
    maybe, never = symbols(0, 2)
    assert View.dense((maybe,)).expand((5,), [0]) is None
    assert View.dense((maybe,)).expand((5, maybe), [1]) == View((5, maybe), (0, 1))
    assert View.dense((never,)).expand((3, 5), [1]) == View((3, 5), (0, 1))
    assert View.dense((1, never)).expand((maybe, never), [0, 1]) == View((maybe, never), (0, 1))


def test_dense_strides() -> None:
    (n,) = symbols(0)
    assert dense_strides((2, 3, 5)) == (15, 5, 1)
    assert dense_strides((2, n, 5)) == (5 * n, 5, 1)
    assert dense_strides(()) == ()
