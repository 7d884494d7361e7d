"""Attention in f16, bf16 and TF32 on tensor cores, on the emulated device against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.attention import _splits, _tensor_cores
from ovgpu.ops.attention.attention import ScaledDotProductAttention
from ovgpu.ops.base.strided import Axes
from ovgpu.ops.base.xp import NUMPY
from ovgpu.runtime.backend import RoundingCall
from tests.emulator import cupy_emu, nvrtc

from .gate import ToCompile
from .recorded import kernel_name, run_calls
from .test_attention import MANY, attend, attend_hidden

Array = np.ndarray[Any, Any]
HALF, BF16 = np.float16, ml_dtypes.bfloat16
GROUPED = {"q": (1, 2, 3, 20, 16), "key": (1, 2, 1, 70, 16), "v": (1, 2, 1, 70, 32), "mask": (1, 1, 1, 20, 70)}
FORMS = [(case, HALF) for case in (*MANY, GROUPED)] + [(case, BF16) for case in (MANY[3], MANY[5], GROUPED)]


@pytest.fixture(autouse=True)
def _whole_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable `attention_stream.cu`, which would run small batches, and parts of the keys."""
    monkeypatch.setattr(_tensor_cores, "STREAMED_WIDTH", 0)
    monkeypatch.setattr(_splits, "MAX_CLUSTER", 1)
    monkeypatch.setattr(_tensor_cores, "MAX_PARTS", 1)


@pytest.mark.drawn(8)
@pytest.mark.parametrize(("case", "kind"), FORMS)
def test_forms(case: dict[str, Any], kind: Any, backend: CudaBackend) -> None:
    calls = attend(backend, **case, kind=kind)
    assert len(calls) == 1 and "attend_mma<" in kernel_name(calls[0])


@pytest.mark.drawn(4)
@pytest.mark.parametrize("case", [*MANY[:8], GROUPED])
def test_forms_in_tf32(case: dict[str, Any], tf32_backend: CudaBackend) -> None:
    (call,) = attend(tf32_backend, **case)
    assert kernel_name(call).startswith("attend_mma<float, ") and isinstance(call, RoundingCall)


