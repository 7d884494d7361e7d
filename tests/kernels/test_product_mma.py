"""Products of up to 64 rows with compressed weights on tensor cores, on the emulated device against NumPy in f64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.fused import _product_form, _product_mma
from ovgpu.ops.fused._packed import Packed
from ovgpu.ops.fused._product_form import steps_ahead
from ovgpu.ops.fused.compressed import CompressedMatMul
from ovgpu.runtime.backend import RoundingCall
from ovgpu.types import Type
from tests.emulator import cupy_emu, nvrtc

from .gate import ToCompile
from .recorded import kernel_name, run_calls

RNG = np.random.default_rng(8)
HALF, BF16 = np.float16, ml_dtypes.bfloat16
EPSILON = {HALF: 2**-11, BF16: 2**-8, np.float32: 2**-20}  # relative error of one rounding
KINDS = (Type.i4, Type.u4, Type.i8, Type.u8)


@pytest.fixture(autouse=True)
def no_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """With clusters, `product_tiles.cu` multiplies more than eight rows of x by these small weights."""
    monkeypatch.setattr(Launcher, "has_clusters", False)


def packed(kind: Type, rows: int, columns: int, matrices: int = 1) -> Packed:
    return Packed(kind, rows, columns, _product_mma.TABLES.get(kind, ()), matrices)


def stored(weights: Packed, scale: tuple[int, int] | None, zero: tuple[int, int] | None, scale_type: Any) -> list[Any]:
    """Return random codes, scales, and zero points; codes and zero points take all values of their type."""
    count, signed = weights.rows * weights.columns, weights.dtype in (Type.i4, Type.i8)
    codes = RNG.integers(0, 256, count // 2 if weights.is_nibbles else (weights.rows, weights.columns), np.uint8)
    low, high = (
        (-8, 8)
        if signed and weights.is_nibbles
        else (-128, 128)
        if signed
        else ((0, 16) if weights.is_nibbles else (0, 256))
    )
    return [
        codes.view(np.int8) if weights.dtype == Type.i8 else codes,
        None if scale is None else RNG.uniform(0.01, 0.1, scale).astype(scale_type),
        None if zero is None else RNG.integers(low, high, zero, np.int8 if signed else np.uint8),
    ]


def multiply(
    backend: CudaBackend,
    weights: Packed,
    m: int,
    scale: tuple[int, int] | None = None,
    zero: tuple[int, int] | None = None,
    kind: Any = HALF,
    of_x: int = 1,
    scale_type: Any = HALF,
    skew: int = 0,
) -> str:
    """Check a product within the error of one rounding, and of sums of exact products in f32. Returns the name of its
    first kernel. x begins ``skew`` elements after a multiple of 16 bytes."""
    n, depth = weights.shape
    batch = () if weights.matrices == 1 else (weights.matrices,)
    op = CompressedMatMul(weights=weights, transpose=True, tile=1 << 14, device=True, batch=batch)
    shape = (of_x, m, depth) if of_x > 1 else (m, depth)
    x, given = RNG.uniform(-1, 1, shape).astype(kind), stored(weights, scale, zero, scale_type)
    with backend.stream:  # that of another backend may be the current one
        memory = cupy_emu.empty(x.size + skew, kind)
        memory[skew:].reshape(shape)[...] = cupy_emu.asarray(x)
        out = cupy_emu.empty((*batch, m, n), kind)
        launcher = Launcher(backend.stream, backend.blas)
        op.cuda(
            launcher,
            [memory[skew:].reshape(shape), *(None if g is None else cupy_emu.asarray(g) for g in given)],
            [out],
            [cupy_emu.empty(1 << 20, np.float32)],
        )
        run_calls(launcher.calls)
    matrix = weights.values(NUMPY, given[0], weights.rows).astype(np.float64)
    for term, apply in ((given[2], np.subtract), (given[1], np.multiply)):
        if term is not None:
            spread = np.repeat(
                np.repeat(term.astype(np.float64), weights.rows // len(term), 0), weights.columns // term.shape[1], 1
            )
            matrix = apply(matrix, spread)
    matrix = matrix.reshape(*batch, n, depth).swapaxes(-1, -2)
    wanted, size = x.astype(np.float64) @ matrix, np.abs(x.astype(np.float64)) @ np.abs(matrix)
    error = np.abs(out.get().astype(np.float64) - wanted)
    two_terms = backend.blas.tf32 and kind == np.float32  # of 8 bits each
    assert (error <= EPSILON[kind] * np.abs(wanted) + (2**-16 if two_terms else 2**-20) * size).all(), error.max()
    return kernel_name(launcher.calls[0])


def is_mma(name: str) -> bool:
    return name.startswith("product_mma<")


@pytest.mark.drawn(32)
@pytest.mark.parametrize("kind", [HALF, BF16])
@pytest.mark.parametrize("codes", KINDS)
@pytest.mark.parametrize("m", [1, 2, 7, 8, 9, 33, 64])
def test_kinds_of_codes(m: int, codes: Type, kind: Any, backend: CudaBackend) -> None:
    """Scales have groups of 128, with and without zero points; N and K are no multiples of a block's extents."""
    for zero in (None, (37, 3)):
        assert is_mma(multiply(backend, packed(codes, 37, 384), m, (37, 3), zero, kind))


