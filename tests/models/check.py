"""Comparison of ovgpu with OpenVINO's CPU plugin in f32, for models from make.py. Prints a table.

    python -m tests.models.make --all --out DIR
    python -m tests.models.check --models DIR [NAME ...]

Each model runs its recorded calls on one request, and if it has no state once more with the static shapes of each
call; decoders continue their prompts. The figures are the largest differences, relative to the largest output value.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from rich.console import Console
from rich.progress import track
from rich.table import Table

import ovgpu
from tests.harness.models.drive import (
    DATA,
    OPENVINO_F32,
    Array,
    Call,
    Decoder,
    Expected,
    Greedy,
    defined,
    relative_error,
    replay,
)

Answers = list[tuple[Array, ...]]


@dataclass
class Verdict:
    """Result of one model: largest differences, whether all tokens are equal, seconds, and the fault."""

    dynamic: float | None = None
    static: float | None = None
    tokens: bool | None = None
    seconds: float = 0.0
    wrong: str = ""


def judge(folder: Path) -> Verdict:
    """Run the recorded calls with both libraries and compare; an exception becomes the fault."""
    start, verdict = time.perf_counter(), Verdict()
    expected = Expected.load(folder / "expected.npz")
    try:
        _judge(folder / "model.xml", expected, verdict)
    except Exception as error:
        verdict.wrong = str(error).strip()
    verdict.seconds = time.perf_counter() - start
    if not verdict.wrong and max(verdict.dynamic or 0.0, verdict.static or 0.0) > expected.tolerance:
        verdict.wrong = f"more than {expected.tolerance:.1g}"
    if not verdict.wrong and verdict.tokens is False:
        verdict.wrong = "other tokens"
    return verdict


def _judge(xml: Path, expected: Expected, verdict: Verdict) -> None:
    calls = expected.calls
    if openvino.Core().read_model(xml).get_sinks():
        reference = _compiled(openvino, xml)
        answers = list(replay(reference, calls))
    else:
        answers = _static(openvino, xml, calls)
    own = _compiled(ovgpu, xml)
    verdict.dynamic = _difference(calls, list(replay(own, calls)), answers)
    if expected.greedy:
        verdict.tokens = all(np.array_equal(_greedy(own, run), _greedy(reference, run)) for run in expected.greedy)
    if not own.query_state():
        verdict.static = _difference(calls, _static(ovgpu, xml, calls), answers)


def _compiled(library: Any, xml: Path, call: Call | None = None) -> Any:
    """Compile the model for a library's CPU, reshaped to the shapes of a call if given."""
    core = library.Core()
    model = core.read_model(xml)
    if call is not None:
        model.reshape({name: library.PartialShape([*a.shape]) for name, a in call.inputs.items()})
    return core.compile_model(model, "CPU", OPENVINO_F32 if library is openvino else {})


def _static(library: Any, xml: Path, calls: Sequence[Call]) -> Answers:
    return [next(replay(_compiled(library, xml, call), [call])) for call in calls]


def _difference(calls: Sequence[Call], found: Answers, answers: Answers) -> float:
    worst = 0.0
    for k, (call, actual, outputs) in enumerate(zip(calls, found, answers, strict=True)):
        for i, (a, e) in enumerate(zip(actual, defined(call, outputs), strict=True)):
            if (a.shape, a.dtype) != (e.shape, e.dtype):
                raise ValueError(f"call {k}, output {i}: {a.dtype} {a.shape}, expected {e.dtype} {e.shape}")
            worst = max(worst, relative_error(a, e))
    return worst


def _greedy(compiled: Any, run: Greedy) -> Array:
    return Decoder(compiled, run.context).greedy(run.prompt, run.tokens.shape[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="some of the models only")
    parser.add_argument("--models", type=Path, default=DATA, metavar="DIR", help="where they are")
    options = parser.parse_args()
    folders = sorted(file.parent for file in options.models.glob("*/model.xml"))
    if options.names:
        folders = [folder for folder in folders if folder.name in options.names]
    table = Table("Model", title="ovgpu on NumPy against OpenVINO CPU in f32")
    for column in ("Dynamic", "Static", "Tokens", "Seconds"):
        table.add_column(column, justify="right")
    table.add_column("Verdict")
    console, failed = Console(), 0
    for folder in track(folders, console=Console(stderr=True), transient=True):
        v = judge(folder)
        figures = ["" if x is None else f"{x:.1e}" for x in (v.dynamic, v.static)]
        tokens = "" if v.tokens is None else "equal" if v.tokens else "differ"
        table.add_row(folder.name, *figures, tokens, f"{v.seconds:.1f}", f"[red]{v.wrong}" if v.wrong else "agrees")
        failed += bool(v.wrong)
    console.print(table)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