@pytest.mark.drawn(3)
@pytest.mark.parametrize(("size", "tiles", "keys"), [(40, 2, 32), (64, 1, 32), (64, 2, 32), (80, 1, 16), (128, 2, 16)])
def test_sizes_of_heads_in_tf32(
    size: int, tiles: int, keys: int, tf32_backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads of more than 64 elements have one tile of queries per warp: shared memory holds no more."""
    monkeypatch.setattr(Launcher, "multiprocessors", 1)
    shape, width = (1, 130 if tiles == 2 else 60, size), -(-size // 16) * 16
    (call,) = attend(tf32_backend, shape, (1, 140, size), (1, 140, size), causal=True)
    tiles = tiles if size <= 64 else 1
    assert kernel_name(call) == f"attend_mma<float, CAUSAL, {width}, {width}, {tiles}, {keys}, 4, int, 2, float, WHOLE>"


def test_what_is_not_in_tf32(backend: CudaBackend, tf32_backend: CudaBackend) -> None:
    """Long rows do not fit into shared memory, and few queries are bound by the bytes of the keys."""
    for given, case in ((tf32_backend, MANY[8]), (tf32_backend, {**MANY[2], "q": (2, 2, 8, 8)}), (backend, MANY[2])):
        (call,) = attend(given, **case)
        assert "attend_mma" not in kernel_name(call) and not isinstance(call, RoundingCall)


def test_tf32_rounds_to_nearest(tf32_backend: CudaBackend) -> None:
    """Values keep 11 significant bits, rounded to nearest, and sums are exact; infinities and NaN are kept."""
    values = np.array([1 + 2**-11, -1 - 2**-12, 3.4028235e38, np.inf, -np.inf, np.nan, 1 + 2**-10, 0], np.float32)
    values[5:6].view(np.uint32)[0] = 0x7FFFFFFF  # the NaN that devices make
    q, v = np.zeros((1, 9, 8), np.float32), np.broadcast_to(values, (1, 1, 8)).copy()
    out = cupy_emu.empty((1, 9, 8), np.float32)
    launcher = Launcher(tf32_backend.stream, tf32_backend.blas)
    given = [cupy_emu.asarray(x) for x in (q, q[:, :1].copy(), v)]
    assert ScaledDotProductAttention().cuda(launcher, given, [out], ()) is None
    run_calls(launcher.calls)
    np.testing.assert_array_equal(out.get()[0, 8], [1 + 2**-10, -1, np.inf, np.inf, -np.inf, np.nan, 1 + 2**-10, 0])


@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    ("size", "tiles", "keys"),
    [(64, 1, 64), (64, 2, 64), (80, 2, 64), (96, 2, 32), (128, 1, 64), (128, 2, 32), (192, 1, 32), (256, 1, 16)],
)
def test_sizes_of_heads(
    size: int, tiles: int, keys: int, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warp has two tiles where there are enough queries for all multiprocessors, and enough registers."""
    monkeypatch.setattr(Launcher, "multiprocessors", 1)
    shape = (1, 130 if tiles == 2 else 60, size)
    (call,) = attend(backend, shape, (1, 140, size), (1, 140, size), kind=HALF, causal=True)
    assert kernel_name(call) == f"attend_mma<__half, CAUSAL, {size}, {size}, {tiles}, {keys}, 8, int, 2, __half, WHOLE>"


def test_large_arrays(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has 64-bit indices, which arrays of 2**31 elements need."""
    monkeypatch.setattr(Axes, "index", "long long")
    (call,) = attend(backend, (2, 70, 24), (2, 40, 24), (2, 40, 8), (2, 70, 40), kind=BF16)
    assert kernel_name(call) == "attend_mma<__nv_bfloat16, ADDED, 32, 16, 1, 64, 8, long long, 2, __nv_bfloat16, WHOLE>"


@pytest.mark.parametrize("order", ["ascending", "descending", 7])
def test_orders_of_threads(
    order: Any, backend: CudaBackend, tf32_backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Launcher, "multiprocessors", 1)
    with cupy_emu.thread_order(order):
        attend(backend, (1, 70, 40), (1, 140, 40), (1, 140, 40), sink=(1, 70, 1), kind=HALF)
        attend(backend, (1, 20, 33), (1, 140, 33), (1, 140, 7), (20, 140), hidden=True, kind=BF16)
        attend(tf32_backend, (1, 70, 40), (1, 140, 40), (1, 140, 40), (70, 140))


@pytest.mark.parametrize("lowest", [False, True])
def test_rows_whose_keys_are_hidden(lowest: bool, backend: CudaBackend, tf32_backend: CudaBackend) -> None:
    attend_hidden(backend, 70, BF16, lowest)
    attend_hidden(tf32_backend, 70, np.float32, lowest)


def attend_masked(backend: CudaBackend, mask: Array, kind: Any = HALF, scale: float | None = None) -> list[Any]:
    """Check attention of two heads that share a mask [.., queries, keys]; return the recorded calls."""
    op, shape = ScaledDotProductAttention(), (*mask.shape[:-2], 2, mask.shape[-2], 16)
    q, key, v = (
        np.random.default_rng(i).standard_normal((*shape[:-2], n, 16)).astype(kind)
        for i, n in enumerate((mask.shape[-2], *mask.shape[-1:] * 2))
    )
    mask = mask if mask.dtype == bool else mask.astype(kind)
    given = [q, key, v, mask[..., None, :, :], *([] if scale is None else [np.array(scale, kind)])]
    out = cupy_emu.empty(shape, kind)
    launcher = Launcher(backend.stream, backend.blas)
    assert op.cuda(launcher, [cupy_emu.asarray(x) for x in given], [out], ()) is None
    run_calls(launcher.calls)
    wanted = op.evaluate(NUMPY, *(x if x.dtype == bool else x.astype(np.float64) for x in given))[0]
    tolerance = 1.6e-2 if kind == BF16 else 2e-3
    np.testing.assert_allclose(out.get().astype("f8"), wanted, tolerance, tolerance)
    return launcher.calls


def causal(rows: int, keys: int) -> Array:
    return np.arange(keys) > np.arange(rows)[:, None] + keys - rows


MASKS: dict[str, Array] = {
    "infinite": np.where(causal(300, 424), -np.inf, 0),
    "lowest": np.where(causal(264, 264), -65504, 0),
    "lowest, padded": np.where(causal(264, 264) | (np.arange(264) < 70), -65504, 0),
    "lowest, then numbers": np.where(causal(264, 264), -65504, np.arange(264) % 5),
    "boolean": ~causal(300, 432),
    "window": ~causal(256, 512) & (np.arange(512) > np.arange(256)[:, None] + 150),
    "batch": np.stack([np.where(causal(264, 264), -65504, 0), np.zeros((264, 264))]),
    "none hidden": np.zeros((256, 256)),
}


@pytest.mark.drawn(4)
@pytest.mark.parametrize("kind", [HALF, BF16, np.float32])
@pytest.mark.parametrize("name", MASKS)
def test_masks_with_hidden_tiles(name: str, kind: Any, backend: CudaBackend, tf32_backend: CudaBackend) -> None:
    with np.errstate(invalid="ignore"):
        calls = attend_masked(tf32_backend if kind == np.float32 else backend, MASKS[name], kind)
    assert [kernel_name(call).split("<")[0] for call in calls] == ["mark_tiles", "attend_mma"]


def test_long_masks(backend: CudaBackend) -> None:
    """A mask may have more than the 32 tiles of keys that a warp scans together; each warp has two tiles of rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Launcher, "multiprocessors", 1)
        mask = causal(256, 4400)
        mask[:, 100:2300] = True
        attend_masked(backend, np.where(mask, -np.inf, 0))


@pytest.mark.parametrize("keys", [40, 300])
def test_negative_scale(keys: int, backend: CudaBackend) -> None:
    attend_masked(backend, np.zeros((keys, keys)), scale=-0.5)


@pytest.mark.emulator
@pytest.mark.parametrize(("capability", "kind"), [("75", HALF), ("80", np.float32), ("120", HALF)])
def test_capabilities(capability: str, kind: Any, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupy_emu.cuda.Device, "compute_capability", capability)
    (call,) = attend(backend, **MANY[2], kind=kind)
    assert ("attend_mma<" in kernel_name(call)) is (capability == "120")


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_kernels_compile_without_spills(architecture: str, to_compile: ToCompile) -> None:
    expressions = [
        f"attend_mma<{kernel}>"
        for kernel in (
            "__half, ADDED, 64, 64, 2, 64, 8, int, 2",
            "__half, ADDED, 128, 128, 2, 32, 8, int, 8",
            "__nv_bfloat16, ADDED, 128, 128, 2, 32, 8, int, 2",
            "__nv_bfloat16, BOOLEAN, 80, 80, 2, 64, 8, int, 8",
            "__nv_bfloat16, ADDED, 256, 256, 1, 16, 1, long long, 8",
            "float, ADDED, 64, 64, 2, 32, 4, int, 2",
            "float, ADDED, 128, 128, 1, 16, 4, int, 8",
            "float, BOOLEAN, 80, 80, 1, 16, 1, long long, 8",
        )
    ]
    expressions = to_compile("attention_mma.cu", expressions)
    usage = nvrtc.compile_file("attention_mma.cu", architecture, expressions).usage
    assert len(usage) == len(expressions)
    assert not any(u.spill_stores or u.spill_loads for u in usage.values())
