"""Workloads of `bench.gpu`: a model as IR, its inputs, and the same mathematics in torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import gpu_torch
from tests.harness.ir import Net
from tests.models.drive import decoder_inputs
from tests.models.recurrent import lstm_sequence, torch_lstm, weights_of
from tests.models.spec import spec_tensor_iterator
from tests.models.transformer import BERT_BASE, GPT2_SMALL, Sizes, bert, gpt2

Array = NDArray[Any]
IR = tuple[bytes, bytes]
# Configurations of `compile_model`: f32 as it is, and f32 that products round to TF32, the default on a card.
EXACT = {"EXECUTION_MODE_HINT": "ACCURACY"}
TF32 = {"INFERENCE_PRECISION_HINT": "tf32"}


@dataclass(frozen=True)
class Workload:
    """A model and its inputs. ``nbytes`` is the least traffic of device memory in an inference: reads and writes, once.

    ``bandwidth`` says that this traffic limits the time, ``tf32`` that it has products of f32. ``module()`` returns the
    torch module. A decoder gets ``prompt`` and then one token after the other; ``inputs`` are then those of any step.
    """

    title: str
    ir: IR
    inputs: dict[str, Array]
    module: Callable[[], Any]
    nbytes: int
    bandwidth: bool = False
    tolerance: float = 1e-4
    prompt: Array | None = None
    tf32: bool = False


def elementwise(rows: int, columns: int, kind: str) -> Workload:
    """``tanh(x * 0.5 + 1) * x``: four operations, one pass over memory."""
    net = Net("elementwise")
    x = net.parameter(kind, (rows, columns), "x")
    y = net.layer("Multiply", "opset1", [x, net.const(0.5, kind)])
    y = net.layer("Tanh", "opset1", [net.layer("Add", "opset1", [y, net.const(1, kind)])])
    net.result(net.layer("Multiply", "opset1", [y, x]))
    return _map("Elementwise, 4 operations", net, rows, columns, kind, gpu_torch.elementwise)


def softmax(rows: int, columns: int, kind: str) -> Workload:
    """Return the softmax of rows."""
    net = Net("softmax")
    x = net.parameter(kind, (rows, columns), "x")
    net.result(net.layer("Softmax", "opset8", [x], {"axis": -1}))
    return _map("Softmax of rows", net, rows, columns, kind, gpu_torch.softmax)


def topk(columns: int, count: int) -> Workload:
    """Return the largest elements of a row, such as the logits of a token, with their indices."""
    net = Net("topk")
    values, indices = net.layer("TopK", "opset11", [net.parameter("f32", (1, columns), "x"),
                                                    net.const(np.int64(count))],
                                {"axis": -1, "mode": "max", "sort": "value", "index_element_type": "i64"},
                                ["f32", "i64"])
    net.result(values)
    net.result(indices)
    return _row(f"TopK {count}", net, columns, partial(gpu_torch.topk, count))


def largest(columns: int) -> Workload:
    """Return the largest element of a row."""
    net = Net("largest")
    net.result(net.layer("ReduceMax", "opset1", [net.parameter("f32", (1, columns), "x"), net.const(np.array([1]))],
                         {"keep_dims": True}))
    return _row("ReduceMax", net, columns, gpu_torch.largest)


def normalize(columns: int) -> Workload:
    """Return a row less its mean, over its standard deviation."""
    net = Net("normalize")
    net.result(net.layer("MVN", "opset6", [net.parameter("f32", (1, columns), "x"), net.const(np.array([1]))],
                         {"eps": 1e-5, "eps_mode": "inside_sqrt", "normalize_variance": True}))
    return _row("MVN", net, columns, gpu_torch.normalize)


def _row(title: str, net: Net, columns: int, module: Callable[[], Any]) -> Workload:
    x = np.random.default_rng(1).standard_normal((1, columns), np.float32)
    return Workload(f"{title}, f32 [1,{columns}]", net.build(), {"x": x}, module, x.nbytes)


def _map(title: str, net: Net, rows: int, columns: int, kind: str, module: Callable[[], Any]) -> Workload:
    dtype = {"f32": np.float32, "f16": np.float16}[kind]
    x = np.random.default_rng(1).standard_normal((rows, columns), np.float32).astype(dtype)
    return Workload(f"{title}, {kind} [{rows},{columns}]", net.build(), {"x": x}, module, 2 * x.nbytes, True,
                    1e-5 if kind == "f32" else 3e-3)


def tensor_iterator(steps: int = 25, features: int = 512, hidden: int = 256) -> Workload:
    """Return an LSTM as a TensorIterator."""
    ir = spec_tensor_iterator(11, steps=steps, features=features, hidden=hidden)
    random = np.random.default_rng(2)
    shapes = {"x": (1, steps, features), "h": (1, hidden), "c": (1, hidden)}
    inputs = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    weights = weights_of(ir)
    return Workload(f"TensorIterator LSTM [1,{steps},{features}], {hidden} units", ir, inputs,
                    partial(torch_lstm, *weights, every_state=False), _total(weights, inputs) + steps * hidden * 4,
                    tf32=True)


def sequence(steps: int, features: int, hidden: int) -> Workload:
    """Return an LSTMSequence, batch 1."""
    ir = lstm_sequence(12, steps=steps, features=features, hidden=hidden)
    random = np.random.default_rng(3)
    shapes = {"x": (1, steps, features), "h": (1, 1, hidden), "c": (1, 1, hidden)}
    inputs = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    weights = weights_of(ir)
    return Workload(f"LSTMSequence, {steps} steps, {hidden} units", ir, inputs,
                    partial(torch_lstm, *weights, every_state=True),
                    _total(weights, inputs) + (steps + 2) * hidden * 4, tf32=True)


def encoder(sizes: Sizes, batch: int, time: int) -> Workload:
    """Return BERT."""
    model = bert(5, sizes, (batch, time))
    random = np.random.RandomState(6)
    inputs = {"input_ids": random.randint(0, sizes.vocabulary, (batch, time)),
              "attention_mask": np.ones((batch, time), np.int64),
              "token_type_ids": random.randint(0, 2, (batch, time))}
    inputs["attention_mask"][:, time - time // 8 :] = 0
    read = sum(w.nbytes for name, w in model.weights.items() if name not in
               ("words.weight", "types.weight", "positions.weight"))
    return Workload(f"BERT, {sizes.layers} x {sizes.width}, batch {batch}, {time} tokens", model.ir, inputs,
                    partial(gpu_torch.bert, model.weights, sizes), read + 2 * batch * time * sizes.width * 4, tf32=True)


def decoder(sizes: Sizes, prompt: int) -> Workload:
    """Return GPT-2, one token per inference after a prompt."""
    model = gpt2(8, sizes)
    tokens = np.random.RandomState(9).randint(0, sizes.vocabulary, (1, prompt))
    read = sum(w.nbytes for name, w in model.weights.items() if name != "positions.weight")
    cache = 2 * 2 * sizes.layers * prompt * sizes.width * 4
    return Workload(f"GPT-2 decode, {sizes.layers} x {sizes.width}, per token", model.ir,
                    decoder_inputs(tokens[:, :1], np.ones((1, 1), np.int64)),
                    partial(gpu_torch.gpt2, model.weights, sizes), read + cache, prompt=tokens, tf32=True)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "tensor_iterator_lstm": tensor_iterator,
    "lstm_sequence": partial(sequence, 100, 512, 512),
    "bert_base": partial(encoder, BERT_BASE, 1, 128),
    "bert_base_b32": partial(encoder, BERT_BASE, 32, 128),
    "gpt2_decode": partial(decoder, GPT2_SMALL, 128),
    "elementwise_f32": partial(elementwise, 8192, 8192, "f32"),
    "elementwise_f16": partial(elementwise, 8192, 16384, "f16"),
    "softmax_f32": partial(softmax, 65536, 1024, "f32"),
    "softmax_f16": partial(softmax, 65536, 2048, "f16"),
    "softmax_row": partial(softmax, 1, 128256, "f32"),
    "max_row": partial(largest, 128256),
    "normalize_row": partial(normalize, 128256),
    "argmax_row": partial(topk, 128256, 1),
    "topk_row": partial(topk, 128256, 50),
}
TINY: dict[str, Callable[[], Workload]] = {
    "tensor_iterator_lstm": partial(tensor_iterator, 5, 24, 16),
    "lstm_sequence": partial(sequence, 5, 24, 16),
    "bert_base": partial(encoder, Sizes(1, 24, 2, 48, 50, 16), 1, 8),
    "bert_base_b32": partial(encoder, Sizes(1, 24, 2, 48, 50, 16), 2, 8),
    "gpt2_decode": partial(decoder, Sizes(1, 24, 2, 48, 50, 64), 4),
    "elementwise_f32": partial(elementwise, 8, 64, "f32"),
    "elementwise_f16": partial(elementwise, 8, 64, "f16"),
    "softmax_f32": partial(softmax, 8, 64, "f32"),
    "softmax_f16": partial(softmax, 8, 64, "f16"),
    "softmax_row": partial(softmax, 1, 20000, "f32"),
    "max_row": partial(largest, 20000),
    "normalize_row": partial(normalize, 20000),
    "argmax_row": partial(topk, 20000, 1),
    "topk_row": partial(topk, 20000, 5),
}


def _total(weights: tuple[Array, ...], inputs: dict[str, Array]) -> int:
    return sum(x.nbytes for x in (*weights, *inputs.values()))
