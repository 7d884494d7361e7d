"""Runs a compiled model through recorded calls or decodes greedily, by the API of openvino and ovgpu."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
GREEDY_STEPS = 32
TOLERANCE = 1e-3
DATA = Path(__file__).parent / "data"
OPENVINO_F32 = {
    "INFERENCE_PRECISION_HINT": "f32",
    "EXECUTION_MODE_HINT": "ACCURACY",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    "LP_TRANSFORMS_MODE": "NO",  # 8-bit arithmetic between FakeQuantize layers
}


@dataclass(frozen=True)
class Call:
    """One inference: inputs by tensor name, expected outputs in order, and whether state is reset before.

    NaN among the expected values stands for any finite value.
    """

    inputs: dict[str, Array]
    outputs: tuple[Array, ...] = ()
    reset: bool = False


@dataclass(frozen=True)
class Greedy:
    """A prompt [batch, length] and the tokens [batch, steps] that greedy decoding must continue it with.

    `context` are inputs that stay the same at every step: what an encoder has made.
    """

    prompt: Array
    tokens: Array
    context: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Expected:
    """What a model is asked and must answer, to `tolerance` of the largest value of each output."""

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
    """What a decoder must answer: NaN at padded positions, which attend to nothing, so that values mean nothing."""
    if not {"attention_mask", "beam_idx"} <= set(call.inputs):
        return outputs
    (logits,) = outputs
    padded = call.inputs["attention_mask"][:, -logits.shape[1] :] == 0
    return (np.where(padded[:, :, None], np.float32(np.nan), logits),)


def relative_error(actual: Array, expected: Array) -> float:
    """The largest difference between defined values, in largest values."""
    if not expected.size:
        return 0.0
    error = np.nanmax(np.abs(actual.astype(np.float64) - expected))
    return float(error / max(np.nanmax(np.abs(expected)), np.finfo(np.float32).tiny))


def infer(request: Any, call: Call) -> tuple[Array, ...]:
    """Outputs of one call, copied out of the request."""
    if call.reset:
        request.reset_state()
    request.infer(call.inputs)
    return tuple(np.array(request.get_output_tensor(i).data) for i in range(len(request.model_outputs)))


def replay(compiled: Any, calls: Iterable[Call]) -> Iterator[tuple[Array, ...]]:
    """Outputs of every call in turn, on one request, so that its state carries over."""
    request = compiled.create_infer_request()
    for call in calls:
        yield infer(request, call)


def decoder_inputs(tokens: Array, mask: Array, beam: Array | None = None) -> dict[str, Array]:
    """What a stateful decoder takes; `tokens` [batch, new], `mask` [batch, past + new] with 0 for padding."""
    positions = np.maximum(mask.cumsum(-1) - 1, 0)[:, -tokens.shape[1] :]
    return {
        "input_ids": tokens.astype(np.int64),
        "attention_mask": mask.astype(np.int64),
        "position_ids": positions.astype(np.int64),
        "beam_idx": (np.arange(len(tokens)) if beam is None else beam).astype(np.int32),
    }


class Decoding:
    """Greedy decoding, token by token, as optimum-intel drives it; what runs a step is left to subclasses.

    `context` are inputs that stay the same at every step; `logits` [batch, new, vocabulary] are those of the last.
    """

    logits: Array

    def __init__(self, context: Mapping[str, Array] | None = None) -> None:
        self.context = dict(context or {})
        self.mask = np.ones((1, 0), np.int64)

    def reset(self) -> None:
        """Forgets what has been fed."""
        raise NotImplementedError

    def feed(self, inputs: dict[str, Array]) -> Array:
        """Logits of one more step, from the inputs of a stateful decoder."""
        raise NotImplementedError

    def start(self, prompt: Array) -> Array:
        """Resets the state and feeds the prompt [batch, length]; the next tokens [batch, 1]."""
        self.reset()
        self.mask = np.ones((len(prompt), 0), np.int64)
        return self.step(prompt)

    def step(self, tokens: Array) -> Array:
        """Feeds `tokens` [batch, new]; the most likely tokens after them [batch, 1]."""
        self.mask = np.concatenate([self.mask, np.ones(tokens.shape, np.int64)], axis=1)
        self.logits = self.feed(decoder_inputs(tokens, self.mask) | self.context)
        return np.argmax(self.logits[:, -1:], axis=-1)

    def greedy(self, prompt: Array, steps: int) -> Array:
        """The `steps` tokens after `prompt`, as [batch, steps]."""
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
