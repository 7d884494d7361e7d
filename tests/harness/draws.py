"""The part of the tests that runs by default. `pytest --all-rows` runs all.

The draws depend on names alone: a run repeats the one before, on every machine."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from .replay import EMULATED

TESTS = Path(__file__).parents[1]
OPS = TESTS / "ops"
ON_CARD = ("tests/emulator/", "tests/kernels/")


def order(name: str) -> int:
    """Return a hash by which names are drawn: the lowest first."""
    return zlib.crc32(name.encode())


def is_on_card(item: pytest.Item) -> bool:
    """Return whether a test runs on the emulated card, or on parts of the emulator."""
    given = item.callspec.params if hasattr(item, "callspec") else {}
    device = given["device"] == EMULATED if "device" in given else "emulated" in getattr(item, "fixturenames", ())
    return device or item.nodeid.startswith(ON_CARD)


def is_quick(file: Path) -> bool:
    """Return whether a test file has tests that `pytest --quick` runs."""
    text = file.read_text(encoding="utf-8")
    return "pytest.mark.quick" in text or (OPS in file.parents and " = check(" in text)


def slow(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Return the tests that `pytest --quick` leaves out: all but those marked `quick`, and one case on NumPy of each
    file of operations."""
    first: dict[Path, pytest.Item] = {}
    for item in items:
        if OPS in item.path.parents and _case(item) is not None:
            first.setdefault(item.path, item)
    return {item for item in items if not item.get_closest_marker("quick") and item not in first.values()}


def _case(item: pytest.Item) -> Any:
    """Return the case of a test that `check` has made, if it is judged and runs on NumPy."""
    given = item.callspec.params if hasattr(item, "callspec") else {}
    case = given.get("case")
    return case if given.get("device") == "CPU" and getattr(case, "judged", False) else None


def surplus(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return the tests that do not run by default: those marked `long`, and of a test marked `drawn(n)` all but one of
    n of its items."""
    found = {item for item in items if item.get_closest_marker("long")}
    marked: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("drawn"):
            marked[item.nodeid.partition("[")[0]].append(item)
    for rows in marked.values():
        (share,) = rows[0].get_closest_marker("drawn").args  # type: ignore[union-attr]
        kept = -(len(rows) // -share)
        found.update(sorted(rows, key=lambda item: order(item.nodeid))[kept:])
    return found
