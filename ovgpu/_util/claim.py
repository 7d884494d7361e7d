"""Ownership claims that stay consistent if a signal handler raises an exception while the owner changes."""

from __future__ import annotations


class Claim:
    """Claim on an object that one party owns at a time: the first party that takes it. Threads may share a claim.

    A method changes the owner by one call into C, so an exception of a signal handler comes before or after the change.
    A party that was interrupted calls `take` again, which returns whether it is the owner.
    """

    __slots__ = ("_owner",)

    def __init__(self) -> None:
        self._owner: dict[str, object] = {}

    def take(self, party: object) -> bool:
        """Make the party the owner if there is none. Return whether it is the owner now."""
        return self._owner.setdefault("owner", party) is party

    def is_of(self, party: object) -> bool:
        """Return whether the party is the owner."""
        return self._owner.get("owner") is party

    def release(self, party: object) -> None:
        """End the claim if the party is the owner."""
        if self._owner.get("owner") is party:
            self._owner.clear()

    def __bool__(self) -> bool:
        """Return whether there is an owner."""
        return bool(self._owner)
