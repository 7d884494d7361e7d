"""Interface between the runtime and its backends. `api.core` passes a backend in; nothing here imports one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, Protocol, TypeGuard

from ovgpu.ops.base.op import Array, Op
from ovgpu.ops.base.xp import Adapter
from ovgpu.types import Type

Call = Callable[[], Any]


class HostCall(partial[Any]):
    """Call that no CUDA graph can contain, since it allocates, computes on the host, or binds calls of its own."""

    def counts(self) -> Counts:
        """Return one launch and one kernel: the actual numbers are unknown."""
        return Counts(1, 1)


class RoundingCall(partial[Any]):
    """Call that may round f32 operands to TF32."""


class Transfer:
    """Call that copies between the host's memory and the device's."""

    def __call__(self) -> None:
        raise NotImplementedError

    def counts(self) -> Counts:
        """Return the launches and kernels of one run."""
        return Counts(1, 0)


class Counts(NamedTuple):
    """Numbers of launches by the host, a captured graph counting as one, and of kernels that the device runs."""

    launches: int
    kernels: int


def counts(calls: Sequence[Call], captured: bool) -> Counts:
    """Count the launches and kernels of one run of these calls. If captured, calls between eager ones are one graph."""
    launches = kernels = 0
    for eager, group in groupby(calls, lambda call: isinstance(call, HostCall)):
        run = list(group)
        call_counts = [call.counts() if isinstance(call, (HostCall, Transfer)) else Counts(1, 1) for call in run]
        kernels += sum(c.kernels for c in call_counts)
        launches += 1 if captured and not eager else sum(c.launches for c in call_counts)
    return Counts(launches, kernels)


class Uncaptured(Exception):
    """Error for a recording that cannot be captured, and runs call by call from now on. ``__cause__`` is the reason."""


class Recording(Protocol):
    """A list of calls that runs many times, with the state that a backend keeps to run it faster."""

    @property
    def flat(self) -> list[Call]: ...

    runs: int  # number of times that its calls have run one by one
    graph: Any
    reason: str  # reason why it cannot be captured; empty if there is none or capture was not tried
    number: int  # index in `flat` of the call that is running, or of the first one in the graph that is running


class Clock(Protocol):
    """Clock of a backend's work, which may run long after the call that launched it."""

    def mark(self) -> Any:
        """Return a mark between the work enqueued so far and the work enqueued next."""

    def seconds(self, start: Any, end: Any) -> float:
        """Return the seconds between two marks; the work before both must be done."""

    def enter(self, name: str) -> None:
        """Begin a range that profiling tools show by this name."""

    def leave(self) -> None:
        """End the innermost range."""


class Completion(Protocol):
    """The end of one inference on a stream, which other threads may wait for. The next inference uses it again."""

    def begin(self) -> None:
        """Note that the inference is enqueued from here on."""

    def end(self) -> None:
        """Note that the inference has been enqueued."""

    def is_reached(self) -> bool:
        """Return whether the work between `begin` and `end` is done, or has failed."""

    def wait(self) -> None:
        """Wait for the work between `begin` and `end`. Raise the device's errors, and exceptions of signal handlers."""

    def seconds(self) -> float:
        """Return the seconds between `begin` and `end` on the device; the work must be done."""


class Slicing(Protocol):
    """Copier between fixed addresses and the parts of a loop's sliced and concatenated tensors.

    The iteration's index lies in device memory, so that the same calls serve every iteration.
    """

    def number(self, dtype: Type, shape: tuple[int, ...]) -> Array | None:
        """Return the iteration's index as a device array, or None if the backend has none of that type."""

    def begin(
        self, trips: int, first: Sequence[Array], second: Sequence[Array], parts: Sequence[Array]
    ) -> Sequence[Call] | None:
        """Return the calls before the first of ``trips`` iterations, or None if a part is not rows of dense memory.

        ``first`` and ``second`` are the parts of iterations 0 and 1 as views of the whole tensors, sliced ones before
        concatenated ones. ``parts`` are the arrays at fixed addresses that the first iteration uses.
        """

    def advance(self, parts: Sequence[Array]) -> Sequence[Call]:
        """Return the calls after an iteration that has used ``parts``: they copy parts and count the iteration."""


