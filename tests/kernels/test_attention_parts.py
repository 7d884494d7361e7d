"""Attention on tensor cores whose keys are split among blocks, which merge their sums in a cluster or through memory,
on the emulated device against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.attention import _attention
from ovgpu.ops.attention.attention import ScaledDotProductAttention
from ovgpu.ops.base.xp import NUMPY
from tests.emulator import cupy_emu

from .recorded import kernel_name, replay, run_calls
from .test_attention import attend, attend_hidden
from .test_attention_mma import MASKS, attend_masked

Array = np.ndarray[Any, Any]
HALF, BF16 = np.float16, ml_dtypes.bfloat16
HEADS = {"q": (1, 2, 3, 20, 16), "key": (1, 2, 1, 330, 16), "v": (1, 2, 1, 330, 32)}
FORMS = {
    "heads that share a mask": {**HEADS, "mask": (1, 1, 1, 20, 330)},
    "heads with masks of their own": {**HEADS, "mask": (1, 2, 3, 20, 330)},
    "heads with a row of a mask each": {**HEADS, "mask": (1, 2, 3, 1, 330), "hidden": True},
    "aligned masks": {**HEADS, "mask": (1, 2, 3, 20, 336), "key": (1, 2, 1, 336, 16), "v": (1, 2, 1, 336, 32)},
    "one row of a mask": {**HEADS, "mask": (330,), "hidden": True, "sink": (1, 2, 3, 20, 1)},
    "a tile and a part": {"q": (2, 70, 24), "key": (2, 330, 24), "v": (2, 330, 8), "mask": (70, 330)},
    "causal": {"q": (2, 400, 16), "key": (2, 330, 16), "v": (2, 330, 16), "causal": True},
    "rows of other heads in between": {
        "q": (1, 20, 3, 16),
        "key": (1, 530, 1, 16),
        "v": (1, 530, 1, 16),
        "swapped": True,
    },
    "many heads with one query": {"q": (1, 2, 40, 1, 16), "key": (1, 2, 1, 330, 16), "v": (1, 2, 1, 330, 16)},
    "long rows": {
        "q": (1, 3, 20, 256),
        "key": (1, 1, 330, 256),
        "v": (1, 1, 330, 200),
        "mask": (20, 330),
        "scale": True,
    },
}


def parts(calls: list[Any]) -> int:
    """Return the number of parts of the keys of the only kernel."""
    (call,) = calls
    assert kernel_name(call).startswith("attend_mma<") and kernel_name(call).endswith((", IN_MEMORY>", ", IN_CLUSTER>"))
    return int(call.args[0][kernel_name(call).endswith("IN_MEMORY>")])


@pytest.fixture
def few_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let few blocks keep the device busy."""
    monkeypatch.setattr(Launcher, "multiprocessors", 4)


