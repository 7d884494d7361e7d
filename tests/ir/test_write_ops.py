"""Writing preserves every attribute of every op, as openvino reads them in the cases of the op tests."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import openvino as ov
import pytest

from ovgpu.ir import read_model, serialize
from tests.conformance import modules
from tests.harness import Case

CORE = ov.Core()
PER_OP = 6  # maximum number of cases of an op version, with different attributes

# Texts of openvino with the same meaning: it ignores its default order of gates.
SAME = {"'weights_format': 'ifco'": "'weights_format': 'fico'"}


def cases() -> dict[str, list[Case]]:
    found: dict[str, dict[str, Case]] = defaultdict(dict)
    for module in modules("ops"):
        for table in vars(module).values():
            for case in table if isinstance(table, list | tuple) else ():
                if isinstance(case, Case) and case.error is None:
                    found[f"{case.op}-{case.version}"].setdefault(str(sorted(case.attrs.items())), case)
    return {name: list(by_attributes.values())[:PER_OP] for name, by_attributes in sorted(found.items())}


CASES = cases()


def described(model: ov.Model) -> list[tuple[str, str, str]]:
    found = []
    for node in model.get_ops():
        text = str(node.get_attributes())
        for shown, meant in SAME.items():
            text = text.replace(shown, meant)
        found.append((node.get_type_name(), node.get_type_info().version_id, text))
    return sorted(found)


@pytest.mark.drawn(12)
@pytest.mark.parametrize("name", CASES)
def test_attributes(name: str, tmp_path: Path) -> None:
    for case in CASES[name]:
        xml, weights = case.net.build()
        try:
            theirs = CORE.read_model(xml, weights)
        except RuntimeError:
            continue  # openvino refuses cases with their own expectation
        serialize(read_model(xml, weights), tmp_path / "m.xml")
        assert described(CORE.read_model(tmp_path / "m.xml")) == described(theirs), case.name


def test_there_are_cases() -> None:
    assert len(CASES) > 100
