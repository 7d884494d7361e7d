"""The NVIDIA cards that CUDA sees, and why one of them cannot be used."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ovgpu.backends.cuda import errors, rt
from ovgpu.backends.cuda.kernels import Kernel
from ovgpu.errors import DeviceError, OpError

# Compute capability of the oldest card per version of CUDA: 13 compiles for no older one; before 7.0 the threads of
# a warp do not run independently.
OLDEST = {12: (7, 0), 13: (7, 5)}
DRIVER = Path("/proc/driver/nvidia/version")

# cudaError_t
INITIALIZATION, INSUFFICIENT_DRIVER, DEVICES_UNAVAILABLE, NO_DEVICE = 3, 35, 46, 100
ADVICE = {
    INITIALIZATION: "a process forked from one that uses CUDA cannot use it: start processes by 'spawn'",
    DEVICES_UNAVAILABLE: "another process has the GPU for itself, or its compute mode prohibits CUDA: see nvidia-smi",
    802: "the system is not ready: is the NVIDIA Fabric Manager running?",
    803: "libcuda and the driver's kernel module are of different versions: reboot, or install the driver anew",
    804: "the installed forward-compatibility package does not support this GPU: remove it",
}


@dataclass(frozen=True)
class Card:
    """What CUDA tells of a GPU; ``memory`` in bytes."""

    number: int
    name: str
    capability: tuple[int, int]
    memory: int
    multiprocessors: int
    integrated: bool

    @property
    def architecture(self) -> str:
        return "sm_{}{}".format(*self.capability)


def count() -> int:
    """How many cards there are; at least one. DeviceError that says why if CUDA finds none."""
    runtime = rt.cupy().cuda.runtime
    try:
        found = int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as e:
        raise DeviceError(_reason(runtime, e)) from None
    if not found:
        raise DeviceError(_no_card())
    return found


def card(number: int) -> Card:
    """A card by its number. DeviceError if there is none of that number, or no card at all."""
    cards = count()
    if number >= cards:
        there = "is one GPU, NVIDIA.0" if cards == 1 else f"are {cards} GPUs, NVIDIA.0 to NVIDIA.{cards - 1}"
        raise DeviceError(f"there {there}{_visible()}")
    with errors.translated():
        found = rt.cupy().cuda.runtime.getDeviceProperties(number)
    return Card(number, found["name"].decode(), (found["major"], found["minor"]), found["totalGlobalMem"],
                found["multiProcessorCount"], bool(found["integrated"]))


def check(number: int) -> None:
    """Raises DeviceError that says why if the card of this number, or a library that it takes, cannot be used."""
    found = card(number)
    version = rt.cupy().cuda.runtime.runtimeGetVersion() // 1000
    oldest = OLDEST.get(version, max(OLDEST.values()))
    if found.capability < oldest:
        older = found.capability >= OLDEST[12]
        raise DeviceError("{} has compute capability {}.{}, CUDA {} takes {}.{} at least".format(
            found.name, *found.capability, version, *oldest) + ('; pip install "ovgpu[cuda12]"' if older else ""))
    nvrtc_version()
    cublas_version()


def check_compiler(number: int) -> None:
    """Raises DeviceError that says why if kernels do not compile for the card of this number: CuPy may be installed
    without CUDA's headers."""
    text = '#include "common.cuh"\nextern "C" __global__ void nothing() {}'
    try:
        with errors.translated(), rt.cupy().cuda.Device(number):
            Kernel("nothing", text, "a kernel that does nothing", exported=True).function()
    except OpError as e:
        raise DeviceError(str(e)) from e


def uuid(number: int) -> str:
    """A card's UUID in 32 hexadecimal digits. CuPy cuts the bytes off at the first zero, NVIDIA's bindings do not."""
    found: bytes = rt.cupy().cuda.runtime.getDeviceProperties(number)["uuid"]
    if len(found) != 16:
        found = import_module("cuda.bindings.runtime").cudaGetDeviceProperties(number)[1].uuid.bytes
    return found.hex()


def memory(number: int) -> dict[str, int]:
    """Bytes of a card's memory: all, free, used by arrays of this process, and held by it for further ones."""
    cupy = rt.cupy()
    with errors.translated(), cupy.cuda.Device(number):
        free, total = cupy.cuda.runtime.memGetInfo()
        pool = cupy.get_default_memory_pool()
        return {"total": total, "free": free, "used": pool.used_bytes(), "held": pool.total_bytes()}


def libraries() -> str:
    """The versions of what a card is used through; of what is not there, nothing."""
    runtime = rt.cupy().cuda.runtime
    found = [f"CuPy {rt.cupy().__version__}", f"CUDA {version_text(runtime.runtimeGetVersion())}"]
    for name, version in (("NVRTC", nvrtc_version), ("cuBLAS", cublas_version)):
        with contextlib.suppress(DeviceError):
            found.append(f"{name} {version()}")
    cudnn = rt.cudnn()
    if cudnn is not None:
        found.append(f"cuDNN {cudnn.backend_version_string()}")
    return ", ".join(found)


def driver() -> str:
    """The version of the driver, where the system tells it, and of the CUDA that it supports."""
    supported = f"for CUDA {version_text(rt.cupy().cuda.runtime.driverGetVersion())}"
    try:
        told = re.search(r"\d{3,}\.[\d.]*\d", DRIVER.read_text())
    except OSError:
        told = None
    return f"{told[0]}, {supported}" if told else supported


def nvrtc_version() -> str:
    """The version of the compiler. DeviceError if it cannot be loaded."""
    try:
        return "{}.{}".format(*rt.cupy().cuda.nvrtc.getVersion())
    except Exception as e:  # of one of several libraries that look for it
        raise DeviceError(f"NVRTC, which compiles kernels, cannot be loaded: {_line(e)}. {rt.INSTALL}") from e


def cublas_version() -> str:
    """The version of cuBLAS. DeviceError if it, or its bindings, cannot be loaded."""
    cublas = rt.cublas()
    try:
        return ".".join(str(cublas.get_property(part)) for part in range(3))
    except Exception as e:
        raise DeviceError(f"cuBLAS cannot be loaded: {_line(e)}. {rt.INSTALL}") from e


def _reason(runtime: Any, error: Any) -> str:
    """Why CUDA does not even tell how many cards there are."""
    status = error.status
    if status == INSUFFICIENT_DRIVER:
        has, needs = runtime.driverGetVersion(), runtime.runtimeGetVersion()
        if not has:
            return "no NVIDIA driver was found; a container has to be given the GPU (docker run --gpus all)"
        way = ', or pip install "ovgpu[cuda12]" instead of cuda13' if has // 1000 == 12 < needs // 1000 else ""
        return (f"the NVIDIA driver is too old: it is for CUDA {version_text(has)}, CuPy for "
                f"{version_text(needs)}; update the driver{way}")
    if status == NO_DEVICE:
        return _no_card()
    return f"{error}; {ADVICE[status]}" if status in ADVICE else f"{error}; does nvidia-smi work?"


def _no_card() -> str:
    return f"CUDA finds no NVIDIA GPU{_visible()}; nvidia-smi lists those of the machine"


def _visible() -> str:
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if chosen is None else f" (CUDA_VISIBLE_DEVICES is '{chosen}')"


def version_text(number: int) -> str:
    """CUDA's version numbers as people write them: 12090 is 12.9."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _line(error: Exception) -> str:
    """The first line of a message."""
    return f"{type(error).__name__}: {str(error).strip()}".partition("\n")[0]
