"""Device memory on the host: guarded, poisoned blocks in an address range of its own, never reused."""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import mmap
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from . import device, state
from . import stream as streams
from .state import CUDARuntimeError, EmulatorError, counters
from .stream import (
    Stream,
    check_null_stream,
    enqueue,
    get_current_stream,
    refuse_device_wide,
    refuse_while_capturing,
)
from .toolchain import runtime

PAGE = mmap.PAGESIZE
POISON = 0xFB
ALIGNMENT = 16
OUT_OF_MEMORY = 2

H2H, H2D, D2H, D2D, DEFAULT = range(5)


class _AddressSpace:
    """A reserved address range. A block ends at an inaccessible page; freed pages become inaccessible for good."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.runtime = runtime()
        for exponent in (42, 38, 36, 34):
            base = self.runtime.emu_reserve(1 << exponent)
            if base:
                break
        else:
            raise EmulatorError("cannot reserve an address range for device memory")
        self.base, self.end = base, base + (1 << exponent)
        # Wrong indices may lead far to either side, where no other memory of the process may lie.
        margin = 1 << exponent - 3
        self.next, self.last = base + margin, base + (1 << exponent) - margin
        self.starts: list[int] = []
        self.sizes: dict[int, int] = {}
        self.live: set[int] = set()
        self.device: dict[int, int] = {}
        self.used: dict[int, int] = {}  # bytes per device

    def allocate(self, nbytes: int) -> int:
        number = device.current()
        padded = -(-nbytes // ALIGNMENT) * ALIGNMENT
        pages = -(-padded // PAGE) * PAGE
        with self.lock:
            first = self.next
            used = self.used.get(number, 0) + nbytes
            if used > device.memory_bytes() or first + pages + PAGE > self.last:
                raise CUDARuntimeError(OUT_OF_MEMORY, "cudaErrorMemoryAllocation: out of memory")
            self.next = first + pages + PAGE
            if self.runtime.emu_commit(first, pages):
                raise MemoryError("emulated device memory: mprotect failed")
            start = first + pages - padded
            self.starts.append(start)
            self.sizes[start] = nbytes
            self.live.add(start)
            self.device[start] = number
            self.used[number] = used
        return start

    def free(self, start: int) -> None:
        nbytes = self.sizes[start]
        with self.lock:
            self.live.discard(start)
            self.used[self.device[start]] -= nbytes
        intact = self.slack_intact(start)
        first = start // PAGE * PAGE
        end = -(-(start + nbytes) // PAGE) * PAGE
        self.runtime.emu_release(first, end - first)
        if not intact:
            state.report_later(overrun_message(nbytes))

    def block_of(self, address: int) -> int | None:
        """Return the start of the nearest block at or below the address, live or freed; None if there is none."""
        index = bisect.bisect_right(self.starts, address) - 1
        return self.starts[index] if index >= 0 else None

    def slack_intact(self, start: int) -> bool:
        """Return whether nothing was written between the block's end and its guard page; renew the poison there."""
        end = start + self.sizes[start]
        slack = -end % ALIGNMENT
        if not slack or ctypes.string_at(end, slack) == bytes([POISON]) * slack:
            return True
        ctypes.memset(end, POISON, slack)
        return False


_space: _AddressSpace | None = None
_space_lock = threading.Lock()
_pinned: dict[int, int] = {}


def space() -> _AddressSpace:
    """Return the address space of device memory, reserved at the first call."""
    global _space
    if _space is None:
        with _space_lock:
            if _space is None:
                _space = _AddressSpace()
    return _space


def used_bytes() -> int:
    """Return the bytes in use on the current device."""
    return space().used.get(device.current(), 0)


def overrun_message(nbytes: int) -> str:
    return f"a write went past the end of a device array of {nbytes} bytes"


def is_device(address: int) -> bool:
    return _space is not None and _space.base <= address < _space.end


def is_pinned(address: int, nbytes: int = 1) -> bool:
    # Finalizers change the dict. Listing its keys is safe: unlike other loops, it allocates nothing that runs them.
    return any(start <= address and address + nbytes <= start + _pinned.get(start, 0) for start in list(_pinned))


