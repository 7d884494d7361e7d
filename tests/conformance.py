"""Fresh random cases of every operation version against OpenVINO.

    python -m tests.conformance                              25 of each, on NumPy
    python -m tests.conformance Softmax TopK-11 --draws 200  of these
    python -m tests.conformance --device NVIDIA --seed 7     on a card; EMULATED is the emulated one

The cases are drawn by the sweeps of the tests. The command prints how many draws of each version agree, and then every
difference with its case, which the same seed draws again. It fails if there is a difference, or if OpenVINO refuses all
draws of a version.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import ModuleType

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from rich.console import Console
from rich.progress import track

from ovgpu.cli._print import console, table
from ovgpu.ops import lookup, registry
from ovgpu.ops.base.op import is_own
from tests.harness import Case, Scenario, cuda, judge
from tests.harness.ir import Variant
from tests.harness.replay import EMULATED
from tests.harness.sweep import VARIANTS, Draws, described, judged

TESTS = Path(__file__).parent
FOLDERS = ("ops", "control_flow", "state")
EVERYWHERE = ("Parameter", "Constant", "Result")  # part of every case
SCENARIO_OPS = ("TensorIterator", "Loop", "If", "ReadValue", "Assign")  # ops that scenarios test
ROUNDS, ROUND = 100, 40  # the most rounds until each version has enough draws, and the draws of a sweep in a round
SPARE = 3  # draws for each one that is judged, since OpenVINO refuses some
LIMITS = settings(
    max_examples=ROUND, database=None, deadline=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck)
)

Name = tuple[str, str]  # an op and its version


@dataclass(frozen=True, eq=False)
class Sweep:
    """A sweep's strategy, and the op versions that it may draw: those of its file's tables, and those drawn so far."""

    name: str
    cases: Draws
    versions: set[Name]

    def round(self, seed: int) -> list[Draw]:
        """Return some draws."""
        found = []

        @hypothesis.seed(seed)
        @LIMITS
        @hypothesis.given(self.cases, VARIANTS)
        def collect(case: Case | Scenario, variant: Variant) -> None:
            found.append(Draw(case, variant, self.name))
            self.versions.update(about(case))

        collect()
        return found


@dataclass(frozen=True, eq=False)
class Draw:
    """A random case, how its shapes are declared, and the sweep that has drawn it."""

    case: Case | Scenario
    variant: Variant
    sweep: str


@dataclass
class Tally:
    """Outcomes of the draws of an op version."""

    passed: int = 0
    refused: int = 0
    failed: list[tuple[Draw, Exception]] = field(default_factory=list)

    @property
    def judged(self) -> int:
        return self.passed + len(self.failed)


def modules(folder: str) -> Iterator[ModuleType]:
    """Yield the test modules in a folder and its subfolders."""
    for file in sorted((TESTS / folder).rglob("test_*.py"), key=lambda file: file.name):
        yield importlib.import_module(".".join(file.relative_to(TESTS.parent).with_suffix("").parts))


def tables(*files: ModuleType) -> Iterator[Case | Scenario]:
    """Yield the judged cases and scenarios of which `check` made tests."""
    for file in files:
        found = {id(test): test.cases for test in vars(file).values() if hasattr(test, "cases")}
        yield from (case for case in chain.from_iterable(found.values()) if case.judged)


def sweeps() -> Iterator[Sweep]:
    """Yield all sweeps, each with the op versions that the tables in its file test."""
    for folder in FOLDERS:
        for module in modules(folder):
            names: set[Name] = set().union(*map(about, tables(module)))
            for name, test in vars(module).items():
                if hasattr(test, "drawn"):
                    yield Sweep(f"{module.__name__}.{name}", test.drawn, set(names))


def own() -> list[Name]:
    """Return the op versions of ovgpu itself; tests may have registered others."""
    return [(cls.name, cls.version) for cls in registry() if is_own(cls)]


def versions(case: Case | Scenario) -> set[Name]:
    """Return the op versions of all layers of a case."""
    layers = (
        set(case.net.layers())
        if isinstance(case, Scenario)
        else {
            (case.op, case.version),
            ("Result", "opset1"),
            *(("Constant" if x.const else "Parameter", "opset1") for x in case.inputs),
        }
    )
    return {(cls.name, cls.version) for layer in layers if (cls := lookup(*layer)) is not None}


def about(case: Case | Scenario) -> set[Name]:
    """Return the op versions that a case tests."""
    found = versions(case)
    return found if isinstance(case, Case) else {name for name in found if name[0] in SCENARIO_OPS}


def draw(wanted: Collection[Name], count: int, seed: int) -> dict[Name, list[Draw]]:
    """Return ``count`` draws of each op version, or as many as all rounds give."""
    found: dict[Name, list[Draw]] = {name: [] for name in wanted}
    every = list(sweeps())
    for number in range(ROUNDS):
        for sweep in every:
            if not sweep.versions or any(len(found[name]) < count for name in sweep.versions & found.keys()):
                for drawn in sweep.round(ROUNDS * seed + number):
                    for name in about(drawn.case) & found.keys():
                        if len(found[name]) < count:
                            found[name].append(drawn)
    return found


def tally(draws: Sequence[Draw], count: int, device: str) -> Tally:
    """Judge draws until ``count`` have been judged."""
    found = Tally()
    for drawn in draws:
        if found.judged == count:
            break
        try:
            judged(drawn.case, drawn.variant, device)
        except judge.Refused:
            found.refused += 1
        except Exception as error:  # any error counts, since OpenVINO has an answer
            found.failed.append((drawn, error))
        else:
            found.passed += 1
    return found


def chosen(names: Sequence[str]) -> list[Name]:
    """Return the op versions of these names, such as TopK or TopK-11; without names all of them."""
    every = own()
    for name in names:
        if not any(name in labels(*each) for each in every):
            raise SystemExit(f"there is no operation {name!r}")
    return [each for each in every if not names or any(name in labels(*each) for name in names)]


def labels(op: str, version: str) -> tuple[str, str]:
    """Return the names of an op version, such as TopK and TopK-11."""
    return op, f"{op}-{version.removeprefix('opset')}"


def report(tallies: dict[Name, Tally], seed: int, device: str) -> bool:
    """Print the table and the differences; return whether there is none, and draws of each version were judged."""
    out = console()
    out.print(
        table(
            "",
            ("operation", "agree", "refused"),
            (
                (labels(*name)[1], f"{each.passed} of {each.judged}", each.refused or "")
                for name, each in tallies.items()
            ),
            right=(1, 2),
            unwrapped=(0,),
        )
    )
    failed = [(name, *failure) for name, each in tallies.items() for failure in each.failed]
    for name, drawn, error in failed:
        out.print(f"[bold red]{labels(*name)[1]}[/], drawn by {drawn.sweep}", soft_wrap=True)
        out.print(
            f"{described(drawn.case, drawn.variant)}\n{type(error).__name__}: {error}\n", markup=False, soft_wrap=True
        )
    counts = [each.judged for each in tallies.values()]
    out.print(
        f"{sum(counts) - len(failed):,} of {sum(counts):,} draws of {len(tallies)} operation versions agree "
        f"({device}, seed {seed})",
        style="bold",
    )
    return not failed and all(counts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__.splitlines()[0])
    parser.add_argument("ops", nargs="*", help="operations, such as Softmax or TopK-11 (default: all)")
    parser.add_argument("--device", default="CPU", help="CPU, NVIDIA[.n] or EMULATED (%(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="default: random")
    parser.add_argument("--draws", type=int, default=25, help="draws of each version (%(default)s)")
    args = parser.parse_args(arguments)
    if find_spec("openvino") is None:
        parser.error("openvino, the judge, is not installed")
    names, progress = chosen(args.ops), Console(stderr=True)
    with cuda.registered("emulator") if args.device == EMULATED else nullcontext():
        draws = draw(names, args.draws * SPARE, args.seed)
        each = track(draws.items(), "judged", console=progress, transient=True, disable=not progress.is_terminal)
        tallies = {name: tally(its_draws, args.draws, args.device) for name, its_draws in each}
    return 0 if report(tallies, args.seed, args.device) else 1


if __name__ == "__main__":
    sys.exit(main())
