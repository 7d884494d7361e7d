"""The interface of backends to the runtime. `api.core` hands a backend in; nothing here imports one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from ovgpu.ops.base.op import Array, Op
from ovgpu.ops.base.xp import Adapter
from ovgpu.types import Type

Call = Callable[[], Any]


class Eager(partial[Any]):
    """A call that does more than launch work: it allocates, computes on the host, or binds calls of its own."""

    def counts(self) -> Counts:
        """What one run of it starts; of what it does on the way nothing is known."""
        return Counts(1, 1)


class Transfer:
    """A call that copies between the host's memory and the device's."""

    def __call__(self) -> None:
        raise NotImplementedError

    def counts(self) -> Counts:
        return Counts(1, 0)


class Counts(NamedTuple):
    """What the host starts, a captured graph counting as one, and the kernels that the device runs."""

    launches: int
    kernels: int


def counts(calls: Sequence[Call], captured: bool) -> Counts:
    """Of one run of these calls. Captured, each run of calls between eager ones is a graph."""
    launches = kernels = 0
    for eager, group in groupby(calls, lambda call: isinstance(call, Eager)):
        run = list(group)
        its = [call.counts() if isinstance(call, (Eager, Transfer)) else Counts(1, 1) for call in run]
        kernels += sum(c.kernels for c in its)
        launches += 1 if captured and not eager else sum(c.launches for c in its)
    return Counts(launches, kernels)


class Uncaptured(Exception):
    """A recording cannot be made faster, for the reason that is the cause; it runs call by call from now on."""


class Recording(Protocol):
    """A list of calls that will run many times; what a backend keeps with it to run them faster."""

    @property
    def flat(self) -> list[Call]: ...

    runs: int  # how often its calls have run one by one
    graph: Any
    reason: str  # why it cannot be captured, where that has been tried
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


class Slicing(Protocol):
    """Brings the parts of sliced and concatenated tensors to and from fixed addresses, by the number of the iteration
    that runs, which is in the device's memory: calls that serve every iteration."""

    def number(self, kind: Type, shape: tuple[int, ...]) -> Array | None:
        """The iteration number as an array; None if there is none of that type."""

    def begin(self, trips: int, first: Sequence[Array], second: Sequence[Array],
              parts: Sequence[Array]) -> Sequence[Call] | None:
        """The calls before the first of ``trips`` iterations. ``first`` and ``second`` are the parts of iterations 0
        and 1 where they lie in the whole tensors, those that are read before those that are written; ``parts``
        are where the first iteration finds them. None if they lie too irregularly."""

    def advance(self, parts: Sequence[Array]) -> Sequence[Call]:
        """The calls after an iteration, which has read and written ``parts``."""


class Backend(Protocol):
    """Memory, arrays on it, and the calls that run an op on arrays."""

    name: str
    xp: Adapter
    fuses: bool  # whether it runs a chain of elementwise ops as one step
    remote: bool
    """Whether its memory is not the host's: inputs are uploaded, and results downloaded."""

    replays: bool
    """Whether it runs recordings faster than call by call."""

    def active(self) -> AbstractContextManager[Any]:
        """In it, what this thread asks of the array library itself goes to the backend's device and stream."""

    def for_request(self) -> Backend:
        """The backend of one request, with a stream of its own where there are streams."""

    def allocate(self, nbytes: int) -> Any:
        """Return a block of memory, aligned to 64 bytes. MemoryError, which states the memory left, if it does not
        fit."""

    def require(self, nbytes: int) -> None:
        """Raise MemoryError, which states the memory left, if ``nbytes`` more do not fit."""

    def make_array(self, block: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...],
                   kind: Type) -> Array:
        """An array in a block; offset and strides in bytes."""

    def dense(self, block: Any, shape: tuple[int, ...], kind: Type) -> Array:
        """A contiguous array at the beginning of a block."""

    def view(self, array: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        """An array in another one's memory; offset (from its first element) and strides in bytes."""

    def constant(self, value: Any) -> Array:
        """A host array as a constant of the device, aligned for its type."""

    def constants(self, values: Sequence[Any]) -> Sequence[Array]:
        """Host arrays as constants of the device, in as few blocks of memory as that takes."""

    def to_host(self, array: Array) -> Any:
        """A device array on the host, once all work given so far is done."""

    def pinned(self, nbytes: int) -> Any:
        """Bytes of host memory that the device reads and writes by itself."""

    def upload(self, source: Any, target: Array) -> Sequence[Call]:
        """The calls that copy a contiguous host array to the device. It is in pinned memory if they are captured."""

    def download(self, source: Array, target: Any) -> Sequence[Call]:
        """The calls that copy a contiguous device array to one on the host, likewise."""

    def bind(self, op: Op, inputs: Sequence[Array | None], outputs: Sequence[Array], workspace: Sequence[Array],
             types: Sequence[Type]) -> Sequence[Call]:
        """The calls that write ``outputs``. Inputs that the op wants on the host are NumPy arrays."""

    def copy(self, source: Array, target: Array) -> Sequence[Call]:
        """The calls that copy an array into another of its shape and type."""

    def evaluate(self, op: Op, inputs: Sequence[Array | None], types: Sequence[Type]) -> Sequence[Array]:
        """The op's results in memory of their own."""

    def explain(self, error: Exception) -> str:
        """What went wrong, when a call raised something that is not ovgpu's own."""

    def slicing(self, incoming: int, outgoing: int) -> Slicing | None:
        """For so many sliced and concatenated tensors of a loop; None if the device does not move their parts."""

    def replay(self, recording: Recording) -> bool:
        """Runs all calls of a recording at once; False if they are to be run one by one. Raises Uncaptured, once
        and before anything has run, if that will always be so."""

    def memory_held(self) -> int:
        """Bytes of the device's memory that this process has taken, in use or kept for later; 0 if it is the host's."""

    def clock(self) -> Clock:
        """What tells when the work given to the backend is done."""

    def order(self, owners: Sequence[Any]) -> None:
        """Has the work given from now on wait for what the owners of arrays on the device have enqueued, from this
        thread."""

    def abandon(self) -> None:
        """Waits likewise after an error, and raises no other: then nothing uses the inference's memory any more."""

    def synchronize(self) -> None:
        """Waits until all work given so far is done."""


class Fresh:
    """`binding.Memory` that allocates: for programs whose results outlive their next run."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def output(self, number: int, shape: tuple[int, ...], kind: Type) -> Array:
        return self.backend.xp.empty(shape, kind.storage)

    def variable(self, name: str, shape: tuple[int, ...], kind: Type, strides: tuple[int, ...], append: bool) -> Array:
        raise AssertionError("neither a body nor an initial value sets a variable")

    def host(self, number: int) -> None:
        return None
