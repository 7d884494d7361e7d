"""Configuration keys and values, with the names of `openvino.properties`.

    core.set_property("NVIDIA", {props.enable_profiling: True})
    core.compile_model(model, "NVIDIA", dict([hint.performance_mode(hint.PerformanceMode.LATENCY)]))

A property is a str, the configuration key. Calling it with a value returns the pair of the key
and an `OVAny` of the value.
"""

from __future__ import annotations

from . import device, hint, intel_auto, intel_cpu, intel_gpu, intel_npu, log, streams
from ._property import Property, PropertyEnum, boolean, instance, integer, precision, size, text, unsigned


class CacheMode(PropertyEnum):
    """Trade-off of the model cache: its size or the time to load from it."""

    OPTIMIZE_SIZE = 0
    OPTIMIZE_SPEED = 1


class WorkloadType(PropertyEnum):
    """Priority of a workload: the default one, or one that saves resources."""

    DEFAULT = 0
    EFFICIENT = 1


class CompatibilityCheck(PropertyEnum):
    """Result of a compatibility check."""

    NOT_APPLICABLE = 0
    SUPPORTED = 1
    UNSUPPORTED = 2


auto_batch_timeout = Property("AUTO_BATCH_TIMEOUT", unsigned)
available_devices = Property("AVAILABLE_DEVICES")
cache_dir = Property("CACHE_DIR", text)
cache_mode = Property("CACHE_MODE", instance(CacheMode))
compatibility_check = Property("COMPATIBILITY_CHECK")
compilation_num_threads = Property("COMPILATION_NUM_THREADS", integer)
enable_mmap = Property("ENABLE_MMAP", boolean)
enable_profiling = Property("PERF_COUNT", boolean)
enable_weightless = Property("ENABLE_WEIGHTLESS", boolean)
execution_devices = Property("EXECUTION_DEVICES")
force_tbb_terminate = Property("FORCE_TBB_TERMINATE", boolean)
inference_num_threads = Property("INFERENCE_NUM_THREADS", integer)
key_cache_group_size = Property("KEY_CACHE_GROUP_SIZE", size)
key_cache_precision = Property("KEY_CACHE_PRECISION", precision)
loaded_from_cache = Property("LOADED_FROM_CACHE")
max_batch_size = Property("MAX_BATCH_SIZE")
model_name = Property("NETWORK_NAME")
num_streams = streams.num
optimal_batch_size = Property("OPTIMAL_BATCH_SIZE")
optimal_number_of_infer_requests = Property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
range_for_async_infer_requests = Property("RANGE_FOR_ASYNC_INFER_REQUESTS")
range_for_streams = Property("RANGE_FOR_STREAMS")
runtime_requirements = Property("RUNTIME_REQUIREMENTS")
supported_properties = Property("SUPPORTED_PROPERTIES")
value_cache_group_size = Property("VALUE_CACHE_GROUP_SIZE", size)
value_cache_precision = Property("VALUE_CACHE_PRECISION", precision)
weights_path = Property("WEIGHTS_PATH", text)
workload_type = Property("WORKLOAD_TYPE", instance(WorkloadType))

__all__ = [
    "CacheMode",
    "CompatibilityCheck",
    "WorkloadType",
    "device",
    "hint",
    "intel_auto",
    "intel_cpu",
    "intel_gpu",
    "intel_npu",
    "log",
    "streams",
]
__all__ += [name for name, value in globals().items() if type(value) is Property]
