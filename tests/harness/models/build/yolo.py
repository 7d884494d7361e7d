"""A detector of the YOLO family: blocks that split and concatenate channels, pooling pyramid, feature pyramid, and
boxes as distributions of distances."""

from __future__ import annotations

from functools import partial
from typing import Any

from ._convert import Built, converted, perturbed
from .vision import images

STRIDES = (8, 16)


def detector(width: int = 16, classes: int = 5, bins: int = 4) -> Built:
    """Build a YOLO with two heads: image -> boxes as corners, and scores [batch, 4 + classes, n]. ``width`` channels
    are in each half of a block."""
    import torch

    module = _yolo(width, classes, bins)
    inputs = {"image": (torch.randn(2, 3, 64, 96), [-1, 3, -1, -1])}
    return Built(
        partial(converted, module, inputs, ["found"]), images((2, 3, 64, 96), (1, 3, 32, 64), name="image"), module
    )


def _yolo(width: int, classes: int, bins: int) -> Any:
    import torch
    from torch import nn

    full = 2 * width

    def convolution(of: int, out: int, size: int = 3, stride: int = 1) -> Any:
        layer = nn.Conv2d(of, out, size, stride, size // 2, bias=False)
        return nn.Sequential(layer, nn.BatchNorm2d(out), nn.SiLU())

    class Block(nn.Module):
        """Convolutions of one half of the channels, whose results are all concatenated."""

        def __init__(self, of: int, adds: bool) -> None:
            super().__init__()
            self.first, self.last, self.adds = convolution(of, full, 1), convolution(3 * width, full, 1), adds
            self.inner = nn.Sequential(convolution(width, width), convolution(width, width))

        def forward(self, x: Any) -> Any:
            a, b = self.first(x).chunk(2, 1)
            c = self.inner(b)
            return self.last(torch.cat([a, b, b + c if self.adds else c], 1))

    class Pyramid(nn.Module):
        """Concatenated results of repeated pooling."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = convolution(full, width, 1), convolution(3 * width, full, 1)
            self.pool = nn.MaxPool2d(5, 1, 2)

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            y = self.pool(x)
            return self.last(torch.cat([x, y, self.pool(y)], 1))

    class Yolo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(convolution(3, width, 3, 2), convolution(width, full, 3, 2), Block(full, True))
            self.fine = nn.Sequential(convolution(full, full, 3, 2), Block(full, True))
            self.coarse = nn.Sequential(convolution(full, full, 3, 2), Block(full, True), Pyramid())
            self.grow, self.up = nn.Upsample(scale_factor=2), Block(2 * full, False)
            self.shrink, self.down = convolution(full, full, 3, 2), Block(2 * full, False)
            self.boxes = nn.ModuleList(self.head(4 * bins) for _ in STRIDES)
            self.scores = nn.ModuleList(self.head(classes) for _ in STRIDES)

        @staticmethod
        def head(outputs: int) -> Any:
            return nn.Sequential(convolution(full, width), nn.Conv2d(width, outputs, 1))

        def forward(self, image: Any) -> Any:
            fine = self.fine(self.stem(image))
            coarse = self.coarse(fine)
            fine = self.up(torch.cat([self.grow(coarse), fine], 1))
            coarse = self.down(torch.cat([self.shrink(fine), coarse], 1))
            found, cells = [], []
            for box, score, stride, y in zip(self.boxes, self.scores, STRIDES, (fine, coarse)):
                found.append(torch.cat([box(y), score(y)], 1).flatten(2))
                rows, columns = torch.arange(y.shape[2]), torch.arange(y.shape[3])
                grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy")).flatten(1).float()
                cells.append(torch.cat([grid + 0.5, torch.full_like(grid[:1], stride)]))
            boxes, scores = torch.cat(found, 2).split([4 * bins, classes], 1)
            centre, stride = torch.cat(cells, 1).split([2, 1])
            weights = boxes.unflatten(1, (4, bins)).softmax(2)
            distances = (weights * torch.arange(bins).float()[:, None]).sum(2)
            low, high = centre - distances[:, :2], centre + distances[:, 2:]
            return torch.cat([torch.cat([low, high], 1) * stride, scores.sigmoid()], 1)

    torch.manual_seed(64)
    return perturbed(Yolo(), torch.randn(2, 3, 64, 96))