@pytest.mark.drawn(12)
@pytest.mark.parametrize("codes", KINDS)
@pytest.mark.parametrize("m", [1, 2, 8, 9, 33, 64])
def test_f32(m: int, codes: Type, backend: CudaBackend, tf32_backend: CudaBackend) -> None:
    """f32 is split into two terms where TF32 is allowed."""
    for scale, zero in (((37, 3), (37, 3)), ((37, 1), None)):
        assert is_mma(multiply(tf32_backend, packed(codes, 37, 384), m, scale, zero, np.float32))
    assert not is_mma(multiply(backend, packed(codes, 37, 384), m, (37, 3), None, np.float32))


def test_f32_in_several_rounds(tf32_backend: CudaBackend) -> None:
    """Shared memory holds half as much of x as in 16 bits."""
    for m in (1, 16, 40):
        assert is_mma(multiply(tf32_backend, packed(Type.u4, 40, 3968), m, (40, 31), (40, 31), np.float32))


def test_f32_of_any_range(tf32_backend: CudaBackend) -> None:
    """Large and small numbers are exact to 16 bits; infinities and NaN are kept."""
    x = np.array([[1e38, 0, 0, 0], [3e-30, 0, 0, 0], [np.inf, 1, 0, 0], [np.nan, 1, 0, 0]], np.float32).repeat(8, 1)
    codes = np.ones((8, 32), np.int8)
    out, launcher = cupy_emu.empty((4, 8), np.float32), Launcher(tf32_backend.stream, tf32_backend.blas)
    weights = packed(Type.i8, 8, 32)
    assert _product_mma.launch(
        launcher, weights, _product_mma.Input((cupy_emu.asarray(x),)), out, [cupy_emu.asarray(codes), None, None]
    )
    (call,) = launcher.calls
    assert isinstance(call, RoundingCall)
    call()
    tf32_backend.synchronize()
    wanted = np.array([np.inf, 24e-30, np.inf, np.nan], np.float32)  # the first sum exceeds f32
    np.testing.assert_allclose(out.get(), np.broadcast_to(wanted[:, None], (4, 8)), 2**-15)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("codes", [Type.i4, Type.u8])
@pytest.mark.parametrize(("columns", "group"), [(96, 32), (192, 64), (192, 96), (512, 256)])
def test_sizes_of_groups(columns: int, group: int, codes: Type, backend: CudaBackend) -> None:
    terms = (20, columns // group)
    for m, kind in ((3, HALF), (10, BF16)):
        assert is_mma(multiply(backend, packed(codes, 20, columns), m, terms, terms, kind))


@pytest.mark.drawn(4)
@pytest.mark.parametrize("codes", [Type.u4, Type.i8])
@pytest.mark.parametrize(
    ("scale", "zero", "scale_type"),
    [
        (None, None, HALF),
        ((1, 1), None, HALF),
        ((20, 1), (1, 1), BF16),
        ((1, 4), (20, 2), np.float32),
        (None, (20, 1), HALF),
        (None, (20, 4), HALF),
    ],
)
def test_shapes_of_terms(scale: Any, zero: Any, scale_type: Any, codes: Type, backend: CudaBackend) -> None:
    assert is_mma(multiply(backend, packed(codes, 20, 512), 2, scale, zero, scale_type=scale_type))


@pytest.mark.drawn(6)
@pytest.mark.parametrize("codes", [Type.i4, Type.i8])
@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (15, 40), (17, 2080), (33, 1032), (300, 1040)])
def test_ragged_shapes(rows: int, columns: int, codes: Type, backend: CudaBackend) -> None:
    """Vectors have fewer words where rows of codes are not multiples of 16 bytes."""
    for m in (1, 5):
        assert is_mma(multiply(backend, packed(codes, rows, columns), m, (rows, 1)))


