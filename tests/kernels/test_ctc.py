"""CTC on the emulated device: long sequences and rows, and lengths that are out of range."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.sequence.ctc import CTCGreedyDecoder, CTCGreedyDecoderSeqLen, CTCLoss
from tests.emulator import cupy_emu, nvrtc
from tests.kernels.recorded import draws, replay, run_op

from .gate import ToCompile

SHAPES = [(3, 7, 4), (1, 600, 3), (2, 257, 2), (5, 3, 1500), (2, 3, 9000), (40, 2, 33)]  # sequences, steps, classes


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_decoders(shape: tuple[int, int, int], backend: CudaBackend) -> None:
    batch, steps, classes = shape
    lengths = draws((batch,), np.int32, 0, steps + 1)
    for merges in (True, False):
        assert (
            len(
                run_op(
                    backend, CTCGreedyDecoderSeqLen(merge_repeated=merges), [draws(shape, np.float32, 0, 5), lengths]
                )
            )
            == 2
        )
        masks = [(np.arange(steps)[:, None] < n).astype(np.float32) for n in lengths]
        run_op(
            backend,
            CTCGreedyDecoder(ctc_merge_repeated=merges),
            [draws((steps, batch, classes), np.float32, 0, 5), masks],
        )


def test_classes_beyond_16_bits(backend: CudaBackend) -> None:
    scores = [np.zeros((1, 2, 70000), np.float32) for _ in range(3)]
    for draw, x in enumerate(scores):
        x[0, :, 69998 - draw] = 1
    run_op(backend, CTCGreedyDecoderSeqLen(merge_repeated=False), [scores, [np.array([2])] * 3])


def run(backend: CudaBackend, op: Any, inputs: Any, expected: Any) -> None:
    """Check the kernels of an op where its definition raises."""
    device = [cupy_emu.asarray(x) for x in inputs]
    outputs = [cupy_emu.empty(x.shape, x.dtype) for x in expected]
    launcher = Launcher(backend.stream, backend.blas)
    op.cuda(launcher, device, outputs, ())
    replay(backend, lambda: launcher.calls, [], outputs, lambda draw: expected, 1e-6)


def test_lengths_out_of_range(backend: CudaBackend) -> None:
    scores = np.zeros((2, 3, 2), np.float32)
    run(
        backend,
        CTCGreedyDecoderSeqLen(merge_repeated=False),
        [scores, np.array([2**40, -1])],
        [np.array([[0, 0, 0], [-1, -1, -1]], np.int32), np.array([3, 0], np.int32)],
    )
    labels = np.array([[0, 0, 0], [0, 0, 0]])
    for attrs in ({}, {"unique": True}, {"preprocess_collapse_repeated": True}):
        op = CTCLoss(ctc_merge_repeated=False, **attrs)
        impossible = np.float32([np.log(8) if not attrs else np.log(8 / 3), np.inf])  # one path, or three
        run(backend, op, [scores, np.array([9, -1]), labels, np.array([2**40, 3])], [impossible])
        run(backend, op, [scores, np.array([3, 0]), labels, np.array([-3, -1])], [np.float32([np.log(8), 0])])


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_compiles_for_devices(architecture: str, to_compile: ToCompile) -> None:
    kinds = "float", "double", "__half", "__nv_bfloat16"
    expressions = [
        f"{kernel}<{kind}{rest}>"
        for kind in kinds
        for kernel, rest in (("best_classes", ""), ("log_sums", ""), ("ctc_loss", ", long long, int"))
    ]
    expressions = to_compile("ctc.cu", expressions)
    usage = nvrtc.compile_file("ctc.cu", architecture, expressions).usage
    assert len(usage) == len(expressions)
    assert not any(u.spill_stores or u.spill_loads for u in usage.values())
