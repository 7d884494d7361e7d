"""Time per step of a GPT-2-style decoder, against the same mathematics as a flat NumPy script.

    python bench/decoder.py [--steps 100] [--rounds 5] [--device CPU] [--cache DIR] [--out bench/results]

The decoder has 12 layers of 256, vocabulary 50257, batch 1. Every call has a new cache length, so an engine's work
per shape counts. The flat script reads its weights from the same IR, issues NumPy's calls on prepared arrays with
`out=` wherever a shape is fixed, and orders its cache by beam and grows it by concatenation as the IR does. A perfect
executor of these calls would do the same. OpenVINO's CPU plugin (f32) is timed as well.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import engines
import numpy as np
from lxml import etree
from numpy.typing import NDArray

from tests.harness.models.drive import decoder_inputs

Array = NDArray[np.float32]
MODEL = "gpt2_12x256"
ENGINES = ("numpy", "ovgpu", "openvino")
WARM_UP = 20  # steps of the same sequence, so that every timed length is new
LAYERS, WIDTH, HEADS, VOCABULARY = 12, 256, 8, 50257


class Weights:
    """The constants that feed the named layers of an IR, as aligned arrays."""

    def __init__(self, folder: Path) -> None:
        net = etree.parse(folder / "model.xml").getroot()
        self.layers = {layer.get("id"): layer for layer in net.find("layers")}
        self.ids = {layer.get("name"): id for id, layer in self.layers.items()}
        self.sources: dict[str, list[str]] = {}
        for edge in net.find("edges"):
            self.sources.setdefault(edge.get("to-layer"), []).append(edge.get("from-layer"))
        self.bytes = np.memmap(folder / "model.bin", np.uint8, "r")

    def into(self, name: str) -> Array:
        """Return the f32 constant among the inputs of the layer `name`."""
        for source in self.sources[self.ids[f"__module.{name}"]]:
            data = self.layers[source].find("data")
            if self.layers[source].get("type") == "Const" and data.get("element_type") == "f32":
                start, size = int(data.get("offset")), int(data.get("size"))
                shape = [int(d) for d in data.get("shape").split(",")]
                return self.bytes[start : start + size].copy().view(np.float32).reshape(shape)
        raise KeyError(f"{name} takes no f32 constant")


class FlatDecoder:
    """Decoder in plain NumPy calls: no graph, no dispatch, no decisions at run time."""

    def __init__(self, weights: Weights) -> None:
        self.tokens = weights.into("transformer.wte/aten::embedding/Gather")
        self.positions = weights.into("transformer.wpe/aten::embedding/Gather")

        def dense(name: str) -> tuple[Array, Array]:
            return weights.into(f"{name}/aten::addmm/MatMul").T, weights.into(f"{name}/aten::addmm/Add").ravel()

        def norm(name: str) -> tuple[Array, Array]:
            parts = (
                weights.into(f"{name}/aten::layer_norm/Multiply_1"),
                weights.into(f"{name}/aten::layer_norm/Add"),
            )
            return parts[0].ravel(), parts[1].ravel()

        names = [f"transformer.h.{k}" for k in range(LAYERS)]
        self.blocks = [
            (
                norm(f"{name}.ln_1"), dense(f"{name}.attn.c_attn"), dense(f"{name}.attn.c_proj"),
                norm(f"{name}.ln_2"), dense(f"{name}.mlp.c_fc"), dense(f"{name}.mlp.c_proj"),
            )
            for name in names
        ]  # fmt: skip
        self.last_norm = norm("transformer.ln_f")
        self.keys = [np.empty((1, HEADS, 0, WIDTH // HEADS), np.float32) for _ in names]
        self.values = [np.empty((1, HEADS, 0, WIDTH // HEADS), np.float32) for _ in names]
        self.row, self.square, self.normed, self.added = np.empty((4, 1, WIDTH), np.float32)
        self.qkv = np.empty((1, 3 * WIDTH), np.float32)
        self.wide, self.cubed = np.empty((2, 1, 4 * WIDTH), np.float32)
        self.context = np.empty((1, HEADS, 1, WIDTH // HEADS), np.float32)
        self.mean, self.deviation = np.empty((2, 1, 1), np.float32)
        self.logits = np.empty((1, VOCABULARY), np.float32)

    def norm(self, x: Array, scale: Array, shift: Array) -> Array:
        np.add.reduce(x, axis=-1, keepdims=True, out=self.mean)
        np.divide(self.mean, np.float32(WIDTH), out=self.mean)
        np.subtract(x, self.mean, out=self.normed)
        np.square(self.normed, out=self.square)
        np.add.reduce(self.square, axis=-1, keepdims=True, out=self.deviation)
        np.divide(self.deviation, np.float32(WIDTH), out=self.deviation)
        np.add(self.deviation, np.float32(1e-5), out=self.deviation)
        np.sqrt(self.deviation, out=self.deviation)
        np.divide(self.normed, self.deviation, out=self.normed)
        np.multiply(self.normed, scale, out=self.normed)
        return np.add(self.normed, shift, out=self.normed)

    def attend(self, layer: int, mask: Array, beams: NDArray[Any]) -> Array:
        query, key, value = self.qkv.reshape(3, 1, 1, HEADS, WIDTH // HEADS).transpose(0, 1, 3, 2, 4)
        cached = (np.take(cache[layer], beams, axis=0, mode="clip") for cache in (self.keys, self.values))
        keys, values = (np.concatenate(pair, axis=-2) for pair in zip(cached, (key, value)))
        self.keys[layer], self.values[layer] = keys, values
        scores = np.matmul(query, keys.swapaxes(-1, -2))
        np.multiply(scores, np.float32((WIDTH // HEADS) ** -0.5), out=scores)
        np.add(scores, mask, out=scores)
        np.subtract(scores, np.maximum.reduce(scores, axis=-1, keepdims=True), out=scores)
        np.exp(scores, out=scores)
        np.divide(scores, np.add.reduce(scores, axis=-1, keepdims=True), out=scores)
        np.matmul(scores, values, out=self.context)
        return self.context.reshape(1, WIDTH)  # one position: heads are already side by side

    def gelu(self, x: Array) -> Array:
        np.multiply(x, x, out=self.cubed)
        np.multiply(self.cubed, x, out=self.cubed)
        np.multiply(self.cubed, np.float32(0.044715), out=self.cubed)
        np.add(self.cubed, x, out=self.cubed)
        np.multiply(self.cubed, np.float32(0.7978845608028654), out=self.cubed)
        np.tanh(self.cubed, out=self.cubed)
        np.add(self.cubed, np.float32(1), out=self.cubed)
        np.multiply(self.cubed, x, out=x)
        return np.multiply(x, np.float32(0.5), out=x)

    def __call__(self, inputs: dict[str, Any]) -> Array:
        """Return the logits [1, vocabulary] after one more token."""
        x = self.row
        np.take(self.tokens, inputs["input_ids"][0], axis=0, out=x, mode="clip")
        np.add(x, np.take(self.positions, inputs["position_ids"][0], axis=0), out=x)
        mask = np.where(inputs["attention_mask"][:, None, None, :] != 0, np.float32(0), np.float32(-65504))
        for layer, (norm_1, qkv, out, norm_2, up, down) in enumerate(self.blocks):
            np.matmul(self.norm(x, *norm_1), qkv[0], out=self.qkv)
            np.add(self.qkv, qkv[1], out=self.qkv)
            np.matmul(self.attend(layer, mask, inputs["beam_idx"]), out[0], out=self.added)
            np.add(self.added, out[1], out=self.added)
            np.add(x, self.added, out=x)
            np.matmul(self.norm(x, *norm_2), up[0], out=self.wide)
            np.add(self.wide, up[1], out=self.wide)
            np.matmul(self.gelu(self.wide), down[0], out=self.added)
            np.add(self.added, down[1], out=self.added)
            np.add(x, self.added, out=x)
        return np.matmul(self.norm(x, *self.last_norm), self.tokens.T, out=self.logits)


def stepper(engine: str, folder: Path, device: str) -> Callable[[dict[str, Any]], Array]:
    """Return a function that runs one step from a decoder's inputs and returns the logits."""
    if engine == "numpy":
        return FlatDecoder(Weights(folder))
    request = engines.compile_model(engine, folder / "model.xml", device=device).create_infer_request()
    request.reset_state()

    def step(inputs: dict[str, Any]) -> Array:
        request.start_async(inputs, share_inputs=True)
        request.wait()
        return np.asarray(request.get_tensor("logits").data)

    return step


