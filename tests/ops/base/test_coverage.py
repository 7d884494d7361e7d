"""Coverage of the case tables: each op version in the registry has enough cases, and is drawn by a sweep."""

from __future__ import annotations

from collections import Counter

import pytest

from ovgpu.ops import lookup
from tests.conformance import EVERYWHERE, FOLDERS, SCENARIO_OPS, Name, draw, modules, own, tables, versions
from tests.harness import Case

CASES_EACH = 12  # per op version
SCENARIOS_EACH = 60  # per op with bodies or state, all its versions together


def count() -> tuple[dict[str, Counter[Name]], list[str]]:
    """Return the numbers of cases by folder and op version, and the names of cases of unregistered ops."""
    counts, unknown = {}, []
    for folder in FOLDERS:
        counter = counts[folder] = Counter[Name]()
        for case in tables(*modules(folder)):
            counter.update(versions(case))
            if isinstance(case, Case) and lookup(case.op, case.version) is None:
                unknown.append(case.name)
    return counts, unknown


def test_every_op_version_is_judged() -> None:
    counts, unknown = count()
    short = []
    for name, version in own():
        have = counts["ops"][name, version]
        if name not in EVERYWHERE + SCENARIO_OPS and have < CASES_EACH:
            short.append(f"{name} {version}: {have} of {CASES_EACH}")
    short += [f"{name}: no such op in the registry" for name in unknown]
    assert not short, "\n".join(short)


@pytest.mark.long
def test_every_op_version_is_drawn() -> None:
    missing = [" ".join(name) for name, draws in draw(own(), 1, seed=0).items() if not draws]
    assert not missing, f"no sweep has drawn {', '.join(missing)}"


@pytest.mark.parametrize("op", SCENARIO_OPS)
def test_scenarios_of(op: str) -> None:
    counts, _ = count()
    both = counts["control_flow"] + counts["state"]
    have = sum(n for (name, _), n in both.items() if name == op)
    assert have >= SCENARIOS_EACH, f"{op}: {have} of {SCENARIOS_EACH}"
