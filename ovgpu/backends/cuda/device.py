"""The NVIDIA GPUs that CUDA finds, their properties, and the reasons why one cannot be used."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ovgpu._util.extras import install_command
from ovgpu.backends.cuda import driver_launch, errors, kernels, rt
from ovgpu.errors import DeviceError, OpError

# Lowest compute capability that is supported, by CUDA's major version. CUDA 13 does not compile for lower ones; below
# 7.0 the threads of a warp are not scheduled independently.
MIN_CAPABILITY = {12: (7, 0), 13: (7, 5)}
DRIVER_FILE = Path("/proc/driver/nvidia/version")

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
    """Properties of a GPU. ``number`` is its device ordinal in CUDA, ``memory`` is in bytes."""

    number: int
    name: str
    capability: tuple[int, int]
    memory: int
    multiprocessors: int
    integrated: bool

    @property
    def architecture(self) -> str:
        return "sm_{}{}".format(*self.capability)


def is_installed() -> bool:
    """Return whether CuPy can be imported."""
    try:
        rt.cupy()
    except DeviceError:
        return False
    return True


def count() -> int:
    """Return the number of GPUs, at least one. DeviceError that states the reason if CUDA finds none."""
    runtime = rt.cupy().cuda.runtime
    try:
        cards = int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as e:
        raise DeviceError(_reason(runtime, e)) from None
    if not cards:
        raise DeviceError(_no_card())
    return cards


def card(number: int) -> Card:
    """Return a GPU by its number. DeviceError if there is none of that number, or no GPU at all."""
    cards = count()
    if number >= cards:
        existing = "is one GPU, NVIDIA.0" if cards == 1 else f"are {cards} GPUs, NVIDIA.0 to NVIDIA.{cards - 1}"
        raise DeviceError(f"there {existing}{_visible()}")
    with errors.translated():
        properties = rt.cupy().cuda.runtime.getDeviceProperties(number)
    return Card(
        number,
        properties["name"].decode(),
        (properties["major"], properties["minor"]),
        properties["totalGlobalMem"],
        properties["multiProcessorCount"],
        bool(properties["integrated"]),
    )


def check(number: int) -> None:
    """Raise DeviceError that states the reason if the GPU of this number, or a required library, cannot be used."""
    gpu = card(number)
    version = rt.cupy().cuda.runtime.runtimeGetVersion() // 1000
    needed = MIN_CAPABILITY.get(version, max(MIN_CAPABILITY.values()))
    if gpu.capability < needed:
        by_cuda12 = gpu.capability >= MIN_CAPABILITY[12]
        raise DeviceError(
            "{} has compute capability {}.{}, CUDA {} takes {}.{} at least".format(
                gpu.name, *gpu.capability, version, *needed
            )
            + (f"; {install_command('cuda12')}" if by_cuda12 else "")
        )
    nvrtc_version()
    cublas_version()


def check_compiler(number: int) -> None:
    """Raise DeviceError that states the reason if kernels do not compile for the GPU of this number.

    CuPy may be installed without CUDA's headers, for example.
    """
    try:
        with errors.translated(), rt.cupy().cuda.Device(number):
            kernels.nothing().function()
    except OpError as e:
        raise DeviceError(str(e)) from e


def largest_cluster(number: int) -> int:
    """Return the most blocks of a cluster on the GPU of this number, 1 if it has no clusters."""
    if not driver_launch.forms_clusters(int("{}{}".format(*card(number).capability))):
        return 1
    with errors.translated(), rt.cupy().cuda.Device(number):
        return kernels.largest_cluster()


def uuid(number: int) -> str:
    """Return a GPU's UUID in 32 hexadecimal digits.

    CuPy truncates it at the first zero byte; NVIDIA's bindings do not.
    """
    raw: bytes = rt.cupy().cuda.runtime.getDeviceProperties(number)["uuid"]
    if len(raw) != 16:
        raw = import_module("cuda.bindings.runtime").cudaGetDeviceProperties(number)[1].uuid.bytes
    return raw.hex()


def memory(number: int) -> dict[str, int]:
    """Return bytes of a GPU's memory: "total", "free", "used" by arrays of this process, and "held" by its pool, which
    includes the used ones."""
    cupy = rt.cupy()
    with errors.translated(), cupy.cuda.Device(number):
        free, total = cupy.cuda.runtime.memGetInfo()
        pool = cupy.get_default_memory_pool()
        return {"total": total, "free": free, "used": pool.used_bytes(), "held": pool.total_bytes()}


def libraries() -> str:
    """Return the versions of the CUDA libraries that can be loaded, as one text."""
    runtime = rt.cupy().cuda.runtime
    versions = [f"CuPy {rt.cupy().__version__}", f"CUDA {version_text(runtime.runtimeGetVersion())}"]
    for name, version in (("NVRTC", nvrtc_version), ("cuBLAS", cublas_version)):
        with contextlib.suppress(DeviceError):
            versions.append(f"{name} {version()}")
    cudnn = rt.cudnn()
    if cudnn is not None:
        versions.append(f"cuDNN {cudnn.backend_version_string()}")
    return ", ".join(versions)


def driver() -> str:
    """Return the version of CUDA that the driver supports, and the driver's version if the system reports it."""
    supported = f"for CUDA {version_text(rt.cupy().cuda.runtime.driverGetVersion())}"
    try:
        match = re.search(r"\d{3,}\.[\d.]*\d", DRIVER_FILE.read_text())
    except OSError:
        match = None
    return f"{match[0]}, {supported}" if match else supported


