"""The CUDA backend on the emulated device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ovgpu as ov
from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from tests.emulator import memory
from tests.kernels import gate


@pytest.fixture(scope="module")
def backend(emulated: str) -> Iterator[CudaBackend]:
    """Yield a backend on the emulated device that records kernels. Arrays are made and read on its stream."""
    found = CudaBackend()
    with found.active():
        yield found


@pytest.fixture(scope="module")
def tf32_backend(emulated: str) -> Iterator[CudaBackend]:
    """Yield a backend like `backend`, which may round f32 to TF32."""
    found = CudaBackend(tf32=True)
    with found.active():
        yield found


@pytest.fixture(params=[True, False], ids=["clusters", "memory"])
def clusters(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Let blocks exchange their sums in clusters, or through memory."""
    if not request.param:
        monkeypatch.setattr(Launcher, "has_clusters", False)
    return bool(request.param)


@pytest.fixture
def compiled(emulated: str) -> Callable[[Any], Any]:
    """Return a function that compiles an IR for the emulated device."""
    core = ov.Core()
    return lambda ir: core.compile_model(core.read_model(*ir), emulated)


@pytest.fixture
def to_compile(request: pytest.FixtureRequest) -> gate.ToCompile:
    """Return a function that selects the instances of a file that NVRTC compiles: all of them if the file has changed
    since `python -m tests.kernels.gate` compiled it, or with --long, otherwise the first one."""
    whole: bool = request.config.getoption("--long")
    return lambda file, names: [*names] if whole or not gate.is_compiled(file) else [*names][:1]


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Yield the list of sizes of all copies from the host to the device."""
    sizes: list[int] = []
    run = memory.MemcpyNode.run

    def noted(node: Any) -> None:
        if node.kind == memory.H2D:
            sizes.append(node.nbytes)
        run(node)

    monkeypatch.setattr(memory.MemcpyNode, "run", noted)
    yield sizes
