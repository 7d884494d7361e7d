"""What all tests share: the devices they run on."""
from __future__ import annotations

import pytest

DEVICES = ("CPU",)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """The device under test."""
    name: str = request.param
    return name
