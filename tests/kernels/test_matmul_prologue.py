"""Products whose kernel computes the left operand, on the emulated device against the definition in f64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.elementwise import functor
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.activation.activation import Swish
from ovgpu.ops.arithmetic.arithmetic import Add, Multiply
from ovgpu.ops.base.op import evaluate
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.fused import _product_form, _product_mma
from ovgpu.ops.fused._elementwise import Chain, Fused, Layer, Part
from ovgpu.ops.fused._packed import Packed
from ovgpu.ops.fused._product_form import steps_ahead
from ovgpu.ops.fused.add_norm import AddNorm
from ovgpu.ops.fused.compressed import CompressedMatMul
from ovgpu.ops.fused.matmul_prologue import MatMulWithPrologue
from ovgpu.ops.matrix.matmul import MatMul
from ovgpu.ops.normalization.normalization import ScaledMVN, ScaledRMS
from ovgpu.types import Type
from tests.emulator import cupy_emu, nvrtc

from .gate import ToCompile
from .recorded import kernel_name, run_calls

RNG = np.random.default_rng(6)
HALF, BF16 = np.float16, ml_dtypes.bfloat16
EPSILON = {HALF: 2**-10, BF16: 2**-7, np.float32: 2**-14}  # of a product: x itself is rounded
N = 40


def chain(*parts: Part, inputs: int) -> Fused:
    layers = tuple(Layer(part.op, part.op.name, part.op.name) for part in parts)
    return Fused(chain=Chain(inputs, (), parts), ranks=(), layers=layers)


def norm(cls: type[ScaledMVN], inside: bool = True) -> ScaledMVN:
    return cls(rank=1, eps=1e-3, inside=inside)


def add_norm(cls: type[ScaledMVN], terms: int = 2, keep: bool = True) -> AddNorm:
    added = [Part(Add(), (0, 1)), Part(Add(), (3, 2))][: terms - 1]
    layer = Layer(norm(cls), "norm", "norm")
    return AddNorm(added=chain(*added, inputs=terms), norm=norm(cls), layer=layer, keep=keep)


GATED = chain(Part(Swish(), (0,)), Part(Multiply(), (2, 1)), inputs=2)


def rows(m: int, depth: int, kind: Any) -> np.ndarray[Any, Any]:
    return RNG.uniform(-2, 2, (1, m, depth)).astype(kind)


def inputs_of(prologue: Any, m: int, depth: int, kind: Any) -> list[Any]:
    """Return random inputs of a prologue."""
    terms = [RNG.uniform(0.5, 2, depth).astype(kind), RNG.uniform(-1, 1, depth).astype(kind)]
    if isinstance(prologue, AddNorm):
        return [*terms, *(rows(m, depth, kind) for _ in range(prologue.added.chain.inputs))]
    if isinstance(prologue, ScaledMVN):
        return [rows(m, depth, kind), *terms]
    if prologue is None:
        return [rows(m, depth, kind)]
    return [rows(m, depth, kind) for _ in range(prologue.chain.inputs)]


def product_of(codes: Type, depth: int, kind: Any, size: float = 1) -> tuple[Any, list[Any]]:
    """Return a product and its weights; compressed ones have scales for groups of 64, or of a row for 8 bits."""
    if codes.bitwidth == 16:
        return MatMul(transpose_b=True), [RNG.uniform(-size, size, (N, depth)).astype(kind)]
    weights = Packed(codes, N, depth, _product_mma.TABLES.get(codes, ()))
    op = CompressedMatMul(weights=weights, transpose=True, tile=1 << 14, device=True)
    raw = RNG.integers(0, 256, N * depth // 2 if weights.is_nibbles else (N, depth), np.uint8)
    groups = depth // 64 if weights.is_nibbles else 1
    scale, zero = RNG.uniform(0.01 * size, 0.1 * size, (N, groups)), RNG.integers(0, 16, (N, groups), np.uint8)
    return op, [raw, scale.astype(HALF), zero]


def run(
    backend: CudaBackend,
    prologue: Any,
    m: int = 1,
    depth: int = 256,
    codes: Type = Type.u4,
    kind: Any = HALF,
    inputs: Sequence[Any] | None = None,
    arrays: Sequence[Any] | None = None,
    gate: Fused | None = None,
) -> list[str]:
    """Check a product with a prologue and a gate, and its sum; return the names of its kernels. ``arrays`` are the
    prologue's inputs on the device, if not just those on the host."""
    codes = Type.of(np.dtype(kind)) if codes.bitwidth == 16 else codes
    product, weights = product_of(codes, depth, kind, 1 / 16 if gate else 1)
    inputs = inputs_of(prologue, m, depth, kind) if inputs is None else inputs
    layer = Layer(product, "product", "product")
    op = MatMulWithPrologue(
        prologue=prologue,
        product=product,
        gate=gate,
        weights=len(weights),
        dtype=Type.of(np.dtype(kind)),
        before=getattr(prologue, "layers", ()),
        layer=layer,
    )
    has_sum = isinstance(prologue, AddNorm) and prologue.keep
    outputs = [cupy_emu.empty((1, m, n), kind) for n in (N // 2 if gate else N, depth)[: 1 + has_sum]]
    scratch = [
        *([] if prologue is None else [cupy_emu.empty((1, m, depth), kind)]),
        *([] if gate is None else [cupy_emu.empty((1, m, N), kind)]),
        cupy_emu.empty((1 << 15,), np.float32),
    ]
    launcher = Launcher(backend.stream, backend.blas)
    given = [*weights, *inputs] if arrays is None else weights
    device = [None if x is None else cupy_emu.asarray(x) for x in given] + list(arrays or ())
    assert op.cuda(launcher, device, outputs, scratch) is not NotImplemented
    run_calls(launcher.calls)
    exact = [None if x is None else x.astype(np.float64) if x.dtype in (kind, HALF) else x for x in inputs]
    double = [Type.f64] * (1 + has_sum)
    x, *sums = exact if prologue is None else evaluate(prologue, NUMPY, exact, double)
    matrix = weights[0].astype(np.float64)
    if len(weights) > 1:
        matrix = product.weights.values(NUMPY, weights[0], N).astype(np.float64)
        scale, zero = (np.repeat(t.astype(np.float64), depth // t.shape[1], 1) for t in weights[1:])
        matrix = (matrix - zero) * scale
    product, size = x @ matrix.T, np.abs(x) @ np.abs(matrix.T)
    if gate is not None:  # a product of both halves, one of them behind Swish, whose derivative is at most 1.1
        halves, (size, other) = np.split(product, 2, -1), np.split(size, 2, -1)
        first, second = map(np.abs, halves)
        size = 1.1 * (size * second + first * other + EPSILON[kind] * size * other + first * second)
        (product,) = evaluate(gate, NUMPY, halves, [Type.f64])
    assert (np.abs(outputs[0].get() - product) <= EPSILON[kind] * size).all()
    for total, expected in zip(outputs[1:], sums):
        np.testing.assert_allclose(total.get().astype(np.float64), expected, 2 * EPSILON[kind], 2 * EPSILON[kind])
    return [kernel_name(call) for call in launcher.calls]


def is_joined(names: Sequence[str]) -> bool:
    return len(names) == 1 and names[0].startswith("product_mma<")


PROLOGUES = {
    "rms": norm(ScaledRMS),
    "layer norm": norm(ScaledMVN),
    "eps outside": norm(ScaledRMS, inside=False),
    "sum, rms": add_norm(ScaledRMS),
    "sum, layer norm": add_norm(ScaledMVN),
    "sum of three": add_norm(ScaledRMS, 3),
    "sum not kept": add_norm(ScaledRMS, keep=False),
    "gated": GATED,
}


@pytest.mark.drawn(12)
@pytest.mark.parametrize("kind", [HALF, BF16])
@pytest.mark.parametrize("codes", [Type.u4, Type.u8, Type.f16])
@pytest.mark.parametrize("prologue", PROLOGUES.values(), ids=PROLOGUES.keys())
def test_prologues(prologue: Any, codes: Type, kind: Any, backend: CudaBackend) -> None:
    assert is_joined(run(backend, prologue, 1, 320, codes, kind))


@pytest.mark.drawn(6)
@pytest.mark.parametrize("prologue", ["rms", "sum, layer norm", "gated"])
@pytest.mark.parametrize("m", [2, 4, 7, 8])
def test_several_rows(m: int, prologue: str, backend: CudaBackend) -> None:
    for codes in (Type.u4, Type.f16):
        assert is_joined(run(backend, PROLOGUES[prologue], m, 192, codes))


@pytest.mark.parametrize("prologue", ["sum, rms", "layer norm", "gated"])
def test_f32(prologue: str, backend: CudaBackend, tf32_backend: CudaBackend) -> None:
    """f32 is split into two terms where TF32 is allowed."""
    for m in (1, 3):
        assert is_joined(run(tf32_backend, PROLOGUES[prologue], m, 256, Type.u8, np.float32))
    assert not is_joined(run(backend, PROLOGUES[prologue], 1, 256, Type.u8, np.float32))


@pytest.mark.parametrize("m", [1, 8])
def test_no_prologue(m: int, backend: CudaBackend) -> None:
    """Products of 16 bits take their operand as it is."""
    for kind in (HALF, BF16):
        assert is_joined(run(backend, None, m, 264, Type.f16, kind))
    assert not is_joined(run(backend, None, 9, 264, Type.f16))


SWAPPED = chain(Part(Swish(), (1,)), Part(Multiply(), (2, 0)), inputs=2)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("codes", [Type.u4, Type.u8, Type.f16])
@pytest.mark.parametrize("prologue", ["rms", "sum, layer norm", "gated", None])
def test_gates(prologue: str | None, codes: Type, backend: CudaBackend) -> None:
    """A half of N is no multiple of a block's extents."""
    for m, kind, gate in ((1, HALF, GATED), (4, HALF, SWAPPED), (7, BF16, GATED)):
        assert is_joined(run(backend, PROLOGUES.get(prologue), m, 320, codes, kind, gate=gate))


def test_gates_in_f32(tf32_backend: CudaBackend) -> None:
    for m in (1, 3):
        assert is_joined(run(tf32_backend, PROLOGUES["rms"], m, 256, Type.u8, np.float32, gate=GATED))


def test_gates_of_many_rows(backend: CudaBackend) -> None:
    """Product and gate are kernels of their own."""
    for prologue, codes in ((None, Type.u4), ("rms", Type.f16)):
        names = run(backend, PROLOGUES.get(prologue), 9, 256, codes, gate=GATED)
        assert not is_joined(names) and names[-1].startswith("ovgpu_")


@pytest.mark.parametrize("multiprocessors", [1, 2])
def test_several_groups_of_columns(multiprocessors: int, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block computes x once for all of its groups."""
    monkeypatch.setattr(Launcher, "multiprocessors", multiprocessors)
    monkeypatch.setattr("tests.kernels.test_matmul_prologue.N", 500)
    for codes in (Type.u4, Type.u8, Type.f16):
        for m, prologue, gate in ((1, "sum, rms", GATED), (3, "layer norm", None), (2, "gated", None)):
            assert is_joined(run(backend, PROLOGUES[prologue], m, 320, codes, gate=gate))


def test_many_rows(backend: CudaBackend) -> None:
    """Prologue and product are kernels of their own."""
    for codes in (Type.u4, Type.f16):
        names = run(backend, PROLOGUES["sum, rms"], 9, 256, codes)
        assert names[0].startswith("add_normalize_rows") and not is_joined(names)


def test_long_rows(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows to normalise must fit into shared memory; elementwise layers take them in parts."""
    monkeypatch.setattr(_product_form, "SHARED_BYTES", 4 << 10)
    assert not is_joined(run(backend, PROLOGUES["rms"], 4, 4096))
    assert is_joined(run(backend, GATED, 4, 4096))
    assert is_joined(run(backend, PROLOGUES["rms"], 1, 2048))


def test_views_as_inputs(backend: CudaBackend) -> None:
    """Halves of a merged product, and a bias for all rows."""
    both = rows(3, 512, HALF)
    memory = cupy_emu.asarray(both)
    halves = [both[..., :256], both[..., 256:]]
    assert is_joined(run(backend, GATED, 3, 256, inputs=halves, arrays=[memory[..., :256], memory[..., 256:]]))
    inputs = inputs_of(PROLOGUES["sum of three"], 3, 256, HALF)
    inputs[3] = inputs[3][0, 0]
    assert is_joined(run(backend, PROLOGUES["sum of three"], 3, 256, inputs=inputs))


def test_misaligned_views(backend: CudaBackend) -> None:
    both = rows(2, 520, HALF)
    memory = cupy_emu.asarray(both)
    halves = [both[..., 1:257], both[..., 257:513]]
    assert not is_joined(run(backend, GATED, 2, 256, inputs=halves, arrays=[memory[..., 1:257], memory[..., 257:513]]))


def test_without_scale_and_shift(backend: CudaBackend) -> None:
    for scale, shift in ((False, False), (True, False), (False, True)):
        x, a, b = inputs_of(norm(ScaledMVN), 2, 256, HALF)
        assert is_joined(run(backend, norm(ScaledMVN), 2, 256, inputs=[x, a if scale else None, b if shift else None]))


@pytest.mark.parametrize("order", ["ascending", "descending", 7])
def test_orders_of_threads(order: Any, backend: CudaBackend) -> None:
    with cupy_emu.thread_order(order):
        for prologue in ("sum, layer norm", "gated"):
            run(backend, PROLOGUES[prologue], 3, 320)


def test_large_elements(backend: CudaBackend) -> None:
    """Elements near the limit of f16 are normalised in f32."""
    x = np.full((1, 1, 256), 6e4, HALF)
    x[..., ::2] *= -1
    scale = np.full(256, 8, HALF)
    assert is_joined(run(backend, norm(ScaledRMS), inputs=[x, scale, None]))


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_compiles_without_spills(architecture: str, to_compile: ToCompile) -> None:
    for prologue, norms, arrays in (
        (GATED, ["PLAIN"], 2),
        (chain(Part(Add(), (0, 1)), Part(Add(), (3, 2)), inputs=3), ["RMS", "MVN"], 3),
    ):
        for kind, x in (("__half", HALF), ("__nv_bfloat16", BF16), ("float", np.float32)):
            source = functor("Chain", prologue.chain, (np.dtype(x),) * arrays, _product_mma.MAX_ARRAYS - 1)
            source += functor("Gate", GATED.chain, (np.dtype(x),) * 2, 1)
            codes = [
                "Nibbles<true>, __half, None",
                "Bytes<false>, __half, unsigned char",
                *(["Dense, None, None"] if kind != "float" else []),
            ]
            forms = [
                f"{code}, {kind}, 4, {rows}, {steps_ahead(rows)}, {str('Nibbles' in code).lower()}, Chain, {arrays}"
                for code in codes
                for rows in (1, 4, 8)
            ]
            names = to_compile(
                "product_mma.cu",
                [
                    f"product_mma<{form}, {norm}, {gate}>"
                    for form in forms
                    for norm in norms
                    for gate in ("None", "Gate")
                ],
            )
            usage = nvrtc.compile_file("product_mma.cu", architecture, names, source).usage
            assert len(usage) == len(names)
            assert not {name: u for name, u in usage.items() if u.spill_stores or u.spill_loads}
