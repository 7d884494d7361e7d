"""The stand-in for CuPy's plans of cuFFT: CuPy's own names, results, and the calls that it refuses."""

from __future__ import annotations

import inspect
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from . import cufft_emu
from . import cupy_emu as cp
from .state import CaptureError


@pytest.fixture(scope="module")
def source() -> str:
    """Return the source of CuPy's cufft module, which cannot be imported without the library."""
    spec = find_spec("cupy")
    if spec is None or spec.origin is None:
        pytest.skip("CuPy is not installed")
    folder = Path(spec.origin).parent / "cuda"
    return "".join((folder / f"cufft.{suffix}").read_text() for suffix in ("pxd", "pyx"))


@pytest.mark.parametrize("function", ["__init__", "fft"])
def test_arguments(function: str, source: str) -> None:
    body = r"^cdef class PlanNd:\n(?: .*\n|\n)*?"
    listed = re.search(rf"{body}    def {function}\(self, ([^)]*)\):", source, re.MULTILINE)
    assert listed is not None
    names = [argument.split()[-1] for argument in listed[1].split(",")]
    ours = [*inspect.signature(getattr(cufft_emu.PlanNd, function)).parameters][1:]
    assert (names[: names.index("*")] if "*" in names else names) == ours


@pytest.mark.parametrize("name", [name for name in vars(cufft_emu) if name.startswith("CUFFT_")])
def test_numbers(name: str, source: str) -> None:
    (number,) = re.findall(rf"^ *{name} = (\S+)$", source, re.MULTILINE)
    assert int(number, 0) == getattr(cufft_emu, name)


def plan(*shape: int, form: int = cufft_emu.CUFFT_C2C, batch: int = 2) -> cufft_emu.PlanNd:
    return cufft_emu.PlanNd(shape, None, 1, 0, None, 1, 0, form, batch, "C", len(shape) - 1, None)


def spectra(*lengths: int) -> Any:
    """Return spectra of real signals."""
    signals = np.random.default_rng(1).standard_normal((2, *lengths))
    return np.fft.rfftn(signals, axes=range(1, 1 + len(lengths))).astype(np.complex64)


@pytest.mark.parametrize("lengths", [(5,), (6,), (3, 4), (2, 3, 5)])
def test_real_signals(lengths: tuple[int, ...]) -> None:
    x, out = cp.asarray(spectra(*lengths)), cp.empty((2, *lengths), np.float32)
    expected = np.fft.irfftn(x.get(), lengths, range(1, 1 + len(lengths)), norm="forward")
    plan(*lengths, form=cufft_emu.CUFFT_C2R).fft(x, out, cufft_emu.CUFFT_INVERSE)
    np.testing.assert_allclose(out.get(), expected, 1e-5, 1e-5)
    assert (x.get().view(np.uint8) == cufft_emu.POISON).all()


@pytest.mark.parametrize(
    ("lengths", "bin", "refused"),
    [((6,), 0, True), ((6,), 3, True), ((6,), 2, False), ((5,), 2, False), ((3, 4), 0, True)],
)
def test_spectra_of_no_real_signals(lengths: tuple[int, ...], bin: int, refused: bool) -> None:
    x = spectra(*lengths)
    x[..., bin] += 1j
    run = plan(*lengths, form=cufft_emu.CUFFT_C2R).fft
    arguments = cp.asarray(x), cp.empty((2, *lengths), np.float32), cufft_emu.CUFFT_INVERSE
    if refused:
        with pytest.raises(cufft_emu.CuFFTError, match="not that of real signals"):
            run(*arguments)
    else:
        run(*arguments)


def test_refused() -> None:
    for shape, batch in (((0,), 1), ((3,), 0), ((2, 2, 2, 2), 1), ((), 1)):
        with pytest.raises(cufft_emu.CuFFTError, match="INVALID_SIZE"):
            plan(*shape, batch=batch)
    memory = cp.empty((64,), np.float32)
    with pytest.raises(cufft_emu.CuFFTError, match="UNALIGNED"):
        plan(3).fft(memory[1:], memory, cufft_emu.CUFFT_FORWARD)


def test_captures_only_executions() -> None:
    stream = cp.cuda.Stream(non_blocking=True)
    with stream:
        made, x = plan(3), cp.asarray(np.ones((2, 3), np.complex64))
        stream.begin_capture()
        with pytest.raises(CaptureError, match="making a plan"):
            plan(3)
        made.fft(x, x, cufft_emu.CUFFT_FORWARD)
        graph = stream.end_capture()
        graph.launch(stream)
        graph.launch(stream)
        assert x.get().tolist() == [[3, 3, 3]] * 2
