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

from ovgpu.cli._print import console, table
from ovgpu.cli.compare.outputs import COLUMNS, FAULTS, Outcome, outcome_of
from ovgpu.errors import ModelError


def run(args: argparse.Namespace) -> int:
    """Compare all models below a folder, and print a table. Return the exit code: 1 if one differs or is refused."""
    found = print_outcomes(outcomes(Path(args.model), args.device, args.seed, args.tolerance, args.time_limit))
    if not found:
        raise ModelError(f"there is no OpenVINO IR in the folder {args.model} or below it")
    return int(any(outcome.result in FAULTS for outcome in found))


def print_outcomes(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Print a line for each outcome as it comes, then a table. Return them."""
    out, found = console(), []
    for outcome in outcomes:
        found.append(outcome)
        out.print(f"{outcome.name}: {outcome.result}", outcome.text, markup=False, soft_wrap=True)
    out.print(table("Models", COLUMNS, [outcome.cells() for outcome in found], right=(1, 4, 5, 6)))
    out.print(", ".join(f"{count} {result}" for result, count in Counter(o.result for o in found).most_common()))
    return found


def outcomes(
    folder: Path, device: str, seed: int, tolerance: float, time_limit: float, start: Callable[[], None] | None = None
) -> Iterator[Outcome]:
    """Yield the outcome of every model below a folder. Each has its own process, in which ``start`` is called first."""
    for path in sorted(folder.rglob("*.xml")):
        with path.open("rb") as file:
            if b"<net" not in file.read(4096):
                continue
        compare = partial(outcome_of, str(path), device, seed, tolerance)
        yield replace(_in_a_process(compare, time_limit, start), name=str(path.relative_to(folder)))


def _in_a_process(compare: Callable[[], Outcome], time_limit: float, start: Callable[[], None] | None) -> Outcome:
    """Return the outcome that a new process computes; `ENDED` if it ends without one, or takes too long."""
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, compare, start), daemon=True)
    process.start()
    sender.close()
    try:
        if receiver.poll(time_limit):
            found: Outcome = receiver.recv()
            return found
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
