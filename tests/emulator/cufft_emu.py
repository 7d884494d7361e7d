"""cupy.cuda.cufft on the host: plans of dense signals, as CuPy makes and runs them.

Argument names and order are CuPy's. Two pitfalls of cuFFT are emulated: a complex-to-real transform overwrites its
source, and it relies on the source being a spectrum of real signals (here CuFFTError is raised if it is not)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from .array_ops import View, device_view
from .memory import alloc, check_span
from .stream import enqueue, refuse_while_capturing

CUFFT_C2C, CUFFT_R2C, CUFFT_C2R = 0x29, 0x2A, 0x2C
CUFFT_Z2Z, CUFFT_D2Z, CUFFT_Z2D = 0x69, 0x6A, 0x6C
CUFFT_FORWARD, CUFFT_INVERSE = -1, 1

POISON = 0xFB


class CuFFTError(RuntimeError):
    """An error status of the library."""


class PlanNd:
    """A plan for `batch` contiguous signals, with its own work area."""

    def __init__(self, shape: Sequence[int], inembed: None, istride: int, idist: int, onembed: None, ostride: int,
                 odist: int, fft_type: int, batch: int, order: str, last_axis: int,
                 last_size: int | None) -> None:  # fmt: skip
        refuse_while_capturing("making a plan of cuFFT")
        if inembed is not None or onembed is not None:
            raise NotImplementedError("the emulator knows of dense signals only")
        if not 1 <= len(shape) <= 3 or min(shape) < 1 or batch < 1:
            raise CuFFTError("CUFFT_INVALID_SIZE")
        self.shape, self.fft_type, self.batch = tuple(shape), fft_type, batch
        self.work_area = alloc(8 * prod(shape))

    def fft(self, a: Any, out: Any, direction: int) -> None:
        """Enqueue the transform on the current stream; only the addresses of the arrays are used."""
        enqueue(Node(self.fft_type, self.shape, self.batch, direction, a.data.ptr, out.data.ptr, self.work_area.ptr),
                count=True)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Node:
    """An execution as a captured graph records it."""

    form: int
    lengths: tuple[int, ...]
    batch: int
    direction: int
    source: int
    target: int
    work_area: int

    def accesses(self) -> tuple[list[int], list[int]]:
        overwrites = self.form not in (CUFFT_C2C, CUFFT_Z2Z, CUFFT_R2C, CUFFT_D2Z)  # its source
        return [self.source], [self.target, self.work_area, *[self.source] * overwrites]

    def run(self) -> None:
        check_span(self.work_area, 8 * prod(self.lengths), "cuFFT work area")
        double = self.form in (CUFFT_Z2Z, CUFFT_D2Z, CUFFT_Z2D)
        real, pair = np.dtype("f8" if double else "f4"), np.dtype("c16" if double else "c8")
        half = (*self.lengths[:-1], self.lengths[-1] // 2 + 1)
        axes = tuple(range(1, len(half) + 1))
        if self.form in (CUFFT_C2C, CUFFT_Z2Z):
            x, y = self.array(self.source, self.lengths, pair), self.array(self.target, self.lengths, pair)
            function = np.fft.fftn if self.direction == CUFFT_FORWARD else np.fft.ifftn
            y[...] = function(x, axes=axes, norm="backward" if self.direction == CUFFT_FORWARD else "forward")
        elif self.form in (CUFFT_R2C, CUFFT_D2Z):
            x, y = self.array(self.source, self.lengths, real), self.array(self.target, half, pair)
            y[...] = np.fft.rfftn(x, axes=axes)
        else:
            x, y = self.array(self.source, half, pair), self.array(self.target, self.lengths, real)
            self.check_symmetry(x)
            y[...] = np.fft.irfftn(x, self.lengths, axes, norm="forward")
            x.view(np.uint8)[...] = POISON

    def array(self, address: int, shape: Sequence[int], kind: np.dtype[Any]) -> np.ndarray[Any, Any]:
        if address % (kind.itemsize if kind.kind == "c" else 2 * kind.itemsize):
            raise CuFFTError("CUFFT_UNALIGNED_DATA")
        shape = (self.batch, *shape)
        steps = tuple(kind.itemsize * prod(shape[axis + 1 :]) for axis in range(len(shape)))
        return device_view(View(address, shape, steps, kind))

    def check_symmetry(self, x: np.ndarray[Any, Any]) -> None:
        """Raise CuFFTError where the result would depend on which of two conjugates the library reads."""
        for bin in {0, x.shape[-1] - 1} if self.lengths[-1] % 2 == 0 else {0}:
            plane = x[..., bin]
            opposite = plane
            for axis in range(1, plane.ndim):
                opposite = np.roll(np.flip(opposite, axis), 1, axis)
            if not np.array_equal(plane, opposite.conj(), equal_nan=True):
                raise CuFFTError(f"bin {bin} is not that of real signals")
