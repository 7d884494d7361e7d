"""Intersection over union of rotated boxes, on the host."""

from __future__ import annotations

import numpy as np

from ovgpu.ops.base.op import Array

RELATIVE_TOLERANCE = 1e-9  # distance by which a corner may lie outside a box, relative to its sides


class RotatedBoxes:
    """Boxes [n, 5] given by centres, sides and angles in radians; a box without an area overlaps nothing."""

    def __init__(self, boxes: Array, clockwise: bool) -> None:
        x, y, width, height, angle = boxes.astype(np.float64).T
        self.area = np.where(width * height > 0, width * height, np.inf)
        angle = angle if clockwise else -angle
        along = np.stack([np.cos(angle) * width, np.sin(angle) * width], -1) / 2
        across = np.stack([-np.sin(angle) * height, np.cos(angle) * height], -1) / 2
        corner_offsets = np.stack([-along - across, along - across, along + across, across - along], 1)
        self.corners = np.stack([x, y], -1)[:, None] + corner_offsets

    def iou(self, a: Array, b: Array) -> Array:
        """Return the intersection over union, in f64, of boxes by index; the indices ``a`` and ``b`` broadcast."""
        a, b = np.broadcast_arrays(a, b)
        common = intersection(self.corners[a], self.corners[b])
        return common / (self.area[a] + self.area[b] - common)


def cross(a: Array, b: Array) -> Array:
    """Return the cross products of plane vectors [..., 2]."""
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def intersection(p: Array, q: Array) -> Array:
    """Return the intersection areas [n] of pairs of rectangles, given by their corners [n, 4, 2] in order."""
    along_p, along_q = (np.roll(x, -1, 1) - x for x in (p, q))
    between = q[:, None] - p[:, :, None]
    det = cross(along_p[:, :, None], along_q[:, None])
    with np.errstate(all="ignore"):
        t, u = cross(between, along_q[:, None]) / det, cross(between, along_p[:, :, None]) / det
    crossing = (det != 0) & (t >= 0) & (t <= 1) & (u >= 0) & (u <= 1)
    crossing_points = p[:, :, None] + along_p[:, :, None] * np.where(crossing, t, 0)[..., None]
    points = np.concatenate([crossing_points.reshape(-1, 16, 2), p, q], 1)
    valid = np.concatenate([crossing.reshape(-1, 16), inside(p, q), inside(q, p)], 1)
    return area(points, valid)


def inside(points: Array, box: Array) -> Array:
    """Return a mask [n, 4] of the points [n, 4, 2] that lie in the rectangles with the corners [n, 4, 2]."""
    is_inside = np.ones(points.shape[:2], bool)
    for side in (box[:, 1] - box[:, 0], box[:, 3] - box[:, 0]):
        projection, squared_length = ((points - box[:, :1]) * side[:, None]).sum(-1), (side * side).sum(-1)[:, None]
        is_inside &= (projection >= -RELATIVE_TOLERANCE * squared_length) & (
            projection <= (1 + RELATIVE_TOLERANCE) * squared_length
        )
    return is_inside


def area(points: Array, valid: Array) -> Array:
    """Return the areas [n] of convex polygons. Their corners are the ``valid`` [n, k] ones of ``points`` [n, k, 2], in
    any order."""
    # Other points become copies of a corner, which add no area.
    first = np.take_along_axis(points, valid.argmax(1)[:, None, None], 1)
    points = np.where(valid[..., None], points, first)
    points = points - points.mean(1, keepdims=True)
    order = np.arctan2(points[..., 1], points[..., 0]).argsort(1)
    points = np.take_along_axis(points, order[..., None], 1)
    areas = np.abs(cross(points, np.roll(points, -1, 1)).sum(1)) / 2
    return np.where(valid.any(1), areas, 0)
