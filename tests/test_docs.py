"""Pages of the documentation: names, commands, variables and plans in them are those of the code.

    python -m tests.test_docs    # writes the plans into ovgpu/docs/pages/plan.md

`mkdocs build --strict -f ovgpu/docs/mkdocs.yml` checks the rest: it executes the notebooks, and finds broken links.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu import cli
from ovgpu.runtime.printing import as_text
from tests.genai.generation_cases import make_folder
from tests.harness.cuda import bound

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "ovgpu" / "docs" / "pages"
PLAN = PAGES / "plan.md"
PLAN_COLUMNS = 110  # characters
NOTEBOOKS = sorted(PAGES.rglob("*.ipynb"))
MARKED = re.compile(r"(<!-- begin: .*? -->\n)(.*?)(<!-- end -->)", re.DOTALL)

VARIABLE = re.compile(r"\"(OVGPU_\w+)\"")  # in Python, a text that is only this names an environment variable
OF_TESTS = {"OVGPU_NO_SUCH_VARIABLE", "OVGPU_TEST_CLUSTER"}  # which nobody sets
COMMAND = re.compile(r"(?:`|^)(?:\S+=\S+ )?ovgpu (\w+[^`\n#]*)", re.M)

# Objects in the tables of calls, by the names that they have there.
OBJECTS = {
    "core": ov.Core,
    "model": ov.Model,
    "compiled": ov.CompiledModel,
    "request": ov.InferRequest,
    "queue": ov.AsyncInferQueue,
    "tensor": ov.Tensor,
    "variable": ov.VariableState,
    "batcher": ov.SequenceBatcher,
    "sequence": ov.BatchedSequence,
    "context": ov.RemoteContext,
    "port": ov.ConstOutput,
    "ov": ov,
}


def texts() -> dict[Path, str]:
    """Return the pages and the cells of notebooks as Markdown."""
    cells = {path: json.loads(path.read_text(encoding="utf-8"))["cells"] for path in NOTEBOOKS}
    markdown = {path: path.read_text(encoding="utf-8") for path in PAGES.rglob("*.md")}
    return markdown | {path: "\n\n".join("".join(cell["source"]) for cell in cells[path]) for path in cells}


def test_each_public_name_is_on_one_page_of_the_reference() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (PAGES / "reference").glob("*.md"))
    listed = re.findall(r"^::: ovgpu\.(\w+)$", pages, re.MULTILINE)
    assert sorted(listed) == sorted({*ov.__all__, "debug"} - {"__version__"})


def test_environment_variables_are_in_the_table() -> None:
    sources = [
        path
        for top in ("ovgpu", "tests", "bench")
        for path in (ROOT / top).rglob("*")
        if path.suffix in (".py", ".pth") and path != Path(__file__)
    ]
    read = {name for path in sources for name in VARIABLE.findall(path.read_text(encoding="utf-8"))} - OF_TESTS
    listed = re.findall(r"^\| `(OVGPU_\w+)` \|", (PAGES / "settings.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(read)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_have_no_outputs(path: Path) -> None:
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None


def test_links_of_notebooks_lead_to_files() -> None:
    for path in NOTEBOOKS:
        for target in re.findall(r"\]\(([^)#:]+)", texts()[path]):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_calls_on_the_pages_exist() -> None:
    unknown = [
        f"{path.name}: {owner}.{name}"
        for path, text in texts().items()
        for owner, name in re.findall(rf"(?<![\w.])({'|'.join(OBJECTS)})\.([a-z_A-Z]\w*)", code(text))
        if not hasattr(OBJECTS[owner], name) and f"{owner}.{name}" not in ("model.xml", "model.onnx", "model.bin")
    ]
    assert not unknown


def code(markdown: str) -> str:
    """Return the code of a page that is ovgpu's: the last column of tables that compare, and other spans and blocks."""
    lines = [line.rsplit("|", 2)[1] if line.startswith("| ") else line for line in markdown.splitlines()]
    return "\n".join(re.findall(r"```python\n.*?```|`[^`\n]+`", "\n".join(lines), re.DOTALL))


def test_commands_on_the_pages_exist(capsys: pytest.CaptureFixture[str]) -> None:
    commands = {line for text in texts().values() for line in COMMAND.findall(text)}
    assert len(commands) > 10
    for line in commands:
        name, *arguments = line.split()
        for flag in (argument for argument in arguments if argument.startswith("-")):
            assert flag in options(name, capsys), f"ovgpu {name} has no {flag}"


@cache
def options(command: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Return the flags of a command."""
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    return set(re.findall(r"(?<![\w-])--?\w[\w-]*", capsys.readouterr().out))


@pytest.mark.filterwarnings("ignore:AUTO takes CPU")
def test_the_page_about_generation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "DIR").mkdir()
    make_folder("llama", tmp_path / "DIR")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", (PAGES / "from" / "openvino_genai.md").read_text("utf-8"), re.DOTALL)
    for block in blocks:
        exec(block, names)
    assert len(blocks) == 3 and "tokens per second" in capsys.readouterr().out


# ---- the plans of the page about plans


@pytest.mark.emulator
def test_plans_are_those_of_the_tutorial() -> None:
    found = MARKED.search(PLAN.read_text(encoding="utf-8"))
    assert found and found[2] == plans(), "`python -m tests.test_docs` updates the plans"


def plans() -> str:
    """Return the plans of the tutorial's model on the CPU and on an emulated card, as the page shows them."""
    path = lstm()
    on_cpu = plan_of(path, "CPU")
    with bound("emulator"):
        on_card = plan_of(path, "NVIDIA")
    return f"```text\n{on_cpu}\n```\n\nThe same model on a card:\n\n```text\n{on_card}\n```\n"


def lstm() -> Path:
    """Execute the cells of the tutorial that build its model, and return the model's file."""
    names: dict[str, Any] = {}
    for cell in json.loads((PAGES / "tutorials" / "stream.ipynb").read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code" and "model" not in names:
            exec("".join(cell["source"]), names)
    return Path(names["folder"]) / "lstm.xml"


def plan_of(path: Path, device: str) -> str:
    request = ov.Core().compile_model(path, device).create_infer_request()
    for _ in range(3):  # the second one is captured, the third one is a launch of the graph
        request.infer({"frame": np.zeros((1, 8), np.float32)})
    # The last line break of the table and spaces at the ends of lines are not part of the page.
    lines = as_text(request.plan(), PLAN_COLUMNS).splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip())


if __name__ == "__main__":
    text = PLAN.read_text(encoding="utf-8")
    PLAN.write_text(MARKED.sub(lambda found: found[1] + plans() + found[3], text), encoding="utf-8")
