"""Convolutions on the emulated device: which kernels run, and paths that the ops' own cases do not reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.kernels import Kernel
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.base.op import Op, evaluate
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.convolution import _convolved
from ovgpu.ops.convolution.binary_convolution import BinaryConvolution
from ovgpu.ops.convolution.convolution import (
    Convolution,
    ConvolutionBackpropData,
    GroupConvolution,
    GroupConvolutionBackpropData,
)
from ovgpu.ops.convolution.deformable_convolution import DeformableConvolution8
from ovgpu.types import Type
from tests.emulator import cupy_emu

from .recorded import kernel_name, replay

Array = np.ndarray[Any, Any]
Pick = Callable[[Any], Any]
Shapes = Sequence[tuple[int, ...]]
TOLERANCE = {"float32": 1e-4, "float64": 1e-12, "float16": 4e-3, "bfloat16": 3e-2}
BF16 = np.dtype(ml_dtypes.bfloat16)


def whole(x: Any) -> Any:
    return x


def draw(seed: list[int], shape: tuple[int, ...], whole: bool) -> Array:
    rng = np.random.default_rng(seed)
    return rng.integers(-9, 10, shape).astype(np.float64) if whole else rng.standard_normal(shape) / 4


def convolve(
    backend: CudaBackend,
    op: Op,
    x: tuple[int, ...],
    kernel: tuple[int, ...],
    kind: Any = np.float32,
    capacity: int = 1 << 16,
    pick: Pick = whole,
    into: Pick = whole,
    others: Shapes = (),
    exact: bool = False,
) -> list[str]:
    """Check the CUDA form against `evaluate`; return the kernels that it launches, "" for cuBLAS.

    ``capacity`` is the number of elements of the workspace. ``pick`` selects the data from an array of shape x, and
    ``into`` the output from a larger array. ``others`` are the shapes of further inputs. ``exact`` uses whole numbers
    and compares all bits.
    """
    kind = np.dtype(kind)
    draws = [
        [draw([i, n], shape, exact).astype(kind) for i in range(3)] for n, shape in enumerate((x, kernel, *others))
    ]

    def wanted(draw: int) -> list[Array]:
        given, *rest = (values[draw] for values in draws)
        return list(evaluate(op, NUMPY, [pick(given), *rest], [Type.of(kind)]))

    shape = wanted(0)[0].shape
    data, *rest = arrays = [cupy_emu.empty(shape, kind) for shape in (x, kernel, *others)]
    out = into(cupy_emu.empty(shape if into is whole else tuple(4 * n for n in shape), kind))
    out = out[tuple(slice(n) for n in shape)]
    transposed = isinstance(getattr(op, "convolution", op), ConvolutionBackpropData)
    sums = np.float32 if transposed and kind != np.float64 else kind
    launcher = Launcher(backend.stream, backend.blas)
    op.cuda(launcher, [pick(data), *rest], [out], [cupy_emu.empty((capacity,), sums)])  # type: ignore[misc]
    replay(
        backend, lambda: launcher.calls, list(zip(arrays, draws)), [out], wanted, 0 if exact else TOLERANCE[kind.name]
    )
    return [kernel_name(call).split("<")[0].removeprefix("_launch") for call in launcher.calls]


@pytest.mark.parametrize("kind", [np.float32, np.float16, BF16, np.float64])
def test_sums_are_split_where_tiles_are_few(kind: Any, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[tuple[int, int, int]] = []
    launch = Launcher.kernel

    def watched(self: Launcher, file: str, expression: str, grid: Any, *args: Any, **named: Any) -> None:
        launched.append(grid)
        assert named["cooperative"] == (grid[2] > 1)
        launch(self, file, expression, grid, *args, **named)

    monkeypatch.setattr(Launcher, "kernel", watched)
    names = convolve(backend, Convolution(pads_begin=(1, 0)), (1, 67, 5, 7), (3, 67, 3, 3), kind, capacity=0)
    assert (names, launched) == (["convolve_tiles"], [(1, 1, 4)])


def test_parts_that_do_not_fit_together(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """One block has the whole sum if the device cannot run all parts at the same time."""
    monkeypatch.setattr(Kernel, "resident", lambda self, threads, shared: 3)
    launched: list[Any] = []
    launch = Launcher.kernel
    monkeypatch.setattr(
        Launcher,
        "kernel",
        lambda self, *args, **named: (launched.append((args[2], named["cooperative"])), launch(self, *args, **named)),
    )
    convolve(backend, Convolution(pads_begin=(1, 0)), (1, 67, 5, 7), (3, 67, 3, 3), capacity=0)
    assert launched == [((1, 1, 1), False)]


def test_tiles_of_several_images(backend: CudaBackend) -> None:
    names = convolve(backend, Convolution(strides=(2, 1), dilations=(1, 2)), (5, 3, 9, 14), (70, 3, 3, 2))
    assert names == ["convolve_tiles"]


def test_tiles_of_groups(backend: CudaBackend) -> None:
    names = convolve(backend, GroupConvolution(auto_pad="same_upper"), (2, 27, 4, 7), (3, 10, 9, 2, 3))
    assert names == ["convolve_tiles"]


@pytest.mark.parametrize("op", [GroupConvolution(), GroupConvolutionBackpropData()])
def test_few_channels_per_group(op: Op, backend: CudaBackend) -> None:
    assert convolve(backend, op, (2, 12, 5, 7), (12, 1, 1, 3, 3), np.float16) == ["convolve_each"]


def test_one_tap_is_a_product(backend: CudaBackend) -> None:
    assert convolve(backend, Convolution(), (3, 5, 4, 7), (6, 5, 1, 1)) == [""]
    assert convolve(backend, GroupConvolution(), (3, 18, 4, 7), (2, 10, 9, 1, 1)) == [""] * 2
    assert convolve(backend, ConvolutionBackpropData(), (1, 5, 28), (5, 6, 1)) == [""]
    assert convolve(backend, Convolution(strides=(2, 1)), (3, 5, 4, 7), (6, 5, 1, 1)) == ["convolve_tiles"]


# A pixel has 5 * 6 products, and an image has 5 * 6 pixels.
@pytest.mark.parametrize(("capacity", "calls"), [(5000, 1), (1800, 2), (900, 3), (899, 6), (29, 0)])
def test_column_capacity(capacity: int, calls: int, backend: CudaBackend) -> None:
    names = convolve(backend, Convolution(pads_end=(1, 0)), (3, 5, 5, 8), (7, 5, 2, 3), np.float16, capacity)
    assert names == (["gather_columns", ""] * calls or ["convolve_tiles"])


@pytest.mark.parametrize(("capacity", "calls"), [(9000, 1), (2800, 2), (1400, 3)])
def test_fold_capacity(capacity: int, calls: int, backend: CudaBackend) -> None:
    op = ConvolutionBackpropData(strides=(2, 1), pads_begin=(1, 1), output_padding=(1, 0))
    assert convolve(backend, op, (3, 5, 5, 7), (5, 10, 2, 2), np.float16, capacity) == ["", "fold_columns"] * calls


PARTS: list[Pick] = [
    lambda a: a[:, 2:7],
    lambda a: a[:, :5, :, :],
    lambda a: a[:, 1:6, 2:, 3:],
    lambda a: a[:, 9:4:-1, ::2, ::3],
]


@pytest.mark.parametrize("part", range(len(PARTS)))
@pytest.mark.parametrize(
    ("op", "kernel", "kind"),
    [
        (Convolution(pads_begin=(1, 1)), (4, 5, 2, 3), np.float32),
        (Convolution(pads_begin=(1, 1)), (4, 5, 2, 3), np.float16),
        (Convolution(), (4, 5, 1, 1), np.float32),
        (ConvolutionBackpropData(strides=(1, 2)), (5, 4, 2, 3), np.float32),
        (GroupConvolution(), (5, 1, 1, 2, 3), np.float32),
    ],
)
def test_parts_of_tensors(op: Op, kernel: tuple[int, ...], kind: Any, part: int, backend: CudaBackend) -> None:
    convolve(backend, op, (2, 10, 8, 12), kernel, kind, pick=PARTS[part])
    convolve(backend, op, (2, 5, 4, 5), kernel, kind, into=PARTS[part])


def test_64_bit_indices(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_convolved, "LONG_INDEX", 0)
    convolve(backend, Convolution(pads_begin=(1, 1)), (1, 67, 5, 7), (3, 67, 3, 3))
    convolve(backend, Convolution(pads_begin=(1, 1)), (2, 5, 5, 7), (3, 5, 3, 3), np.float16)
    convolve(backend, ConvolutionBackpropData(strides=(2, 1)), (2, 5, 5, 7), (5, 3, 3, 3))
    for op in (GroupConvolution(), GroupConvolutionBackpropData()):
        convolve(backend, op, (2, 5, 5, 7), (5, 1, 1, 2, 3))


@pytest.mark.parametrize("order", ["descending", 7])
def test_orders_of_threads(order: Any, backend: CudaBackend) -> None:
    with cupy_emu.thread_order(order):
        convolve(backend, Convolution(pads_begin=(1, 0)), (1, 37, 5, 7), (3, 37, 3, 3))


@pytest.mark.parametrize(("capacity", "calls"), [(5400, 1), (3600, 2), (1800, 3)])
@pytest.mark.parametrize("fades", [False, True])
def test_deformed_column_capacity(capacity: int, calls: int, fades: bool, backend: CudaBackend) -> None:
    """An image has 30 pixels, each with 10 * 6 products. Data, offsets and output are parts of larger tensors."""
    op = DeformableConvolution8(group=2, deformable_group=5, pads_begin=(1, 0), bilinear_interpolation_pad=fades)
    rng = np.random.default_rng(1)
    shapes = [(3, 20, 6, 8), (3, 61, 5, 8), (4, 5, 3, 2), (3, 30, 5, 8)]
    x, offsets, kernel, mask = (rng.uniform(-2, 2, shape).astype(np.float32) for shape in shapes)
    given = [x[:, ::2, :, :7], offsets[:, 1:, :, :6], kernel, mask[..., :6]]
    (wanted,) = evaluate(op, NUMPY, given, [Type.f32])
    on_device = [cupy_emu.asarray(a) for a in (x, offsets, kernel, mask)]
    out = cupy_emu.empty((3, 8, 5, 6), np.float32)[:, 2:6]
    launcher = Launcher(backend.stream, backend.blas)
    x, offsets, kernel, mask = on_device
    assert (
        op.cuda(
            launcher,
            [x[:, ::2, :, :7], offsets[:, 1:, :, :6], kernel, mask[..., :6]],
            [out],
            [cupy_emu.empty((capacity,), np.float32)],
        )
        is None
    )
    for call in launcher.calls:
        call()
    backend.synchronize()
    np.testing.assert_allclose(out.get(), wanted, 1e-4, 1e-4)
    assert [kernel_name(c).split("<")[0] for c in launcher.calls].count("deform_columns") == calls


def test_signs_of_parts_of_tensors(backend: CudaBackend) -> None:
    op = BinaryConvolution(mode="xnor-popcount", pad_value=1.0, pads_begin=(1, 1), dilations=(1, 2))
    rng = np.random.default_rng(1)
    x, kernel = rng.integers(0, 2, (2, 6, 5, 9)).astype(np.int32), rng.integers(0, 2, (4, 3, 2, 3)).astype(np.uint8)
    (wanted,) = evaluate(op, NUMPY, [x[:, ::2, :, 1:], kernel], [Type.i32])
    device = cupy_emu.asarray(x)
    out = cupy_emu.empty((2, 8, 5, 5), np.int32)[:, ::2]
    launcher = Launcher(backend.stream, backend.blas)
    op.cuda(launcher, [device[:, ::2, :, 1:], cupy_emu.asarray(kernel)], [out], ())
    for call in launcher.calls:
        call()
    backend.synchronize()
    np.testing.assert_array_equal(out.get(), wanted)
