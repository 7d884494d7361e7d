"""Suggestions for names that do not exist."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, names: Iterable[str], count: int = 1) -> list[str]:
    """Return the names that are most like ``name``, the best one first; case does not matter."""
    from difflib import get_close_matches  # imported here, because errors are rare

    by_lower_case = {known.lower(): known for known in names}
    return [by_lower_case[match] for match in get_close_matches(name.lower(), by_lower_case, count)]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` with the name that is most like ``name``, or "" if none is like it."""
    return "".join(f"; did you mean '{match}'?" for match in nearest(name, names))
