"""Fixtures of the tests of benchmarks."""

from __future__ import annotations

import pytest

from bench.kernels import sass
from tests.emulator import nvrtc


@pytest.fixture(scope="module")
def disassembler() -> None:
    """Skip the test if NVRTC or nvdisasm is not installed."""
    if not nvrtc.is_available():
        pytest.skip("NVRTC is not installed")
    try:
        sass.nvdisasm()
    except sass.DisassemblyError as e:
        pytest.skip(str(e))
