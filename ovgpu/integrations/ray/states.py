"""States of sequences outside of the replicas that run them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

SequenceId = int | str
Claim = tuple[SequenceId, int]
"""A sequence, and the epoch in which a replica got it."""


@dataclass(frozen=True)
class SavedSequence:
    """Sequence between two steps: the number of steps, and the state by variable as (element type, array).

    ``outputs`` are those of the last step, if the steps are numbered.
    """

    steps: int
    state: dict[str, tuple[str, np.ndarray[Any, Any]]]
    outputs: Any = None


@dataclass(frozen=True)
class KeptState:
    """State of a sequence at the end of an epoch, or during it. If it went to a replica, ``receiver`` is its name."""

    epoch: int
    saved: SavedSequence
    receiver: str | None = None
    since: float = field(default_factory=time.monotonic)


class States:
    """States of the sequences that no replica has, and checkpoints of those that are on a replica."""

    def __init__(
        self, parked: dict[SequenceId, KeptState] | None = None, checkpoints: dict[SequenceId, KeptState] | None = None
    ) -> None:
        self.parked, self.checkpoints = parked or {}, checkpoints or {}

    def copy(self) -> States:
        """Return states that do not change with these."""
        return States(dict(self.parked), dict(self.checkpoints))

    def __contains__(self, id: SequenceId) -> bool:
        return id in self.parked or id in self.checkpoints

    def __len__(self) -> int:
        return len(self.parked.keys() | self.checkpoints.keys())

    def __iter__(self) -> Iterator[SequenceId]:
        """Return the sequences that have a state."""
        return iter(self.parked.keys() | self.checkpoints.keys())

    def since(self, id: SequenceId) -> float:
        """Return the time of a sequence's last state."""
        return max(states[id].since for states in (self.parked, self.checkpoints) if id in states)

    def park(self, id: SequenceId, kept: KeptState) -> None:
        """Keep the state of a sequence that no replica has."""
        self.parked[id] = kept

    def give(self, id: SequenceId, replica: str) -> None:
        """Make a parked state a checkpoint, since a replica gets the sequence."""
        if id in self.parked:
            self.checkpoints[id] = replace(self.parked.pop(id), receiver=replica)

    def checkpoint(self, id: SequenceId, kept: KeptState) -> None:
        """Keep the last checkpoint of a sequence."""
        self.checkpoints[id] = kept

    def outdate(self, id: SequenceId, epoch: int) -> None:
        """Forget the states of epochs before this one."""
        for states in (self.parked, self.checkpoints):
            if id in states and states[id].epoch < epoch:
                del states[id]

    def forget(self, id: SequenceId) -> None:
        """Forget the states of a sequence."""
        self.parked.pop(id, None)
        self.checkpoints.pop(id, None)
