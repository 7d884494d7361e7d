"""Prior boxes over a grid, to which a detector predicts offsets: PriorBox, PriorBoxClustered."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.op import Array, Arrays, Op, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import check_integers, integers
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Spec
from ovgpu.symbolic import maximum, same, unknown
from ovgpu.types import Type

F32 = np.float32
MAX_PRIORS = 1 << 20  # per grid element: more are a mistake in the model, and would exhaust memory


class Priors(Op):
    """Base: ``output_size [2], image_size [2] -> [2, 4 * height * width * priors]``: corners relative to the image in
    the first row, variances in the second. Both sizes are height and width."""

    clip: bool
    offset: float
    variance: tuple[float, ...] = ()

    host_inputs = (0, 1)

    def infer_specs(self, output_size: Spec, image_size: Spec) -> tuple[Spec, ...]:
        for spec, what in ((output_size, "output_size"), (image_size, "image_size")):
            check_integers(spec, what)
            if spec.shape is not None:
                same(spec.shape[0], 2, what + " must have 2 elements, not {0}")
        if len(self.variance) not in (0, 1, 4):
            raise OpError(f"variance has {len(self.variance)} elements, not 0, 1 or 4")
        grid = output_size.ints()
        if grid is None:
            return (Spec(Type.f32, (2, unknown())),)
        height, width = (maximum(extent, 0) for extent in grid)
        return (Spec(Type.f32, (2, 4 * self.count() * height * width)),)

    def count(self) -> int:
        """Return the number of boxes per grid element."""
        raise NotImplementedError

    def boxes(self, grid: Array, image: Array) -> Array:
        """Return the corners [height, width, priors, 4] relative to the image."""
        raise NotImplementedError

    def evaluate(self, xp: Adapter, output_size: Array, image_size: Array) -> tuple[Array, ...]:
        return (xp.asarray(self.prior_boxes(output_size, image_size)),)

    def prior_boxes(self, output_size: Array, image_size: Array) -> Array:
        """Compute the output [2, 4 * height * width * priors], f32, on the host."""
        grid, image = integers(output_size), integers(image_size)
        if min(grid) <= 0:
            return np.empty((2, 0), F32)
        boxes = self.boxes(np.array(grid), np.array(image))
        if self.clip:
            boxes = boxes.clip(0, 1)
        variance = np.array(self.variance or (0.1,), F32)
        return np.stack([boxes.ravel(), np.broadcast_to(variance, boxes.shape).ravel()])

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        k(np.copyto, outputs[0], self.prior_boxes(*inputs))

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        k.copy(self.prior_boxes(*inputs), outputs[0])


def relative_corners(center: Array, half: Array, image: Array) -> Array:
    """Return the f32 corners (x, y, x, y) of boxes given by centres and half sides [..., 2], times ``image`` [2]."""
    return np.concatenate([(center - half) * image, (center + half) * image], -1, dtype=F32)


def centers(grid: Array, offset: Array | float, step: Array) -> Array:
    """Return the centres (x, y) [height, width, 1, 2] of the elements of a grid."""
    rows, columns = np.meshgrid(*map(np.arange, grid), indexing="ij")
    return (np.stack([columns, rows], -1)[:, :, None].astype(F32) + F32(offset)) * step.astype(F32)


@op("PriorBox", "opset1", "detection/prior-box-1")
class PriorBox(Priors):
    """Priors of given sizes in each of the aspect ratios; or, with ``fixed_size``, density^2 priors of each size and
    ratio, shifted against each other. Centres are ``step`` apart; if it is 0, they are the centres of the grid's cells.

    Without ``scale_all_sizes``, step and min_size are relative to the image's height, only the first size comes in
    all the ratios, and there is no max_size.
    """

    min_size: tuple[float, ...] = ()
    max_size: tuple[float, ...] = ()
    aspect_ratio: tuple[float, ...] = ()
    flip: bool = False
    clip: bool = False
    step: float = 0.0
    offset: float
    scale_all_sizes: bool = True
    fixed_ratio: tuple[float, ...] = ()
    fixed_size: tuple[float, ...] = ()
    density: tuple[float, ...] = ()

    @property
    def max_before_ratios(self) -> bool:
        """True if the boxes of max_size come before those of the ratios."""
        return True

    def infer_specs(self, output_size: Spec, image_size: Spec) -> tuple[Spec, ...]:
        if self.fixed_size and len(self.density) != len(self.fixed_size):
            raise OpError(f"density has {len(self.density)} elements, and fixed_size {len(self.fixed_size)}")
        for name in ("min_size", "max_size", "aspect_ratio", "fixed_ratio", "fixed_size", "density"):
            for element in getattr(self, name):
                if not 0 < element < np.inf:
                    raise OpError(f"{name} has the element {element:g}, which is not positive and finite")
        if sum(density**2 for density in self.density) > MAX_PRIORS:
            raise OpError(f"density {list(self.density)} gives more than {MAX_PRIORS} boxes for each element")
        return super().infer_specs(output_size, image_size)

    def count(self) -> int:
        return sum(1 for _ in (self.fixed_priors() if self.fixed_size else self.half_sizes(1)))

    def ratios(self) -> list[Array]:
        """Return the square roots of the aspect ratios other than 1."""
        distinct = [1.0]
        for ratio in self.aspect_ratio:
            if all(abs(ratio - other) >= 1e-6 for other in distinct):
                distinct += [ratio, 1 / ratio] if self.flip else [ratio]
        return [np.sqrt(F32(ratio)) for ratio in distinct[1:]]

    def half_sizes(self, scale: int) -> Iterator[tuple[Array, Array]]:
        """Yield half the width and half the height of each prior of a grid element."""
        sizes = [F32(size) * F32(scale) for size in self.min_size]
        for i, size in enumerate(sizes):
            max_sizes = [self.max_size[i]] if self.scale_all_sizes and i < len(self.max_size) else []
            square = [(np.sqrt(size * F32(m)) / F32(2),) * 2 for m in max_sizes]
            by_ratio = []
            if self.scale_all_sizes or i == len(sizes) - 1:
                half = (size if self.scale_all_sizes else sizes[0]) * F32(0.5)
                by_ratio = [(half * ratio, half / ratio) for ratio in self.ratios()]
            yield size * F32(0.5), size * F32(0.5)
            yield from (square + by_ratio if self.max_before_ratios else by_ratio + square)

    def fixed_priors(self) -> Iterator[tuple[Array, Array]]:
        """Yield the shift (x, y) of each prior of a grid element, with half its width and half its height."""
        ratios = [np.sqrt(F32(r)) for r in self.fixed_ratio] if self.fixed_ratio else [F32(1), *self.ratios()]
        for size, density in zip(self.fixed_size, map(int, self.density)):
            shift = int(size / density) if density else 0  # a density below 1 gives no priors
            steps = [i * shift + shift / 2 - int(size) // 2 for i in range(density)]
            for ratio in ratios:
                half = F32(size) * F32(0.5)
                if ratio == 1 and not self.fixed_ratio:
                    half = F32(int(size) * 0.5)
                yield from (((x, y), (half * ratio, half / ratio)) for y in steps for x in steps)

    def boxes(self, grid: Array, image: Array) -> Array:
        height = int(image[0])
        step = F32(self.step)
        if not self.scale_all_sizes:
            step = F32(height) / F32(grid[0]) if step == -1 else step * F32(height)
        center = (
            centers(grid, 0.5, F32(image[::-1]) / F32(grid[::-1]))
            if step == 0
            else centers(grid, self.offset, np.array([step, step]))
        )
        inverse_size = F32(1) / image[::-1].astype(F32)
        if self.fixed_size:
            shifts, halves = map(np.array, zip(*self.fixed_priors()))
            corners = relative_corners(center + shifts.astype(F32), halves.astype(F32), inverse_size)
            return np.concatenate([np.maximum(corners[..., :2], 0), np.minimum(corners[..., 2:], 1)], -1)
        halves = np.array([*self.half_sizes(1 if self.scale_all_sizes else height)], F32).reshape(-1, 2)
        return relative_corners(center, halves, inverse_size)


@op("PriorBox", "opset8", "detection/prior-box-8")
class PriorBox8(PriorBox):
    """PriorBox-1 with the option to put the boxes of max_size after those of the ratios.

    >>> prior_box([1, 1], [10, 10], attrs={"min_size": [4.0], "offset": 0.5})
    [[0.3, 0.3, 0.7, 0.7], [0.1, 0.1, 0.1, 0.1]]
    """

    min_max_aspect_ratios_order: bool = True

    @property
    def max_before_ratios(self) -> bool:
        return self.min_max_aspect_ratios_order


@op("PriorBoxClustered", "opset1", "detection/prior-box-clustered-1")
class PriorBoxClustered(Priors):
    """Priors of given widths and heights. Centres are ``step_w`` and ``step_h`` apart, or ``step`` where one is 0. If
    all are 0, the grid spans the image.

    >>> prior_box_clustered([1, 1], [10, 10], attrs={"width": [4.0], "height": [2.0], "offset": 0.5})
    [[0.3, 0.4, 0.7, 0.6], [0.1, 0.1, 0.1, 0.1]]
    """

    width: tuple[float, ...] = (1.0,)
    height: tuple[float, ...] = (1.0,)
    clip: bool = True
    step: float = 0.0
    step_w: float = 0.0
    step_h: float = 0.0
    offset: float

    def infer_specs(self, output_size: Spec, image_size: Spec) -> tuple[Spec, ...]:
        if len(self.width) != len(self.height):
            raise OpError(f"there are {len(self.width)} widths and {len(self.height)} heights")
        return super().infer_specs(output_size, image_size)

    def count(self) -> int:
        return len(self.width)

    def boxes(self, grid: Array, image: Array) -> Array:
        step: Array = np.array([self.step_w or self.step, self.step_h or self.step], F32)
        if not step.any():
            step = F32(image[::-1]) / F32(grid[::-1])
        half = np.array([self.width, self.height], F32).T / F32(2)
        center, sides = centers(grid, self.offset, step), image[::-1].astype(F32)
        return np.concatenate([(center - half) / sides, (center + half) / sides], -1)
