"""Networks for images, speech and diffusion, and recurrent ones.

Batch norms are folded into convolutions. Weights have He scaling, and residual branches are scaled down, so that
activations stay near 1 and fit f16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.harness.ir import Net, Port
from tests.harness.models.transformer import Sizes, _Writer

Array = NDArray[Any]
IR = tuple[bytes, bytes]  # XML and weights
RELU_GAIN = (2 / (1 - 1 / np.pi)) ** 0.5  # for weights whose sum is 0, after a ReLU
BRANCH_GAIN = 0.3  # for the last layer of a residual branch
GROUPS = 32  # groups of a group norm


@dataclass(frozen=True)
class ResNetSizes:
    """Sizes of a ResNet; `blocks` counts those of each stage."""

    image: int = 224
    stem: int = 64
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    classes: int = 1000


@dataclass(frozen=True)
class MobileNetSizes:
    """Stages are (expansion, channels, blocks, stride), as in Table 2 of arXiv:1801.04381."""

    image: int = 224
    stem: int = 32
    stages: tuple[tuple[int, int, int, int], ...] = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    last: int = 1280
    classes: int = 1000


@dataclass(frozen=True)
class UNetSizes:
    """Sizes of a U-Net; `widths` has the channels of each level."""

    image: int = 64
    widths: tuple[int, ...] = (64, 128, 256)
    blocks: int = 2  # per level, on the way down
    groups: int = GROUPS
    latents: int = 4


class Writer(_Writer):
    """A net in progress and its weights, with the layers that vision models have."""

    def drawn(self, name: str, shape: Sequence[int], scale: float, mean: float = 0.0) -> Array:
        array = self.random.standard_normal(tuple(shape), np.float32)
        array *= np.float32(scale)
        array += np.float32(mean)
        self.weights[name] = array
        return array

    def conv(
        self,
        name: str,
        x: Port,
        of: int,
        out: int,
        kernel: Sequence[int],
        stride: int = 1,
        gain: float = RELU_GAIN,
        padding: int | None = None,
        depthwise: bool = False,
    ) -> Port:
        """Add a convolution and its bias; without ``padding`` it keeps the extents (at stride 1)."""
        n = len(kernel)
        fan_in = int(np.prod(kernel)) * (1 if depthwise else of)
        weight = self.drawn(f"{name}.weight", (out, 1 if depthwise else of, *kernel), gain * fan_in**-0.5)
        if not depthwise:  # else all images look alike after some layers
            weight -= weight.mean(tuple(range(1, n + 2)), keepdims=True)
        pads = [k // 2 if padding is None else padding for k in kernel]
        attrs: dict[str, Any] = {
            "strides": [stride] * n,
            "dilations": [1] * n,
            "pads_begin": pads,
            "pads_end": pads,
            "auto_pad": "explicit",
        }
        if depthwise:
            y = self("GroupConvolution", [x, self.net.const(weight.reshape(out, 1, 1, *kernel))], **attrs)
        else:
            y = self("Convolution", [x, self.net.const(weight)], **attrs)
        return self.add(y, self.net.const(self.drawn(f"{name}.bias", (out,), 0.1).reshape(1, out, *(1,) * n)))

    def dense(self, name: str, x: Port, of: int, out: int, rank: int = 3, gain: float = 1.0, bias: bool = True) -> Port:
        """Add x @ weight.T + bias for a tensor of that rank."""
        y = self.matmul(x, self.net.const(self.drawn(f"{name}.weight", (out, of), gain * of**-0.5)))
        if not bias:
            self.weights[f"{name}.bias"] = np.zeros(out, np.float32)
            return y
        return self.add(y, self.net.const(self.drawn(f"{name}.bias", (out,), 0.1).reshape((1,) * (rank - 1) + (out,))))

    def affine(self, name: str, y: Port, like: Sequence[int]) -> Port:
        """Add a norm's scale and shift."""
        width = max(like)
        y = self.add(y, self.net.const(self.drawn(f"{name}.weight", (width,), 0.1, 1.0).reshape(like)), "Multiply")
        return self.add(y, self.net.const(self.drawn(f"{name}.bias", (width,), 0.1).reshape(like)))

    def group_norm(self, name: str, x: Port, shape: Sequence[int], groups: int, eps: float = 1e-5) -> Port:
        """Add a group norm as Reshape, MVN, Reshape, Multiply, Add."""
        y = self.reshape(x, self.i64(0, groups, -1), True)
        y = self("MVN", [y, self.i64(2)], 6, eps=eps, normalize_variance=True, eps_mode="INSIDE_SQRT")
        return self.affine(name, self.reshape(y, self.i64(*shape), False), (1, shape[1], 1, 1))

    def relu(self, x: Port) -> Port:
        return self("ReLU", [x])

    def swish(self, x: Port) -> Port:
        return self("Swish", [x], 4)

    def head(self, x: Port, width: int, classes: int) -> Port:
        """Add global average pooling and a classifier."""
        y = self("ReduceMean", [x, self.i64(-1, -2)], keep_dims=True)
        return self.dense("head", self.reshape(y, self.i64(0, -1), True), width, classes, 2)