@pytest.mark.drawn(32)
@pytest.mark.usefixtures("clusters")
@pytest.mark.parametrize("kind", [HALF, BF16, np.float32])
@pytest.mark.parametrize("form", FORMS)
def test_forms(
    form: str, kind: Any, backend: CudaBackend, tf32_backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == np.float32 and form == "long rows":
        pytest.skip("no shared memory for f32")
    monkeypatch.setattr(Launcher, "multiprocessors", 14 if form == "causal" else 4)
    assert parts(attend(tf32_backend if kind == np.float32 else backend, **FORMS[form], kind=kind)) > 1


@pytest.mark.drawn(8)
@pytest.mark.parametrize("kind", [HALF, BF16, np.float32])
@pytest.mark.parametrize(
    "form",
    [
        "heads that share a mask",
        "heads with masks of their own",
        "aligned masks",
        "heads with a row of a mask each",
        "one row of a mask",
    ],
)
def test_heads_as_rows_of_a_tile(
    form: str, kind: Any, backend: CudaBackend, tf32_backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads that share keys are rows of one tile also where all keys of a tile are one block's."""
    monkeypatch.setattr(Launcher, "multiprocessors", 1)
    (call,) = attend(tf32_backend if kind == np.float32 else backend, **FORMS[form], kind=kind)
    assert kernel_name(call).startswith("attend_mma<") and kernel_name(call).endswith(", GROUPED>")
    assert call.args[0] == (2, 1)


@pytest.mark.drawn(12)
@pytest.mark.parametrize(
    ("shape", "keys", "grid", "in_memory"),
    [
        ((8, 4, 64, 64), 8192, (16, 16), (16, 16)),  # tiles of two heads
        ((8, 4, 32, 64), 8192, (16, 8), (8, 16)),
        ((8, 4, 40, 64), 8192, (16, 16), (16, 16)),
        ((8, 4, 16, 64), 8192, (16, 8), (8, 16)),
        ((8, 4, 64, 64), 384, None, None),  # 16 tiles in 3 parts do not fill the device
        ((32, 1, 64, 64), 1024, (8, 32), (32, 8)),
        ((8, 4, 64, 128), 8192, (16, 16), (16, 16)),
        ((8, 4, 64, 256), 8192, (8, 32), (32, 8)),
        ((8, 4, 512, 64), 8192, (2, 128), (128, 2)),
        ((8, 4, 1024, 64), 8192, None, None),  # tiles alone do
        ((256, 4, 16, 64), 1024, None, None),
    ],
)
def test_grids(
    shape: tuple[int, int, int, int],
    keys: int,
    grid: tuple[int, int] | None,
    in_memory: tuple[int, int] | None,
    clusters: bool,
    backend: CudaBackend,
) -> None:
    heads, group, queries, size = shape
    q, key = cupy_emu.empty((1, heads, group, queries, size), HALF), cupy_emu.empty((1, heads, 1, keys, size), HALF)
    launcher = Launcher(backend.stream, backend.blas)
    assert ScaledDotProductAttention().cuda(launcher, [q, key, key], [cupy_emu.empty(q.shape, HALF)], ()) is None
    wanted = grid if clusters else in_memory
    if wanted is None:
        assert not any("IN_" in kernel_name(call) for call in launcher.calls)
        assert any(kernel_name(call).endswith("GROUPED>") for call in launcher.calls) is (heads == 256)
    else:
        assert parts(launcher.calls) == wanted[not clusters] and launcher.calls[0].args[0] == wanted


@pytest.mark.drawn(2)
@pytest.mark.usefixtures("few_multiprocessors", "clusters")
@pytest.mark.parametrize("keys", [1, 64, 65, 600, 1000])
def test_lengths_on_the_device(keys: int, backend: CudaBackend) -> None:
    """One launch serves all lengths up to the capacity; elements beyond the length are not read."""
    draws = [
        [np.random.default_rng(i + n).standard_normal(s).astype(HALF) for n in range(3)]
        for i, s in enumerate([(1, 2, 4, 9, 16), (1, 2, 1, 1024, 16), (1, 2, 1, 1024, 16), (1, 1, 1, 9, 1024)])
    ]
    for values in draws[1:3]:
        for x in values:
            x[..., keys:, :] = np.nan
    device = [cupy_emu.empty(d[0].shape, d[0].dtype) for d in draws]
    length, out = cupy_emu.asarray(np.array([keys])), cupy_emu.empty((1, 2, 4, 9, 16), HALF)
    op = ScaledDotProductAttention()

    def record() -> list[Any]:
        launcher = Launcher(backend.stream, backend.blas)
        assert _attention.attend(launcher, (*device, None, None), out, False, length) is None
        assert parts(launcher.calls) == 4
        return launcher.calls

    def wanted(n: int) -> list[Array]:
        q, k, v, mask = (d[n].astype(np.float64) for d in draws)
        return list(op.evaluate(NUMPY, q, k[..., :keys, :], v[..., :keys, :], mask[..., :keys]))

    replay(backend, record, list(zip(device, draws)), [out], wanted, 2e-3)


@pytest.mark.drawn(3)
@pytest.mark.usefixtures("few_multiprocessors", "clusters")
@pytest.mark.parametrize("order", ["ascending", "descending", 7])
def test_orders_of_threads(order: Any, backend: CudaBackend, tf32_backend: CudaBackend) -> None:
    with cupy_emu.thread_order(order):
        assert parts(attend(backend, **FORMS["heads with masks of their own"], kind=HALF)) > 1
        assert parts(attend(tf32_backend, **FORMS["a tile and a part"])) > 1


@pytest.mark.drawn(2)
@pytest.mark.usefixtures("few_multiprocessors", "clusters")
@pytest.mark.parametrize("lowest", [False, True])
def test_rows_whose_keys_are_hidden(lowest: bool, backend: CudaBackend, tf32_backend: CudaBackend) -> None:
    attend_hidden(backend, 1000, BF16, lowest)
    attend_hidden(tf32_backend, 1000, np.float32, lowest)


@pytest.mark.drawn(16)
@pytest.mark.usefixtures("clusters")
@pytest.mark.parametrize("kind", [HALF, np.float32])
@pytest.mark.parametrize("name", MASKS)
def test_masks_with_hidden_tiles(
    name: str, kind: Any, backend: CudaBackend, tf32_backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Launcher, "multiprocessors", 20 if name == "batch" else 16)
    with np.errstate(invalid="ignore"):
        marks, call = attend_masked(tf32_backend if kind == np.float32 else backend, MASKS[name], kind)
    assert kernel_name(marks).startswith("mark_tiles") and parts([call]) > 1


def attend_sinks(backend: CudaBackend) -> None:
    """Check sinks that take 1/2, 73 % and 88 % of the weights in three heads."""
    keys, x = cupy_emu.zeros((1, 1, 600, 16), HALF), np.arange(3)
    arrays = [
        cupy_emu.zeros((1, 3, 20, 16), HALF),
        keys,
        cupy_emu.asarray(np.ones((1, 1, 600, 16), HALF)),
        None,
        None,
        cupy_emu.asarray((np.log(600) + x).astype(HALF).reshape(1, 3, 1, 1)),
    ]
    out, launcher = cupy_emu.empty((1, 3, 20, 16), HALF), Launcher(backend.stream, backend.blas)
    assert _attention.attend(launcher, arrays, out, False) is None
    assert parts(launcher.calls) == 4
    run_calls(launcher.calls)
    wanted = np.broadcast_to(1 / (1 + np.exp(x))[:, None], (3, 20))
    np.testing.assert_allclose(out.get()[0, :, :, 3].astype("f4"), wanted, 2e-3)


@pytest.mark.usefixtures("few_multiprocessors", "clusters")
def test_sinks(backend: CudaBackend) -> None:
    attend_sinks(backend)
