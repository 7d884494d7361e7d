"""OneHot on the emulated device against its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.ops.sequence.one_hot import OneHot, OneHot16
from tests.emulator import nvrtc
from tests.kernels.recorded import axis, draws, run_op

from .gate import ToCompile


@pytest.mark.parametrize("where", [0, 1, -1])
@pytest.mark.parametrize("shape", [(5,), (4, 3), (600,), (0,)], ids=str)
def test_one_hot(shape: Any, where: int, backend: CudaBackend) -> None:
    inputs = [draws(shape, np.int64, -4, 8), axis(6), draws((), np.float32), draws((), np.float32)]
    assert len(run_op(backend, OneHot(axis=where), inputs)) == (0 not in shape)


@pytest.mark.parametrize("kind", [np.bool_, np.float16, np.int64], ids=lambda k: np.dtype(k).name)
def test_negative_indices_from_the_end(kind: Any, backend: CudaBackend) -> None:
    inputs = [draws((2, 7), np.int32, -8, 8), axis(5), draws((), kind, 1, 9), draws((), kind, 0, 1)]
    run_op(backend, OneHot16(axis=1, negative_indices_mode="normalize"), inputs)


@pytest.mark.parametrize("index", [np.int64, np.uint64, np.uint32], ids=lambda i: np.dtype(i).name)
@pytest.mark.parametrize("mode", ["ignore_negative", "normalize"])
def test_indices_far_out_of_range(mode: Any, index: Any, backend: CudaBackend) -> None:
    info = np.iinfo(index)
    far = np.array([info.max, info.max - 2, info.min, info.max // 2 + 1], index)
    names = run_op(
        backend,
        OneHot16(axis=1, negative_indices_mode=mode),
        [[far, far + index(1), far // index(3)], axis(5), draws((), np.float32, 1), draws((), np.float32, 0, 1)],
    )
    assert len(names) == 1


def test_other_layouts(backend: CudaBackend) -> None:
    inputs = [draws((6, 7), np.int8, -3, 8), axis(5), draws((), np.int32), draws((), np.int32)]
    run_op(backend, OneHot(axis=1), inputs, lambda x: x.T[::-2] if x.ndim else x)


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_compiles_for_devices(architecture: str, to_compile: ToCompile) -> None:
    sizes = ("unsigned char", "unsigned short", "unsigned int", "unsigned long long")
    expressions = [
        f"onehot<{t}, {index}, {i}, 4>" for t in sizes for index in ("int", "long long") for i in ("int", "long long")
    ]
    expressions = to_compile("onehot.cu", expressions)
    usage = nvrtc.compile_file("onehot.cu", architecture, expressions).usage
    assert len(usage) == len(expressions)
    assert not any(u.spill_stores or u.spill_loads for u in usage.values())
