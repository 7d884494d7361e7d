"""Attention in f16 and bf16 that streams keys through registers, on the emulated device against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.attention import _attention
from ovgpu.ops.attention.attention import ScaledDotProductAttention
from ovgpu.ops.base.strided import Axes
from ovgpu.ops.base.xp import NUMPY
from tests.emulator import cupy_emu, nvrtc

from .gate import ToCompile
from .recorded import kernel_name, replay
from .test_attention import attend, attend_hidden

Array = np.ndarray[Any, Any]
HALF, BF16 = np.float16, ml_dtypes.bfloat16
FORMS: list[dict[str, Any]] = [
    {"q": (2, 3, 1, 64), "key": (2, 3, 300, 64), "v": (2, 3, 300, 64)},
    {"q": (1, 2, 4, 1, 64), "key": (1, 2, 1, 264, 64), "v": (1, 2, 1, 264, 64), "mask": (1, 1, 1, 1, 264)},
    {"q": (1, 2, 4, 1, 64), "key": (1, 2, 1, 263, 64), "v": (1, 2, 1, 263, 64), "mask": (1, 1, 1, 1, 263)},
    {
        "q": (1, 2, 12, 1, 64),
        "key": (1, 2, 1, 264, 64),
        "v": (1, 2, 1, 264, 64),
        "mask": (1, 1, 1, 1, 264),
        "hidden": True,
        "sink": (1, 2, 12, 1, 1),
        "scale": True,
    },
    {"q": (1, 2, 5, 64), "key": (1, 2, 300, 64), "v": (1, 2, 300, 64), "causal": True, "sink": (1, 2, 1, 1)},
    {"q": (2, 70, 40), "key": (2, 140, 40), "v": (2, 140, 56), "mask": (2, 70, 140), "hidden": True},
    {"q": (1, 33, 16), "key": (1, 270, 16), "v": (1, 270, 16), "causal": True},
    {"q": (1, 20, 8), "key": (1, 40, 8), "v": (1, 40, 8), "mask": (20, 1)},
    {"q": (2, 10, 3, 24), "key": (2, 12, 3, 24), "v": (2, 12, 3, 24), "swapped": True, "mask": (1, 1, 1, 12)},
    {"q": (1, 2, 4, 3, 64), "key": (1, 2, 1, 600, 64), "v": (1, 2, 1, 600, 64), "mask": (1, 1, 1, 3, 600)},
    {
        "q": (1, 2, 3, 5, 32),
        "key": (1, 2, 1, 530, 32),
        "v": (1, 2, 1, 530, 32),
        "mask": (1, 2, 3, 5, 530),
        "sink": (1, 2, 3, 5, 1),
    },
    {
        "q": (2, 10, 3, 24),
        "key": (2, 400, 1, 24),
        "v": (2, 400, 1, 24),
        "swapped": True,
        "mask": (1, 3, 1, 400),
        "hidden": True,
    },
    {"q": (1, 3, 128), "key": (1, 200, 128), "v": (1, 200, 72), "mask": (3, 200), "hidden": True},
]


@pytest.mark.drawn(16)
@pytest.mark.usefixtures("clusters")
@pytest.mark.parametrize("kind", [HALF, BF16])
@pytest.mark.parametrize("case", FORMS)
def test_forms(case: dict[str, Any], kind: Any, backend: CudaBackend) -> None:
    calls = attend(backend, **case, kind=kind)
    assert len(calls) == 1 and "attend_stream<" in kernel_name(calls[0])


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("size", "queries", "form"),
    [
        (64, 1, "64, 64, 8, 32"),
        (32, 9, "32, 64, 16, 32"),
        (64, 64, "64, 64, 32, 32"),
        (80, 40, "96, 128, 16, 16"),
        (128, 4, "128, 128, 8, 16"),
    ],
)
def test_sizes_of_heads(size: int, queries: int, form: str, backend: CudaBackend) -> None:
    heads = backend.cupy.cuda.Device().attributes["MultiProcessorCount"] // 2
    (call,) = attend(backend, (heads, queries, size), (heads, 140, size), (heads, 140, size), kind=HALF)
    assert kernel_name(call) == f"attend_stream<__half, NONE, {form}, int, 2, false, __half, false>"


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("heads", "queries", "keys", "grid", "in_memory"),
    [
        ((1, 4), 1, 1032, (8, 1), (1, 8)),
        ((1, 4), 1, 768, (4, 1), (1, 1)),  # merging through memory takes as long as 6 trips
        ((1, 4), 1, 300, (1, 1), (1, 1)),
        ((1, 4), 1, 8192, (1, 64), (1, 64)),  # a cluster would leave most multiprocessors idle
        ((8, 4), 1, 8192, (16, 8), (8, 33)),
        ((8, 4), 4, 8192, (16, 8), (8, 33)),  # heads that share their keys are rows of a tile
        ((8, 4), 8, 8192, (16, 8), (8, 33)),
        ((32, 1), 8, 8192, (8, 32), (32, 8)),
    ],
)
def test_splits_of_long_keys(
    heads: tuple[int, int],
    queries: int,
    keys: int,
    grid: tuple[int, int],
    in_memory: tuple[int, int],
    clusters: bool,
    backend: CudaBackend,
) -> None:
    """Long keys are split into parts of at least 128 keys, and into no more parts than fill the device."""
    q, key = cupy_emu.empty((1, *heads, queries, 64), HALF), cupy_emu.empty((1, heads[0], 1, keys, 64), HALF)
    launcher = Launcher(backend.stream, backend.blas)
    assert ScaledDotProductAttention().cuda(launcher, [q, key, key], [cupy_emu.empty(q.shape, HALF)], ()) is None
    (call,) = launcher.calls
    assert kernel_name(call).startswith("attend_stream<")
    assert call.args[0] == (grid if clusters else in_memory)


@pytest.mark.usefixtures("clusters")
@pytest.mark.parametrize("keys", [1, 100, 128, 129, 600, 1000])
def test_lengths_on_the_device(keys: int, backend: CudaBackend) -> None:
    """One launch serves all lengths up to the capacity; elements beyond the length are not read."""
    draws = [
        [np.random.default_rng(i + n).standard_normal(s).astype(HALF) for n in range(3)]
        for i, s in enumerate([(1, 2, 4, 1, 16), (1, 2, 1, 1024, 16), (1, 2, 1, 1024, 16), (1, 1, 1, 1, 1024)])
    ]
    for values in draws[1:3]:
        for x in values:
            x[..., keys:, :] = np.nan
    device = [cupy_emu.empty(d[0].shape, d[0].dtype) for d in draws]
    length, out = cupy_emu.asarray(np.array([keys])), cupy_emu.empty((1, 2, 4, 1, 16), HALF)
    op = ScaledDotProductAttention()

    def record() -> list[Any]:
        launcher = Launcher(backend.stream, backend.blas)
        assert _attention.attend(launcher, (*device, None, None), out, False, length) is None
        return launcher.calls

    def wanted(n: int) -> list[Array]:
        q, k, v, mask = (d[n].astype(np.float64) for d in draws)
        return list(op.evaluate(NUMPY, q, k[..., :keys, :], v[..., :keys, :], mask[..., :keys]))

    replay(backend, record, list(zip(device, draws)), [out], wanted, 2e-3)


def test_large_arrays(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has 64-bit indices, which arrays of 2**31 elements need."""
    monkeypatch.setattr(Axes, "index", "long long")
    (call,) = attend(backend, (2, 30, 24), (2, 40, 24), (2, 40, 8), (2, 30, 40), kind=BF16)
    form = "32, 64, 16, 32, long long, 2, false, __nv_bfloat16, false"
    assert kernel_name(call) == f"attend_stream<__nv_bfloat16, ADDED, {form}>"


