"""Benchmark of ovgpu, and of torch on request, against OpenVINO's CPU plugin (f32) on whole models.

    python bench/models.py [--models NAME ...] [--engines openvino ovgpu torch] [--rounds N] [--device CPU]
                           [--cache DIR] [--out bench/results]

The engines take turns, each measurement in a separate process; a model's figure is the median over the
rounds. A decoder is timed per token, over a fixed number of steps after a prefill, and for a whole prompt. All
engines get the same inputs, and their outputs must agree before a time counts. The models come from
`python -m tests.models.make --large --out DIR`; torch runs the modules that they were made from, eagerly and on the
CPU, decoders with the cache of transformers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import engines
import numpy as np
from numpy.typing import NDArray

from tests.harness.models.drive import Decoder, Decoding, Expected

Array = NDArray[Any]
MODELS = {
    "bert_base_128": "BERT-base, 128 tokens",
    "vit_base": "ViT-B/16, 224 x 224",
    "resnet50": "ResNet-50, 224 x 224",
    "mobilenet_v2_224": "MobileNetV2, 224 x 224",
    "unet_64": "U-Net with time step, 64 x 64, widths of 64 to 256",
    "whisper_tiny_encoder": "Whisper-tiny encoder, 30 s",
    "gpt2_12x256": "GPT-2-style decoder, 12 layers of 256, per token",
    "llama_125m": "Llama decoder, 125M parameters, per token",
    "llama_125m_int8": "Llama decoder, 125M parameters, 8-bit weights, per token",
    "llama_125m_int4": "Llama decoder, 125M parameters, 4-bit weights, per token",
    "gpt2_12x256/prompt": "GPT-2-style decoder, 12 layers of 256, prompt of 128 tokens",
    "llama_125m/prompt": "Llama decoder, 125M parameters, prompt of 128 tokens",
    "tensor_iterator_lstm": "TensorIterator LSTM [1,25,512], 256 units",
    "lstm_sequence_100x512": "LSTMSequence, 100 steps, 512 units",
    "bilstm_100x256": "Bidirectional LSTM, 2 layers, 4 x 100 steps, 256 units",
    "gru_100x512": "GRU, 2 layers, 100 steps, 512 units",
}
ENGINES = {"openvino": "OpenVINO", "ovgpu": "ovgpu", "torch": "torch eager"}
PREFILL, WARM, STEPS = 32, 8, 64
PROMPT = 128
VOCABULARY = 32000  # each decoder has at least so many tokens
SECONDS = 2.0


def worker(engine: str, name: str, cache: Path, device: str) -> dict[str, Any]:
    """Time one model; add a sample of its output for comparison. Return an empty result if torch lacks the model."""
    model, _, part = name.partition("/")
    folder = engines.ensure(model, cache)
    inputs = Expected.load(folder / "expected.npz").calls[0].inputs
    if engine == "torch":
        run, found = _eager(model, inputs), {}
        if run is None:
            return {}
    else:
        start = time.perf_counter()
        compiled = engines.compile_model(engine, folder / "model.xml", device=device)
        found = {"compile_ms": 1e3 * (time.perf_counter() - start)}
        run = _compiled(compiled, inputs)
    if isinstance(run, Decoding):
        return (_prompt(run) if part else _decode(run)) | found
    return engines.measure(run, SECONDS) | found | {"sample": engines.sample(run())}


def _compiled(compiled: Any, inputs: dict[str, Array]) -> Decoding | Callable[[], Array]:
    """Return a decoder, or a function that infers once and returns the first output."""
    if "beam_idx" in inputs:
        return Decoder(compiled)
    request = compiled.create_infer_request()

    def infer() -> Array:
        request.infer(inputs, share_inputs=True, share_outputs=True)
        return np.asarray(request.get_output_tensor(0).data)

    return infer


def _eager(model: str, inputs: dict[str, Array]) -> Decoding | Callable[[], Array] | None:
    """Return the same for the torch module that a model was made from; None if there is none."""
    from tests.harness.models.build._convert import function
    from tests.harness.models.build.decoders import Eager
    from tests.harness.models.catalogue import LARGE

    module = LARGE[model]().module
    if module is None:
        return None
    if "beam_idx" in inputs:
        return Eager(module)
    run = function(module)
    return lambda: run(*inputs.values())[0]


def _tokens(count: int) -> Array:
    return np.random.RandomState(1).randint(0, VOCABULARY, (1, count))


def _prompt(decoder: Decoding) -> dict[str, Any]:
    tokens = _tokens(PROMPT)
    times = engines.measure(lambda: decoder.start(tokens), SECONDS)
    return times | {"sample": engines.sample(decoder.logits)}


def _decode(decoder: Decoding) -> dict[str, Any]:
    tokens = [decoder.start(_tokens(PREFILL))]
    times = []
    for _ in range(WARM + STEPS):
        start = time.perf_counter()
        tokens.append(decoder.step(tokens[-1]))
        times.append(time.perf_counter() - start)
    decoded = np.concatenate(tokens, axis=None).tolist()
    return engines.summary(times[WARM:]) | {"sample": engines.sample(decoder.logits), "tokens": decoded}


def compare(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return one model's figures: medians over the rounds and the ratio to OpenVINO, for each engine that has it."""
    engines.ensure(name.partition("/")[0], options.cache)
    results = engines.alternate(
        "models.py", options.engines, options.rounds, lambda engine: (engine, name, options.cache, options.device)
    )
    results = {engine: runs for engine, runs in results.items() if runs[0]}
    for output in {"sample", "tokens"} & results["openvino"][0].keys():
        engines.agree(name, {engine: runs[0].pop(output) for engine, runs in results.items()})
    row = engines.medians(results)
    for engine, figures in row.items():
        figures["rounds_ms"] = [round(run["ms"], 4) for run in results[engine]]
        figures["ratio"] = figures["ms"] / row["openvino"]["ms"]
    return row


