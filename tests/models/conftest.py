from __future__ import annotations

import pytest


@pytest.fixture(params=["CPU"])
def device(request: pytest.FixtureRequest) -> str:
    """The device that ovgpu runs the models on."""
    return str(request.param)
