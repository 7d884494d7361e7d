"""Suppression of boxes in classes, as PaddlePaddle has it: MulticlassNms, MatrixNms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.op import Array, Op, op
from ovgpu.ops.base.shapes import check_integers, check_reals
from ovgpu.ops.detection._boxes import Boxes, best, falling, first_of, greedy, ranked
from ovgpu.symbolic import Int, Spec, bounds, product, same, unknown
from ovgpu.types import Type

EVERY = 2**62  # boxes of a class
BLOCK = 512  # boxes whose overlaps with all better ones are in memory at once
F32 = np.float32


@dataclass
class Candidates:
    """Boxes [n, 4] in classes of images; ``number`` counts them in their class, ``index`` in the input."""

    image: Array
    label: Array
    number: Array
    index: Array
    score: Array
    box: Array

    def __getitem__(self, chosen: Array) -> Candidates:
        return Candidates(*(x[chosen] for x in vars(self).values()))


class InClasses(Op):
    """``boxes [N, M, 4], scores [N, C, M] -> [n, 6] class, score and corners, [n, 1] indices, [N] counts`` of the n
    boxes that are selected; indices count the boxes of all images.

    Boxes of ``background_class`` are none. Of each class of an image the ``nms_top_k`` best take part, of each image
    the ``keep_top_k`` best are selected. They are sorted by score or class, in each image or all together. Boxes that
    are not ``normalized`` include the pixels at both ends.
    """

    sort_result_type: Literal["none", "score", "classid"] = "none"
    sort_result_across_batch: bool = False
    output_type: Type = Type.i64
    score_threshold: float = 0.0
    nms_top_k: int = -1
    keep_top_k: int = -1
    background_class: int = -1
    normalized: bool = True

    def infer(self, boxes: Spec, scores: Spec, counts: Spec | None = None) -> tuple[Spec, ...]:
        if self.output_type not in (Type.i32, Type.i64):
            raise OpError(f"output_type {self.output_type.get_type_name()} is neither i32 nor i64")
        for name in ("nms_top_k", "keep_top_k"):
            if getattr(self, name) < -1:
                raise OpError(f"{name} is {getattr(self, name)}, below -1")
        check_reals(boxes, "boxes", ranks=(3,))
        check_reals(scores, "scores", ranks=(3,) if counts is None else (2,))
        if boxes.shape is not None:
            same(boxes.shape[2], 4, "a box has {0} coordinates, not {1}")
        if boxes.shape is not None and scores.shape is not None:
            same(boxes.shape[0], scores.shape[0], "the first extents of boxes and scores are {0} and {1}")
            same(boxes.shape[1], scores.shape[-1], "there are {0} boxes and {1} scores")
        rows = unknown(0, self.most(scores))
        images = self.images(boxes, counts)
        return (Spec(boxes.type, (rows, 6)), Spec(self.output_type, (rows, 1)), Spec(self.output_type, (images,)))

    def most(self, scores: Spec) -> int | None:
        """How many boxes there are in all classes, if that is known."""
        return None if scores.shape is None else bounds(product(scores.shape))[1]

    def images(self, boxes: Spec, counts: Spec | None) -> Int:
        """How many images there are."""
        spec = boxes if counts is None else counts
        return unknown() if spec.shape is None else spec.shape[0]

    def evaluate(self, xp: Any, boxes: Any, scores: Any, counts: Any = None) -> tuple[Any, ...]:
        boxes, scores = (xp.asnumpy(x).astype(F32) for x in (boxes, scores))
        images = len(boxes) if counts is None else len(counts)
        numbers = None if counts is None else xp.asnumpy(counts).astype(np.int64)
        found = self.select(self.candidates(boxes, scores, numbers))
        found = found[np.lexsort((found.number, found.label, -found.score, found.image))]
        found = found[best(found.image, self.keep_top_k)]
        found = found[np.lexsort((found.number, *self.keys(found)))]
        rows = np.column_stack([found.label, found.score, found.box])
        return (xp.asarray(rows.reshape(-1, 6)), xp.asarray(found.index[:, None]),
                xp.asarray(np.bincount(found.image, minlength=images)))

    def keys(self, found: Candidates) -> tuple[Array, ...]:
        """What decides the order of the output, the most important last."""
        if self.sort_result_type == "classid":
            more = (found.image, found.label) if self.sort_result_across_batch else (found.label, found.image)
            return (-found.score, *more)
        if self.sort_result_type == "score" and self.sort_result_across_batch:
            return (found.label, found.image, -found.score)
        return (found.label, -found.score, found.image)

    def candidates(self, boxes: Array, scores: Array, counts: Array | None) -> Candidates:
        """The boxes that may be selected, by image and class, and by rank in each."""
        taking = self.takes(scores)
        if 0 <= self.background_class < scores.shape[counts is None]:
            taking[(slice(None),) * (counts is None) + (self.background_class,)] = False
        if counts is None:
            image, label, number = np.nonzero(taking)
            index = image * boxes.shape[1] + number
            found = Candidates(image, label, number, index, scores[taking], boxes[image, number])
        else:
            if counts.min(initial=0) < 0:
                raise OpError(f"an image cannot have {counts.min()} boxes")
            label, place = np.nonzero(taking[:, : counts.sum()])
            start = np.cumsum(counts) - counts
            image = np.repeat(np.arange(len(counts)), counts)[place]
            found = Candidates(image, label, place - start[image], place * len(boxes) + label, scores[label, place],
                               boxes[label, place])
        group = self.groups(found)
        order = ranked(group, found.score)
        return found[order[best(group[order], self.nms_top_k)]]

    def takes(self, scores: Array) -> Array:
        """Which scores let a box take part."""
        raise NotImplementedError

    def groups(self, found: Candidates) -> Array:
        """A number for each class of each image."""
        return found.image * (found.label.max(initial=0) + 1) + found.label

    def select(self, found: Candidates) -> Candidates:
        """What is left of the candidates, and their scores."""
        raise NotImplementedError


@op("MulticlassNms", "opset8")
class MulticlassNms(InClasses):
    """See `InClasses`; a box suppresses those that overlap it by ``iou_threshold`` or more, which becomes ``nms_eta``
    of what it was with every box that is selected, as long as it is above 0.5. As in OpenVINO and PaddlePaddle, what
    it has become counts for all the boxes selected before as well."""

    iou_threshold: float = 0.0
    nms_eta: float = 1.0

    def infer(self, boxes: Spec, scores: Spec, counts: Spec | None = None) -> tuple[Spec, ...]:
        if not 0 <= self.nms_eta <= 1:
            raise OpError(f"nms_eta is {self.nms_eta:g}, not between 0 and 1")
        if counts is not None:
            raise OpError("there are three inputs, of which opset 8 knows two")
        return super().infer(boxes, scores)

    def takes(self, scores: Array) -> Array:
        return scores >= F32(self.score_threshold)

    def select(self, found: Candidates) -> Candidates:
        overlap = Boxes.of(found.box, not self.normalized).iou
        suppressed = falling(overlap, self.iou_threshold, self.nms_eta, len(found.image), np.greater_equal)
        return found[greedy(self.groups(found), EVERY, suppressed)]


@op("MulticlassNms", "opset9")
class MulticlassNms9(MulticlassNms):
    """MulticlassNms-8, or with ``boxes [C, M, 4], scores [C, M], counts [N]``: each class has boxes of its own, so many
    of each image, one image after the other. Indices are then ``box * C + class``."""

    def infer(self, boxes: Spec, scores: Spec, counts: Spec | None = None) -> tuple[Spec, ...]:
        if counts is not None:
            check_integers(counts, "roisnum")
            return InClasses.infer(self, boxes, scores, counts)
        return super().infer(boxes, scores)


@op("MatrixNms", "opset8")
class MatrixNms(InClasses):
    """See `InClasses`; instead of suppressing others, each box lowers the scores of those that overlap it, the less
    the more it is itself overlapped by better ones. Those above ``post_threshold`` are selected."""

    decay_function: Literal["gaussian", "linear"] = "linear"
    gaussian_sigma: float = 2.0
    post_threshold: float = 0.0

    def infer(self, boxes: Spec, scores: Spec) -> tuple[Spec, ...]:  # type: ignore[override]
        return super().infer(boxes, scores)

    def takes(self, scores: Array) -> Array:
        return scores > F32(self.score_threshold)

    def select(self, found: Candidates) -> Candidates:
        parts = np.split(np.arange(len(found.image)), first_of(self.groups(found))[1:])
        found.score = np.concatenate([self.decayed(found[part]) for part in parts])
        return found[found.score > F32(self.post_threshold)]

    def decayed(self, found: Candidates) -> Array:
        """The scores of one class of an image, from the highest on."""
        count = len(found.score)
        boxes = Boxes.of(found.box, not self.normalized)
        largest, factor = np.zeros(count, F32), np.ones(count, F32)
        for start in range(0, count, BLOCK):
            stop = min(start + BLOCK, count)
            rows, better = np.ogrid[start:stop, :stop]
            iou = boxes.iou(rows, better, touching=True) * (better < rows)
            largest[start:stop] = iou.max(1)
            decay = np.where(better < rows, self.decay(iou, largest[better]), F32(1))
            factor[start:stop] = decay.min(1)
        return found.score * factor

    def decay(self, iou: Array, largest: Array) -> Array:
        """What scores are multiplied by, from the overlap with a better box, and that one's largest overlap."""
        if self.decay_function == "gaussian":
            return np.exp((largest * largest - iou * iou) * F32(self.gaussian_sigma))
        return ((1 - iou.astype(np.float64)) / (1 - largest.astype(np.float64) + 1e-10)).astype(F32)
