"""Ops of Detectron's two-stage detectors: grids of anchors, selection of regions, their features from a feature
pyramid, and the final detections. GenerateProposals is in `generate_proposals`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.arithmetic.arithmetic import Add
from ovgpu.ops.base import launch
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import at_most, check_reals
from ovgpu.ops.base.storage import compute_dtype
from ovgpu.ops.base.strided import THREADS, blocks
from ovgpu.ops.base.xp import NUMPY, Adapter
from ovgpu.ops.convert import Convert
from ovgpu.ops.detection._boxes import Boxes, above_threshold, greedy_nms, move_boxes, rank_by_group
from ovgpu.ops.detection._regions import check_sampling
from ovgpu.ops.detection.priors import centers
from ovgpu.ops.detection.roi_align import ROIAlign9
from ovgpu.ops.fused._elementwise import Chain, Part
from ovgpu.ops.movement.gather import Gather8
from ovgpu.ops.reduction import is_float
from ovgpu.ops.sort.topk import TopK11
from ovgpu.spec import Shape, Spec
from ovgpu.symbolic import Int, minimum, same, unknown
from ovgpu.types import Type

F32 = np.float32
CANONICAL_SIDE = 224  # pixels: the side of a region that belongs to level 2 of a pyramid
MAX_SORTED_BOXES = 3072  # boxes of a group that the kernels sort: TopK selects no more out of any number, see `_block`


def check(specs: Sequence[Spec], descriptions: Sequence[str], ranks: Sequence[int]) -> Type:
    """Return the common element type of the inputs. Raises OpError unless all are real and have these ranks."""
    for spec, what, rank in zip(specs, descriptions, ranks):
        check_reals(spec, what, ranks=(rank,))
    return merge_types(specs)


@op("ExperimentalDetectronPriorGridGenerator", "opset6", "detection/experimental-detectron-prior-grid-generator-6")
class PriorGridGenerator(Op):
    """``priors [P, 4], maps [1, C, H, W], image [1, D, height, width] -> [H * W * P, 4]``, or ``[H, W, P, 4]`` without
    ``flatten``: the corners of the priors around the centre of every cell of a grid.

    The grid has ``h`` by ``w`` cells, ``stride_y`` and ``stride_x`` apart. Attributes that are 0 follow from the sizes
    of the maps and of the image. A grid smaller than H x W leaves zeros at the end of the output.
    """

    flatten: bool = True
    h: int = 0
    w: int = 0
    stride_x: float = 0.0
    stride_y: float = 0.0

    layout = "dense"

    def infer_specs(self, priors: Spec, maps: Spec, image: Spec) -> tuple[Spec, ...]:
        for name in ("h", "w", "stride_x", "stride_y"):
            if getattr(self, name) < 0:
                raise OpError(f"{name} is {getattr(self, name):g}, below 0")
        dtype = check((priors, maps, image), ("priors", "feature maps", "the image"), (2, 4, 4))
        if priors.shape is not None:
            same(priors.shape[1], 4, "a prior has {0} coordinates, not {1}")
        if maps.shape is not None and image.shape is not None:
            same(maps.shape[0], image.shape[0], "there are {0} feature maps and {1} images")
        count = unknown() if priors.shape is None else priors.shape[0]
        rows, columns = (unknown(), unknown()) if maps.shape is None else maps.shape[2:]
        at_most(self.h, rows, "h is {0}, of {1} rows of the feature maps")
        at_most(self.w, columns, "w is {0}, of {1} columns of the feature maps")
        return (Spec(dtype, (rows * columns * count, 4) if self.flatten else (rows, columns, count, 4)),)

    def shifts(self, maps: Array, image: Array) -> Array:
        """Return the centre of each cell, [h, w, 1, 4], to be added to the corners of the priors; on the host."""
        grid = np.array([self.h or maps.shape[2], self.w or maps.shape[3]])
        steps = np.array([self.stride_x, self.stride_y], F32)
        steps = np.where(steps == 0, F32(image.shape[:1:-1]) / F32(np.maximum(grid[::-1], 1)), steps)
        center = centers(grid, 0.5, steps)
        return np.concatenate([center, center], -1)

    def evaluate(self, xp: Adapter, priors: Array, maps: Array, image: Array) -> tuple[Array, ...]:
        shifted = (priors + xp.asarray(self.shifts(maps, image))).reshape(-1)
        shape = (*maps.shape[2:], len(priors), 4)
        padding = xp.zeros(int(np.prod(shape)) - shifted.size, shifted.dtype)
        return (xp.concatenate([shifted, padding]).reshape((-1, 4) if self.flatten else shape),)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (priors, maps, image), out = inputs, outputs[0].reshape(-1)
        dtype = Type.of(out.dtype)
        wide = compute_dtype(dtype)
        shifts = self.shifts(maps, image).astype(wide)
        size = shifts.size * len(priors)
        if size:
            parts = (
                Part(Convert(destination_type=Type.of(wide)), (0,)),
                Part(Add(), (2, 1)),
                Part(Convert(destination_type=dtype), (3,)),
            )
            k.elementwise(
                Chain(2, (), parts), [priors, k.table(shifts)], out[:size].reshape(*shifts.shape[:2], *priors.shape)
            )
        k.copy(np.zeros(1, out.dtype), out[size:])


@op("ExperimentalDetectronTopKROIs", "opset6", "sort/experimental-detectron-top-krois-6")
class TopKROIs(Op):
    """``regions [n, 4], scores [n] -> [max_rois, 4]``: the regions with the highest scores, then zeros. Of equal scores
    the first wins."""

    max_rois: int = 0

    layout = "dense"

    def infer_specs(self, regions: Spec, scores: Spec) -> tuple[Spec, ...]:
        if self.max_rois < 0:
            raise OpError(f"max_rois is {self.max_rois}, below 0")
        dtype = check((regions, scores), ("regions", "scores"), (2, 1))
        if regions.shape is not None:
            same(regions.shape[1], 4, "a region has {0} coordinates, not {1}")
        if regions.shape is not None and scores.shape is not None:
            same(regions.shape[0], scores.shape[0], "there are {0} regions and {1} scores")
        return (Spec(dtype, (self.max_rois, 4)),)

    def evaluate(self, xp: Adapter, regions: Array, scores: Array) -> tuple[Array, ...]:
        count = min(self.max_rois, len(regions))
        out = xp.zeros((self.max_rois, 4), regions.dtype)
        out[:count] = xp.take(regions, TOP_K.order(xp, scores, 0)[:count], axis=0)
        return (out,)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        scores = inputs[1]
        assert scores is not None and scores.shape is not None
        count = minimum(self.max_rois, scores.shape[0])
        return (scores.type, (count,)), (Type.i32, (count,))

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (regions, scores), (values, indices), out = inputs, workspace, outputs[0]
        if TOP_K.cuda(k, [scores, np.array(len(indices))], [values, indices], ()) is NotImplemented:
            return NotImplemented
        k.copy(np.zeros((1, 1), out.dtype), out[len(indices) :])
        return Gather8().cuda(k, [regions, indices, np.array(0)], [out[: len(indices)]], ())


TOP_K = TopK11(axis=0, mode="max", sort="value")


class _Level(ROIAlign9):
    """ROIAlign of one level of a pyramid: the sides of regions are at least 1 in every ``aligned_mode``."""

    def boxes(self, xp: Adapter, regions: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        starts, (height, width) = super().boxes(xp, regions)
        return starts, (xp.maximum(height, 1), xp.maximum(width, 1))


@op("ExperimentalDetectronROIFeatureExtractor", "opset6", "detection/experimental-detectron-roi-feature-extractor-6")
class ROIFeatureExtractor(Op):
    """``regions [R, 4], maps [1, C, H, W] of every level ... -> [R, C, output_size, output_size] features, [R, 4]``,
    the unchanged regions. The specification mentions a new order of regions, but OpenVINO does not reorder them.

    The features are the ROIAlign average of the pyramid level that fits the size of the region (Lin et al. 2017):
    level 2 for sides of 224, one level more for each doubling, clipped to the existing levels. A region without an
    area has zeros as features.
    """

    output_size: int
    sampling_ratio: int
    pyramid_scales: tuple[int, ...]
    aligned: bool = False

    layout = "dense"

    def infer_specs(self, regions: Spec, *maps: Spec) -> tuple[Spec, ...]:
        if self.output_size < 1:
            raise OpError(f"output_size is {self.output_size}, not positive")
        check_sampling(self.sampling_ratio)
        if min(self.pyramid_scales, default=1) < 1:
            raise OpError(f"pyramid_scales has the element {min(self.pyramid_scales)}, which is not positive")
        if not maps or len(maps) > len(self.pyramid_scales):
            raise OpError(f"there are {len(maps)} feature maps, and {len(self.pyramid_scales)} pyramid_scales")
        dtype = check((regions, *maps), ("regions", *("feature maps",) * len(maps)), (2, *(4,) * len(maps)))
        if regions.shape is not None:
            same(regions.shape[1], 4, "a region has {0} coordinates, not {1}")
        count = unknown() if regions.shape is None else regions.shape[0]
        size = (self.output_size, self.output_size)
        return Spec(dtype, (count, self.channels([m.shape for m in maps]), *size)), Spec(dtype, (count, 4))

    def channels(self, shapes: Sequence[Shape]) -> Any:
        """Return the number of channels of all maps. Raises OpError if the shapes disagree."""
        known = [shape for shape in shapes if shape is not None]
        for shape in known:
            same(shape[0], 1, "there are {0} feature maps of a level, not {1}")
            same(shape[1], known[0][1], "there are {0} channels in a level, and {1} in another")
        return known[0][1] if known else unknown()

    def levels(self, xp: Adapter, regions: Array, count: int) -> Array:
        """Return the level, below ``count``, of each region; ``count`` for a region without an area."""
        sides = regions[:, 2:] - regions[:, :2]
        area = sides[:, 0] * sides[:, 1]
        size = xp.log2(xp.sqrt(xp.maximum(area, 0)) / CANONICAL_SIDE + area.dtype.type(1e-6))
        return xp.where(area > 0, xp.clip(xp.floor(size + 2), 0, count - 1), count).astype(np.int64)

    def aligner(self, level: int) -> _Level:
        """Return the ROIAlign op of a pyramid level."""
        attributes: dict[str, Any] = {
            "pooled_h": self.output_size,
            "pooled_w": self.output_size,
            "sampling_ratio": self.sampling_ratio,
            "spatial_scale": 1 / self.pyramid_scales[level],
            "mode": "avg",
            "aligned_mode": "half_pixel_for_nn" if self.aligned else "asymmetric",
        }
        return _Level(**attributes)

    def evaluate(self, xp: Adapter, regions: Array, *maps: Array) -> tuple[Array, ...]:
        levels = self.levels(xp, regions, len(maps))
        out = xp.zeros((len(regions), maps[0].shape[1], self.output_size, self.output_size), regions.dtype)
        for level, x in enumerate(maps):
            (chosen,) = xp.nonzero(levels == level)
            out[chosen] = self.aligner(level).evaluate(xp, x, regions[chosen], xp.zeros(len(chosen), np.int64))[0]
        return out, regions.copy()

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        if not is_float(inputs[0].dtype) or not all(x.size for x in inputs):
            return NotImplemented
        k(self.average, *inputs, outputs[0])
        k(np.copyto, outputs[1], inputs[0])
        return None

    def average(self, regions: Array, *operands: Array) -> None:
        """Compute `evaluate` by matrix products, and write the features to the last operand."""
        *maps, out = operands
        levels = self.levels(NUMPY, regions, len(maps))
        out[levels == len(maps)] = 0
        for level, x in enumerate(maps):
            chosen = np.flatnonzero(levels == level)
            images = np.zeros(len(chosen), np.int64)
            self.aligner(level).average(x, regions[chosen], images, [out[i] for i in chosen])

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (regions, *maps), (out, copied) = inputs, outputs
        if not launch.is_real(regions) or any(
            max(x.shape) > launch.MAX_INDEX or (out.size and not x.size) for x in maps
        ):
            return NotImplemented
        for level, x in enumerate(maps):
            if out.size:
                scale, after = 1 / self.pyramid_scales[level], -0.5 if self.aligned else 0.0
                k.kernel(
                    "roi_pooling.cu",
                    f"roi_level<{k.c_type(x.dtype)}>",
                    blocks(out.size, THREADS),
                    (THREADS,),
                    (
                        x,
                        regions,
                        out,
                        np.int64(out.size),
                        *map(np.int32, (*x.shape, *out.shape[1:])),
                        np.int32(self.sampling_ratio),
                        *(launch.real(v, x) for v in (scale, after)),
                        np.int32(level),
                        np.int32(len(maps)),
                    ),
                )
        k.copy(regions, copied)
        return None


@op("ExperimentalDetectronDetectionOutput", "opset6", "detection/experimental-detectron-detection-output-6")
class DetectionOutput(Op):
    """``regions [R, 4], offsets [R, 4 C], scores [R, C], image [1, 3] -> [max_detections_per_image, 4] corners,
    classes, scores`` of the detections, then zeros.

    For each class except the first, the background, regions with scores above ``score_threshold`` are moved by
    their offsets, divided by ``deltas_weights``. Non-maximum suppression with ``nms_threshold`` then selects at most
    ``post_nms_count`` boxes of each class. They are ordered by class; if there are too many, the best are selected
    and ordered by score. As in all of OpenVINO's implementations, and against the specification, corners are clipped
    at 0 but not at the far sides of the image, ``class_agnostic_box_regression`` has no effect, and regions without
    an area are left out.
    """

    score_threshold: float
    nms_threshold: float
    num_classes: int
    post_nms_count: int
    max_detections_per_image: int
    class_agnostic_box_regression: bool = False
    max_delta_log_wh: float
    deltas_weights: tuple[float, ...]

    layout = "dense"

    def infer_specs(self, regions: Spec, offsets: Spec, scores: Spec, image: Spec) -> tuple[Spec, ...]:
        for name in ("score_threshold", "nms_threshold", "num_classes", "post_nms_count", "max_detections_per_image"):
            if getattr(self, name) < 0:
                raise OpError(f"{name} is {getattr(self, name):g}, below 0")
        if len(self.deltas_weights) != 4:
            raise OpError(f"deltas_weights has {len(self.deltas_weights)} elements, not 4")
        dtype = check((regions, offsets, scores, image), ("regions", "offsets", "scores", "the image"), (2, 2, 2, 2))
        for spec, expected, what in (
            (regions, 4, "coordinates of a region"),
            (offsets, 4 * self.num_classes, "offsets"),
            (scores, self.num_classes, "scores"),
            (image, 3, "numbers of the image"),
        ):
            if spec.shape is not None:
                same(spec.shape[1], expected, f"there are {{0}} {what}, not {{1}}")
        for spec, what in ((offsets, "offsets"), (scores, "scores")):
            if regions.shape is not None and spec.shape is not None:
                same(regions.shape[0], spec.shape[0], f"there are {{0}} regions, and {what} of {{1}}")
        if image.shape is not None:
            same(image.shape[0], 1, "there are {0} images, not {1}")
        rows = self.max_detections_per_image
        return Spec(dtype, (rows, 4)), Spec(Type.i32, (rows,)), Spec(dtype, (rows,))

    def evaluate(self, xp: Adapter, *inputs: Array) -> tuple[Array, ...]:
        regions, offsets, scores = (xp.asnumpy(x).astype(F32) for x in inputs[:3])
        is_candidate = (scores > F32(self.score_threshold)) & (regions[:, 2:] > regions[:, :2]).all(1)[:, None]
        label, region = np.nonzero(is_candidate.T[1:])
        label += 1
        score = scores[region, label]
        order = rank_by_group(label, score)
        label, region, score = label[order], region[order], score[order]
        offsets = offsets.reshape(*scores.shape, 4)[region, label] / np.array(self.deltas_weights, F32)
        boxes = np.maximum(move_boxes(regions[region], offsets, 1, self.max_delta_log_wh), 0)
        selected = greedy_nms(label, self.post_nms_count, above_threshold(Boxes.of(boxes, 1), self.nms_threshold))
        if len(selected) > self.max_detections_per_image:
            selected = selected[np.lexsort((label[selected], region[selected], -score[selected]))][
                : self.max_detections_per_image
            ]
        results = []
        for values, dtype in ((boxes, F32), (label, np.int32), (score, F32)):
            out = np.zeros((self.max_detections_per_image, *values.shape[1:]), dtype)
            out[: len(selected)] = values[selected]
            results.append(xp.asarray(out))
        return tuple(results)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        scores = inputs[2]
        assert scores is not None and scores.shape is not None
        count = scores.shape[0]
        return nms_workspace(max(self.num_classes - 1, 0), count, count, self.post_nms_count)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (regions, offsets, scores), (boxes, box_scores, *_) = inputs[:3], workspace
        if not kernels_support(regions, workspace):
            return NotImplemented
        if box_scores.size:
            largest, min_score = F32(self.max_delta_log_wh), F32(self.score_threshold)
            k.kernel(
                "detectron.cu",
                f"move_regions<{k.c_type(scores.dtype)}>",
                blocks(box_scores.size, THREADS),
                (THREADS,),
                (
                    regions,
                    offsets,
                    scores,
                    boxes,
                    box_scores,
                    *map(np.int32, scores.shape),
                    np.array(self.deltas_weights, F32),
                    largest,
                    min_score,
                ),
            )
        record_nms(k, workspace, outputs, self.score_threshold, self.nms_threshold, 1)
        return None


# ---- non-maximum suppression on the device


def nms_workspace(groups: int, size: Int, candidates: Int, limit: int) -> Workspace:
    """Return the workspace of `record_nms`: boxes [groups, size, 4] and their scores; the best ``candidates`` of each
    group as sorted scores and box indices; the ranks of the selected boxes, and their count."""
    limit = minimum(candidates, limit)
    return (
        (Type.f32, (groups, size, 4)),
        (Type.f32, (groups, size)),
        (Type.f32, (groups, candidates)),
        (Type.i32, (groups, candidates)),
        (Type.i32, (groups, limit)),
        (Type.i32, (groups,)),
    )


def kernels_support(x: Array, workspace: Sequence[Array]) -> bool:
    """Return whether the kernels support the element type and the number of boxes."""
    boxes, _, _, order, *_ = workspace
    return launch.is_real(x) and boxes.size <= launch.MAX_INDEX and order.shape[1] <= MAX_SORTED_BOXES


def record_nms(
    k: KernelRecorder,
    workspace: Sequence[Array],
    outputs: Sequence[Array],
    min_score: float,
    threshold: float,
    extra: float,
) -> None:
    """Record the calls that write the corners, the classes (with three outputs), and the scores of the selected boxes.

    A box suppresses worse ones at an IoU above ``threshold``. Boxes with scores of at most ``min_score`` are never
    selected.
    ``extra`` is added to the lengths of all sides.
    """
    boxes, box_scores, sorted_scores, order, selected, counts = workspace
    (groups, size), candidates, limit, rows = box_scores.shape, order.shape[1], selected.shape[1], len(outputs[0])
    if not selected.size or not rows:
        for out in outputs:
            k.copy(np.zeros((1,) * out.ndim, out.dtype), out)
        return
    TopK11(axis=1, mode="max", sort="value").cuda(k, [box_scores, np.array(candidates)], [sorted_scores, order], ())
    k.kernel(
        "detectron.cu",
        "suppress",
        (groups,),
        (THREADS,),
        (
            boxes,
            sorted_scores,
            order,
            selected,
            counts,
            *map(np.int32, (size, candidates, limit)),
            *map(F32, (min_score, threshold, extra)),
        ),
    )
    corners, *labels, scores = outputs
    k.kernel(
        "detectron.cu",
        f"write_best<{k.c_type(corners.dtype)}>",
        blocks(max(groups * limit, rows), THREADS),
        (THREADS,),
        (
            boxes,
            sorted_scores,
            order,
            selected,
            counts,
            corners,
            *(labels or [None]),
            scores,
            *map(np.int32, (groups, size, candidates, limit, rows)),
        ),
    )
