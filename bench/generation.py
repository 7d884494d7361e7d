"""Text generation: times of prefill and decode, and the cost of a long context.

    python bench/generation.py [--rounds 3] [--steps 30] [--device CPU] [--cache DIR] [--out bench/results]

ovgpu and OpenVINO's CPU plugin in f32 take turns, each in a separate process. `Prefill` is one inference over the
prompt, `decode` one over the next token, after a context of the given length. The last column is the additional time of
attention alone over the long context: NumPy's calls on prepared caches, for all layers. As much memory as the model's
weights take is read before them, so that the caches are as cold as in a step.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import engines
import numpy as np

from tests.harness.models.drive import decoder_inputs

MODELS = {"gpt2_12x256": "GPT-2-style decoder, 12 layers of 256", "llama_125m": "Llama decoder, 125M parameters"}
ENGINES = ("ovgpu", "openvino", "attention")
PROMPT, SHORT, LONG = 128, 20, 1000


class Generator:
    """A decoder on one request; `feed` returns seconds."""

    def __init__(self, engine: str, folder: Path, device: str) -> None:
        compiled = engines.compile_model(engine, folder / "model.xml", device=device)
        self.names = {port.get_any_name() for port in compiled.inputs}
        self.request = compiled.create_infer_request()
        self.length = 0

    def reset(self) -> None:
        self.request.reset_state()
        self.length = 0

    def feed(self, count: int) -> float:
        self.length += count
        tokens = np.random.default_rng(self.length).integers(3, 200, (1, count))
        inputs = decoder_inputs(tokens, np.ones((1, self.length), np.int64))
        inputs = {name: value for name, value in inputs.items() if name in self.names}
        start = time.perf_counter()
        self.request.start_async(inputs, share_inputs=True)
        self.request.wait()
        return time.perf_counter() - start

    def behind(self, context: int, steps: int) -> float:
        """Return the median milliseconds per token after a context."""
        self.reset()
        self.feed(context - 5)
        for _ in range(5):
            self.feed(1)
        return 1e3 * statistics.median(self.feed(1) for _ in range(steps))

    def prefill(self, steps: int) -> float:
        """Return the median milliseconds of a prompt."""
        times = []
        for _ in range(max(3, steps // 5)):
            self.reset()
            times.append(self.feed(PROMPT))
        return 1e3 * statistics.median(times[1:])


def attention(folder: Path, steps: int) -> float:
    """Return the milliseconds per token by which attention in all layers takes longer for `LONG` than `SHORT` keys."""
    import ovgpu as ov

    layers = []
    for node in ov.Core().read_model(folder / "model.xml").get_ops():
        if node.get_type_name() == "ScaledDotProductAttention":
            heads, width = (node.sources[0].partial_shape[i].get_length() for i in (1, 3))
            layers.append((heads, width))
    random = np.random.default_rng(0)
    weights = np.ones((folder / "model.bin").stat().st_size // 4, np.float32)

    def took(keys: int) -> float:
        arrays = [
            [random.standard_normal((heads, n, width), np.float32) for n in (1, keys, keys)] for heads, width in layers
        ]
        times = []
        for _ in range(steps):
            weights.max()
            start = time.perf_counter()
            for q, k, v in arrays:
                scores = q @ k.swapaxes(1, 2)
                scores -= scores.max(-1, keepdims=True)
                np.exp(scores, scores)
                np.divide(scores @ v, scores.sum(-1, keepdims=True), q)
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    return 1e3 * (took(LONG) - took(SHORT))


def worker(engine: str, name: str, cache: Path, device: str, steps: int) -> dict[str, float]:
    """Return an engine's figures for a model in milliseconds."""
    folder = engines.ensure(name, cache)
    if engine == "attention":
        return {"growth": attention(folder, steps)}
    generator = Generator(engine, folder, device)
    return {
        "prefill": generator.prefill(steps),
        "short": generator.behind(SHORT, steps),
        "long": generator.behind(LONG, steps),
    }


def main() -> None:
    """Run the command line."""
    parser = engines.parser(__doc__, rounds=3)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    if options.worker:
        engine, name, cache, device, steps = options.worker
        print(json.dumps(worker(engine, name, Path(cache), device, int(steps))))
        return
    rows, found = [], dict[str, Any]()
    for name, title in MODELS.items():
        engines.ensure(name, options.cache)
        words = (name, options.cache, options.device, options.steps)
        runs = engines.alternate("generation.py", ENGINES, options.rounds, lambda engine, words=words: (engine, *words))
        figures = found[name] = engines.medians(runs)
        ours, theirs = figures["ovgpu"], figures["openvino"]
        growth = [f["long"] - f["short"] for f in (ours, theirs)]
        rows.append(
            [
                title,
                *(f"{ours[k]:.2f} / {theirs[k]:.2f} = {ours[k] / theirs[k]:.2f}" for k in ("prefill", "short", "long")),
                f"{growth[0]:.2f} / {growth[1]:.2f}",
                f"{figures['attention']['growth']:.2f}",
            ]
        )
    columns = [
        "Model (ms, ovgpu / OpenVINO)",
        f"Prefill, {PROMPT} tokens",
        f"Decode behind {SHORT}",
        f"Decode behind {LONG}",
        "Growth",
        "Attention alone",
    ]
    title = f"Text generation: ovgpu on {options.device} against OpenVINO's CPU plugin in f32"
    engines.publish(options, "generation", title, columns, rows, {"steps": options.steps, "models": found})


if __name__ == "__main__":
    main()
