"""cupy.cuda."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self

from . import memory, runtime, stream
from .memory import (
    Memory,
    MemoryPointer,
    MemoryPool,
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
)

__all__ = [
    "Device", "Event", "ExternalStream", "Graph", "Memory", "MemoryPointer", "MemoryPool", "Stream",
    "UnownedMemory", "alloc", "alloc_pinned_memory", "get_current_stream", "get_device_id",
    "get_elapsed_time", "is_available", "memory", "nvtx", "profiler", "runtime", "set_allocator",
    "stream", "using_allocator",
]  # fmt: skip


class Device:
    """cupy.cuda.Device: the one emulated device."""

    compute_capability = "90"
    pci_bus_id = "0000:00:00.0"

    def __init__(self, device: int | None = None) -> None:
        runtime.setDevice(device or 0)
        self.id = 0

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device)

    def __hash__(self) -> int:
        return hash(("Device", self.id))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def use(self) -> Device:
        return self

    def synchronize(self) -> None:
        refuse_device_wide("Device.synchronize()")
        counters.synchronizations += 1

    @property
    def mem_info(self) -> tuple[int, int]:
        return runtime.memGetInfo()

    @property
    def attributes(self) -> dict[str, Any]:
        properties = runtime.PROPERTIES
        return {
            "MultiProcessorCount": properties["multiProcessorCount"],
            "MaxThreadsPerBlock": properties["maxThreadsPerBlock"],
            "MaxSharedMemoryPerBlock": properties["sharedMemPerBlock"],
            "MaxSharedMemoryPerBlockOptin": properties["sharedMemPerBlockOptin"],
            "WarpSize": properties["warpSize"],
            "CooperativeLaunch": 1,
        }


def get_device_id() -> int:
    return 0


def is_available() -> bool:
    return True


def _ignore(*_: object, **__: object) -> None:
    pass


nvtx = SimpleNamespace(RangePush=_ignore, RangePop=_ignore, RangePushC=_ignore, Mark=_ignore, MarkC=_ignore)
profiler = SimpleNamespace(start=_ignore, stop=_ignore)
