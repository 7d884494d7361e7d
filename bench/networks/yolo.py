"""A detector of the YOLOv8 family.

Blocks split the channels, and concatenate the parts and what convolutions make of the second one. Boxes are
distributions over the distances from the centre of a cell to their sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.networks.vision import IR, Writer
from tests.harness.ir import Net, Port

BINS = 16  # distances of a box's side, in cells
STRIDES = (8, 16, 32)
GAIN = 1.4  # for weights whose sum is 0, after a Swish: with more, errors of 8 bits would grow from layer to layer
UPSAMPLED: dict[str, Any] = {
    "mode": "nearest",
    "shape_calculation_mode": "scales",
    "coordinate_transformation_mode": "asymmetric",
    "nearest_mode": "floor",
    "antialias": False,
    "pads_begin": [0],
    "pads_end": [0],
    "cube_coeff": -0.75,
}
POOL = {
    "strides": "1,1",
    "pads_begin": "2,2",
    "pads_end": "2,2",
    "kernel": "5,5",
    "rounding_type": "floor",
    "auto_pad": "explicit",
}


@dataclass(frozen=True)
class YoloSizes:
    """Sizes of a YOLOv8; the defaults are those of YOLOv8n. ``blocks`` counts the pairs of convolutions per level."""

    image: int = 640
    stem: int = 16
    blocks: tuple[int, int, int, int] = (1, 2, 2, 1)
    classes: int = 80

    @property
    def cells(self) -> int:
        """Cells of all three grids."""
        return sum((self.image // stride) ** 2 for stride in STRIDES)

    def centres(self) -> tuple[Any, Any]:
        """Return the centres of the cells [1, 2, cells], in cells, and the sizes [1, 1, cells] of these."""
        grids = [np.indices((self.image // stride,) * 2).reshape(2, -1)[::-1] + 0.5 for stride in STRIDES]
        sizes = np.repeat(STRIDES, [grid.shape[1] for grid in grids])
        return np.concatenate(grids, 1)[None].astype("f4"), sizes[None, None].astype("f4")


class _YoloWriter(Writer):
    def unit(self, name: str, x: Port, of: int, out: int, kernel: int = 3, stride: int = 1) -> Port:
        """Add a convolution and its activation."""
        return self.swish(self.conv(name, x, of, out, (kernel, kernel), stride, GAIN))

    def split(self, x: Port, axis: int, *lengths: int) -> Sequence[Port]:
        inputs = [x, self.number(axis), self.i64(*lengths)]
        parts: Sequence[Port] = self.net.layer("VariadicSplit", "opset1", inputs, {}, len(lengths))
        return parts

    def joined(self, *parts: Port, axis: int = 1) -> Port:
        return self("Concat", list(parts), axis=axis)

    def block(self, name: str, x: Port, of: int, out: int, count: int, adds: bool) -> Port:
        half = out // 2
        parts = list(self.split(self.unit(f"{name}_first", x, of, out, 1), 1, half, half))
        for k in range(count):
            y = self.unit(f"{name}_{k}_b", self.unit(f"{name}_{k}_a", parts[-1], half, half), half, half)
            parts.append(self.add(parts[-1], y) if adds else y)
        return self.unit(f"{name}_last", self.joined(*parts), (2 + count) * half, out, 1)

    def grown(self, x: Port) -> Port:
        return self("Interpolate", [x, self.net.const(np.array([2, 2], np.float32)), self.i64(2, 3)], 11, **UPSAMPLED)


def yolo(seed: int, batch: int, sizes: YoloSizes) -> IR:
    """Return the detector: x [batch,3,image,image] -> boxes [batch,4,cells], centre and size, and
    scores [batch,classes,cells]."""
    w = _YoloWriter(Net("yolo"), np.random.default_rng(seed))
    x = w.net.parameter("f32", (batch, 3, sizes.image, sizes.image), "x")
    x, of = w.unit("stem", x, 3, sizes.stem, 3, 2), sizes.stem
    levels = list[tuple[Port, int]]()
    for level, count in enumerate(sizes.blocks):
        x = w.unit(f"shrink_{level}", x, of, 2 * of, 3, 2)
        x, of = w.block(f"level_{level}", x, 2 * of, 2 * of, count, True), 2 * of
        levels.append((x, of))
    pools = [w.unit("pools_first", x, of, of // 2, 1)]
    for _ in range(3):
        pools.append(w("MaxPool", [pools[-1]], **POOL))
    x = w.unit("pools_last", w.joined(*pools), 2 * of, of, 1)
    (fine, n), (middle, m), count = levels[1], levels[2], sizes.blocks[0]
    up = w.block("up_1", w.joined(w.grown(x), middle), of + m, m, count, False)
    grids = [(w.block("up_0", w.joined(w.grown(up), fine), m + n, n, count, False), n)]
    for k, (part, out) in enumerate(((up, m), (x, of))):
        y, width = grids[-1]
        y = w.joined(w.unit(f"down_{k}", y, width, width, 3, 2), part)
        grids.append((w.block(f"joined_{k}", y, width + out, out, count, False), out))
    found = [_head(w, k, y, width, sizes) for k, (y, width) in enumerate(grids)]
    boxes, scores = w.split(w.joined(*found, axis=2), 1, 4 * BINS, sizes.classes)
    boxes = w("Transpose", [w.reshape(boxes, w.i64(0, 4, BINS, sizes.cells), True), w.i64(0, 2, 1, 3)])
    distances = w.net.const(np.arange(BINS, dtype=np.float32).reshape(1, BINS, 1, 1))
    pointwise = {"strides": [1, 1], "dilations": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0]}
    boxes = w("Convolution", [w("Softmax", [boxes], 8, axis=1), distances], auto_pad="explicit", **pointwise)
    low, high = w.split(w.reshape(boxes, w.i64(0, 4, sizes.cells), True), 1, 2, 2)
    centres, size = map(w.net.const, sizes.centres())
    low, high = w("Subtract", [centres, low]), w.add(centres, high)
    centre = w.add(w.add(low, high), w.net.const(np.full((1, 1, 1), 0.5, np.float32)), "Multiply")
    boxes = w.add(w.joined(centre, w("Subtract", [high, low])), size, "Multiply")
    w.net.result(boxes)
    w.net.result(w("Sigmoid", [scores]))
    return w.net.build()


def _head(w: _YoloWriter, k: int, y: Port, width: int, sizes: YoloSizes) -> Port:
    """Add the head of a grid: [batch, 4 bins + classes, cells]."""
    found = []
    for name, inner in (("boxes", 4 * BINS), ("scores", sizes.classes)):
        x = w.unit(f"{name}_{k}_b", w.unit(f"{name}_{k}_a", y, width, inner), inner, inner)
        found.append(w.conv(f"{name}_{k}_c", x, inner, inner, (1, 1), gain=1.0))
    cells = (sizes.image // STRIDES[k]) ** 2
    return w.reshape(w.joined(*found), w.i64(0, 4 * BINS + sizes.classes, cells), True)
