"""Region proposals from the scores and offsets of given anchors: GenerateProposals and its older form.

Proposal, in contrast, lays out the anchors itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.shapes import at_most, check_reals
from ovgpu.ops.base.strided import THREADS, blocks
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.detection._boxes import (
    MAX_LOG_SCALE,
    Boxes,
    PairFunction,
    above_threshold,
    best,
    decaying_threshold,
    greedy_nms,
    move_boxes,
    rank_by_group,
)
from ovgpu.ops.detection.detectron import kernels_support, nms_workspace, record_nms
from ovgpu.ops.detection.proposal import clip_boxes
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, bounds, minimum, product, same, unknown
from ovgpu.types import Type

F32 = np.float32


class Anchored(Op):
    """Base: anchors are moved by their offsets and clipped to the image. Non-maximum suppression takes the
    ``pre_nms_count`` best ones of an image, and selects at most ``post_nms_count``."""

    min_size: float
    nms_threshold: float
    pre_nms_count: int
    post_nms_count: int

    layout = "dense"

    def check(self, image: Spec, anchors: Spec, offsets: Spec, scores: Spec, ranks: Sequence[int]) -> Type:
        """Return the common element type. Raises OpError for inputs that the specification does not allow."""
        for name in ("min_size", "nms_threshold", "pre_nms_count", "post_nms_count"):
            if getattr(self, name) < 0:
                raise OpError(f"{name} is {getattr(self, name):g}, below 0")
        specs = (image, anchors, offsets, scores)
        for spec, what, rank in zip(specs, ("the image", "anchors", "offsets", "scores"), ranks):
            check_reals(spec, what, ranks=(rank,))
        if anchors.shape is not None:
            same(anchors.shape[-1], 4, "an anchor has {0} coordinates, not {1}")
        if offsets.shape is not None and scores.shape is not None:
            same(offsets.shape[-3], 4 * scores.shape[-3], "there are {0} channels of offsets, not {1}")
            for axis in (-2, -1):
                same(offsets.shape[axis], scores.shape[axis], "the sides of offsets and scores are {0} and {1}")
        return merge_types(specs)


@op(
    "ExperimentalDetectronGenerateProposalsSingleImage",
    "opset6",
    "detection/experimental-detectron-generate-proposals-single-image-6",
)
class GenerateProposalsSingleImage(Anchored):
    """``image [3], anchors [H * W * A, 4], offsets [4 A, H, W], scores [A, H, W] -> [post_nms_count, 4] corners,
    [post_nms_count] scores`` of the proposals, then zeros. The image begins with its height and width.

    A side that becomes smaller than ``min_size`` sets the score to 0, as in all of OpenVINO's implementations; the
    specification leaves such regions out. Boxes include the pixels at both ends, except in the IoU.
    """

    def infer_specs(self, image: Spec, anchors: Spec, offsets: Spec, scores: Spec) -> tuple[Spec, ...]:
        dtype = self.check(image, anchors, offsets, scores, (1, 2, 3, 3))
        if image.shape is not None:
            same(image.shape[0], 3, "the image has {0} numbers, not {1}")
        if anchors.shape is not None and scores.shape is not None:
            same(anchors.shape[0], product(scores.shape), "there are {0} anchors and {1} scores")
        return Spec(dtype, (self.post_nms_count, 4)), Spec(dtype, (self.post_nms_count,))

    def evaluate(self, xp: Adapter, *inputs: Array) -> tuple[Array, ...]:
        image, anchors, offsets, scores = (xp.asnumpy(x).astype(F32) for x in inputs)
        boxes = clip_boxes(move_boxes(anchors, by_anchor(offsets[None], 4)[0], 1), image[1::-1] - 1)
        scores = by_anchor(scores[None], 1)[0, :, 0] * (boxes[:, 2:] - boxes[:, :2] + 1 >= F32(self.min_size)).all(1)
        group = np.zeros(len(scores), np.int64)
        order = rank_by_group(group, scores)[: self.pre_nms_count]
        selected = order[
            greedy_nms(
                group[order],
                self.post_nms_count,
                above_threshold(Boxes.of(boxes[order]), self.nms_threshold),
                2 * self.post_nms_count,
            )
        ]
        corners, box_scores = np.zeros((self.post_nms_count, 4), F32), np.zeros(self.post_nms_count, F32)
        corners[: len(selected)], box_scores[: len(selected)] = boxes[selected], scores[selected]
        return xp.asarray(corners), xp.asarray(box_scores)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        scores = inputs[3]
        assert scores is not None and scores.shape is not None
        size = product(scores.shape)
        return nms_workspace(1, size, minimum(size, self.pre_nms_count), self.post_nms_count)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        scores, (boxes, box_scores, *_) = inputs[3], workspace
        if not kernels_support(scores, workspace):
            return NotImplemented
        if box_scores.size:
            sizes = box_scores.size, scores.shape[0], scores.shape[1] * scores.shape[2]
            k.kernel(
                "detectron.cu",
                f"move_anchors<{k.c_type(scores.dtype)}>",
                blocks(box_scores.size, THREADS),
                (THREADS,),
                (*inputs, boxes, box_scores, *map(np.int32, sizes), F32(MAX_LOG_SCALE), F32(self.min_size)),
            )
        record_nms(k, workspace, outputs, -np.inf, self.nms_threshold, 0)
        return None


@op("GenerateProposals", "opset9", "detection/generate-proposals-9")
class GenerateProposals(Anchored):
    """``images [N, 3 or 4], anchors [H, W, A, 4], offsets [N, 4 A, H, W], scores [N, A, H, W] -> [n, 4] corners,
    [n] scores, [N] counts`` of the n proposals, one image after the other.

    The values of an image are its height, its width, and scales by which ``min_size`` is multiplied. Regions that
    become smaller are left out after the selection by score. Boxes that are not ``normalized`` include the pixels at
    both ends. Every selected region multiplies the IoU threshold by ``nms_eta``, as long as it is above 0.5; OpenVINO
    accepts only 1.

    >>> generate_proposals([[8.0, 8, 1]], [[[[0.0, 0, 4, 4]], [[0, 0, 4, 5]]]],
    ...                    [[[[0.0, 0]], [[0, 0]], [[0, 0]], [[0, 0]]]], [[[[0.8, 0.9]]]],
    ...                    min_size=1.0, nms_threshold=0.5, pre_nms_count=2, post_nms_count=2)
    ([[0.0, 0.0, 4.0, 5.0]], [0.9], [1])
    """

    normalized: bool = True
    nms_eta: float = 1.0
    roi_num_type: Type = Type.i64

    mixed_reals = (1, 2, 3)

    def infer_specs(self, images: Spec, anchors: Spec, offsets: Spec, scores: Spec) -> tuple[Spec, ...]:
        dtype = self.check(images, anchors, offsets, scores, (2, 4, 4, 4))
        if not 0 <= self.nms_eta <= 1:
            raise OpError(f"nms_eta is {self.nms_eta:g}, not between 0 and 1")
        if self.roi_num_type not in (Type.i32, Type.i64):
            raise OpError(f"roi_num_type {self.roi_num_type.get_type_name()} is neither i32 nor i64")
        if images.shape is not None:
            at_most(3, images.shape[1], "an image has {1} numbers, not 3 or 4")
            at_most(images.shape[1], 4, "an image has {0} numbers, not 3 or 4")
        if anchors.shape is not None and scores.shape is not None:
            for extent, axis, what in zip(anchors.shape, (2, 3, 1), ("rows", "columns", "anchors of a place")):
                same(extent, scores.shape[axis], f"there are {{0}} {what}, and {{1}} in the scores")
        count = self.count(images, offsets, scores)
        rows = unknown(0, bounds(count * self.post_nms_count)[1])
        return Spec(dtype, (rows, 4)), Spec(dtype, (rows,)), Spec(self.roi_num_type, (count,))

    def count(self, *specs: Spec) -> Int:
        """Return the number of images. Raises OpError if the inputs disagree."""
        counts = [spec.shape[0] for spec in specs if spec.shape is not None]
        for other in counts[1:]:
            same(counts[0], other, "there are {0} images and {1} of them")
        return counts[0] if counts else unknown()

    def evaluate(self, xp: Adapter, *inputs: Array) -> tuple[Array, ...]:
        images, anchors, offsets, scores = (xp.asnumpy(x).astype(F32) for x in inputs)
        count, extra = len(scores), float(not self.normalized)
        boxes = move_boxes(anchors.reshape(-1, 4), by_anchor(offsets, 4), extra)
        boxes = clip_boxes(boxes, images[:, None, 1::-1] - extra).reshape(-1, 4)
        scores, image = by_anchor(scores, 1).reshape(-1), np.repeat(np.arange(count), len(boxes) // max(count, 1))
        order = rank_by_group(image, scores)
        order = order[best(image[order], self.pre_nms_count)]
        min_sides = F32(self.min_size) * images[:, [-1, 2]][image[order]]
        order = order[(boxes[order, 2:] - boxes[order, :2] + extra >= min_sides).all(1)]
        image, boxes, scores = image[order], boxes[order], scores[order]
        selected = greedy_nms(image, self.post_nms_count, *self.suppression_rule(Boxes.of(boxes, extra), len(order)))
        return (
            xp.asarray(boxes[selected]),
            xp.asarray(scores[selected]),
            xp.asarray(np.bincount(image[selected], minlength=count)),
        )

    def suppression_rule(self, boxes: Boxes, count: int) -> tuple[PairFunction, int | None]:
        """Return the suppression test, and how many candidates of an image are examined at a time (None: all)."""
        if self.nms_eta == 1 or self.nms_threshold <= 0.5:
            return above_threshold(boxes, self.nms_threshold), 2 * self.post_nms_count
        return decaying_threshold(partial(boxes.iou, touching=True), self.nms_threshold, self.nms_eta, count), None


def by_anchor(x: Array, each: int) -> Array:
    """Reorder [N, A * each, H, W] to the order of the anchors, [N, H * W * A, each]."""
    count, channels, height, width = x.shape
    anchors = channels // each
    split = x.reshape(count, anchors, each, height, width)
    return split.transpose(0, 3, 4, 1, 2).reshape(count, height * width * anchors, each)
