"""Health of a server whose models cannot be loaded."""

from __future__ import annotations

import http.client
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ovgpu.errors import Error
from tests.harness.servers.serving import INTERFACES, SECONDS, Serving, fails, serving, write
from tests.serve.test_models import adding, counting, until, version
from tests.serve.test_stop import ROOT

X = np.ones((1, 4), np.float32)


def write_broken(folder: Path, name: str = "bad", number: int = 1) -> None:
    target = folder / name / str(number)
    target.mkdir(parents=True, exist_ok=True)
    (target / "model.xml").write_text("<net")


def ready(server: Serving) -> bool:
    """Return whether the server is ready by both interfaces. Check that it is live."""
    found = []
    for interface in INTERFACES:
        with server.client(interface) as client:
            assert client.client.is_server_live()
            found.append(client.client.is_server_ready())
    return all(found)


def unready(server: Serving) -> bool:
    """Return whether the server is unready by both interfaces."""
    connection = http.client.HTTPConnection(server.http, timeout=SECONDS)
    connection.request("GET", "/v2/health/ready")
    response = connection.getresponse()
    assert (response.status, response.read()) in ((200, b'{"ready":true}'), (503, b'{"ready":false}'))
    connection.close()
    with server.client("gRPC") as client:
        return response.status == 503 and not client.client.is_server_ready()


def test_a_server_without_its_only_model_does_not_start(tmp_path: Path) -> None:
    write_broken(tmp_path)
    with pytest.raises(Error, match=r"no model could be loaded .*'bad': "), serving(tmp_path):
        pass
    write_broken(tmp_path, "worse")
    with pytest.raises(Error, match=r"'bad': .*'worse': "), serving(tmp_path / "bad" / "1" / ".." / ".."):
        pass
    with pytest.raises(Error, match="no model could be loaded"), serving(tmp_path / "bad" / "1" / "model.xml"):
        pass


def test_the_exit_code(tmp_path: Path) -> None:
    write_broken(tmp_path)
    command = [sys.executable, "-m", "ovgpu", "serve", str(tmp_path), "-d", "CPU", "--port", "0", "--grpc-port", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ovgpu: error: no model could be loaded")
    assert "Traceback" not in done.stderr


def test_sequences_wait_for_a_start_with_models(tmp_path: Path) -> None:
    write(tmp_path / "models", counting(0), "count")
    states = tmp_path / "states"
    with serving(tmp_path / "models", state_dir=states) as server, server.client("gRPC") as client:
        client.infer("count", {"x": X}, sequence_id=1, sequence_start=True)
    write_broken(tmp_path / "models", "count")
    with pytest.raises(Error, match="no model"), serving(tmp_path / "models", state_dir=states):
        pass
    write(tmp_path / "models", counting(0), "count")
    with serving(tmp_path / "models", state_dir=states) as server, server.client("gRPC") as client:
        assert client.infer("count", {"x": X}, sequence_id=1)["y"][0, 0] == 3


@pytest.mark.parametrize("repair", ["write", "load", "unload", "remove"])
def test_a_server_without_one_of_its_models(tmp_path: Path, repair: str) -> None:
    """It is not ready until the model is there, or nobody asks for it. It serves the others."""
    write(tmp_path, adding(1), "add")
    write_broken(tmp_path)
    with serving(tmp_path, poll_seconds=0 if repair == "load" else 0.02) as server:
        assert unready(server)
        for interface in INTERFACES:
            with server.client(interface) as client:
                assert client.client.is_model_ready("add")
                assert not client.client.is_model_ready("bad")
                assert client.infer("add", {"x": X})["y"][0, 0] == 2
                fails("UNAVAILABLE", client.infer, "bad", {"x": X})
        with server.client("REST") as client:
            if repair in ("write", "load"):
                write(tmp_path, adding(4), "bad")
            if repair == "remove":
                shutil.rmtree(tmp_path / "bad")
            elif repair != "write":
                getattr(client.client, f"{repair}_model")("bad")
        until(lambda: ready(server))


def test_models_that_fail_later(tmp_path: Path) -> None:
    write(tmp_path, adding(1), "add")
    with serving(tmp_path, poll_seconds=0.02) as server:
        write_broken(tmp_path, "add", 2)
        until(lambda: "add" in server.server.service.models.failures)
        assert ready(server)  # by the old version
        write_broken(tmp_path)
        until(lambda: unready(server))
        with server.client("gRPC") as client:
            assert client.infer("add", {"x": X})["y"][0, 0] == 2


def test_keeping_on(tmp_path: Path) -> None:
    write_broken(tmp_path)
    with serving(tmp_path, keep_going=True, poll_seconds=0.02) as server:
        assert ready(server)
        with server.client("gRPC") as client:
            fails("UNAVAILABLE", client.infer, "bad", {"x": X})
        write(tmp_path, adding(1), "add")
        until(lambda: version(server, "add"))
        assert ready(server)


def test_models_that_nobody_asks_for(tmp_path: Path) -> None:
    """A repository may be empty at first, and clients may unload all models."""
    with serving(tmp_path, poll_seconds=0.02) as server:
        assert ready(server)
        write(tmp_path, adding(1), "add")
        until(lambda: version(server, "add"))
        with server.client("REST") as client:
            client.client.unload_model("add")
        assert ready(server)
