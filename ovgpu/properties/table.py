"""The properties that can be set, with their defaults and effects. README.md is generated from this table.

All devices accept all of them, so that programs written for OpenVINO's CPU or GPU device need no change. A property
that has no effect is checked, stored and returned.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ovgpu.types import Type

from . import CacheMode, hint, intel_auto, intel_cpu, log


class Writable(NamedTuple):
    """A property that can be set. The type of its default is the property's type.

    ``effect`` says what it does. If it has no effect, ``effect`` is empty, and ``ignored`` says why.
    """

    default: Any
    effect: str = ""
    ignored: str = ""


CORES = "NumPy chooses its own threads and cores; a card has none"
KERNELS = "ovgpu has kernels of its own, and chooses them by their speed and exactness"
QUEUES = "each request has a stream of its own"
INTEL = "it is of Intel's driver"
LISTED = "AUTO tries the devices of its list in turn until one compiles the model, and no request waits for it"

WRITABLE: dict[str, Writable] = {
    "ACTIVATIONS_SCALE_FACTOR": Writable(
        0.0, ignored="sums stay in f32; where f16 has too small a range, bf16 replaces it"
    ),
    "ALLOW_AUTO_BATCHING": Writable(True, ignored="rows of several requests are gathered by DynamicBatcher"),
    "AUTO_BATCH_TIMEOUT": Writable(1000, ignored="rows of several requests are gathered by DynamicBatcher"),
    "AVAILABLE_DEVICE_MEM_SIZE": Writable(0, ignored="CUDA says how much memory is free"),
    "CACHE_DIR": Writable("", "the folder where compiled models and kernels are kept"),
    "CACHE_ENCRYPTION_CALLBACKS": Writable(
        (), "two functions that encrypt and decrypt the XML of models in exported files and in CACHE_DIR"
    ),
    "CACHE_MODE": Writable(CacheMode.OPTIMIZE_SIZE, ignored="an entry refers to the .bin file, or is mapped"),
    "COMPILATION_NUM_THREADS": Writable(0, "the number of threads that compile kernels; 0 leaves it to ovgpu"),
    "CPU_DENORMALS_OPTIMIZATION": Writable(False, ignored="denormal numbers are as NumPy and CUDA treat them"),
    "CPU_RUNTIME_CACHE_CAPACITY": Writable(0, ignored="a request keeps the last bindings of each segment"),
    "CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE": Writable(1.0, ignored=KERNELS),
    "DEVICE_ID": Writable("", "the number of the card that NVIDIA means"),
    "DEVICE_PROPERTIES": Writable({}, "properties of the devices of a list, by name"),
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": Writable(0, ignored="activations are not quantised at run time"),
    "ENABLE_CPU_PINNING": Writable(True, ignored=CORES),
    "ENABLE_CPU_RESERVATION": Writable(False, ignored=CORES),
    "ENABLE_HYPER_THREADING": Writable(True, ignored=CORES),
    "ENABLE_MMAP": Writable(True, ignored="the .bin file is always memory-mapped"),
    "ENABLE_TENSOR_PARALLEL": Writable(False, ignored="a model runs on one device"),
    "ENABLE_WEIGHTLESS": Writable(False, ignored="entries of CACHE_DIR refer to the .bin file in any case"),
    "EXCLUSIVE_ASYNC_REQUESTS": Writable(False, ignored=QUEUES),
    "EXECUTION_MODE_HINT": Writable(
        hint.ExecutionMode.ACCURACY, "PERFORMANCE lets a card compute in f16, ACCURACY keeps TF32 away"
    ),
    "FORCE_TBB_TERMINATE": Writable(False, ignored="there is no TBB"),
    "GPU_DISABLE_WINOGRAD_CONVOLUTION": Writable(False, ignored=KERNELS),
    "GPU_ENABLE_LARGE_ALLOCATIONS": Writable(False, ignored="memory has no limit but the card's"),
    "GPU_ENABLE_LOOP_UNROLLING": Writable(True, ignored="short loops are always unrolled into the graph"),
    "GPU_ENABLE_LORA_OPERATION": Writable(True, ignored=KERNELS),
    "GPU_HOST_TASK_PRIORITY": Writable(hint.Priority.MEDIUM, ignored=CORES),
    "GPU_QUEUE_PRIORITY": Writable(hint.Priority.MEDIUM, ignored=QUEUES),
    "GPU_QUEUE_THROTTLE": Writable(hint.Priority.MEDIUM, ignored=INTEL),
    "INFERENCE_NUM_THREADS": Writable(0, ignored=CORES),
    "INFERENCE_PRECISION_HINT": Writable(Type.f32, "the type of floats in the whole model"),
    "KEY_CACHE_GROUP_SIZE": Writable(0, ignored="a token of a head is one group"),
    "KEY_CACHE_PRECISION": Writable(Type.f32, "as KV_CACHE_PRECISION, if that of values is the same"),
    "KV_CACHE_PRECISION": Writable(Type.f32, "the type that keys and values are stored in: f32, f16, bf16, u8 or i8"),
    "LOG_LEVEL": Writable(log.Level.NO, ignored="OVGPU_DEBUG prints what runs"),
    "MODEL_DISTRIBUTION_POLICY": Writable(set(), ignored="a model runs on one device"),
    "MODEL_PRIORITY": Writable(hint.Priority.MEDIUM, ignored=QUEUES),
    "MULTI_DEVICE_PRIORITIES": Writable("", "the list of AUTO, MULTI and HETERO"),
    "NUM_STREAMS": Writable(0, "the number of requests that run at once, for queues"),
    "PERFORMANCE_HINT": Writable(
        hint.PerformanceMode.LATENCY, "THROUGHPUT and CUMULATIVE_THROUGHPUT: more requests at once, for queues"
    ),
    "PERFORMANCE_HINT_NUM_REQUESTS": Writable(0, "the largest number of requests, for queues"),
    "PERF_COUNT": Writable(False, "requests have profiling information"),
    "SCHEDULING_CORE_TYPE": Writable(hint.SchedulingCoreType.ANY_CORE, ignored=CORES),
    "TBB_PARTITIONER": Writable(intel_cpu.TbbPartitioner.STATIC, ignored="there is no TBB"),
    "VALUE_CACHE_GROUP_SIZE": Writable(0, ignored="a token of a head is one group"),
    "VALUE_CACHE_PRECISION": Writable(Type.f32, "as KV_CACHE_PRECISION, if that of keys is the same"),
    "WEIGHTS_PATH": Writable("", ignored="an exported model has its constants or the path of its .bin file"),
}

OF_SELECTORS: dict[str, dict[str, Writable]] = {
    "AUTO": {
        "DEVICES_UTILIZATION_THRESHOLD": Writable({}, ignored=LISTED),
        "DEVICE_BIND_BUFFER": Writable(False, ignored=LISTED),
        "ENABLE_RUNTIME_FALLBACK": Writable(True, ignored=LISTED),
        "ENABLE_STARTUP_FALLBACK": Writable(True, ignored=LISTED),
        "LOW_POWER_DEVICE": Writable("", ignored=LISTED),
        "PERF_CURVE_TABLE": Writable({}, ignored=LISTED),
        "SCHEDULE_POLICY": Writable(intel_auto.SchedulePolicy.DEVICE_PRIORITY, ignored=LISTED),
    },
    "MULTI": {
        "DEVICE_BIND_BUFFER": Writable(False, ignored="a request belongs to one device"),
        "SCHEDULE_POLICY": Writable(
            intel_auto.SchedulePolicy.DEVICE_PRIORITY, ignored="requests are dealt to the devices in turn"
        ),
    },
}
"""Properties of AUTO and MULTI beside those of devices, with OpenVINO's defaults."""

REFUSED = {
    "COMPATIBILITY_CHECK": "it belongs to blobs of OpenVINO's NPU",
    "DEVICE_GOPS": "cards do not report it",
    "DEVICE_LUID": "Windows alone has it",
    "DEVICE_PCI_INFO": "nvidia-smi says where a card is",
    "DEVICE_THERMAL": "nvidia-smi says how warm a card is",
    "GPU_DEVICE_MAX_ALLOC_MEM_SIZE": "CUDA limits a single allocation only by the card's memory",
    "MAX_BATCH_SIZE": "DynamicBatcher takes the largest batch as an argument",
    "MODEL_PTR": "no property depends on a model that is not compiled",
    "NPU_*": "they are of OpenVINO's NPU device",
    "OPTIMAL_BATCH_SIZE": "DynamicBatcher takes the largest batch as an argument",
    "RUNTIME_REQUIREMENTS": "exported models say themselves what they need",
    "WORKLOAD_TYPE": "cards have no such mode",
}
"""Properties of OpenVINO's devices that ovgpu refuses, with the reasons."""
