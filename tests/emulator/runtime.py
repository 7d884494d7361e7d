"""cupy.cuda.runtime: the calls of the CUDA runtime that a backend makes."""

from __future__ import annotations

from typing import Any

from . import device as emulated
from . import memory
from .state import CUDARuntimeError, counters
from .stream import find_stream, query_event, refuse_device_wide, refuse_while_capturing
from .stream import synchronize_all as _synchronize_all

__all__ = ["CUDARuntimeError"]

is_hip = False
memcpyHostToHost, memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice, memcpyDefault = range(5)
streamDefault, streamNonBlocking = 0, 1
streamCaptureModeGlobal, streamCaptureModeThreadLocal, streamCaptureModeRelaxed = range(3)
streamLegacy, streamPerThread = 1, 2
CUDA_R_32F, CUDA_R_64F, CUDA_R_16F, CUDA_R_8I, CUDA_R_8U, CUDA_R_16BF = 0, 1, 2, 3, 8, 14
memoryTypeUnregistered, memoryTypeHost, memoryTypeDevice, memoryTypeManaged = range(4)

PROPERTIES: dict[str, Any] = {
    "name": b"ovgpu emulated device",
    "major": 9,
    "minor": 0,
    "multiProcessorCount": 132,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerMultiProcessor": 2048,
    "regsPerBlock": 65536,
    "regsPerMultiprocessor": 65536,
    "sharedMemPerBlock": 48 << 10,
    "sharedMemPerBlockOptin": 227 << 10,
    "sharedMemPerMultiprocessor": 228 << 10,
    "warpSize": 32,
    "l2CacheSize": 50 << 20,
    "clockRate": 1_980_000,
    "memoryClockRate": 2_619_000,
    "memoryBusWidth": 5120,
    "concurrentKernels": 1,
    "cooperativeLaunch": 1,
    "integrated": 0,
}


def getDeviceCount() -> int:
    if emulated.count() == 0:
        raise CUDARuntimeError(100, "cudaErrorNoDevice: no CUDA-capable device is detected")
    return emulated.count()


def getDevice() -> int:
    return emulated.current()


def setDevice(device: int) -> None:
    emulated.use(device)


def getDeviceProperties(device: int) -> dict[str, Any]:
    with emulated.using(device):
        return {
            **PROPERTIES,
            "totalGlobalMem": emulated.memory_bytes(),
            "pciBusID": device,
            "uuid": bytes([*range(0xE0, 0xEF), device + 1]),
        }


def deviceGetPCIBusId(device: int) -> str:
    with emulated.using(device):
        return f"0000:{device:02x}:00.0"


def deviceCanAccessPeer(device: int, peer: int) -> int:
    """Return 0: no device can access another's memory."""
    return 0


def driverGetVersion() -> int:
    return 13000


def runtimeGetVersion() -> int:
    return 13000


def deviceSynchronize() -> None:
    refuse_device_wide("deviceSynchronize()")
    _synchronize_all()
    counters.synchronizations += 1


def memGetInfo() -> tuple[int, int]:
    total = emulated.memory_bytes()
    return max(0, total - memory.used_bytes()), total


def memcpyAsync(dst: int, src: int, size: int, kind: int, stream: int) -> None:
    memory.copy(int(dst), int(src), int(size), kind, find_stream(stream))


def memcpy(dst: int, src: int, size: int, kind: int) -> None:
    refuse_while_capturing("a synchronous memcpy")
    memory.copy(int(dst), int(src), int(size), kind)


def memsetAsync(ptr: int, value: int, size: int, stream: int) -> None:
    memory.fill(int(ptr), value, int(size), find_stream(stream))


def memset(ptr: int, value: int, size: int) -> None:
    refuse_while_capturing("a synchronous memset")
    memory.fill(int(ptr), value, int(size))


def streamSynchronize(stream: int) -> None:
    find_stream(stream).synchronize()


def streamIsCapturing(stream: int) -> bool:
    return find_stream(stream).is_capturing()


eventQuery = query_event


def graphDestroy(graph: int) -> None:
    pass


def graphExecDestroy(graph: int) -> None:
    pass


def profilerStart() -> None:
    pass


def profilerStop() -> None:
    pass


class PointerAttributes:
    """cudaPointerAttributes: the device of an address, and its address on the device and on the host."""

    def __init__(self, address: int) -> None:
        on_device, pinned = memory.is_device(address), memory.is_pinned(address)
        start = memory.space().block_of(address) if on_device else None
        self.device = memory.space().device[start] if start is not None else 0 if pinned else -2
        self.devicePointer = address if on_device or pinned else 0
        self.hostPointer = 0 if on_device else address
        self.type = memoryTypeDevice if on_device else memoryTypeHost if pinned else memoryTypeUnregistered


def pointerGetAttributes(ptr: int) -> PointerAttributes:
    return PointerAttributes(int(ptr))


def hostRegister(ptr: int, size: int, flags: int = 0) -> None:
    """Make existing host memory count as pinned."""
    refuse_while_capturing("hostRegister")
    begin, end = int(ptr), int(ptr) + int(size)
    if any(other < end and begin < other + length for other, length in list(memory._pinned.items())):
        raise CUDARuntimeError(712, "cudaErrorHostMemoryAlreadyRegistered")
    memory._pinned[begin] = int(size)


def hostUnregister(ptr: int) -> None:
    if memory._pinned.pop(int(ptr), None) is None:
        raise CUDARuntimeError(713, "cudaErrorHostMemoryNotRegistered")
