"""Matrix products with a bias, a residual and an activation through an emulated cuBLASLt: supported cases, results, and
the fallback to cuBLAS."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cuda import CudaBackend, blaslt, rt
from ovgpu.backends.cuda.blas import Blas
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.activation.activation import Gelu7, Relu
from ovgpu.ops.arithmetic.arithmetic import Add
from ovgpu.ops.base.elementwise import Elementwise
from ovgpu.ops.base.op import evaluate
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.fused._elementwise import Chain, Fused, Layer, Part
from ovgpu.ops.fused.matmul_epilogue import Activation, MatMulWithEpilogue
from ovgpu.ops.matrix.matmul import MatMul
from ovgpu.runtime.backend import RoundingCall
from ovgpu.types import Type
from tests.emulator import blas_emu, blaslt_emu, cupy_emu

from .recorded import replay

Array = np.ndarray[Any, Any]
Pick = Callable[[Any], Any]
BF16 = np.dtype(ml_dtypes.bfloat16)
TOLERANCE = {"float32": 1e-5, "float64": 1e-13, "float16": 2e-3, "bfloat16": 1.6e-2}
LAYERS: dict[Activation, list[Elementwise]] = {"": [], "relu": [Relu()], "gelu": [Gelu7(approximation_mode="tanh")]}
X, WEIGHTS = (2, 5, 24), (16, 24)
pytestmark = pytest.mark.emulator


def whole(x: Any) -> Any:
    return x


def with_epilogue(activation: Activation, bias: int, residual: int, transpose_a: bool = False) -> MatMulWithEpilogue:
    """Return a product with weights [N, K]; ``bias`` and ``residual`` are input numbers of the layers, or 0."""
    others = bool(bias) + bool(residual)
    parts, last = list[Part](), 0
    for layer, more in [*[(Add(), n) for n in range(1, others + 1)], *[(layer, 0) for layer in LAYERS[activation]]]:
        parts.append(Part(layer, (last, more) if more else (last,)))
        last = others + len(parts)
    fused = Fused(
        chain=Chain(1 + others, (), tuple(parts)), ranks=(), layers=tuple(Layer(p.op, p.op.name, "") for p in parts)
    )
    product = MatMul(transpose_a=transpose_a, transpose_b=True)
    return MatMulWithEpilogue(
        layer=Layer(product, "product", ""),
        product=product,
        fused=fused,
        bias=bias,
        residual=residual,
        activation=activation,
    )


def multiply(
    backend: CudaBackend,
    op: MatMulWithEpilogue,
    kind: Any = np.float32,
    x: tuple[int, ...] = X,
    weights: tuple[int, ...] = WEIGHTS,
    pick: Pick = whole,
    into: Pick = whole,
    of_residual: Pick = whole,
    of_bias: Pick = whole,
) -> list[str]:
    """Check an op, eagerly and replayed, against `evaluate` in f64; return the library of each call, or "kernel".

    ``pick``, ``of_residual`` and ``of_bias`` select parts of x, the residual and the bias, and ``into`` the result in
    an array that is twice as large.
    """
    kind = np.dtype(kind)
    shape = (*pick(np.empty(x)).shape[:-2], pick(np.empty(x)).shape[-2 + op.product.transpose_a], weights[0])
    shapes, pickers = [x, weights], [pick, whole]
    for number in range(1, op.fused.chain.inputs):
        shapes.append((2 * weights[0],) if number == op.bias else tuple(2 * n for n in shape))
        pickers.append(
            (lambda a: of_bias(a)[: weights[0]])
            if number == op.bias
            else (lambda a: of_residual(a)[tuple(slice(n) for n in shape)])
        )
    if of_residual is whole and op.residual:
        shapes[1 + op.residual], pickers[1 + op.residual] = shape, whole
    draws = [[np.random.default_rng([i, n]).standard_normal(s).astype(kind) for i in range(3)]
             for n, s in enumerate(shapes)]  # fmt: skip
    arrays = [cupy_emu.empty(s, kind) for s in shapes]
    out = into(cupy_emu.empty(tuple(2 * n for n in shape) if into is not whole else shape, kind))
    out = out[tuple(slice(n) for n in shape)]
    launcher = Launcher(backend.stream, backend.blas)
    assert op.cuda(launcher, [p(a) for p, a in zip(pickers, arrays)], [out], ()) is None

    def wanted(draw: int) -> list[Array]:
        given = [p(d[draw].astype(np.float64)) for p, d in zip(pickers, draws)]
        return [evaluate(op, NUMPY, given, [Type.f64])[0].astype(kind)]

    replay(backend, lambda: launcher.calls, list(zip(arrays, draws)), [out], wanted, TOLERANCE[kind.name])
    names = {"_multiply": "cuBLASLt", "_launch": "cuBLAS"}
    return [names.get(getattr(call.func, "__name__", ""), "kernel") for call in launcher.calls]


# ---- supported products


@pytest.mark.parametrize("kind", [np.float32, np.float16, BF16, np.float64])
@pytest.mark.parametrize(
    ("activation", "bias", "residual"),
    [("", 1, 0), ("relu", 0, 0), ("relu", 1, 0), ("", 0, 1), ("", 1, 2), ("relu", 2, 1)],
)
def test_supported(activation: Activation, bias: int, residual: int, kind: Any, backend: CudaBackend) -> None:
    assert multiply(backend, with_epilogue(activation, bias, residual), kind) == ["cuBLASLt"]


@pytest.mark.parametrize("kind", [np.float16, BF16])
@pytest.mark.parametrize(("bias", "residual"), [(0, 0), (1, 0), (1, 2)])
def test_gelu(bias: int, residual: int, kind: Any, backend: CudaBackend) -> None:
    assert multiply(backend, with_epilogue("gelu", bias, residual), kind) == ["cuBLASLt"]


@pytest.mark.parametrize(("x", "pick", "transposed"), [
    ((7, 24), whole, False), ((24, 7), whole, True), ((2, 3, 5, 24), whole, False), ((1, 1, 24), whole, False),
    ((2, 5, 40), lambda a: a[..., 8:32], False), ((3, 5, 24), lambda a: a[:, 1:2], False),
])  # fmt: skip
def test_inputs(x: Any, pick: Pick, transposed: bool, backend: CudaBackend) -> None:
    """x may be transposed, or part of a larger tensor."""
    for kind in (np.float32, np.float16):
        op = with_epilogue("", 1, 2, transpose_a=transposed)
        assert multiply(backend, op, kind, x, pick=pick) == ["cuBLASLt"]


@pytest.mark.parametrize("part", [lambda a: a[..., 1:], lambda a: a[1:]])
def test_parts_of_results_and_residuals(part: Pick, backend: CudaBackend) -> None:
    x = (5, 24)
    assert multiply(backend, with_epilogue("relu", 1, 2), x=x, into=part) == ["cuBLASLt"]
    assert multiply(backend, with_epilogue("", 0, 1), x=x, of_residual=part) == ["cuBLASLt"]
    assert multiply(backend, with_epilogue("", 1, 2), x=x, of_residual=part, into=lambda a: a[2:, 3:]) == ["cuBLASLt"]


def test_empty(backend: CudaBackend) -> None:
    launcher = Launcher(backend.stream, backend.blas)
    given = [cupy_emu.empty(shape, np.float32) for shape in ((0, 24), WEIGHTS, (16,))]
    assert with_epilogue("", 1, 0).cuda(launcher, given, [cupy_emu.empty((0, 16), np.float32)], ()) is None
    assert not launcher.calls


# ---- products that fall back to cuBLAS, with one in-place kernel for all layers

OTHERS: dict[str, tuple[MatMulWithEpilogue, dict[str, Any]]] = {
    "a Gelu in f32": (with_epilogue("gelu", 1, 0), {}),
    "a Gelu in f64": (with_epilogue("gelu", 1, 0), {"kind": np.float64}),
    "one column": (with_epilogue("", 1, 0), {"weights": (1, 24)}),
    "a bias that begins anywhere": (with_epilogue("", 1, 0), {"of_bias": lambda a: a[1:]}),
    "a bias with gaps": (with_epilogue("", 1, 0), {"of_bias": lambda a: a[::2]}),
    "a turned result": (with_epilogue("", 1, 0), {"x": (5, 24), "into": lambda a: a.reshape(32, 10).T}),
    "a turned residual": (with_epilogue("", 0, 1), {"x": (5, 24), "of_residual": lambda a: a.reshape(32, 10).T}),
}


@pytest.mark.parametrize("case", OTHERS)
def test_fallback(case: str, backend: CudaBackend) -> None:
    op, given = OTHERS[case]
    assert multiply(backend, op, **given) == ["cuBLAS", "kernel"]


def test_several_calls(backend: CudaBackend) -> None:
    op = with_epilogue("", 1, 0, transpose_a=True)
    assert multiply(backend, op, x=(3, 24, 7)) == ["cuBLAS", "kernel"]


def test_a_gelu_on_other_devices(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, calls in (("80", ["cuBLAS", "kernel"]), ("100", ["cuBLASLt"]), ("120", ["cuBLAS", "kernel"])):
        monkeypatch.setattr(cupy_emu.cuda.Device, "compute_capability", capability)
        assert multiply(backend, with_epilogue("gelu", 1, 0), np.float16) == calls


@pytest.mark.parametrize("reason", ["not installed", "no heuristic", "no algorithm"])
def test_without_cublaslt(reason: str, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: int) -> None:
        if reason == "no heuristic":
            raise blaslt_emu.cuBLASLtError(blas_emu.Status.NOT_SUPPORTED)

    monkeypatch.setattr(backend, "blas", Blas(backend.stream))
    if reason == "not installed":
        monkeypatch.setattr(rt, "_cublaslt", False)
    else:
        monkeypatch.setattr(blaslt_emu, "matmul_algo_get_heuristic", refuse)
    for activation in LAYERS:
        assert multiply(backend, with_epilogue(activation, 1, 2), np.float16) == ["cuBLAS", "kernel"]


def test_a_library_that_cannot_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def version() -> int:
        raise RuntimeError("libcublasLt.so.13: cannot open shared object file")

    monkeypatch.setattr(rt, "_cublaslt", None)
    monkeypatch.setattr(rt, "import_module", lambda name: blaslt_emu)
    monkeypatch.setattr(blaslt_emu, "get_version", version)
    assert rt.cublaslt() is None


def test_errors_are_reported(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: int) -> None:
        raise blaslt_emu.cuBLASLtError(blas_emu.Status.EXECUTION_FAILED)

    launcher = Launcher(backend.stream, backend.blas)
    given = [cupy_emu.zeros(shape, np.float32) for shape in ((5, 24), WEIGHTS, (16,))]
    with_epilogue("", 1, 0).cuda(launcher, given, [cupy_emu.zeros((5, 16), np.float32)], ())
    monkeypatch.setattr(blaslt_emu, "matmul", fail)
    with pytest.raises(ov.DeviceError, match="cuBLAS refused: CUBLAS_STATUS_EXECUTION_FAILED"), backend.active():
        launcher.calls[0]()


# ---- rounding, and cached plans


def test_f32_is_not_rounded(backend: CudaBackend) -> None:
    number, shapes = np.float32(1 + 2**-11), ((1, 1), (1, 8), (8,), (1, 8))
    a, b, bias, out = (cupy_emu.asarray(np.full(shape, number)) for shape in shapes)
    launcher = Launcher(backend.stream, backend.blas)
    assert launcher.gemm_with_epilogue(a, b, out, bias, None, "")
    launcher.calls[0]()
    np.testing.assert_array_equal(out.get(), np.full((1, 8), number * number + number))


@pytest.mark.emulator  # the libraries need not use tensor cores
def test_f32_in_tf32(tf32_backend: CudaBackend) -> None:
    """Operands are rounded; the bias and the sum are not. An exact product, and f16, are as without TF32."""
    number, shapes = np.float32(1 + 2**-12), ((1, 1), (1, 8), (8,), (1, 8))
    a, b, bias, out = (cupy_emu.asarray(np.full(shape, number)) for shape in shapes)
    launcher = Launcher(tf32_backend.stream, tf32_backend.blas)
    assert launcher.tf32
    for exact, product in ((False, 1), (True, number * number)):
        assert launcher.gemm_with_epilogue(a, b, out, bias, None, "", exact)
        assert isinstance(launcher.calls[-1], RoundingCall) != exact
        launcher.calls[-1]()
        np.testing.assert_array_equal(out.get(), np.full((1, 8), product + number, np.float32))
    halves = [cupy_emu.asarray(np.ones(shape, np.float16)) for shape in shapes]
    assert launcher.gemm_with_epilogue(*halves[:2], halves[3], halves[2], None, "")
    assert not isinstance(launcher.calls[-1], RoundingCall)


def test_f16_is_rounded_once(backend: CudaBackend) -> None:
    """2048 + 1 + 1 is 2050, and not 2048 from two roundings; partial sums are not rounded at all."""
    a = cupy_emu.asarray(np.array([[2048, 1, -2048, 2048]], np.float16))
    b, bias, residual = (cupy_emu.asarray(np.ones(shape, np.float16)) for shape in ((4, 8), 8, (1, 8)))
    out = cupy_emu.zeros((1, 8), np.float16)
    launcher = Launcher(backend.stream, backend.blas)
    assert launcher.gemm_with_epilogue(a, b, out, bias, residual, "")
    launcher.calls[0]()
    np.testing.assert_array_equal(out.get(), np.full((1, 8), 2052, np.float16))  # the nearest one to 2051


def test_plans_are_shared_and_freed(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shape has one plan for any bias; the library's objects are freed with the last call."""
    monkeypatch.setattr(blaslt, "MAX_PLANS", 2)
    gc.collect()
    built, build, before = list[blaslt.Problem](), blaslt.build, blaslt_emu.living()
    monkeypatch.setattr(blaslt, "build", lambda problem, *rest: (built.append(problem), build(problem, *rest))[1])
    blas = Blas(backend.stream)
    launcher = Launcher(backend.stream, blas)
    for rows in (3, 3, 4, 5, 5):
        given = [cupy_emu.zeros(shape, np.float32) for shape in ((rows, 24), WEIGHTS, (16,))]
        with_epilogue("", 1, 0).cuda(launcher, given, [cupy_emu.zeros((rows, 16), np.float32)], ())
    assert [problem.gemm.m for problem in built] == [3, 4, 5] and len(blas.lt._plans) == 2
    while launcher.calls:
        launcher.calls.pop()()
    del launcher, blas
    gc.collect()
    assert blaslt_emu.living() == before
