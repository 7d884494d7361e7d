"""Models from torch's ONNX exporter, which decomposes attention, rotary embeddings, norms and activations."""

from __future__ import annotations

import tempfile
from functools import partial
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from ..drive import Call
from ._convert import Built, normal, perturbed, tokens


def encoder(vocabulary: int, width: int, heads: int, layers: int, hidden: int, opset: int = 17) -> Built:
    """Build BERT layers with a rotary embedding of neighbouring elements of queries and keys, as in GPT-J."""
    import torch

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.out = (torch.nn.Linear(width, width) for _ in range(4))

        def heads(self, x: Any) -> Any:
            return x.view(*x.shape[:2], heads, width // heads)

        def forward(self, x: Any, mask: Any, cos: Any, sin: Any) -> Any:
            def rotate(x: Any) -> Any:
                a, b = x[..., ::2], x[..., 1::2]
                return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).reshape(x.shape)

            q, k = (rotate(self.heads(layer(x))).transpose(1, 2) for layer in (self.q, self.k))
            scores = q @ k.transpose(-1, -2) / sqrt(width // heads) + mask
            weights = torch.nn.functional.dropout(torch.softmax(scores, -1), 0.1, self.training)
            joined = (weights @ self.heads(self.v(x)).transpose(1, 2)).transpose(1, 2)
            return self.out(joined.reshape(*x.shape))

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = Attention()
            self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
            self.up, self.down = torch.nn.Linear(width, hidden), torch.nn.Linear(hidden, width)

        def forward(self, x: Any, *given: Any) -> Any:
            x = self.norms[0](x + self.attention(x, *given))
            y = self.up(x)
            return self.norms[1](x + self.down(y * 0.5 * (1 + torch.erf(y / sqrt(2)))))

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(vocabulary, width)
            self.layers = torch.nn.ModuleList(Layer() for _ in range(layers))
            self.register_buffer("slopes", 1 / 100 ** (torch.arange(0, width // heads, 2) * heads / width))

        def forward(self, ids: Any, mask: Any) -> Any:
            angles = (torch.cumsum(torch.ones_like(ids), 1)[..., None] * self.slopes)[:, :, None]
            x = self.words(ids)
            for layer in self.layers:
                x = layer(x, (1 - mask[:, None, None]) * -10000.0, torch.cos(angles), torch.sin(angles))
            return x

    torch.manual_seed(61)
    module = perturbed(Encoder())
    example = {"ids": torch.ones((2, 7), dtype=torch.int64), "mask": torch.ones((2, 7))}
    make = partial(_exported, module, example, "states", opset, {0: "batch", 1: "length"})

    def calls(random: np.random.RandomState) -> list[Call]:
        recorded = []
        for batch, length in ((2, 9), (1, 5), (3, 1)):
            mask = np.ones((batch, length), np.float32)
            mask[0, length - length // 3 :] = 0
            recorded.append(Call({"ids": tokens(random, vocabulary, batch, length), "mask": mask}))
        return recorded

    return Built(make, calls, module)


def group_norms(width: int, groups: int, opset: int = 17) -> Built:
    """Build a convolution with two group norms: one that ONNX computes by an instance norm, and one written by hand.
    image -> normalised."""
    import torch
    from torch import nn

    class ByHand(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.shift = (nn.Parameter(torch.randn(width, 1, 1)) for _ in range(2))

        def forward(self, x: Any) -> Any:
            y = x.view(x.shape[0], groups, -1)
            mean, variance = y.mean(-1, keepdim=True), y.var(-1, keepdim=True, unbiased=False)
            return ((y - mean) / torch.sqrt(variance + 1e-3)).view(x.shape) * self.scale + self.shift

    torch.manual_seed(64)
    convolution = nn.Conv2d(3, width, 3, padding=1, bias=False)
    module = perturbed(nn.Sequential(convolution, nn.GroupNorm(groups, width), nn.SiLU(), ByHand()))
    axes = {0: "batch", 2: "height", 3: "width"}
    make = partial(_exported, module, {"image": torch.randn(2, 3, 10, 12)}, "normalised", opset, axes)

    def calls(random: np.random.RandomState) -> list[Call]:
        return [Call({"image": normal(random, *shape)}) for shape in ((2, 3, 4, 5), (1, 3, 5, 3))]

    return Built(make, calls, module)


def _exported(module: Any, example: dict[str, Any], output: str, opset: int, dynamic: dict[int, str]) -> ov.Model:
    """Convert a torch module by way of ONNX; `dynamic` names axes of all inputs."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(
            module,
            tuple(example.values()),
            str(path),
            input_names=[*example],
            output_names=[output],
            opset_version=opset,
            dynamo=False,
            dynamic_axes=dict.fromkeys(example, dynamic),
        )
        return ov.Core().read_model(path).clone()  # `convert_model` would fuse layers
