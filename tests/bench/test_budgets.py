"""Hot kernel instances keep their issue budgets: instructions per element, width of loads, no spills.

Instances of files that have changed since `python -m tests.bench.budgets` recorded them are compiled, and one of
some other files; with --long, all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench import budgets
from tests.bench.budgets import Held
from tests.harness.draws import order

pytestmark = pytest.mark.usefixtures("disassembler")

SHARE = 4  # of the files that have not changed, an instance of one in so many is compiled
MARGIN = 1.25  # other versions of NVRTC may need a few more instructions


def faults(found: Held, wanted: Held) -> list[str]:
    """Return how a budget exceeds the recorded one."""
    wrong = [] if found.work == wanted.work else [f"the main loop does {found.work}, not {wanted.work}"]
    if found.per_element > MARGIN * wanted.per_element:
        wrong.append(f"{found.per_element} instructions per element, not {wanted.per_element}")
    if found.load < wanted.load:
        wrong.append(f"loads of {found.load} bytes, not {wanted.load}")
    return wrong + ([f"{found.spills} spills"] if found.spills else [])


@pytest.mark.parametrize("file", sorted(file for file in budgets.table() if file))
def test_instances(file: str, request: pytest.FixtureRequest) -> None:
    rows = budgets.table()[file]
    if budgets.is_unchanged(file) and not request.config.getoption("--long"):
        rows = {} if order(file) % SHARE else dict([next(iter(rows.items()))])
    wrong = {name: faults(budgets.of_instance((file, name)), row) for name, row in rows.items()}
    assert not {name: lines for name, lines in wrong.items() if lines}


@pytest.mark.drawn(2)
@pytest.mark.emulator
@pytest.mark.parametrize("name", ["add_gelu", "add_relu", "swish_multiply", "multiply_add_tanh"])
def test_generated_kernels(name: str, request: pytest.FixtureRequest) -> None:
    """Generated kernels in f16, with --long also in f32."""
    for kind in ("f16", "f32") if request.config.getoption("--long") else ("f16",):
        found = budgets.of_generated(f"{name} {kind}")
        assert faults(found, budgets.table()[""][f"{name} {kind}"]) == []


def test_faults() -> None:
    """A budget that doubles, narrower loads and spills are faults; fewer instructions are none."""
    row = Held("bytes", 2.0, 16, 0)
    assert faults(row, row) == faults(replace(row, per_element=1.0), row) == []
    assert faults(Held("fma", 4.0, 4, 8), row) == [
        "the main loop does fma, not bytes",
        "4.0 instructions per element, not 2.0",
        "loads of 4 bytes, not 16",
        "8 spills",
    ]
