"""Group normalisation of images whose channels are adjacent in memory, on the device."""

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
from ovgpu.ops.base.op import evaluate
from ovgpu.ops.base.strided import pixel_step
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.normalization import _group_norm
from ovgpu.ops.normalization._group_norm import Form
from ovgpu.ops.normalization.group_normalization import GroupNorm, GroupNormalization
from ovgpu.types import Type
from tests.emulator import cupy_emu as cp
from tests.emulator import nvrtc

from .forms import BF16, ORDERS, launches
from .recorded import kernel_name, replay, run_calls
from .test_convolution_epilogue import chain

F16, F32 = np.dtype(np.float16), np.dtype(np.float32)
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5}
SPLITS = ("NONE", "CLUSTER", "MOMENTS")
LAYERS = (Swish(), Multiply(), Add(), Add())  # two numbers per image and channel, one per channel, and one per element


@pytest.fixture(scope="module", autouse=True)
def device(emulated: str) -> str:
    return emulated


def force(patch: pytest.MonkeyPatch, split: str) -> None:
    """Let one block have an image, or a cluster, or the blocks of two launches; ``split`` is the template argument of
    the first kernel."""
    patch.setattr(Launcher, "has_clusters", split == "CLUSTER")
    patch.setattr(_group_norm, "PART_PIXELS", 1000 if split == "NONE" else 1)
    patch.setattr(_group_norm, "ALONE_PIXELS", 1000 if split == "NONE" else 0)


@pytest.fixture
def split(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    force(monkeypatch, request.param)
    found: str = request.param
    return found


def image(shape: Sequence[int], dtype: Any, before: int = 0, after: int = 0) -> Any:
    """Return a device array [N, C, H, W] whose channels are adjacent, with other channels before and after them."""
    batch, channels, *spatial = shape
    whole = cp.empty((batch, *spatial, before + channels + after), dtype)
    return whole[..., before : before + channels].transpose(0, len(shape) - 1, *range(1, len(shape) - 1))


def normalize(
    backend: CudaBackend,
    op: GroupNormalization,
    shape: Sequence[int],
    dtype: Any = F32,
    *,
    channels: tuple[int, int] = (0, 0),
    offset: float = 0,
    epilogue: bool = False,
    inplace: bool = False,
) -> list[str]:
    """Check the op on an image that is part of one with more channels, and return the names of its kernels."""
    random, dtype = np.random.default_rng(1), np.dtype(dtype)

    def drawn(*shape: int, offset: float = 0) -> list[Any]:
        return [(random.standard_normal(shape) + offset).astype(dtype) for _ in range(3)]

    with backend.stream:
        x, other = (image(shape, dtype, *channels) for _ in range(2))
        out = x if inplace else image(shape, dtype, channels[1], 2 * channels[0])
        others = [cp.empty((*shape[:2], 1, 1), dtype), cp.empty((shape[1], 1, 1), dtype), other]
        arrays = [x, *(cp.empty((shape[1],), dtype) for _ in range(2)), *(others if epilogue else ())]
        values = [drawn(*a.shape, offset=0 if i else offset) for i, a in enumerate(arrays)]
        launcher = Launcher(backend.stream, backend.blas)
        layers = chain(3, *LAYERS)
        assert op.cuda is not None
        op.cuda(launcher, arrays[:3], [out], (), layers if epilogue else None, arrays[3:])

        def wanted(draw: int) -> Any:
            given = [v[draw].astype(np.float64) for v in values]
            (found,) = evaluate(op, NUMPY, given[:3], [Type.f64])
            if epilogue:
                found = found / (1 + np.exp(-found)) * given[3] + given[4] + given[5]
            return (found,)

        tolerance = TOLERANCE[dtype.name] * (4 if epilogue else 5 if offset else 1)
        if inplace:
            for draw in range(3):
                for array, v in zip(arrays, values):
                    array[...] = cp.asarray(v[draw])
                run_calls(launcher.calls)
                np.testing.assert_allclose(out.get().astype(np.float64), wanted(draw)[0], tolerance, tolerance)
        else:
            replay(backend, lambda: launcher.calls, list(zip(arrays, values)), [out], wanted, tolerance)
    return [kernel_name(call) for call in launcher.calls]


@pytest.mark.drawn(4)
# Groups of 2 channels in half a chunk, of 10 that chunks straddle, of several chunks, of single channels; pixels that
# are no multiple of those of a block, and fewer than its threads take at once
@pytest.mark.drawn(16)
@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize("split", SPLITS, indirect=True)
@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((2, 64, 9, 31), 32),
        ((1, 80, 13, 11), 8),
        ((1, 120, 20, 9), 2),
        ((2, 32, 12, 12), 32),
        ((1, 8, 7, 70), 1),
        ((3, 24, 7, 41), 8),
    ],
    ids=str,
)
def test_shapes(shape: Any, groups: int, dtype: Any, split: str, backend: CudaBackend) -> None:
    names = normalize(backend, GroupNormalization(num_groups=groups, epsilon=1e-3), shape, dtype)
    kind = {"float32": "float", "float16": "__half"}.get(dtype.name, "__nv_bfloat16")
    first = f"normalize_pixels<{kind}, {16 // dtype.itemsize}, "
    assert names == [f"{first}{name}>" for name in ([split, "NORMALIZE"] if split == "MOMENTS" else [split])]


