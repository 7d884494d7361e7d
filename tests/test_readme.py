"""What the README shows that can be generated is what there is."""
from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from ovgpu import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def section(name: str) -> str:
    found = re.search(rf"<!-- {name}: begin.*?-->\n(.*?)<!-- {name}: end -->", README, re.DOTALL)
    assert found, f"the README has no section {name}"
    return found[1].strip()


def test_the_table_of_operations_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["ops", "--markdown"]) in (0, None)
    assert section("operations") == capsys.readouterr().out.strip(), (
        "put what `ovgpu ops --markdown` prints between the marks in the README")


def test_the_extras_it_names_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {name for group in re.findall(r"\[([a-z0-9,]+)\]\"", README) for name in group.split(",")}
    assert named and named <= set(extras)


def test_the_commands_it_names_exist(capsys: pytest.CaptureFixture[str]) -> None:
    for command in sorted(set(re.findall(r"^ovgpu (\w+)", README, re.MULTILINE))):
        with pytest.raises(SystemExit) as stopped:
            cli.main([command, "--help"])
        assert stopped.value.code == 0
