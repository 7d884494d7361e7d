"""What the runtime asks of a backend. `core` hands one in; nothing here imports one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from ovgpu.ops._op import Array, Op
from ovgpu.ops._xp import Adapter
from ovgpu.types import Type

Call = Callable[[], Any]


class Eager(partial[Any]):
    """A call that does more than launch work: it allocates, computes on the host, or binds calls of its own."""

    def counts(self) -> Counts:
        """What one run of it starts; of what it does on the way nothing is known."""
        return Counts(1, 1)


class Counts(NamedTuple):
    """What the host starts, a captured graph counting as one, and what the device runs: kernels and copies."""

    launches: int
    kernels: int


def counts(calls: Sequence[Call], captured: bool) -> Counts:
    """Of one run of these calls. Captured, each run of calls between eager ones is a graph."""
    launches = kernels = 0
    for eager, group in groupby(calls, lambda call: isinstance(call, Eager)):
        run = list(group)
        its = [call.counts() if isinstance(call, Eager) else Counts(1, 1) for call in run]
        kernels += sum(c.kernels for c in its)
        launches += 1 if captured and not eager else sum(c.launches for c in its)
    return Counts(launches, kernels)


class Uncaptured(Exception):
    """A recording cannot be made faster, for the reason that is the cause; it runs call by call from now on."""


class Recording(Protocol):
    """A list of calls that will run many times; what a backend keeps with it to run them faster."""

    flat: list[Call]
    runs: int
    graph: Any
    number: int  # the call in `flat` that is being run, or that stands first in what is being run


class Clock(Protocol):
    """Tells when work is done, which may be long after the call that asked for it."""

    def mark(self) -> Any:
        """A point between the work given so far and what is given next."""

    def seconds(self, start: Any, end: Any) -> float:
        """The time between two marks; both must have been passed."""

    def enter(self, name: str) -> None:
        """Begins a range that tools show by this name."""

    def leave(self) -> None:
        """Ends the innermost range."""


class Backend(Protocol):
    """Memory, arrays on it, and the calls that run an op on arrays."""

    name: str
    xp: Adapter
    fuses: bool  # whether it runs a chain of elementwise ops as one step

    def for_request(self) -> Backend:
        """The backend of one request, with a stream of its own where there are streams."""

    def allocate(self, nbytes: int) -> Any:
        """A block of memory, aligned to 64 bytes."""

    def place(self, block: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], kind: Type) -> Array:
        """An array in a block; offset and strides in bytes."""

    def dense(self, block: Any, shape: tuple[int, ...], kind: Type) -> Array:
        """A contiguous array at the beginning of a block."""

    def view(self, array: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        """An array in another one's memory; offset (from its first element) and strides in bytes."""

    def constant(self, value: Any) -> Array:
        """A host array as a constant of the device, aligned for its type."""

    def upload(self, value: Any, previous: Array | None) -> Array:
        """A host array on the device, in ``previous`` if that has its shape and type."""

    def download(self, array: Array) -> Any:
        """A device array on the host."""

    def bind(self, op: Op, inputs: Sequence[Array | None], outputs: Sequence[Array], workspace: Sequence[Array],
             types: Sequence[Type]) -> Sequence[Call]:
        """The calls that write ``outputs``. Inputs that the op wants on the host are NumPy arrays."""

    def copy(self, source: Array, target: Array) -> Sequence[Call]:
        """The calls that copy an array into another of its shape and type."""

    def evaluate(self, op: Op, inputs: Sequence[Array | None], types: Sequence[Type]) -> Sequence[Array]:
        """The op's results in memory of their own."""

    def replay(self, recording: Recording) -> bool:
        """Runs all calls of a recording at once; False if they are to be run one by one. Raises Uncaptured, once
        and before anything has run, if that will always be so."""

    def memory_held(self) -> int:
        """Bytes of the device's memory that this process has taken, in use or kept for later; 0 if it is the host's."""

    def clock(self) -> Clock:
        """What tells when the work given to the backend is done."""

    def synchronize(self) -> None:
        """Waits until all work given so far is done."""


@dataclass(frozen=True)
class Fresh:
    """`executor.Memory` that allocates: for programs whose results outlive their next run."""

    backend: Backend

    def output(self, number: int, shape: tuple[int, ...], kind: Type) -> Array:
        return self.backend.xp.empty(shape, kind.storage)

    def variable(self, name: str, shape: tuple[int, ...], kind: Type) -> Array:
        raise AssertionError("neither a body nor an initial value sets a variable")
