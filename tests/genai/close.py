"""Comparison of outcomes with those that were recorded from openvino_genai."""

from __future__ import annotations

from typing import Any

import pytest

ROUNDING = 2e-3  # of sums of log probabilities, in f32


def assert_close(found: Any, expected: Any, tolerance: float = ROUNDING) -> None:
    """Compare nested lists; numbers may differ by the tolerance."""
    if isinstance(expected, (list, tuple)):
        assert isinstance(found, (list, tuple)) and len(found) == len(expected), f"{found} is not {expected}"
        for pair in zip(found, expected):
            assert_close(*pair, tolerance)
    elif isinstance(expected, float):
        assert isinstance(found, float) and found == pytest.approx(expected, abs=tolerance)
    else:
        assert found == expected
