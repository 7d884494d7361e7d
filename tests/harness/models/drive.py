"""Recorded calls and greedy decoding of a compiled model, by the API that openvino and ovgpu share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovgpu.cli.compare.engines import F32, NO_INT8

Array = NDArray[Any]
GREEDY_STEPS = 32
TOLERANCE = 1e-3
DATA = Path(__file__).parents[2] / "models" / "data"
OPENVINO_F32 = F32 | NO_INT8


@dataclass(frozen=True)
class Call:
    """One inference: inputs by tensor name, expected outputs in order, and whether the state is reset first.

    NaN among the expected values stands for any finite value.
    """

    inputs: dict[str, Array]
    outputs: tuple[Array, ...] = ()
    reset: bool = False


@dataclass(frozen=True)
class Greedy:
    """Prompt [batch, length] and the tokens [batch, steps] that greedy decoding must add to it.

    `context` are inputs that stay the same at every step, such as the output of an encoder.
    """

    prompt: Array
    tokens: Array
    context: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Expected:
    """Recorded calls and prompts of a model. Outputs agree within `tolerance` times the largest value of each."""

    calls: list[Call] = field(default_factory=list)
    greedy: list[Greedy] = field(default_factory=list)
    tolerance: float = TOLERANCE

    def save(self, path: Path) -> None:
        arrays: dict[str, Array] = {}
        if self.tolerance != TOLERANCE:
            arrays["tolerance"] = np.array(self.tolerance)
        for k, call in enumerate(self.calls):
            arrays[f"call/{k:02}/reset"] = np.array(call.reset)
            arrays |= {f"call/{k:02}/in/{name}": a for name, a in call.inputs.items()}
            arrays |= {f"call/{k:02}/out/{i}": a for i, a in enumerate(call.outputs)}
        for k, run in enumerate(self.greedy):
            arrays |= {f"greedy/{k:02}/prompt": run.prompt, f"greedy/{k:02}/tokens": run.tokens}
            arrays |= {f"greedy/{k:02}/in/{name}": a for name, a in run.context.items()}
        np.savez_compressed(path, **arrays)  # type: ignore[arg-type]

    @staticmethod
    def load(path: Path) -> Expected:
        tree: dict[str, dict[str, dict[str, Array]]] = {"call": {}, "greedy": {}}
        tolerance = TOLERANCE
        with np.load(path) as arrays:
            for key in arrays.files:
                if key == "tolerance":
                    tolerance = float(arrays[key])
                    continue
                kind, k, rest = key.split("/", 2)
                tree[kind].setdefault(k, {})[rest] = arrays[key]
        calls = []
        for entry in tree["call"].values():
            outputs = tuple(entry[f"out/{i}"] for i in range(sum(key.startswith("out/") for key in entry)))
            calls.append(Call(_inputs(entry), outputs, bool(entry["reset"])))
        greedy = [Greedy(e["prompt"], e["tokens"], _inputs(e)) for e in tree["greedy"].values()]
        return Expected(calls, greedy, tolerance)


def _inputs(entry: dict[str, Array]) -> dict[str, Array]:
    return {key[3:]: a for key, a in entry.items() if key.startswith("in/")}


def defined(call: Call, outputs: tuple[Array, ...]) -> tuple[Array, ...]:
    """Replace a decoder's outputs at padded positions by NaN: they attend to nothing, and mean nothing."""
    if not {"attention_mask", "beam_idx"} <= set(call.inputs):
        return outputs
    (logits,) = outputs
    padded = call.inputs["attention_mask"][:, -logits.shape[1] :] == 0
    return (np.where(padded[:, :, None], np.float32(np.nan), logits),)


def relative_error(actual: Array, expected: Array) -> float:
    """Return the largest difference between defined values, relative to the largest expected value."""
    if not expected.size:
        return 0.0
    error = np.nanmax(np.abs(actual.astype(np.float64) - expected))
    return float(error / max(np.nanmax(np.abs(expected)), np.finfo(np.float32).tiny))


def infer(request: Any, call: Call) -> tuple[Array, ...]:
    """Run one call, and return copies of its outputs."""
    if call.reset:
        request.reset_state()
    request.infer(call.inputs)
    return tuple(np.array(request.get_output_tensor(i).data) for i in range(len(request.model_outputs)))


def replay(compiled: Any, calls: Iterable[Call]) -> Iterator[tuple[Array, ...]]:
    """Run calls in turn on one request, so that its state carries over, and yield the outputs of each."""
    request = compiled.create_infer_request()
    for call in calls:
        yield infer(request, call)


def decoder_inputs(tokens: Array, mask: Array, beam: Array | None = None) -> dict[str, Array]:
    """Return the inputs of a stateful decoder: `tokens` [batch, new], `mask` [batch, past + new], 0 for padding."""
    positions = np.maximum(mask.cumsum(-1) - 1, 0)[:, -tokens.shape[1] :]
    return {
        "input_ids": tokens.astype(np.int64),
        "attention_mask": mask.astype(np.int64),
        "position_ids": positions.astype(np.int64),
        "beam_idx": (np.arange(len(tokens)) if beam is None else beam).astype(np.int32),
    }


class Decoding:
    """Greedy decoding, token by token, as optimum-intel does it. Subclasses run the steps.

    `context` are inputs that stay the same at every step; `logits` [batch, new, vocabulary] belong to the last step.
    """

    logits: Array

    def __init__(self, context: Mapping[str, Array] | None = None) -> None:
        self.context = dict(context or {})
        self.mask = np.ones((1, 0), np.int64)

    def reset(self) -> None:
        """Reset the state."""
        raise NotImplementedError

    def feed(self, inputs: dict[str, Array]) -> Array:
        """Run one more step on the inputs of a stateful decoder, and return its logits."""
        raise NotImplementedError

    def start(self, prompt: Array) -> Array:
        """Reset the state, feed the prompt [batch, length] and return the next tokens [batch, 1]."""
        self.reset()
        self.mask = np.ones((len(prompt), 0), np.int64)
        return self.step(prompt)

    def step(self, tokens: Array) -> Array:
        """Feed `tokens` [batch, new] and return the most likely next tokens [batch, 1]."""
        self.mask = np.concatenate([self.mask, np.ones(tokens.shape, np.int64)], axis=1)
        self.logits = self.feed(decoder_inputs(tokens, self.mask) | self.context)
        return np.argmax(self.logits[:, -1:], axis=-1)

    def greedy(self, prompt: Array, steps: int) -> Array:
        """Return `steps` tokens after `prompt`, as [batch, steps]."""
        tokens = [self.start(prompt)]
        while len(tokens) < steps:
            tokens.append(self.step(tokens[-1]))
        return np.concatenate(tokens, axis=1)


class Decoder(Decoding):
    """Decoding on one request of a compiled model."""

    def __init__(self, compiled: Any, context: Mapping[str, Array] | None = None) -> None:
        super().__init__(context)
        self.request = compiled.create_infer_request()
        self.names = {port.get_any_name() for port in compiled.inputs}

    def reset(self) -> None:
        self.request.reset_state()

    def feed(self, inputs: dict[str, Array]) -> Array:
        self.request.start_async({k: v for k, v in inputs.items() if k in self.names}, share_inputs=True)
        self.request.wait()
        return np.asarray(self.request.get_tensor("logits").data)
