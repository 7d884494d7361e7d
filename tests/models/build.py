"""Architectures with random weights, as OpenVINO models. Each takes its sizes, so that the small models in
`data/` and the large ones that the benchmarks time come from the same code."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import openvino as ov
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Built:
    """A model, and the same function in torch where there is one: arrays in input order -> arrays."""

    model: ov.Model
    torch: Callable[..., list[Array]] | None = None


def _convert(module: Any, inputs: dict[str, tuple[Any, list[int]]], outputs: list[str]) -> Built:
    """Converts a torch module; `inputs` maps a name to (example tensor, shape with -1 where dynamic)."""
    import torch

    module.eval()
    examples = tuple(example for example, _ in inputs.values())
    types = {torch.float32: ov.Type.f32, torch.int64: ov.Type.i64}
    specs = [(ov.PartialShape(shape), types[example.dtype]) for example, shape in inputs.values()]
    model = ov.convert_model(module, example_input=examples, input=specs)
    for port, name in [*zip(model.inputs, inputs), *zip(model.outputs, outputs)]:
        port.get_tensor().set_names({name})

    def reference(*arrays: Array) -> list[Array]:
        with torch.no_grad():
            result = module(*(torch.from_numpy(a) for a in arrays))
        return [t.numpy() for t in (result if isinstance(result, tuple) else (result,))]

    return Built(model, reference)


def bilstm(
    vocabulary: int = 61,
    features: int = 20,
    hidden: int = 24,
    layers: int = 2,
    shape: tuple[int, int] = (-1, -1),
) -> Built:
    """A bidirectional LSTM tagger over packed sequences: tokens [batch, time], lengths [batch]."""
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
    return _convert(Tagger(), inputs, ["tags", "last"])


def gru(features: int = 20, hidden: int = 24, layers: int = 2, shape: tuple[int, int] = (-1, -1)) -> Built:
    """A GRU: x [batch, time, features], h [layers, batch, hidden] -> y, h_out."""
    import torch

    torch.manual_seed(4)
    batch, time = (size if size > 0 else 5 for size in shape)
    inputs = {
        "x": (torch.randn(batch, time, features), [*shape, features]),
        "h": (torch.randn(layers, batch, hidden), [layers, shape[0], hidden]),
    }
    return _convert(torch.nn.GRU(features, hidden, layers, batch_first=True), inputs, ["y", "h_out"])


def _perturbed(module: Any) -> Any:
    """Makes biases and norm weights random: at their initial zeros and ones conversion drops the layers."""
    import torch

    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return module.eval()


def _exported(module: Any, loader: str, **options: Any) -> ov.Model:
    """What optimum-intel makes of a transformers model saved to disk."""
    import optimum.intel

    with tempfile.TemporaryDirectory() as folder:
        module.save_pretrained(folder)
        wrapper = getattr(optimum.intel, loader)
        # Models read from the folder keep its weights mapped: a clone outlives it.
        return wrapper.from_pretrained(folder, export=True, compile=False, **options).model.clone()


def bert(shape: tuple[int, int] = (-1, -1), **config: int) -> Built:
    """A BERT encoder: input_ids, attention_mask, token_type_ids [batch, time] -> last_hidden_state."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(5)
    module = _perturbed(BertModel(BertConfig(**config), add_pooling_layer=False))
    model = _exported(module, "OVModelForFeatureExtraction")
    model.reshape({port: ov.PartialShape([*shape]) for port in model.inputs})

    def reference(ids: Array, mask: Array, types: Array) -> list[Array]:
        with torch.no_grad():
            return [module(*(torch.from_numpy(a) for a in (ids, mask, types))).last_hidden_state.numpy()]

    return Built(model, reference)


def _decoder(module: Any) -> Built:
    import torch

    _perturbed(module)

    def continuation(prompt: Array, steps: Array) -> list[Array]:
        ids = torch.from_numpy(prompt)
        options = dict(do_sample=False, max_new_tokens=int(steps), min_new_tokens=int(steps), pad_token_id=0)
        tokens = module.generate(ids, attention_mask=torch.ones_like(ids), eos_token_id=None, **options)
        return [tokens[:, prompt.shape[1] :].numpy()]

    return Built(_exported(module, "OVModelForCausalLM", stateful=True), continuation)


def gpt2(**config: Any) -> Built:
    """A stateful GPT-2 decoder; its torch function is greedy decoding of (prompt, steps)."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(8)
    return _decoder(GPT2LMHeadModel(GPT2Config(bos_token_id=1, eos_token_id=2, **config)))


def llama(**config: Any) -> Built:
    """A stateful Llama decoder with grouped queries and rotary positions; torch function as in `gpt2`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    return _decoder(LlamaForCausalLM(LlamaConfig(**config)))


def from_ir(ir: tuple[bytes, bytes]) -> Built:
    """A model from XML and weights."""
    xml, weights = ir
    return Built(ov.Core().read_model(model=xml, weights=weights))