@pytest.mark.parametrize("of_x", [1, 3])
def test_batches(of_x: int, backend: CudaBackend) -> None:
    for m in (2, 40):
        assert is_mma(multiply(backend, packed(Type.u4, 3 * 21, 128, 3), m, (63, 1), (63, 1), of_x=of_x))


@pytest.mark.parametrize("multiprocessors", [1, 4, 132])
def test_divisions_of_work(multiprocessors: int, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer warps share the steps of K where there are enough rows; x is staged in several parts."""
    monkeypatch.setattr(Launcher, "multiprocessors", multiprocessors)
    monkeypatch.setattr(_product_form, "SHARED_BYTES", 32 << 10)
    for m in (1, 8, 40):
        assert is_mma(multiply(backend, packed(Type.i4, 140, 1536), m, (140, 12), None))
        assert is_mma(multiply(backend, packed(Type.u8, 140, 1536), m, (140, 1), (140, 1)))


@pytest.mark.parametrize("order", ["ascending", "descending", 7])
def test_orders_of_threads(order: Any, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_product_form, "SHARED_BYTES", 32 << 10)
    with cupy_emu.thread_order(order):
        for m in (1, 12):
            multiply(backend, packed(Type.u4, 50, 1024), m, (50, 8), (50, 8))


@pytest.mark.parametrize(
    ("weights", "m", "options"),
    [
        (packed(Type.u4, 40, 64), 65, {}),
        (packed(Type.u4, 40, 64), 3, {"skew": 1}),
        (packed(Type.u4, 40, 36), 3, {}),
        (packed(Type.i4, 40, 64), 3, {"scale": (40, 4)}),
        (packed(Type.i8, 40, 20), 3, {}),
        (packed(Type.u4, 40, 64), 3, {"kind": np.float32}),
        (Packed(Type.nf4, 40, 64, tuple(np.linspace(-1, 1, 16).tolist())), 3, {}),
        (Packed(Type.u8, 40, 64, tuple(map(float, range(256)))), 3, {}),
    ],
)
def test_other_products(weights: Packed, m: int, options: dict[str, Any], backend: CudaBackend) -> None:
    """Other kernels take more rows, unaligned x, rows or groups without vectors, f32, and codes with a lookup table."""
    assert not is_mma(multiply(backend, weights, m, **options))


@pytest.mark.parametrize("capability", [75, 80])
def test_capabilities(capability: int, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Launcher, "capability", capability)
    assert is_mma(multiply(backend, packed(Type.i4, 40, 64), 3)) is (capability == 80)


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_compiles_without_spills(architecture: str, to_compile: ToCompile) -> None:
    expressions = [
        f"product_mma<{codes}, __half, {zero}, {kind}, {words}, {rows}, {steps_ahead(rows)}, {grouped}>"
        for codes, zero, words in (
            ("Nibbles<true>", "None", 4),
            ("Nibbles<false>", "unsigned char", 4),
            ("Bytes<false>", "unsigned char", 4),
            ("Bytes<true>", "None", 4),
        )
        for kind in ("__half", "__nv_bfloat16")
        for rows in (1, 8, 32)
        for grouped in ("true", "false")
    ]
    expressions = to_compile("product_mma.cu", expressions)
    usage = nvrtc.compile_file("product_mma.cu", architecture, expressions).usage
    assert len(usage) == len(expressions)
    assert not any(u.spill_stores or u.spill_loads for u in usage.values())
