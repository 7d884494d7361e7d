"""Whole models on CuPy's own arrays, see `tests.harness.arrays`: misuse of CuPy fails here, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.types import Type
from tests.harness import cuda
from tests.models.test_models import NAMES, check_calls

cupy = pytest.importorskip("cupy")
pytestmark = pytest.mark.emulator


@pytest.fixture(scope="module")
def device() -> Iterator[str]:
    with cuda.registered("arrays") as name:
        yield name


@pytest.mark.drawn(24)
@pytest.mark.parametrize("name", NAMES)
def test_models(name: str, device: str) -> None:
    """Models are recorded, then captured."""
    check_calls(name, device, 3)


@pytest.mark.parametrize("kind", [Type.f32, Type.bf16, Type.f8e4m3, Type.u4], ids=str)
def test_arrays_are_cupys(kind: Type, device: str) -> None:
    """Arrays are CuPy's, also for types that CuPy has no kernels for."""
    backend = CudaBackend()
    whole = backend.dense(backend.allocate(64), (2, 8), kind)
    part = backend.view(whole, kind.storage.itemsize, (2, 4), whole.strides)
    assert isinstance(whole, cupy.ndarray) and isinstance(part, cupy.ndarray)
    values = np.arange(16, dtype=np.uint8).reshape(2, 8).astype(kind.storage)
    whole.set(values, stream=backend.stream)
    assert np.array_equal(whole[:, 1:5].get(), values[:, 1:5])
    assert part.data.ptr == whole[:, 1:].data.ptr and part.strides == whole[:, 1:].strides


def test_cupys_errors(device: str) -> None:
    backend = CudaBackend()
    block = backend.allocate(64)
    with pytest.raises(TypeError, match="Cannot convert"):
        backend.cupy.ndarray((2,), np.float32, memptr=block.emulated)
    with pytest.raises(ValueError, match="cannot reshape"):
        backend.dense(block, (2, 8), Type.f32).reshape(3, 5)
