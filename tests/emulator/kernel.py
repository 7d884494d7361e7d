"""RawModule and RawKernel: CUDA C++ compiled for the host, launched with raw argument bytes."""

from __future__ import annotations

import ctypes
import hashlib
import pickle
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from struct import unpack_from
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from . import cuda, device, state
from .kernel_source import extern_c_kernels, launch_bounds, with_launchers, without_comments
from .memory import MemoryPointer, block_in_use, describe, is_device, is_pinned, overrun_message, pages, space
from .state import (
    ALL,
    LANDINGS,
    CUDARuntimeError,
    EmulatorError,
    counters,
    current_landing,
    current_reads,
    current_thread_order,
    current_time_limit,
)
from .stream import Stream, enqueue, get_current_stream, in_flight
from .toolchain import compile_library, include_folders, included_text, runtime

STATIC_SHARED_LIMIT = 48 << 10
SHARED_LIMIT = 227 << 10
MAX_THREADS = 1024
MULTIPROCESSORS = 132
TRANSFERS = (b"copy_later", b"store_later")  # functions of the emulator that begin asynchronous transfers
MAX_COOPERATIVE_BLOCKS = 2 * MULTIPROCESSORS


class _Guarded(ctypes.Structure):
    """Pages that a kernel must not access, or only read, before it waits for the launches before it."""

    _fields_ = (("memory", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("readable", ctypes.c_uint64))


class _Counted(ctypes.Structure):
    """Memory, and counts of the reads of each byte."""

    _fields_ = (("memory", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("reads", ctypes.c_void_p))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("dynamic_shared", ctypes.c_uint64),
        ("max_dynamic_shared", ctypes.c_uint64),
        ("order", ctypes.c_uint),
        ("cooperative", ctypes.c_uint),
        ("cluster", ctypes.c_uint),
        ("landing", ctypes.c_uint),
        ("seconds", ctypes.c_double),
        ("guarded", ctypes.POINTER(_Guarded)),
        ("guarded_count", ctypes.c_uint64),
        ("counted", ctypes.POINTER(_Counted)),
        ("counted_count", ctypes.c_uint64),
        ("waited", ctypes.c_uint64),
    )


class _Error(ctypes.Structure):
    _fields_ = (
        ("message", ctypes.c_char * 256),
        ("block", ctypes.c_uint * 3),
        ("thread", ctypes.c_uint * 3),
        ("address", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class Parameter:
    """Size in bytes and kind of one kernel parameter: p(ointer), pointer to c(onst), f(loat), i(nteger), b(ool) or
    s(truct)."""

    size: int
    kind: str


@dataclass(frozen=True)
class Function:
    """A compiled kernel of `module`; ``transfers``: whether a kernel of the module copies or stores asynchronously."""

    name: str
    entry: ctypes._FuncPointer  # type: ignore[name-defined]
    parameters: tuple[Parameter, ...]
    max_threads: int
    cooperative: bool
    transfers: bool
    module: RawModule = field(compare=False, repr=False)


class StructArgument(bytes):
    """The bytes of a parameter that is passed by value."""


class ArrayArgument(StructArgument):
    """A struct that begins with a device pointer (a CArray)."""


@dataclass(frozen=True, slots=True)
class KernelNode:
    """A launch as a CUDA graph records it: the function, the geometry and the arguments' bytes.

    A launch that is ``early`` may begin before those before it have ended (programmatic dependent launch). Before it
    waits for them, it accesses nothing that work since the last full dependency writes, and writes nothing that this
    work reads (see `stream.InFlight`). So many consecutive blocks form a ``cluster``."""

    function: Function
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[bytes, ...]
    shared: int = 0
    max_shared: int = 0
    pointers: tuple[int, ...] = field(default=())
    device: int = 0
    early: bool = False
    cluster: int = 1

    def run(self) -> None:
        blocks = {block for block in map(self._checked_block, self.pointers) if block is not None}
        landing = current_landing()
        if landing == ALL and (self.function.transfers or (self.early and any(self._guarded()))):
            self._run_with_all_landings({*blocks, *self._blocks(1)})
        else:
            self._launch(blocks, max(landing, 0))

    def _run_with_all_landings(self, blocks: set[int]) -> None:
        """Run the kernel with all `LANDINGS`. CUDARuntimeError if results differ in any bit."""
        before = _contents(blocks)
        first, *others = LANDINGS
        self._launch(blocks, first)
        wanted = _contents(blocks)
        for landing in others:
            for block, contents in before.items():
                ctypes.memmove(block, contents, len(contents))
            with state.count_reads():  # the first launch has counted
                self._launch(blocks, landing)
            if _contents(blocks) != wanted:
                raise CUDARuntimeError(
                    state.LAUNCH_FAILURE,
                    f"{self.function.name}: the results depend on when asynchronous copies and stores land: "
                    f"those of landing {first} and {landing} differ",
                )

    def _launch(self, blocks: set[int], landing: int) -> None:
        """Run the kernel, whose pointers lead to `blocks`.

        With even landings, the work in flight has ended before the launch. Otherwise the kernel's wait for it acts as a
        barrier of the block, which hides a missing __syncthreads."""
        function = self.function
        buffers = [ctypes.create_string_buffer(value, len(value)) for value in self.arguments]
        array = (ctypes.c_void_p * max(1, len(buffers)))(*[ctypes.addressof(buffer) for buffer in buffers])
        guarded = list(self._guarded()) if self.early and landing % 2 else []
        counted = list(self._counted())
        config = _Config(
            self.grid, self.block, self.shared, self.max_shared, current_thread_order(), function.cooperative,
            self.cluster, landing, current_time_limit(), (_Guarded * len(guarded))(*guarded), len(guarded),
            (_Counted * len(counted))(*counted), len(counted),
        )  # fmt: skip
        error = _Error()
        entry = function.module.counting_entry(function.name) if counted else function.entry
        if runtime().emu_launch(entry, array, ctypes.byref(config), ctypes.byref(error)):
            raise CUDARuntimeError(
                state.ILLEGAL_ADDRESS if error.address else state.LAUNCH_FAILURE, self._message(error, landing)
            )
        if self.early and not config.waited:
            raise CUDARuntimeError(
                state.LAUNCH_FAILURE, f"{function.name} is launched early, but does not wait for the launches before it"
            )
        for block in blocks:
            if not space().slack_intact(block):
                raise CUDARuntimeError(
                    state.ILLEGAL_ADDRESS, f"{function.name}: {overrun_message(space().sizes[block])}"
                )

    def accesses(self) -> tuple[list[int], list[int]]:
        """Return addresses in the memory that the kernel reads, and in that which it writes."""
        found: tuple[list[int], list[int]] = [], []
        for parameter, argument in zip(self.function.parameters, self.arguments):
            if parameter.kind in "pc":
                found[parameter.kind == "p"].append(int.from_bytes(argument, "little"))
            elif parameter.kind == "s":  # any word may be a pointer to memory that is written
                found[1].extend(unpack_from(f"<{len(argument) // 8}Q", argument))
        return found

    def _blocks(self, written: int) -> set[int]:
        """Return the device blocks that the kernel reads (0), or those that it writes (1)."""
        return {block for block in map(block_in_use, self.accesses()[written]) if block is not None}

    def _guarded(self) -> Iterator[_Guarded]:
        """Yield the memory of this launch that the work in flight still accesses."""
        (read, written), writes = in_flight().blocks, self._blocks(1)
        for block in self._blocks(0) | writes:
            if block in written or (block in writes and block in read):
                yield _Guarded(*pages(block), block not in written)

    def _counted(self) -> Iterator[_Counted]:
        """Yield the memory of this launch whose reads are counted."""
        reads = current_reads()
        blocks = self._blocks(0) | self._blocks(1) if reads else set()
        for array in reads:
            if block_in_use(array.address) in blocks:
                array.kernels.add(self.function.name)
                yield _Counted(array.address, array.counts.size, array.counts.ctypes.data)

    def _message(self, error: _Error, landing: int) -> str:
        text = error.message.decode(errors="replace")
        if text.startswith("illegal memory access"):
            text = f"{text} at {describe(error.address)}"
        block, thread = tuple(error.block), tuple(error.thread)
        return f"{self.function.name}: {text} (block {block}, thread {thread}, landing {landing})"

    def _checked_block(self, index: int) -> int | None:
        """Return the device block that pointer argument `index` points into; None for null and pinned memory.

        Raise CUDARuntimeError for any other address."""
        address = int.from_bytes(self.arguments[index][:8], "little")
        on_device = is_device(address)
        if not on_device and (address == 0 or is_pinned(address)):
            return None
        block = space().block_of(address) if on_device else None
        # An empty view may point one past the end.
        if block not in space().live or address > block + space().sizes[block]:
            raise CUDARuntimeError(
                state.ILLEGAL_ADDRESS, f"{self.function.name}: argument {index} points to {describe(address)}"
            )
        if space().device[block] != self.device:
            raise CUDARuntimeError(
                state.ILLEGAL_ADDRESS,
                f"{self.function.name}: argument {index} points to memory of device {space().device[block]}, "
                f"the kernel runs on device {self.device}",
            )
        return block


class RawModule:
    """cupy.RawModule for source code; compiled when the first kernel is requested.

    Kernels are those named by `name_expressions` and those declared `extern "C"`."""

    def __init__(
        self,
        code: str | None = None,
        *,
        path: str | None = None,
        options: tuple[str, ...] = (),
        backend: str = "nvrtc",
        translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False,
        name_expressions: Sequence[str] | None = None,
        jitify: bool | None = None,
    ) -> None:
        if (code is None) == (path is None):
            raise TypeError("Exactly one of `code` and `path` keyword arguments must be given.")
        if code is None:
            raise EmulatorError("RawModule: cubin and PTX files cannot be emulated; give `code`")
        if not isinstance(options, tuple):
            raise TypeError(f"RawModule: options must be a tuple of str, not {type(options).__name__}")
        if name_expressions is not None and not any(option.startswith(("-std=", "--std=")) for option in options):
            options = (*options, "-std=c++17")
        self.code = code
        self.options = options
        self.backend = backend
        self.enable_cooperative_groups = enable_cooperative_groups
        self.name_expressions = list(name_expressions or ())
        self._exports: list[str] = []
        self._functions: dict[str, Function] = {}
        self._bounds: dict[str, int] = {}
        self._library: ctypes.CDLL | None = None
        self._counting: ctypes.CDLL | None = None
        self._transfers = False

    def compile(self, log_stream: object = None) -> None:
        self._load(())

    def get_function(self, name: str) -> RawKernel:
        return RawKernel._of(self, self._function(name))

    def _function(self, name: str) -> Function:
        if name not in self._functions:
            if self._library is None:
                self._load(())
            if name not in self._exports:
                if name in self._bounds:
                    raise CUDARuntimeError(
                        500, f'named symbol not found: {name} is not extern "C"; give it as a name expression'
                    )
                self._load((name,))  # an extern "C" kernel that a macro declares
            self._functions[name] = self._describe(name)
            counters.captured_loads += int(get_current_stream().capture is not None)
        return self._functions[name]

    def _load(self, more: tuple[str, ...]) -> None:
        text = without_comments(included_text(self.code, include_folders(self.options)))
        self._bounds = {name: bound or MAX_THREADS for name, bound in launch_bounds(text).items()}
        exports = dict.fromkeys([*extern_c_kernels(text), *self.name_expressions, *self._exports, *more])
        self._exports, self._counting = list(exports), None
        self._library = compile_library(with_launchers(self.code, self._exports), self.options)
        symbols = Path(self._library._name).read_bytes()
        self._transfers = any(name in symbols for name in TRANSFERS)

    def counting_entry(self, name: str) -> Any:
        """Return the entry of a kernel that counts reads."""
        if self._counting is None:
            self._counting = compile_library(with_launchers(self.code, self._exports), self.options, counting=True)
        return getattr(self._counting, f"emu_run_{self._exports.index(name)}")

    def _describe(self, name: str) -> Function:
        index = self._exports.index(name)
        sizes, kinds = (ctypes.c_int * 256)(), (ctypes.c_int * 256)()
        count = getattr(self._library, f"emu_describe_{index}")(sizes, kinds)
        parameters = tuple(Parameter(sizes[i], chr(kinds[i])) for i in range(count))
        bare = re.split(r"[<\s]", name.strip())[0].split("::")[-1]
        bound = self._bounds.get(bare, MAX_THREADS)
        entry = getattr(self._library, f"emu_run_{index}")
        return Function(name, entry, parameters, bound, self.enable_cooperative_groups, self._transfers, self)


class RawKernel:
    """cupy.RawKernel: `kernel(grid, block, args, shared_mem=..., stream=...)`."""

    def __init__(
        self,
        code: str,
        name: str,
        options: tuple[str, ...] = (),
        backend: str = "nvrtc",
        translate_cucomplex: bool = False,
        *,
        enable_cooperative_groups: bool = False,
        jitify: bool | None = None,
    ) -> None:
        self._module = RawModule(code, options=options, enable_cooperative_groups=enable_cooperative_groups)
        self._resolved: Function | None = None
        self.name = name
        self.max_dynamic_shared_size_bytes = 0

    @classmethod
    def _of(cls, module: RawModule, function: Function) -> RawKernel:
        kernel = cls.__new__(cls)
        kernel._module, kernel._resolved, kernel.name = module, function, function.name
        kernel.max_dynamic_shared_size_bytes = 0
        return kernel

    @property
    def function(self) -> Function:
        if self._resolved is None:
            self._resolved = self._module._function(self.name)
        return self._resolved

    @property
    def max_threads_per_block(self) -> int:
        return self.function.max_threads

    def compile(self, log_stream: object = None) -> None:
        _ = self.function

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "max_dynamic_shared_size_bytes" and value > SHARED_LIMIT:
            raise CUDARuntimeError(state.INVALID_VALUE, f"{self.name}: {value} bytes of shared memory exceed 227 KB")
        object.__setattr__(self, name, value)

    def __call__(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        *,
        shared_mem: int = 0,
        stream: Stream | None = None,
    ) -> None:
        launch(self.function, grid, block, args, shared_mem, self.max_dynamic_shared_size_bytes, stream)


class Module:
    """cupy.cuda.function.Module: `load` takes the machine code that `compile_using_nvrtc` returns."""

    def __init__(self) -> None:
        self._module: RawModule | None = None
        self._names: dict[str, str] = {}  # by symbol

    def load(self, cubin: bytes) -> None:
        if cubin not in _modules:
            if not cubin.startswith(MAGIC):
                raise cuda.CUDADriverError(200, "CUDA_ERROR_INVALID_IMAGE: device kernel image is invalid")
            code, options, names = pickle.loads(zlib.decompress(cubin[len(MAGIC) :]))
            _modules[cubin] = RawModule(code, options=options, name_expressions=names)
        self._module = _modules[cubin]
        self._names = {_symbol(name): name for name in self._module.name_expressions}

    def get_function(self, name: str) -> LoadedFunction:
        if self._module is None:
            raise EmulatorError("nothing has been loaded into this module")
        return LoadedFunction(self._module._function(self._names.get(name, name)))


class LoadedFunction:
    """cupy.cuda.function.Function: `function(grid, block, args, shared_mem, stream, enable_cooperative_groups)`."""

    def __init__(self, function: Function) -> None:
        self.function, self.cooperative_function = function, replace(function, cooperative=True)
        self.max_shared = 0
        self.carveout, self.large_clusters = -1, False
        self.ptr = next(_pointers)
        _loaded[self.ptr] = self

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[Any],
        shared_mem: int = 0,
        stream: Stream | None = None,
        enable_cooperative_groups: bool = False,
    ) -> None:
        function = self.cooperative_function if enable_cooperative_groups else self.function
        launch(function, grid, block, args, shared_mem, self.max_shared, stream)


def loaded(ptr: int) -> LoadedFunction:
    """Return the live function with this handle."""
    return _loaded[ptr]


MAGIC = b"\x7fEMU"
_modules: dict[bytes, RawModule] = {}
_loaded: WeakValueDictionary[int, LoadedFunction] = WeakValueDictionary()
_pointers = count(1)


def compile_using_nvrtc(
    source: str,
    options: tuple[str, ...] = (),
    arch: str | None = None,
    filename: str = "kern.cu",
    name_expressions: Sequence[str] | None = None,
    log_stream: object = None,
    cache_in_memory: bool = False,
    jitify: bool | None = None,
    method: str | None = None,
) -> tuple[bytes, dict[str, str] | None]:
    """cupy.cuda.compiler.compile_using_nvrtc: machine code, and the symbol of each name expression."""
    names = list(name_expressions or ())
    code = MAGIC + zlib.compress(pickle.dumps((source, options, names)), 1)
    if code not in _modules:
        module = RawModule(source, options=options, name_expressions=names)
        module.compile()
        _modules[code] = module
    return code, {name: _symbol(name) for name in names} if names else None


def _symbol(name: str) -> str:
    """Return a symbol that stands in for the mangled name."""
    return "_Z" + hashlib.sha256(name.encode()).hexdigest()[:16]


def set_attribute(function: int, attribute: int, value: int) -> None:
    """cupy.cuda.driver.funcSetAttribute for the size of dynamic shared memory."""
    if attribute != cuda.MAX_DYNAMIC_SHARED_SIZE_BYTES:
        raise EmulatorError(f"funcSetAttribute: attribute {attribute} is not emulated")
    if value > SHARED_LIMIT:
        raise cuda.CUDADriverError(state.INVALID_VALUE, f"{value} bytes of shared memory exceed 227 KB")
    _loaded[function].max_shared = value


def get_attribute(attribute: int, function: int) -> int:
    """cupy.cuda.driver.funcGetAttribute for sizes of shared memory."""
    if attribute == cuda.MAX_DYNAMIC_SHARED_SIZE_BYTES:
        return _loaded[function].max_shared
    if attribute != cuda.SHARED_SIZE_BYTES:
        raise EmulatorError(f"funcGetAttribute: attribute {attribute} is not emulated")
    return STATIC_SHARED_LIMIT  # at most: the host compiler does not report it


def resident_blocks(function: int, threads: int, shared: int) -> int:
    """cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor."""
    assert _loaded[function].function.max_threads >= threads
    return MAX_COOPERATIVE_BLOCKS // MULTIPROCESSORS


cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor = resident_blocks
cuda.compiler.compile_using_nvrtc = compile_using_nvrtc
cuda.function.Module = Module
cuda.driver.funcSetAttribute, cuda.driver.funcGetAttribute = set_attribute, get_attribute


def launch(
    function: Function,
    grid: Sequence[int],
    block: Sequence[int],
    args: Sequence[Any],
    shared: int = 0,
    max_shared: int = 0,
    stream: Stream | None = None,
) -> None:
    """Check a launch as the driver does, and also the arguments against the parameters; then enqueue it."""
    whole_grid, whole_block = geometry(function, grid, block)
    if shared > STATIC_SHARED_LIMIT and shared > max_shared:
        raise CUDARuntimeError(
            state.INVALID_VALUE,
            f"{function.name}: {shared} bytes of dynamic shared memory exceed 48 KB; "
            "set CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES",
        )
    if len(args) != len(function.parameters):
        raise TypeError(f"{function.name}: {len(args)} arguments given, the kernel takes {len(function.parameters)}")
    arguments = tuple(_argument(function, i, arg) for i, arg in enumerate(args))
    pointers = tuple(
        i for i, arg in enumerate(args) if function.parameters[i].kind in "pc" or isinstance(arg, ArrayArgument)
    )
    here = device.current()
    node = KernelNode(function, whole_grid, whole_block, arguments, shared, max_shared, pointers, here)
    enqueue(node, stream, count=True)


def _contents(blocks: set[int]) -> dict[int, bytes]:
    return {block: ctypes.string_at(block, space().sizes[block]) for block in blocks}


def geometry(
    function: Function, grid: Sequence[int], block: Sequence[int]
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    if not isinstance(grid, tuple) or not isinstance(block, tuple):
        raise TypeError(f"{function.name}: grid and block must be tuples")
    gx, gy, gz = (int(n) for n in (*grid, 1, 1)[:3])
    bx, by, bz = (int(n) for n in (*block, 1, 1)[:3])
    threads, blocks = bx * by * bz, gx * gy * gz
    if min(gx, gy, gz) < 1 or gx > 2**31 - 1 or max(gy, gz) > 65535:
        raise CUDARuntimeError(state.INVALID_VALUE, f"{function.name}: invalid grid {(gx, gy, gz)}")
    if min(bx, by, bz) < 1 or bz > 64 or threads > function.max_threads:
        raise CUDARuntimeError(
            state.INVALID_VALUE,
            f"{function.name}: invalid block {(bx, by, bz)}: at most {function.max_threads} threads",
        )
    if function.cooperative and blocks > MAX_COOPERATIVE_BLOCKS:
        raise CUDARuntimeError(
            state.COOPERATIVE_TOO_LARGE,
            f"{function.name}: {blocks} blocks in a cooperative launch, at most {MAX_COOPERATIVE_BLOCKS}",
        )
    return (gx, gy, gz), (bx, by, bz)


_SCALARS = "?bhilqBHILQefdFD"
_KINDS = {"f": "f", "i": "i", "u": "i", "b": "b"}


def _argument(function: Function, index: int, value: Any) -> bytes:
    """Return the bytes of one argument. CuPy passes a Python int as int64 and a float as float64, whatever the
    kernel takes; here TypeError is raised unless size and kind match the parameter."""
    parameter = function.parameters[index]
    where = f"{function.name}: argument {index}"
    kind = "s"
    if value is None:
        data, kind = bytes(8), "p"
    elif isinstance(value, MemoryPointer):
        data, kind = value.ptr.to_bytes(8, "little"), "p"
    elif hasattr(value, "_device_array_pointer"):
        data, kind = value._device_array_pointer().to_bytes(8, "little"), "p"
    elif isinstance(value, StructArgument):
        data = bytes(value)
    elif isinstance(value, np.ndarray):  # CuPy passes the bytes of one element by value: right for a struct only
        if value.size != 1:
            raise TypeError(
                f"{where}: a numpy.ndarray of shape {value.shape}; only those of size one are passed by value"
            )
        if parameter.kind != "s":
            raise TypeError(f"{where}: Unsupported type {type(value)}: a host array cannot be passed to a kernel")
        data = value.tobytes()
    elif isinstance(value, (bool, int, float)) or (isinstance(value, np.generic) and value.dtype.char in _SCALARS):
        if not isinstance(value, np.generic):
            value = {bool: np.bool_, int: np.int64, float: np.float64}[type(value)](value)
        data, kind = value.tobytes(), _KINDS.get(value.dtype.kind, "s")
    else:
        raise TypeError(f"{where}: Unsupported type {type(value)}")
    if len(data) != parameter.size:
        raise TypeError(f"{where} has {len(data)} bytes ({type(value).__name__}), its parameter {parameter.size}")
    wanted = "p" if parameter.kind == "c" else parameter.kind
    address = kind == "i" and wanted == "p"
    if not address and "s" not in (kind, wanted) and kind != wanted:
        raise TypeError(
            f"{where} is of kind {kind!r} ({type(value).__name__}), its parameter of kind {parameter.kind!r}"
        )
    return data
