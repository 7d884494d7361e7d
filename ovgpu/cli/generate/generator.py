"""Generation of text by a decoder that keeps a state, token by token."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ovgpu.cli._ports import port_names
from ovgpu.genai.batch import fix_batch
from ovgpu.genai.sampling import INPUTS as SAMPLING_INPUTS
from ovgpu.genai.sampling import Array, Sampler, Sampling, add_sampling, checked_token
from ovgpu.model import Model, Output
from ovgpu.passes.keep_last_logits import keep_last_logits

INPUTS = ("input_ids", "attention_mask", "position_ids", "beam_idx", "token_type_ids")
EXPORT = "export it with `optimum-cli export openvino --task text-generation-with-past`, which makes one with state"


def prepare(model: Model, penalties: bool) -> int:
    """Check that a model generates text, and rewrite it in place so that it chooses tokens, see `add_sampling`. Return
    the index of the output with the tokens.

    Raises: ValueError for a model without state, with other inputs than `INPUTS`, or without logits.
    """
    names = port_names(model.inputs)
    if any(name.startswith("past_key_values") for name in names) or not model.states:
        raise ValueError(f"the model has no state, so that it cannot remember the text: {EXPORT}")
    others = sorted(set(names) - set(INPUTS))
    if others:
        raise ValueError(
            f"the model has the input{'s' * (len(others) > 1)} {', '.join(others)}: generate knows {', '.join(INPUTS)}"
        )
    if "input_ids" not in names:
        raise ValueError("the model has no input input_ids")
    outputs = port_names(model.outputs)
    if "logits" not in outputs and len(outputs) > 1:
        raise ValueError(f"the model has no output logits, only {', '.join(outputs)}")
    logits = outputs.index("logits") if "logits" in outputs else 0
    shape = model.outputs[logits].partial_shape
    if shape.rank.is_static and len(shape) != 3:
        raise ValueError(f"output '{outputs[logits]}' has the shape {shape}: logits have [batch, length, vocabulary]")
    fix_batch(model)
    keep_last_logits(model, logits)
    return add_sampling(model, logits, penalties)


@dataclass
class Record:
    """Tokens of a generation, and the seconds that each of them took; those of the first include the prompt.

    ``reason`` says why the generation ended: "end" (a token that ends the text), "length" or, if the caller sets it,
    "context" or "interrupted".
    """

    prompt: int = 0
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    reason: str = ""


class DecoderInputs:
    """Inputs of a decoder for one text, which grows from call to call."""

    def __init__(self, ports: Sequence[Output]) -> None:
        names = port_names(ports)
        self._ports = [(i, names[i], port) for i, port in enumerate(ports) if names[i] not in SAMPLING_INPUTS]
        self._past = 0

    def next(self, tokens: Sequence[int]) -> dict[int, Array]:
        """Return the arrays by input index, for tokens that follow all earlier ones."""
        count = len(tokens)
        begin, self._past = self._past, self._past + count
        arrays: dict[int, Array] = {}
        for index, name, port in self._ports:
            dtype = np.dtype(np.int64) if port.element_type.is_dynamic() else port.element_type.storage
            if name == "input_ids":
                arrays[index] = np.array([tokens], dtype)
            elif name == "attention_mask":
                arrays[index] = np.ones((1, self._past), dtype)
            elif name == "position_ids":  # [3, 1, count] in Qwen-VL, whose three positions of a text are equal
                first = [d.get_length() if d.is_static else 3 for d in port.partial_shape][:-2]
                arrays[index] = np.resize(np.arange(begin, self._past, dtype=dtype), (*first, 1, count))
            else:
                arrays[index] = np.zeros((1,) if name == "beam_idx" else (1, count), dtype)
        return arrays


class Generator:
    """Generator on one request of a compiled model; ``record`` is that of the last generation."""

    def __init__(self, compiled: Any, output: int) -> None:
        """``output`` is the index that `prepare` returned."""
        self.request = compiled.create_infer_request()
        self.record = Record()
        self._ports, self._output = compiled.inputs, output

    def generate(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, limit: int, ends: Collection[int]
    ) -> Iterator[int]:
        """Yield at most ``limit`` tokens that follow a prompt, up to the first one in ``ends``, which is not yielded.

        The record is up to date whenever a token is yielded, and if an exception ends the generation.
        """
        record = self.record = Record(len(prompt))
        self.request.reset_state()
        inputs, sampler, new = DecoderInputs(self._ports), Sampler(self._ports, sampling, seed), prompt
        while len(record.tokens) < limit:
            start = time.perf_counter()
            arrays = inputs.next(new) | sampler.next(generated=bool(record.tokens))
            results = self.request.infer(arrays, share_inputs=True, share_outputs=True)
            token = checked_token(results[self._output])
            record.seconds.append(time.perf_counter() - start)
            record.tokens.append(token)
            if token in ends:
                record.reason = "end"
                return
            new = [token]
            yield token
        record.reason = "length"
