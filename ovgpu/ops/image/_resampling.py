"""Resampling taps along one axis: the input positions and weights of each output element.

Coordinates are computed in f32, as in OpenVINO: which element is the nearest depends on every rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Taps:
    """Input positions that each of n output elements is computed from, and their weights; both [n, taps].

    A position of -1 is padding, which is zero. Without weights there is one tap, whose element is copied.
    """

    positions: Numbers
    weights: Numbers | None = None

    def within(self, begin: int, extent: int) -> Taps:
        """Return the taps with positions in the axis without its padding: ``extent`` elements after ``begin`` zeros."""
        positions = self.positions - begin
        inside = (positions >= 0) & (positions < extent)
        weights = None if self.weights is None else np.where(inside, self.weights, np.float32(0))
        return Taps(np.where(inside, positions, -1), weights)


def coordinates(n: int, extent: int, scale: np.float32, mode: str) -> Numbers:
    """Return input coordinates [n] of n output elements; ``mode`` is a coordinate_transformation_mode."""
    at = np.arange(n, dtype=np.float32)
    if scale == 1 or n == extent:
        return at
    if mode == "align_corners":
        return at * np.float32(extent - 1) / np.float32(max(n - 1, 1))
    if mode == "asymmetric":
        return at / scale
    if mode == "tf_half_pixel_for_nn":
        return (at + np.float32(0.5)) / scale
    if mode == "pytorch_half_pixel" and n == 1:
        return at
    return (at + np.float32(0.5)) / scale - np.float32(0.5)


def nearest(at: Numbers, extent: int, scale: np.float32, mode: str) -> Taps:
    """Return one tap per coordinate, at the coordinate rounded as ``mode``, a nearest_mode, says."""
    below = np.floor(at)
    if mode == "round_prefer_floor":
        position = below + (at - below > 0.5)
    elif mode == "round_prefer_ceil":
        position = below + (at - below >= 0.5)
    elif mode == "ceil" or (mode == "simple" and scale < 1):
        position = np.ceil(at)
    else:
        position = below  # "simple" truncates, which differs below 0 only
    return Taps(np.clip(position, 0, extent - 1).astype(np.int64)[:, None])


def between(at: Numbers, extent: int) -> Taps:
    """Return the taps of linear interpolation between two neighbours, clamped to the edges."""
    at = np.clip(at, 0, extent - 1)
    low = np.minimum(np.floor(at), max(extent - 2, 0))
    share = at - low
    positions = np.stack([low, np.minimum(low + 1, extent - 1)], axis=1).astype(np.int64)
    return Taps(positions, np.stack([1 - share, share], axis=1))


def triangle(at: Numbers, extent: int, slope: np.float32) -> Taps:
    """Return the taps of a triangle filter: weights fall by ``slope`` per element of distance, and add up to 1."""
    reach = np.ceil(1 / slope)
    positions = _window(np.floor(at) - reach + 1, 2 * reach, extent)
    weights = np.maximum(1 - np.abs(slope * (at[:, None] - positions.astype(np.float32))), np.float32(0))
    return _normalized(positions, weights)


def cubic(at: Numbers, extent: int, a: float) -> Taps:
    """Return the taps of cubic convolution (Keys 1981) with parameter ``a``: four neighbours, clamped to the edges."""
    below = np.floor(at)
    t = at - below
    weights = [
        a * (t - 1) * (t - 1) * t,
        ((a + 2) * t - (a + 3)) * t * t + 1,
        (((-a - 2) * t + (2 * a + 3)) * t - a) * t,
        -a * t * t * (t - 1),
    ]
    positions = below.astype(np.int64)[:, None] + np.arange(-1, 3)
    return Taps(np.clip(positions, 0, extent - 1), np.stack(weights, axis=1))


PILLOW_COEFFICIENT = -0.5  # of the cubic filter, in Pillow and in torch


def pillow(n: int, extent: int, cubic: bool) -> Taps:
    """Return the taps of Pillow's bicubic or bilinear filter. If the axis shrinks, the filter is stretched."""
    scale = extent / max(n, 1)
    stretch = max(scale, 1.0)
    support = 2 * stretch if cubic else stretch
    centre = (np.arange(n) + 0.5) * scale
    first, last = np.floor(centre - support + 0.5), np.floor(centre + support + 0.5)
    positions = _window(first, 2 * np.ceil(support) + 1, extent)
    t = np.abs(positions - centre[:, None] + 0.5) / stretch
    if cubic:
        a = PILLOW_COEFFICIENT
        weights = np.where(t < 1, ((a + 2) * t - (a + 3)) * t * t + 1, (((t - 5) * t + 8) * t - 4) * a * (t < 2))
    else:
        weights = np.maximum(1 - t, 0)
    weights[(positions < first[:, None]) | (positions >= last[:, None])] = 0
    return _normalized(positions, weights)


