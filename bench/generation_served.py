"""Text generation for several prompts at a time: ContinuousBatchingPipeline of ovgpu.genai beside openvino_genai's.

    python bench/generation_served.py [--rounds 3] [--peer PYTHON] [--device CPU] [--cache DIR] [--out bench/results]

``--peer`` is the interpreter of an environment with openvino_genai; without it, this one has it. The model is the Llama
decoder of 125M parameters of `tests.models.make`, with f32 weights. Both engines compute in f32, with caches in f32, on
the same cores, and take turns, each in a process of its own (`generation_load.py`). In a closed loop, 1, 4 or 16
prompts run at any time: when one has ended, the next begins. In an open loop, prompts come at random times with a given
rate. Both engines must give the same tokens for some prompts. `ovgpu serve` gets the same loads over OpenAI's protocol
(`tests/harness/servers/text_load.py`).

Two more tables show what limits ovgpu, in processor time: operations in a step of 16 texts, and products beside those
of OpenVINO, which uses oneDNN.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import engines
import generation_load
import numpy as np
import serving

from tests.harness.ir import Net
from tests.harness.servers.text_load import TextLoad, drive, summary

MODEL = "llama_125m"
TOKENIZER = engines.ROOT / "tests" / "genai" / "data" / "tokenizer"
SETTINGS = {"prompt": (32, 256), "new": (16, 48), "vocabulary": 32000}
REQUESTS = {1: 1, 4: 4, 16: 16}  # of a closed loop, by how many run at a time
OPEN_REQUESTS = 12
STEPS, TEXTS, PROMPT = 8, 16, 150  # of the profile
SHAPES = ((768, 768), (768, 2048), (2048, 768))  # of weights [K, N]
ROWS = (1, 4, 16, 256)
WARM_UP, CALLS = 3, 20  # of a product
HEADS = ["Prompts", "tokens per second", "TTFT p50, ms", "TTFT p99, ms", "TPOT p50, ms", "TPOT p99, ms"]
HEADS += ["processor ms per token"]
SERVER = "ovgpu serve"
COLUMNS = ("tokens_per_second", "ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "processor_ms")


def folder_of(model: Path, folder: Path) -> Path:
    """Write the folder of a pipeline into an empty one: the model, with a tokenizer, which tokens do not need."""
    shutil.copytree(TOKENIZER, folder, dirs_exist_ok=True)
    for suffix in ("xml", "bin"):
        (folder / f"openvino_model.{suffix}").symlink_to((model / f"model.{suffix}").resolve())
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 2048, "eos_token_id": 2}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    return folder


def loads(rates: list[float]) -> list[dict[str, Any]]:
    """Return the loads that each engine gets."""
    closed = [{"name": f"{n} at a time", "requests": count, "concurrent": n} for n, count in REQUESTS.items()]
    return closed + [{"name": f"{rate:g} per second", "requests": OPEN_REQUESTS, "rate": rate} for rate in rates]


def run(engine: str, python: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return an engine's tokens and figures, see `generation_load.main`."""
    script = engines.ROOT / "bench" / "generation_load.py"
    given = json.dumps({**SETTINGS, **settings, "engine": engine})
    environment = {key: value for key, value in os.environ.items() if not key.startswith(engines.OVERRIDES)}
    if engine == "ovgpu.genai":
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(engines.ROOT), environment.get("PYTHONPATH"))))
    process = subprocess.run([python, str(script), given], capture_output=True, text=True, check=False, env=environment)
    if process.returncode:
        raise RuntimeError(f"{engine} failed:\n{process.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return found


@dataclass(frozen=True)
class SameTexts(TextLoad):
    """The texts of a load of `generation_load`."""

    drawn: tuple[generation_load.Request, ...] = ()

    def requests(self) -> list[dict[str, Any]]:
        """Return the bodies of the requests."""
        return [self.body(request.tokens[0].tolist(), request.new) for request in self.drawn]

    def due(self) -> list[float]:
        """Return when requests are due."""
        return [request.due for request in self.drawn]


def served(repository: Path, device: str, rates: list[float]) -> dict[str, Any]:
    """Return the figures of `ovgpu serve` for each load, see `generation_load.figures`."""
    found = {}
    with serving.server(repository, "serve", device) as addresses:
        warm_up = generation_load.requests_of(generation_load.CHECKED, SETTINGS, seed=1)
        asyncio.run(drive(addresses["REST"], SameTexts(MODEL, len(warm_up), drawn=tuple(warm_up))))
        for load in loads(rates):
            drawn = generation_load.requests_of(load["requests"], SETTINGS, seed=2, rate=load.get("rate"))
            texts = SameTexts(MODEL, len(drawn), load.get("rate"), load.get("concurrent", 1), drawn=tuple(drawn))
            before = serving.processor_seconds(os.getpid())
            figures = summary(asyncio.run(drive(addresses["REST"], texts)))
            seconds = serving.processor_seconds(os.getpid()) - before
            if figures["errors"]:
                raise SystemExit(f"ovgpu serve failed: {figures['errors']}")
            found[load["name"]] = {name.removesuffix("_ms"): value for name, value in figures.items()} | {
                "processor_ms": 1e3 * seconds / figures["tokens"]
            }
    return found


def profile(folder: Path, device: str) -> dict[str, float]:
    """Return the processor time in ms of a step of `TEXTS` texts with `PROMPT` tokens by operation, and as a whole."""
    import ovgpu as ov
    import ovgpu.genai as genai
    from ovgpu.runtime.executor import Executor

    pipeline = genai.ContinuousBatchingPipeline(folder, genai.SchedulerConfig(), device, generation_load.F32)
    config = genai.GenerationConfig(max_new_tokens=256, ignore_eos=True)
    prompts = np.random.default_rng(0).integers(3, SETTINGS["vocabulary"], (TEXTS, 1, PROMPT))
    handles = [pipeline.add_request(i, ov.Tensor(prompt), config) for i, prompt in enumerate(prompts)]
    while not all(handle.can_read() for handle in handles):
        pipeline.step()
    times = Counter[str]()

    def run_steps(self: Any, steps: Any, recording: Any) -> None:
        for step, calls in zip(steps, recording.calls):
            begin = time.process_time()
            for call in calls:
                call()
            times[step.op.name] += time.process_time() - begin

    original, Executor.run_flat = Executor.run_flat, run_steps  # type: ignore[method-assign]
    begin = time.process_time()
    for _ in range(STEPS):
        pipeline.step()
    times["the whole step"] = time.process_time() - begin
    Executor.run_flat = original  # type: ignore[method-assign]
    return {name: 1e3 * seconds / STEPS for name, seconds in times.most_common()}


def products(engine: str, device: str) -> dict[str, float]:
    """Return the processor time in ms of products [M, K] x [K, N] by weights that are stored as [N, K]."""
    found = {}
    for depth, columns in SHAPES:
        net = Net("product")
        weights = np.random.default_rng(0).standard_normal((columns, depth), np.float32)
        x = net.parameter("f32", (-1, depth), "x")
        net.result(net.layer("MatMul", "opset1", [x, net.const(weights)], {"transpose_a": False, "transpose_b": True}))
        request = engines.compile_model(engine, *net.build(), device=device).create_infer_request()
        for rows in ROWS:
            given = {"x": np.ones((rows, depth), np.float32)}
            found[f"{rows} x {depth} x {columns}"] = _processor_ms(partial(request.infer, given, share_inputs=True))
    return found


def _processor_ms(call: Callable[[], object]) -> float:
    """Return the median milliseconds of processor time of a call."""
    times = list[float]()
    for _ in range(WARM_UP + CALLS):
        begin = time.process_time()
        call()
        times.append(time.process_time() - begin)
    return 1e3 * statistics.median(times[WARM_UP:])


def worker(what: str, *words: str) -> dict[str, Any]:
    """Return figures: ``served REPOSITORY DEVICE RATE...``, ``profile FOLDER DEVICE`` or ``products ENGINE DEVICE``."""
    if what == "served":
        return served(Path(words[0]), words[1], [float(rate) for rate in words[2:]])
    return profile(Path(words[0]), words[1]) if what == "profile" else products(*words)


def main() -> None:
    """Run the command line."""
    parser = engines.parser(__doc__, rounds=3)
    parser.add_argument("--peer", default=sys.executable, help="interpreter with openvino_genai")
    parser.add_argument("--rates", type=float, nargs="*", default=[0.5, 1.0], help="of the open loop, per second")
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(worker(*options.worker)))
        return
    pythons = {"ovgpu.genai": sys.executable, "openvino_genai": options.peer}
    script, runs = "generation_served.py", dict[str, list[dict[str, Any]]]()
    with TemporaryDirectory() as path:
        repository = Path(path) / "models"
        folder = folder_of(engines.ensure(MODEL, options.cache), repository / MODEL / "1")
        properties = ", ".join(f'{name} = "{value}"' for name, value in generation_load.F32.items())
        (repository / MODEL / "ovgpu.toml").write_text(
            f"properties = {{ {properties} }}\nscheduler = {{ enable_prefix_caching = false }}\n"  # as in the pipelines
        )
        settings = {"folder": str(folder), "device": options.device, "loads": loads(options.rates)}
        for _ in range(options.rounds):
            for engine, python in pythons.items():
                runs.setdefault(engine, []).append(run(engine, python, settings))
            runs.setdefault(SERVER, []).append(
                engines.work(script, "served", repository, options.device, *options.rates)
            )
        for ours, theirs in zip(*(runs[engine][0]["tokens"] for engine in pythons)):
            engines.agree("tokens", {"ovgpu.genai": ours, "openvino_genai": theirs})
        steps = engines.work(script, "profile", folder, options.device)
    result: dict[str, Any] = {
        "loads": {},
        "step": steps,
        "peer": runs["openvino_genai"][0]["version"],
        "cores_used": len(os.sched_getaffinity(0)),
        "load_average": os.getloadavg()[0],
    }
    for load in loads(options.rates):
        name = load["name"]
        result["loads"][name] = {
            engine: {column: statistics.median(one[name][column] for one in found) for column in COLUMNS}
            for engine, found in runs.items()
        }
    multiplied = engines.alternate(
        script, ("ovgpu", "openvino"), options.rounds, lambda engine: ("products", engine, options.device)
    )
    result["products"] = engines.medians(multiplied)
    publish(options, result)