def block_in_use(address: int) -> int | None:
    """Return the start of the living device block that holds the address, None if there is none."""
    block = space().block_of(address) if is_device(address) else None
    return block if block in space().live and address <= block + space().sizes[block] else None


streams.block_of = block_in_use


def pages(block: int) -> tuple[int, int]:
    """Return the first address and the size of the pages of a device block, which no other block has a part of."""
    first, end = block // PAGE * PAGE, -(-(block + max(space().sizes[block], 1)) // PAGE) * PAGE
    return first, end - first


def describe(address: int) -> str:
    """Describe where an address lies, for error messages."""
    if address == 0:
        return "the null pointer"
    if not is_device(address):
        return f"{address:#x}, which is not device memory"
    start = space().block_of(address)
    if start is None:
        return f"{address:#x}, before every device array"
    nbytes = space().sizes[start]
    freed = "" if start in space().live else "freed "
    if address < start + max(nbytes, 1):
        return f"{address:#x}, byte {address - start} of a {freed}device array of {nbytes} bytes"
    if start not in space().live and address < -(-(start + nbytes) // PAGE) * PAGE + PAGE:
        return f"{address:#x}, just past a freed device array of {nbytes} bytes"
    return f"{address:#x}, {address - start - nbytes} bytes past the end of a device array of {nbytes} bytes"


def check_span(address: int, nbytes: int, what: str) -> None:
    """Raise CUDARuntimeError unless [address, address + nbytes) lies in one live device block."""
    if nbytes == 0:
        return
    if is_device(address):
        start = space().block_of(address)
        if start in space().live and address + nbytes <= start + space().sizes[start]:
            return
    raise CUDARuntimeError(
        state.ILLEGAL_ADDRESS,
        f"{what}: {nbytes} bytes at {describe(address)}: no living device array covers them",
    )


class Memory:
    """cupy.cuda.Memory: one device block, freed when the last reference goes."""

    def __init__(self, size: int) -> None:
        refuse_while_capturing("device allocation")
        self.size = size
        self.device_id = device.current()
        self.ptr = space().allocate(size) if size else 0
        counters.allocs += 1
        if size:
            self._finalizer = weakref.finalize(self, space().free, self.ptr)
            self._finalizer.atexit = False


class UnownedMemory:
    """cupy.cuda.UnownedMemory: a device range that `owner` frees, which stays referenced."""

    def __init__(self, ptr: int, size: int, owner: object, device_id: int = -1) -> None:
        self.ptr, self.size, self._owner = ptr, size, owner
        self.device_id = device.current() if device_id < 0 else device_id


class MemoryPointer:
    """cupy.cuda.MemoryPointer: an address inside a block that it keeps alive."""

    __slots__ = ("__weakref__", "device_id", "mem", "ptr")

    def __init__(self, mem: Memory | UnownedMemory, offset: int) -> None:
        self.mem = mem
        self.ptr = mem.ptr + offset
        self.device_id = mem.device_id

    def __int__(self) -> int:
        return self.ptr

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + int(offset))

    __radd__ = __add__

    def __sub__(self, offset: int) -> MemoryPointer:
        return self + -offset

    def copy_from_device(self, source: MemoryPointer, size: int) -> None:
        copy(self.ptr, source.ptr, size, D2D)

    def copy_from_device_async(self, source: MemoryPointer, size: int, stream: Stream | None = None) -> None:
        copy(self.ptr, source.ptr, size, D2D, stream)

    def copy_from_host(self, mem: int | ctypes.c_void_p, size: int) -> None:
        refuse_while_capturing("a synchronous copy from the host")
        copy(self.ptr, _address(mem), size, H2D)

    def copy_from_host_async(self, mem: int | ctypes.c_void_p, size: int, stream: Stream | None = None) -> None:
        copy(self.ptr, _address(mem), size, H2D, stream)

    def copy_to_host(self, mem: int | ctypes.c_void_p, size: int) -> None:
        refuse_while_capturing("a synchronous copy to the host")
        copy(_address(mem), self.ptr, size, D2H)

    def copy_to_host_async(self, mem: int | ctypes.c_void_p, size: int, stream: Stream | None = None) -> None:
        copy(_address(mem), self.ptr, size, D2H, stream)

    def memset(self, value: int, size: int) -> None:
        fill(self.ptr, value, size)

    def memset_async(self, value: int, size: int, stream: Stream | None = None) -> None:
        fill(self.ptr, value, size, stream)


