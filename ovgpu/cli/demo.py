"""``ovgpu demo``: two small models that are written, read, run and checked. It needs no file and no GPU."""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from ovgpu.api.core import CompiledModel, Core
from ovgpu.cli._print import console, results_table, table
from ovgpu.cli.demo_models import FEATURES, HIDDEN, STEPS, WINDOW, lstm_loop, lstm_weights, moving_window
from ovgpu.errors import Error
from ovgpu.ir import serialize

SEED = 7
TOLERANCE = 1e-5  # f32 sums of 768 products, in another order


def add_to(commands: Any) -> None:
    """Add the command to the subparsers ``commands``."""
    parser = commands.add_parser("demo", help="run two small models that need no file: a loop and a state")
    parser.add_argument("--device", default="AUTO", help="CPU, NVIDIA[.n] or AUTO (default)")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="keep the models there, for `ovgpu serve FOLDER`")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Run both models. Raises Error if a result differs from NumPy's."""
    out, core = console(), Core()
    with nullcontext(args.save) if args.save else tempfile.TemporaryDirectory(prefix="ovgpu-demo-") as folder:
        _loop(out, core, Path(folder), args.device)
        on_card = _state(out, core, Path(folder), args.device)
    _advice(out, args.save, on_card)


def _loop(out: Console, core: Core, folder: Path, device: str) -> None:
    """Compare an LSTM in a TensorIterator with a loop in NumPy. Each call continues with h and c of the last one."""
    compiled, elapsed = _compile(core, lstm_loop(SEED), folder, device)
    _title(
        out,
        "1  A loop: TensorIterator with an LSTM cell in its body",
        compiled,
        elapsed,
        f"x [1,{STEPS},{FEATURES}], {HIDDEN} units: {STEPS} iterations, which become one LSTM sequence",
    )
    random = np.random.default_rng(SEED)
    h = c = np.zeros((1, HIDDEN), np.float32)
    request = compiled.create_infer_request()
    largest = 0.0
    for _ in range(5):
        x = random.uniform(-1, 1, (1, STEPS, FEATURES)).astype(np.float32)
        expected = lstm_in_numpy(x, h, c)
        results = request.infer({"x": x, "h": h, "c": c})
        largest = max(
            largest,
            *(float(np.abs(results[name] - value).max()) for name, value in zip(("y", "h_last", "c_last"), expected)),
        )
        h, c = results["h_last"], results["c_last"]
    out.print(
        results_table(
            "Outputs of call 5, with h and c of call 4", ((name, results[name]) for name in ("y", "h_last", "c_last"))
        )
    )
    out.print(request.plan())
    _verdict(out, "every y, h and c of 5 calls against a loop in plain NumPy", largest)
    out.print()


def _state(out: Console, core: Core, folder: Path, device: str) -> bool:
    """Run a model with a variable that carries over between inferences until it is reset. Return whether it ran on a
    card."""
    compiled, elapsed = _compile(core, moving_window(), folder, device)
    _title(
        out,
        "2  A state: ReadValue and Assign keep the last 4 inputs",
        compiled,
        elapsed,
        "the variable stays with the request, in two buffers: one is read, the other one written",
    )
    request = compiled.create_infer_request()
    rows, window, largest = [], np.zeros(WINDOW, np.float32), 0.0
    for call in range(1, 9):
        note = ""
        if call == 7:
            request.reset_state()
            window, note = np.zeros(WINDOW, np.float32), "after reset_state()"
        result = request.infer([np.array([call], np.float32)])["window"]
        window = np.append(window[1:], np.float32(call))
        largest = max(largest, float(np.abs(result - window).max()))
        rows.append((call, float(call), " ".join(f"{v:g}" for v in result), note))
    out.print(table("Calls", ("call", "x", "window", ""), rows, right=(0, 1)))
    out.print(request.plan())
    _verdict(out, "every window against one kept by NumPy", largest)
    return bool(compiled.get_property("EXECUTION_DEVICES") != ["CPU"])


def next_commands(saved: Path | None) -> list[tuple[str, str]]:
    """Return three commands to go on with, and what they do. ``saved`` is the folder of the demo's models, if kept."""
    folder = saved or Path("demo")
    first = f"ovgpu serve {folder}" if saved else f"ovgpu demo --save {folder}"
    loop, window = (folder / name / "1" / "model.xml" for name in ("lstm_loop", "moving_window"))
    return [
        (first, "serve both models over REST and gRPC" if saved else "keep both models"),
        (f"ovgpu benchmark {loop} -t 5", "measure the loop for 5 seconds"),
        (f"ovgpu run {window} --steps 4", "run the state for 4 steps; a model of yours runs in the same way"),
    ]


def _advice(out: Console, saved: Path | None, on_card: bool) -> None:
    out.print()
    if not on_card:
        out.print(
            "NumPy computed this. On an NVIDIA card, a call is one launch of a CUDA graph, the host does nothing "
            "between the iterations of the loop, and the state stays in the card's memory.",
            markup=False,
        )
    out.print(Text("Next", "bold"))
    for command, effect in next_commands(saved):
        out.print(f"  {command}\n      {effect}", markup=False, highlight=False, soft_wrap=True)


def lstm_in_numpy(x: Any, h: Any, c: Any) -> tuple[Any, Any, Any]:
    """Compute the first model in a plain loop over x [1, T, D]. Return h of every step, the last h, the last c."""
    w, r, b = lstm_weights(SEED)
    hidden_states = []
    for t in range(x.shape[1]):
        f, i, g, o = np.split(x[:, t] @ w.T + h @ r.T + b, 4, axis=1)
        f, i, o = (1 / (1 + np.exp(-v)) for v in (f, i, o))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        hidden_states.append(h)
    return np.stack(hidden_states, 1), h, c


def _compile(core: Core, model: Any, folder: Path, device: str) -> tuple[CompiledModel, float]:
    path = folder / model.friendly_name / "1" / "model.xml"
    path.parent.mkdir(parents=True, exist_ok=True)
    serialize(model, path)
    start = time.perf_counter()
    exact = {"EXECUTION_MODE_HINT": "ACCURACY"}  # no TF32, so that results equal NumPy's
    compiled = core.compile_model(core.read_model(path), device, exact)
    return compiled, (time.perf_counter() - start) * 1000


def _title(out: Console, title: str, compiled: CompiledModel, elapsed: float, description: str) -> None:
    name = compiled.get_property("FULL_DEVICE_NAME")
    devices = ", ".join(compiled.get_property("EXECUTION_DEVICES"))
    out.print(
        Panel(
            Text(f"{description}\ndevice {devices} ({name}), read and compiled in {elapsed:.0f} ms"),
            title=Text(title, "bold"),
            title_align="left",
        )
    )


def _verdict(out: Console, description: str, largest: float) -> None:
    if not largest <= TOLERANCE:
        raise Error(f"the demo computed something else than NumPy: {description}, largest difference {largest:.3g}")
    out.print(Text(f"✓ {description}: largest difference {largest:.2g}", "bold green"))
