"""Claims: who owns a thing, also when an exception of a signal's handler strikes while it changes hands."""

from __future__ import annotations


class Claim:
    """What one party at a time has: the first one that takes it. Used by several threads.

    Each method changes it by one call into C, before or after which an exception may come, but not within: the party
    asks again with `take`, which tells whether it has the thing.
    """

    __slots__ = ("_owner",)

    def __init__(self) -> None:
        self._owner: dict[str, object] = {}

    def take(self, party: object) -> bool:
        """Return whether the party has it, now or already."""
        return self._owner.setdefault("owner", party) is party

    def release(self, party: object) -> None:
        """Gives it up, if the party has it."""
        if self._owner.get("owner") is party:
            self._owner.clear()

    def __bool__(self) -> bool:
        """Return whether anybody has it."""
        return bool(self._owner)
