"""The workloads of `bench.gpu_vision`: full sizes, and tiny ones to try the program."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import gpu_vision_ir, gpu_vision_torch, gpu_vision_yolo
from bench.gpu_vision_ir import Built, MobileNetSizes, ResNetSizes, UNetSizes
from bench.gpu_vision_yolo import YoloSizes
from bench.gpu_workloads import EXACT, Workload, encoder
from ovgpu import Core, Type, serialize
from ovgpu.ops.infrastructure.graph import Constant
from tests.models.quantize import quantize
from tests.models.transformer import BERT_BASE, Sizes

Array = NDArray[Any]
F16 = {"INFERENCE_PRECISION_HINT": "f16"}
F16_TOLERANCE = 2e-2
INT8_TOLERANCE = 0.1  # of what the quantisation changes: OpenVINO's results differ as much from those in f32


@dataclass(frozen=True)
class Configured(Workload):
    """Workload with ``config`` for ovgpu's compile_model; ``half`` and ``image`` say how torch runs it."""

    config: Mapping[str, str] = field(default_factory=lambda: EXACT)
    half: bool = False
    image: bool = False  # convolves: channels last
    stateful: bool = False


def _workload(title: str, built: Built, inputs: dict[str, Array], outputs: int, module: Callable[[], Any],
              half: bool = False, **flags: Any) -> Configured:
    """Return the workload of a network whose outputs have ``outputs`` elements."""
    weights = sum(w.nbytes for w in built.weights.values())
    nbytes = (weights // 2 if half else weights) + sum(x.nbytes for x in inputs.values()) + 4 * outputs
    found = Configured(title, built.ir, inputs, module, nbytes, tolerance=1e-3, **flags)
    return _halved(found) if half else found


def _halved(workload: Configured) -> Configured:
    return replace(workload, title=f"{workload.title}, f16", config=F16, half=True, tolerance=F16_TOLERANCE)


def quantized(make: Callable[[], Configured]) -> Configured:
    """Return a workload in f16 with activations and weights in 8 bits, as nncf writes them; torch runs it in f16."""
    found = make()
    model = quantize(Core().read_model(*found.ir), found.inputs)
    saved = sum(n.op.value.size for n in model.ops if isinstance(n.op, Constant) and n.op.element_type == Type.i8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.xml")
        serialize(model, path)
        ir = path.read_bytes(), path.with_suffix(".bin").read_bytes()
    return replace(found, title=found.title.replace(", f16", ", int8"), ir=ir, nbytes=found.nbytes - saved,
                   tolerance=INT8_TOLERANCE)


def _normal(*shape: int) -> Array:
    return np.random.default_rng(1).standard_normal(shape, np.float32)


def images(batch: int, size: int) -> Array:
    """Return images of coarse tiles under noise: noise alone looks the same to a network that takes means."""
    tile = max(1, size // 7)
    tiles = np.random.default_rng(2).standard_normal((batch, 3, size // tile + 1, size // tile + 1), np.float32)
    image = tiles.repeat(tile, 2).repeat(tile, 3)[:, :, :size, :size]
    return np.ascontiguousarray(image + np.float32(0.3) * _normal(batch, 3, size, size))


def resnet(sizes: ResNetSizes, batch: int, half: bool) -> Configured:
    """Return the workload of ResNet-50."""
    built = gpu_vision_ir.resnet(11, batch, sizes)
    return _workload(f"ResNet-50, batch {batch}", built, {"x": images(batch, sizes.image)},
                     batch * sizes.classes, partial(gpu_vision_torch.resnet, built.weights, sizes), half, image=True)


def mobilenet(sizes: MobileNetSizes, half: bool) -> Configured:
    """Return the workload of MobileNetV2."""
    built = gpu_vision_ir.mobilenet(12, 1, sizes)
    return _workload("MobileNetV2, batch 1", built, {"x": images(1, sizes.image)}, sizes.classes,
                     partial(gpu_vision_torch.mobilenet, built.weights, sizes), half, image=True)


def yolo(sizes: YoloSizes, batch: int) -> Configured:
    """Return the workload of YOLOv8n in f16."""
    built = gpu_vision_yolo.yolo(18, batch, sizes)
    return _workload(f"YOLOv8n, {sizes.image} x {sizes.image}, batch {batch}", built,
                     {"x": images(batch, sizes.image)}, batch * (4 + sizes.classes) * sizes.cells,
                     partial(gpu_vision_yolo.module, built.weights, sizes), True, image=True)


def vit(image: int, classes: int, sizes: Sizes) -> Configured:
    """Return the workload of a vision transformer in f16."""
    built = gpu_vision_ir.vit(13, image, 16, classes, sizes)
    return _workload("ViT-B/16, batch 1", built, {"x": images(1, image)}, classes,
                     partial(gpu_vision_torch.vit, built.weights, 16, sizes), True)


def whisper(title: str, mels: int, sizes: Sizes) -> Configured:
    """Return the workload of Whisper's encoder in f16."""
    built = gpu_vision_ir.whisper(14, mels, sizes)
    return _workload(title, built, {"x": _normal(1, mels, 2 * sizes.positions)}, sizes.positions * sizes.width,
                     partial(gpu_vision_torch.whisper, built.weights, sizes), True)


def unet(sizes: UNetSizes) -> Configured:
    """Return the workload of a diffusion model's U-Net in f16."""
    built = gpu_vision_ir.unet(15, 1, sizes)
    inputs = {"x": _normal(1, sizes.latents, sizes.image, sizes.image), "step": np.array([37], np.float32)}
    return _workload(f"U-Net, {sizes.image} x {sizes.image}, widths {', '.join(map(str, sizes.widths))}", built, inputs,
                     inputs["x"].size, partial(gpu_vision_torch.unet, built.weights, sizes), True, image=True)


def bert(sizes: Sizes, batch: int, length: int) -> Configured:
    """Return the workload of BERT in f16."""
    found = encoder(sizes, batch, length)
    outputs = 4 * batch * length * sizes.width  # bytes counted by `encoder` that stay in f32
    nbytes = (found.nbytes - outputs) // 2 + outputs
    return _halved(Configured(found.title, found.ir, found.inputs, found.module, nbytes))


def recurrent(batch: int, steps: int, features: int, hidden: int, directions: int) -> Configured:
    """Return the workload of an LSTMSequence."""
    built = gpu_vision_ir.recurrent(16, batch, steps, features, hidden, directions)
    title = f"{'BiLSTM' if directions == 2 else 'LSTMSequence'}, batch {batch}, {steps} steps, {hidden} units"
    return _workload(title, built, {"x": _normal(batch, steps, features)}, batch * (steps + 2) * directions * hidden,
                     partial(gpu_vision_torch.recurrent, built.weights, batch))


def stateful(layers: int, features: int, hidden: int) -> Configured:
    """Return the workload of LSTM cells with state."""
    built = gpu_vision_ir.stateful(17, layers, features, hidden)
    title, outputs = f"LSTM with state, {layers} x {hidden}, per frame", (1 + 4 * layers) * hidden  # and the states
    return _workload(title, built, {"x": _normal(1, features)}, outputs,
                     partial(gpu_vision_torch.stateful, built.weights, layers), stateful=True)


Makers = dict[str, Callable[[], Configured]]
WORKLOADS: Makers = {
    "resnet50": partial(resnet, ResNetSizes(), 1, False),
    "resnet50_f16": partial(resnet, ResNetSizes(), 1, True),
    "mobilenet_v2": partial(mobilenet, MobileNetSizes(), False),
    "mobilenet_v2_f16": partial(mobilenet, MobileNetSizes(), True),
    "vit_f16": partial(vit, 224, 1000, Sizes(12, 768, 12, 3072, 0, 0)),
    "whisper_tiny_f16": partial(whisper, "Whisper-tiny encoder, 30 s", 80, Sizes(4, 384, 6, 1536, 0, 1500)),
    "unet_f16": partial(unet, UNetSizes()),
    "bert_f16": partial(bert, BERT_BASE, 1, 128),
    "bert_b32_f16": partial(bert, BERT_BASE, 32, 128),
    "bilstm": partial(recurrent, 32, 100, 256, 256, 2),
    "lstm_b1": partial(recurrent, 1, 100, 512, 512, 1),
    "lstm_b32": partial(recurrent, 32, 100, 512, 512, 1),
    "lstm_state": partial(stateful, 3, 512, 512),
    "resnet50_b64_f16": partial(resnet, ResNetSizes(), 64, True),
    "resnet50_b64": partial(resnet, ResNetSizes(), 64, False),
    "resnet50_int8": partial(quantized, partial(resnet, ResNetSizes(), 1, True)),
    "resnet50_b64_int8": partial(quantized, partial(resnet, ResNetSizes(), 64, True)),
    "bert_int8": partial(quantized, partial(bert, BERT_BASE, 1, 128)),
    "bert_b32_int8": partial(quantized, partial(bert, BERT_BASE, 32, 128)),
    "yolo_f16": partial(yolo, YoloSizes(), 1),
    "yolo_int8": partial(quantized, partial(yolo, YoloSizes(), 1)),
    "yolo_b16_f16": partial(yolo, YoloSizes(), 16),
    "unet_320_f16": partial(unet, UNetSizes(widths=(320, 640))),
    "whisper_base_f16": partial(whisper, "Whisper-base encoder, 30 s", 80, Sizes(6, 512, 8, 2048, 0, 1500)),
}
_RESNET, _BERT = ResNetSizes(32, 8, (1, 1), 10), Sizes(1, 24, 2, 48, 50, 16)
_RESNET_INT8, _BERT_INT8 = ResNetSizes(32, 16, (1, 1), 10), Sizes(1, 32, 2, 64, 50, 16)  # of 16 codes
_YOLO = YoloSizes(64, 16, (1, 1, 1, 1), 16)
_MOBILENET = MobileNetSizes(24, 8, ((1, 8, 1, 1), (6, 12, 2, 2)), 32, 10)
TINY: Makers = {
    "resnet50": partial(resnet, _RESNET, 1, False),
    "resnet50_f16": partial(resnet, _RESNET, 1, True),
    "mobilenet_v2": partial(mobilenet, _MOBILENET, False),
    "mobilenet_v2_f16": partial(mobilenet, _MOBILENET, True),
    "vit_f16": partial(vit, 32, 10, Sizes(1, 24, 2, 48, 0, 0)),
    "whisper_tiny_f16": partial(whisper, "Whisper encoder", 8, Sizes(1, 24, 2, 48, 0, 10)),
    "unet_f16": partial(unet, UNetSizes(16, (8, 16), 1, 4)),
    "bert_f16": partial(bert, _BERT, 1, 8),
    "bert_b32_f16": partial(bert, _BERT, 2, 8),
    "bilstm": partial(recurrent, 2, 5, 12, 8, 2),
    "lstm_b1": partial(recurrent, 1, 5, 12, 16, 1),
    "lstm_b32": partial(recurrent, 2, 5, 12, 16, 1),
    "lstm_state": partial(stateful, 3, 12, 16),
    "resnet50_b64_f16": partial(resnet, _RESNET, 2, True),
    "resnet50_b64": partial(resnet, _RESNET, 2, False),
    "resnet50_int8": partial(quantized, partial(resnet, _RESNET_INT8, 1, True)),
    "resnet50_b64_int8": partial(quantized, partial(resnet, _RESNET_INT8, 2, True)),
    "bert_int8": partial(quantized, partial(bert, _BERT_INT8, 1, 8)),
    "bert_b32_int8": partial(quantized, partial(bert, _BERT_INT8, 2, 8)),
    "unet_320_f16": partial(unet, UNetSizes(8, (8,), 1, 4)),
    "yolo_f16": partial(yolo, _YOLO, 1),
    "yolo_int8": partial(quantized, partial(yolo, _YOLO, 1)),
    "yolo_b16_f16": partial(yolo, _YOLO, 2),
    "whisper_base_f16": partial(whisper, "Whisper encoder", 8, Sizes(2, 24, 2, 48, 0, 10)),
}
