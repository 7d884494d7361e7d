"""What all tests share: the devices they run on."""
from __future__ import annotations

import pytest

DEVICES = ("CPU",)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """The device under test."""
    name: str = request.param
    return name


def pytest_configure(config: pytest.Config) -> None:
    """A worker that dies ends the run: xdist may wait for ever for the tests of one that it replaced."""
    if getattr(config.option, "maxworkerrestart", "unknown") is None:
        config.option.maxworkerrestart = "0"