def nvrtc_version() -> str:
    """Return the version of NVRTC. DeviceError if it cannot be loaded."""
    try:
        return "{}.{}".format(*rt.cupy().cuda.nvrtc.getVersion())
    except Exception as e:  # several libraries search for it, with exceptions of their own
        raise DeviceError(f"NVRTC, which compiles kernels, cannot be loaded: {_line(e)}. {rt.INSTALL}") from e


def cublas_version() -> str:
    """Return the version of cuBLAS. DeviceError if the library or its bindings cannot be loaded."""
    cublas = rt.cublas()
    try:
        return ".".join(str(cublas.get_property(part)) for part in range(3))
    except Exception as e:
        raise DeviceError(f"cuBLAS cannot be loaded: {_line(e)}. {rt.INSTALL}") from e


def _reason(runtime: Any, error: Any) -> str:
    """Return the reason why CUDA cannot count the GPUs."""
    status = error.status
    if status == INSUFFICIENT_DRIVER:
        has, needs = runtime.driverGetVersion(), runtime.runtimeGetVersion()
        if not has:
            return "no NVIDIA driver was found; a container has to be given the GPU (docker run --gpus all)"
        alternative = ', or pip install ".[cuda12]" instead of cuda13' if has // 1000 == 12 < needs // 1000 else ""
        return (
            f"the NVIDIA driver is too old: it is for CUDA {version_text(has)}, CuPy for "
            f"{version_text(needs)}; update the driver{alternative}"
        )
    if status == NO_DEVICE:
        return _no_card()
    return f"{error}; {ADVICE[status]}" if status in ADVICE else f"{error}; does nvidia-smi work?"


def _no_card() -> str:
    return f"CUDA finds no NVIDIA GPU{_visible()}; nvidia-smi lists those of the machine"


def _visible() -> str:
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if chosen is None else f" (CUDA_VISIBLE_DEVICES is '{chosen}')"


def version_text(version: int) -> str:
    """Return a version number of CUDA in its usual form: 12090 is 12.9."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _line(error: Exception) -> str:
    """Return the first line of an error's message, with its type."""
    return f"{type(error).__name__}: {str(error).strip()}".partition("\n")[0]
