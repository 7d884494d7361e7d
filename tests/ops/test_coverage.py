"""Every op version in the registry is judged by enough cases: the tables themselves are counted."""
from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import Case

TESTS = Path(__file__).parents[1]
CASES_EACH = 12  # per op version
SCENARIOS_EACH = 60  # per op with bodies or state, all its versions together
SCENARIO_OPS = ("TensorIterator", "Loop", "If", "ReadValue", "Assign")
EVERYWHERE = ("Parameter", "Constant", "Result")  # part of every case


def tables(folder: str) -> Iterator[Any]:
    """The judged cases and scenarios that `check` made tests of, in all files of a folder."""
    for file in sorted((TESTS / folder).glob("test_*.py")):
        if file != Path(__file__):
            module = importlib.import_module(f"tests.{folder}.{file.stem}")
            found = {id(value): value.cases for value in vars(module).values() if hasattr(value, "cases")}
            yield from (case for cases in found.values() for case in cases if case.judged)


def count() -> tuple[dict[str, Counter[tuple[str, str]]], list[str]]:
    """Per folder the number of judged cases by op version, and the cases of ops that are not registered."""
    from ovgpu.ops import lookup

    counts, unknown = {}, []
    for folder in ("ops", "control_flow", "state"):
        counter = counts[folder] = Counter[tuple[str, str]]()
        for case in tables(folder):
            layers = {(case.op, case.version)} if isinstance(case, Case) else set(case.net.layers())
            found = {(cls.name, cls.version) for layer in layers if (cls := lookup(*layer)) is not None}
            counter.update(found)
            if isinstance(case, Case) and not found:
                unknown.append(case.name)
    return counts, unknown


def test_every_op_version_is_judged() -> None:
    from ovgpu.ops import registry
    from ovgpu.ops._op import is_own

    counts, unknown = count()
    short = []
    for cls in filter(is_own, registry()):  # other tests may have registered some of their own
        have = counts["ops"][cls.name, cls.version]
        if cls.name not in EVERYWHERE + SCENARIO_OPS and have < CASES_EACH:
            short.append(f"{cls.name} {cls.version}: {have} of {CASES_EACH}")
    short += [f"{name}: no such op in the registry" for name in unknown]
    assert not short, "\n".join(short)


@pytest.mark.parametrize("op", SCENARIO_OPS)
def test_scenarios_of(op: str) -> None:
    counts, _ = count()
    both = counts["control_flow"] + counts["state"]
    have = sum(n for (name, _), n in both.items() if name == op)
    assert have >= SCENARIOS_EACH, f"{op}: {have} of {SCENARIOS_EACH}"
