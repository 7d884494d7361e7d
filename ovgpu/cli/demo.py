"""``ovgpu demo``: two small models written, read, run and checked; needs no file and no GPU."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from ovgpu.api.core import CompiledModel, Core
from ovgpu.cli._print import console, milliseconds, results_table, table
from ovgpu.cli.demo_models import FEATURES, HIDDEN, STEPS, WINDOW, lstm_loop, lstm_weights, moving_window
from ovgpu.errors import Error
from ovgpu.ir import serialize

SEED = 7
TOLERANCE = 1e-5  # sums of 768 products in f32, in another order


def add_to(commands: Any) -> None:
    parser = commands.add_parser("demo", help="run two small models that need no file: a loop and a state")
    parser.add_argument("--device", default="AUTO", help="CPU, NVIDIA[.n] or AUTO (default)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    out, core = console(), Core()
    with tempfile.TemporaryDirectory(prefix="ovgpu-demo-") as folder:
        _loop(out, core, Path(folder), args.device)
        _state(out, core, Path(folder), args.device)


def _loop(out: Console, core: Core, folder: Path, device: str) -> None:
    """An LSTM in a TensorIterator, compared with a loop in NumPy; h and c are handed on from call to call."""
    compiled, took = _compile(core, lstm_loop(SEED), folder, device)
    _title(out, "1  A loop: TensorIterator with an LSTM cell in its body", compiled, took,
           f"x [1,{STEPS},{FEATURES}], {HIDDEN} units: {STEPS} iterations, which become one LSTM sequence")
    random = np.random.default_rng(SEED)
    h = c = np.zeros((1, HIDDEN), np.float32)
    request = compiled.create_infer_request()
    latencies, largest = [], 0.0
    for _ in range(5):
        x = random.uniform(-1, 1, (1, STEPS, FEATURES)).astype(np.float32)
        expected = lstm_in_numpy(x, h, c)
        results = request.infer({"x": x, "h": h, "c": c})
        latencies.append(request.latency)
        largest = max(largest, *(float(np.abs(results[name] - value).max())
                                 for name, value in zip(("y", "h_last", "c_last"), expected)))
        h, c = results["h_last"], results["c_last"]
    out.print(results_table("Outputs of call 5, with h and c of call 4", (
        (name, results[name]) for name in ("y", "h_last", "c_last"))))
    out.print(request.plan())
    _verdict(out, "every y, h and c of 5 calls against a loop in plain NumPy", largest)
    out.print(f"latency: {milliseconds(latencies)}\n")


def _state(out: Console, core: Core, folder: Path, device: str) -> None:
    """A variable that lives from one inference to the next, until it is reset."""
    compiled, took = _compile(core, moving_window(), folder, device)
    _title(out, "2  A state: ReadValue and Assign keep the last 4 inputs", compiled, took,
           "the variable stays with the request, in two buffers: one is read, the other one written")
    request = compiled.create_infer_request()
    rows, window, largest = [], np.zeros(WINDOW, np.float32), 0.0
    for call in range(1, 9):
        note = ""
        if call == 7:
            request.reset_state()
            window, note = np.zeros(WINDOW, np.float32), "after reset_state()"
        found = request.infer([np.array([call], np.float32)])["window"]
        window = np.append(window[1:], np.float32(call))
        largest = max(largest, float(np.abs(found - window).max()))
        rows.append((call, float(call), " ".join(f"{v:g}" for v in found), f"{request.latency:.3f}", note))
    out.print(table("Calls", ("call", "x", "window", "ms", ""), rows, right=(0, 1, 3)))
    out.print(request.plan())
    _verdict(out, "every window against one kept by NumPy", largest)


def lstm_in_numpy(x: Any, h: Any, c: Any) -> tuple[Any, Any, Any]:
    """What the first model computes, as a plain loop: h of every step, the last h, the last c."""
    w, r, b = lstm_weights(SEED)
    every = []
    for t in range(x.shape[1]):
        f, i, g, o = np.split(x[:, t] @ w.T + h @ r.T + b, 4, axis=1)
        f, i, o = (1 / (1 + np.exp(-v)) for v in (f, i, o))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        every.append(h)
    return np.stack(every, 1), h, c


def _compile(core: Core, model: Any, folder: Path, device: str) -> tuple[CompiledModel, float]:
    path = folder / f"{model.friendly_name}.xml"
    serialize(model, path)
    start = time.perf_counter()
    compiled = core.compile_model(core.read_model(path), device)
    return compiled, (time.perf_counter() - start) * 1000


def _title(out: Console, title: str, compiled: CompiledModel, took: float, what: str) -> None:
    name = compiled.get_property("FULL_DEVICE_NAME")
    devices = ", ".join(compiled.get_property("EXECUTION_DEVICES"))
    out.print(Panel(Text(f"{what}\ndevice {devices} ({name}), read and compiled in {took:.0f} ms"),
                    title=Text(title, "bold"), title_align="left"))


def _verdict(out: Console, what: str, largest: float) -> None:
    if not largest <= TOLERANCE:
        raise Error(f"the demo computed something else than NumPy: {what}, largest difference {largest:.3g}")
    out.print(Text(f"✓ {what}: largest difference {largest:.2g}", "bold green"))
