"""Launches that may begin before the ones before them have ended (programmatic dependent launch).

The next kernel's blocks start as soon as multiprocessors have room for them. They compute addresses and load what no
launch of an inference writes, such as weights, while the blocks before them finish; then they wait for these
(`cuda_kernels/ptx.cuh`). From compute capability 9.0 on. CuPy has no such launch, so that it goes through NVIDIA's
bindings of the driver. ``OVGPU_EARLY_LAUNCHES=0`` turns it off.

A launch may begin once the one before it has begun, and so on back to the last one that was not early. That one, and
copies, begin when all before them has ended. An early launch therefore never overlaps with another inference of its
request, which begins with copies of its inputs.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from ovgpu.backends.cuda import rt

CAPABILITY = 90  # first compute capability whose devices start launches early
DRIVER_VERSION = 12030  # of CUDA, the first whose graphs have such launches
SWITCH = "OVGPU_EARLY_LAUNCHES"
_refused: list[str] = []  # errors of drivers that refused such a launch; none is tried after that


def is_supported(capability: int) -> bool:
    """Return whether launches on a device may begin early."""
    if capability < CAPABILITY or _refused or os.environ.get(SWITCH) == "0" or rt.driver() is None:
        return False
    status, version = rt.driver().cuDriverGetVersion()
    return not int(status) and version >= DRIVER_VERSION


class EarlyLaunch:
    """A launch that may be repeated. What the driver takes is prepared at the first one."""

    def __init__(self) -> None:
        self._function: Any = None
        self._prepared: tuple[Any, ...] = ()

    def __call__(self, function: Any, grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[Any],
                 shared: int, stream: Any) -> bool:
        """Launch CuPy's ``function`` on a stream, always with the same values of what follows it. Arguments are arrays
        of the device, None, NumPy scalars, and structs as NumPy arrays of one element. Return False if the driver
        refuses, now or before."""
        if _refused:
            return False
        if function is not self._function:
            self._prepared = _prepared(function, grid, block, arguments, shared, stream)
            self._function = function
        config, pointer, addresses, _ = self._prepared
        (status,) = rt.driver().cuLaunchKernelEx(config, pointer, addresses.ctypes.data, 0)
        if int(status):
            _refused.append(repr(status))
            text = f"The driver refuses to launch kernels early ({status!r}); they are launched in order instead."
            warnings.warn(text, RuntimeWarning, 3)
        return not int(status)


def _prepared(function: Any, grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[Any], shared: int,
              stream: Any) -> tuple[Any, ...]:
    """Return the configuration, the function, the addresses of the arguments, and these, which must stay alive."""
    driver = rt.driver()
    config, attribute = driver.CUlaunchConfig(), driver.CUlaunchAttribute()
    config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
    config.blockDimX, config.blockDimY, config.blockDimZ = (*block, 1, 1)[:3]
    config.sharedMemBytes, config.hStream = shared, stream.ptr
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    config.attrs, config.numAttrs = [attribute], 1
    values = [_value(x) for x in arguments]
    addresses = np.array([value.ctypes.data for value in values], np.uintp)
    return config, driver.CUfunction(function.ptr), addresses, values


def _value(argument: Any) -> np.ndarray[Any, Any]:
    """Return an argument as an array of its bytes on the host."""
    if argument is None:
        return np.zeros(1, np.uintp)
    if isinstance(argument, (np.ndarray, np.generic)):
        return np.ascontiguousarray(argument)
    return np.array([argument.data.ptr], np.uintp)
