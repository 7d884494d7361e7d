"""GridSample, patches and video formats on the emulated device against their definitions, beyond the ops' cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.ops.base.strided import Axes
from ovgpu.ops.image.color import I420toRGB, NV12toBGR
from ovgpu.ops.image.grid_sample import GridSample
from ovgpu.ops.movement.patches import Col2Im, ExtractImagePatches
from tests.kernels.recorded import draws, run_op

FAR = [-np.inf, -3e38, -1e9, -2.0, -1.0, 0.0, 1.0, 7.5, 1e9, 3e38, np.inf, np.nan]
PADDINGS = ("zeros", "border", "reflection")


def exact_grid(n: int, rows: int, columns: int, kind: Any = np.float32) -> list[Any]:
    """Return grids of multiples of 1/4, whose weights are exact in an image of 4 by 8."""
    return [(x / 4).astype(kind) for x in draws((n, rows, columns, 2), np.float64, -8, 9)]


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("align", [False, True])
def test_coordinates_far_out_of_range(padding: Any, align: bool, backend: CudaBackend) -> None:
    far = np.stack(np.meshgrid(FAR, FAR), axis=2)[None].astype(np.float32)
    op = GridSample(mode="nearest", padding_mode=padding, align_corners=align)
    names = run_op(backend, op, [draws((1, 2, 4, 8), np.float32), [far, far[:, ::-1].copy(), far[..., ::-1].copy()]])
    assert names == ["sample_nearest<unsigned int, float>"]


@pytest.mark.parametrize("kind", [np.float16, np.float64], ids=lambda k: np.dtype(k).name)
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_types_of_grids(mode: Any, kind: Any, backend: CudaBackend) -> None:
    run_op(backend, GridSample(mode=mode), [draws((2, 3, 4, 8), np.float32), exact_grid(2, 3, 5, kind)])


@pytest.mark.parametrize("kind", [np.uint8, np.float16, np.int64], ids=lambda k: np.dtype(k).name)
def test_nearest_moves_bits(kind: Any, backend: CudaBackend) -> None:
    (name,) = run_op(backend, GridSample(mode="nearest"), [draws((1, 2, 4, 8), kind), exact_grid(1, 3, 5)])
    assert name.startswith("sample_nearest<unsigned")


def test_many_channels_and_points(backend: CudaBackend) -> None:
    run_op(backend, GridSample(padding_mode="border"), [draws((2, 37, 4, 8), np.float32), exact_grid(2, 13, 23)])


@pytest.mark.parametrize("pad", ["valid", "same_upper", "same_lower"])
@pytest.mark.parametrize(
    "pick", [lambda x: x, lambda x: x.transpose(0, 1, 3, 2)[:, ::-1, ::2]], ids=["dense", "strided"]
)
def test_patches(pick: Any, pad: Any, backend: CudaBackend) -> None:
    op = ExtractImagePatches(sizes=(3, 2), strides=(2, 1), rates=(1, 2), auto_pad=pad)
    for kind in (np.uint8, np.float16, np.float32, np.int64):
        run_op(backend, op, [draws((2, 3, 9, 12), kind)], pick)


def test_patches_with_64_bit_offsets(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Axes, "index", "long long")
    op = ExtractImagePatches(sizes=(2, 2), strides=(1, 1), rates=(1, 1), auto_pad="same_lower")
    assert run_op(backend, op, [draws((2, 3, 5, 4), np.float32)]) == ["extract<unsigned int, long long, 8>"]


@pytest.mark.parametrize("kind", [np.int8, np.uint16, np.int64, np.float32], ids=lambda k: np.dtype(k).name)
def test_col2im(kind: Any, backend: CudaBackend) -> None:
    op = Col2Im(strides=(2, 1), dilations=(1, 3), pads_begin=(1, 2), pads_end=(0, 1))
    run_op(backend, op, [draws((2, 18, 36), kind, 0, 9), np.array([7, 12]), np.array([3, 2])])


@pytest.mark.parametrize("op", [NV12toBGR(), I420toRGB()], ids=lambda op: op.name)
def test_frames_larger_than_a_block(op: Any, backend: CudaBackend) -> None:
    assert run_op(backend, op, [draws((2, 48, 70, 1), np.uint8, 0, 256)]) == ["from_yuv<unsigned char>"]
