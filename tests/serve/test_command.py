"""The command ``ovgpu serve``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ovgpu.cli import main
from tests.harness.servers.serving import Client
from tests.serve.test_stop import ROOT, process

README = (ROOT / "ovgpu" / "serve" / "README.md").read_text()


def error(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the one line of an error of the command."""
    assert main(["serve", *map(str, arguments)]) == 1
    return capsys.readouterr().err.removeprefix("ovgpu: error: ").strip()


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert error(capsys, tmp_path / "nothing") == f"there is no file or folder {tmp_path / 'nothing'}"
    assert "can be reached from other machines" in error(capsys, tmp_path, "--host", "0.0.0.0")
    assert "need each other" in error(capsys, tmp_path, "--tls-cert", tmp_path / "cert")
    assert "has no address" in error(capsys, tmp_path, "--host", "no.such.host.invalid")


def test_the_packages_it_needs_are_named(tmp_path: Path) -> None:
    code = (
        "import sys\nfor name in ('starlette', 'uvicorn', 'grpc', 'tritonclient', 'prometheus_client'):\n"
        f"    sys.modules[name] = None\nfrom ovgpu.cli import main\nsys.exit(main(['serve', {str(tmp_path)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1
    assert 'pip install ".[serve]" in' in done.stderr


def test_the_package_of_a_store_is_named(tmp_path: Path) -> None:
    arguments = ["serve", str(tmp_path), "--state-store", "redis://localhost"]
    code = f"import sys\nsys.modules['redis'] = None\nfrom ovgpu.cli import main\nsys.exit(main({arguments!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1
    assert 'needs the package redis: pip install ".[store]" in' in done.stderr


def test_the_example_of_the_readme(tmp_path: Path) -> None:
    assert main(["demo", "--device", "CPU", "--save", str(tmp_path)]) == 0
    with process(tmp_path) as server:
        code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
        done = subprocess.run(
            [sys.executable, "-c", code.replace("127.0.0.1:8001", server.address("gRPC"))],
            capture_output=True,
            text=True,
        )
        assert done.stdout.splitlines() == ["[0. 0. 0. 0.]", "[0. 0. 0. 1.]", "[0. 0. 1. 2.]"], done.stderr
        with Client("REST", server.address("REST")) as client:
            assert client.client.is_model_ready("lstm_loop")


def test_the_readme_names_every_file() -> None:
    named = set(re.findall(r"`(\w+\.py)`", README))
    assert named == {path.name for path in (ROOT / "ovgpu" / "serve").glob("*.py")} - {"__init__.py"}
