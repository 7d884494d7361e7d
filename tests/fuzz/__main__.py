"""Run mutated models with ovgpu and OpenVINO in watched processes, until the time is over.

    python -m tests.fuzz --seconds 3600 --seed 0

Each finding is reduced to the smallest model that shows it, printed, and stored as a test that fails (see `kept`).
In the end the mutants are counted by outcome. The exit status is 1 if there is a finding.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track

from tests.harness.replay import DEVICES

from . import findings
from .corpus import Corpus, Subject, corpus
from .mutants import draw, mutated
from .reduction import reduced
from .verdicts import Court, Verdict
from .workers import Limits


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="limit of time (60 without --mutants)")
    parser.add_argument("--mutants", type=int, default=0, help="number of mutants (any, until the time is over)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the mutants (%(default)s)")
    parser.add_argument("--devices", nargs="+", default=list(DEVICES), metavar="DEVICE", help="CPU, EMULATED, NVIDIA")
    parser.add_argument("--keep", type=Path, default=findings.FOLDER, metavar="FOLDER", help="for the findings")
    options = parser.parse_args(arguments)
    if options.seconds == float("inf") and not options.mutants:
        options.seconds = 60.0
    every, court = corpus(), Court(options.devices, Limits())
    try:
        return run(options, every, court)
    finally:
        court.close()


def run(options: argparse.Namespace, every: Corpus, court: Court) -> int:
    """Judge mutants, print the findings, and return the exit status."""
    tally, causes, signatures = Counter[str](), Counter[tuple[str, str]](), set[str]()
    until, console = time.monotonic() + options.seconds, Console(stderr=True)
    numbers = range(1, options.mutants + 1) if options.mutants else itertools.count(1)
    for number in track(numbers, "mutants", console=console, transient=True, disable=not console.is_terminal):
        if time.monotonic() > until:
            break
        base, changes = draw(every, f"{options.seed} {number}")
        mutant = mutated(base, changes, every)
        verdict = court.judge(mutant)
        tally[verdict.kind] += 1
        if verdict.good:
            causes[verdict.kind, verdict.text] += bool(verdict.text)
        elif (signature := f"{base.name.partition('-')[0]} {verdict.signature}") not in signatures:
            signatures.add(signature)
            smallest = reduced(base, changes, every, lambda model, seen=verdict: court.judge(model).resembles(seen))
            path = keep(options.keep, f"{options.seed}-{number}", verdict, smallest)
            print(
                f"{verdict.kind} on {verdict.device}, mutant {number}, {mutant.name}, kept as {path.name}:\n"
                f"{verdict.text.strip()}\n",
                flush=True,
            )
    report(tally, causes)
    return int(bool(signatures))


def keep(folder: Path, number: str, verdict: Verdict, subject: Subject) -> Path:
    """Save a finding; return the path of its model."""
    name = re.sub(r"\W+", "_", subject.name.partition(":")[0])[:40].strip("_")
    return findings.save(folder, f"{name}-{number}", f"{verdict.kind}: {verdict.text}", subject)


def report(tally: Counter[str], causes: Counter[tuple[str, str]]) -> None:
    """Print the counts."""
    print(f"{tally.total():,} mutants")
    for kind, count in tally.most_common():
        print(f"{count:9,}  {kind}")
        for (kind_of_cause, text), part in causes.most_common():
            if kind_of_cause == kind and part:
                print(f"{part:17,}  {text}")


if __name__ == "__main__":
    sys.exit(main())
