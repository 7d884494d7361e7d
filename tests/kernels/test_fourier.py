"""Fourier transforms on the emulated device: launches for each layout, cached plans, and a missing cuFFT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cuda import CudaBackend, cufft
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.base.op import Op, evaluate
from ovgpu.ops.base.strided import Axes
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.signal.fourier import DFT, IDFT, IRDFT, RDFT
from ovgpu.ops.signal.stft import ISTFT, STFT
from tests.emulator import cupy_emu
from tests.harness import Net

from .recorded import kernel_name, replay, spec

Pick = Callable[[Any], Any]


def whole(x: Any) -> Any:
    return x


def numbers(*values: int) -> Any:
    return np.array(values, np.int64)


def launched(
    backend: CudaBackend,
    op: Op,
    shapes: Sequence[tuple[int, ...]],
    host: Sequence[Any],
    kind: Any = np.float32,
    pick: Pick = whole,
) -> list[str]:
    """Check the CUDA form against `evaluate`; return the names of its launches. ``pick`` selects a part of the data."""
    drawn = [
        [np.random.default_rng([i, n]).uniform(0.5, 2, shape).astype(kind) for n in range(3)]
        for i, shape in enumerate(shapes)
    ]
    memory = [cupy_emu.asarray(draws[0]) for draws in drawn]
    given = [pick(memory[0]), *memory[1:], *host]
    specs = [spec(x, i in op.host_inputs) for i, x in enumerate(given)]
    inferred = op.infer_specs(*specs)

    def wanted(draw: int) -> Sequence[Any]:
        values = [pick(drawn[0][draw]), *(draws[draw] for draws in drawn[1:])]
        return evaluate(op, NUMPY, [*values, *host], [s.type for s in inferred])

    outputs = [cupy_emu.empty(s.shape, s.type.storage) for s in inferred]
    scratch = [cupy_emu.empty(shape, found.storage) for found, shape in op.workspace(specs, inferred)]
    launcher = Launcher(backend.stream, backend.blas)
    assert op.cuda is not None and op.cuda(launcher, given, outputs, scratch) is not NotImplemented
    tolerance = {"float16": 4e-3, "float64": 1e-12}.get(np.dtype(kind).name, 2e-5)
    replay(backend, lambda: launcher.calls, list(zip(memory, drawn)), outputs, wanted, tolerance)
    return [kernel_name(call).partition("<")[0] or "cuFFT" for call in launcher.calls]


LAUNCHES: list[tuple[Op, tuple[int, ...], Any, Pick, list[str]]] = [
    (DFT(), (3, 5, 6, 2), [numbers(2)], whole, ["cuFFT"]),
    (DFT(), (3, 5, 6, 2), [numbers(1, 2)], whole, ["cuFFT"]),
    (DFT(), (3, 5, 6, 2), [numbers(2, 1)], whole, ["copy_strided", "cuFFT", "copy_strided"]),
    (DFT(), (3, 5, 6, 2), [numbers(2), numbers(4)], whole, ["copy_strided", "cuFFT"]),
    (DFT(), (3, 5, 6, 2), [numbers(2), numbers(7)], whole, ["arrange", "cuFFT"]),
    (DFT(), (3, 5, 7, 2), [numbers(2)], lambda x: x[:, :, 1:], ["copy_strided", "cuFFT"]),
    (DFT(), (4, 5, 6, 2), [numbers(2)], lambda x: x[1:], ["cuFFT"]),
    (DFT(), (3, 5, 6, 2), [numbers(0, 1, 2)], whole, ["cuFFT"]),
    (IDFT(), (3, 5, 6, 2), [numbers(2)], whole, ["arrange", "cuFFT"]),
    (RDFT(), (3, 5, 6), [numbers(2)], whole, ["cuFFT"]),
    (RDFT(), (5, 7), [numbers(1)], lambda x: x[1:], ["copy_strided", "cuFFT"]),  # not aligned
    (RDFT(), (3, 5, 6), [numbers(1)], whole, ["copy_strided", "cuFFT", "copy_strided"]),
    (IRDFT(), (3, 5, 6, 2), [numbers(2)], whole, ["arrange", "symmetrize", "cuFFT"]),
    (IRDFT(), (3, 5, 6, 2), [numbers(0, 1, 2)], whole, ["arrange", "symmetrize", "cuFFT"]),
    (IRDFT(), (3, 5, 6, 2), [numbers(2, 0)], whole, ["arrange", "symmetrize", "cuFFT", "copy_strided"]),
]


@pytest.mark.parametrize(("op", "shape", "host", "pick", "wanted"), LAUNCHES)
def test_launches(
    op: Op, shape: tuple[int, ...], host: Any, pick: Pick, wanted: list[str], backend: CudaBackend
) -> None:
    assert launched(backend, op, [shape], host, pick=pick) == wanted


@pytest.mark.parametrize("op", [DFT(), IDFT(), RDFT(), IRDFT()], ids=lambda op: op.name)
@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_types(op: Op, kind: Any, backend: CudaBackend) -> None:
    shape = (3, 4, 5) if op.name == "RDFT" else (3, 4, 5, 2)
    names = launched(backend, op, [shape], [numbers(1, 2)], kind)
    assert len(names) == {"DFT": 3, "IDFT": 3, "RDFT": 3, "IRDFT": 4}[op.name] - (kind == np.float64) * (
        1 if op.inverse else 2
    )


@pytest.mark.parametrize("transposed", [False, True])
def test_stft(transposed: bool, backend: CudaBackend) -> None:
    names = launched(backend, STFT(transpose_frames=transposed), [(2, 300), (30,)], [np.array(40), np.array(9)])
    assert names == ["frame", "cuFFT", *(["copy_transposed"] if transposed else [])]


def test_long_frames(backend: CudaBackend) -> None:
    assert launched(backend, STFT(), [(2, 900), (300,)], [np.array(600), np.array(70)]) == ["frame", "cuFFT"]


@pytest.mark.parametrize("center", [False, True])
def test_istft(center: bool, backend: CudaBackend) -> None:
    names = launched(backend, ISTFT(center=center), [(2, 21, 30, 2), (40,)], [np.array(40), np.array(9)])
    assert names == ["copy_transposed", "symmetrize", "cuFFT", "overlap_add"]


def test_64_bit_indices(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Axes, "index", "long long")
    assert launched(backend, IDFT(), [(3, 5, 6, 2)], [numbers(0, 1), numbers(4, 4)])[0] == "arrange"


def test_plans_are_cached(backend: CudaBackend) -> None:
    ffts = cufft.Fft()
    x, y = (cupy_emu.empty((4, 5), np.complex64) for _ in range(2))
    (first,), (again,) = ffts.transform(x, y, 1, False), ffts.transform(y, x, 1, True)
    assert first.func.__self__ is again.func.__self__
    (other,) = ffts.transform(x[:3], y[:3], 1, False)
    assert other.func.__self__ is not first.func.__self__
    for n in range(1, cufft.MAX_PLANS + 3):
        x = cupy_emu.empty((1, n), np.complex64)
        ffts.transform(x, x, 1, False)
    assert len(ffts._plans) == cufft.MAX_PLANS


def test_unsupported_layouts(backend: CudaBackend) -> None:
    ffts = cufft.Fft()
    x = cupy_emu.empty((2, 3, 2, 3, 4), np.complex64)
    assert ffts.transform(x, x, 4, False) is None
    assert ffts.transform(x[..., 1:], x[..., 1:], 1, False) is None
    assert ffts.transform(x[0, 0, 0, 0, 1:], x[0, 0, 0, 0, :3], 1, False) is None  # 8 bytes after an aligned address


@pytest.mark.emulator
def test_no_cufft(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError("Failure finding libcufft.so.12\n  in a list of folders")

    net = Net("fft")
    net.result(net.layer("DFT", "opset7", [net.parameter("f32", (3, 4, 2)), net.const(numbers(1), "i64")], {}))
    monkeypatch.delattr(cupy_emu.cuda, "cufft")
    monkeypatch.setattr(cupy_emu.cuda, "__getattr__", missing, raising=False)
    with pytest.raises(ov.DeviceError, match=r"cuFFT cannot be loaded: Failure finding libcufft.so.12. pip install"):
        compiled(net.build())([np.zeros((3, 4, 2), np.float32)])
