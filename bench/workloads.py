"""Workloads for a card: a model as IR, its inputs, and what is known of it. `WORKLOADS` has them by name."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.networks import llama, vision, yolo
from bench.networks.llama import LLAMA_1B, Llama, Variant
from bench.networks.vision import IR, MobileNetSizes, ResNetSizes, UNetSizes
from bench.networks.yolo import YoloSizes
from ovgpu import Core, Type, serialize
from ovgpu.ops.infrastructure.graph import Constant
from tests.harness.ir import Net
from tests.harness.models.quantize import quantize
from tests.harness.models.recurrent import lstm_sequence, torch_lstm, weights_of
from tests.harness.models.spec import spec_tensor_iterator
from tests.harness.models.transformer import BERT_BASE, GPT2_SMALL, Sizes, bert, gpt2

Array = NDArray[Any]
# Configurations of `compile_model`: f32 as it is, f32 that products round to TF32, the default on a card, and f16.
EXACT = {"EXECUTION_MODE_HINT": "ACCURACY"}
TF32 = {"INFERENCE_PRECISION_HINT": "tf32"}
F16 = {"INFERENCE_PRECISION_HINT": "f16"}
F32_TOLERANCE, F16_TOLERANCE = 1e-3, 2e-2
INT8_TOLERANCE = 0.1  # of what the quantisation changes: OpenVINO's results differ as much from those in f32
TINY_SIZES = Sizes(1, 32, 2, 64, 50, 16)
VOCABULARY = 128256
PROMPT = 128  # tokens of each of several sequences


@dataclass(frozen=True)
class Text:
    """Part of a language model: a token after ``context`` others in the cache, or a prompt, or a step of several
    ``sequences`` in slots of a batch."""

    sizes: Sizes
    context: int = 0
    prompt: int = 0
    sequences: int = 0
    llama: Llama | None = None


@dataclass(frozen=True)
class Workload:
    """A model and its inputs; ``config`` is for compile_model. ``nbytes`` is the least traffic of device memory in an
    inference: reads and writes, once. ``tolerance`` is for the largest difference relative to the largest value.

    ``bandwidth`` says that the traffic limits the time, ``tf32`` that f32 may be rounded to TF32; ``half`` and
    ``image``, which has channels last, say how torch runs it. ``peer`` returns the torch module if it is not the
    translation of ``peer_ir``, or of the IR.
    """

    title: str
    ir: tuple[bytes, Any]
    inputs: dict[str, Array]
    nbytes: float
    config: Mapping[str, str]
    tolerance: float = F32_TOLERANCE
    bandwidth: bool = False
    tf32: bool = False
    half: bool = False
    image: bool = False
    stateful: bool = False
    peer: Callable[[], Any] | None = None
    peer_ir: IR | None = None
    text: Text | None = None


def network(
    title: str,
    ir: IR,
    inputs: dict[str, Array],
    outputs: int,
    *,
    half: bool = False,
    codes: bool = False,
    unread: int = 0,
    **flags: Any,
) -> Workload:
    """Return the workload of a network in f32, in f16, or in f16 with ``codes`` of 8 bits for activations and weights,
    as nncf writes them; torch runs that in f16. ``outputs`` are elements, ``unread`` weights that are not read."""
    weights = len(ir[1]) - 4 * unread
    nbytes = (weights // 2 if half else weights) + sum(x.nbytes for x in inputs.values()) + 4 * outputs
    if not half:
        return Workload(title, ir, inputs, nbytes, EXACT, tf32=True, **flags)
    found = Workload(f"{title}, f16", ir, inputs, nbytes, F16, F16_TOLERANCE, half=True, **flags)
    return _quantized(found) if codes else found


def _quantized(found: Workload) -> Workload:
    """Quantize by the ranges that the first element of the batch shows."""
    model, first = Core().read_model(*found.ir), {name: x[:1] for name, x in found.inputs.items()}
    model.reshape({name: list(x.shape) for name, x in first.items()})
    model = quantize(model, first)
    model.reshape({name: list(x.shape) for name, x in found.inputs.items()})
    saved = sum(n.op.value.size for n in model.ops if isinstance(n.op, Constant) and n.op.element_type == Type.i8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.xml")
        serialize(model, path)
        ir = path.read_bytes(), path.with_suffix(".bin").read_bytes()
    return replace(
        found,
        title=found.title.replace(", f16", ", int8"),
        ir=ir,
        peer_ir=found.ir,
        nbytes=found.nbytes - saved,
        tolerance=INT8_TOLERANCE,
    )


def _normal(*shape: int) -> Array:
    return np.random.default_rng(1).standard_normal(shape, np.float32)


def images(batch: int, size: int) -> Array:
    """Return images of coarse tiles under noise: noise alone looks the same to a network that takes means."""
    tile = max(1, size // 7)
    tiles = np.random.default_rng(2).standard_normal((batch, 3, size // tile + 1, size // tile + 1), np.float32)
    image = tiles.repeat(tile, 2).repeat(tile, 3)[:, :, :size, :size]
    return np.ascontiguousarray(image + np.float32(0.3) * _normal(batch, 3, size, size))


# ---- networks; `tiny` sizes are there to try the programs


def resnet(batch: int, *, tiny: bool, **kind: bool) -> Workload:
    sizes = ResNetSizes(32, 16, (1, 1), 10) if tiny else ResNetSizes()
    batch = min(batch, 2) if tiny else batch
    return network(
        f"ResNet-50, batch {batch}",
        vision.resnet(11, batch, sizes),
        {"x": images(batch, sizes.image)},
        batch * sizes.classes,
        image=True,
        **kind,
    )


def mobilenet(*, tiny: bool, **kind: bool) -> Workload:
    stages = ((1, 8, 1, 1), (6, 12, 2, 2))
    sizes = MobileNetSizes(24, 8, stages, 32, 10) if tiny else MobileNetSizes()
    return network(
        "MobileNetV2, batch 1",
        vision.mobilenet(12, 1, sizes),
        {"x": images(1, sizes.image)},
        sizes.classes,
        image=True,
        **kind,
    )


def yolov8(batch: int, *, tiny: bool, **kind: bool) -> Workload:
    sizes = YoloSizes(64, 16, (1, 1, 1, 1), 16) if tiny else YoloSizes()
    batch = min(batch, 2) if tiny else batch
    return network(
        f"YOLOv8n, {sizes.image} x {sizes.image}, batch {batch}",
        yolo.yolo(18, batch, sizes),
        {"x": images(batch, sizes.image)},
        batch * (4 + sizes.classes) * sizes.cells,
        image=True,
        **kind,
    )


def vit(*, tiny: bool, **kind: bool) -> Workload:
    image, classes, sizes = (32, 10, TINY_SIZES) if tiny else (224, 1000, Sizes(12, 768, 12, 3072, 0, 0))
    return network(
        "ViT-B/16, batch 1", vision.vit(13, image, 16, classes, sizes), {"x": images(1, image)}, classes, **kind
    )


def whisper(name: str, full: Sizes, *, tiny: bool, **kind: bool) -> Workload:
    mels, sizes = (8, replace(TINY_SIZES, positions=10)) if tiny else (80, full)
    return network(
        f"Whisper-{name} encoder, 30 s",
        vision.whisper(14, mels, sizes),
        {"x": _normal(1, mels, 2 * sizes.positions)},
        sizes.positions * sizes.width,
        **kind,
    )


def unet(full: UNetSizes, *, tiny: bool, **kind: bool) -> Workload:
    sizes = UNetSizes(16, (8, 16), 1, 4) if tiny else full
    inputs = {"x": _normal(1, sizes.latents, sizes.image, sizes.image), "step": np.array([37], np.float32)}
    return network(
        f"U-Net, {sizes.image} x {sizes.image}, widths {', '.join(map(str, sizes.widths))}",
        vision.unet(15, 1, sizes),
        inputs,
        inputs["x"].size,
        image=True,
        **kind,
    )


def encoder(batch: int, length: int, *, tiny: bool, **kind: bool) -> Workload:
    sizes, batch, length = (TINY_SIZES, min(batch, 2), 8) if tiny else (BERT_BASE, batch, length)
    model = bert(5, sizes, (batch, length))
    random = np.random.RandomState(6)
    inputs = {
        "input_ids": random.randint(0, sizes.vocabulary, (batch, length)),
        "attention_mask": np.ones((batch, length), np.int64),
        "token_type_ids": random.randint(0, 2, (batch, length)),
    }
    inputs["attention_mask"][:, length - length // 8 :] = 0
    tables = sum(model.weights[f"{name}.weight"].size for name in ("words", "types", "positions"))
    return network(
        f"BERT, {sizes.layers} x {sizes.width}, batch {batch}, {length} tokens",
        model.ir,
        inputs,
        batch * length * sizes.width,
        unread=tables,
        **kind,
    )


def recurrent(batch: int, steps: int, hidden: int, directions: int, *, tiny: bool) -> Workload:
    batch, steps, features, hidden = (min(batch, 2), 5, 12, 16) if tiny else (batch, steps, hidden, hidden)
    title = f"{'BiLSTM' if directions == 2 else 'LSTMSequence'}, batch {batch}, {steps} steps, {hidden} units"
    return network(
        title,
        vision.recurrent(16, batch, steps, features, hidden, directions),
        {"x": _normal(batch, steps, features)},
        batch * (steps + 2) * directions * hidden,
    )


def with_state(*, tiny: bool) -> Workload:
    hidden = 16 if tiny else 512
    return network(
        f"LSTM with state, 3 x {hidden}, per frame",
        vision.stateful(17, 3, hidden, hidden),
        {"x": _normal(1, hidden)},
        13 * hidden,
        stateful=True,
    )


def one_lstm(loop: bool, *, tiny: bool) -> Workload:
    """Return an LSTM whose state is an input: a TensorIterator of cells, or an LSTMSequence."""
    steps, features, hidden = (5, 24, 16) if tiny else (25, 512, 256) if loop else (100, 512, 512)
    make = partial(spec_tensor_iterator, 11) if loop else partial(lstm_sequence, 12)
    ir, state = make(steps=steps, features=features, hidden=hidden), (1, hidden) if loop else (1, 1, hidden)
    random = np.random.default_rng(3)
    inputs = {
        name: random.standard_normal(shape, np.float32)
        for name, shape in (("x", (1, steps, features)), ("h", state), ("c", state))
    }
    title = f"TensorIterator of LSTM cells, {steps} steps" if loop else f"LSTMSequence with state, {steps} steps"
    return network(
        f"{title}, {hidden} units",
        ir,
        inputs,
        steps * hidden,
        peer=partial(torch_lstm, *weights_of(ir), every_state=False) if loop else None,
    )


# ---- single operations


def row(op: str, version: int, attributes: Mapping[str, Any], *constants: Any, columns: int = VOCABULARY) -> Net:
    """Return an operation on a row in f32, such as the logits of a token; ``constants`` are its other inputs."""
    net = Net(op)
    x = net.parameter("f32", (1, columns), "x")
    kinds = ["f32", "i64"] if op == "TopK" else ["f32"]
    found = net.layer(op, f"opset{version}", [x, *map(net.const, constants)], attributes, kinds)
    for port in found if op == "TopK" else (found,):
        net.result(port)
    return net


TOPK = {"axis": -1, "mode": "max", "sort": "value", "index_element_type": "i64"}
MVN = {"eps": 1e-5, "eps_mode": "inside_sqrt", "normalize_variance": True}
ROWS: dict[str, Callable[..., Net]] = {
    "softmax_row": partial(row, "Softmax", 8, {"axis": -1}),
    "max_row": partial(row, "ReduceMax", 1, {"keep_dims": True}, np.array([1])),
    "normalize_row": partial(row, "MVN", 6, MVN, np.array([1])),
    "argmax_row": partial(row, "TopK", 11, TOPK, np.int64(1)),
    "topk_row": partial(row, "TopK", 11, TOPK, np.int64(50)),
}


def one_row(name: str, *, tiny: bool) -> Workload:
    columns = 20000 if tiny else VOCABULARY
    x = _normal(1, columns)
    return Workload(f"{name}, f32 [1,{columns}]", ROWS[name](columns=columns).build(), {"x": x}, x.nbytes, EXACT, 1e-4)


def pass_over_memory(op: str, rows: int, columns: int, kind: str, *, tiny: bool) -> Workload:
    """Return the softmax of rows, or ``tanh(x * 0.5 + 1) * x``: one read and one write of memory."""
    rows, columns = (8, 64) if tiny else (rows, columns)
    net = Net(op)
    x = net.parameter(kind, (rows, columns), "x")
    if op == "softmax":
        y = net.layer("Softmax", "opset8", [x], {"axis": -1})
    else:
        y = net.layer("Multiply", "opset1", [x, net.const(0.5, kind)])
        y = net.layer("Tanh", "opset1", [net.layer("Add", "opset1", [y, net.const(1, kind)])])
        y = net.layer("Multiply", "opset1", [y, x])
    net.result(y)
    data = _normal(rows, columns).astype({"f32": np.float32, "f16": np.float16}[kind])
    return Workload(
        f"{op}, {kind} [{rows},{columns}]",
        net.build(),
        {"x": data},
        2 * data.nbytes,
        EXACT,
        1e-5 if kind == "f32" else 3e-3,
        True,
    )


# ---- language models


@lru_cache(1)  # the workloads of a variant come one after the other
def _llama(variant: Variant, tiny: bool) -> Llama:
    return llama.build(variant, llama.TINY if tiny else LLAMA_1B)


def text(variant: Variant, *, tiny: bool, context: int = 0, prompt: int = 0, sequences: int = 0) -> Workload:
    """Return a part of a Llama decoder with the shapes of Llama-3.2-1B, in f16 with weights of that variant."""
    context, prompt, sequences = (
        min(n, most) if tiny else n for n, most in ((context, 40), (prompt, 32), (sequences, 2))
    )
    model = _llama(variant, tiny)
    what = (
        f"{context} tokens"
        if context
        else f"prompt of {prompt} tokens"
        if prompt
        else f"{sequences} sequences, {PROMPT} tokens"
    )
    return Workload(
        f"Llama-3.2-1B {variant}, {what}",
        model.ir,
        {},
        model.nbytes + model.cache_bytes(context),
        F16,
        F16_TOLERANCE,
        text=Text(model.sizes, context, prompt, sequences, model),
    )


def gpt2_decode(*, tiny: bool) -> Workload:
    """Return a step of GPT-2 in f32."""
    sizes, context = (Sizes(1, 24, 2, 48, 50, 64), 12) if tiny else (GPT2_SMALL, 128)
    model = gpt2(8, sizes)
    read = sum(w.nbytes for name, w in model.weights.items() if name != "positions.weight")
    cache = 4 * 2 * sizes.layers * context * sizes.width
    return Workload(f"GPT-2, {context} tokens", model.ir, {}, read + cache, EXACT, tf32=True, text=Text(sizes, context))


def _kinds(name: str, make: Callable[..., Workload], *kinds: str) -> dict[str, Callable[..., Workload]]:
    """Return the workloads of a network in f32, "f16" and "int8"."""
    return {
        "_".join(filter(None, (name, kind))): partial(
            make, **({"half": True} if kind else {}), **({"codes": True} if kind == "int8" else {})
        )
        for kind in kinds
    }


PARTS = {
    **{f"{n}": {"context": n} for n in (128, 8192)},
    **{f"prefill {n}": {"prompt": n} for n in (512, 2048)},
    **{f"sequences {n}": {"sequences": n} for n in (8, 64)},
}
VARIANTS: tuple[Variant, ...] = ("f16", "int4", "int8")
WORKLOADS: dict[str, Callable[..., Workload]] = {
    **{
        f"llama {v} {name}": partial(text, v, **part)
        for v in VARIANTS
        for name, part in PARTS.items()
        if v != "int8" or "context" in part
    },
    **_kinds("resnet50", partial(resnet, 1), "", "f16", "int8"),
    **_kinds("mobilenet_v2", mobilenet, "", "f16"),
    **_kinds("vit", vit, "f16"),
    **_kinds("whisper_tiny", partial(whisper, "tiny", Sizes(4, 384, 6, 1536, 0, 1500)), "f16"),
    **_kinds("unet", partial(unet, UNetSizes()), "f16"),
    **_kinds("bert", partial(encoder, 1, 128), "f16", "int8"),
    **_kinds("bert_b32", partial(encoder, 32, 128), "f16", "int8"),
    "bilstm": partial(recurrent, 32, 100, 256, 2),
    "lstm_b1": partial(recurrent, 1, 100, 512, 1),
    "lstm_b32": partial(recurrent, 32, 100, 512, 1),
    "lstm_state": with_state,
    **_kinds("resnet50_b64", partial(resnet, 64), "", "f16", "int8"),
    **_kinds("yolo", partial(yolov8, 1), "f16", "int8"),
    **_kinds("yolo_b16", partial(yolov8, 16), "f16"),
    **_kinds("unet_320", partial(unet, UNetSizes(widths=(320, 640))), "f16"),
    **_kinds("whisper_base", partial(whisper, "base", Sizes(6, 512, 8, 2048, 0, 1500)), "f16"),
    "tensor_iterator_lstm": partial(one_lstm, True),
    "lstm_sequence": partial(one_lstm, False),
    "bert_base": partial(encoder, 1, 128),
    "bert_base_b32": partial(encoder, 32, 128),
    "gpt2_decode": gpt2_decode,
    "elementwise_f32": partial(pass_over_memory, "elementwise", 8192, 8192, "f32"),
    "elementwise_f16": partial(pass_over_memory, "elementwise", 8192, 16384, "f16"),
    "softmax_f32": partial(pass_over_memory, "softmax", 65536, 1024, "f32"),
    "softmax_f16": partial(pass_over_memory, "softmax", 65536, 2048, "f16"),
    **{name: partial(one_row, name) for name in ROWS},
    # Batches of 64 beside those of 1.
    **_kinds("bert_b64", partial(encoder, 64, 128), "f16", "int8"),
    **_kinds("yolo_b64", partial(yolov8, 64), "f16", "int8"),
}
IN_TF32 = tuple(
    f"{name} tf32"
    for name in (
        "bert_base",
        "bert_base_b32",
        "resnet50",
        "gpt2_decode",
        "lstm_b32",
        "bilstm",
        "llama int8 128",
        "llama int4 128",
    )
)


def workload(name: str, tiny: bool = False) -> Workload:
    """Return a workload by its name in `WORKLOADS`, or in `IN_TF32` with f32 that is rounded to TF32."""
    found = WORKLOADS[name.removesuffix(" tf32")](tiny=tiny)
    return replace(found, title=f"{found.title}, TF32", config=TF32) if name.endswith(" tf32") else found