class Backend(Protocol):
    """Backend of a device: it allocates memory, makes arrays in it, and binds ops to arrays as calls."""

    name: str
    xp: Adapter
    fuses: bool  # whether it runs a chain of elementwise ops as one step
    remote: bool
    """True if the device has memory of its own: inputs are uploaded, and results downloaded."""

    captures_graphs: bool
    """True if the backend captures recordings as graphs, whose launches are faster than single calls."""

    def channels_last(self) -> Sequence[Type]:
        """Return the element types for which convolutions are faster where the channels of a pixel are adjacent."""

    def multiplies_i8(self) -> bool:
        """Return whether the device has kernels for products of 8-bit integers."""

    def active(self) -> AbstractContextManager[Any]:
        """Return a context in which this thread's array library works on the backend's device and stream."""

    def nesting(self) -> Any:
        """Return the depth of this thread's `active` blocks, for `restore`."""

    def restore(self, nesting: Any) -> None:
        """Leave the blocks that an exception of a signal handler has kept from ending. Never raise."""

    def for_request(self) -> Backend:
        """Return the backend of one request, with its own stream if the device has streams."""

    def allocate(self, nbytes: int) -> Any:
        """Return a block of memory, aligned to 64 bytes. Raise MemoryError, which states the free memory, if it does
        not fit."""

    def require(self, nbytes: int) -> None:
        """Raise MemoryError, which states the free memory, if ``nbytes`` more do not fit."""

    def make_array(
        self, block: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Type
    ) -> Array:
        """Return an array in a block; offset and strides are in bytes."""

    def dense(self, block: Any, shape: tuple[int, ...], dtype: Type) -> Array:
        """Return a contiguous array at the beginning of a block."""

    def view(self, array: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        """Return a view of another array; offset (from its first element) and strides are in bytes."""

    def constant(self, value: Any) -> Array:
        """Return a host array as a constant on the device, aligned for its type."""

    def constants(self, values: Sequence[Any]) -> tuple[Sequence[Array], Callable[[], None]]:
        """Return constants on the device for host arrays, in as few blocks of memory as possible, and the function that
        copies the host arrays to them."""

    def to_host(self, array: Array) -> Any:
        """Return a device array on the host, once all work enqueued so far is done."""

    def pinned(self, nbytes: int) -> Any:
        """Return ``nbytes`` of pinned host memory, which the device can read and write directly."""

    def upload(self, source: Any, target: Array) -> Sequence[Call]:
        """Return the calls that copy a contiguous host array to the device. Captured calls need it pinned."""

    def download(self, source: Array, target: Any) -> Sequence[Call]:
        """Return the calls that copy a contiguous device array to a host array. Captured calls need it pinned."""

    def bind(
        self,
        op: Op,
        inputs: Sequence[Array | None],
        outputs: Sequence[Array],
        workspace: Sequence[Array],
        types: Sequence[Type],
    ) -> Sequence[Call]:
        """Return the calls that run an op and write ``outputs``. Inputs that the op reads on the host are NumPy
        arrays; ``types`` are the types of the outputs."""

    def copy(self, source: Array, target: Array) -> Sequence[Call]:
        """Return the calls that copy an array to another of the same shape and type."""

    def evaluate(self, op: Op, inputs: Sequence[Array | None], types: Sequence[Type]) -> Sequence[Array]:
        """Run an op and return its results, of these types, in newly allocated memory."""

    def explain(self, error: Exception) -> str:
        """Return the message for an exception that a call raised and that is not ovgpu's own."""

    def slicing(self, incoming: int, outgoing: int) -> Slicing | None:
        """Return the `Slicing` for a loop with these numbers of sliced and concatenated tensors, or None if the device
        cannot copy their parts."""

    def launch(self, recording: Recording) -> bool:
        """Run a recording as graphs. Return whether it ran; if not, the caller runs its calls one by one.

        Raise Uncaptured, once and before anything has run, if the recording can never be captured.
        """

    def launch_whole(self, recording: Recording) -> bool:
        """Launch a recording that one graph has captured; the backend need not be `active`. Return False, and launch
        nothing, if it is captured otherwise or another device is current in this thread."""

    def ready(self, calls: Sequence[Call]) -> bool:
        """Return whether calls of `bind` and `copy` would run at once, and not wait for a compiler."""

    def finish_compiling(self) -> None:
        """Wait until the kernels of all calls bound so far are compiled. The calls raise the compiler's errors."""

    def export_kernels(self) -> dict[str, bytes]:
        """Return the machine code of the kernels that the compiled model launches, by file name."""

    def import_kernels(self, files: Mapping[str, bytes]) -> None:
        """Use machine code from `export_kernels` in place of the compiler, where the device fits. Call this first."""

    def memory_held(self) -> int:
        """Return the bytes of device memory that this process holds, in use or pooled; 0 if it is the host's memory."""

    def memory_of_request(self) -> dict[str, int]:
        """Return the bytes of device memory that the libraries' workspaces and captured graphs of this request hold."""

    def clock(self) -> Clock:
        """Return a clock of the backend's work."""

    def order(self, owners: Sequence[Any]) -> None:
        """Make work enqueued from now on wait for work that this thread has enqueued on the owners' device arrays."""

    def abandon(self) -> None:
        """Wait for all enqueued work after an error, and never raise. Afterwards nothing uses its memory."""

    def synchronize(self) -> None:
        """Wait until all work enqueued so far is done."""


class RemoteBackend(Backend, Protocol):
    """Backend of a device that has memory of its own."""

    number: int  # the device's number, as CUDA counts devices
    stream: Any

    def send(self, source: Any, target: Array) -> None:
        """Copy a contiguous host array, pinned or not, to the device, and wait."""

    def fetch(self, source: Array, target: Any) -> None:
        """Copy a contiguous device array to the host, and wait. The work that writes ``source`` must be done. Any
        thread may call this, even while the request captures a graph on its own stream."""

    def fetch_pinned(self, source: Array) -> Array | None:
        """Return a copy of a contiguous device array in pinned memory, or None if that is short; as `fetch`."""

    def convert(self, source: Array, target: Array) -> None:
        """Copy a device array of any layout and element type into another one of the same shape."""

    def completion(self) -> Completion:
        """Return a completion for inferences of this request, one after the other."""


def is_remote(backend: Backend) -> TypeGuard[RemoteBackend]:
    """Return whether the backend's device has memory of its own."""
    return backend.remote


class FreshMemory:
    """`binding.MemoryProvider` that allocates new memory, for programs whose results outlive their next run."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def output(self, index: int, shape: tuple[int, ...], dtype: Type) -> Array:
        return self.backend.xp.empty(shape, dtype.storage)

    def variable(self, name: str, shape: tuple[int, ...], dtype: Type, strides: tuple[int, ...], append: bool) -> Array:
        raise AssertionError("neither a body nor an initial value sets a variable")

    def host(self, index: int) -> None:
        return None
