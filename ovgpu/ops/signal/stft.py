"""Short-time Fourier transforms of real signals in windowed frames: STFT and ISTFT."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt
from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.shapes import at_most, check_integers, check_reals, integer, integers, length
from ovgpu.ops.base.storage import is_plain
from ovgpu.ops.base.strided import THREADS
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.signal.fourier import (
    as_complex,
    convert_into,
    from_pairs,
    symmetrize,
    to_pairs,
    transform_type,
    write_transform,
)
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, maximum, product, same, unknown


@op("STFT", "opset15", "signals/stft-15")
class STFT(Op):
    """``signal [(B,) S], window [W], frame_size [], frame_step [] -> [(B,) frames, frame_size // 2 + 1, 2]``.

    Spectra of the signal's frames, multiplied by the window, which is padded with zeros on both sides if it is shorter.
    With ``transpose_frames`` the axis of frames comes after that of their spectra.

    >>> stft([1.0, 2, 3, 5], [1.0, 1], 2, 2, transpose_frames=False)
    [[[3.0, 0.0], [-1.0, 0.0]], [[8.0, 0.0], [-2.0, 0.0]]]
    """

    transpose_frames: bool = False

    layout = "dense"
    host_inputs = (2, 3)

    def infer_specs(self, x: Spec, window: Spec, size: Spec, step: Spec) -> tuple[Spec, ...]:
        dtype = merge_types((x, window))
        check_reals(x, "the signal", ranks=(1, 2))
        framing = infer_framing(window, size, step)
        if x.shape is None:
            return (Spec(dtype, None),)
        *batch, samples = x.shape
        if framing is None:
            return (Spec(dtype, (*batch, unknown(), unknown(), 2)),)
        return (Spec(dtype, (*batch, *self.parts(samples, *framing), 2)),)

    def parts(self, samples: Int, n: Int, step: Int) -> list[Int]:
        """Return the extents that replace the axis of the signal: frames and bins, or bins and frames."""
        at_most(n, samples, "a frame of {0} elements is longer than a signal of {1}")
        extents = [(samples - n) // maximum(step, 1) + 1, n // 2 + 1]
        return extents[::-1] if self.transpose_frames else extents

    def evaluate(self, xp: Adapter, x: Array, window: Array, size: Array, step: Array) -> tuple[Array, ...]:
        n, hop = check_framing(window.size, *integers(size), *integers(step))
        parts = self.parts(x.shape[-1], n, hop)
        if not x.size:
            return (xp.zeros((*x.shape[:-1], *parts, 2), x.dtype),)
        at = xp.arange(0, x.shape[-1] - n + 1, hop)[:, None] + xp.arange(n)
        spectra = xp.fft.rfft(x[..., at] * padded_window(xp, window, n), axis=-1)
        return (to_pairs(xp, spectra.swapaxes(-1, -2) if self.transpose_frames else spectra),)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        """Return buffers for the frames and for their spectra."""
        assert outputs[0].shape is not None
        return ((transform_type(outputs[0].type), (product(outputs[0].shape),)),) * 2

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, window, size, step), out = inputs, outputs[0]
        if not out.size:
            return None
        if not is_plain(x.dtype):
            return NotImplemented
        n, hop = integer(size, "frame_size"), integer(step, "frame_step")
        target = out.swapaxes(-2, -3) if self.transpose_frames else out
        shape = (*target.shape[:-2], n)
        frames = workspace[0][: prod(shape)].reshape(shape)
        threads, parts = row_blocks(n)
        k.kernel(
            "stft.cu",
            f"frame<{k.c_type(x.dtype)}>",
            (prod(shape[:-1]) * parts,),
            (threads,),
            (x, window, frames, framing_struct(shape[-2], n, hop, window), np.int64(x.shape[-1]), np.uint32(parts)),
        )
        return write_transform(k, frames, target, workspace[1], target.shape, 1, False)


@op("ISTFT", "opset16", "signals/istft-16")
class ISTFT(Op):
    """``data [(B,) frame_size // 2 + 1, frames, 2], window [W], frame_size [], frame_step [] (, signal_length [])
    -> [(B,) signal_length]``: the signals that have these spectra, laid out like those of STFT with transposed frames.

    Windowed frames are added up (overlap-add) and divided by the sums of the squared window. Where these are zero, the
    signal is zero. With ``center``, the signal begins in the middle of the first frame. Without a signal length, it
    then ends in the middle of the last frame; if the frame size is odd, one element later than specified, as in
    OpenVINO and torch. If the signal length is larger, the rest of the last frame follows, and then zeros.

    >>> istft([[[3.0, 0], [8, 0]], [[-1, 0], [-2, 0]]], [1.0, 1], 2, 2, center=False, normalized=False)
    [1.0, 2.0, 3.0, 5.0]
    """

    center: bool = False
    normalized: bool = False

    layout = "dense"
    host_inputs = (2, 3, 4)

    def infer_specs(
        self, x: Spec, window: Spec, size: Spec, step: Spec, samples: Spec | None = None
    ) -> tuple[Spec, ...]:
        dtype = merge_types((x, window))
        check_reals(x, "the data", ranks=(3, 4))
        framing = infer_framing(window, size, step)
        if samples is not None:
            check_integers(samples, "the signal length", ranks=(0, 1))
            if length(samples) not in (None, 1):
                raise OpError(f"{length(samples)} signal lengths instead of one")
        if x.shape is None:
            return (Spec(dtype, None),)
        *batch, _, _, pair = x.shape
        same(pair, 2, "the last axis has {0} elements, but complex numbers are pairs")
        given = None if samples is None else samples.ints()
        if framing is None or (samples is not None and given is None):
            return (Spec(dtype, (*batch, unknown())),)
        return (Spec(dtype, (*batch, self.samples(x.shape, *framing, given))),)

    def samples(self, shape: Sequence[Int], n: Int, step: Int, given: Sequence[Int] | None) -> Int:
        """Return the length of the signal."""
        bins, frames = shape[-3:-1]
        same(bins, n // 2 + 1, "spectra have {0} elements instead of {1}")
        at_most(1, frames, "there are no frames")
        if given is None:
            return maximum((frames - 1) * step + n - (n // 2 * 2 if self.center else 0), 0)
        at_most(0, given[0], "signal length {1} is negative")
        return maximum(given[0], 0)

    def framing(self, x: Any, window: Any, size: Any, step: Any, given: Any = None) -> tuple[int, int, int]:
        """Return the frame size, the hop between frames, and the length of the signal."""
        n, hop = check_framing(window.size, *integers(size), *integers(step))
        return n, hop, self.samples(x.shape, n, hop, None if given is None else integers(given))

    def evaluate(self, xp: Adapter, x: Array, window: Array, *given: Array) -> tuple[Array, ...]:
        n, hop, count = self.framing(x, window, *given)
        out = xp.zeros((*x.shape[:-3], count), x.dtype)
        if not out.size:
            return (out,)
        window = padded_window(xp, window, n)
        frames = xp.fft.irfft(from_pairs(xp, x.swapaxes(-2, -3)), n, axis=-1) * window
        squares = overlap_add(xp, xp.broadcast_to(window * window, frames.shape[-2:]), hop)
        signal = xp.where(squares != 0, overlap_add(xp, frames, hop) / xp.where(squares != 0, squares, 1), 0)
        begin = n // 2 if self.center else 0
        part = signal[..., begin : begin + count] * x.dtype.type(sqrt(n) if self.normalized else 1)
        out[..., : part.shape[-1]] = part
        return (out,)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        """Return buffers for the spectra, frame by frame, and for the frames."""
        x = inputs[0]
        assert x is not None and x.shape is not None
        return ((transform_type(x.type), (product(x.shape),)),) * 2

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, window, *given), out = inputs, outputs[0]
        n, hop, count = self.framing(x, window, *given)
        if not out.size:
            return None
        if not is_plain(x.dtype):
            return NotImplemented
        *batch, bins, frames, _ = x.shape
        spectra = workspace[0].reshape(*batch, frames, bins, 2)
        convert_into(k, x.swapaxes(-2, -3), spectra)
        symmetrize(k, spectra, [n])
        signals = workspace[1][: prod(batch) * frames * n].reshape(*batch, frames, n)
        if not k.fft(as_complex(spectra), signals, 1, True):
            return NotImplemented
        threads, parts = row_blocks(count)
        k.kernel(
            "stft.cu",
            f"overlap_add<{k.c_type(x.dtype)}>",
            (prod(batch) * parts,),
            (threads,),
            (
                signals,
                window,
                out,
                framing_struct(frames, n, hop, window),
                np.int64(count),
                np.int64(n // 2 if self.center else 0),
                np.uint32(parts),
                signals.dtype.type(1 / sqrt(n) if self.normalized else 1 / n),
            ),
        )
        return None


def infer_framing(window: Spec, size: Spec, step: Spec) -> tuple[Int, Int] | None:
    """Return the frame size and the hop between frames if they are known, at least symbolically, else None."""
    check_reals(window, "the window", ranks=(1,))
    for spec, what in ((size, "the frame size"), (step, "the frame step")):
        check_integers(spec, what, ranks=(0,))
    n, hop = size.ints(), step.ints()
    if n is None or hop is None:
        return None
    return check_framing(n[0] if window.shape is None else window.shape[0], n[0], hop[0])


def check_framing(window: Int, n: Int, step: Int) -> tuple[Int, Int]:
    """Return the frame size and the hop between frames. Raise OpError unless they fit a window of this length."""
    at_most(1, n, "frame size {1} is not positive")
    at_most(1, step, "frame step {1} is not positive")
    at_most(1, window, "the window has no elements")
    at_most(window, n, "a window of {0} elements is longer than a frame of {1}")
    return n, step


def padded_window(xp: Adapter, window: Array, n: int) -> Array:
    """Return the window padded with zeros to ``n`` elements: centred, or half an element to the left."""
    before = (n - window.size) // 2
    return xp.pad(window, (before, n - window.size - before))


def overlap_add(xp: Adapter, frames: Array, step: int) -> Array:
    """Return the sum of frames [..., frames, n] that begin ``step`` apart: [..., (frames - 1) * step + n]."""
    count, n = frames.shape[-2:]
    parts = -(-n // step)
    padded = xp.zeros((*frames.shape[:-1], parts * step), frames.dtype)
    padded[..., :n] = frames
    steps = padded.reshape(*frames.shape[:-1], parts, step)
    total = xp.zeros((*frames.shape[:-2], count + parts - 1, step), frames.dtype)
    for i in range(parts):
        total[..., i : i + count, :] += steps[..., i, :]
    return total.reshape(*frames.shape[:-2], -1)[..., : (count - 1) * step + n]


def row_blocks(row: int) -> tuple[int, int]:
    """Return the threads per block, in whole warps, and the number of blocks for a row of ``row`` elements."""
    threads = min(THREADS, -(-row // 32) * 32)
    return threads, -(-row // threads)


def framing_struct(frames: int, n: int, step: int, window: Array) -> np.ndarray[Any, Any]:
    """Return the struct Framing of stft.cu."""
    return np.array([frames, n, step, (n - window.size) // 2, window.size], np.int64)
