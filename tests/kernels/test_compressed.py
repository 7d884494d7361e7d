"""Compressed weights on the emulated device: kernels of a product, vector loads and misalignment, partial sums, and
gathered rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.fused._packed import Packed
from ovgpu.ops.fused.compressed import CompressedGather, CompressedMatMul
from ovgpu.types import Type
from tests.emulator import cupy_emu, nvrtc

from .gate import ToCompile
from .recorded import kernel_name, run_calls

RNG = np.random.default_rng(6)
U4 = tuple(map(float, range(16)))


def stored(packed: Packed, scale: tuple[int, int] | None, zero: tuple[int, int] | None) -> list[Any]:
    count = packed.rows * packed.columns
    codes = RNG.integers(0, 255, -(-count // 2) if packed.is_nibbles else (packed.rows, packed.columns), np.uint8)
    return [
        codes.view(np.int8) if packed.dtype == Type.i8 else codes,
        None if scale is None else RNG.uniform(0.01, 0.1, scale).astype(np.float16),
        None if zero is None else RNG.integers(3, 12, zero, np.uint8),
    ]


def multiply(
    backend: CudaBackend,
    packed: Packed,
    transpose: bool,
    m: int,
    scale: tuple[int, int] | None = None,
    zero: tuple[int, int] | None = None,
    tile: int = 1 << 14,
    skew: int = 0,
    of_x: int = 1,
) -> list[str]:
    """Check a product against its definition; x begins ``skew`` elements after a multiple of 16 bytes, and has
    ``of_x`` matrices. Returns the names of the called functions."""
    batch = () if packed.matrices == 1 else (packed.matrices,)
    op = CompressedMatMul(weights=packed, transpose=transpose, tile=tile, device=True, batch=batch)
    n, depth = packed.shape if transpose else packed.shape[::-1]
    shape = (of_x, m, depth) if of_x > 1 else (m, depth)
    x, weights = RNG.uniform(-1, 1, shape).astype(np.float32), stored(packed, scale, zero)
    memory = cupy_emu.empty(x.size + skew, np.float32)
    given = memory[skew:].reshape(shape)
    given[...] = cupy_emu.asarray(x)
    out, scratch = cupy_emu.empty((*batch, m, n), np.float32), cupy_emu.empty(op.tile_elements + 1, np.float32)
    launcher = Launcher(backend.stream, backend.blas)
    op.cuda(launcher, [given, *(None if w is None else cupy_emu.asarray(w) for w in weights)], [out], [scratch])
    run_calls(launcher.calls)
    (wanted,) = op.evaluate(NUMPY, x, *weights)
    np.testing.assert_allclose(out.get(), wanted, 1e-5, 1e-5 * np.abs(wanted).max())
    return [kernel_name(call).split("<")[0] or "gemm" for call in launcher.calls]


def nibbles(rows: int, columns: int, matrices: int = 1) -> Packed:
    return Packed(Type.u4, rows, columns, U4, matrices)


@pytest.mark.parametrize("order", ["ascending", "descending", 7])
def test_orders_of_threads(order: Any, backend: CudaBackend) -> None:
    with cupy_emu.thread_order(order):
        assert multiply(backend, nibbles(21, 64), True, 3, (21, 4), (21, 4)) == ["product"]
        assert multiply(backend, nibbles(300, 40), False, 3, (3, 40), (1, 40)) == ["product_columns", "add_parts"]


@pytest.mark.parametrize(("rows", "columns", "skew"), [(9, 64, 1), (9, 64, 4), (9, 60, 0), (1, 8, 0), (2, 1, 0)])
def test_vector_widths(rows: int, columns: int, skew: int, backend: CudaBackend) -> None:
    for m in (1, 5):
        assert multiply(backend, Packed(Type.u8, rows, columns), True, m, (rows, 1), skew=skew) == ["product"]


@pytest.mark.parametrize(("rows", "columns"), [(5, 264), (700, 3), (70, 259), (1, 8)])
def test_columns(rows: int, columns: int, backend: CudaBackend) -> None:
    for m in (1, 7):
        multiply(backend, Packed(Type.i8, rows, columns), False, m, (1, columns))


@pytest.mark.parametrize("transpose", [False, True])
def test_tiles(transpose: bool, backend: CudaBackend) -> None:
    """The last tile is smaller."""
    packed = nibbles(22, 48) if transpose else nibbles(48, 22)
    terms = (22, 3) if transpose else (3, 22)
    names = multiply(backend, packed, transpose, 9, terms, terms, tile=48 * 8)
    assert names == ["expand", "_launch"] * 3 or names == ["expand", "gemm"] * 3


@pytest.mark.parametrize("of_x", [1, 3])
def test_batches(of_x: int, backend: CudaBackend) -> None:
    """A batch of weights takes one x for all or one each; sums have parts, and tiles hold matrices or parts of one."""
    rows, columns = nibbles(3 * 21, 64, 3), nibbles(3 * 300, 40, 3)
    for m in (1, 5):
        assert multiply(backend, rows, True, m, (63, 4), (63, 4), of_x=of_x) == ["product"]
        assert multiply(backend, columns, False, m, (9, 40), (1, 40), of_x=of_x) == ["product_columns", "add_parts"]
        assert multiply(backend, nibbles(3 * 30, 40, 3), False, m, (3, 40), of_x=of_x) == ["product_columns"]
    for tile, count in ((64 * 21 * 2, 2), (64 * 8, 9)):
        names = multiply(backend, rows, True, 9, (63, 4), (3, 1), tile, of_x=of_x)
        assert names.count("expand") == count and len(names) == 2 * count
    multiply(backend, columns, False, 9, (9, 40), (3, 40), 300 * 16, of_x=of_x)


def test_gather(backend: CudaBackend) -> None:
    packed = nibbles(7, 33)
    weights, indices = stored(packed, (7, 1), (7, 1)), np.array([[6, -7, 7], [-8, 0, 2**40]])
    op = CompressedGather(weights=packed, dtype=Type.f16)
    out = cupy_emu.empty((2, 3, 33), np.float16)
    launcher = Launcher(backend.stream, backend.blas)
    codes, *terms = map(cupy_emu.asarray, weights)
    op.cuda(launcher, [codes, cupy_emu.asarray(indices), *terms], [out], [])
    (call,) = launcher.calls
    call()
    backend.synchronize()
    (wanted,) = op.evaluate(NUMPY, weights[0], indices, *weights[1:])
    np.testing.assert_array_equal(out.get(), wanted)
    assert not out.get()[[0, 1, 1], [2, 0, 2]].any() and out.get()[0, :2].any()


@pytest.mark.parametrize("terms", [(7, 1), (1, 1), (7, 3)])
def test_gather_nothing(terms: tuple[int, int]) -> None:
    packed, indices = nibbles(7, 33), np.zeros((4, 0), np.int64)
    codes, *affine = stored(packed, terms, terms)
    (found,) = CompressedGather(weights=packed, dtype=Type.f16).evaluate(NUMPY, codes, indices, *affine)
    assert found.shape == (4, 0, 33) and found.dtype == np.float16


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_compiles_for_devices(architecture: str, to_compile: ToCompile) -> None:
    kinds = (
        "Nibbles, __half, unsigned char",
        "Nibbles, __nv_bfloat16, None",
        "Cast<unsigned char>, __half, __half",
        "Cast<signed char>, float, None",
        "Codebook, __half, None",
        "E4M3, __half, None",
        "E5M2, __half, None",
        "Cast<__half>, None, None",
    )
    expressions = [
        f"{name}<{kind}, {types}, 8, {batch}>"
        for kind in kinds
        for batch in (1, 4)
        for name, types in (("product", "float"), ("product_columns", "float, float"))
    ]
    expressions = to_compile("compressed.cu", expressions)
    usage = nvrtc.compile_file("compressed.cu", architecture, expressions).usage
    assert len(usage) == len(expressions)
    assert not any(u.spill_stores or u.spill_loads for u in usage.values())