def _window(first: Numbers, count: float, extent: int) -> Numbers:
    """Return ``count`` consecutive positions from each element of ``first`` on. They are shifted where needed to stay
    inside the axis, and fewer if the axis is shorter."""
    count = int(min(count, extent))
    return np.clip(first, 0, extent - count).astype(np.int64)[:, None] + np.arange(count)


def _normalized(positions: Numbers, weights: Numbers) -> Taps:
    """Return taps with weights in f32 that add up to 1, or are all 0."""
    total = weights.sum(axis=1, keepdims=True)
    return Taps(positions, (weights / np.where(total == 0, 1, total)).astype(np.float32))


def limits(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return the least and the greatest f32 number that an integer type holds."""
    info = np.iinfo(dtype)
    greatest = np.float32(info.max)
    return float(info.min), float(greatest if int(greatest) <= info.max else np.nextafter(greatest, np.float32(0)))


# ---- on NumPy

Pass = tuple[int, Taps]
"""An axis of a block of rows, whose axis 0 is the rows, and the taps along it."""


def resize_rows(
    x: Numbers,
    out: Numbers,
    passes: Sequence[Pass],
    buffers: Sequence[Numbers],
    rows: int,
    clip: tuple[float, float] | None,
    rounds: bool,
) -> None:
    """Resize rows [n, ...], ``rows`` at a time so that they stay in cache. ``buffers`` are three scratch vectors.

    With ``clip``, results are rounded and clipped: after every axis if ``rounds``, else at the end.
    """
    for start in range(0, len(x), rows):
        block, target = x[start : start + rows], out[start : start + rows]
        if block.dtype != buffers[0].dtype:
            block = _converted(block, buffers[0])
        for step, (axis, taps) in enumerate(passes):
            shape = (*block.shape[:axis], len(taps.positions), *block.shape[axis + 1 :])
            last = step == len(passes) - 1 and target.dtype == block.dtype
            into = target if last else buffers[1 - step % 2][: prod(shape)].reshape(shape)
            _resize(block, axis, taps, into, buffers[2])
            if clip is not None and (rounds or step == len(passes) - 1):
                np.rint(into, into)
                np.clip(into, *clip, into)
            block = into
        if block is not target:
            np.copyto(target, block, casting="unsafe")


def _converted(block: Numbers, buffer: Numbers) -> Numbers:
    into = buffer[: block.size].reshape(block.shape)
    np.copyto(into, block)
    return into


def _resize(x: Numbers, axis: int, taps: Taps, out: Numbers, buffer: Numbers) -> None:
    """Resize an array along one axis into ``out``."""
    if taps.weights is None:
        np.take(x, taps.positions[:, 0], axis, out, "clip")
        return
    for tap, (position, weight) in enumerate(zip(taps.positions.T, taps.weights.T)):
        part = buffer[: out.size].reshape(out.shape) if tap else out
        np.take(x, position, axis, part, "clip")
        np.multiply(part, weight.reshape(-1, *(1,) * (x.ndim - axis - 1)), part)
        if tap:
            np.add(out, part, out)