def publish(options: argparse.Namespace, result: dict[str, Any]) -> None:
    """Write the results."""
    engines.publish(
        options,
        "generation_served",
        "Texts generated side by side by a Llama decoder of 125M parameters in f32: ovgpu.genai / openvino_genai",
        HEADS,
        [[name, *_row(found, "ovgpu.genai", "openvino_genai")] for name, found in result["loads"].items()],
        result,
        _tables(result),
    )


def _row(found: dict[str, dict[str, float]], one: str, other: str) -> list[str]:
    """Return the figures of a load beside those of another engine."""
    return [_beside(found[one][column], found[other][column]) for column in COLUMNS]


def _beside(ours: float, theirs: float) -> str:
    return f"{ours:.1f} / {theirs:.1f} = {ours / theirs:.2f}"


def _tables(result: dict[str, Any]) -> str:
    """Return the tables of the profile and of the products, and on what all were measured."""
    whole = result["step"]["the whole step"]
    lines = [
        f"openvino_genai {result['peer']}. Each engine had {result['cores_used']} of the cores, and the load average "
        f"of the machine was {result['load_average']:.0f}. If that is above the number of its cores, only ratios and "
        "processor times say something.",
        "",
        "The same loads in streams over OpenAI's protocol: ovgpu serve / ovgpu.genai. In a closed loop, the server has "
        "the next request a moment after the end of another:",
        "",
        f"| {' | '.join(HEADS)} |",
        f"| --- |{' ---: |' * len(COLUMNS)}",
        *(f"| {' | '.join([name, *_row(found, SERVER, 'ovgpu.genai')])} |" for name, found in result["loads"].items()),
        "",
        f"Processor time of ovgpu by operation in a step of {TEXTS} texts with {PROMPT} tokens:",
        "",
        "| Operation | ms | share |",
        "| --- | ---: | ---: |",
    ]
    lines += [f"| {name} | {ms:.1f} | {100 * ms / whole:.0f} % |" for name, ms in result["step"].items() if ms > 0.1]
    lines += [
        "",
        "Processor time of products by weights as they are stored, in ms. Programs of batches have them in panels:",
        "",
        "| M x K x N | ovgpu (OpenBLAS) | OpenVINO (oneDNN) | ratio |",
        "| --- | ---: | ---: | ---: |",
    ]
    ours, theirs = result["products"]["ovgpu"], result["products"]["openvino"]
    lines += [f"| {name} | {ours[name]:.2f} | {ms:.2f} | {ours[name] / ms:.2f} |" for name, ms in theirs.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
