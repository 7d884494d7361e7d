"""Regions that a detector looks at, from scores and offsets of given anchors: GenerateProposals and its older form.

Unlike Proposal, which lays out the anchors itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Op, Workspace, op
from ovgpu.ops.base.shapes import at_most, check_reals
from ovgpu.ops.base.strided import THREADS, blocks
from ovgpu.ops.detection._boxes import LARGEST, Boxes, Suppressed, above, best, falling, greedy, moved, ranked
from ovgpu.ops.detection.detectron import suppressible, suppression, write_best
from ovgpu.ops.detection.proposal import clipped
from ovgpu.symbolic import Int, Spec, bounds, minimum, product, same, unknown
from ovgpu.types import Type

F32 = np.float32


class Anchored(Op):
    """Base: the ``pre_nms_count`` best anchors of an image, moved by their offsets and cut to the image, suppress each
    other by IoU; at most ``post_nms_count`` are left."""

    min_size: float
    nms_threshold: float
    pre_nms_count: int
    post_nms_count: int

    layout = "dense"

    def check(self, image: Spec, anchors: Spec, offsets: Spec, scores: Spec, ranks: Sequence[int]) -> Type:
        """The common element type; raises an OpError unless the inputs are such as the specification allows."""
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


@op("ExperimentalDetectronGenerateProposalsSingleImage", "opset6")
class GenerateProposalsSingleImage(Anchored):
    """``image [3], anchors [H * W * A, 4], offsets [4 A, H, W], scores [A, H, W] -> [post_nms_count, 4] corners,
    [post_nms_count] scores`` of the regions found, then zeros. The image begins with its height and width.

    Sides that become smaller than ``min_size`` give a score of 0, as in all of OpenVINO's implementations; the
    specification would leave such regions out. Boxes include the pixels at both ends, but not in the IoU.
    """

    def infer(self, image: Spec, anchors: Spec, offsets: Spec, scores: Spec) -> tuple[Spec, ...]:
        kind = self.check(image, anchors, offsets, scores, (1, 2, 3, 3))
        if image.shape is not None:
            same(image.shape[0], 3, "the image has {0} numbers, not {1}")
        if anchors.shape is not None and scores.shape is not None:
            same(anchors.shape[0], product(scores.shape), "there are {0} anchors and {1} scores")
        return Spec(kind, (self.post_nms_count, 4)), Spec(kind, (self.post_nms_count,))

    def evaluate(self, xp: Any, *inputs: Any) -> tuple[Any, ...]:
        image, anchors, offsets, scores = (xp.asnumpy(x).astype(F32) for x in inputs)
        boxes = clipped(moved(anchors, by_place(offsets[None], 4)[0], 1), image[1::-1] - 1)
        scores = by_place(scores[None], 1)[0, :, 0] * (boxes[:, 2:] - boxes[:, :2] + 1 >= F32(self.min_size)).all(1)
        group = np.zeros(len(scores), np.int64)
        order = ranked(group, scores)[: self.pre_nms_count]
        kept = order[greedy(group[order], self.post_nms_count, above(Boxes.of(boxes[order]), self.nms_threshold),
                            2 * self.post_nms_count)]
        corners, rated = np.zeros((self.post_nms_count, 4), F32), np.zeros(self.post_nms_count, F32)
        corners[: len(kept)], rated[: len(kept)] = boxes[kept], scores[kept]
        return xp.asarray(corners), xp.asarray(rated)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        scores = inputs[3]
        assert scores is not None and scores.shape is not None
        size = product(scores.shape)
        return suppression(1, size, minimum(size, self.pre_nms_count), self.post_nms_count)

    def cuda(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        scores, (boxes, rated, *_) = inputs[3], workspace
        if not suppressible(scores, workspace):
            return NotImplemented
        if rated.size:
            sizes = rated.size, scores.shape[0], scores.shape[1] * scores.shape[2]
            k.kernel("detectron.cu", f"move_anchors<{k.c_type(scores.dtype)}>", blocks(rated.size, THREADS), (THREADS,),
                     (*inputs, boxes, rated, *map(np.int32, sizes), F32(LARGEST), F32(self.min_size)))
        write_best(k, workspace, outputs, -np.inf, self.nms_threshold, 0)
        return None


@op("GenerateProposals", "opset9")
class GenerateProposals(Anchored):
    """``images [N, 3 or 4], anchors [H, W, A, 4], offsets [N, 4 A, H, W], scores [N, A, H, W] -> [n, 4] corners,
    [n] scores, [N] counts`` of the n regions found, one image after the other.

    An image is given as height, width, and scales by which ``min_size`` is multiplied; regions that become smaller
    are left out once the best are chosen. Boxes that are not ``normalized`` include the pixels at both ends. The IoU
    that counts becomes ``nms_eta`` of what it was with every region, as long as it is above 0.5; OpenVINO refuses
    other values than 1.
    """

    normalized: bool = True
    nms_eta: float = 1.0
    roi_num_type: Type = Type.i64

    def infer(self, images: Spec, anchors: Spec, offsets: Spec, scores: Spec) -> tuple[Spec, ...]:
        kind = self.check(images, anchors, offsets, scores, (2, 4, 4, 4))
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
        return Spec(kind, (rows, 4)), Spec(kind, (rows,)), Spec(self.roi_num_type, (count,))

    def count(self, *specs: Spec) -> Int:
        """How many images there are."""
        found = [spec.shape[0] for spec in specs if spec.shape is not None]
        for other in found[1:]:
            same(found[0], other, "there are {0} images and {1} of them")
        return found[0] if found else unknown()

    def evaluate(self, xp: Any, *inputs: Any) -> tuple[Any, ...]:
        images, anchors, offsets, scores = (xp.asnumpy(x).astype(F32) for x in inputs)
        count, extra = len(scores), float(not self.normalized)
        boxes = moved(anchors.reshape(-1, 4), by_place(offsets, 4), extra)
        boxes = clipped(boxes, images[:, None, 1::-1] - extra).reshape(-1, 4)
        scores, image = by_place(scores, 1).reshape(-1), np.repeat(np.arange(count), len(boxes) // max(count, 1))
        order = ranked(image, scores)
        order = order[best(image[order], self.pre_nms_count)]
        least = F32(self.min_size) * images[:, [-1, 2]][image[order]]
        order = order[(boxes[order, 2:] - boxes[order, :2] + extra >= least).all(1)]
        image, boxes, scores = image[order], boxes[order], scores[order]
        kept = greedy(image, self.post_nms_count, *self.suppressing(Boxes.of(boxes, extra), len(order)))
        return (xp.asarray(boxes[kept]), xp.asarray(scores[kept]),
                xp.asarray(np.bincount(image[kept], minlength=count)))

    def suppressing(self, boxes: Boxes, count: int) -> tuple[Suppressed, int | None]:
        """What suppresses candidates, and how many of an image are looked at at a time; None for all."""
        if self.nms_eta == 1 or self.nms_threshold <= 0.5:
            return above(boxes, self.nms_threshold), 2 * self.post_nms_count
        return falling(partial(boxes.iou, touching=True), self.nms_threshold, self.nms_eta, count), None


def by_place(x: Array, each: int) -> Array:
    """[N, A * each, H, W] in the order of the anchors: [N, H * W * A, each]."""
    count, channels, height, width = x.shape
    anchors = channels // each
    split = x.reshape(count, anchors, each, height, width)
    return split.transpose(0, 3, 4, 1, 2).reshape(count, height * width * anchors, each)