def _address(mem: int | ctypes.c_void_p) -> int:
    return int(mem.value or 0) if isinstance(mem, ctypes.c_void_p) else int(mem)


# ---- allocators ------------------------------------------------------------------------------------------
_allocator: Callable[[int], MemoryPointer] | None = None
_thread = threading.local()


def alloc(size: int) -> MemoryPointer:
    """cupy.cuda.alloc: a poisoned block of `size` bytes from the current allocator."""
    return (getattr(_thread, "allocator", None) or _allocator or default_pool.malloc)(int(size))


def set_allocator(allocator: Callable[[int], MemoryPointer] | None = None) -> None:
    global _allocator
    _allocator = allocator


@contextlib.contextmanager
def using_allocator(allocator: Callable[[int], MemoryPointer] | None = None) -> Iterator[None]:
    """cupy.cuda.using_allocator: set the allocator of this thread within the block."""
    previous = getattr(_thread, "allocator", None)
    _thread.allocator = allocator
    try:
        yield
    finally:
        _thread.allocator = previous


class OutOfMemoryError(MemoryError):
    """cupy.cuda.memory.OutOfMemoryError."""

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        limited = f", limit set to: {limit:,} bytes" if limit else ""
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes{limited}).")


class MemoryPool:
    """cupy.cuda.MemoryPool without pooling: reuse of addresses would hide accesses to freed memory.

    It counts the blocks that CuPy's pool would hold: a freed block serves only allocations on the stream that it was
    allocated on. Blocks are not split.
    """

    def __init__(self, allocator: object = None) -> None:
        self._limit = 0
        self._lock = threading.Lock()
        self._free: dict[tuple[int, int], list[int]] = {}  # bytes of freed blocks, by device and stream
        self._total: dict[int, int] = {}  # bytes of all blocks, by device

    def malloc(self, size: int) -> MemoryPointer:
        used = self.used_bytes()
        if self._limit and used + size > self._limit:
            raise OutOfMemoryError(size, used, self._limit)
        try:
            memory = Memory(size)
        except CUDARuntimeError as error:
            if error.status != OUT_OF_MEMORY:
                raise
            raise OutOfMemoryError(size, used) from None
        if size:
            freed = self._free.setdefault((device.current(), get_current_stream().ptr), [])
            # The finalizer may run at any time, so it takes no lock.
            weakref.finalize(memory, freed.append, self._block(freed, size)).atexit = False
        return MemoryPointer(memory, 0)

    def _block(self, freed: list[int], size: int) -> int:
        """Return the bytes of the block that an allocation takes: the best fit among freed blocks, or a new block."""
        with self._lock:
            fits = [block for block in freed if block >= size]
            if fits:
                freed.remove(min(fits))
                return min(fits)
            self._total[device.current()] = self.total_bytes() + size
        return size

    def free_all_blocks(self, stream: Stream | None = None) -> None:
        refuse_device_wide("MemoryPool.free_all_blocks()")
        with self._lock:
            for (number, ptr), freed in list(self._free.items()):
                if number == device.current() and (stream is None or ptr == stream.ptr):
                    while freed:
                        self._total[number] -= freed.pop()

    def used_bytes(self) -> int:
        return used_bytes()

    def total_bytes(self) -> int:
        return self._total.get(device.current(), 0)

    def free_bytes(self) -> int:
        return self.total_bytes() - self.used_bytes()

    def n_free_blocks(self) -> int:
        return sum(len(freed) for (number, _), freed in list(self._free.items()) if number == device.current())

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        self._limit = size or int((fraction or 0) * device.memory_bytes())

    def get_limit(self) -> int:
        return self._limit


default_pool = MemoryPool()