@pytest.mark.drawn(3)
@pytest.mark.usefixtures("clusters")
@pytest.mark.parametrize("order", ["ascending", "descending", 7])
def test_orders_of_threads(order: Any, backend: CudaBackend) -> None:
    with cupy_emu.thread_order(order):
        for case in FORMS[3], FORMS[5], FORMS[9]:
            attend(backend, **case, kind=HALF)


@pytest.mark.parametrize("lowest", [False, True])
def test_rows_whose_keys_are_hidden(lowest: bool, backend: CudaBackend) -> None:
    attend_hidden(backend, 270, BF16, lowest)


def test_shapes_and_capabilities(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel needs rows in multiples of 16 bytes, heads of up to 128, and a compute capability of 8.0."""
    (call,) = attend(backend, (1, 3, 12), (1, 40, 12), (1, 40, 12), kind=HALF)
    assert "attend_split<" in kernel_name(call)
    (call,) = attend(backend, (1, 3, 136), (1, 40, 136), (1, 40, 136), kind=HALF)
    assert "attend_split<" in kernel_name(call)
    monkeypatch.setattr(Launcher, "capability", 75)
    (call,) = attend(backend, (1, 3, 16), (1, 40, 16), (1, 40, 16), kind=HALF)
    assert "attend_split<" in kernel_name(call)


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_kernels_compile_without_spills(architecture: str, to_compile: ToCompile) -> None:
    expressions = [
        f"attend_stream<{kernel}>"
        for kernel in (
            "__half, ADDED, 64, 64, 8, 32, int, 2, false, __half, true",
            "__half, ADDED, 64, 64, 32, 32, int, 2, false, __half, true",
            "__nv_bfloat16, BOOLEAN, 64, 64, 32, 32, int, 8, false, __nv_bfloat16, false",
            "__nv_bfloat16, ADDED, 128, 128, 16, 16, long long, 8, false, __nv_bfloat16, false",
        )
    ]
    expressions = to_compile("attention_stream.cu", expressions)
    usage = nvrtc.compile_file("attention_stream.cu", architecture, expressions).usage
    assert len(usage) == len(expressions)
    assert not any(u.spill_stores or u.spill_loads for u in usage.values())
