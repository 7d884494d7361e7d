"""Hints of OpenVINO's GPU device."""

from __future__ import annotations

import operator

from .._property import Property, boolean, instance
from ..hint import Priority


class ThrottleLevel:
    """Levels of `queue_throttle`."""

    LOW = Priority.LOW
    MEDIUM = Priority.MEDIUM
    HIGH = Priority.HIGH
    DEFAULT = Priority.MEDIUM


available_device_mem = Property("AVAILABLE_DEVICE_MEM_SIZE", operator.index)
enable_large_allocations = Property("GPU_ENABLE_LARGE_ALLOCATIONS", boolean)
enable_lora_operation = Property("GPU_ENABLE_LORA_OPERATION", boolean)
host_task_priority = Property("GPU_HOST_TASK_PRIORITY", instance(Priority))
queue_priority = Property("GPU_QUEUE_PRIORITY", instance(Priority))
queue_throttle = Property("GPU_QUEUE_THROTTLE", instance(Priority))