def resnet(seed: int, batch: int, sizes: ResNetSizes) -> IR:
    """Return a ResNet of bottlenecks with the stride in the 3x3 convolution: x [batch,3,image,image] -> logits."""
    w = Writer(Net("resnet"), np.random.default_rng(seed))
    x = w.net.parameter("f32", (batch, 3, sizes.image, sizes.image), "x")
    x = w.relu(w.conv("stem", x, 3, sizes.stem, (7, 7), 2))
    pool = {
        "strides": [2, 2],
        "dilations": [1, 1],
        "pads_begin": [1, 1],
        "pads_end": [1, 1],
        "kernel": [3, 3],
        "rounding_type": "floor",
        "auto_pad": "explicit",
        "index_element_type": "i64",
        "axis": 2,
    }
    x = w.net.layer("MaxPool", "opset14", [x], pool, ["f32", "i64"])[0]
    of = sizes.stem
    for level, count in enumerate(sizes.blocks):
        inner = sizes.stem << level
        for k in range(count):
            name, stride = f"{level}.{k}", 2 if level and not k else 1
            y = w.relu(w.conv(f"{name}.conv_1", x, of, inner, (1, 1)))
            y = w.relu(w.conv(f"{name}.conv_2", y, inner, inner, (3, 3), stride))
            y = w.conv(f"{name}.conv_3", y, inner, 4 * inner, (1, 1), gain=BRANCH_GAIN)
            if not k:
                x = w.conv(f"{name}.shortcut", x, of, 4 * inner, (1, 1), stride, 1.0)
            x, of = w.relu(w.add(x, y)), 4 * inner
    w.net.result(w.head(x, of, sizes.classes))
    return w.net.build()


def mobilenet(seed: int, batch: int, sizes: MobileNetSizes) -> IR:
    """Return MobileNetV2: x [batch,3,image,image] -> logits."""
    w = Writer(Net("mobilenet_v2"), np.random.default_rng(seed))

    def clamped(x: Port) -> Port:
        return w("Clamp", [x], min=0, max=6)

    x = w.net.parameter("f32", (batch, 3, sizes.image, sizes.image), "x")
    x = clamped(w.conv("stem", x, 3, sizes.stem, (3, 3), 2))
    of = sizes.stem
    for level, (expansion, out, count, first) in enumerate(sizes.stages):
        for k in range(count):
            name, inner, stride = f"{level}.{k}", expansion * of, 1 if k else first
            y = x if expansion == 1 else clamped(w.conv(f"{name}.expand", x, of, inner, (1, 1)))
            y = clamped(w.conv(f"{name}.depthwise", y, inner, inner, (3, 3), stride, 2**0.5, depthwise=True))
            y = w.conv(f"{name}.project", y, inner, out, (1, 1), gain=1.0)
            x, of = (w.add(x, y) if stride == 1 and of == out else y), out
    x = clamped(w.conv("last", x, of, sizes.last, (1, 1)))
    w.net.result(w.head(x, sizes.last, sizes.classes))
    return w.net.build()


