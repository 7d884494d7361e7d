"""Compilation without some passes, to compare results with and without them."""

from __future__ import annotations

import pytest

from ovgpu import passes

NAMES = {entry.name for entry in passes.PASSES}


def without(patch: pytest.MonkeyPatch, *names: str) -> None:
    """Leave the passes of these names out as long as ``patch`` holds."""
    assert NAMES.issuperset(names)
    patch.setattr(passes, "PASSES", [entry for entry in passes.PASSES if entry.name not in names])
