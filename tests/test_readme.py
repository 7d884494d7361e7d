"""Generated tables in the READMEs are up to date, and the commands and extras that they name exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from ovgpu import cli
from tests.register import TABLE, TABLES, printed

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", TABLES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_are_up_to_date(page: Path) -> None:
    found = TABLE.search(page.read_text())
    assert found and found[2] == printed(TABLES[page]), "`python -m tests.register` updates the table"


def test_links_lead_to_files() -> None:
    """Relative links of all READMEs lead to files."""
    for page in (
        ROOT / "README.md",
        *(
            path
            for top in ("ovgpu", "cuda_kernels", "tests", "bench", ".github")
            for path in (ROOT / top).rglob("*.md")
            if "results" not in path.parts
        ),
    ):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_the_extras_it_names_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {name for group in re.findall(r"\[([a-z0-9,]+)\]\"", README) for name in group.split(",")}
    assert named and named <= set(extras)


def test_the_commands_it_names_exist(capsys: pytest.CaptureFixture[str]) -> None:
    for command in sorted(set(re.findall(r"^ovgpu (\w+)", README, re.MULTILINE))):
        with pytest.raises(SystemExit) as stopped:
            cli.main([command, "--help"])
        assert stopped.value.code == 0
