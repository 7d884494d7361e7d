"""The networks of `bench.gpu_vision_ir` in plain torch, with the weights of the IR, and how torch runs them.

Only functions import torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bench import gpu_torch
from bench.gpu_vision_ir import MobileNetSizes, ResNetSizes, UNetSizes
from bench.gpu_workloads import Workload

if TYPE_CHECKING:
    from tests.models.transformer import Sizes

Array = NDArray[Any]
Weights = Mapping[str, Array]


def _parameter(*arrays: Array) -> Any:
    import torch

    array = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
    return torch.nn.Parameter(torch.from_numpy(array), requires_grad=False)


def convolution(weights: Weights, name: str, stride: int = 1, padding: int | None = None) -> Any:
    """Return a convolution over one or two axes, depthwise if the weights are."""
    from torch import nn

    out, of, *kernel = weights[f"{name}.weight"].shape
    groups = out if of == 1 else 1
    layer = (nn.Conv1d if len(kernel) == 1 else nn.Conv2d)(
        of * groups, out, tuple(kernel), stride, kernel[0] // 2 if padding is None else padding, groups=groups,
        device="meta")
    layer.weight, layer.bias = (_parameter(weights[f"{name}.{part}"]) for part in ("weight", "bias"))
    return layer


def _dense(weights: Weights, *names: str) -> Any:
    """Return a linear layer, or several next to each other as one."""
    from torch import nn

    layer = nn.Linear(1, 1, device="meta")
    layer.weight, layer.bias = (_parameter(*(weights[f"{n}.{part}"] for n in names)) for part in ("weight", "bias"))
    layer.out_features, layer.in_features = layer.weight.shape
    return layer


def _norm(weights: Weights, name: str, eps: float, groups: int = 0) -> Any:
    """Return a group norm, or a layer norm if there are no groups."""
    from torch import nn

    width = weights[f"{name}.weight"].size
    layer = nn.GroupNorm(groups, width, eps, device="meta") if groups else nn.LayerNorm(width, eps, device="meta")
    layer.weight, layer.bias = (_parameter(weights[f"{name}.{part}"]) for part in ("weight", "bias"))
    return layer


def resnet(weights: Weights, sizes: ResNetSizes) -> Any:
    """Return a ResNet: [batch,3,image,image] -> logits."""
    from torch import nn
    from torch.nn import functional as F

    class Bottleneck(nn.Module):
        def __init__(self, name: str, stride: int) -> None:
            super().__init__()
            self.conv_1, self.conv_3 = convolution(weights, f"{name}.conv_1"), convolution(weights, f"{name}.conv_3")
            self.conv_2 = convolution(weights, f"{name}.conv_2", stride)
            first = f"{name}.shortcut.weight" in weights
            self.shortcut = convolution(weights, f"{name}.shortcut", stride) if first else nn.Identity()

        def forward(self, x: Any) -> Any:
            y = F.relu(self.conv_1(x), inplace=True)
            y = self.conv_3(F.relu(self.conv_2(y), inplace=True))
            y += self.shortcut(x)
            return F.relu(y, inplace=True)

    class ResNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.head = convolution(weights, "stem", 2), _dense(weights, "head")
            self.blocks = nn.Sequential(*(Bottleneck(f"{level}.{k}", 2 if level and not k else 1)
                                          for level, count in enumerate(sizes.blocks) for k in range(count)))

        def forward(self, x: Any) -> Any:
            x = F.max_pool2d(F.relu(self.stem(x), inplace=True), 3, 2, 1)
            return self.head(F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1))

    return ResNet()


def mobilenet(weights: Weights, sizes: MobileNetSizes) -> Any:
    """Return MobileNetV2: [batch,3,image,image] -> logits."""
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self, name: str, stride: int) -> None:
            super().__init__()
            self.expand = convolution(weights, f"{name}.expand") if f"{name}.expand.weight" in weights else None
            self.depthwise = convolution(weights, f"{name}.depthwise", stride)
            self.project = convolution(weights, f"{name}.project")
            self.residual = stride == 1 and self.project.out_channels == (self.expand or self.depthwise).in_channels

        def forward(self, x: Any) -> Any:
            y = x if self.expand is None else F.relu6(self.expand(x), inplace=True)
            y = self.project(F.relu6(self.depthwise(y), inplace=True))
            return x + y if self.residual else y

    class MobileNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.last = convolution(weights, "stem", 2), convolution(weights, "last")
            self.head = _dense(weights, "head")
            self.blocks = nn.Sequential(*(Block(f"{level}.{k}", 1 if k else stride)
                                          for level, (_, _, count, stride) in enumerate(sizes.stages)
                                          for k in range(count)))

        def forward(self, x: Any) -> Any:
            x = self.blocks(F.relu6(self.stem(x), inplace=True))
            x = F.relu6(self.last(x), inplace=True)
            return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))

    return MobileNet()


def _layers(weights: Weights, sizes: Sizes, eps: float) -> Any:
    """Return the layers of a pre-norm encoder; queries, keys and values are one product."""
    from torch import nn
    from torch.nn import functional as F

    class Layer(nn.Module):
        def __init__(self, k: int) -> None:
            super().__init__()
            self.qkv = _dense(weights, f"{k}.query", f"{k}.key", f"{k}.value")
            self.attended, self.inner, self.outer = (
                _dense(weights, f"{k}.{name}") for name in ("attended", "inner", "outer"))
            self.norm_1, self.norm_2 = (_norm(weights, f"{k}.{name}", eps) for name in ("norm_1", "norm_2"))

        def forward(self, x: Any) -> Any:
            batch, time, width = x.shape
            q, k, v = self.qkv(self.norm_1(x)).view(batch, time, 3, sizes.heads, sizes.head).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, time, width)
            x = x + self.attended(y)
            return x + self.outer(F.gelu(self.inner(self.norm_2(x))))

    return nn.Sequential(*(Layer(k) for k in range(sizes.layers)))


def vit(weights: Weights, patch: int, sizes: Sizes) -> Any:
    """Return a vision transformer: [batch,3,image,image] -> logits."""
    import torch

    class ViT(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.head = convolution(weights, "patches", patch, 0), _dense(weights, "head")
            self.first, self.positions = _parameter(weights["class"]), _parameter(weights["positions"])
            self.layers, self.norm = _layers(weights, sizes, 1e-12), _norm(weights, "norm", 1e-12)

        def forward(self, x: Any) -> Any:
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.positions
            return self.head(self.norm(self.layers(x)[:, 0]))

    return ViT()


def whisper(weights: Weights, sizes: Sizes) -> Any:
    """Return Whisper's encoder: [batch,mels,2*positions] -> [batch,positions,width]."""
    from torch import nn
    from torch.nn import functional as F

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv_1, self.conv_2 = convolution(weights, "conv_1"), convolution(weights, "conv_2", 2)
            self.positions = _parameter(weights["positions"])
            self.layers, self.norm = _layers(weights, sizes, 1e-5), _norm(weights, "norm", 1e-5)

        def forward(self, x: Any) -> Any:
            x = F.gelu(self.conv_2(F.gelu(self.conv_1(x))))
            return self.norm(self.layers(x.transpose(1, 2) + self.positions))

    return Encoder()


