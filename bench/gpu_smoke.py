"""Smoke test of whole models on a card, each in a separate process; the first thing to run on a new machine.

    python -m bench.gpu_smoke --out FOLDER [--seconds 90] [--jobs 14] [--models NAME ...] [--emulated]

Each of the test suite's models runs its recorded calls several times, so that captured graphs are replayed. Its outputs
in f32, TF32 and f16 are compared with the recorded ones. Decoders also get long prompts, whose logits are compared with
NumPy's ("llama prompts"). For each, ``smoke.json`` has errors relative to the largest value, seconds to the first
answer, launches, and the trace of an exception.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from tests.harness.cuda import bound
from tests.models.drive import DATA, Expected, decoder_inputs, relative_error, replay

DECODERS = ("llama", "gpt2", "qwen3", "mistral", "gemma2")
PROMPTS, LENGTHS = " prompts", (256, 300, 512, 640)  # tokens
PASSES = 4  # passes over the calls of a model; graphs are captured in the second
PRECISIONS = ("f32", "tf32", "f16")
HALF_TOLERANCE = 3e-2  # of f16 and TF32 against f32, relative to the largest value
# Models that amplify roundings, or flip levels of FakeQuantize by them: the emulator has the same errors to two digits.
AMPLIFYING = {"t5_encoder": 5e-2, "t5_decoder": 5e-2, "resnet_int8": 0.15}


def check_prompts(model: str, device: str, precision: str) -> dict[str, Any]:
    """Run prompts of `LENGTHS`, each twice and with a token after it; return the errors and times."""
    import ovgpu

    core, start, errors = ovgpu.Core(), time.perf_counter(), list[float]()
    requests = [core.compile_model(DATA / model / "model.xml", *target).create_infer_request() for target in (
        (device, {"INFERENCE_PRECISION_HINT": precision}), ("CPU",))]
    found: dict[str, Any] = {"compile_s": time.perf_counter() - start}
    for length in LENGTHS * 2:
        tokens = np.random.default_rng(length).integers(0, 90, (1, length + 1))
        mask, outputs = np.ones_like(tokens), list[Any]()
        for request in requests:
            request.reset_state()
            for given in (decoder_inputs(tokens[:, :-1], mask[:, :-1]), decoder_inputs(tokens[:, -1:], mask)):
                outputs.append(np.array(request.infer(given)[0]))
            found.setdefault("first_s", time.perf_counter() - start)
        if not all(np.isfinite(a).all() for a in outputs):
            raise AssertionError(f"{length} tokens: values are not finite")
        errors += map(relative_error, outputs[:2], outputs[2:])
    limit = 1e-4 if precision == "f32" else HALF_TOLERANCE
    plan = requests[0].plan()
    return found | {"error": max(errors), "limit": limit, "right": max(errors) <= limit, "launches": plan.launches,
                    "kernels": plan.kernels}


def check(model: str, device: str, precision: str) -> dict[str, Any]:
    """Run one model; return its errors, times and launches."""
    import ovgpu

    if model.endswith(PROMPTS):
        return check_prompts(model.removesuffix(PROMPTS), device, precision)
    expected = Expected.load(DATA / model / "expected.npz")
    start = time.perf_counter()
    config = {"INFERENCE_PRECISION_HINT": precision}
    compiled = ovgpu.Core().compile_model(DATA / model / "model.xml", device, config)
    found: dict[str, Any] = {"compile_s": time.perf_counter() - start}
    errors = []
    for number in range(PASSES):
        for call, outputs in zip(expected.calls, replay(compiled, expected.calls), strict=True):
            found.setdefault("first_s", time.perf_counter() - start)
            shapes = [(a.shape, a.dtype) for a in outputs], [(a.shape, a.dtype) for a in call.outputs]
            if shapes[0] != shapes[1]:
                raise AssertionError(f"pass {number}: shapes {shapes[0]}, not {shapes[1]}")
            if not all(np.isfinite(a).all() for a in outputs if a.dtype.kind == "f"):
                raise AssertionError(f"pass {number}: values are not finite")
            errors.append(max(map(relative_error, outputs, call.outputs), default=0.0))
    limit = expected.tolerance if precision == "f32" else AMPLIFYING.get(model, HALF_TOLERANCE)
    found |= {"error": max(errors), "limit": limit, "right": max(errors) <= limit}
    request = compiled.create_infer_request()
    for _ in range(3):
        for call in expected.calls[:1]:
            request.infer(call.inputs)
    plan = request.plan()
    return found | {"launches": plan.launches, "kernels": plan.kernels}


def run_one(model: str, options: argparse.Namespace, precision: str, results: Any) -> None:
    """Run `check` in this process and send its result; if the process dies, its standard error has the message."""
    try:
        with bound("emulator") if options.emulated else nullcontext():
            results.send(check(model, options.device, precision))
    except BaseException as error:
        results.send({"raised": f"{type(error).__name__}: {error}"[:1500], "trace": traceback.format_exc()[-3000:]})
    results.close()
    os._exit(0)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run all models in all precisions, several at a time."""
    waiting = [(name, precision) for precision in PRECISIONS for name in options.models]
    context, found, running = multiprocessing.get_context("fork"), dict[str, Any](), list[Any]()
    until = time.perf_counter() + options.seconds
    while waiting or running:
        while waiting and len(running) < options.jobs:
            name, precision = waiting.pop(0)
            receive, send = context.Pipe(duplex=False)
            process = context.Process(target=run_one, args=(name, options, precision, send))
            process.start()
            send.close()
            running.append((f"{name} {precision}", process, receive))
        for item in list(running):
            key, process, receive = item
            late = time.perf_counter() > until
            try:
                done = receive.poll(0.02)
                if done:
                    found[key] = receive.recv()
            except (EOFError, OSError):
                done, found[key] = True, {"raised": "the process died"}
            if done or late:
                process.join(1)
                if process.is_alive():
                    process.kill()
                found.setdefault(key, {"raised": "stopped: too late"})
                running.remove(item)
        if time.perf_counter() > until:
            found |= {f"{name} {precision}": {"raised": "not begun"} for name, precision in waiting}
            waiting.clear()
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "smoke.json").write_text(json.dumps(found, indent=1))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return exit status 1 if a model failed or was wrong."""
    names = sorted(file.parent.name for file in DATA.glob("*/model.xml")) + [name + PROMPTS for name in DECODERS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="*", default=names, choices=names, metavar="NAME")
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--device", default="NVIDIA")
    parser.add_argument("--emulated", action="store_true", help="the tests' emulator for CuPy")
    options = parser.parse_args(arguments)
    found = run(options)
    wrong = {key: row for key, row in found.items() if not row.get("right")}
    for key, row in sorted(found.items(), key=lambda item: item[1].get("right", False)):
        text = "error {error:.1e} of {limit:.0e}, first answer {first_s:.1f} s, {launches} launches, {kernels} kernels"
        message = row.get("raised") or text.format(**row)
        print(f"{'ok   ' if key not in wrong else 'WRONG'} {key}: {message[:300]}")
    print(f"{len(found) - len(wrong)} of {len(found)} right")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
