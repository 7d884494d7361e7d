"""Proposal: the region proposals of a two-stage detector, from scores and offsets of anchors."""

from __future__ import annotations

from typing import Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.op import Array, Op, op
from ovgpu.ops.base.shapes import at_most, check_reals
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.detection._boxes import Boxes, above_threshold, best, greedy_nms, rank_by_group
from ovgpu.spec import Spec
from ovgpu.symbolic import same, unknown

F32 = np.float32


@op("Proposal", "opset1", "detection/proposal-1")
class Proposal(Op):
    """``scores [N, 2 K, H, W], offsets [N, 4 K, H, W], image [3 or 4] -> [N * post_nms_topn, 5]``: image and corners
    of the proposals. If an image has fewer proposals, a row that begins with -1 follows them, and then zeros.

    The first K scores belong to the background, the others to the K anchors, which have ``base_size`` in all ratios
    and scales. The values of the image are its height, its width, and scales by which ``min_size`` is multiplied: boxes
    that become smaller get a score of 0. Non-maximum suppression takes the ``pre_nms_topn`` best boxes of each image.
    With the framework ``tensorflow``, boxes end at their last corner instead of one pixel behind it, sizes are not
    rounded, and x and y are swapped.
    """

    base_size: int
    pre_nms_topn: int
    post_nms_topn: int
    nms_thresh: float
    feat_stride: int
    min_size: int
    ratio: tuple[float, ...]
    scale: tuple[float, ...]
    clip_before_nms: bool = True
    clip_after_nms: bool = False
    normalize: bool = False
    box_size_scale: float = 1.0
    box_coordinate_scale: float = 1.0
    framework: Literal["", "tensorflow"] = ""

    @property
    def tensorflow(self) -> bool:
        return self.framework == "tensorflow"

    def infer_specs(self, scores: Spec, offsets: Spec, image: Spec) -> tuple[Spec, ...]:
        for name in ("base_size", "pre_nms_topn", "post_nms_topn", "feat_stride"):
            if getattr(self, name) <= 0:
                raise OpError(f"{name} is {getattr(self, name)}, not positive")
        for spec, what, rank in ((scores, "scores", 4), (offsets, "offsets", 4), (image, "the image", 1)):
            check_reals(spec, what, ranks=(rank,))
        anchors = len(self.ratio) * len(self.scale)
        if image.shape is not None:
            at_most(3, image.shape[0], "the image has {1} numbers, not 3 or 4")
            at_most(image.shape[0], 4, "the image has {0} numbers, not 3 or 4")
        if scores.shape is None or offsets.shape is None:
            return (Spec(scores.type, (unknown(), 5)),)
        same(scores.shape[1], 2 * anchors, "there are {0} channels of scores, not {1}")
        same(offsets.shape[1], 4 * anchors, "there are {0} channels of offsets, not {1}")
        for axis in (2, 3):
            same(scores.shape[axis], offsets.shape[axis], "the sides of scores and offsets are {0} and {1}")
        images = same(scores.shape[0], offsets.shape[0], "there are {0} images of scores and {1} of offsets")
        return (Spec(scores.type, (images * self.post_nms_topn, 5)),)

    def evaluate(self, xp: Adapter, scores: Array, offsets: Array, image: Array) -> tuple[Array, ...]:
        rows, _ = self.propose(*(xp.asnumpy(x).astype(F32) for x in (scores, offsets, image)))
        return (xp.asarray(rows),)

    def anchors(self) -> Array:
        """Return the corners [K, 4] of the anchors at the first grid position."""
        extra = 0 if self.tensorflow else 1
        width = np.sqrt(F32(self.base_size**2) / np.array(self.ratio, F32))
        width = width if self.tensorflow else np.floor(width + F32(0.5))
        height = width * np.array(self.ratio, F32)
        height = height if self.tensorflow else np.floor(height + F32(0.5))
        sides = np.stack([width, height], 1)[:, None] * np.array(self.scale, F32)[:, None]
        half = (F32(0.5) * (sides - F32(extra))).reshape(-1, 2)
        center = F32(0 if self.tensorflow else 0.5 * (self.base_size - extra))
        return np.concatenate([center - half, center + half], 1)

    def boxes(self, offsets: Array, size: Array) -> Array:
        """Return the corners [N, H, W, K, 4] of the moved anchors; ``size`` holds the image's width and height."""
        extra = F32(0 if self.tensorflow else 1)
        count, _, height, width = offsets.shape
        offsets = offsets.reshape(count, -1, 4, height, width).transpose(0, 3, 4, 1, 2)
        rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
        at = np.stack([rows, columns] if self.tensorflow else [columns, rows], -1)[:, :, None] * F32(self.feat_stride)
        boxes = np.concatenate([at, at], -1).astype(F32) + self.anchors()
        if self.tensorflow:
            boxes = clip_boxes(boxes, size)
        low, high = boxes[..., :2], boxes[..., 2:]
        sides = high - low + extra
        center = offsets[..., :2] / F32(self.box_coordinate_scale) * sides + (low + F32(0.5) * sides)
        half = F32(0.5) * (np.exp(offsets[..., 2:] / F32(self.box_size_scale)) * sides)
        boxes = np.concatenate([center - half, center + half], -1)
        return clip_boxes(boxes, size - extra) if self.clip_before_nms else boxes

    def propose(self, scores: Array, offsets: Array, image: Array) -> tuple[Array, Array]:
        """Return the output rows and their scores, padded for images with fewer proposals."""
        extra = 0 if self.tensorflow else 1
        size = image[:2] if self.tensorflow else image[1::-1]
        min_sides = F32(self.min_size) * image[[2 if len(image) == 3 else 3, 2]]
        count = len(scores)
        boxes = self.boxes(offsets, size)
        large = (boxes[..., 2:] - boxes[..., :2] + F32(extra) >= min_sides).all(-1)
        scores = (np.moveaxis(scores[:, scores.shape[1] // 2 :], 1, 3) * large).reshape(-1)
        boxes = boxes.reshape(-1, 4)
        images = np.repeat(np.arange(count), scores.size // max(count, 1))
        order = rank_by_group(images, scores)
        order = order[best(images[order], self.pre_nms_topn)]
        images, scores, boxes = images[order], scores[order], boxes[order]
        selected = greedy_nms(
            images, self.post_nms_topn, above_threshold(Boxes.of(boxes, extra), self.nms_thresh), 2 * self.post_nms_topn
        )
        images, boxes = images[selected], boxes[selected]
        if self.clip_after_nms:
            boxes = clip_boxes(boxes, size)
        if self.normalize:
            boxes = boxes / np.tile(size, 2)
        counts = np.bincount(images, minlength=count)
        row = images * self.post_nms_topn + np.arange(len(selected)) - (np.cumsum(counts) - counts)[images]
        rows, row_scores = np.zeros((count * self.post_nms_topn, 5), F32), np.zeros(count * self.post_nms_topn, F32)
        rows[row], row_scores[row] = np.column_stack([images, boxes]), scores[selected]
        ends = np.flatnonzero(counts < self.post_nms_topn)
        rows[ends * self.post_nms_topn + counts[ends], 0] = -1
        return rows, row_scores


def clip_boxes(boxes: Array, size: Array) -> Array:
    """Clip boxes [..., 4] to an image; ``size`` [..., 2] holds its width and height."""
    return np.maximum(np.minimum(boxes, np.tile(size, 2)), 0)


@op("Proposal", "opset4", "detection/proposal-4")
class Proposal4(Proposal):
    """Proposal-1 with a second output, the scores ``[N * post_nms_topn]`` of the proposals, padded with zeros.

    >>> proposal([[[[0.1]], [[0.9]]]], [[[[0.5]], [[0]], [[0]], [[0]]]], [10.0, 10, 1], attrs={
    ...     "base_size": u32(4), "pre_nms_topn": u32(1), "post_nms_topn": u32(1), "nms_thresh": 0.5,
    ...     "feat_stride": u32(1), "min_size": u32(1), "ratio": [1.0], "scale": [1.0]})
    ([[0.0, 2.0, 0.0, 6.0, 4.0]], [0.9])
    """

    def infer_specs(self, scores: Spec, offsets: Spec, image: Spec) -> tuple[Spec, ...]:
        (rows,) = super().infer_specs(scores, offsets, image)
        assert rows.shape is not None
        return rows, Spec(rows.type, rows.shape[:1])

    def evaluate(self, xp: Adapter, scores: Array, offsets: Array, image: Array) -> tuple[Array, ...]:
        rows, row_scores = self.propose(*(xp.asnumpy(x).astype(F32) for x in (scores, offsets, image)))
        return xp.asarray(rows), xp.asarray(row_scores)