def unet(weights: Weights, sizes: UNetSizes) -> Any:
    """Return the U-Net of a diffusion model: x [batch,latents,image,image], step [batch] -> noise like x."""
    import torch
    from torch.nn import functional as F

    class Block(torch.nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = (_norm(weights, f"{name}.{n}", 1e-5, sizes.groups) for n in ("norm_1", "norm_2"))
            self.conv_1, self.conv_2 = convolution(weights, f"{name}.conv_1"), convolution(weights, f"{name}.conv_2")
            self.time = _dense(weights, f"{name}.time")
            skips = f"{name}.skip.weight" in weights
            self.skip = convolution(weights, f"{name}.skip") if skips else torch.nn.Identity()

        def forward(self, x: Any, time: Any) -> Any:
            y = self.conv_1(F.silu(self.norm_1(x))) + self.time(time)[:, :, None, None]
            return self.skip(x) + self.conv_2(F.silu(self.norm_2(y)))

    class UNet(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            levels = range(len(sizes.widths))
            self.time_1, self.time_2 = _dense(weights, "time_1"), _dense(weights, "time_2")
            self.stem, self.head = convolution(weights, "stem"), convolution(weights, "head")
            self.norm, self.middle = _norm(weights, "norm", 1e-5, sizes.groups), Block("middle")
            self.shrink = torch.nn.ModuleList(convolution(weights, f"down.{level}.shrink", 2) for level in levels[1:])
            self.grow = torch.nn.ModuleList(convolution(weights, f"up.{level}.grow") for level in levels[1:])
            self.down, self.up = (
                torch.nn.ModuleList(torch.nn.ModuleList(Block(f"{way}.{level}.{k}") for k in range(count))
                                    for level in levels)
                for way, count in (("down", sizes.blocks), ("up", sizes.blocks + 1)))

        def _blocks(self, levels: Any, level: int) -> Any:
            return levels[level]

        def forward(self, x: Any, step: Any) -> Any:
            half = sizes.widths[0] // 2
            rates = torch.exp(torch.arange(half, device=x.device, dtype=torch.float32) * (-math.log(10000.0) / half))
            angles = step[:, None].float() * rates
            time = torch.cat([angles.sin(), angles.cos()], -1).to(x.dtype)
            time = F.silu(self.time_2(F.silu(self.time_1(time))))
            x = self.stem(x)
            saved = [x]
            for level in range(len(self.down)):
                if level:
                    x = self.shrink[level - 1](x)
                    saved.append(x)
                for block in self._blocks(self.down, level):
                    x = block(x, time)
                    saved.append(x)
            x = self.middle(x, time)
            for level in reversed(range(len(self.up))):
                for block in self._blocks(self.up, level):
                    x = block(torch.cat([x, saved.pop()], 1), time)
                if level:
                    x = self.grow[level - 1](F.interpolate(x, scale_factor=2.0, mode="nearest"))
            return self.head(F.silu(self.norm(x)))

    return UNet()


def _gates(weights: Weights, prefix: str = "") -> list[Array]:
    """Return the weights of inputs and states and the bias, gates in torch's order i f g o; OpenVINO's is f i c o."""
    found = []
    for name in ("input", "state", "bias"):
        array = weights[f"{prefix}{name}"]
        axis = 0 if prefix else 1
        parts = np.split(array, 4, axis)
        found.append(np.concatenate([parts[k] for k in (1, 0, 2, 3)], axis))
    return found


def recurrent(weights: Weights, batch: int) -> Any:
    """Return a `torch.nn.LSTM` from a zero state: x [batch,steps,features] -> y, h, c with the batch first."""
    import torch

    values = _gates(weights)
    directions, _, hidden = weights["state"].shape

    class Lstm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            features = weights["input"].shape[2]
            self.lstm = torch.nn.LSTM(features, hidden, batch_first=True, bidirectional=directions == 2)
            for k, suffix in zip(range(directions), ("", "_reverse")):
                names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
                for name, value in zip(names, (*(v[k] for v in values), np.zeros(4 * hidden, np.float32))):
                    getattr(self.lstm, f"{name}_l0{suffix}").data = torch.from_numpy(np.ascontiguousarray(value))
            self.register_buffer("zeros", torch.zeros(directions, batch, hidden))

        def forward(self, x: Any) -> Any:
            y, (h, c) = self.lstm(x, (self.zeros, self.zeros))
            return y, h.transpose(0, 1), c.transpose(0, 1)

    return Lstm()


def stateful(weights: Weights, layers: int) -> Any:
    """Return LSTM cells whose state stays in buffers: x [1,features] -> y [1,hidden]."""
    import torch

    class Cells(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = torch.nn.ModuleList()
            for k in range(layers):
                w, r, b = _gates(weights, f"{k}.")
                cell = torch.nn.LSTMCell(w.shape[1], r.shape[1], device="meta")
                cell.weight_ih, cell.weight_hh, cell.bias_ih = _parameter(w), _parameter(r), _parameter(b)
                cell.bias_hh = _parameter(np.zeros_like(b))
                self.cells.append(cell)
                for name in (f"h{k}", f"c{k}"):
                    self.register_buffer(name, torch.zeros(1, r.shape[1]))

        def reset(self) -> None:
            for buffer in self.buffers():
                buffer.zero_()

        def forward(self, x: Any) -> Any:
            for k, cell in enumerate(self.cells):
                h, c = getattr(self, f"h{k}"), getattr(self, f"c{k}")
                x, memory = cell(x, (h, c))
                h.copy_(x)
                c.copy_(memory)
            return x

    return Cells()


class Peer(gpu_torch.Peer):
    """A workload in torch; on request in 16 bits, with TF32, or with channels last.

    ``module`` is changed in place, so that several peers in turn can share it.
    """

    def __init__(self, workload: Workload, mode: str, device: str, module: Any, *, half: bool = False,
                 tf32: bool = False, channels_last: bool = False) -> None:
        def prepared() -> Any:
            """Set the flags after the base class has reset them, before anything runs."""
            import torch

            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
            torch.backends.cudnn.benchmark = True
            changed = module.half() if half else module
            return changed.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)

        inputs = {name: _arranged(x, half, channels_last) for name, x in workload.inputs.items()}
        super().__init__(replace(workload, module=prepared, inputs=inputs), mode, device)

    def begin(self) -> None:
        """Start from the first state."""
        import torch

        reset: Callable[[], None] | None = getattr(self.module, "reset", None)
        if reset is not None:
            with torch.inference_mode():
                reset()


def _arranged(x: Array, half: bool, channels_last: bool) -> Array:
    """Return the array in the peer's type and memory order."""
    x = x.astype(np.float16) if half and x.dtype == np.float32 else x
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2) if channels_last and x.ndim == 4 else x
