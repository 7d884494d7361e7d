"""DetectionOutput: the detections of a single-shot detector (SSD), from its scores, offsets and priors."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Op, op
from ovgpu.ops.base.shapes import check_reals
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.detection._boxes import Boxes, best, greedy_nms, rank_by_group
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, Sym, onto, same, unknown

UNLIMITED = 2**62  # limit of boxes per class that never applies


class Detection(Op):
    """``offsets [N, P * L * 4], scores [N, P * C], priors [N or 1, 2, P * 4] -> [1, 1, rows, 7]``: image, class,
    score and corners of the detections, ordered by image and class; then a row that begins with -1, and zeros.

    All C classes share the offsets of the P priors (L is 1), or each has its own (L is C). Offsets are multiplied by
    the variances in the second row of the priors, if there are any. A prior that is not ``normalized`` has one value
    before its corners. Non-maximum suppression takes the ``top_k`` best boxes of each class. With
    ``decrease_label_id``, it takes the ``top_k`` best boxes of each image, and each prior only in its best class. Each
    image has at most ``keep_top_k`` detections.

    Two optional inputs, scores [N, P * 2] and offsets like the first input, refine the priors beforehand. Priors whose
    second score is below ``objectness_score`` then count as background.
    """

    background_label_id: int = 0
    top_k: int = -1
    variance_encoded_in_target: bool = False
    keep_top_k: tuple[int, ...]
    code_type: Literal["caffe.PriorBoxParameter.CORNER", "caffe.PriorBoxParameter.CENTER_SIZE"] = (
        "caffe.PriorBoxParameter.CORNER"
    )
    share_location: bool = True
    nms_threshold: float
    confidence_threshold: float = 0.0
    clip_after_nms: bool = False
    clip_before_nms: bool = False
    decrease_label_id: bool = False
    normalized: bool = False
    input_height: int = 1
    input_width: int = 1
    objectness_score: float = 0.0

    @property
    def size(self) -> int:
        """The number of values that describe a prior."""
        return 4 if self.normalized else 5

    def infer_specs(
        self, offsets: Spec, scores: Spec, priors: Spec, objectness: Spec | None = None, refinement: Spec | None = None
    ) -> tuple[Spec, ...]:
        if not self.keep_top_k:
            raise OpError("keep_top_k is empty")
        for spec, what, rank in (
            (offsets, "offsets", 2),
            (scores, "scores", 2),
            (priors, "priors", 3),
            (objectness, "additional scores", 2),
            (refinement, "additional offsets", 2),
        ):
            if spec is not None:
                check_reals(spec, what, ranks=(rank,))
        merge_types([s for s in (offsets, scores, objectness, refinement) if s is not None])
        if (objectness is None) != (refinement is None):
            raise OpError("there are four inputs, neither three nor five")
        return (Spec(offsets.type, (1, 1, self.rows(offsets, scores, priors, objectness, refinement), 7)),)

    def rows(self, offsets: Spec, scores: Spec, priors: Spec, objectness: Spec | None, refinement: Spec | None) -> Int:
        """Return the number of output rows. Raises OpError if the input shapes do not fit together."""
        if offsets.shape is None or scores.shape is None or priors.shape is None:
            return unknown()
        images = same(offsets.shape[0], scores.shape[0], "there are {0} images of offsets and {1} of scores")
        same(priors.shape[2] % self.size, 0, f"the numbers of priors divided by {self.size} leave {{0}}")
        onto(priors.shape[0], images, "there are {0} sets of priors for {1} images")
        same(priors.shape[1], 1 if self.variance_encoded_in_target else 2, "priors have {0} rows, not {1}")
        count = priors.shape[2] // self.size
        classes = self.classes(scores.shape[1], count)
        same(scores.shape[1], count * classes, "there are {0} scores, not {1}")
        offset_classes = 1 if self.share_location else classes
        same(offsets.shape[1], count * offset_classes * 4, "there are {0} offsets, not {1}")
        for spec, extent, what in (
            (objectness, count * 2, "additional scores"),
            (refinement, offsets.shape[1], "additional offsets"),
        ):
            if spec is not None and spec.shape is not None:
                same(spec.shape[0], images, f"there are {{0}} images of {what}, not {{1}}")
                same(spec.shape[1], extent, f"there are {{0}} {what}, not {{1}}")
        return self.capacity(images, classes, count)

    def capacity(self, images: Int, classes: Int, priors: Int) -> Int:
        """Return the number of output rows: the largest number of detections that the attributes allow."""
        if self.keep_top_k[0] > 0:
            return images * self.keep_top_k[0]
        if self.keep_top_k[0] == -1 and self.top_k > 0:
            return images * self.top_k * classes
        return images * classes * priors

    def classes(self, scores: Int, priors: Int) -> Int:
        """Return the number of classes of an image with this many scores and priors."""
        raise NotImplementedError

    def evaluate(self, xp: Adapter, *inputs: Array) -> tuple[Array, ...]:
        given: list[Any] = [None if x is None else xp.asnumpy(x).astype(np.float32) for x in (*inputs, None, None)]
        offsets, scores, priors, objectness, refinement = given[:5]
        images, count = len(offsets), priors.shape[2] // self.size
        classes = self.classes(scores.shape[1], count)
        scores = scores.reshape(images, count, classes)
        boxes = priors[:, 0].reshape(-1, count, 1, self.size)[..., self.size - 4 :]
        variances = None if self.variance_encoded_in_target else priors[:, 1, : count * 4].reshape(-1, count, 1, 4)
        if objectness is not None:
            empty = objectness.reshape(images, count, 2)[..., 1] < np.float32(self.objectness_score)
            scores[empty] = np.arange(classes) == self.background_label_id
            boxes = self.decode(boxes, variances, refinement.reshape(images, count, -1, 4))
        boxes = self.decode(boxes, variances, offsets.reshape(images, count, -1, 4))
        detections = self.detect(scores, np.broadcast_to(boxes, (images, count, classes, 4)))
        rows = np.zeros((self.capacity(images, classes, count), 7), np.float32)
        rows[: len(detections)] = detections[: len(rows)]
        rows[len(detections) : len(detections) + 1, 0] = -1
        return (xp.asarray(rows[None, None]),)

    def decode(self, priors: Array, variances: Array | None, offsets: Array) -> Array:
        """Return the corners of boxes [..., 4], given the corners of priors [..., 4] and their offsets [..., 4]."""
        if not self.normalized:
            priors = priors / np.array([self.input_width, self.input_height] * 2, np.float32)
        if variances is not None:
            offsets = variances * offsets
        if self.code_type.endswith("CORNER"):
            boxes = priors + offsets
        else:
            low, high = priors[..., :2], priors[..., 2:]
            sides = high - low
            center, half = offsets[..., :2] * sides + (low + high) / 2, np.exp(offsets[..., 2:]) * sides / 2
            boxes = np.concatenate([center - half, center + half], -1)
        return boxes.clip(0, 1) if self.clip_before_nms else boxes

    def detect(self, scores: Array, boxes: Array) -> Array:
        """Return the output rows [n, 7] of the detections, given scores [N, P, C] and boxes [N, P, C, 4]."""
        image, prior, label = self.candidates(scores)
        score, box = scores[image, prior, label], boxes[image, prior, label]
        ranking_group = image if self.decrease_label_id else image * scores.shape[2] + label
        order = rank_by_group(ranking_group, score)
        order = order[best(ranking_group[order], self.top_k)]
        if self.decrease_label_id:
            order = order[np.argsort((image * scores.shape[2] + label)[order], kind="stable")]
        image, prior, label, score, box = (x[order] for x in (image, prior, label, score, box))
        overlap = Boxes.of(box).iou
        selected = greedy_nms(
            image * scores.shape[2] + label, UNLIMITED, lambda a, b: overlap(a, b) > np.float32(self.nms_threshold)
        )
        if self.keep_top_k[0] > -1:
            order = selected[np.lexsort((label[selected], prior[selected], -score[selected], image[selected]))]
            selected = order[best(image[order], self.keep_top_k[0])]
            selected = selected[np.argsort((image * scores.shape[2] + label)[selected], kind="stable")]
        box = box[selected].clip(0, 1) if self.clip_after_nms else box[selected]
        return np.column_stack([image[selected], label[selected] - self.decrease_label_id, score[selected], box])

    def candidates(self, scores: Array) -> tuple[Array, Array, Array]:
        """Return the image, prior and class indices of the boxes to consider, in order of images and priors."""
        if not self.decrease_label_id:
            is_candidate = scores > np.float32(self.confidence_threshold)
            if 0 <= self.background_label_id < scores.shape[2]:
                is_candidate[..., self.background_label_id] = False
            image, prior, label = np.nonzero(is_candidate)
            return image, prior, label
        scores = scores.copy()
        scores[..., 0] = -1
        if 0 < self.background_label_id < scores.shape[2]:
            scores[..., self.background_label_id] = -1
        label, score = scores.argmax(2), scores.max(2)
        image, prior = np.nonzero((score > -1) & (score >= np.float32(self.confidence_threshold)))
        return image, prior, label[image, prior]


@op("DetectionOutput", "opset1", "detection/detectionoutput-1")
class DetectionOutput(Detection):
    __doc__ = Detection.__doc__

    num_classes: int

    def classes(self, scores: Int, priors: Int) -> Int:
        return self.num_classes


@op("DetectionOutput", "opset8", "detection/detectionoutput-8")
class DetectionOutput8(Detection):
    """DetectionOutput-1, in which the number of classes follows from the shapes.

    >>> detection_output([[0.1, 0.0, 0.1, 0.0]], [[0.1, 0.9]], [[[0.2, 0.2, 0.4, 0.4]]], attrs={
    ...     "nms_threshold": 0.5, "keep_top_k": [1], "variance_encoded_in_target": True, "normalized": True})
    [[[[0.0, 1.0, 0.9, 0.3, 0.2, 0.5, 0.4]]]]
    """

    def classes(self, scores: Int, priors: Int) -> Int:
        if not isinstance(priors, Sym) and priors == 0:
            raise OpError("there are no priors")
        return scores // priors
