"""Matrix products on the emulated device against NumPy: layouts, batches, types, and numbers of calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.matrix.matmul import ExactMatMul, MatMul
from ovgpu.runtime.backend import RoundingCall
from tests.emulator import cupy_emu, nvrtc

from .gate import ToCompile
from .recorded import replay

Array = np.ndarray[Any, Any]
TOLERANCE = {"float32": 1e-5, "float64": 1e-13, "float16": 2e-3, "bfloat16": 1.6e-2}


def whole(x: Any) -> Any:
    return x


def swapped(x: Any) -> Any:
    return x.swapaxes(-1, -2)


# Shapes of a and b, views of them that are multiplied, and the number of cuBLAS calls.
CASES: list[tuple[tuple[int, ...], tuple[int, ...], Callable[[Any], Any], Callable[[Any], Any], int]] = [
    ((5, 7), (7, 3), whole, whole, 1),
    ((7, 5), (7, 3), swapped, whole, 1),
    ((5, 7), (3, 7), whole, swapped, 1),
    ((7, 5), (3, 7), swapped, swapped, 1),
    ((5, 9), (9, 8), lambda a: a[:, 1:8], lambda b: b[2:, 3:6], 1),
    ((1, 7), (7, 1), whole, whole, 1),
    ((7,), (7,), whole, whole, 1),
    ((7,), (7, 3), whole, whole, 1),
    ((14,), (7, 3), lambda a: a[::2], whole, 1),
    ((5, 7), (21,), whole, lambda b: b[::3], 1),
    ((7,), (2, 7, 3), whole, whole, 1),
    ((2, 5, 7), (7,), whole, whole, 1),
    ((2, 3, 5, 7), (7, 4), whole, whole, 1),  # one product of 30 rows
    ((2, 3, 1, 7), (7, 4), whole, whole, 1),
    ((5, 7), (6, 7, 4), whole, whole, 1),
    ((2, 3, 5, 7), (2, 3, 7, 4), whole, whole, 1),
    ((2, 3, 5, 7), (2, 1, 7, 4), whole, whole, 1),  # grouped queries: two products of 15 rows
    ((2, 5, 3, 7), (2, 4, 3, 7), lambda a: a.swapaxes(1, 2), lambda b: b.transpose(0, 2, 3, 1), 2),
    ((3, 1, 5, 7), (1, 4, 7, 2), whole, whole, 3),
    ((2, 4, 3, 5, 6), (4, 1, 6, 2), lambda a: a[:, ::2], lambda b: b[::2], 2),
]
# Layouts that cuBLAS does not support.
OTHER: list[tuple[tuple[int, ...], tuple[int, ...], Callable[[Any], Any], Callable[[Any], Any]]] = [
    ((5, 0), (0, 3), whole, whole),
    ((10, 7), (7, 3), lambda a: a[::-2], whole),
    ((5, 14), (7, 3), lambda a: a[:, ::2], whole),
    ((2, 17, 40), (40, 18), lambda a: a[::-1, :, ::2], lambda b: b[::2]),
]


def draw(shape: tuple[int, ...], kind: Any, seed: int) -> Array:
    random = np.random.default_rng(seed)
    if np.dtype(kind).kind in "iu":
        return random.integers(-9 if np.dtype(kind).kind == "i" else 0, 9, shape).astype(kind)
    return random.standard_normal(shape).astype(kind)


def multiply(
    backend: CudaBackend,
    shapes: tuple[tuple[int, ...], ...],
    parts: tuple[Callable[[Any], Any], ...],
    kind: Any,
    make: Callable[[tuple[int, ...]], Any] | None = None,
    **attributes: bool,
) -> list[str]:
    """Check a product, eagerly and replayed; return the names of the called functions."""
    op = MatMul(**attributes)
    kind = np.dtype(kind)
    draws = [[draw(s, kind, 2 * i + j) for i in range(3)] for j, s in enumerate(shapes)]
    a, b = (cupy_emu.empty(s, kind) for s in shapes)
    wide = np.int64 if kind.kind in "iu" else np.float64

    def wanted(i: int) -> list[Array]:
        left, right = op.operands(*(part(d[i]).astype(wide) for part, d in zip(parts, draws)))
        result = np.matmul(left, right)
        if kind.itemsize == 1:
            result = result.clip(np.iinfo(kind).min, np.iinfo(kind).max)
        return [np.asarray(result).astype(kind)]

    shape = wanted(0)[0].shape
    out = cupy_emu.empty(shape, kind) if make is None else make(shape)
    names: list[str] = []

    def record() -> Any:
        launcher = Launcher(backend.stream, backend.blas)
        assert op.cuda(launcher, (parts[0](a), parts[1](b)), [out], ()) is None
        names.extend(getattr(call.func, "__name__", "kernel") for call in launcher.calls)
        return launcher.calls

    replay(backend, record, [(a, draws[0]), (b, draws[1])], [out], wanted, TOLERANCE.get(kind.name, 0))
    return names


@pytest.mark.parametrize(("a", "b", "of_a", "of_b", "calls"), CASES)
def test_layouts(a: Any, b: Any, of_a: Any, of_b: Any, calls: int, backend: CudaBackend) -> None:
    names = multiply(backend, (a, b), (of_a, of_b), np.float32)
    assert names == ["_launch"] * calls


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("transposed", [False, True])
def test_types(kind: Any, transposed: bool, backend: CudaBackend) -> None:
    shapes = ((2, 9, 5), (2, 7, 9)) if transposed else ((2, 5, 9), (2, 9, 7))
    names = multiply(backend, shapes, (whole, whole), kind, transpose_a=transposed, transpose_b=transposed)
    assert names == ["_launch"]


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_16_bit_factors_with_f32_results(kind: Any, batch: tuple[int, ...], backend: CudaBackend) -> None:
    """One call gives results that are not rounded to 16 bits; cuBLAS does not multiply f32 into 16-bit results."""
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal((*batch, *shape)).astype(kind) for shape in ((5, 9), (9, 7)))
    out = cupy_emu.empty((*batch, 5, 7), np.float32)
    (call,) = backend.blas.matmul(cupy_emu.asarray(a), cupy_emu.asarray(b), out)
    call()
    np.testing.assert_allclose(out.get(), a.astype(np.float64) @ b.astype(np.float64), 1e-6, 1e-6)
    wide = cupy_emu.empty((5, 5), np.float32)
    assert backend.blas.matmul(wide, wide, cupy_emu.empty((5, 5), kind)) is None


@pytest.mark.parametrize("make", [
    lambda shape: cupy_emu.empty((*shape[:-1], 9), np.float32)[..., 2 : 2 + shape[-1]],
    lambda shape: cupy_emu.empty((*shape[:-2], shape[-1], shape[-2]), np.float32).swapaxes(-1, -2),
    lambda shape: cupy_emu.empty((shape[-2], *shape[:-2], shape[-1]), np.float32).transpose(1, 0, 2),
])  # fmt: skip
def test_strided_outputs(make: Callable[[tuple[int, ...]], Any], backend: CudaBackend) -> None:
    for shapes in (((3, 5, 7), (7, 4)), ((3, 5, 7), (3, 7, 4)), ((3, 1, 7), (7, 4)), ((3, 5, 7), (7, 1))):
        assert multiply(backend, shapes, (whole, whole), np.float32, make)[0] == "_launch"


@pytest.mark.parametrize(("a", "b", "of_a", "of_b"), OTHER)
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_layouts_without_cublas(a: Any, b: Any, of_a: Any, of_b: Any, kind: Any, backend: CudaBackend) -> None:
    assert multiply(backend, (a, b), (of_a, of_b), kind) == ["kernel"]


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.uint32, np.int64])
def test_integers(kind: Any, backend: CudaBackend) -> None:
    assert multiply(backend, ((2, 1, 17, 30), (3, 30, 18)), (whole, whole), kind) == ["kernel"]


@pytest.mark.parametrize("order", ["ascending", "descending", 7])
def test_orders_of_threads(order: Any, backend: CudaBackend) -> None:
    with cupy_emu.thread_order(order):
        multiply(backend, ((17, 33), (33, 18)), (whole, whole), np.int32)


def test_empty(backend: CudaBackend) -> None:
    for shapes in (((0, 5), (5, 3)), ((4, 5), (5, 0)), ((0, 4, 5), (5, 3))):
        assert multiply(backend, shapes, (whole, whole), np.float32) == []


def test_f32_is_not_rounded(backend: CudaBackend) -> None:
    a, b, out = (cupy_emu.empty((1, 1), np.float32) for _ in range(3))
    a[...] = b[...] = cupy_emu.asarray(np.array([[1 + 2**-11]], np.float32))
    for call in backend.blas.matmul(a, b, out) or ():
        call()
    backend.synchronize()
    assert out.get()[0, 0] == np.float32((1 + 2**-11) ** 2)


@pytest.mark.emulator  # the libraries need not use tensor cores
def test_tf32(tf32_backend: CudaBackend) -> None:
    """Operands in f32 are rounded, unless the product is exact; f64 and f16 are not."""
    for op, kind, wanted in (
        (MatMul(), np.float32, 2),
        (ExactMatMul(), np.float32, 2 + 2**-11),
        (MatMul(), np.float64, 2 + 2**-11),
        (MatMul(), np.float16, 2),
    ):
        a, b, out = (
            cupy_emu.asarray(np.full(shape, value, kind))
            for shape, value in (((3, 2), 1 + 2**-12), ((2, 8), 1), ((3, 8), 0))
        )
        launcher = Launcher(tf32_backend.stream, tf32_backend.blas)
        assert op.cuda(launcher, (a, b), [out], ()) is None
        (call,) = launcher.calls
        assert isinstance(call, RoundingCall) == (kind == np.float32 and type(op) is MatMul)
        call()
        np.testing.assert_array_equal(out.get(), np.full((3, 8), wanted, kind))


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_every_instantiation_compiles_for_devices(architecture: str, to_compile: ToCompile) -> None:
    types = ("float", "double", "__half", "__nv_bfloat16", "signed char", "unsigned char", "short", "int", "long long")
    expressions = [f"matmul<{t}, int, {rank}>" for t in types for rank in (2, 4, 8)] + ["matmul<int, long long, 2>"]
    expressions = to_compile("matmul.cu", expressions)
    usage = nvrtc.compile_file("matmul.cu", architecture, expressions).usage
    assert len(usage) == len(expressions)
    assert not any(u.spill_stores or u.spill_loads for u in usage.values())


@pytest.mark.parametrize("capability, mib", [("75", 4), ("89", 4), ("90", 32), ("120", 32)])
def test_workspace(capability: str, mib: int, emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request that multiplies has a workspace of the size that NVIDIA recommends for the card."""
    monkeypatch.setattr(cupy_emu.cuda.Device, "compute_capability", capability)
    backend = CudaBackend()
    with backend.active():
        assert backend.blas.handle is not None and backend.blas.workspace.mem.size == mib << 20
