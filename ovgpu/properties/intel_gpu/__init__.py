"""Properties of OpenVINO's GPU device. NVIDIA has some of its read-only properties, under the same keys."""

from __future__ import annotations

from .._property import Property, boolean
from . import hint

__all__ = ["CapabilityGPU", "MemoryType", "hint"]


class CapabilityGPU:
    """Names that `ovgpu.properties.device.capabilities` may list."""

    HW_MATMUL = "GPU_HW_MATMUL"
    USM_MEMORY = "GPU_USM_MEMORY"


class MemoryType:
    """Kinds of memory."""

    buffer = "GPU_BUFFER"
    surface = "GPU_SURFACE"


device_max_alloc_mem_size = Property("GPU_DEVICE_MAX_ALLOC_MEM_SIZE")
device_total_mem_size = Property("GPU_DEVICE_TOTAL_MEM_SIZE")
disable_winograd_convolution = Property("GPU_DISABLE_WINOGRAD_CONVOLUTION", boolean)
enable_loop_unrolling = Property("GPU_ENABLE_LOOP_UNROLLING", boolean)
execution_units_count = Property("GPU_EXECUTION_UNITS_COUNT")
memory_statistics = Property("GPU_MEMORY_STATISTICS")
uarch_version = Property("GPU_UARCH_VERSION")

__all__ += [name for name, value in globals().items() if type(value) is Property]
