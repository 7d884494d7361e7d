"""Triton Inference Server itself, from the wheel nvidia-pytriton: it needs no container and no card.

pip install --no-deps --target FOLDER nvidia-pytriton==0.7.0
OVGPU_TRITON=FOLDER pytest tests/integrations/triton
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import distributions
from pathlib import Path
from socket import create_server
from typing import Any

import tritonclient.grpc as grpc_client
from tritonclient.utils import InferenceServerException

VARIABLE = "OVGPU_TRITON"
SECONDS = 120.0  # to start
BACKEND = "pytriton/tritonserver/backends/python"
STUB = (
    f"pytriton/tritonserver/python_backend_stubs/{sys.version_info.major}.{sys.version_info.minor}/"
    f"triton_python_backend_stub"
)


def missing() -> str:
    """Return the reason for which the server cannot run here; empty if it can."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return f"{VARIABLE} does not name the folder of nvidia-pytriton"
    if not Path(folder, STUB).exists():
        return f"nvidia-pytriton has no {STUB}"
    linked = subprocess.run(["ldd", Path(folder, STUB)], capture_output=True, text=True, check=False).stdout
    return next((line.strip() for line in linked.splitlines() if "not found" in line), "")


def wheel_version() -> str:
    """Return the version of nvidia-pytriton in the folder."""
    return next(iter(distributions(name="nvidia-pytriton", path=[os.environ[VARIABLE]]))).version


@contextmanager
def triton_server(repository: Path, scratch: Path, *options: str) -> Iterator[tuple[str, str]]:
    """Serve a model repository with Triton while the block runs, and yield its addresses: of HTTP, and of gRPC.

    ``options`` are further ones of the command.

    Raises: RuntimeError with the log if the server does not start or a model is not loaded.
    """
    folder, backend = Path(os.environ[VARIABLE]), scratch / "backends/python"
    backend.mkdir(parents=True)
    for file in (f"{BACKEND}/libtriton_python.so", f"{BACKEND}/triton_python_backend_utils.py", STUB):
        shutil.copy(folder / file, backend)
    ports = free_port(), free_port()
    http, grpc = (f"127.0.0.1:{port}" for port in ports)
    command = [
        folder / "pytriton/tritonserver/bin/tritonserver",
        f"--model-repository={repository}",
        f"--backend-directory={backend.parent}",
        "--allow-metrics=false",
        "--exit-timeout-secs=10",
        "--http-address=127.0.0.1",
        f"--http-port={ports[0]}",
        "--grpc-address=127.0.0.1",
        f"--grpc-port={ports[1]}",
        *options,
    ]
    try:
        process = _started(command, scratch, grpc)
    except RuntimeError as error:
        if "lock_exception" not in str(error):
            raise
        process = _started(command, scratch, grpc)  # on a busy machine, Triton may end like this while models load
    try:
        yield http, grpc
    finally:
        _stop(process)


def _started(command: list[Any], scratch: Path, address: str) -> subprocess.Popen[bytes]:
    """Start the server. Raise RuntimeError with its log if it is not ready in time."""
    log = scratch / "server.log"
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(Path(os.environ[VARIABLE], "nvidia_pytriton.libs")),
        # Processes of models have the packages of the first python3.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=scratch, env=environment, stdout=output, stderr=output)
    ends = time.monotonic() + SECONDS
    with grpc_client.InferenceServerClient(address) as client:
        while process.poll() is None and time.monotonic() < ends:
            with suppress(InferenceServerException):
                if client.is_server_ready():
                    return process
            time.sleep(0.1)
    _stop(process)
    raise RuntimeError(log.read_text(errors="replace"))


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    finally:
        process.kill()


def free_port() -> int:
    with create_server(("127.0.0.1", 0)) as server:
        number: int = server.getsockname()[1]
        return number
