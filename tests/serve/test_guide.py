"""The guide from other servers, and the tutorial on text: all that they show runs here, with tiny models."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.serve.reader import Reader, write_export
from tests.serve.test_stop import ROOT

pytestmark = pytest.mark.filterwarnings("ignore:AUTO takes CPU")
for package in ("tokenizers", "llguidance"):
    pytest.importorskip(package)


def test_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_export("text-generation-with-past", Path("DIR"))
    with ExitStack() as running:
        reader = Reader("from/servers.md", running)
        reader.read()
    answers = [json.loads(text) if text.startswith(b"{") else text for text in reader.answers]
    assert len(answers) == 13
    assert [answer["outputs"]["window"] for answer in answers[:2]] == [[0, 0, 0, 1], [0, 0, 1, 2]]
    assert answers[6]["usage"]["completion_tokens"] > 0  # drawn at random, so that it may end early
    assert [model["id"] for model in answers[7]["data"]] == ["llama"]
    assert answers[8]["outputs"][0]["data"] == [0, 0, 0, 1]


def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    with ExitStack() as running:
        reader = Reader("tutorials/text.md", running)
        reader.read()
    chat, models, vectors, scores = (json.loads(text) for text in reader.answers[:-1])
    assert chat["usage"]["completion_tokens"] > 0
    assert {model["id"] for model in models["data"]} == {"llama", "vectors", "scores"}
    assert len(vectors["data"]) == len(scores["results"]) == 2
    metrics = reader.answers[-1].decode()
    for name in re.findall(r"`(vllm:\w+|ovgpu_\w+)`", reader.text):
        assert f"# TYPE {name} " in metrics
    board = (ROOT / ".github" / "deploy" / "grafana.json").read_text(encoding="utf-8")
    asked = re.findall(r"(vllm:\w+)\{model_name=~[^}]*, engine=~", board)
    assert len(set(asked)) == 7 and len(asked) == board.count("vllm:")
    for name in asked:
        assert f'{name}{{model_name="llama",engine="1"' in metrics
    printed = capsys.readouterr().out
    assert "tokens of prompt, the first token after" in printed and re.search("^(blue|red)$", printed, re.MULTILINE)
