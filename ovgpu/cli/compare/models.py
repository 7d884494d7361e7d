"""Comparison of the outputs of all models of a folder with those of OpenVINO's CPU plugin in f32."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from ovgpu.api.core import Core
from ovgpu.cli._print import console, table
from ovgpu.cli.compare.outputs import COLUMNS, FAULTS, Outcome, outcome_of
from ovgpu.errors import ModelError
from ovgpu.ir import TOKENIZERS

TIME_LIMIT = 600.0  # seconds for each model


def run(args: argparse.Namespace) -> int:
    """Compare all models below a folder, and print a table. Return the exit code: 1 if one differs or is refused."""
    folder, limit = Path(args.model), TIME_LIMIT if args.time_limit is None else args.time_limit
    if not limit > 0 or not args.tolerance >= 0:
        raise ValueError("--time-limit must be above 0, and --tolerance at least 0")
    if not files(folder):
        raise ModelError(f"there is no OpenVINO IR in the folder {folder} or below it")
    Core().get_property(args.device, "SUPPORTED_PROPERTIES")  # raises an error if there is no such device
    compared = print_outcomes(outcomes(folder, args.device, args.seed, args.tolerance, limit))
    return int(any(outcome.result in FAULTS for outcome in compared))


def print_outcomes(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Print a line for each outcome as it comes, then a table. Return them."""
    out, printed = console(), []
    for outcome in outcomes:
        printed.append(outcome)
        out.print(f"{outcome.name}: {outcome.result}", outcome.text, markup=False, soft_wrap=True)
    out.print(table("Models", COLUMNS, [outcome.cells() for outcome in printed], right=(1, 4, 5, 6)))
    out.print(", ".join(f"{count} {result}" for result, count in Counter(o.result for o in printed).most_common()))
    return printed


def outcomes(
    folder: Path, device: str, seed: int, tolerance: float, time_limit: float, start: Callable[[], None] | None = None
) -> Iterator[Outcome]:
    """Yield the outcome of every model below a folder. Each has its own process, in which ``start`` is called first."""
    for path in files(folder):
        compare = partial(outcome_of, str(path), device, seed, tolerance)
        yield replace(_in_a_process(compare, time_limit, start), name=str(path.relative_to(folder)))


def files(folder: Path) -> list[Path]:
    """Return the .xml files of IR below a folder, and those that cannot be read; tokenizers only if there is no other.

    Pipes, devices, and links to nothing do not count.
    """
    xml_files = [path for path in sorted(folder.rglob("*.xml")) if path.is_file() and _may_be_ir(path)]
    return [path for path in xml_files if path.name not in TOKENIZERS] or xml_files


def _may_be_ir(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return b"<net" in file.read(4096)
    except OSError:
        return True  # reading the model raises the error


def _in_a_process(compare: Callable[[], Outcome], time_limit: float, start: Callable[[], None] | None) -> Outcome:
    """Return the outcome that a new process computes; `ENDED` if it ends without one, or takes too long."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, compare, start), daemon=True)
    process.start()
    sender.close()
    try:
        if receiver.poll(time_limit):
            outcome: Outcome = receiver.recv()
            return outcome
        return Outcome("", text=f"after {time_limit:g} s")
    except EOFError:
        process.join()
        return Outcome("", text=f"with exit code {process.exitcode}")
    finally:
        process.kill()
        process.join()
        receiver.close()


def _send(sender: Connection, compare: Callable[[], Outcome], start: Callable[[], None] | None) -> None:
    if start is not None:
        start()
    sender.send(compare())
