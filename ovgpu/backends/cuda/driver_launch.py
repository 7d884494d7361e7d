"""Launches with attributes that CuPy's lack, through NVIDIA's bindings of the driver, from compute capability 9.0 on.

Early launches (programmatic dependent launch) may begin before the ones before them have ended. The next kernel's
blocks start as soon as multiprocessors have room for them. They compute addresses and load what no launch of an
inference writes, such as weights, while the blocks before them finish; then they wait for these
(`cuda_kernels/ptx.cuh`). Multiprocessors divide their memory into shared memory and L1 cache in the same way for all of
them: blocks that need another division wait until a multiprocessor is idle. ``OVGPU_EARLY_LAUNCHES=0`` turns it off.

An early launch may begin once the one before it has begun, and so on back to the last one that was not early. That one,
and copies, begin when all before them has ended. An early launch therefore never overlaps with another inference of its
request, which begins with copies of its inputs.

The blocks of a cluster run at the same time, and store to each other's shared memory.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from ovgpu.backends.cuda import rt
from ovgpu.ops.base.recorder import MAX_CLUSTER

CAPABILITY = 90  # first compute capability whose devices have such launches
DRIVER_VERSION = 12030  # of CUDA, the first whose graphs have early launches
SWITCH = "OVGPU_EARLY_LAUNCHES"
REFUSALS = (1, 801)  # of a launch: invalid value, not supported
_refused: list[str] = []  # errors of drivers that refused an early launch; none is tried after that


def begins_early(capability: int) -> bool:
    """Return whether launches on a device may begin early."""
    return not _refused and os.environ.get(SWITCH) != "0" and forms_clusters(capability)


def forms_clusters(capability: int) -> bool:
    """Return whether blocks of a launch on a device may form clusters."""
    if capability < CAPABILITY or rt.driver() is None:
        return False
    status, version = rt.driver().cuDriverGetVersion()
    return not int(status) and version >= DRIVER_VERSION


def max_cluster(capability: int) -> int:
    """Return the most blocks of a cluster on a device that has them: in data centres twice as many as elsewhere."""
    return 2 * MAX_CLUSTER if capability < 120 else MAX_CLUSTER


class DriverLaunch:
    """A launch that may be repeated, ``early`` or not, whose blocks form clusters of ``cluster`` consecutive ones. What
    the driver takes is prepared at the first launch."""

    def __init__(self, early: bool, cluster: int = 1) -> None:
        self.early, self.cluster = early, cluster
        self._prepared_for: tuple[Any, bool] | None = None  # a function, and whether it begins early
        self._prepared: tuple[Any, ...] = ()

    def __call__(self, function: Any, grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[Any],
                 shared: int, stream: Any) -> bool:
        """Launch CuPy's ``function`` on a stream, always with the same values of what follows it. Arguments are arrays
        of the device, None, NumPy scalars, and structs as NumPy arrays of one element.

        Return False if the driver refuses to launch early, now or before; a cluster is launched in order then. Raises
        CuPy's CUDADriverError if the launch fails otherwise.
        """
        early = self.early and not _refused
        if not early and self.cluster == 1:
            return False
        if self._prepared_for != (function, early):
            attributes = _attributes(early, self.cluster)
            if early:
                _prefer_shared_memory(function)
            if self.cluster > MAX_CLUSTER:
                _allow_large_clusters(function)
            self._prepared = _prepared(function, grid, block, arguments, shared, stream, attributes)
            self._prepared_for = function, early
        config, pointer, addresses, _ = self._prepared
        (status,) = rt.driver().cuLaunchKernelEx(config, pointer, addresses.ctypes.data, 0)
        if not int(status):
            return True
        if not early or int(status) not in REFUSALS:
            raise rt.cupy().cuda.driver.CUDADriverError(int(status))
        _refused.append(repr(status))
        text = f"The driver refuses to launch kernels early ({status!r}); they are launched in order instead."
        warnings.warn(text, RuntimeWarning, 3)
        return self(function, grid, block, arguments, shared, stream)


def _prefer_shared_memory(function: Any) -> None:
    """Ask for as much shared memory, and as little L1 cache, as a multiprocessor has. The driver may decline."""
    driver = rt.driver()
    driver.cuFuncSetAttribute(driver.CUfunction(function.ptr),
                              driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                              int(driver.CUshared_carveout.CU_SHAREDMEM_CARVEOUT_MAX_SHARED))


def _allow_large_clusters(function: Any) -> None:
    driver = rt.driver()
    name = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    driver.cuFuncSetAttribute(driver.CUfunction(function.ptr), name, 1)


def _attributes(early: bool, cluster: int) -> list[Any]:
    driver, found = rt.driver(), []
    names = driver.CUlaunchAttributeID
    if early:
        attribute = driver.CUlaunchAttribute()
        attribute.id = names.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        found.append(attribute)
    if cluster > 1:
        attribute = driver.CUlaunchAttribute()
        attribute.id = names.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        extents = attribute.value.clusterDim
        extents.x, extents.y, extents.z = cluster, 1, 1
        found.append(attribute)
    return found


def _prepared(function: Any, grid: tuple[int, ...], block: tuple[int, ...], arguments: Sequence[Any], shared: int,
              stream: Any, attributes: list[Any]) -> tuple[Any, ...]:
    """Return the configuration, the function, the addresses of the arguments, and these, which must stay alive."""
    driver = rt.driver()
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
    config.blockDimX, config.blockDimY, config.blockDimZ = (*block, 1, 1)[:3]
    config.sharedMemBytes, config.hStream = shared, stream.ptr
    config.attrs, config.numAttrs = attributes, len(attributes)
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
