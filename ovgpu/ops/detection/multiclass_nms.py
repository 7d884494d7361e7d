"""Non-maximum suppression in many classes, as in PaddlePaddle: MulticlassNms, MatrixNms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Op, op
from ovgpu.ops.base.shapes import UP_TO_F32, check_integers, check_reals
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.detection._boxes import Boxes, best, decaying_threshold, find_group_starts, greedy_nms, rank_by_group
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, bounds, product, same, unknown
from ovgpu.types import Type

UNLIMITED = 2**62  # limit of boxes per class that never applies
BLOCK_ROWS = 512  # boxes whose overlaps with all better boxes are in memory at once
F32 = np.float32


@dataclass
class Candidates:
    """Boxes [n, 4] with their image, class and score. ``index`` is the index that the op outputs."""

    image: Array
    label: Array
    index_in_image: Array
    index: Array
    score: Array
    box: Array

    def __getitem__(self, chosen: Array) -> Candidates:
        return Candidates(*(x[chosen] for x in vars(self).values()))


class MulticlassSuppression(Op):
    """Base: ``boxes [N, M, 4], scores [N, C, M] -> [n, 6] class, score and corners, [n, 1] indices, [N] counts`` of the
    n selected boxes; indices count the boxes of all images.

    ``background_class`` is ignored. The ``nms_top_k`` best boxes of each class of an image are candidates, and the
    ``keep_top_k`` best of each image are selected. They are sorted by score or class, per image or across the batch.
    Boxes that are not ``normalized`` include the pixels at both ends.
    """

    sort_result_type: Literal["none", "score", "classid"] = "none"
    sort_result_across_batch: bool = False
    output_type: Type = Type.i64
    score_threshold: float = 0.0
    nms_top_k: int = -1
    keep_top_k: int = -1
    background_class: int = -1
    normalized: bool = True

    def infer_specs(self, boxes: Spec, scores: Spec, counts: Spec | None = None) -> tuple[Spec, ...]:
        if self.output_type not in (Type.i32, Type.i64):
            raise OpError(f"output_type {self.output_type.get_type_name()} is neither i32 nor i64")
        for name in ("nms_top_k", "keep_top_k"):
            if getattr(self, name) < -1:
                raise OpError(f"{name} is {getattr(self, name)}, below -1")
        check_reals(boxes, "boxes", ranks=(3,), types=UP_TO_F32)
        check_reals(scores, "scores", ranks=(3,) if counts is None else (2,), types=UP_TO_F32)
        merge_types((boxes, scores))
        if boxes.shape is not None:
            same(boxes.shape[2], 4, "a box has {0} coordinates, not {1}")
        if boxes.shape is not None and scores.shape is not None:
            same(boxes.shape[0], scores.shape[0], "the first extents of boxes and scores are {0} and {1}")
            same(boxes.shape[1], scores.shape[-1], "there are {0} boxes and {1} scores")
        rows = unknown(0, self.max_rows(scores))
        images = self.images(boxes, counts)
        return (Spec(boxes.type, (rows, 6)), Spec(self.output_type, (rows, 1)), Spec(self.output_type, (images,)))

    def max_rows(self, scores: Spec) -> int | None:
        """Return the largest number of output rows, one per box and class; None if it is unknown."""
        return None if scores.shape is None else bounds(product(scores.shape))[1]

    def images(self, boxes: Spec, counts: Spec | None) -> Int:
        """Return the number of images."""
        spec = boxes if counts is None else counts
        return unknown() if spec.shape is None else spec.shape[0]

    def evaluate(self, xp: Adapter, boxes: Array, scores: Array, counts: Array | None = None) -> tuple[Array, ...]:
        boxes, scores = (xp.asnumpy(x).astype(F32) for x in (boxes, scores))
        images = len(boxes) if counts is None else len(counts)
        host_counts = None if counts is None else xp.asnumpy(counts).astype(np.int64)
        selected = self.select(self.candidates(boxes, scores, host_counts))
        selected = selected[np.lexsort((selected.index_in_image, selected.label, -selected.score, selected.image))]
        selected = selected[best(selected.image, self.keep_top_k)]
        selected = selected[np.lexsort((selected.index_in_image, *self.keys(selected)))]
        rows = np.column_stack([selected.label, selected.score, selected.box])
        return (
            xp.asarray(rows.reshape(-1, 6)),
            xp.asarray(selected.index[:, None]),
            xp.asarray(np.bincount(selected.image, minlength=images)),
        )

    def keys(self, selected: Candidates) -> tuple[Array, ...]:
        """Return the sort keys of the output, the primary key last."""
        if self.sort_result_type == "classid":
            more = (
                (selected.image, selected.label) if self.sort_result_across_batch else (selected.label, selected.image)
            )
            return (-selected.score, *more)
        if self.sort_result_type == "score" and self.sort_result_across_batch:
            return (selected.label, selected.image, -selected.score)
        return (selected.label, -selected.score, selected.image)

    def candidates(self, boxes: Array, scores: Array, counts: Array | None) -> Candidates:
        """Return the boxes to consider, ordered by image and class, then by descending score."""
        is_candidate = self.passes_threshold(scores)
        if 0 <= self.background_class < scores.shape[counts is None]:
            is_candidate[(slice(None),) * (counts is None) + (self.background_class,)] = False
        if counts is None:
            image, label, index_in_image = np.nonzero(is_candidate)
            index = image * boxes.shape[1] + index_in_image
            candidates = Candidates(
                image, label, index_in_image, index, scores[is_candidate], boxes[image, index_in_image]
            )
        else:
            if counts.min(initial=0) < 0:
                raise OpError(f"an image cannot have {counts.min()} boxes")
            label, column = np.nonzero(is_candidate[:, : counts.sum()])
            start = np.cumsum(counts) - counts
            image = np.repeat(np.arange(len(counts)), counts)[column]
            candidates = Candidates(
                image,
                label,
                column - start[image],
                column * len(boxes) + label,
                scores[label, column],
                boxes[label, column],
            )
        group = self.groups(candidates)
        order = rank_by_group(group, candidates.score)
        return candidates[order[best(group[order], self.nms_top_k)]]

    def passes_threshold(self, scores: Array) -> Array:
        """Return a mask of the scores that make a box a candidate."""
        raise NotImplementedError

    def groups(self, candidates: Candidates) -> Array:
        """Return the group index of each candidate. Each class of an image is a group."""
        return candidates.image * (candidates.label.max(initial=0) + 1) + candidates.label

    def select(self, candidates: Candidates) -> Candidates:
        """Return the selected candidates with their final scores."""
        raise NotImplementedError


@op("MulticlassNms", "opset8", "sort/multiclass-non-max-suppression-8")
class MulticlassNms(MulticlassSuppression):
    """See `MulticlassSuppression`; a box suppresses others if their IoU is ``iou_threshold`` or more.

    Every selected box multiplies the threshold by ``nms_eta``, as long as it is above 0.5. As in OpenVINO and
    PaddlePaddle, the lowered threshold also applies to the boxes selected before."""

    iou_threshold: float = 0.0
    nms_eta: float = 1.0

    def infer_specs(self, boxes: Spec, scores: Spec, counts: Spec | None = None) -> tuple[Spec, ...]:
        if not 0 <= self.nms_eta <= 1:
            raise OpError(f"nms_eta is {self.nms_eta:g}, not between 0 and 1")
        if counts is not None:
            raise OpError("there are three inputs, of which opset 8 knows two")
        return super().infer_specs(boxes, scores)

    def passes_threshold(self, scores: Array) -> Array:
        return scores >= F32(self.score_threshold)

    def select(self, candidates: Candidates) -> Candidates:
        overlap = Boxes.of(candidates.box, not self.normalized).iou
        suppressed = decaying_threshold(
            overlap, self.iou_threshold, self.nms_eta, len(candidates.image), np.greater_equal
        )
        return candidates[greedy_nms(self.groups(candidates), UNLIMITED, suppressed)]


@op("MulticlassNms", "opset9", "sort/multiclass-non-max-suppression-9")
class MulticlassNms9(MulticlassNms):
    """MulticlassNms-8, or with ``boxes [C, M, 4], scores [C, M], counts [N]``: each class has its own boxes, ``counts``
    per image, one image after the other. Indices are then ``box * C + class``.

    >>> multiclass_nms([[[0.0, 0, 1, 1], [0, 0, 1, 2]]], [[[0.9, 0.8], [0.3, 0.6]]],
    ...                iou_threshold=0.4, sort_result_type="score")
    ([[0.0, 0.9, 0.0, 0.0, 1.0, 1.0], [1.0, 0.6, 0.0, 0.0, 1.0, 2.0]], [[0], [1]], [2])
    """

    def infer_specs(self, boxes: Spec, scores: Spec, counts: Spec | None = None) -> tuple[Spec, ...]:
        if counts is not None:
            check_integers(counts, "roisnum")
            return MulticlassSuppression.infer_specs(self, boxes, scores, counts)
        return super().infer_specs(boxes, scores)


@op("MatrixNms", "opset8", "sort/matrix-non-max-suppression-8")
class MatrixNms(MulticlassSuppression):
    """Matrix NMS (Wang et al. 2020); see `MulticlassSuppression`. A box does not suppress the boxes that it overlaps,
    but lowers their scores; it lowers them less if a better box overlaps it. Boxes with scores above
    ``post_threshold`` are selected.

    >>> matrix_nms([[[0.0, 0, 1, 1], [0, 0, 1, 2]]], [[[0.9, 0.8]]])
    ([[0.0, 0.9, 0.0, 0.0, 1.0, 1.0], [0.0, 0.4, 0.0, 0.0, 1.0, 2.0]], [[0], [1]], [2])
    """

    decay_function: Literal["gaussian", "linear"] = "linear"
    gaussian_sigma: float = 2.0
    post_threshold: float = 0.0

    def infer_specs(self, boxes: Spec, scores: Spec) -> tuple[Spec, ...]:  # type: ignore[override]
        return super().infer_specs(boxes, scores)

    def passes_threshold(self, scores: Array) -> Array:
        return scores > F32(self.score_threshold)

    def select(self, candidates: Candidates) -> Candidates:
        parts = np.split(np.arange(len(candidates.image)), find_group_starts(self.groups(candidates))[1:])
        candidates.score = np.concatenate([self.decayed_scores(candidates[part]) for part in parts])
        return candidates[candidates.score > F32(self.post_threshold)]

    def decayed_scores(self, candidates: Candidates) -> Array:
        """Return the lowered scores of one class of an image; its boxes are sorted by descending score."""
        count = len(candidates.score)
        boxes = Boxes.of(candidates.box, not self.normalized)
        largest, factor = np.zeros(count, F32), np.ones(count, F32)
        for start in range(0, count, BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, count)
            rows, better = np.ogrid[start:stop, :stop]
            iou = boxes.iou(rows, better, touching=True) * (better < rows)
            largest[start:stop] = iou.max(1)
            decay = np.where(better < rows, self.decay(iou, largest[better]), F32(1))
            factor[start:stop] = decay.min(1)
        return candidates.score * factor

    def decay(self, iou: Array, largest: Array) -> Array:
        """Return the factors of scores, from the IoU with a better box and the largest IoU of that better box."""
        if self.decay_function == "gaussian":
            return np.exp((largest * largest - iou * iou) * F32(self.gaussian_sigma))
        # 1e-10 keeps the divisor above 0 where a better box covers the box exactly.
        return ((1 - iou.astype(np.float64)) / (1 - largest.astype(np.float64) + 1e-10)).astype(F32)