def _layer(w: Writer, k: int, x: Port, sizes: Sizes, eps: float, scaled: bool) -> Port:
    """Add a layer of a pre-norm encoder. With `scaled`, as in Whisper, queries are scaled and keys have no bias."""
    width, scale = sizes.width, np.float32(sizes.head**-0.5)
    y = w.norm(f"{k}.norm_1", x, width, eps)
    q = w.matmul(y, w.net.const(w.drawn(f"{k}.query.weight", (width, width), width**-0.5)))
    q = w.add(q, w.net.const(np.full((1, 1, 1), scale)), "Multiply") if scaled else q
    bias = w.drawn(f"{k}.query.bias", (width,), 0.1).reshape(1, 1, width)
    q = w.add(q, w.net.const(bias * scale if scaled else bias))
    key, value = (
        w.dense(f"{k}.{part}", y, width, width, bias=part == "value" or not scaled) for part in ("key", "value")
    )
    zero, factor = w.net.const(np.float32(0)), w.net.const(np.float32(1) if scaled else scale)
    y = w(
        "ScaledDotProductAttention",
        [*(w.split_heads(part, sizes) for part in (q, key, value)), zero, factor],
        13,
        causal=False,
    )
    y = w.reshape(w.swapped_axes(y), w.i64(0, 0, width), True)
    x = w.add(x, w.dense(f"{k}.attended", y, width, width, gain=BRANCH_GAIN))
    y = w.dense(f"{k}.inner", w.norm(f"{k}.norm_2", x, width, eps), width, sizes.inner)
    y = w("Gelu", [y], 7, approximation_mode="ERF")
    return w.add(x, w.dense(f"{k}.outer", y, sizes.inner, width, gain=BRANCH_GAIN))


