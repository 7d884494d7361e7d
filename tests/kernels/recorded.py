"""Kernels recorded by hand: run at once, then captured and replayed with other inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ovgpu.backends.cuda import CudaBackend
from tests.emulator import cupy_emu

Array = np.ndarray[Any, Any]
POISON = 0xFB


def replay(backend: CudaBackend, record: Callable[[], Sequence[Callable[[], Any]]],
           inputs: Sequence[tuple[Any, Sequence[Array]]], outputs: Sequence[Any],
           wanted: Callable[[int], Sequence[Array]]) -> int:
    """Checks ``wanted(draw)`` eagerly for draw 0, then for replays of one graph with draws 1 and 2.

    Each input is a device array, and what it holds in every draw. Returns the launches in the graph.
    """
    calls = record()
    for draw in range(3):
        for array, values in inputs:
            array[...] = cupy_emu.asarray(values[draw])
        for out in outputs:
            out[...] = cupy_emu.asarray(np.full(out.nbytes, POISON, np.uint8).view(out.dtype).reshape(out.shape))
        if draw == 0:
            for call in calls:
                call()
        else:
            if draw == 1:
                backend.stream.begin_capture()
                for call in calls:
                    call()
                graph = backend.stream.end_capture()
            graph.launch(backend.stream)
        backend.synchronize()
        for out, want in zip(outputs, wanted(draw), strict=True):
            np.testing.assert_array_equal(out.get(), want, err_msg=f"draw {draw}")
    return len(calls)
