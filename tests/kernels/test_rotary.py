"""Rotary embeddings on the emulated device against NumPy in f64: pairings, factors, layouts, partial rotation."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.fused.rotary import Rotary
from tests.emulator import cupy_emu, nvrtc

from .gate import ToCompile
from .recorded import replay

Shape = tuple[int, ...]
TOLERANCE = {"float64": 1e-12, "float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}
KINDS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f64": np.float64}


def rotate(
    backend: CudaBackend,
    op: Rotary,
    x: Shape,
    factors: Shape,
    kind: str = "f32",
    swapped: bool = False,
    shift: int = 0,
    lead: Shape = (),
) -> str:
    """Check the op eagerly and replayed; return the kernel's name. With ``swapped``, x and the result are [b, s, h, e]
    in memory; their rows begin at element ``shift``; ``lead`` are the result's leading axes, if not x's."""
    dtype, random = np.dtype(KINDS[kind]), np.random.default_rng(1)

    def stored(shape: Shape) -> Shape:
        shape = (*shape[:-1], shape[-1] + shift)
        return (shape[0], shape[2], shape[1], *shape[3:]) if swapped else shape

    def read(a: Any) -> Any:
        return (a.swapaxes(1, 2) if swapped else a)[..., shift:]

    shapes = stored(x), factors, factors
    draws = [[random.standard_normal(shape).astype(dtype) for _ in range(3)] for shape in shapes]
    inputs = [cupy_emu.empty(shape, dtype) for shape in shapes]
    out = read(cupy_emu.empty(stored((*(lead or x[:-1]), x[-1])), dtype))
    launcher = Launcher(backend.stream, backend.blas)
    assert op.cuda(launcher, [read(inputs[0]), *inputs[1:]], [out], ()) is None

    def wanted(n: int) -> list[Any]:
        first, *others = (d[n].astype(np.float64) for d in draws)
        return list(op.evaluate(NUMPY, read(first), *others))

    replay(backend, lambda: launcher.calls, list(zip(inputs, draws)), [out], wanted, TOLERANCE[dtype.name])
    (call,) = launcher.calls
    return str(call.func.name)


HALVES, PAIRS = Rotary(size=16), Rotary(size=16, pairs=True)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", [HALVES, PAIRS], ids=["halves", "pairs"])
@pytest.mark.parametrize("each", [8, 16])
def test_vectors(op: Rotary, each: int, kind: str, backend: CudaBackend) -> None:
    """Vectors are used with factors per pair or element, for strided and dense heads."""
    width = 16 // np.dtype(KINDS[kind]).itemsize
    for swapped in (False, True):
        assert f", {width}, int" in rotate(backend, op, (2, 3, 5, 16), (1, 1, 5, each), kind, swapped)


@pytest.mark.parametrize("op", [HALVES, PAIRS], ids=["halves", "pairs"])
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_single_elements(op: Rotary, kind: str, backend: CudaBackend) -> None:
    """Rows that do not begin at multiples of 16 bytes are processed element by element."""
    assert ", 1, int" in rotate(backend, op, (2, 3, 5, 16), (2, 1, 5, 16), kind, shift=1)
    assert ", 1, int" in rotate(backend, op, (1, 2, 3, 19), (1, 1, 3, 8), kind)


@pytest.mark.parametrize("op", [HALVES, PAIRS], ids=["halves", "pairs"])
def test_partial_rotation(op: Rotary, backend: CudaBackend) -> None:
    assert ", 4, int" in rotate(backend, op, (2, 3, 5, 28), (1, 1, 5, 16), swapped=True)
    assert ", 1, int" in rotate(backend, op, (2, 3, 5, 18), (1, 1, 5, 8))


def test_long_rows(backend: CudaBackend) -> None:
    """A row may have more pairs than a block has threads."""
    rotate(backend, Rotary(size=600), (1, 2, 2, 603), (1, 1, 2, 300))


def test_batches_of_factors(backend: CudaBackend) -> None:
    rotate(backend, HALVES, (1, 2, 3, 16), (4, 1, 3, 16), lead=(4, 2, 3))
    rotate(backend, HALVES, (2, 16), (3, 1, 16), lead=(3, 2))


def test_empty(backend: CudaBackend) -> None:
    launcher = Launcher(backend.stream, backend.blas)
    x, cos = (cupy_emu.empty(shape, np.float32) for shape in ((0, 2, 3, 16), (1, 1, 3, 16)))
    assert HALVES.cuda(launcher, [x, cos, cos], [x], ()) is None and not launcher.calls


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_kernels_compile_without_spills(architecture: str, to_compile: ToCompile) -> None:
    expressions = [
        f"rotate<{t}, {pairing}, {vector}, {index}>"
        for t, vector, index in (
            ("float", 4, "int, 2"),
            ("__half", 8, "int, 4"),
            ("__nv_bfloat16", 8, "int, 2"),
            ("__half", 1, "long long, 8"),
        )
        for pairing in ("HALVES", "PAIRS")
    ]
    expressions = to_compile("rotary.cu", expressions)
    usage = nvrtc.compile_file("rotary.cu", architecture, expressions).usage
    assert len(usage) == len(expressions)
    assert not any(u.spill_stores or u.spill_loads for u in usage.values())
