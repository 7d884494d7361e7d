"""Kernel launches with attributes that CuPy cannot set, through NVIDIA's bindings of the driver, from compute
capability 9.0 on.

Early launches (programmatic dependent launch) may begin before the launches before them have ended: their blocks start
as soon as multiprocessors have room for them. They compute addresses and load memory that no launch of an inference
writes, such as weights, while the blocks of earlier launches finish; then they wait for those
(`cuda_kernels/ptx.cuh`). Early launches prefer the same division of a multiprocessor's memory into shared memory and
L1 cache: a block that needs another division waits until a multiprocessor is idle. ``OVGPU_EARLY_LAUNCHES=0`` turns
early launches off.

An early launch may begin once the launch before it has begun. If that one is early as well, the same holds for it, and
so on back to the last launch that is not early. Launches that are not early, and copies, begin when all work before
them has ended. An inference begins with copies of its inputs, so that its early launches never overlap with another
inference of the request.

The blocks of a cluster run at the same time, and store to each other's shared memory. They share a part of the device
(a GPC), whose multiprocessors must have room for all of them; MIG slices and cut-down devices have smaller parts. So
the driver is asked before a cluster is launched, and another form of the kernel takes its place where it does not fit.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ovgpu.backends.cuda import rt
from ovgpu.ops.base.recorder import PORTABLE_CLUSTER

CAPABILITY = 90  # first compute capability whose devices have such launches
DRIVER_VERSION = 12030  # of CUDA, the first whose graphs have early launches
SWITCH = "OVGPU_EARLY_LAUNCHES"
INVALID_VALUE, NOT_SUPPORTED, INVALID_CLUSTER_SIZE = 1, 801, 912  # CUresult
Calls = Sequence[Callable[[], Any]]
_in_order: set[int] = set()  # handles of functions that the driver has refused to launch early
_carveouts: dict[int, bool] = {}  # the carveout that was set, by the handle of a function
_unsupported: list[str] = []  # errors of a driver without early launches; after the first error, none is tried


def begins_early(capability: int) -> bool:
    """Return whether launches on a device may begin early."""
    return not _unsupported and os.environ.get(SWITCH) != "0" and forms_clusters(capability)


def forms_clusters(capability: int) -> bool:
    """Return whether devices of a compute capability have clusters, and the driver launches them."""
    if capability < CAPABILITY or rt.driver() is None:
        return False
    status, version = rt.driver().cuDriverGetVersion()
    return not int(status) and version >= DRIVER_VERSION


def fits(function: Any, block: tuple[int, ...], shared: int, cluster: int) -> bool:
    """Return whether the current device can run clusters of ``cluster`` blocks of CuPy's ``function``, each with
    ``shared`` bytes of dynamic shared memory. Raises CuPy's CUDADriverError if the driver cannot answer."""
    if cluster > PORTABLE_CLUSTER and not _allow_large_clusters(function):
        return False
    driver = rt.driver()
    config = _config((cluster,), block, shared, 0, _attributes(False, cluster))
    status, clusters = driver.cuOccupancyMaxActiveClusters(driver.CUfunction(function.ptr), config)
    if int(status) not in (0, INVALID_CLUSTER_SIZE):
        raise rt.cupy().cuda.driver.CUDADriverError(int(status))
    return not int(status) and clusters > 0


@dataclass(frozen=True)
class Clusters:
    """Clusters of a launch: the number of consecutive ``blocks`` of each, whether they ``fit`` on the device, and the
    calls that take the launch's place ``instead`` if they do not or if the driver refuses their size."""

    blocks: int = 1
    fit: Callable[[], bool] = lambda: True
    instead: Callable[[], Calls] | None = None


NO_CLUSTERS = Clusters()


