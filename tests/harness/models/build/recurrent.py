"""Recurrent networks, from torch and as IR."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import openvino as ov

from .. import recurrent, spec
from ..drive import Call
from ._convert import Built, Calls, converted, normal, tokens

SPEC_SEED = 11


def bilstm(
    vocabulary: int = 61, features: int = 20, hidden: int = 24, layers: int = 2, shape: tuple[int, int] = (-1, -1)
) -> Built:
    """Build a bidirectional LSTM tagger over packed sequences: tokens [batch, time], lengths [batch]."""
    import torch
    from torch import nn
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(vocabulary, features)
            self.lstm = nn.LSTM(features, hidden, layers, batch_first=True, bidirectional=True)
            self.head = nn.Linear(2 * hidden, 7)

        def forward(self, tokens: Any, lengths: Any) -> Any:
            packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True, enforce_sorted=False)
            y, (h, _) = self.lstm(packed)
            y, _ = pad_packed_sequence(y, batch_first=True, total_length=tokens.shape[1])
            return self.head(y), h

    torch.manual_seed(3)
    batch, time = (size if size > 0 else 7 for size in shape)
    examples = torch.randint(vocabulary, (batch, time)), torch.full((batch,), time)
    inputs = {"tokens": (examples[0], [*shape]), "lengths": (examples[1], [shape[0]])}
    module = Tagger()

    def calls(random: np.random.RandomState) -> list[Call]:
        cases = [[5, 9, 2], [13, 1], [4]] if shape[1] < 0 else [np.linspace(2 * time / 5, time, batch).astype(int)]
        return [
            Call({"tokens": tokens(random, vocabulary, len(lengths), max(lengths)), "lengths": np.array(lengths)})
            for lengths in cases
        ]

    return Built(partial(converted, module, inputs, ["tags", "last"]), calls, module)


def gru(features: int = 20, hidden: int = 24, layers: int = 2, shape: tuple[int, int] = (-1, -1)) -> Built:
    """Build a GRU: x [batch, time, features], h [layers, batch, hidden] -> y, h_out."""
    import torch

    torch.manual_seed(4)
    batch, time = (size if size > 0 else 5 for size in shape)
    inputs = {
        "x": (torch.randn(batch, time, features), [*shape, features]),
        "h": (torch.randn(layers, batch, hidden), [layers, shape[0], hidden]),
    }
    module = torch.nn.GRU(features, hidden, layers, batch_first=True)

    def calls(random: np.random.RandomState) -> list[Call]:
        sizes = [(3, 9), (1, 14), (2, 1)] if shape[1] < 0 else [(batch, time)]
        return [Call({"x": normal(random, b, t, features), "h": normal(random, layers, b, hidden)}) for b, t in sizes]

    return Built(partial(converted, module, inputs, ["y", "h_out"]), calls, module)


def _from_ir(ir: tuple[bytes, bytes], calls: Calls, module: Any = None) -> Built:
    xml, weights = ir
    return Built(lambda: ov.Core().read_model(model=xml, weights=weights), calls, module)


def lstm_state() -> Built:
    """Build LSTM cells with state, which take one frame per inference."""
    ir = recurrent.lstm_state(8)
    return _from_ir(ir, lambda random: [Call({"frame": normal(random, 1, 40)}, reset=k == 5) for k in range(10)])


def lstm_sequence(steps: int = 100, features: int = 512, hidden: int = 512) -> Built:
    """Build one LSTMSequence: x [1, steps, features], h and c [1, 1, hidden]."""
    shapes = {"x": (1, steps, features), "h": (1, 1, hidden), "c": (1, 1, hidden)}
    ir = recurrent.lstm_sequence(12, steps=steps, features=features, hidden=hidden)
    calls = lambda random: [Call({name: normal(random, *shape) for name, shape in shapes.items()})]
    return _from_ir(ir, calls, recurrent.torch_lstm(*recurrent.weights_of(ir), every_state=True))


def spec_tensor_iterator() -> Built:
    """Build the specification's example of a TensorIterator."""
    shapes = {"x": (1, 25, 512), "h": (1, 256), "c": (1, 256)}
    ir = spec.spec_tensor_iterator(SPEC_SEED)
    one = lambda random: Call({name: normal(random, *shape) for name, shape in shapes.items()})
    module = recurrent.torch_lstm(*recurrent.weights_of(ir), every_state=False)
    return _from_ir(ir, lambda random: [one(random) for _ in range(3)], module)
