"""Pooling of regions on the device: element types, and images that do not exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.base.op import Op, evaluate
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.detection.roi_align import ROIAlign9, ROIAlignRotated
from ovgpu.ops.detection.roi_pooling import DeformablePSROIPooling, PSROIPooling, ROIPooling
from ovgpu.types import Type
from tests.emulator import cupy_emu as cp

from .forms import FLOATS, TOLERANCE, random
from .recorded import kernel_name, replay

SIZE: dict[str, Any] = {"pooled_h": 2, "pooled_w": 3, "spatial_scale": 0.5}
CELLS: dict[str, Any] = {"output_dim": 2, "group_size": 2, "spatial_bins_x": 2, "spatial_bins_y": 1}
OPS: dict[str, Op] = {
    "max": ROIPooling(**SIZE),
    "bilinear": ROIPooling(**SIZE, method="bilinear"),
    "average": ROIAlign9(**SIZE, mode="avg", sampling_ratio=2, aligned_mode="half_pixel"),
    "adaptive": ROIAlign9(**SIZE, mode="max", sampling_ratio=0),
    "turned": ROIAlignRotated(**SIZE, sampling_ratio=2),
    "clockwise": ROIAlignRotated(**SIZE, sampling_ratio=0, clockwise_mode=True),
    "sensitive": PSROIPooling(**CELLS, spatial_scale=0.5),
    "cells": PSROIPooling(**CELLS | {"spatial_bins_y": 2}, spatial_scale=0.5, mode="bilinear"),
    "deformable": DeformablePSROIPooling(**CELLS, spatial_scale=0.5, part_size=3, trans_std=0.5),
}


def pool(backend: CudaBackend, op: Any, dtype: Any, images: Any = np.int32) -> list[str]:
    """Check an op against its definition; return the kernels that it launches. Some regions have no image."""
    shape, count, wanted_type = (2, 8, 7, 9), 5, Type.of(dtype)
    aligned = isinstance(op, (ROIAlign9, ROIAlignRotated))

    def regions(draw: int) -> Any:
        rng = np.random.default_rng([draw, 1])
        if getattr(op, "method", getattr(op, "mode", "")) == "bilinear":
            return np.concatenate([rng.integers(-1, 3, (count, 1)), rng.integers(0, 5, (count, 4)) / 4], 1)
        corners = np.sort(rng.integers(-2, 20, (count, 2, 2)), 1).reshape(count, 4)
        if aligned and op.rotated:
            return np.concatenate([corners, rng.integers(-8, 9, (count, 1)) / 4], 1)
        return corners if aligned else np.concatenate([rng.integers(-1, 3, (count, 1)), corners], 1)

    draws: list[Sequence[Any]] = [
        [random(shape, dtype)(draw) for draw in range(3)],
        [regions(draw).astype(dtype) for draw in range(3)],
    ]
    if aligned:
        draws.append([np.random.default_rng(draw).integers(0, 3, count).astype(images) for draw in range(3)])
    if isinstance(op, DeformablePSROIPooling):
        draws.append([random((count, 4, 3, 3), dtype, 1)(draw) for draw in range(3)])
    arrays = [cp.empty(values[0].shape, values[0].dtype) for values in draws]

    def wanted(draw: int) -> Any:
        return evaluate(op, NUMPY, [values[draw] for values in draws], [wanted_type])

    out = cp.empty(wanted(0)[0].shape, dtype)
    launcher = Launcher(backend.stream, backend.blas)
    assert op.cuda(launcher, arrays, [out], ()) is not NotImplemented
    replay(backend, lambda: launcher.calls, list(zip(arrays, draws)), [out], wanted, TOLERANCE.get(dtype.name, 1e-5))
    return [kernel_name(call) for call in launcher.calls]


@pytest.mark.drawn(8)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_types(op: str, dtype: Any, backend: CudaBackend) -> None:
    assert len(pool(backend, OPS[op], dtype)) == 1


@pytest.mark.parametrize("images", [np.int64, np.uint8], ids=lambda t: np.dtype(t).name)
def test_images(images: Any, backend: CudaBackend) -> None:
    (name,) = pool(backend, OPS["average"], np.dtype(np.float32), images)
    assert name == f"roi_align<float, {'unsigned char' if images is np.uint8 else 'long long'}, false>"


def test_empty(backend: CudaBackend) -> None:
    launcher = Launcher(backend.stream, backend.blas)
    for shape, regions, done in (((1, 2, 3, 4), 0, None), ((1, 2, 0, 4), 3, NotImplemented)):
        given = [cp.empty(shape, np.float32), cp.empty((regions, 5), np.float32)]
        found = ROIPooling(**SIZE).cuda(launcher, given, [cp.empty((regions, 2, 2, 3), np.float32)], ())
        assert found is done and not launcher.calls
