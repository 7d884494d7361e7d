"""Claims: who owns a thing, also when an exception of a signal's handler strikes while it changes hands."""

from __future__ import annotations


class Claim:
    """A claim on a thing that one party owns at a time: the first one that takes it. Threads may share a claim.

    A method changes the owner by one call into C, so that a signal's exception comes before it or after it, not within.
    A party that was interrupted calls `take` again, which tells whether it is the owner.
    """

    __slots__ = ("_owner",)

    def __init__(self) -> None:
        self._owner: dict[str, object] = {}

    def take(self, party: object) -> bool:
        """Return whether the party is the owner: since now, or already."""
        return self._owner.setdefault("owner", party) is party

    def release(self, party: object) -> None:
        """Ends the claim if the party is the owner."""
        if self._owner.get("owner") is party:
            self._owner.clear()

    def __bool__(self) -> bool:
        """Return whether there is an owner."""
        return bool(self._owner)
