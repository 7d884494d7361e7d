"""What all tests share: the devices they run on."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import cuda
from tests.harness.recall import load
from tests.harness.replay import DEVICES, EMULATED

pytest_plugins = ("tests.kernels.gate",)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """The device under test."""
    name: str = request.param
    if name == EMULATED:
        request.getfixturevalue("emulated")
    return name


@pytest.fixture(scope="module")
def emulated(request: pytest.FixtureRequest) -> Iterator[str]:
    """A device name: the CUDA backend on the emulator, or on a card (``--device``). Other tests do not see it."""
    from ovgpu import devices
    from ovgpu.backends.cuda import CudaBackend

    with cuda.bound(request.config.getoption("--device")):
        devices.register_backend(EMULATED, CudaBackend)
        yield EMULATED
        devices.unregister_backend(EMULATED)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", choices=("emulator", "cuda"), default="emulator",
                     help="what tests of the CUDA backend run on: the emulator, or a card through CuPy")
    parser.addoption("--long", action="store_true", help="ten times as many random cases, on the device as well")
    parser.addoption("--expectations", type=Path, metavar="FILE",
                     help="OpenVINO's judgements, where it is not installed (python -m tests.harness.store FILE)")


def pytest_configure(config: pytest.Config) -> None:
    """A worker that dies ends the run: xdist may wait for ever for the tests of one that it replaced."""
    if getattr(config.option, "maxworkerrestart", "unknown") is None:
        config.option.maxworkerrestart = "0"
    config.addinivalue_line("markers", "emulator: looks into the emulator, which does not run with --device cuda")
    if config.getoption("--expectations"):
        load(config.getoption("--expectations"))
