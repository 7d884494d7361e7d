"""What all tests share: the devices they run on."""
from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.recall import load

DEVICES = ("CPU",)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """The device under test."""
    name: str = request.param
    return name


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", choices=("emulator", "cuda"), default="emulator",
                     help="what tests of the CUDA backend run on: the emulator, or a card through CuPy")
    parser.addoption("--expectations", type=Path, metavar="FILE",
                     help="OpenVINO's judgements, where it is not installed (python -m tests.harness.store FILE)")


def pytest_configure(config: pytest.Config) -> None:
    """A worker that dies ends the run: xdist may wait for ever for the tests of one that it replaced."""
    if getattr(config.option, "maxworkerrestart", "unknown") is None:
        config.option.maxworkerrestart = "0"
    if config.getoption("--expectations"):
        load(config.getoption("--expectations"))