class PinnedMemory:
    """cupy.cuda.PinnedMemory: poisoned bytes, exactly as many as requested."""

    def __init__(self, size: int) -> None:
        self.bytes = (ctypes.c_char * size)()
        self.ptr, self.size = ctypes.addressof(self.bytes), size
        ctypes.memset(self.ptr, POISON, size)
        _pinned[self.ptr] = size
        weakref.finalize(self.bytes, _pinned.pop, self.ptr, None).atexit = False


def PinnedMemoryPointer(mem: PinnedMemory, offset: int) -> ctypes.Array[ctypes.c_char]:
    """cupy.cuda.PinnedMemoryPointer: a buffer with `.ptr` that keeps the memory alive."""
    nbytes = mem.size - offset
    kind = type("PinnedMemoryPointer", (ctypes.c_char * nbytes,), {"_type_": ctypes.c_char, "_length_": nbytes})
    buffer = kind.from_buffer(mem.bytes, offset)
    buffer.ptr, buffer.size = mem.ptr + offset, lambda: nbytes
    return buffer


def alloc_pinned_memory(size: int) -> ctypes.Array[ctypes.c_char]:
    """cupy.cuda.alloc_pinned_memory: a host buffer that captured copies may use. As in CuPy's pool it is larger than
    requested: pass `count` to numpy.frombuffer."""
    return PinnedMemoryPointer(PinnedMemory(max(512, 1 << (max(size, 1) - 1).bit_length())), 0)


# ---- copies ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class MemcpyNode:
    """A cudaMemcpyAsync of a kind such as H2D."""

    dst: int
    src: int
    nbytes: int
    kind: int
    pinned: bool = False  # whether the host side must be pinned, as in a graph

    def run(self) -> None:
        if self.kind in (H2D, D2D):
            check_span(self.dst, self.nbytes, "memcpy to the device")
        if self.kind in (D2H, D2D):
            check_span(self.src, self.nbytes, "memcpy from the device")
        host = self.src if self.kind == H2D else self.dst
        if self.pinned and self.kind in (H2D, D2H) and not is_pinned(host, self.nbytes):
            raise CUDARuntimeError(state.ILLEGAL_ADDRESS, f"memcpy: {host:#x} is pinned memory that has been freed")
        if self.kind == H2D:
            counters.h2d_bytes += self.nbytes
        elif self.kind == D2H:
            counters.d2h_bytes += self.nbytes
        elif self.kind == D2D:
            counters.d2d_bytes += self.nbytes
        ctypes.memmove(self.dst, self.src, self.nbytes)


@dataclass(frozen=True, slots=True)
class MemsetNode:
    """A cudaMemsetAsync."""

    dst: int
    value: int
    nbytes: int

    def run(self) -> None:
        check_span(self.dst, self.nbytes, "memset")
        ctypes.memset(self.dst, self.value, self.nbytes)


def copy(dst: int, src: int, nbytes: int, kind: int, stream: Stream | None = None) -> None:
    """Enqueue a cudaMemcpyAsync. While capturing, the host side must be pinned memory, which outlives the call."""
    stream = stream or get_current_stream()
    if kind == DEFAULT:
        kind = {(False, False): H2H, (True, False): H2D, (False, True): D2H, (True, True): D2D}[
            is_device(dst), is_device(src)
        ]
    for address, on_device in ((dst, kind in (H2D, D2D)), (src, kind in (D2H, D2D))):
        if nbytes and is_device(address) != on_device:
            raise CUDARuntimeError(
                state.INVALID_VALUE, f"memcpy: kind {kind} does not fit the address {describe(address)}"
            )
        if stream.capture is not None and nbytes and not on_device and not is_pinned(address, nbytes):
            refuse_while_capturing("a copy between the device and host memory that is not pinned", stream)
    if nbytes:
        enqueue(MemcpyNode(dst, src, nbytes, kind, stream.capture is not None), stream)
    else:
        check_null_stream(stream)


def fill(dst: int, value: int, nbytes: int, stream: Stream | None = None) -> None:
    """Enqueue a cudaMemsetAsync."""
    if nbytes:
        enqueue(MemsetNode(dst, value & 0xFF, nbytes), stream, count=True)
