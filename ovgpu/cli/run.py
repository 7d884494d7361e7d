"""``ovgpu run``: one or several inferences; the state carries over."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from ovgpu._util.atomic_file import check_writable, replacing
from ovgpu.api.core import Core
from ovgpu.cli._classes import best_classes, class_names
from ovgpu.cli._inputs import add_options, build_feed
from ovgpu.cli._ports import model_folder, port_names
from ovgpu.cli._print import MODEL, console, headed, milliseconds, results_table, strings_as_bytes
from ovgpu.ops.base.storage import decode
from ovgpu.runtime.printing import counted
from ovgpu.types import Type


def add_to(commands: Any) -> None:
    """Add the command to the subparsers ``commands``."""
    parser = commands.add_parser("run", help="run a model on given or random inputs")
    parser.add_argument("model", help=MODEL)
    add_options(parser)
    parser.add_argument("-d", "--device", default="AUTO", help="CPU, NVIDIA[.n] or AUTO (default)")
    parser.add_argument("--save", metavar="OUT.npz", help="write the outputs; as NAME.0, NAME.1 ... for several steps")
    parser.add_argument("--top", type=int, default=0, metavar="K", help="show the K best classes of the first output")
    parser.add_argument(
        "--labels",
        default="",
        metavar="FILE",
        help="names of the classes, one per line; by default those in the model or its config.json",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Run the model, print its outputs and latencies, and save the outputs if requested."""
    if args.top < 0:
        raise ValueError(f"--top must not be negative: {args.top}")
    if args.save:  # fail before the work, not after it
        check_writable(Path(args.save))
    core = Core()
    model = core.read_model(args.model)
    labels = class_names(model, model_folder(args.model), args.labels) if args.top else []
    compiled = core.compile_model(model, args.device)
    request = compiled.create_infer_request()
    states = [s.name for s in request.query_state()]
    feed, out = build_feed(args, model, bool(states)), console()
    for note in args.notes:
        out.print(note, markup=False, soft_wrap=True)
    names = port_names(compiled.outputs)
    saved: dict[str, Any] = {}
    latencies = []
    for step in range(args.steps):
        request.infer(feed.next())
        results = [request.get_output_tensor(i).array for i in range(len(names))]
        latencies.append(request.latency)
        if args.save:
            for index, name in enumerate(names):
                saved[name if args.steps == 1 else f"{name}.{step}"] = _portable(results[index].copy())
    device = ", ".join(compiled.get_property("EXECUTION_DEVICES"))
    counts = counted(args.steps, "inference") + (f", {counted(len(states), 'state variable')}" if states else "")
    out.print(headed(model.friendly_name, f" on {device}: {counts}"))
    out.print(
        results_table(
            "Outputs" if args.steps == 1 else "Outputs of the last inference",
            ((name, results[index]) for index, name in enumerate(names)),
        )
    )
    if args.labels and not args.top:
        out.print("--labels has no effect without --top")
    if args.top:
        _print_classes(out, args, labels, names, results)
    if states:
        out.print(results_table("State", ((s.name, s.state.array) for s in request.query_state())))
    out.print(f"latency: {milliseconds(latencies)}")
    if args.save:
        with replacing(Path(args.save)) as (file,):  # NumPy would add ".npz" to a path without it
            np.savez(file, **saved)
        out.print(f"saved {counted(len(saved), 'array')} to {args.save}", soft_wrap=True)


def _print_classes(out: Any, args: argparse.Namespace, labels: list[str], names: list[str], results: list[Any]) -> None:
    """Print the best classes of the first output of real numbers. Raises ValueError if there is none."""
    scores = next((i for i, array in enumerate(results) if Type.of(array.dtype).is_real() and array.size), None)
    if scores is None:
        raise ValueError("--top: no output has scores")
    classes = max((n for n in results[scores].shape if n > 1), default=1)
    if args.labels and len(labels) < classes:
        out.print(f"{args.labels} has {counted(len(labels), 'name')} for {classes} classes", soft_wrap=True)
    out.print(best_classes(names[scores], results[scores], args.top, labels))


def _portable(array: Any) -> Any:
    """Convert an array to a dtype that NumPy itself can write and read.

    Strings become text, or bytes if one is no UTF-8, and lose NULs at the ends. bf16 and f8 become f32, and integers of
    fewer than 8 bits become integers of 8.
    """
    if array.dtype == object:
        encoded = strings_as_bytes(array)
        try:
            return np.char.decode(encoded, "utf-8")
        except UnicodeDecodeError:
            return encoded
    return array if array.dtype.isbuiltin == 1 else decode(array)
