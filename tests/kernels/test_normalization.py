"""MVN and NormalizeL2 on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.base.launch import registers
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.normalization.normalization import MVN, MVN6, NormalizeL2, ScaledMVN, ScaledRMS, normalize
from tests.emulator import cupy_emu as cp
from tests.emulator import nvrtc

from .forms import FLOATS, ORDERS, check, random, same
from .gate import ToCompile

INSIDE = MVN6(eps=1e-3, eps_mode="inside_sqrt", normalize_variance=True)
OUTSIDE = MVN6(eps=1e-3, eps_mode="outside_sqrt", normalize_variance=True)
CENTRED = MVN6(eps=1e-3, eps_mode="inside_sqrt", normalize_variance=False)
ADDED = NormalizeL2(eps=1e-3, eps_mode="add")
BOUNDED = NormalizeL2(eps=40.0, eps_mode="max")
OPS = {"inside": INSIDE, "outside": OUTSIDE, "centred": CENTRED, "added": ADDED, "bounded": BOUNDED}


@pytest.fixture(scope="module", autouse=True)
def device(emulated: str) -> str:
    return emulated


@pytest.mark.drawn(4)
@pytest.mark.parametrize("axes", [[2], [1, 2], [0], [1], [0, 2], [0, 1, 2], [-1]], ids=str)
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_axes(op: Any, axes: list[int]) -> None:
    assert check(op, random((3, 5, 7)), [axes]) == 1


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 256, 1025, 17001])
def test_rows(n: int, order: Any) -> None:
    with cp.thread_order(order):
        for op in (INSIDE, ADDED):
            assert check(op, random((3, n)), [[1]]) == (1 if n < 17000 else 2)


@pytest.mark.drawn(8)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_long_rows(op: Any, order: Any) -> None:
    """The parts of a few long rows are divided among blocks, in two launches."""
    with cp.thread_order(order):
        for shape in ((1, 40003), (5, 20000)):
            assert check(op, random(shape), [[1]]) == 2
            assert check(op, random(shape), [[1]], inplace=True) == 2


@pytest.mark.drawn(2)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_types_of_long_rows(dtype: np.dtype[Any]) -> None:
    for n in (40000, 33001):
        check(INSIDE, random((2, n), dtype), [[1]], tol=2e-2 if dtype.name == "bfloat16" else None)


def test_long_rows_of_other_means() -> None:
    """The means of parts differ, and so they do from 0: the variances of parts are combined without cancellation."""
    steps = np.repeat(np.arange(20, dtype=np.float32), 2000) + 1000
    check(INSIDE, lambda draw: random((1, 40000))(draw) + steps, [[1]], tol=2e-3)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("n", [1, 33, 1025])
def test_columns(n: int, order: Any) -> None:
    with cp.thread_order(order):
        for op in (INSIDE, BOUNDED):
            check(op, random((2, n, 5)), [[1]])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_types(dtype: np.dtype[Any]) -> None:
    for n in (7, 64, 1032):
        check(INSIDE, random((3, n), dtype), [[1]], tol=2e-2 if dtype.name == "bfloat16" else None)
    check(ADDED, random((3, 5), dtype), [[0]])


@pytest.mark.parametrize(
    ("dtype", "n", "vectors"),
    [(np.float32, 128, 1), (np.float32, 384, 3), (np.float32, 512, 4), (np.float16, 768, 3), (np.float16, 1024, 4)],
)
def test_a_warp_per_row(dtype: Any, n: int, vectors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rows are many, as many vectors per thread as rows have are in registers."""
    monkeypatch.setattr(Launcher, "multiprocessors", 2)
    x = cp.zeros((19, n), dtype)
    assert registers(2, x, x, 19, n) == ((32, 8), 16 // x.itemsize, vectors)
    check(INSIDE, random((19, n), dtype), [[1]])


def test_offset_rows() -> None:
    """The variance is computed from centred elements, so that a large mean costs no digits."""
    check(INSIDE, lambda draw: random((4, 500))(draw) + np.float32(1000), [[1]], tol=2e-3)


@pytest.mark.parametrize("across", [False, True])
def test_mvn_1(across: bool) -> None:
    check(MVN(eps=1e-9, across_channels=across), random((2, 3, 4, 5)))
    check(MVN(eps=1e-9, reduction_axes=(1,)), random((2, 3, 4, 5)))


def test_in_place() -> None:
    for shape, axes in (((3, 33), [1]), ((2, 17001), [1]), ((3, 33, 2), [1])):
        check(INSIDE, random(shape), [axes], inplace=True)


def test_strided() -> None:
    check(ADDED, random((4, 5, 6)), [[1]], view=lambda a: a.transpose(0, 2, 1)[::2])
    check(ADDED, random((4, 6)), [[1]], out=lambda a: a[:, ::2])


@pytest.mark.parametrize("op", [INSIDE, CENTRED], ids=["MVN", "centred"])
def test_strided_rows(op: Any) -> None:
    """One kernel reads aligned rows with gaps, such as heads in attention's order; other layouts are copied first."""

    def heads(a: Any) -> Any:
        return a[:, :, 16:].reshape(2, 5, 4, 8).transpose(0, 2, 1, 3)

    assert check(op, random((2, 5, 48)), [[3]], view=heads) == 1
    assert check(op, random((2, 5, 4, 8)), [[2, 3]], view=lambda a: a[:, 1:]) == 1
    assert check(op, random((5, 6, 4)), [[1, 2]], view=lambda a: a[:, 1:]) == 1
    assert check(op, random((5, 4, 17001)), [[2]], view=lambda a: a[:, 1:]) == 3, "not at multiples of 16 bytes"
    assert check(op, random((5, 9)), [[1]], view=lambda a: a[:, 1:]) == 2
    assert check(op, random((2, 8, 3)), [[1]], view=lambda a: a.transpose(2, 0, 1)) == 2
    assert check(op, random((2, 8, 12)), [[1]], view=lambda a: a[:, 2:]) == 2


def transposed(a: Any) -> Any:
    return a.transpose(0, 2, 1)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("n", [1, 33, 300, 1300])
def test_channels_that_come_last(n: int, order: Any) -> None:
    """One kernel also transposes, if some rows fit in shared memory."""
    with cp.thread_order(order):
        for op in (INSIDE, OUTSIDE, CENTRED):
            assert check(op, random((3, n, 21)), [[2]], view=transposed) == 1
    assert check(INSIDE, random((2, 1500, 3)), [[2]], view=transposed) == 2


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_types_of_channels(dtype: np.dtype[Any]) -> None:
    check(INSIDE, random((2, 12, 5), dtype), [[2]], view=transposed, tol=2e-2 if dtype.name == "bfloat16" else None)
    assert check(INSIDE, random((2, 700, 5), dtype), [[2]], view=transposed) == 1 + (dtype.itemsize == 8)


def test_many_channels_of_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block has several rows, which need not divide an image's pixels; parts of images work too."""
    monkeypatch.setattr(Launcher, "multiprocessors", 1)
    for size in ((2, 6, 3, 11), (5, 6, 3, 3)):
        check(INSIDE, random(size), [[3]], view=lambda a: a.transpose(0, 2, 3, 1))
    assert check(INSIDE, random((2, 6, 4, 10)), [[3]], view=lambda a: a[..., 2:].transpose(0, 2, 3, 1)) == 1
    assert check(INSIDE, random((2, 6, 4, 10)), [[2]], view=lambda a: a[:, ::2, 0].transpose(0, 2, 1)) == 1


def test_empty() -> None:
    assert check(INSIDE, random((0, 3)), [[1]]) == 0
    assert check(ADDED, random((3, 0)), [[1]]) == 0


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_no_axes(op: Any) -> None:
    row = np.array([[0, -0.0, 1, -3, np.nan, np.inf]], np.float32)
    check(op, lambda draw: np.roll(row, draw, 1), [np.zeros(0, np.int64)])


@pytest.mark.parametrize(
    ("shape", "over", "launches"),
    [((4, 6, 10), (1, 2), 1), ((4, 6, 10), (0, 1), 1), ((2, 20004), (1,), 2), ((1, 17001), (1,), 2)],
    ids=str,
)
def test_scale_and_shift(shape: tuple[int, ...], over: tuple[int, ...], launches: int) -> None:
    """Layer normalisation with scale and shift takes no further launches."""
    x = random(shape)(0)
    n = [x.shape[i] for i in over]
    scale, shift = random(n)(1), random(n)(2)
    broadcast = [d if i in over else 1 for i, d in enumerate(x.shape)]
    centred = x - x.mean(over, keepdims=True)
    plain = centred / np.sqrt((centred * centred).mean(over, keepdims=True) + 1e-5)
    for factor, term in ((scale, shift), (scale, None), (None, shift)):
        launcher, out = Launcher(cp.cuda.Stream(non_blocking=True), None), cp.empty(x.shape, np.float32)
        parameters = [None if p is None else cp.asarray(p) for p in (factor, term)]
        normalize(launcher, "MVN", cp.asarray(x), out, over, 1e-5, "INSIDE", *parameters)
        assert len(launcher.calls) == launches
        for call in launcher.calls:
            call()
        factors, terms = (None if p is None else p.reshape(broadcast) for p in (factor, term))
        wanted = plain * (1 if factors is None else factors) + (0 if terms is None else terms)
        same(out.get(), wanted.astype(np.float32))


@pytest.mark.parametrize(("cls", "kind"), [(ScaledMVN, "MVN"), (ScaledRMS, "RMS")])
def test_scales_of_channels(cls: Any, kind: str) -> None:
    x, (scale, shift) = random((2, 6, 5))(0), random((2, 6))(1)
    op, given = cls(rank=1, eps=1e-5, inside=True), [cp.asarray(a) for a in (x, scale, shift)]
    launcher, out = Launcher(cp.cuda.Stream(non_blocking=True), None), cp.empty((2, 5, 6), np.float32)
    op.cuda(launcher, [given[0].transpose(0, 2, 1), *given[1:]], [out], ())
    (call,) = launcher.calls
    assert call.func.name == f"normalize_transposed<float, {kind}>"
    call()
    same(out.get(), op.evaluate(NUMPY, x.transpose(0, 2, 1), scale, shift)[0])


@pytest.mark.parametrize("kind", ["MVN", "RMS"])
@pytest.mark.parametrize("first", [0, 1])
def test_scales_of_rows(kind: str, first: int) -> None:
    """Aligned scales and shifts are read 16 bytes at a time."""
    x, terms = random((6, 64))(0), random((2, 68))(1)
    launcher, out = Launcher(cp.cuda.Stream(non_blocking=True), None), cp.empty(x.shape, np.float32)
    scale, shift = (row[first : first + 64] for row in cp.asarray(terms))
    normalize(launcher, kind, cp.asarray(x), out, (1,), 1e-5, "INSIDE", scale, shift)
    (call,) = launcher.calls
    assert call.func.name.startswith(f"normalize_rows<float, {kind}, {1 if first else 4}, ")
    call()
    value = x - x.mean(1, keepdims=True) if kind == "MVN" else x
    wanted = value / np.sqrt((value * value).mean(1, keepdims=True) + 1e-5)
    same(out.get(), wanted * terms[0, first : first + 64] + terms[1, first : first + 64])


def test_kernels_compile_for_devices(to_compile: ToCompile) -> None:
    rows = [
        f"normalize_rows<{kind}, {what}, {v}, {n}>"
        for kind, what, v, n in (
            ("float", "MVN", 4, 1),
            ("float", "MVN", 4, 8),
            ("float", "MVN", 1, 16),
            ("float", "L2", 4, 4),
            ("float", "CENTRE", 1, 8),
            ("float", "RMS", 4, 4),
            ("__half", "RMS", 8, 1),
            ("__half", "MVN", 8, 4),
            ("__nv_bfloat16", "MVN", 8, 1),
            ("double", "MVN", 2, 8),
        )
    ]
    columns = [
        f"normalize_columns<{kind}, {what}>"
        for kind in ("float", "__half", "__nv_bfloat16", "double")
        for what in ("MVN", "L2")
    ]
    columns += [f"normalize_transposed<{kind}, MVN>" for kind in ("float", "__half", "__nv_bfloat16")]
    for architecture in nvrtc.NEWEST:
        cubin = nvrtc.compile_file("normalization.cu", architecture, to_compile("normalization.cu", [*rows, *columns]))
        for name, lowered in cubin.lowered.items():
            usage = cubin.usage[lowered]
            hot = "double" not in name
            assert not hot or usage.spill_stores == usage.spill_loads == 0, name
            assert usage.registers <= 96, name
