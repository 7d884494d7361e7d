"""The CUDA backend on the emulated device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ovgpu import devices
from ovgpu.backends.cuda import CudaBackend
from tests.harness import cuda


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--device") == "cuda":
        for item in items:
            if item.path.name.startswith("test_broken"):
                item.add_marker(pytest.mark.skip(reason="kernels are broken on the emulator alone"))


@pytest.fixture(scope="module")
def emulated(request: pytest.FixtureRequest) -> Iterator[str]:
    """A device name: the CUDA backend on the emulator, or on a card (``--device``). Other tests do not see it."""
    with cuda.bound(request.config.getoption("--device")):
        devices.register_backend("EMULATED", CudaBackend)
        yield "EMULATED"
        devices.unregister_backend("EMULATED")


@pytest.fixture(scope="module")
def backend(emulated: str) -> Iterator[CudaBackend]:
    """A backend on the emulated device, to record kernels with. Arrays are made and read on its stream."""
    found = CudaBackend()
    with found.active():
        yield found