def vit(seed: int, image: int, patch: int, classes: int, sizes: Sizes) -> IR:
    """Return a vision transformer, batch 1: x [1,3,image,image] -> logits [1,classes]."""
    w = Writer(Net("vit"), np.random.default_rng(seed))
    width = sizes.width
    x = w.net.parameter("f32", (1, 3, image, image), "x")
    x = w.conv("patches", x, 3, width, (patch, patch), patch, 1.0, padding=0)
    x = w("Transpose", [w.reshape(x, w.i64(0, width, -1), True), w.net.const(np.array([0, 2, 1], np.int32))])
    x = w("Concat", [w.net.const(w.drawn("class", (1, 1, width), 1.0)), x], axis=1)
    count = (image // patch) ** 2 + 1
    x = w.add(x, w.net.const(w.drawn("positions", (1, count, width), 0.5)))
    for k in range(sizes.layers):
        x = _layer(w, k, x, sizes, 1e-12, False)
    x = w("Gather", [w.norm("norm", x, width, 1e-12), w.number(0), w.number(1)], 8, batch_dims=0)
    w.net.result(w.dense("head", x, width, classes, 2))
    return w.net.build()


def whisper(seed: int, mels: int, sizes: Sizes) -> IR:
    """Return Whisper's encoder, batch 1: x [1,mels,2*positions] -> [1,positions,width]."""
    w = Writer(Net("whisper_encoder"), np.random.default_rng(seed))
    width = sizes.width
    x = w.net.parameter("f32", (1, mels, 2 * sizes.positions), "x")
    for name, of, stride in (("conv_1", mels, 1), ("conv_2", width, 2)):
        x = w("Gelu", [w.conv(name, x, of, width, (3,), stride)], 7, approximation_mode="ERF")
    x = w("Transpose", [x, w.i64(0, 2, 1)])
    x = w.add(x, w.net.const(w.drawn("positions", (1, sizes.positions, width), 0.5)))
    for k in range(sizes.layers):
        x = _layer(w, k, x, sizes, 1e-5, True)
    w.net.result(w.norm("norm", x, width, 1e-5))
    return w.net.build()


def unet(seed: int, batch: int, sizes: UNetSizes) -> IR:
    """Return the U-Net of a diffusion model: x [batch,latents,image,image], step [batch] -> noise like x."""
    w = Writer(Net("unet"), np.random.default_rng(seed))
    first, inner = sizes.widths[0], 4 * sizes.widths[0]
    x = w.net.parameter("f32", (batch, sizes.latents, sizes.image, sizes.image), "x")
    step = w.net.parameter("f32", (batch,), "step")
    angles = w.add(w("Unsqueeze", [step, w.number(1)]), w.net.const(rates(first)[None]), "Multiply")
    time = w("Concat", [w("Sin", [angles]), w("Cos", [angles])], axis=-1)
    time = w.swish(w.dense("time_1", time, first, inner, 2))
    time = w.swish(w.dense("time_2", time, inner, inner, 2))
    size = sizes.image

    def block(name: str, x: Port, of: int, out: int) -> Port:
        y = w.swish(w.group_norm(f"{name}.norm_1", x, (batch, of, size, size), sizes.groups))
        y = w.conv(f"{name}.conv_1", y, of, out, (3, 3), gain=1.0)
        y = w.add(y, w.unsqueezed(w.dense(f"{name}.time", time, inner, out, 2), 2, 3))
        y = w.swish(w.group_norm(f"{name}.norm_2", y, (batch, out, size, size), sizes.groups))
        y = w.conv(f"{name}.conv_2", y, out, out, (3, 3), gain=BRANCH_GAIN)
        return w.add(x if of == out else w.conv(f"{name}.skip", x, of, out, (1, 1), gain=1.0), y)

    x, of = w.conv("stem", x, sizes.latents, first, (3, 3), gain=1.0), first
    skips = [(x, of)]
    for level, width in enumerate(sizes.widths):
        if level:
            x, size = w.conv(f"down.{level}.shrink", x, of, of, (3, 3), 2, 1.0), size // 2
            skips.append((x, of))
        for k in range(sizes.blocks):
            x, of = block(f"down.{level}.{k}", x, of, width), width
            skips.append((x, of))
    x = block("middle", x, of, of)
    resized: dict[str, Any] = {
        "mode": "nearest",
        "shape_calculation_mode": "scales",
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
        "antialias": False,
        "pads_begin": [0],
        "pads_end": [0],
        "cube_coeff": -0.75,
    }
    for level, width in reversed([*enumerate(sizes.widths)]):
        for k in range(sizes.blocks + 1):
            skip, more = skips.pop()
            x, of = block(f"up.{level}.{k}", w("Concat", [x, skip], axis=1), of + more, width), width
        if level:
            scales = w.net.const(np.array([2, 2], np.float32))
            x, size = w("Interpolate", [x, scales, w.i64(2, 3)], 11, **resized), 2 * size
            x = w.conv(f"up.{level}.grow", x, of, of, (3, 3), gain=1.0)
    x = w.swish(w.group_norm("norm", x, (batch, of, size, size), sizes.groups))
    w.net.result(w.conv("head", x, of, sizes.latents, (3, 3), gain=1.0))
    return w.net.build()


def rates(width: int) -> Array:
    """Return the angular rates of a time step's embedding."""
    half = width // 2
    return np.asarray(10000.0 ** (-np.arange(half) / half), np.float32)


def recurrent(seed: int, batch: int, steps: int, features: int, hidden: int, directions: int) -> IR:
    """Return an LSTMSequence from a zero state: x [batch,steps,features] -> y [batch,steps,directions*hidden], h, c."""
    w = Writer(Net("lstm_sequence"), np.random.default_rng(seed))
    x = w.net.parameter("f32", (batch, steps, features), "x")
    h, c = (w.net.const(np.zeros((batch, directions, hidden), np.float32)) for _ in range(2))
    shapes = {"input": (4 * hidden, features), "state": (4 * hidden, hidden), "bias": (4 * hidden,)}
    scale = (3 * hidden) ** -0.5  # as wide as torch's uniform distribution
    values = [w.net.const(w.drawn(name, (directions, *shape), scale)) for name, shape in shapes.items()]
    attrs = {
        "hidden_size": hidden,
        "direction": "bidirectional" if directions == 2 else "forward",
        "activations": ["sigmoid", "tanh", "tanh"],
    }
    y, h, c = w.net.layer("LSTMSequence", "opset5", [x, h, c, w.i64(*[steps] * batch), *values], attrs, 3)
    w.net.result(w.reshape(w.swapped_axes(y), w.i64(0, 0, directions * hidden), True))
    w.net.result(h)
    w.net.result(c)
    return w.net.build()


def stateful(seed: int, layers: int, features: int, hidden: int) -> IR:
    """Return LSTM cells with state, one frame per inference: x [1,features] -> y [1,hidden]."""
    w = Writer(Net("lstm_state"), np.random.default_rng(seed))
    x, of = w.net.parameter("f32", (1, features), "x"), features
    for k in range(layers):
        names = f"h{k}", f"c{k}"
        state = [
            w.net.read_value(name, "f32", (1, hidden), w.net.const(np.zeros((1, hidden), np.float32))) for name in names
        ]
        shapes = {"input": (4 * hidden, of), "state": (4 * hidden, hidden), "bias": (4 * hidden,)}
        values = [w.net.const(w.drawn(f"{k}.{name}", shape, hidden**-0.5)) for name, shape in shapes.items()]
        cell = w.net.layer("LSTMCell", "opset4", [x, *state, *values], {"hidden_size": hidden}, 2)
        for name, value in zip(names, cell):
            w.net.assign(name, value)
        x, of = cell[0], hidden
    w.net.result(x)
    return w.net.build()
