"""Attention whose kernels write codes of its results, on the emulated device: those of what they write otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.attention import _tensor_cores
from ovgpu.ops.attention.attention import ScaledDotProductAttention
from ovgpu.ops.base.strided import Axes
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.fused._elementwise import Layer
from ovgpu.ops.fused.attention_codes import AttentionWithCodes
from tests.emulator import cupy_emu, nvrtc

from .gate import ToCompile
from .recorded import kernel_name, run_calls
from .test_fused import BF16, F16, F32
from .test_norm_codes import codes

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
HEADS = {"q": (1, 2, 33, 16), "key": (1, 2, 140, 16), "v": (1, 2, 140, 16)}
ODD = {"q": (2, 33, 12), "key": (2, 40, 12), "v": (2, 40, 20)}
SWAPPED = {"q": (2, 10, 3, 24), "key": (2, 12, 3, 24), "v": (2, 12, 3, 24), "swapped": True}
CAUSAL = {"q": (1, 2, 5, 64), "key": (1, 2, 300, 64), "v": (1, 2, 300, 64), "causal": True, "sink": (1, 2, 1, 1)}
SPLIT = {"q": (1, 1, 4, 64), "key": (1, 1, 1032, 64), "v": (1, 1, 1032, 64), "mask": (4, 1032)}
SHARED = {"q": (2, 3, 1, 64), "key": (2, 1, 300, 64), "v": (2, 1, 300, 64)}


def run(
    backend: CudaBackend,
    q: Shape,
    key: Shape,
    v: Shape,
    mask: Shape | None = None,
    sink: Shape | None = None,
    kind: Any = F16,
    causal: bool = False,
    factor: bool = False,
    zero: int | None = None,
    limits: tuple[int, int] = (-128, 127),
    swapped: bool = False,
    odd: bool = False,
) -> list[str]:
    """Check the codes; return the names of the kernels. With ``swapped``, arrays of shape [B, L, H, E] are read and
    written as [B, H, L, E]; with ``odd``, results begin at an odd address."""
    random = np.random.default_rng(1)

    def draw(shape: Shape | None) -> Any:
        return None if shape is None else cupy_emu.asarray(random.standard_normal(shape).astype(kind))

    def laid_out(x: Any) -> Any:
        return x.swapaxes(1, 2) if swapped else x

    attention, after = ScaledDotProductAttention(causal=causal), codes(kind, factor, zero, *limits)
    with backend.stream:
        arrays = [draw(shape) for shape in (q, key, v, mask, None, sink)]
        given = [*map(laid_out, arrays[:3]), *arrays[3:]]
        shape = (*q[:-1], v[-1])
        values = laid_out(cupy_emu.empty(shape, kind))
        size = int(np.prod(shape))
        found = laid_out(cupy_emu.empty(size + 1, np.int8)[odd : size + odd].reshape(shape))
        factors = [random.uniform(0.3, 2, (values.shape[-3] if len(shape) > 3 else 1, 1, v[-1])).astype("f4")] * factor
        first, second = Launcher(backend.stream, backend.blas), Launcher(backend.stream, backend.blas)
        assert attention.cuda(first, given, [values], ()) is None
        op = AttentionWithCodes(attention=attention, codes=after, layer=Layer(attention, "attention", ""))
        workspace = [cupy_emu.empty(values.shape, kind)]
        assert op.cuda(second, [*given, *map(cupy_emu.asarray, factors)], [found], workspace) is None
        run_calls([*first.calls, *second.calls])
    (wanted,) = after.evaluate(NUMPY, values.get(), *factors)
    np.testing.assert_array_equal(found.get(), wanted)
    assert wanted.std() > 1
    return [kernel_name(call) for call in second.calls]


@pytest.mark.drawn(6)
@pytest.mark.parametrize("factor", [False, True])
@pytest.mark.parametrize(
    "case", [HEADS, SWAPPED, CAUSAL, SPLIT, SHARED], ids=["", "swapped", "causal", "split", "shared"]
)
def test_few_queries(case: dict[str, Any], factor: bool, backend: CudaBackend) -> None:
    for kind, odd in ((F16, False), (BF16, False), (F16, True)):
        (name,) = run(backend, **case, kind=kind, factor=factor, odd=odd)
        assert name.startswith("attend_stream<") and ", false, signed char, " in name


@pytest.mark.drawn(3)
@pytest.mark.parametrize("factor", [False, True])
@pytest.mark.parametrize(
    "case", [HEADS, SWAPPED, {**HEADS, "causal": True, "sink": (1, 2, 1, 1)}], ids=["", "swapped", "causal"]
)
def test_many_queries(
    case: dict[str, Any], factor: bool, backend: CudaBackend, tf32_backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results at an odd address are written one by one."""
    monkeypatch.setattr(_tensor_cores, "STREAMED_WIDTH", 0)
    for kind, given, vector in ((F16, backend, 8), (BF16, backend, 8), (F32, tf32_backend, 4)):
        for odd in (False, True):
            (name,) = run(given, **case, kind=kind, factor=factor, odd=odd)
            elements = 1 if odd else vector
            assert name.startswith("attend_mma<") and name.endswith(f", {elements}, int, 2, signed char, WHOLE>")


