"""The guide from other servers: its commands, which run here on free ports."""

from __future__ import annotations

import http.client
import json
import re
import shlex
from contextlib import ExitStack
from pathlib import Path

from ovgpu.cli import main
from tests.harness.servers.serving import SECONDS
from tests.serve.test_stop import ROOT, Process, process

GUIDE = (ROOT / "ovgpu" / "docs" / "pages" / "from" / "servers.md").read_text()


def commands() -> list[list[str]]:
    """Return the words of all commands, without those of pip."""
    lines = "".join(re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)).splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))[0] != "pip"]


def ask(server: Process, words: list[str]) -> bytes:
    """Send the request of a command of curl, and return the body of the answer, which succeeds."""
    *options, url = words[1:]
    given = dict(zip(options[::2], options[1::2], strict=True))
    assert given.keys() <= {"-d", "-X"}
    data = given.get("-d")
    connection = http.client.HTTPConnection(server.address("REST"), timeout=SECONDS)
    path = "/" + url.split("/", 3)[3]
    connection.request(given.get("-X", "GET" if data is None else "POST"), path, data)
    response = connection.getresponse()
    text = response.read()
    connection.close()
    assert response.status == 200, (words, text)
    return text


def test_the_commands_of_the_guide(tmp_path: Path) -> None:
    answers: list[bytes] = []
    with ExitStack() as running:
        for words in commands():
            if words[:2] == ["ovgpu", "demo"]:
                assert words[2:] == ["--save", "models"]
                assert main(["demo", "--device", "CPU", "--save", str(tmp_path / "models")]) == 0
            elif words[:2] == ["ovgpu", "serve"]:
                options = re.sub(r"--(grpc-)?port \d+", "", " ".join(words[3:])).split()
                server = running.enter_context(process(tmp_path / words[2], *options))
            else:
                assert words[0] == "curl"
                answers.append(ask(server, words))
    assert len(answers) == 11
    assert [json.loads(text)["outputs"]["window"] for text in answers[:2]] == [[0, 0, 0, 1], [0, 0, 1, 2]]
    assert json.loads(answers[6])["outputs"][0]["data"] == [0, 0, 0, 1]
