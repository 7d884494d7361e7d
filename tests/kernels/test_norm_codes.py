"""Norms and the codes of their results in one launch on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.arithmetic.arithmetic import Multiply
from ovgpu.ops.base.op import evaluate
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.convert import Convert
from ovgpu.ops.fused._elementwise import Chain, Fused, Layer, Part
from ovgpu.ops.fused.add_norm import AddNorm
from ovgpu.ops.fused.norm_codes import NormWithCodes
from ovgpu.ops.normalization.normalization import ScaledMVN, ScaledRMS
from ovgpu.ops.quantization import Quantize
from ovgpu.types import Type
from tests.emulator import cupy_emu as cp

from .forms import ORDERS, random, same
from .test_add_norm import THREE, TWO
from .test_fused import BF16, F16, F32

RECIPROCAL = np.float32(41.3)


@pytest.fixture(scope="module", autouse=True)
def device(emulated: str) -> str:
    return emulated


def codes(kind: Any, factor: bool = False, zero: int | None = None, low: int = -128, high: int = 127) -> Fused:
    """Return the layers Convert, Multiply and Quantize, as far as they are needed for a norm of this type."""
    literals = [(Type.f32, np.float32(n).tobytes()) for n in (RECIPROCAL, *([] if zero is None else [zero]))]
    inputs = 1 + factor
    parts, value = list[Part](), 0
    wanted: list[tuple[Any, tuple[int, ...]]] = [
        (Quantize(low=low, high=high, dtype=Type.i8), tuple(range(inputs, inputs + len(literals))))
    ]
    if factor:
        wanted.insert(0, (Multiply(), (1,)))
    if kind != F32:
        wanted.insert(0, (Convert(destination_type=Type.f32), ()))
    for number, (op, others) in enumerate(wanted, inputs + len(literals)):
        parts.append(Part(op, (value, *others)))
        value = number
    layers = tuple(Layer(part.op, part.op.name, "") for part in parts)
    return Fused(chain=Chain(inputs, tuple(literals), tuple(parts)), ranks=(0,) * len(literals), layers=layers)


def norm(added: Fused | None = None, keep: bool = False, cls: type[ScaledMVN] = ScaledMVN, rank: int = 1) -> Any:
    """Return a norm, of a sum if ``added``, which is an output if ``keep``."""
    op = cls(rank=rank, eps=1e-3, inside=True)
    return op if added is None else AddNorm(layer=Layer(op, op.name, ""), added=added, norm=op, keep=keep)


def run(first: Any, after: Fused, inputs: list[Any], keep: bool = True, views: Any = None) -> int:
    """Check the op on the inputs of its norm and a factor; return the number of launched kernels."""
    kind = inputs[2 if isinstance(first, AddNorm) else 0].dtype
    op = NormWithCodes(norm=first, codes=after, layer=Layer(first, first.name, ""), keep=keep)
    view = views or (lambda x: x)
    types = [Type.of(kind)] * (keep + (isinstance(first, AddNorm) and first.keep))
    wanted = evaluate(op, NUMPY, [None if x is None else view(x) for x in inputs], [*types, Type.i8])
    results = [cp.empty(w.shape, w.dtype) for w in wanted]
    launcher = Launcher(cp.cuda.Stream(non_blocking=True), None)
    given = [None if x is None else view(cp.asarray(x)) for x in inputs]
    workspace = [] if keep else [cp.empty(wanted[-1].shape, kind)]
    assert op.cuda(launcher, given, results, workspace) is not NotImplemented
    for call in launcher.calls:
        call()
    found = [out.get() for out in results]
    if keep:
        same(found[0], wanted[0], 2e-2 if kind == BF16 else None)
        factors = inputs[-1:] if after.chain.inputs > 1 else []
        (of_found,) = after.evaluate(NUMPY, found[0], *factors)
        np.testing.assert_array_equal(found[-1], of_found)
    if isinstance(first, AddNorm) and first.keep:
        np.testing.assert_array_equal(found[-2].view(np.uint8), wanted[-2].view(np.uint8))
    difference = np.abs(found[-1].astype(int) - wanted[-1])
    assert found[-1].dtype == np.int8 and difference.max(initial=0) <= (4 if kind == BF16 else 1)
    return len(launcher.calls)


def draws(kind: Any, n: int, *shapes: tuple[int, ...]) -> list[Any]:
    """Return scale and shift [n], and terms of these shapes."""
    return [random(shape, kind)(seed) for seed, shape in enumerate([(n,), (n,), *shapes])]


@pytest.mark.parametrize("factor", [False, True])
@pytest.mark.parametrize(
    ("cls", "kind", "n"),
    [
        (ScaledMVN, F32, 7),
        (ScaledMVN, F32, 1032),
        (ScaledRMS, F32, 64),
        (ScaledMVN, F16, 72),
        (ScaledRMS, F16, 9),
        (ScaledMVN, BF16, 64),
    ],
    ids=str,
)
def test_types(cls: type[ScaledMVN], kind: Any, n: int, factor: bool) -> None:
    scale, shift, x = draws(kind, n, (3, 5, n))
    factors = [random((1, n), F32)(9)] if factor else []
    for keep in (True, False):
        assert run(norm(cls=cls), codes(kind, factor), [x, scale, shift, *factors], keep) == 1


@pytest.mark.parametrize(("zero", "low", "high"), [(None, -128, 127), (0, -8, 7), (-128, -128, 127), (37, -20, 100)])
def test_zero_points(zero: int | None, low: int, high: int) -> None:
    """Codes are clipped, and shifted by even or odd numbers."""
    scale, shift, x = draws(F32, 64, (6, 64))
    assert run(norm(), codes(F32, zero=zero, low=low, high=high), [x, scale, shift]) == 1


def test_ties_become_even() -> None:
    """Norms are the shift, in the middle between two codes, or next to it."""
    shift = (np.arange(-40, 40) / 2 / RECIPROCAL).astype(np.float32)
    x, scale = np.ones((2, 80), np.float32), np.zeros(80, np.float32)
    for zero in (None, 5):
        run(norm(), codes(F32, zero=zero), [x, scale, shift])


@pytest.mark.parametrize("keep_sum", [False, True])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("added", [TWO, THREE], ids=["two", "three"])
def test_sums(added: Any, keep: bool, keep_sum: bool) -> None:
    for kind in (F32, F16):
        scale, shift, *terms = draws(kind, 64, *[(2, 3, 64), (64,), (1, 3, 64)][: added.chain.inputs])
        assert run(norm(added, keep_sum), codes(kind), [scale, shift, *terms], keep) == 1


@pytest.mark.parametrize("order", ORDERS)
def test_rows(order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warp has a row where rows are many; long rows take two kernels more."""
    monkeypatch.setattr(Launcher, "multiprocessors", 2)
    with cp.thread_order(order):
        for rows, n in ((3, 1), (2, 33), (2, 1024), (20, 96), (20, 384)):
            assert run(norm(), codes(F32, True), [*reordered(draws(F32, n, (rows, n))), random((n,), F32)(7)]) == 1
        for keep in (True, False):
            assert run(norm(), codes(F32), reordered(draws(F32, 34001, (1, 34001))), keep) == 3


def reordered(drawn: list[Any]) -> list[Any]:
    scale, shift, x = drawn
    return [x, scale, shift]


def test_other_layouts() -> None:
    """Norm and codes are two kernels if rows do not lie one behind the other."""
    scale, shift, x = draws(F32, 8, (4, 3, 8))
    launched = run(norm(), codes(F32), [x, scale, shift], views=lambda x: x.swapaxes(0, 1) if x.ndim == 3 else x)
    assert launched == 2
    scale, shift, x, y = draws(F32, 8, (4, 1, 8), (1, 3, 8))
    assert run(norm(TWO, True), codes(F32), [scale, shift, x, y], False) == 3


def test_several_axes_and_no_parameters() -> None:
    _, _, x = draws(F16, 32, (3, 4, 8))
    assert run(norm(rank=2), codes(F16, True), [x, None, None, random((4, 8), F32)(3)]) == 1


def test_empty() -> None:
    assert run(norm(), codes(F32), reordered(draws(F32, 8, (0, 8)))) == 0
