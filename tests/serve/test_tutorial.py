"""The tutorial on text: its code and commands run here in their order, with tiny models in place of real ones."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ovgpu.cli import main
from tests.genai import retrieval_cases
from tests.genai.adapter_cases import write_adapter
from tests.genai.schemas import json_folder
from tests.serve.test_guide import ask
from tests.serve.test_models import until
from tests.serve.test_stop import ROOT, Process, process

for package in ("tokenizers", "llguidance"):
    pytest.importorskip(package)

PAGE = (ROOT / "ovgpu" / "docs" / "pages" / "tutorials" / "text.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


class Reader:
    """Reader who follows the page in the current folder, with the server in ``running``.

    ``answers`` are the bodies that curl got.
    """

    def __init__(self, running: ExitStack) -> None:
        self.answers: list[bytes] = []
        self._names: dict[str, Any] = {}
        self._running = running
        self._server: Process | None = None

    def toml(self, text: str) -> None:
        """Write the settings of a model, whose path is in the first line, and wait until the server has them."""
        file = Path(text.splitlines()[0].removeprefix("# "))
        file.write_text(text, encoding="utf-8")
        until(lambda: f'"id":"{file.parent.name}"' in self._ask("http://server/v1/models").decode())

    def python(self, text: str) -> None:
        """Run code. That of OpenAI's client runs where the package is installed."""
        if "client" in text:
            if find_spec("openai") is None:
                return
            assert self._server is not None
            text = text.replace("127.0.0.1:8000", self._server.address("REST"))
        exec(text, self._names)

    def sh(self, text: str) -> None:
        """Run commands. Instead of an export, a folder of the tests is written; a new server ends the last one."""
        for words in (shlex.split(line) for line in text.splitlines()):
            match words:
                case ["pip", "install", *_]:
                    pass
                case ["optimum-cli", "export", "openvino", *options, folder]:
                    self._export(options[options.index("--task") + 1], Path(folder))
                case ["mkdir" | "cp", *_]:
                    subprocess.run(words, check=True)
                case ["ovgpu", "serve", folder, *options]:
                    self._running.close()
                    self._server = self._running.enter_context(process(Path(folder).absolute(), *options))
                case ["ovgpu", *arguments]:
                    assert main(arguments) == 0
                case ["curl", *_]:
                    self.answers.append(self._ask(*words[1:]))
                case _:
                    raise AssertionError(words)

    def _ask(self, *words: str) -> bytes:
        """Return the answer to a call of curl."""
        assert self._server is not None
        return ask(self._server, ["curl", *words])

    @staticmethod
    def _export(task: str, folder: Path) -> None:
        if task == "text-generation-with-past":
            folder.mkdir(parents=True)
            json_folder(folder)
            write_adapter(Path(), "a").rename("adapter.safetensors")
        else:
            retrieval_cases.make_folder(
                {"feature-extraction": "encoder", "text-classification": "sigmoid"}[task], folder
            )


@pytest.mark.filterwarnings("ignore:AUTO takes CPU")
def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    with ExitStack() as running:
        reader = Reader(running)
        for kind, text in BLOCKS:
            getattr(reader, kind)(text)
    chat, models, vectors, scores, metrics = reader.answers
    assert json.loads(chat)["usage"]["completion_tokens"] > 0
    assert {model["id"] for model in json.loads(models)["data"]} == {"llama", "vectors", "scores"}
    assert len(json.loads(vectors)["data"]) == len(json.loads(scores)["results"]) == 2
    for name in re.findall(r"`(vllm:\w+|ovgpu_\w+)`", PAGE):
        assert f"# TYPE {name} " in metrics.decode()
    printed = capsys.readouterr().out
    assert "tokens of prompt, the first token after" in printed and re.search("^(blue|red)$", printed, re.MULTILINE)
