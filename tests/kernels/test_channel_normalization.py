"""Group normalisation and its relatives on the device: paths that the ops' own cases do not reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.elementwise import functor
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.activation.activation import Swish
from ovgpu.ops.arithmetic.arithmetic import Add, Multiply
from ovgpu.ops.base.op import Op, evaluate
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.normalization import _group_norm
from ovgpu.ops.normalization.channel_normalization import GRN, LRN, BatchNormInference5
from ovgpu.ops.normalization.group_normalization import GroupNorm, GroupNormalization
from ovgpu.types import Type
from tests.emulator import cupy_emu as cp
from tests.emulator import nvrtc

from .forms import FLOATS, ORDERS, TOLERANCE, check, random
from .recorded import kernel_name, replay
from .test_convolution_epilogue import chain

GROUPS = GroupNormalization(num_groups=2, epsilon=1e-3)
OUTSIDE = GroupNorm(num_groups=2, epsilon=0.5, inside=False)
LOCAL = LRN(alpha=0.5, beta=0.75, bias=1.5, size=3)


@pytest.fixture(scope="module", autouse=True)
def device(emulated: str) -> str:
    return emulated


def normalize(
    backend: CudaBackend,
    op: Op,
    shape: Sequence[int],
    dtype: Any = np.float32,
    inplace: bool = False,
    offset: float = 0,
) -> list[str]:
    """Check an op of data and per-channel parameters against its definition; return the kernels that it launches."""
    dtype = np.dtype(dtype)
    count = 4 if isinstance(op, BatchNormInference5) else 2
    draws = [[np.add(random(shape)(draw), offset).astype(dtype) for draw in range(3)]]
    draws += [[abs(random((shape[1],))(draw + 3 * i)).astype(dtype) for draw in range(3)] for i in range(count)]
    arrays = [cp.empty(values[0].shape, dtype) for values in draws]
    out = arrays[0] if inplace else cp.empty(shape, dtype)
    launcher = Launcher(backend.stream, backend.blas)
    assert op.cuda is not None and op.cuda(launcher, arrays, [out], ()) is not NotImplemented

    def wanted(draw: int) -> Any:
        return evaluate(op, NUMPY, [values[draw] for values in draws], [Type.of(dtype)])

    if inplace:  # `replay` would poison the output, which is the input
        for draw in range(3):
            for array, values in zip(arrays, draws):
                array.set(values[draw])
            for call in launcher.calls:
                call()
            np.testing.assert_allclose(out.get(), wanted(draw)[0], 1e-4, 1e-4)
    else:
        tolerance = TOLERANCE.get(dtype.name, 1e-4)
        replay(backend, lambda: launcher.calls, list(zip(arrays, draws)), [out], wanted, tolerance)
    return [kernel_name(call) for call in launcher.calls]


@pytest.mark.drawn(3)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("shape", [(2, 4, 3, 5), (1, 4, 8, 16), (3, 2)], ids=str)
def test_types(shape: Any, dtype: Any, backend: CudaBackend) -> None:
    vector = 16 // dtype.itemsize if len(shape) == 4 and shape[2] * shape[3] % 16 == 0 else 1
    (name,) = normalize(backend, GROUPS, shape, dtype)
    assert name.startswith("group_moments<") and name.endswith(f", {vector}>")
    normalize(backend, BatchNormInference5(epsilon=0.1), shape, dtype)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("area", [(16, 33), (16, 32), (9, 29)], ids=str)
def test_parts(area: tuple[int, int], order: Any, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks share a row, and their moments are merged."""
    monkeypatch.setattr(_group_norm, "MIN_PART_ELEMENTS", 100)
    for op in (GROUPS, OUTSIDE):
        with cp.thread_order(order):
            first, second = normalize(backend, op, (1, 6, *area))
    assert first.startswith("group_moments<float") and second.startswith("group_parts<float")


def test_in_place(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    normalize(backend, GROUPS, (2, 4, 9, 7), inplace=True)
    monkeypatch.setattr(_group_norm, "MIN_PART_ELEMENTS", 50)
    assert len(normalize(backend, GROUPS, (2, 4, 9, 8), inplace=True)) == 2


def test_a_large_mean_costs_no_digits(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in (1 << 20, 100):
        monkeypatch.setattr(_group_norm, "MIN_PART_ELEMENTS", part)
        normalize(backend, GROUPS, (1, 2, 30, 40), np.float64, offset=1e3)


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_epilogues_compile_for_devices(architecture: str) -> None:
    """Kernels with a fused epilogue compile without spills."""
    layers = chain(2, Add(), Multiply(), Swish())
    source = functor("Epilogue", layers, (np.dtype(np.float32),) * 3, _group_norm.MAX_EPILOGUE_OPERANDS, "common.cuh")
    names = [f"{name}<float, {vector}, Epilogue>" for name in ("group_moments", "group_parts") for vector in (1, 4)]
    usage = nvrtc.compile_file("channel_normalization.cu", architecture, names, source).usage
    assert len(usage) == len(names) and not any(u.spill_stores for u in usage.values())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_local_response(dtype: Any) -> None:
    for axes in ([1], [2, 3], [0, 3], [0, 1, 2, 3], []):
        check(LOCAL, random((2, 5, 4, 3), dtype), [np.array(axes, np.int64)])


def test_grn() -> None:
    check(GRN(bias=0.1), random((2, 5, 4, 3)), view=lambda a: a.transpose(0, 3, 1, 2))
    check(GRN(bias=0.1), random((2, 5, 4)), out=lambda a: a[:, ::2])


def test_empty(backend: CudaBackend) -> None:
    assert normalize(backend, GROUPS, (0, 4, 5)) == []
    assert check(LOCAL, random((0, 4, 5)), [[1]]) == 0