def means(models: dict[str, Any], chosen: list[str]) -> str:
    """Return the geometric means of the ratios as a sentence."""
    shared = [row for row in models.values() if row.keys() == set(chosen)]
    if not shared or len(chosen) == 1:
        return ""
    ratios = {engine: statistics.geometric_mean(row[engine]["ratio"] for row in shared) for engine in chosen[1:]}
    found = ", ".join(f"{ENGINES[engine]} {ratio:.2f}" for engine, ratio in ratios.items())
    return f"Geometric means of the ratios to OpenVINO, over the {len(shared)} models that all engines ran: {found}."


def main() -> None:
    """Run the command line."""
    parser = engines.parser(__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS], metavar="NAME")
    parser.add_argument(
        "--engines",
        nargs="+",
        choices=ENGINES,
        default=["openvino", "ovgpu"],
        help="OpenVINO always runs; torch wants the extra `models`",
    )
    options = parser.parse_args()
    if options.worker:
        engine, name, cache, device = options.worker
        print(json.dumps(worker(engine, name, Path(cache), device)))
        return
    if "torch" in options.engines and not find_spec("torch"):
        parser.error("torch is not installed")
    options.engines = [engine for engine in ENGINES if engine in {"openvino", *options.engines}]
    compilers = [engine for engine in ("ovgpu", "openvino") if engine in options.engines]
    models = {name: compare(name, options) for name in options.models}
    rows = []
    for name, row in models.items():
        cells = [MODELS[name], f"{row['openvino']['ms']:.2f}"]
        for engine in options.engines[1:]:
            cells += [f"{row[engine]['ms']:.2f}", f"{row[engine]['ratio']:.2f}"] if engine in row else ["-", "-"]
        rows.append([*cells, " / ".join(f"{row[engine]['compile_ms']:.0f}" for engine in compilers)])
    device_of = {"ovgpu": options.device, "torch": "CPU"}
    beside = " and ".join(f"{ENGINES[engine]} on {device_of[engine]}" for engine in options.engines[1:])
    title = f"Whole models: {beside} against OpenVINO's CPU plugin in f32"
    heads = [head for engine in options.engines[1:] for head in (f"{ENGINES[engine]} (ms)", "Ratio")]
    columns = ["Model", "OpenVINO (ms)", *heads, f"Compile, {' / '.join(ENGINES[e] for e in compilers)} (ms)"]
    note = means(models, options.engines)
    engines.publish(options, "models", title, columns, rows, {"models": models}, note)


if __name__ == "__main__":
    main()
