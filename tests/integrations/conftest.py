"""The device under test as NVIDIA inside openvino."""

from __future__ import annotations

from collections.abc import Iterator

import openvino
import pytest

from ovgpu.compile import devices
from ovgpu.integrations.openvino import install, uninstall


@pytest.fixture
def core(device: str) -> Iterator[openvino.Core]:
    """Yield an openvino Core in which ovgpu is installed."""
    devices.register_backend("NVIDIA", lambda: devices.open_backend(device))
    install()
    try:
        yield openvino.Core()
    finally:
        uninstall()
        devices.unregister_backend("NVIDIA")
