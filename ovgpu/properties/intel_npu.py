"""Properties of OpenVINO's NPU device."""

from __future__ import annotations

import operator

from ._property import Property, PropertyEnum, boolean, instance, text


class CompilerType(PropertyEnum):
    """Compiler of the device: in its plugin or in its driver."""

    DRIVER = 1
    PLUGIN = 0
    PREFER_PLUGIN = 2


bypass_umd_caching = Property("NPU_BYPASS_UMD_CACHING", boolean)
compilation_mode_params = Property("NPU_COMPILATION_MODE_PARAMS", text)
compiler_dynamic_quantization = Property("NPU_COMPILER_DYNAMIC_QUANTIZATION", boolean)
compiler_type = Property("NPU_COMPILER_TYPE", instance(CompilerType))
compiler_version = Property("NPU_COMPILER_VERSION")
defer_weights_load = Property("NPU_DEFER_WEIGHTS_LOAD", boolean)
device_alloc_mem_size = Property("NPU_DEVICE_ALLOC_MEM_SIZE")
device_total_mem_size = Property("NPU_DEVICE_TOTAL_MEM_SIZE")
disable_idle_memory_prunning = Property("NPU_DISABLE_IDLE_MEMORY_PRUNING", boolean)
driver_version = Property("NPU_DRIVER_VERSION")
enable_strides_for = Property("NPU_ENABLE_STRIDES_FOR", text)
max_tiles = Property("NPU_MAX_TILES")
platform = Property("NPU_PLATFORM", text)
qdq_optimization = Property("NPU_QDQ_OPTIMIZATION", boolean)
qdq_optimization_aggressive = Property("NPU_QDQ_OPTIMIZATION_AGGRESSIVE", boolean)
run_inferences_sequentially = Property("NPU_RUN_INFERENCES_SEQUENTIALLY", boolean)
tiles = Property("NPU_TILES", operator.index)
turbo = Property("NPU_TURBO", boolean)
