"""The part of cuda.bindings.driver that launches kernels: `cuLaunchKernelEx` with its attributes, and preferences."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from types import SimpleNamespace

from . import device, state
from .kernel import STATIC_SHARED_LIMIT, KernelNode, geometry, loaded
from .stream import enqueue, find_stream


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = state.INVALID_VALUE
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701
    CUDA_ERROR_INVALID_CLUSTER_SIZE = 912


class CUlaunchAttributeID(IntEnum):
    CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 4
    CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6


class CUfunction_attribute(IntEnum):
    CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT = 9
    CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14


class CUshared_carveout(IntEnum):
    CU_SHAREDMEM_CARVEOUT_MAX_SHARED = 100


class CUlaunchAttribute:
    def __init__(self) -> None:
        self.id = CUlaunchAttributeID(6)
        self.value = SimpleNamespace(programmaticStreamSerializationAllowed=0,
                                     clusterDim=SimpleNamespace(x=0, y=0, z=0))


class CUlaunchConfig:
    def __init__(self) -> None:
        self.gridDimX = self.gridDimY = self.gridDimZ = 1
        self.blockDimX = self.blockDimY = self.blockDimZ = 1
        self.sharedMemBytes = self.hStream = self.numAttrs = 0
        self.attrs: Sequence[CUlaunchAttribute] = ()


CUfunction = int
MAX_CLUSTER, PORTABLE_CLUSTER = 16, 8  # blocks of a cluster that this device takes, and that any device takes


def cuDriverGetVersion() -> tuple[CUresult, int]:
    return CUresult.CUDA_SUCCESS, 13000


def cuFuncSetAttribute(hfunc: int, attrib: CUfunction_attribute, value: int) -> tuple[CUresult]:
    """Set the percentage of a multiprocessor's memory that a kernel prefers as shared memory, or whether its clusters
    may be larger than any device takes."""
    if attrib == CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        loaded(hfunc).large_clusters = bool(value)
        return (CUresult.CUDA_SUCCESS,)
    loaded(hfunc).carveout = value
    return (CUresult.CUDA_SUCCESS if -1 <= value <= 100 else CUresult.CUDA_ERROR_INVALID_VALUE,)


def cuLaunchKernelEx(config: CUlaunchConfig, f: int, kernelParams: int, extra: int) -> tuple[CUresult]:
    """Enqueue a launch whose arguments lie where the pointers at `kernelParams` point to."""
    found = loaded(f)
    function = found.function
    grid, block = geometry(function, (config.gridDimX, config.gridDimY, config.gridDimZ),
                           (config.blockDimX, config.blockDimY, config.blockDimZ))
    if config.sharedMemBytes > max(found.max_shared, STATIC_SHARED_LIMIT):
        return (CUresult.CUDA_ERROR_INVALID_VALUE,)
    addresses = (ctypes.c_uint64 * len(function.parameters)).from_address(kernelParams)
    arguments = tuple(ctypes.string_at(address, p.size) for address, p in zip(addresses, function.parameters))
    pointers = tuple(i for i, p in enumerate(function.parameters) if p.kind in "pc")
    values = {attribute.id: attribute.value for attribute in config.attrs[: config.numAttrs]}
    early = values.get(CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
    clusters = values.get(CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
    cluster = 1 if clusters is None else clusters.clusterDim.x
    most = MAX_CLUSTER if found.large_clusters else PORTABLE_CLUSTER
    if clusters is not None and not (0 < cluster <= most and grid[0] % cluster == 0
                                     and clusters.clusterDim.y == clusters.clusterDim.z == 1):
        return (CUresult.CUDA_ERROR_INVALID_CLUSTER_SIZE,)
    enqueue(KernelNode(function, grid, block, arguments, config.sharedMemBytes, found.max_shared, pointers,
                       device.current(), early is not None and bool(early.programmaticStreamSerializationAllowed),
                       cluster), find_stream(config.hStream), count=True)
    return (CUresult.CUDA_SUCCESS,)
