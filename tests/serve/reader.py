"""Class Reader: it follows a page of the documentation, and runs all that the page shows."""

from __future__ import annotations

import http.client
import re
import shlex
import subprocess
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ovgpu.cli import main
from tests.genai import retrieval_cases
from tests.genai.adapter_cases import write_adapter
from tests.genai.schemas import json_folder
from tests.harness.servers.serving import SECONDS
from tests.serve.test_stop import ROOT, Process, process

PAGES = ROOT / "ovgpu" / "docs" / "pages"
ENCODERS = {"feature-extraction": "encoder", "text-classification": "sigmoid"}  # models of `retrieval_cases` by task


class Reader:
    """Reader who follows a page in the current folder: runs its code and commands in their order, and writes its files.

    Servers run in ``running``, one at a time, on the CPU and on free ports. An export writes a folder of the tests.
    ``text`` is the page, and ``answers`` are the bodies that curl got.
    """

    def __init__(self, page: str, running: ExitStack) -> None:
        self.text = (PAGES / page).read_text(encoding="utf-8")
        self.answers: list[bytes] = []
        self._names: dict[str, Any] = {}
        self._running = running
        self._server: Process | None = None

    def read(self) -> None:
        """Read the page."""
        for kind, text in re.findall(r"^```(\w+)\n(.*?)^```$", self.text, re.DOTALL | re.MULTILINE):
            if kind == "sh":
                for line in text.splitlines():
                    self._command(shlex.split(line, comments=True))
            else:
                {"python": self._code, "toml": self._settings}[kind](text)

    def _command(self, words: list[str]) -> None:
        match words:
            case ["pip", "install", *_]:
                pass
            case ["optimum-cli", "export", "openvino", *options, folder]:
                write_export(options[options.index("--task") + 1], Path(folder))
            case ["mkdir" | "cp", *_]:
                subprocess.run(words, check=True)
            case ["ovgpu", "serve", folder, *options]:
                options = re.sub(r"--(grpc-)?port \d+", "", " ".join(options)).split()
                self._running.close()
                self._server = self._running.enter_context(process(Path(folder).absolute(), *options))
            case ["ovgpu", *arguments]:
                assert main(arguments) == 0
            case ["curl", *options, url]:
                self.answers.append(self._ask(url, dict(zip(options[::2], options[1::2], strict=True))))
            case _:
                raise AssertionError(words)

    def _code(self, text: str) -> None:
        """Run code. That of OpenAI's client runs where the package is installed."""
        if "client" in text:
            if find_spec("openai") is None:
                return
            assert self._server is not None
            text = text.replace("127.0.0.1:8000", self._server.address("REST"))
        exec(text, self._names)

    def _settings(self, text: str) -> None:
        """Write the settings of a model, whose path is in the first line, and have the server read them."""
        file = Path(text.splitlines()[0].removeprefix("# "))
        file.write_text(text, encoding="utf-8")
        self._ask(f"http://server/v2/repository/models/{file.parent.name}/load", {"-d": "{}"})

    def _ask(self, url: str, options: dict[str, str]) -> bytes:
        """Send the request of a command of curl, and return the body of the answer, which succeeds."""
        assert options.keys() <= {"-d", "-X"} and self._server is not None
        data = options.get("-d")
        connection = http.client.HTTPConnection(self._server.address("REST"), timeout=SECONDS)
        path = "/" + url.split("/", 3)[3]
        connection.request(options.get("-X", "GET" if data is None else "POST"), path, data)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        assert response.status == 200, (path, body)
        return body


def write_export(task: str, folder: Path) -> None:
    """Write the folder that `optimum-cli export openvino` writes for a task, with a tiny model."""
    if task == "text-generation-with-past":
        folder.mkdir(parents=True)
        json_folder(folder)
        write_adapter(folder.parent, "a").rename(folder.parent / "adapter.safetensors")
    else:
        retrieval_cases.make_folder(ENCODERS[task], folder)