def worker(engine: str, cache: Path, device: str, steps: int) -> dict[str, Any]:
    """Return milliseconds per step, after `WARM_UP` others: the processor takes about 50 ms to reach its speed."""
    step = stepper(engine, engines.ensure(MODEL, cache), device)
    tokens = np.random.RandomState(1).randint(0, VOCABULARY, (WARM_UP + steps, 1, 1))
    prepared = [decoder_inputs(token, np.ones((1, k + 1), np.int64)) for k, token in enumerate(tokens)]
    for inputs in prepared[:WARM_UP]:
        logits = step(inputs)
    times = []
    for inputs in prepared[WARM_UP:]:
        start = time.perf_counter()
        logits = step(inputs)
        times.append(time.perf_counter() - start)
    return engines.summary(times) | {"mean_ms": 1e3 * statistics.mean(times), "sample": engines.sample(logits)}


def main() -> None:
    """Run the command line."""
    parser = engines.parser(__doc__)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    if options.worker:
        engine, steps, device, cache = options.worker
        print(json.dumps(worker(engine, Path(cache), device, int(steps))))
        return
    engines.ensure(MODEL, options.cache)
    results = engines.alternate(
        "decoder.py",
        ENGINES,
        options.rounds,
        lambda engine: (engine, options.steps, options.device, options.cache),
    )
    engines.agree(MODEL, {engine: runs[0]["sample"] for engine, runs in results.items()})
    figures = engines.medians(results, "ms", "mean_ms")
    heads = {"numpy": "Flat NumPy script", "ovgpu": f"ovgpu {options.device}", "openvino": "OpenVINO f32"}
    base = figures["numpy"]["mean_ms"]
    rows = [
        [heads[engine], f"{f['ms']:.3f}", f"{f['mean_ms']:.3f}", f"{f['mean_ms'] / base:.2f}"]
        for engine, f in figures.items()
    ]
    title = f"GPT-2-style decoder, 12 layers of 256, {options.steps} steps, every cache length new"
    columns = ["Engine", "Median step (ms)", "Mean step (ms)", "Mean, flat = 1"]
    engines.publish(options, "decoder", title, columns, rows, {"steps": options.steps, "engines": figures})


if __name__ == "__main__":
    main()
