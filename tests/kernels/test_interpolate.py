"""Interpolate on the emulated device against its definition: layouts, padding, many axes, batches, 64-bit offsets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.base.strided import Axes
from ovgpu.ops.image.interpolate import Interpolate11
from tests.emulator import cupy_emu
from tests.kernels.recorded import axis, draws, kernel_name, replay, run_op


def resize(mode: Any, **attrs: Any) -> Interpolate11:
    return Interpolate11(mode=mode, shape_calculation_mode="sizes", **attrs)


def exact(*shape: int) -> list[Any]:
    return draws(shape, np.float32)


# Scales of two and four make the weights exact, so that the order of summation does not matter.
@pytest.mark.parametrize(
    ("mode", "kernel"),
    [
        ("nearest", "pick<unsigned int, 2, int, {}>"),
        ("linear", "resample<float, float, 2, 2, int, {}>"),
        ("cubic", "resample<float, float, 4, 2, int, {}>"),
    ],
)
@pytest.mark.parametrize(
    ("shape", "axes", "rank"),
    [((2, 3, 5, 7), (2, 3), 2), ((2, 5, 7, 3), (1, 2), 4), ((5, 3, 7, 3), (0, 2), 4), ((300, 3, 2), (1, 2), 2)],
    ids=str,
)
def test_axes(mode: Any, kernel: str, shape: Any, axes: Any, rank: int, backend: CudaBackend) -> None:
    sizes = np.array([shape[axes[0]] * 2, shape[axes[1]] * 4])
    names = run_op(backend, resize(mode), [exact(*shape), sizes, np.array(axes)])
    assert names == [kernel.format(rank)]


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_other_layouts(mode: Any, backend: CudaBackend) -> None:
    run_op(
        backend,
        resize(mode),
        [exact(6, 8, 5), np.array([10, 8]), np.array([0, 1])],
        lambda x: x.transpose(2, 1, 0)[:, ::-2] if x.ndim == 3 else x,
    )


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_into_a_part_of_another_array(mode: Any, backend: CudaBackend) -> None:
    data = exact(2, 3, 5)
    x, y = cupy_emu.empty((2, 3, 5), np.float32), cupy_emu.empty((2, 7, 10), np.float32)
    op, given = resize(mode), [np.array([6, 10]), np.array([1, 2])]

    def record() -> Any:
        launcher = Launcher(backend.stream, backend.blas)
        op.cuda(launcher, [x, *given], [y[:, 1:]], ())
        return launcher.calls

    def wanted(draw: int) -> Any:
        out = np.full(y.nbytes, 0xFB, np.uint8).view(np.float32).reshape(y.shape)
        out[:, 1:] = op.evaluate(np, data[draw], *given)[0]
        return [out]

    replay(backend, record, [(x, data)], [y], wanted)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_padding_is_zero(mode: Any, backend: CudaBackend) -> None:
    op = resize(mode, pads_begin=(0, 0, 2), pads_end=(0, 2, 1))
    run_op(backend, op, [exact(2, 3, 5), np.array([5, 8]), np.array([1, 2])])
    run_op(backend, op, [exact(2, 3, 5), np.array([10, 16]), np.array([1, 2])])


@pytest.mark.parametrize(
    ("mode", "axes", "launches"), [("nearest", 4, 2), ("linear", 3, 1), ("linear", 5, 2), ("cubic", 3, 2)]
)
def test_many_axes_take_several_launches(mode: Any, axes: int, launches: int, backend: CudaBackend) -> None:
    shape = (2, 3, 2, 3, 2)[:axes]
    op, sizes, data = resize(mode), np.array(shape) * 2, exact(*shape)
    x, y = cupy_emu.empty(shape, np.float32), cupy_emu.empty(sizes.tolist(), np.float32)
    scratch = [cupy_emu.empty((int(np.prod(sizes)),), np.uint32 if mode == "nearest" else np.float32) for _ in range(5)]
    launcher = Launcher(backend.stream, backend.blas)
    op.cuda(launcher, [x, sizes, np.arange(axes)], [y], scratch)
    assert len(launcher.calls) == launches
    replay(
        backend,
        lambda: launcher.calls,
        [(x, data)],
        [y],
        lambda draw: op.evaluate(np, data[draw], sizes, np.arange(axes)),
        tolerance=1e-5,
    )


def test_64_bit_offsets(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Axes, "index", "long long")
    names = run_op(backend, resize("linear"), [exact(2, 3, 5), np.array([10]), axis(2).reshape(1)])
    assert names == ["resample<float, float, 2, 1, long long, 2>"]
    names = run_op(backend, resize("nearest"), [exact(2, 3, 5), np.array([9]), axis(2).reshape(1)])
    assert names == ["pick<unsigned int, 1, long long, 2>"]


def test_small_images_fill_the_device(backend: CudaBackend) -> None:
    op = resize("linear")
    x, y = cupy_emu.empty((5000, 2, 2), np.float32), cupy_emu.empty((5000, 4, 4), np.float32)
    launcher = Launcher(backend.stream, backend.blas)
    op.cuda(launcher, [x, np.array([4, 4]), np.array([1, 2])], [y], ())
    (call,) = launcher.calls
    assert kernel_name(call).startswith("resample") and call.args[0] == (1, 1056)
