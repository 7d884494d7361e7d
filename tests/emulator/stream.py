"""Streams, events, capture and graphs. Work is plain data (`Node`); eager work runs at once."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol, Self

from . import device, state
from .state import CAPTURE_UNSUPPORTED, NOT_READY, CaptureError, CUDARuntimeError, counters


class Node(Protocol):
    """One unit of device work: addresses and numbers only, nothing that Python could evaluate anew."""

    def run(self) -> None: ...


class KernelWork(Node, Protocol):
    """Work of kernels, which may not have ended when an early launch begins."""

    def accesses(self) -> tuple[Iterable[int], Iterable[int]]:
        """Return addresses in the device blocks that the work reads, and in those that it writes."""


class Capture:
    """A capture in progress: the origin stream and those that joined it through events."""

    def __init__(self, origin: Stream) -> None:
        self.origin = origin
        self.nodes: list[Node] = []
        self.launches = 0  # the nodes that `Counters.launches` would count
        self.work: dict[int, int] = {origin.ptr: 0}  # nodes enqueued per stream
        self.joined: dict[int, dict[int, int]] = {origin.ptr: {}}  # per stream, the nodes it has waited for
        self.invalid: str | None = None

    def admit(self, stream: Stream) -> None:
        stream.capture = self
        self.work.setdefault(stream.ptr, 0)
        self.joined.setdefault(stream.ptr, {})

    def add(self, node: Node, stream: Stream, launch: bool) -> None:
        self.nodes.append(node)
        self.launches += launch
        self.work[stream.ptr] += 1

    def done_before(self, stream: Stream) -> dict[int, int]:
        """Return how many nodes of each stream are finished when `stream` reaches this point."""
        return {**self.joined[stream.ptr], stream.ptr: self.work[stream.ptr]}

    def join(self, stream: Stream, covers: dict[int, int]) -> None:
        seen = self.joined[stream.ptr]
        for ptr, count in covers.items():
            seen[ptr] = max(seen.get(ptr, 0), count)

    def has_unjoined_work(self) -> bool:
        seen = self.done_before(self.origin)
        return any(count > seen.get(ptr, 0) for ptr, count in self.work.items())


class InFlight:
    """Device blocks that kernels of a stream read and write which may not have ended when an early launch begins: those
    since the last full dependency, which copies, launches that are not early, and the start of a graph have."""

    def __init__(self) -> None:
        self._added: list[KernelWork] = []  # whose blocks are not in the sets yet, as few launches ask for them
        self._sets: tuple[set[int], set[int]] = set(), set()
        self.count = 0  # of all work so far

    def add(self, work: KernelWork) -> None:
        self.count += 1
        self._added.append(work)

    @property
    def blocks(self) -> tuple[set[int], set[int]]:
        """The blocks that kernels read, and those that they write."""
        for work in self._added:
            for found, addresses in zip(self._sets, work.accesses()):
                found.update(block for block in map(block_of, addresses) if block is not None)
        self._added.clear()
        return self._sets

    def clear(self) -> None:
        self._added.clear()
        for found in self._sets:
            found.clear()


def in_flight() -> InFlight:
    """Return the work in flight on the stream that runs a node in this Python thread."""
    return _thread.running.in_flight  # type: ignore[no-any-return]


def synchronize_all() -> None:
    """Wait for the work of all streams."""
    for stream in list(_streams.values()):
        stream.in_flight.clear()


def _unknown(address: int) -> int | None:
    raise AssertionError("memory.py knows the device blocks")


block_of: Callable[[int], int | None] = _unknown  # device block that holds an address; memory.py sets it

_handles = itertools.count(0x5000_0000, 0x100)
_streams: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
_captures: list[Capture] = []
TRANSIENT = (NOT_READY, CAPTURE_UNSUPPORTED)
_events: dict[int, weakref.ref[Event]] = {}
_thread = threading.local()


class Stream:
    """cupy.cuda.Stream of the device that is current when the stream is made. The null stream (device -1) belongs to
    every device and cannot be captured."""

    null: Stream
    ptds: Stream

    def __init__(
        self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: int | None = None
    ) -> None:
        self.ptr = 0 if null else 2 if ptds else next(_handles)
        self.device_id = -1 if null or ptds else device.current()
        self.is_non_blocking = non_blocking
        self.priority = priority or 0
        self.capture: Capture | None = None
        self.in_flight = InFlight()
        _streams.setdefault(self.ptr, self)

    def __repr__(self) -> str:
        return f"<Stream {self.ptr} (device {self.device_id})>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.ptr == other.ptr

    def __hash__(self) -> int:
        return self.ptr

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.ptr)

    def __enter__(self) -> Self:
        index = self._own_device()
        _entered().append((index, self))
        _set_current(self, index)
        return self

    def __exit__(self, *_: object) -> None:
        """Make the stream of the enclosing block current, or the null stream: not one that `use` has made current."""
        index, _self = _entered().pop()
        outer = [stream for number, stream in _entered() if number == index]
        _set_current(outer[-1] if outer else Stream.null, index)

    def use(self) -> Stream:
        _set_current(self, self._own_device())
        return self

    def _own_device(self) -> int:
        """Return the stream's device, which must be current."""
        current = device.current()
        if self.device_id not in (-1, current):
            raise RuntimeError(
                f"The device that the stream is created on ({self.device_id}) does not match with the current device "
                f"({current})"
            )
        return current

    @property
    def done(self) -> bool:
        refuse_while_capturing("Stream.done", self)
        return True

    def synchronize(self) -> None:
        refuse_while_capturing("Stream.synchronize()", self)
        self.in_flight.clear()
        counters.synchronizations += 1

    def record(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        capture = event.capture
        if capture is None:
            return
        if capture not in _captures:
            raise CaptureError("the event was recorded in a capture that has ended")
        if self.capture not in (None, capture) or self.ptr == 0:
            raise CaptureError("an event of one capture cannot be waited for by another")
        capture.admit(self)
        capture.join(self, event.covers)

    def launch_host_func(self, callback: Callable[[object], None], arg: object) -> None:
        if self.capture is not None:
            raise CaptureError("launch_host_func: the emulator records data only, not Python functions")
        callback(arg)

    def begin_capture(self, mode: int | None = None) -> None:
        if self.ptr in (0, 1, 2):
            raise RuntimeError("cannot capture on the default (legacy) stream")
        if self.capture is not None:
            raise CaptureError("the stream is already being captured")
        self.capture = Capture(self)
        _captures.append(self.capture)

    def end_capture(self) -> Graph:
        capture = self.capture
        if capture is None or capture.origin is not self:
            raise CaptureError("no capture was begun on this stream")
        _captures.remove(capture)
        for ptr in capture.work:
            stream = _streams.get(ptr)
            if stream is not None:
                stream.capture = None
        if capture.invalid:
            raise CaptureError(f"the capture was invalidated: {capture.invalid}", 901)
        if capture.has_unjoined_work():
            raise CaptureError("work of a forked stream was not joined before end_capture", state.CAPTURE_UNJOINED)
        return Graph(capture.nodes, capture.launches)

    def is_capturing(self) -> bool:
        return self.capture is not None

    @staticmethod
    def from_external(source: Any) -> Stream:
        """cupy.cuda.Stream.from_external: the stream of an object that implements CUDA's stream protocol."""
        _, handle = source.__cuda_stream__()
        return find_stream(handle)


class ExternalStream(Stream):
    """cupy.cuda.ExternalStream: another name for a stream known by its handle."""

    def __new__(cls, ptr: int, device_id: int = -1) -> Stream:  # type: ignore[misc]
        return find_stream(ptr)

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        pass


Stream.null = Stream(null=True)
Stream.ptds = Stream(ptds=True)


class Event:
    """cupy.cuda.Event.

    Work is done when the call that enqueues it returns, so queries answer 0. Before that, they answer the statuses in
    ``answers``, each once if it is one of `TRANSIENT`. Any other stays, as the error of a device that has failed.
    """

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self.ptr = next(_handles)
        _events[self.ptr] = weakref.ref(self, partial(_forget, self.ptr))
        self.answers: list[int] = []
        self.capture: Capture | None = None
        self.covers: dict[int, int] = {}
        self.time: float | None = None
        self.in_flight: tuple[InFlight, int] | None = None  # of the stream, and the count of its work
        self.device_id = device.current()
        self.disable_timing = disable_timing

    @property
    def done(self) -> bool:
        self._refuse_captured("Event.done")
        return not query_event(self.ptr)

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or get_current_stream()
        if stream.device_id not in (-1, self.device_id):
            raise CUDARuntimeError(400, "cudaErrorInvalidResourceHandle: event and stream are of different devices")
        self.capture = stream.capture
        self.covers = stream.capture.done_before(stream) if stream.capture is not None else {}
        self.time = time.perf_counter()
        self.in_flight = stream.in_flight, stream.in_flight.count

    def synchronize(self) -> None:
        self._refuse_captured("Event.synchronize()")
        while self.answers and self.answers[0] == NOT_READY:
            self.answers.pop(0)
        if self.answers:
            raise CUDARuntimeError(self.answers[0], f"cudaError {self.answers[0]}")
        self._end_work()
        counters.synchronizations += 1

    def _end_work(self) -> None:
        """Note that the host knows that all work before the event has ended."""
        if self.in_flight is not None and self.in_flight[0].count == self.in_flight[1]:
            self.in_flight[0].clear()

    def _refuse_captured(self, what: str) -> None:
        if self.capture is not None and self.capture in _captures:
            raise CaptureError(f"{what}: the event was recorded while capturing")


def get_elapsed_time(start: Event, end: Event) -> float:
    """Return the milliseconds between two recorded events."""
    if start.time is None or end.time is None or start.disable_timing or end.disable_timing:
        raise CUDARuntimeError(400, "cudaErrorInvalidResourceHandle: the event holds no time")
    return (end.time - start.time) * 1e3


class Graph:
    """cupy.cuda.Graph: the recorded nodes, in stream order."""

    def __init__(self, nodes: list[Node], launches: int) -> None:
        self.nodes, self.launches = tuple(nodes), launches
        self.graph = next(_handles)
        self.graphExec = next(_handles)

    @property
    def node_count(self) -> int:
        return len(self.nodes)

    def launch(self, stream: Stream | None = None) -> None:
        stream = stream or get_current_stream()
        if stream.capture is not None:
            raise CaptureError("a graph cannot be launched into a stream that is being captured")
        check_null_stream(stream)
        _check_device(stream)
        counters.graph_launches += 1
        counters.graph_nodes += len(self.nodes)
        counters.graph_kernels += self.launches
        stream.in_flight.clear()  # a graph begins when all work before it has ended
        for node in self.nodes:
            _run(node, stream)

    def upload(self, stream: Stream | None = None) -> None:
        refuse_while_capturing("Graph.upload()", stream)

    def debug_dot_str(self, flags: int = 0) -> str:
        names = [f'  n{i} [label="{type(node).__name__}"];' for i, node in enumerate(self.nodes)]
        edges = [f"  n{i} -> n{i + 1};" for i in range(len(self.nodes) - 1)]
        return "\n".join(["digraph {", *names, *edges, "}"])


def get_current_stream(device_id: int = -1) -> Stream:
    """Return the stream that receives this Python thread's work on a device; the null stream by default."""
    streams: dict[int, Stream] = getattr(_thread, "streams", {})
    return streams.get(device.current() if device_id < 0 else device_id, Stream.null)


def _entered() -> list[tuple[int, Stream]]:
    """Return the blocks ``with stream`` that this Python thread is in: (device, stream)."""
    if not hasattr(_thread, "entered"):
        _thread.entered = []
    blocks: list[tuple[int, Stream]] = _thread.entered
    return blocks


def _set_current(stream: Stream, device_id: int) -> None:
    if not hasattr(_thread, "streams"):
        _thread.streams = {}
    _thread.streams[device.current() if device_id < 0 else device_id] = stream


def _check_device(stream: Stream) -> None:
    if stream.device_id not in (-1, device.current()):
        raise CUDARuntimeError(
            400,
            f"cudaErrorInvalidResourceHandle: the stream is of device {stream.device_id}, "
            f"device {device.current()} is in use",
        )


def find_stream(ptr: int) -> Stream:
    """Return the live stream with this handle; 1 is another handle of the null stream."""
    stream = _streams.get(0 if ptr == 1 else ptr)
    if stream is None:
        raise CUDARuntimeError(400, f"cudaErrorInvalidResourceHandle: no stream has the handle {ptr:#x}")
    return stream


def query_event(ptr: int) -> int:
    """Return the next status of the live event with this handle: 0, cudaSuccess, after its ``answers``."""
    found = _events.get(ptr)
    event = None if found is None else found()
    if event is None:
        return 400  # cudaErrorInvalidResourceHandle
    if event.answers:
        return event.answers.pop(0) if event.answers[0] in TRANSIENT else event.answers[0]
    event._end_work()
    return 0


def _forget(ptr: int, event: weakref.ref[Event]) -> None:
    del _events[ptr]


def check_null_stream(stream: Stream) -> None:
    """Raise CaptureError for the null stream during a capture: its work would wait for the captured stream."""
    if stream.ptr == 0 and _captures:
        for capture in _captures:
            capture.invalid = "the null stream was used"
        raise CaptureError(
            "the null stream was used while another stream is being captured: launch on the capturing stream",
            state.CAPTURE_IMPLICIT,
        )


def enqueue(node: Node, stream: Stream | None = None, *, count: bool = False) -> None:
    """Record the node if its stream (default: the current one) is being captured, otherwise run it."""
    state.raise_pending()
    stream = stream or get_current_stream()
    _check_device(stream)
    if stream.capture is not None:
        stream.capture.add(node, stream, count)
        return
    check_null_stream(stream)
    if count:
        counters.launches += 1
    _run(node, stream)


device_lock = threading.RLock()
"""Held while work accesses device memory: an early launch protects pages for all threads of the process."""


def _run(node: Node, stream: Stream) -> None:
    with device_lock:
        _thread.running = stream
        if not getattr(node, "early", False):
            stream.in_flight.clear()
        node.run()
        if hasattr(node, "accesses"):
            stream.in_flight.add(node)


def refuse_while_capturing(what: str, stream: Stream | None = None) -> None:
    """Raise CaptureError during a capture, which forbids allocation, synchronisation and reads on the host."""
    state.raise_pending()
    stream = stream or get_current_stream()
    if stream.capture is not None:
        raise CaptureError(f"{what} is not allowed while the stream is being captured")
    check_null_stream(stream)


def refuse_device_wide(what: str) -> None:
    """Raise CaptureError while any stream is being captured."""
    if _captures:
        raise CaptureError(f"{what} is not allowed while a stream is being captured")
