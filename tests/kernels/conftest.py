"""The CUDA backend on the emulated device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ovgpu as ov
from ovgpu.backends.cuda import CudaBackend


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--device") == "cuda":
        for item in items:
            if item.path.name.startswith(("test_broken", "test_failures")):
                item.add_marker(pytest.mark.skip(reason="faults are injected into the emulator alone"))
            elif item.get_closest_marker("emulator"):
                item.add_marker(pytest.mark.skip(reason="looks into the emulator"))


@pytest.fixture(scope="module")
def backend(emulated: str) -> Iterator[CudaBackend]:
    """A backend on the emulated device, to record kernels with. Arrays are made and read on its stream."""
    found = CudaBackend()
    with found.active():
        yield found


@pytest.fixture
def compiled(emulated: str) -> Callable[[Any], Any]:
    """Compiles an IR for the emulated device."""
    core = ov.Core()
    return lambda ir: core.compile_model(core.read_model(*ir), emulated)
