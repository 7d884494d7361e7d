"""The part of cuda.bindings.driver that launches kernels: `cuLaunchKernelEx` with its attributes, and preferences."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from types import SimpleNamespace

from . import device, state
from .kernel import MULTIPROCESSORS, STATIC_SHARED_LIMIT, KernelNode, geometry, loaded
from .stream import enqueue, find_stream


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = state.INVALID_VALUE
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701
    CUDA_ERROR_NOT_SUPPORTED = 801
    CUDA_ERROR_INVALID_CLUSTER_SIZE = 912


class CUlaunchAttributeID(IntEnum):
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6


class CUfunction_attribute(IntEnum):
    CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 9
    CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14


class CUshared_carveout(IntEnum):
    CU_SHAREDMEM_CARVEOUT_DEFAULT = -1
    CU_SHAREDMEM_CARVEOUT_MAX_SHARED = 100


class CUlaunchAttribute:
    def __init__(self) -> None:
        self.id = CUlaunchAttributeID(6)
        self.value = SimpleNamespace(
            programmaticStreamSerializationAllowed=0, clusterDim=SimpleNamespace(x=0, y=0, z=0)
        )


class CUlaunchConfig:
    def __init__(self) -> None:
        self.gridDimX = self.gridDimY = self.gridDimZ = 1
        self.blockDimX = self.blockDimY = self.blockDimZ = 1
        self.sharedMemBytes = self.hStream = self.numAttrs = 0
        self.attrs: Sequence[CUlaunchAttribute] = ()


CUfunction = int
PORTABLE_CLUSTER = 8  # blocks of a cluster that any whole device takes
SHARED_OF_LARGE = 224 << 10  # bytes of a block from which on an H100 has no clusters of more than 8 blocks


@dataclass(frozen=True)
class Clusters:
    """Blocks of the largest cluster: as the driver answers, and as it launches; whether larger ones than
    PORTABLE_CLUSTER may be allowed."""

    answered: int = 16
    launched: int = 16
    allowed: bool = True


_clusters = Clusters()


@contextmanager
def largest_cluster(answered: int, launched: int | None = None, allowed: bool = True) -> Iterator[None]:
    """Emulate, within the block, a device whose largest cluster has so many blocks, such as a MIG slice."""
    global _clusters
    before, _clusters = _clusters, Clusters(answered, answered if launched is None else launched, allowed)
    try:
        yield
    finally:
        _clusters = before


def cuDriverGetVersion() -> tuple[CUresult, int]:
    return CUresult.CUDA_SUCCESS, 13000


def cuFuncSetAttribute(hfunc: int, attrib: CUfunction_attribute, value: int) -> tuple[CUresult]:
    """Set the percentage of a multiprocessor's memory that a kernel prefers as shared memory, or whether its clusters
    may be larger than any device takes."""
    if attrib == CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        loaded(hfunc).large_clusters = bool(value) and _clusters.allowed
        return (CUresult.CUDA_SUCCESS if _clusters.allowed else CUresult.CUDA_ERROR_INVALID_VALUE,)
    loaded(hfunc).carveout = value
    return (CUresult.CUDA_SUCCESS if -1 <= value <= 100 else CUresult.CUDA_ERROR_INVALID_VALUE,)


def cuOccupancyMaxActiveClusters(func: int, config: CUlaunchConfig) -> tuple[CUresult, int]:
    """Return how many clusters run at the same time."""
    function, cluster = loaded(func), _cluster_of(config)
    grid, _ = geometry(
        function.function,
        (config.gridDimX, config.gridDimY, config.gridDimZ),
        (config.blockDimX, config.blockDimY, config.blockDimZ),
    )
    if cluster < 1 or grid[0] % cluster or (cluster > PORTABLE_CLUSTER and not function.large_clusters):
        return CUresult.CUDA_ERROR_INVALID_CLUSTER_SIZE, 0
    if config.sharedMemBytes > max(function.max_shared, STATIC_SHARED_LIMIT):
        return CUresult.CUDA_ERROR_INVALID_VALUE, 0
    large = cluster > PORTABLE_CLUSTER and config.sharedMemBytes >= SHARED_OF_LARGE
    return CUresult.CUDA_SUCCESS, 0 if cluster > _clusters.answered or large else MULTIPROCESSORS // cluster


def _cluster_of(config: CUlaunchConfig) -> int:
    """Return the blocks of a cluster; 0 if they are not along x alone, 1 without clusters."""
    for attribute in config.attrs[: config.numAttrs]:
        if attribute.id == CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
            extents = attribute.value.clusterDim
            return extents.x if extents.y == extents.z == 1 else 0
    return 1


def cuLaunchKernelEx(config: CUlaunchConfig, f: int, kernelParams: int, extra: int) -> tuple[CUresult]:
    """Enqueue a launch whose arguments lie where the pointers at `kernelParams` point to."""
    found = loaded(f)
    function = found.function
    grid, block = geometry(
        function,
        (config.gridDimX, config.gridDimY, config.gridDimZ),
        (config.blockDimX, config.blockDimY, config.blockDimZ),
    )
    if config.sharedMemBytes > max(found.max_shared, STATIC_SHARED_LIMIT):
        return (CUresult.CUDA_ERROR_INVALID_VALUE,)
    addresses = (ctypes.c_uint64 * len(function.parameters)).from_address(kernelParams)
    arguments = tuple(ctypes.string_at(address, p.size) for address, p in zip(addresses, function.parameters))
    pointers = tuple(i for i, p in enumerate(function.parameters) if p.kind in "pc")
    values = {attribute.id: attribute.value for attribute in config.attrs[: config.numAttrs]}
    early = values.get(CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
    cluster = _cluster_of(config)
    most = _clusters.launched if found.large_clusters else min(_clusters.launched, PORTABLE_CLUSTER)
    if not 0 < cluster <= max(most, 1) or grid[0] % cluster:
        return (CUresult.CUDA_ERROR_INVALID_CLUSTER_SIZE,)
    enqueue(
        KernelNode(
            function,
            grid,
            block,
            arguments,
            config.sharedMemBytes,
            found.max_shared,
            pointers,
            device.current(),
            early is not None and bool(early.programmaticStreamSerializationAllowed),
            cluster,
        ),
        find_stream(config.hStream),
        count=True,
    )
    return (CUresult.CUDA_SUCCESS,)