@pytest.mark.parametrize("split", SPLITS, indirect=True)
@pytest.mark.parametrize("order", ORDERS)
def test_channels_of_wider_images(order: Any, split: str, backend: CudaBackend) -> None:
    """x and the result are some channels of images, as in a Concat; so is an operand of the epilogue."""
    for op in (GroupNormalization(num_groups=4, epsilon=1e-3), GroupNorm(num_groups=2, epsilon=0.5, inside=False)):
        with cp.thread_order(order):
            names = normalize(backend, op, (2, 24, 9, 17), F16, channels=(8, 16), epilogue=True)
        assert len(names) == 1 + (split == "MOMENTS") and "Epilogue" in names[-1]


@pytest.mark.parametrize("split", SPLITS, indirect=True)
def test_in_place(split: str, backend: CudaBackend) -> None:
    normalize(backend, GroupNormalization(num_groups=8, epsilon=1e-3), (2, 32, 10, 21), F16, inplace=True)


@pytest.mark.parametrize("split", SPLITS, indirect=True)
def test_a_large_mean_costs_no_digits(split: str, backend: CudaBackend) -> None:
    """A mean of 300 is rounded to multiples of 3e-5; squares of such values, to multiples of 8e-3."""
    normalize(backend, GroupNormalization(num_groups=2, epsilon=1e-3), (1, 8, 30, 40), F32, offset=300)


def test_other_arrays_are_copied(backend: CudaBackend) -> None:
    """Channels that are no whole chunks, f64, and images of which one is dense."""
    for shape, dtype in (((2, 6, 5, 7), F16), ((1, 20, 4, 4), F16)):
        names = normalize(backend, GroupNormalization(num_groups=2, epsilon=1e-3), shape, dtype, epilogue=True)
        assert [name for name in names if "group_moments" in name]
    x, out = cp.empty((1, 8, 3, 5), np.float64), image((1, 8, 3, 5), np.float64)
    op = GroupNormalization(num_groups=2, epsilon=1e-3)
    scale, bias = (np.random.default_rng(i).standard_normal(8) for i in range(2))
    launcher = Launcher(backend.stream, backend.blas)
    assert op.cuda is not None
    op.cuda(launcher, [x, cp.asarray(scale), cp.asarray(bias)], [out], ())
    values = np.random.default_rng(3).standard_normal(x.shape)
    replay(
        backend,
        lambda: launcher.calls,
        [(x, [values] * 3)],
        [out],
        lambda draw: op.evaluate(NUMPY, values, scale, bias),
        1e-10,
    )


def test_empty() -> None:
    x, ones = image((0, 8, 3, 5), F16), cp.ones(8, F16)
    assert launches(GroupNormalization(num_groups=2, epsilon=1e-3), x, [ones, ones], [x]).calls == []


# Group norms of diffusion models on a card with 132 multiprocessors: U-Net of width 64, Stable Diffusion's and its
# decoder's, with and without clusters
@pytest.mark.parametrize(
    ("images", "pixels", "channels", "wanted", "in_cluster"),
    [
        (1, 64 * 64, 64, (16, 256, 512, 8, 2), (16, 256, 512, 8, 1)),
        (1, 16 * 16, 256, (16, 256, 256, 1, 1), (16, 256, 256, 1, 1)),
        (2, 64 * 64, 320, (40, 256, 256, 16, 2), (40, 256, 512, 8, 1)),
        (2, 8 * 8, 1280, (40, 256, 64, 1, 1), (40, 256, 64, 1, 1)),
        (1, 512 * 512, 128, (16, 256, 7944, 33, 2), (16, 256, 7944, 33, 2)),
    ],
)
def test_forms(images: int, pixels: int, channels: int, wanted: Any, in_cluster: Any) -> None:
    for max_cluster, (width, threads, length, parts, count) in ((1, wanted), (8, in_cluster)):
        found = Form.of(images, pixels, channels, channels // 32, 8, 132, max_cluster)
        assert found is not None
        assert (found.width, found.threads, found.length, found.parts, len(found.split)) == (
            width,
            threads,
            length,
            parts,
            count,
        )


def test_forms_of_many_groups() -> None:
    """Blocks have at most 64 groups, and a thread for each chunk; more channels in a group are not taken."""
    sizes = (8 * 37, 1), (2048, 2048), (4096, 4096), (12, 6)
    found = [Form.of(1, 100, channels, group, 8, 132, 8) for channels, group in sizes]
    assert [None if form is None else form.width for form in found] == [8, 2048, None, None]


def test_pixel_steps() -> None:
    for shape, channels, step in (((2, 8, 3, 5), (0, 0), 8), ((2, 8, 3, 5), (4, 12), 24), ((1, 8, 1, 1), (0, 0), 8)):
        assert pixel_step(image(shape, F32, *channels)) == step
    assert pixel_step(cp.empty((2, 8, 3, 5), F32)) == 0 and pixel_step(image((2, 8, 6, 5), F32)[:, :, ::2]) == 0
    assert pixel_step(cp.empty((2, 8), F32)) == 0 and pixel_step(image((2, 8, 3, 5), F32)[..., ::-1]) == 0


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_epilogues_compile_for_devices(architecture: str) -> None:
    """Kernels with a fused epilogue compile without spills."""
    splits = ("NONE", "CLUSTER", "NORMALIZE")
    for dtype, vector in (("float", 4), ("__half", 8)):
        kind = F32 if vector == 4 else F16
        source = functor("Epilogue", chain(3, *LAYERS), (kind,) * 4, _group_norm.MAX_EPILOGUE_OPERANDS, "common.cuh")
        names = [f"normalize_pixels<{dtype}, {vector}, {split}, Epilogue>" for split in splits]
        usage = nvrtc.compile_file("pixel_normalization.cu", architecture, names, source).usage
        assert len(usage) == len(names) and not any(u.spill_stores for u in usage.values())
