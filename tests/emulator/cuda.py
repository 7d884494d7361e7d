"""Stand-in for cupy.cuda."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self

from . import cufft_emu as cufft
from . import device as emulated
from . import memory, runtime, stream
from .memory import (
    Memory,
    MemoryPointer,
    MemoryPool,
    PinnedMemory,
    PinnedMemoryPointer,
    UnownedMemory,
    alloc,
    alloc_pinned_memory,
    set_allocator,
    using_allocator,
)
from .state import counters
from .stream import (
    Event,
    ExternalStream,
    Graph,
    Stream,
    get_current_stream,
    get_elapsed_time,
    refuse_device_wide,
    synchronize_all,
)

__all__ = [
    "Device", "Event", "ExternalStream", "Graph", "Memory", "MemoryPointer", "MemoryPool", "PinnedMemory",
    "PinnedMemoryPointer", "Stream", "UnownedMemory", "alloc", "alloc_pinned_memory", "compiler", "cufft",
    "driver", "function", "get_current_stream", "get_device_id", "get_elapsed_time", "is_available", "memory",
    "nvrtc", "nvtx", "profiler", "runtime", "set_allocator", "stream", "using_allocator",
]  # fmt: skip


class Device:
    """cupy.cuda.Device: the device with this number, or the current one."""

    compute_capability = "90"

    def __init__(self, device: int | None = None) -> None:
        self.id = emulated.current() if device is None else int(device)
        self._outer: list[int] = []

    @property
    def pci_bus_id(self) -> str:
        return runtime.deviceGetPCIBusId(self.id)

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self) -> int:
        return hash(("Device", self.id))

    def __enter__(self) -> Self:
        self._outer.append(emulated.current())
        self.use()
        return self

    def __exit__(self, *_: object) -> None:
        emulated.use(self._outer.pop())

    def use(self) -> Device:
        emulated.use(self.id)
        return self

    def synchronize(self) -> None:
        refuse_device_wide("Device.synchronize()")
        synchronize_all()
        counters.synchronizations += 1

    @property
    def mem_info(self) -> tuple[int, int]:
        with emulated.using(self.id):
            return runtime.memGetInfo()

    @property
    def attributes(self) -> dict[str, Any]:
        properties = runtime.getDeviceProperties(self.id)
        return {
            "MultiProcessorCount": properties["multiProcessorCount"],
            "MaxThreadsPerBlock": properties["maxThreadsPerBlock"],
            "MaxSharedMemoryPerBlock": properties["sharedMemPerBlock"],
            "MaxSharedMemoryPerBlockOptin": properties["sharedMemPerBlockOptin"],
            "WarpSize": properties["warpSize"],
            "CooperativeLaunch": 1,
        }


def get_device_id() -> int:
    return emulated.current()


def is_available() -> bool:
    return emulated.count() > 0


class CompileException(Exception):
    """cupy.cuda.compiler.CompileException: the message is the compiler's log."""


class CUDADriverError(RuntimeError):
    """cupy.cuda.driver.CUDADriverError: raised by kernel launches and module loads."""

    def __init__(self, status: int, message: str = "") -> None:
        super().__init__(message or f"CUresult {status}")
        self.status = status


def _ignore(*_: object, **__: object) -> None:
    pass


nvtx = SimpleNamespace(RangePush=_ignore, RangePop=_ignore, RangePushC=_ignore, Mark=_ignore, MarkC=_ignore)
profiler = SimpleNamespace(start=_ignore, stop=_ignore)
nvrtc = SimpleNamespace(getVersion=lambda: (13, 0))
SHARED_SIZE_BYTES, MAX_DYNAMIC_SHARED_SIZE_BYTES = 1, 8  # CUfunction_attribute
# kernel.py adds the functions that compile, load and query kernels. The emulator has its own `cache_directory`.
compiler = SimpleNamespace(CompileException=CompileException)
function = SimpleNamespace()
driver = SimpleNamespace(
    CUDADriverError=CUDADriverError,
    CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES=SHARED_SIZE_BYTES,
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=MAX_DYNAMIC_SHARED_SIZE_BYTES,
)
