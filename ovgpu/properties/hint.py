"""Hints: properties that state a goal of optimisation rather than its means."""

from __future__ import annotations

from typing import Any

from ._property import Property, PropertyEnum, boolean, instance, model_or_none, precision, real, size, unsigned


class PerformanceMode(PropertyEnum):
    """Goal of the performance: latency, throughput, or throughput of several devices together."""

    LATENCY = 1
    THROUGHPUT = 2
    CUMULATIVE_THROUGHPUT = 3


class ExecutionMode(PropertyEnum):
    """Goal of the execution: performance or accuracy."""

    PERFORMANCE = 1
    ACCURACY = 2


class Priority(PropertyEnum):
    """Priority of a model."""

    LOW = 0
    MEDIUM = 1
    HIGH = 2
    DEFAULT = 1


class SchedulingCoreType(PropertyEnum):
    """Type of the CPU cores to run on: any, performance or efficiency cores."""

    ANY_CORE = 0
    PCORE_ONLY = 1
    ECORE_ONLY = 2


class ModelDistributionPolicy(PropertyEnum):
    """Distribution of a model over devices: tensor or pipeline parallelism."""

    TENSOR_PARALLEL = 0
    PIPELINE_PARALLEL = 1


def _policies(value: Any) -> set[ModelDistributionPolicy]:
    return {instance(ModelDistributionPolicy)(policy) for policy in instance(set)(value)}


performance_mode = Property("PERFORMANCE_HINT", instance(PerformanceMode))
execution_mode = Property("EXECUTION_MODE_HINT", instance(ExecutionMode))
inference_precision = Property("INFERENCE_PRECISION_HINT", precision)
model = Property("MODEL_PTR", model_or_none)
kv_cache_precision = Property("KV_CACHE_PRECISION", precision)
num_requests = Property("PERFORMANCE_HINT_NUM_REQUESTS", unsigned)
model_priority = Property("MODEL_PRIORITY", instance(Priority))
model_distribution_policy = Property("MODEL_DISTRIBUTION_POLICY", _policies)
scheduling_core_type = Property("SCHEDULING_CORE_TYPE", instance(SchedulingCoreType))
activations_scale_factor = Property("ACTIVATIONS_SCALE_FACTOR", real)
allow_auto_batching = Property("ALLOW_AUTO_BATCHING", boolean)
dynamic_quantization_group_size = Property("DYNAMIC_QUANTIZATION_GROUP_SIZE", size)
enable_cpu_pinning = Property("ENABLE_CPU_PINNING", boolean)
enable_cpu_reservation = Property("ENABLE_CPU_RESERVATION", boolean)
enable_hyper_threading = Property("ENABLE_HYPER_THREADING", boolean)
