"""ReverseSequence and Roll on the emulated device against their definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.ops.base.strided import Axes
from ovgpu.ops.movement.movement import ReverseSequence, Roll
from tests.emulator import nvrtc
from tests.kernels.recorded import draws, run_op

from .gate import ToCompile


@pytest.mark.parametrize("kind", [np.float32, np.int8, np.float64], ids=lambda k: np.dtype(k).name)
@pytest.mark.parametrize(("shape", "batch", "along"), [((3, 50), 0, 1), ((40, 7, 9), 1, 0), ((2, 3, 5, 7), -1, 1)])
def test_reverses(shape: Any, batch: int, along: int, kind: Any, backend: CudaBackend) -> None:
    op = ReverseSequence(batch_axis=batch, seq_axis=along)
    lengths = draws((shape[batch],), np.int64, 0, shape[along] + 1)
    assert len(run_op(backend, op, [draws(shape, kind), lengths])) == 1


@pytest.mark.parametrize("length", [np.int32, np.uint8, np.float16, np.float32], ids=lambda k: np.dtype(k).name)
def test_types_of_lengths(length: Any, backend: CudaBackend) -> None:
    run_op(backend, ReverseSequence(), [draws((4, 9), np.float32), draws((4,), length, 0, 10)])


def test_other_layouts(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [draws((6, 8, 4), np.float32), draws((6,), np.int32, 0, 5)]
    run_op(backend, ReverseSequence(), inputs, lambda x: x[::-2, ::2] if x.ndim > 1 else x[::2])
    monkeypatch.setattr(Axes, "index", "long long")
    assert run_op(backend, ReverseSequence(), inputs) == ["reverse_sequence<unsigned int, int, long long, 4>"]


ROLLS = [  # shape, shifts by axis, axes of the kernel instance
    ((7,), {0: 3}, 2),
    ((5, 6), {0: -1}, 2),
    ((5, 6), {0: 2, 1: 13}, 2),
    ((2, 8, 8, 3), {1: -2, 2: 3}, 4),
    ((2, 3, 4, 5, 6), {4: 1}, 2),
    ((2, 3, 4, 5, 6), {0: 1, 2: 1, 4: 1}, 8),
    ((4, 4, 4), {0: 1, 1: 4, 2: 2}, 4),
]


@pytest.mark.parametrize("kind", [np.float32, np.int8, np.float64], ids=lambda k: np.dtype(k).name)
@pytest.mark.parametrize(("shape", "shifts", "rank"), ROLLS)
def test_rolls(shape: Any, shifts: dict[int, int], rank: int, kind: Any, backend: CudaBackend) -> None:
    """One launch rolls all axes."""
    moves = np.array([*shifts.values()]), np.array([*shifts])
    (name,) = run_op(backend, Roll(), [draws(shape, kind), *moves])
    assert name.startswith("roll<") and name.endswith(f", {rank}>")


def test_rolls_of_other_layouts(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = [draws((6, 8), np.float32), np.array([1, 3]), np.array([0, 1])]
    run_op(backend, Roll(), inputs, lambda x: x.T[::-1, ::2])
    run_op(backend, Roll(), [draws((0, 3), np.float32), *inputs[1:]])
    assert run_op(backend, Roll(), [inputs[0], np.array([6, -8]), inputs[2]]) == ["copy_dense"]
    monkeypatch.setattr(Axes, "index", "long long")
    assert run_op(backend, Roll(), inputs) == ["roll<unsigned int, long long, 2>"]


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_compiles_for_devices(architecture: str, to_compile: ToCompile) -> None:
    expressions = [
        f"reverse_sequence<{t}, {length}, {i}, {r}>"
        for t, length, i, r in (
            ("unsigned char", "int", "int", 2),
            ("unsigned int", "long long", "int", 4),
            ("unsigned short", "__half", "int", 4),
            ("unsigned long long", "__nv_bfloat16", "long long", 8),
        )
    ]
    expressions += ["roll<unsigned int, int, 4>", "roll<unsigned long long, long long, 8>"]
    expressions = to_compile("reverse.cu", expressions)
    usage = nvrtc.compile_file("reverse.cu", architecture, expressions).usage
    assert len(usage) == len(expressions)
    assert not any(u.spill_stores or u.spill_loads for u in usage.values())