class DriverLaunch:
    """A launch that may be repeated, ``early`` or not, whose blocks form ``clusters``. The driver's arguments are
    prepared at the first launch.

    ``carveout``: whether an early launch prefers as much shared memory, and as little L1 cache, as there is."""

    def __init__(self, early: bool, clusters: Clusters = NO_CLUSTERS, carveout: bool = True) -> None:
        self.early, self.clusters, self.carveout = early, clusters, carveout
        self._prepared_for: tuple[Any, bool] | None = None  # a function, and whether it begins early
        self._prepared: tuple[Any, ...] = ()
        self._calls: Calls | None = None  # in place of a launch that has been refused

    def __call__(
        self,
        function: Any,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        arguments: Sequence[Any],
        shared: int,
        stream: Any,
    ) -> bool:
        """Launch CuPy's ``function`` on a stream. All calls for a function must pass the same other arguments. Kernel
        arguments are arrays of the device, None, NumPy scalars, and structs as NumPy arrays of one element.

        Return False if the launch has no clusters, and the driver refuses to launch it early, now or before; with
        clusters, it is launched in order then. Raises CuPy's CUDADriverError if the launch fails for another reason.
        """
        if self._calls is not None:
            return self._launch_instead()
        early = self.early and not _unsupported and function.ptr not in _in_order
        blocks = self.clusters.blocks
        if not early and blocks == 1:
            return False
        if self._prepared_for != (function, early):
            if not self.clusters.fit():
                return self._launch_instead()
            if blocks > PORTABLE_CLUSTER:
                _allow_large_clusters(function)
            attributes = _attributes(early, blocks)
            self._prepared = _prepared(function, grid, block, arguments, shared, stream, attributes)
            self._prepared_for = function, early
        if early and _carveouts.get(function.ptr) is not self.carveout:  # other launches may have set it
            _prefer_shared_memory(function, self.carveout)
            _carveouts[function.ptr] = self.carveout
        config, pointer, addresses, _ = self._prepared
        (status,) = rt.driver().cuLaunchKernelEx(config, pointer, addresses.ctypes.data, 0)
        if not int(status):
            return True
        if int(status) == INVALID_CLUSTER_SIZE and self.clusters.instead is not None:
            return self._launch_instead()
        if early and int(status) == NOT_SUPPORTED:
            _unsupported.append(repr(status))
            warnings.warn(
                f"The driver does not launch kernels early ({status!r}); they are launched in order instead.",
                RuntimeWarning,
                3,
            )
        elif early and int(status) == INVALID_VALUE:
            _in_order.add(function.ptr)
            warnings.warn(
                f"The driver refuses to launch a kernel early ({status!r}); it is launched in order instead.",
                RuntimeWarning,
                3,
            )
        else:
            raise rt.cupy().cuda.driver.CUDADriverError(int(status))
        return self(function, grid, block, arguments, shared, stream)

    def _launch_instead(self) -> bool:
        """Run the calls that take the place of clusters. Return True."""
        if self._calls is None:
            assert self.clusters.instead is not None
            self._calls = self.clusters.instead()
        for call in self._calls:
            call()
        return True


def _prefer_shared_memory(function: Any, most: bool) -> None:
    """Ask for as much shared memory as a multiprocessor has, and as little L1 cache, if ``most``; otherwise leave the
    division to the driver. The driver may decline."""
    driver = rt.driver()
    carveout = driver.CUshared_carveout
    driver.cuFuncSetAttribute(
        driver.CUfunction(function.ptr),
        driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
        int(carveout.CU_SHAREDMEM_CARVEOUT_MAX_SHARED if most else carveout.CU_SHAREDMEM_CARVEOUT_DEFAULT),
    )


def _allow_large_clusters(function: Any) -> bool:
    """Allow clusters that not all devices have. Return whether the driver does so."""
    driver = rt.driver()
    name = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    (status,) = driver.cuFuncSetAttribute(driver.CUfunction(function.ptr), name, 1)
    return not int(status)


def _attributes(early: bool, cluster: int) -> list[Any]:
    driver, attributes = rt.driver(), []
    names = driver.CUlaunchAttributeID
    if early:
        attribute = driver.CUlaunchAttribute()
        attribute.id = names.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    if cluster > 1:
        attribute = driver.CUlaunchAttribute()
        attribute.id = names.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        extents = attribute.value.clusterDim
        extents.x, extents.y, extents.z = cluster, 1, 1
        attributes.append(attribute)
    return attributes


def _prepared(
    function: Any,
    grid: tuple[int, ...],
    block: tuple[int, ...],
    arguments: Sequence[Any],
    shared: int,
    stream: Any,
    attributes: list[Any],
) -> tuple[Any, ...]:
    """Return the configuration, the function, the addresses of the arguments, and these, which must stay alive."""
    values = [_value(x) for x in arguments]
    addresses = np.array([value.ctypes.data for value in values], np.uintp)
    config = _config(grid, block, shared, stream.ptr, attributes)
    return config, rt.driver().CUfunction(function.ptr), addresses, values


def _config(grid: tuple[int, ...], block: tuple[int, ...], shared: int, stream: int, attributes: list[Any]) -> Any:
    config = rt.driver().CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
    config.blockDimX, config.blockDimY, config.blockDimZ = (*block, 1, 1)[:3]
    config.sharedMemBytes, config.hStream = shared, stream
    config.attrs, config.numAttrs = attributes, len(attributes)
    return config


def _value(argument: Any) -> np.ndarray[Any, Any]:
    """Return an argument as an array of its bytes on the host."""
    if argument is None:
        return np.zeros(1, np.uintp)
    if isinstance(argument, (np.ndarray, np.generic)):
        return np.ascontiguousarray(argument)
    return np.array([argument.data.ptr], np.uintp)
