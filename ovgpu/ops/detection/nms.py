"""Non-maximum suppression: NonMaxSuppression, NMSRotated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.shapes import UP_TO_F32, check_integers, check_reals
from ovgpu.ops.base.strided import blocks
from ovgpu.ops.base.view import equal
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.detection._boxes import Boxes, from_centers, from_corners, greedy_nms, rank_by_group, soft_nms
from ovgpu.ops.detection._rotated import RotatedBoxes
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, bounds, maximum, minimum, same, unknown
from ovgpu.types import Type

OPTIONAL_INPUTS = ("max_output_boxes_per_class", "iou_threshold", "score_threshold", "soft_nms_sigma")
MAX_BOXES_PER_CLASS = 2**31 - 1  # upper bound of max_output_boxes_per_class
STAGE_CANDIDATES = 256  # candidates of a class examined at a time, unless twice the limit is more
THREADS = 256  # threads per block
KERNEL_DTYPES = ("float32", "float16", "bfloat16")  # dtypes that the kernels support


class Suppression(Op):
    """Base: ``boxes [B, N, box_size], scores [B, C, N]`` and up to four optional numbers, 0 if absent: the largest
    number of boxes to select per class, the IoU above which the better box suppresses the other, the score that a box
    must exceed, and the sigma of Soft-NMS (Bodla et al. 2017).

    In each class of each batch, the box with the highest score is selected (the first of equal scores) and suppresses
    others, until no box is left. A box whose score equals the threshold is not selected: OpenVINO's plugin does so,
    against the letter of the specification.
    """

    sort_result_descending: bool = True

    host_inputs = (2, -1)
    option_ranks: ClassVar[tuple[int, ...]] = (0,)  # allowed ranks of the optional inputs
    real_types: ClassVar[Sequence[Type] | None] = None  # allowed types of boxes, scores and thresholds; None: any
    box_size: ClassVar[int] = 4  # values that describe a box

    @property
    def index_type(self) -> Type:
        """The element type of indices."""
        return Type.i64

    def check(self, boxes: Spec, scores: Spec, options: Sequence[Spec | None]) -> None:
        """Raise OpError for inputs that the specification does not allow."""
        if self.index_type not in (Type.i32, Type.i64):
            raise OpError(f"output_type {self.index_type.get_type_name()} is neither i32 nor i64")
        check_reals(boxes, "boxes", ranks=(3,), types=self.real_types)
        check_reals(scores, "scores", ranks=(3,), types=self.real_types)
        for spec, what in zip(options, OPTIONAL_INPUTS):
            if spec is not None:
                if what == OPTIONAL_INPUTS[0]:
                    check_integers(spec, what, ranks=self.option_ranks)
                else:
                    check_reals(spec, what, ranks=self.option_ranks, types=self.real_types)
                for extent in spec.shape or ():
                    same(extent, 1, what + " must have 1 element, not {0}")
        if boxes.shape is not None:
            same(boxes.shape[2], self.box_size, "a box has {0} coordinates, not {1}")
        if boxes.shape is not None and scores.shape is not None:
            same(boxes.shape[0], scores.shape[0], "there are {0} batches of boxes and {1} of scores")
            same(boxes.shape[1], scores.shape[2], "there are {0} boxes and {1} scores")

    def rows(self, boxes: Spec, scores: Spec, options: Sequence[Spec | None]) -> Int:
        """Return the largest number of output rows."""
        limit = self.limit(options)
        if limit is None or boxes.shape is None or scores.shape is None:
            return unknown()
        return self.capacity(scores.shape, limit)

    def limit(self, options: Sequence[Spec | None]) -> Int | None:
        """Return the largest number of boxes to select per class; None if it is unknown."""
        if not options or options[0] is None:
            return 0
        limits = options[0].ints()
        return None if limits is None else maximum(minimum(limits[0], MAX_BOXES_PER_CLASS), 0)

    def capacity(self, scores: Sequence[Int], limit: Int) -> Int:
        """Return the largest number of output rows for scores of this shape."""
        return minimum(scores[2], limit) * scores[0] * scores[1]

    def read_options(self, options: Sequence[Any]) -> tuple[int, np.float32, np.float32, np.float32]:
        """Return the limit of boxes per class, the IoU threshold, the score threshold, and sigma."""
        limit, *rest = [0 if x is None else x.reshape(-1)[0] for x in (*options, *(None,) * 4)[:4]]
        iou, min_score, sigma = np.asarray(rest, np.float32)
        return min(max(int(limit), 0), MAX_BOXES_PER_CLASS), iou, min_score, sigma

    def select(self, xp: Adapter, boxes: Array, scores: Array, options: Sequence[Any]) -> tuple[Array, Array]:
        """Return the selection, on the host: rows [n, 3] of batch, class and box, and scores [n]."""
        limit, threshold, min_score, sigma = self.read_options(options)
        classes, count = scores.shape[1:]
        candidates = xp.flatnonzero(scores > min_score) if limit else xp.zeros(0, np.int64)
        group, box = xp.divmod(candidates, max(count, 1))
        box += group // max(classes, 1) * count
        boxes = xp.asnumpy(boxes.reshape(-1, self.box_size).take(box, 0)).astype(np.float32)
        scores = xp.asnumpy(scores.reshape(-1).take(candidates)).astype(np.float32)
        group, box = xp.asnumpy(group), xp.asnumpy(box)
        if sigma > 0:
            overlap, scale = self.overlap(boxes), np.float32(-0.5) / sigma
            chosen, scores = soft_nms(
                group, scores, limit, float(min_score), lambda a, b: self.weight(overlap(a, b), threshold, scale)
            )
        else:
            order = rank_by_group(group, scores)
            overlap = self.overlap(boxes.take(order, 0))
            chosen = order[
                greedy_nms(
                    group[order],
                    limit,
                    lambda a, b: self.suppresses(overlap(a, b), threshold),
                    max(2 * limit, STAGE_CANDIDATES),
                )
            ]
            scores = scores[chosen]
        if self.sort_result_descending:
            order = np.argsort(-scores, kind="stable")
            chosen, scores = chosen[order], scores[order]
        batch, label = np.divmod(group[chosen], max(classes, 1))
        return np.stack([batch, label, box[chosen] - batch * count], 1), scores

    def overlap(self, boxes: Array) -> Callable[[Array, Array], Array]:
        """Return a function that computes the IoU of boxes [n, box_size] by index."""
        raise NotImplementedError

    def suppresses(self, iou: Array, threshold: np.float32) -> Array:
        """Return whether this IoU with a better box suppresses a box. As in OpenVINO, the threshold itself does."""
        return iou >= threshold

    def weight(self, iou: Array, threshold: np.float32, scale: np.float32) -> Array:
        """Return the factors by which soft suppression multiplies scores."""
        return np.exp(scale * iou * iou) * (iou <= threshold)


class VariableLength(Suppression):
    """Base: the versions whose outputs have one row per selected box."""

    output_type: Type = Type.i64

    option_ranks = (0, 1)
    cuda: ClassVar[Any] = None
    workspace = Op.workspace

    @property
    def index_type(self) -> Type:
        return self.output_type

    def infer_specs(self, boxes: Spec, scores: Spec, *options: Spec | None) -> tuple[Spec, ...]:
        self.check(boxes, scores, options)
        most = bounds(self.rows(boxes, scores, options))[1]
        rows = unknown(0, most)
        return Spec(self.index_type, (rows, 3)), Spec(Type.f32, (rows, 3)), Spec(self.index_type, (1,))

    def evaluate(self, xp: Adapter, boxes: Array, scores: Array, *options: Array) -> tuple[Array, ...]:
        rows, scores = self.select(xp, boxes, scores, options)
        selected_scores = np.column_stack([rows[:, :2].astype(np.float32), scores])
        return xp.asarray(rows), xp.asarray(selected_scores), xp.asarray(np.array([len(rows)]))


@op("NonMaxSuppression", "opset1", "sort/non-max-suppression-1")
class NonMaxSuppression(Suppression):
    """``-> [rows, 3]``: batch, class and box of each selected box (see `Suppression`), then -1. Rows are sorted by
    score over all classes, or else by class.

    The number of rows in the specification ignores batches and may be less than the number of selected boxes; then
    there is one row per selected box. OpenVINO's plugin also suppresses boxes whose IoU equals the threshold, and does
    not pad.
    """

    box_encoding: Literal["corner", "center"] = "corner"

    layout = "dense"

    def infer_specs(self, boxes: Spec, scores: Spec, *options: Spec | None) -> tuple[Spec, ...]:
        self.check(boxes, scores, options)
        most, limit = self.rows(boxes, scores, options), self.limit(options)
        if scores.shape is not None and limit is not None:
            fewest = self.min_rows(scores.shape, limit)
            if not equal(fewest, most):
                most = unknown(bounds(fewest)[0], bounds(most)[1])
        return (Spec(self.index_type, (most, 3)),)

    def min_rows(self, scores: Sequence[Int], limit: Int) -> Int:
        """Return the smallest number of output rows for scores of this shape."""
        return minimum(scores[2], limit * scores[1])

    def evaluate(self, xp: Adapter, boxes: Array, scores: Array, *options: Array) -> tuple[Array, ...]:
        selected, _ = self.select(xp, boxes, scores, options)
        limit, *_ = self.read_options(options)
        rows = np.full((max(self.min_rows(scores.shape, limit), len(selected)), 3), -1)
        rows[: len(selected)] = selected
        return (xp.asarray(rows),)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        scores, limit = inputs[1], self.limit(inputs[2:])
        assert scores is not None and scores.shape is not None and limit is not None
        selected = (*scores.shape[:2], minimum(scores.shape[2], limit))
        return (
            (Type.f32, scores.shape),
            (Type.i32, scores.shape),
            (Type.f32, selected),
            (Type.i32, selected),
            (Type.i32, scores.shape[:2]),
        )

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        boxes, scores, *options = inputs
        limit, threshold, min_score, _ = self.read_options(options)
        batches, classes, count = scores.shape
        limit, groups, row_count = min(limit, count), batches * classes, len(outputs[0])
        if (
            boxes.dtype.name not in KERNEL_DTYPES
            or boxes.dtype != scores.dtype
            or groups * max(count, 1) >= 2**31 - THREADS
        ):
            return NotImplemented
        if not row_count:
            return None
        c_type, center = k.c_type(scores.dtype), np.bool_(self.box_encoding == "center")
        *scratch, selected_scores, chosen, counts = workspace
        k.kernel(
            "nms.cu",
            f"nms_select<{c_type}>",
            (groups,),
            (THREADS,),
            (
                boxes,
                scores,
                *scratch,
                selected_scores,
                chosen,
                counts,
                *map(np.int32, (classes, count, limit)),
                threshold,
                min_score,
                center,
            ),
        )
        k.kernel(
            "nms.cu",
            f"nms_write<{k.c_type(outputs[0].dtype)}>",
            blocks(max(groups * limit, row_count), THREADS),
            (THREADS,),
            (
                selected_scores,
                chosen,
                counts,
                outputs[0],
                *map(np.int32, (groups, classes, limit, row_count)),
                np.bool_(self.sort_result_descending),
            ),
        )
        return None

    def overlap(self, boxes: Array) -> Callable[[Array, Array], Array]:
        return Boxes(*(from_corners if self.box_encoding == "corner" else from_centers)(boxes)).iou


@op("NonMaxSuppression", "opset3", "sort/non-max-suppression-3")
class NonMaxSuppression3(NonMaxSuppression):
    """NonMaxSuppression-1 with a choice of the index type: i64 or i32."""

    output_type: Type = Type.i64

    @property
    def index_type(self) -> Type:
        return self.output_type


@op("NonMaxSuppression", "opset4", "sort/non-max-suppression-4")
class NonMaxSuppression4(NonMaxSuppression3):
    """NonMaxSuppression-3 with one row for each box that may be selected."""

    min_rows = Suppression.capacity


@op("NonMaxSuppression", "opset5", "sort/no-max-suppression-5")
class NonMaxSuppression5(VariableLength, NonMaxSuppression4):
    """``-> [n, 3] indices, [n, 3] batch, class and score, [1] n`` of the n boxes that NonMaxSuppression-4 selects.

    With a sigma above 0, the scores of boxes that overlap a better box are multiplied by exp(-iou^2 / (2 sigma)).
    Boxes above the IoU threshold are still suppressed, unlike in OpenVINO's plugin.
    """

    real_types = UP_TO_F32


@op("NonMaxSuppression", "opset9", "sort/non-max-suppression-9")
class NonMaxSuppression9(NonMaxSuppression5):
    """NonMaxSuppression-5, in which soft suppression ignores the IoU threshold.

    >>> non_max_suppression([[[0.0, 0, 1, 1], [0, 0, 1, 2], [5, 5, 6, 6]]], [[[0.6, 0.9, 0.5]]], 10, 0.4, 0.0)
    ([[0, 0, 1], [0, 0, 2]], [[0.0, 0.0, 0.9], [0.0, 0.0, 0.5]], [2])
    """

    def weight(self, iou: Array, threshold: np.float32, scale: np.float32) -> Array:
        return np.exp(scale * iou * iou)


@op("NMSRotated", "opset13", "sort/nms-rotated-13")
class NMSRotated(VariableLength):
    """``boxes [B, N, 5], scores, limit, thresholds -> [n, 3] indices, [n, 3] batch, class and score, [1] n``:
    NonMaxSuppression-9 for boxes given by centre x and y, width, height, and an angle in radians.

    >>> nms_rotated([[[0.0, 0, 4, 1, 0], [0, 0, 4, 1, 1.5708], [0, 0, 4, 1, 3.1416]]], [[[0.9, 0.8, 0.7]]],
    ...             10, 0.5, 0.0)
    ([[0, 0, 0], [0, 0, 1]], [[0.0, 0.0, 0.9], [0.0, 0.0, 0.8]], [2])
    """

    clockwise: bool = True

    box_size = 5

    def overlap(self, boxes: Array) -> Callable[[Array, Array], Array]:
        return RotatedBoxes(boxes, self.clockwise).iou

    def suppresses(self, iou: Array, threshold: np.float32) -> Array:
        return iou > threshold
