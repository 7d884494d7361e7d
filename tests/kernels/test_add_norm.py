"""Sums and their norms in one launch on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.arithmetic.arithmetic import Add
from ovgpu.ops.base.op import evaluate
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.fused._elementwise import Layer
from ovgpu.ops.fused.add_norm import AddNorm
from ovgpu.ops.normalization.normalization import ScaledMVN, ScaledRMS
from ovgpu.types import Type
from tests.emulator import cupy_emu as cp

from .forms import ORDERS, random, same
from .test_fused import BF16, F16, F32, chain

TWO, THREE = chain(2, (Add(), 0, 1)), chain(3, (Add(), 0, 1), (Add(), 3, 2))
CROSSED = chain(3, (Add(), 2, 0), (Add(), 1, 3))  # y + (z + x)


@pytest.fixture(scope="module", autouse=True)
def device(emulated: str) -> str:
    return emulated


def op(added: Any = THREE, cls: type[ScaledMVN] = ScaledMVN, keep: bool = True, rank: int = 1) -> AddNorm:
    norm = cls(rank=rank, eps=1e-3, inside=True)
    return AddNorm(layer=Layer(norm, norm.name, ""), added=added, norm=norm, keep=keep)


def run(op: AddNorm, scale: Any, shift: Any, terms: Sequence[Any], inplace: int | None = None) -> tuple[int, list[Any]]:
    """Check the op; return the number of launched kernels, and the outputs. A term may be (array, view function)."""
    kind = np.asarray(terms[0][0] if isinstance(terms[0], tuple) else terms[0]).dtype
    host = [term[1](term[0]) if isinstance(term, tuple) else term for term in terms]
    there = [term[1](cp.asarray(term[0])) if isinstance(term, tuple) else cp.asarray(term) for term in terms]
    wanted = evaluate(op, NUMPY, [scale, shift, *host], [Type.of(kind)] * (1 + op.keep))
    outputs = [cp.empty(w.shape, w.dtype) for w in wanted]
    if inplace is not None:
        outputs[0] = there[inplace]
    launcher = Launcher(cp.cuda.Stream(non_blocking=True), None)
    parameters = [None if p is None else cp.asarray(p) for p in (scale, shift)]
    assert op.cuda(launcher, [*parameters, *there], outputs, ()) is not NotImplemented
    for call in launcher.calls:
        call()
    found = [out.get() for out in outputs]
    same(found[0], wanted[0], 2e-2 if kind == BF16 else None)
    if op.keep:
        np.testing.assert_array_equal(found[1].view(f"u{kind.itemsize}"), wanted[1].view(f"u{kind.itemsize}"))
    return len(launcher.calls), found


def draws(n: int, *shapes: tuple[int, ...], dtype: Any = np.float32) -> tuple[Any, Any, list[Any]]:
    """Return scale, shift and terms."""
    scale, shift, *terms = (random(shape, dtype)(seed) for seed, shape in enumerate([(n,), (n,), *shapes]))
    return scale, shift, terms


@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    ("cls", "dtype", "n"),
    [
        (ScaledMVN, F32, 7),
        (ScaledMVN, F32, 1032),
        (ScaledRMS, F32, 64),
        (ScaledMVN, F16, 64),
        (ScaledRMS, F16, 7),
        (ScaledMVN, BF16, 64),
        (ScaledMVN, np.dtype("f8"), 64),
    ],
    ids=str,
)
def test_types(cls: type[ScaledMVN], dtype: np.dtype[Any], n: int) -> None:
    """One launch gives the same bits as two."""
    scale, shift, terms = draws(n, (3, 5, n), (n,), (3, 5, n), dtype=dtype)
    launched, found = run(op(cls=cls), scale, shift, terms)
    assert launched == 1
    launched, apart = run(op(cls=cls), scale, shift, [(terms[0].swapaxes(0, 1).copy(), transposed), *terms[1:]])
    assert launched == 2
    for a, b in zip(found, apart):
        np.testing.assert_array_equal(a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}"))


def transposed(x: Any) -> Any:
    return x.swapaxes(0, 1)


def test_roundings_count() -> None:
    """2048 + 1 is 2048 in f16, twice."""
    x, one = np.full((2, 8), 2048, np.float16), np.ones((2, 8), np.float16)
    _, (_, total) = run(op(), None, None, [x, one, one])
    assert (total == 2048).all()
    _, (_, total) = run(op(chain(3, (Add(), 1, 2), (Add(), 3, 0))), None, None, [x, one, one])
    assert (total == 2050).all()


@pytest.mark.parametrize("added", [TWO, THREE, CROSSED], ids=["two", "three", "crossed"])
@pytest.mark.parametrize("keep", [False, True])
def test_sums(added: Any, keep: bool) -> None:
    terms = [(2, 3, 64), (64,), (1, 3, 64)]
    for first in range(3):
        shapes = [*terms[first:], *terms[:first]][: added.chain.inputs]
        if np.broadcast_shapes(*shapes) == (2, 3, 64):
            assert run(op(added, keep=keep), *draws(64, *shapes))[0] == 1


def test_broadcast_terms() -> None:
    """Every term may be broadcast."""
    assert run(op(TWO), *draws(8, (4, 1, 8), (1, 3, 8)))[0] == 2
    assert run(op(TWO), *draws(8, (1, 8), (3, 1)))[0] == 2
    assert run(op(THREE), *draws(8, (3, 8), (1, 1, 8), (2, 1, 1, 8)))[0] == 2
    assert run(op(THREE), *draws(8, (3, 8), (1, 1, 8), (2, 3, 8)))[0] == 1


@pytest.mark.parametrize("order", ORDERS)
def test_rows(order: Any) -> None:
    with cp.thread_order(order):
        for n in (1, 33, 1025):
            assert run(op(), *draws(n, (3, n), (n,), (3, n)))[0] == 1
        assert run(op(), *draws(17001, (2, 17001), (17001,), (2, 17001)))[0] == 3, "the norm of long rows takes two"


def test_several_axes() -> None:
    scale, shift, terms = draws(32, (3, 4, 8), (4, 8), (3, 4, 8))
    assert run(op(rank=2), scale, shift, terms)[0] == 1
    assert run(op(rank=2), scale, shift, [terms[0], terms[1][0], terms[2]])[0] == 2


def test_parameters() -> None:
    scale, shift, terms = draws(12, (5, 12), (12,), (5, 12))
    for given in ((scale, None), (None, shift), (None, None)):
        assert run(op(keep=False), *given, terms)[0] == 1


def test_in_place() -> None:
    for n in (33, 17001):
        for inplace in (0, 2):
            for keep in (False, True):
                run(op(keep=keep), *draws(n, (3, n), (n,), (3, n)), inplace=inplace)


def test_empty() -> None:
    assert run(op(), *draws(8, (0, 8), (8,), (0, 8)))[0] == 0
    assert run(op(), *draws(0, (3, 0), (0,), (3, 0)))[0] == 0