def test_rows_of_odd_length(backend: CudaBackend) -> None:
    (name,) = run(backend, **ODD, factor=True)
    assert name.endswith(", 1, int, 2, signed char, WHOLE>")


@pytest.mark.parametrize(("zero", "limits"), [(-128, (-128, 127)), (0, (-8, 7)), (37, (20, 45))])
def test_zero_points(zero: int, limits: tuple[int, int], backend: CudaBackend) -> None:
    run(backend, **HEADS, zero=zero, limits=limits)


def test_large_arrays(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Axes, "index", "long long")
    run(backend, **HEADS, factor=True)
    monkeypatch.setattr(_tensor_cores, "STREAMED_WIDTH", 0)
    run(backend, **HEADS, factor=True)


@pytest.mark.parametrize("order", ["ascending", "descending", 7])
def test_orders_of_threads(order: Any, backend: CudaBackend) -> None:
    with cupy_emu.thread_order(order):
        run(backend, **SPLIT, factor=True)


def test_two_kernels(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other kernels of attention write no codes."""
    wide = {"q": (2, 3, 160), "key": (2, 30, 160), "v": (2, 30, 160)}
    for case, kind in ((HEADS, F32), (wide, F16)):
        first, second = run(backend, **case, kind=kind, factor=True)
        assert first.startswith("attend_") and second.startswith("ovgpu_")
    monkeypatch.setattr(Launcher, "capability", 75)
    assert len(run(backend, **HEADS)) == 2


def test_no_keys(backend: CudaBackend) -> None:
    """Attention to no keys gives zeros, whose code is the zero point."""
    attention, after = ScaledDotProductAttention(), codes(F16, zero=5)
    op = AttentionWithCodes(attention=attention, codes=after, layer=Layer(attention, "attention", ""))
    with backend.stream:
        arrays = [cupy_emu.asarray(np.ones((1, n, 8), np.float16)) for n in (3, 0, 0)]
        found, launcher = cupy_emu.empty((1, 3, 8), np.int8), Launcher(backend.stream, backend.blas)
        assert op.cuda(launcher, arrays, [found], [cupy_emu.empty(found.shape, F16)]) is None
        run_calls(launcher.calls)
    np.testing.assert_array_equal(found.get(), 5)


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_kernels_compile_without_spills(architecture: str, to_compile: ToCompile) -> None:
    for file, end, names in (
        ("attention_stream.cu", "true", ["attend_stream<__half, BOOLEAN, 64, 64, 16, 32, int, 2, false"]),
        (
            "attention_mma.cu",
            "WHOLE",
            [
                "attend_mma<__half, NONE, 64, 64, 2, 64, 8, int, 2",
                "attend_mma<__half, BOOLEAN, 128, 128, 2, 32, 8, int, 2",
                "attend_mma<float, BOOLEAN, 64, 64, 1, 32, 4, int, 2",
            ],
        ),
    ):
        expressions = to_compile(file, [f"{name}, signed char, {end}>" for name in names])
        usage = nvrtc.compile_file(file, architecture, expressions).usage
        assert len(usage) == len(expressions)
        assert not any(u.spill_stores or u.spill_loads for u in usage.values())
