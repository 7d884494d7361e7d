"""States of sequences that are kept outside the replicas."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

SequenceId = int | str
Claim = tuple[SequenceId, int]
"""A sequence, and the epoch that began when a replica got it."""


@dataclass(frozen=True)
class SavedSequence:
    """Sequence between two steps: the number of steps, and the state by variable as (element type, array).

    ``outputs`` are the outputs of the last step if it had a number, so that they can be returned again, else None.
    """

    steps: int
    state: dict[str, tuple[str, np.ndarray[Any, Any]]]
    outputs: Any = None


@dataclass(frozen=True)
class KeptState:
    """State of a sequence, saved during an epoch or at its end. ``receiver`` is the name of the replica that it was
    given to, if any."""

    epoch: int
    saved: SavedSequence
    receiver: str | None = None
    since: float = field(default_factory=time.monotonic)


class States:
    """States of sequences: ``parked`` if no replica has the sequence, ``checkpoints`` if it is on a replica."""

    def __init__(
        self, parked: dict[SequenceId, KeptState] | None = None, checkpoints: dict[SequenceId, KeptState] | None = None
    ) -> None:
        self.parked, self.checkpoints = parked or {}, checkpoints or {}

    def copy(self) -> States:
        """Return a copy, which later changes of this object do not affect."""
        return States(dict(self.parked), dict(self.checkpoints))

    def __contains__(self, id: SequenceId) -> bool:
        return id in self.parked or id in self.checkpoints

    def __len__(self) -> int:
        return len(self.parked.keys() | self.checkpoints.keys())

    def __iter__(self) -> Iterator[SequenceId]:
        """Iterate over the sequences that have a state."""
        return iter(self.parked.keys() | self.checkpoints.keys())

    def since(self, id: SequenceId) -> float:
        """Return the time at which the last state of a sequence was saved."""
        return max(states[id].since for states in (self.parked, self.checkpoints) if id in states)

    def park(self, id: SequenceId, kept: KeptState) -> None:
        """Keep the state of a sequence that no replica has."""
        self.parked[id] = kept

    def give(self, id: SequenceId, replica: str) -> None:
        """Turn the parked state of a sequence into a checkpoint, because ``replica`` gets the sequence."""
        if id in self.parked:
            self.checkpoints[id] = replace(self.parked.pop(id), receiver=replica)

    def checkpoint(self, id: SequenceId, kept: KeptState) -> None:
        """Keep a checkpoint of a sequence in place of the last one."""
        self.checkpoints[id] = kept

    def outdate(self, id: SequenceId, epoch: int) -> None:
        """Forget the states of a sequence from epochs before ``epoch``."""
        for states in (self.parked, self.checkpoints):
            if id in states and states[id].epoch < epoch:
                del states[id]

    def forget(self, id: SequenceId) -> None:
        """Forget the states of a sequence."""
        self.parked.pop(id, None)
        self.checkpoints.pop(id, None)
