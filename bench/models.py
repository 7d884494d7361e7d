"""Times ovgpu against OpenVINO's CPU plugin (f32) on whole models.

    python bench/models.py [--models NAME ...] [--rounds N] [--device CPU] [--cache DIR] [--out bench/results]

The engines take turns, each measurement in a process of its own; a model's figure is the median over the
rounds. A decoder is timed per token, over a fixed number of steps after a prefill, and for a whole prompt. Both
engines get the same inputs, and their outputs must agree before a time counts. The models come from
`python -m tests.models.make --large --out DIR`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import engines
import numpy as np

from tests.models.drive import Call, Decoder, Expected

MODELS = {
    "bert_base_128": "BERT-base, 128 tokens",
    "vit_base": "ViT-B/16, 224 x 224",
    "resnet50": "ResNet-50, 224 x 224",
    "mobilenet_v2_224": "MobileNetV2, 224 x 224",
    "unet_64": "U-Net with time step, 64 x 64, widths of 64 to 256",
    "whisper_tiny_encoder": "Whisper-tiny encoder, 30 s",
    "gpt2_12x256": "GPT-2-style decoder, 12 layers of 256, per token",
    "llama_125m": "Llama decoder, 125M parameters, per token",
    "gpt2_12x256/prompt": "GPT-2-style decoder, 12 layers of 256, prompt of 128 tokens",
    "llama_125m/prompt": "Llama decoder, 125M parameters, prompt of 128 tokens",
    "tensor_iterator_lstm": "TensorIterator LSTM [1,25,512], 256 units",
    "lstm_sequence_100x512": "LSTMSequence, 100 steps, 512 units",
    "bilstm_100x256": "Bidirectional LSTM, 2 layers, 4 x 100 steps, 256 units",
    "gru_100x512": "GRU, 2 layers, 100 steps, 512 units",
}
ENGINES = ("openvino", "ovgpu")
PREFILL, WARM, STEPS = 32, 8, 64
PROMPT = 128
SECONDS = 2.0


def worker(engine: str, name: str, cache: Path, device: str) -> dict[str, Any]:
    """Compiles and times one model; also a sample of its output, to compare."""
    model, _, part = name.partition("/")
    folder = engines.ensure(model, cache)
    start = time.perf_counter()
    compiled = engines.compile_model(engine, folder / "model.xml", device=device)
    compile_ms = 1e3 * (time.perf_counter() - start)
    call = Expected.load(folder / "expected.npz").calls[0]
    if part:
        times, sample = _prompt(compiled)
    else:
        times, sample = _decode(compiled) if "beam_idx" in call.inputs else _infer(compiled, call)
    return times | {"compile_ms": compile_ms, "sample": sample}


def _tokens(compiled: Any, count: int) -> Any:
    vocabulary = compiled.output("logits").partial_shape[2].get_length()
    return np.random.RandomState(1).randint(0, vocabulary, (1, count))


def _prompt(compiled: Any) -> tuple[dict[str, float], list[float]]:
    decoder, tokens = Decoder(compiled), _tokens(compiled, PROMPT)
    times = engines.measure(lambda: decoder.start(tokens), SECONDS)
    return times, decoder.logits.ravel()[:: decoder.logits.size // 256].astype(float).tolist()


def _decode(compiled: Any) -> tuple[dict[str, float], list[float]]:
    decoder = Decoder(compiled)
    tokens = [decoder.start(_tokens(compiled, PREFILL))]
    times = []
    for _ in range(WARM + STEPS):
        start = time.perf_counter()
        tokens.append(decoder.step(tokens[-1]))
        times.append(time.perf_counter() - start)
    return engines.summary(times[WARM:]), np.concatenate(tokens, axis=None).tolist()


def _infer(compiled: Any, call: Call) -> tuple[dict[str, float], list[float]]:
    request = compiled.create_infer_request()
    times = engines.measure(lambda: request.infer(call.inputs, share_inputs=True, share_outputs=True), SECONDS)
    output = np.asarray(request.get_output_tensor(0).data).ravel()
    return times, output[:: max(1, output.size // 256)].astype(float).tolist()


def compare(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """One model's figures: per engine the medians over the rounds, and the ratio of times."""
    engines.ensure(name.partition("/")[0], options.cache)
    results = engines.alternate(
        "models.py", ENGINES, options.rounds, lambda engine: (engine, name, options.cache, options.device)
    )
    engines.agree(name, {engine: runs[0]["sample"] for engine, runs in results.items()})
    row: dict[str, Any] = {
        engine: {
            "ms": statistics.median(run["ms"] for run in runs),
            "compile_ms": statistics.median(run["compile_ms"] for run in runs),
            "rounds_ms": [round(run["ms"], 4) for run in runs],
        }
        for engine, runs in results.items()
    }
    return row | {"ratio": row["ovgpu"]["ms"] / row["openvino"]["ms"]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="CPU", help="ovgpu's device (OpenVINO stays on the CPU)")
    parser.add_argument("--cache", type=Path, default=engines.CACHE, help="where the models are")
    parser.add_argument("--out", type=Path, default=engines.ROOT / "bench" / "results")
    parser.add_argument(
        "--worker", nargs=4, metavar=("ENGINE", "MODEL", "CACHE", "DEVICE"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.worker:
        engine, name, cache, device = options.worker
        print(json.dumps(worker(engine, name, Path(cache), device)))
        return
    models = {name: compare(name, options) for name in options.models}
    rows = []
    for name, row in models.items():
        own, peer = row["ovgpu"], row["openvino"]
        compile_ms = f"{own['compile_ms']:.0f} / {peer['compile_ms']:.0f}"
        rows.append(
            [MODELS[name], f"{peer['ms']:.2f}", f"{own['ms']:.2f}", f"{row['ratio']:.2f}", compile_ms]
        )
    title = f"Whole models: ovgpu on {options.device} against OpenVINO's CPU plugin in f32"
    columns = ["Model", "OpenVINO (ms)", "ovgpu (ms)", "Ratio", "Compile, ovgpu / OpenVINO (ms)"]
    result = {"device": options.device, "rounds": options.rounds, "models": models}
    engines.report(options.out, f"models-{options.device.lower()}", title, columns, rows, result)


if __name__ == "__main__":
    main()
