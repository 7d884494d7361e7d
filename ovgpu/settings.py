"""Properties of devices and compiled models: names, defaults, and what is read-only."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from typing import Any

from ovgpu.properties import hint
from ovgpu.types import Type

_DEFAULTS: dict[str, Any] = {
    "PERFORMANCE_HINT": hint.PerformanceMode.LATENCY,
    "PERFORMANCE_HINT_NUM_REQUESTS": 0,
    "EXECUTION_MODE_HINT": hint.ExecutionMode.ACCURACY,
    "INFERENCE_PRECISION_HINT": Type.f32,
    "KV_CACHE_PRECISION": Type.f32,
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    "NUM_STREAMS": 1,
    "PERF_COUNT": False,
    "CACHE_DIR": "",
    "MODEL_PRIORITY": hint.Priority.MEDIUM,
    "INFERENCE_NUM_THREADS": 0,
    "LOG_LEVEL": "LOG_NONE",
}

_READ_ONLY: dict[str, Callable[[Settings, Any], Any]] = {
    "SUPPORTED_PROPERTIES": lambda s, c: [*_DEFAULTS, *_READ_ONLY],
    "AVAILABLE_DEVICES": lambda s, c: [""],
    "FULL_DEVICE_NAME": lambda s, c: platform.processor() or platform.machine() or "CPU",
    "EXECUTION_DEVICES": lambda s, c: [s.device or "CPU"],
    "OPTIMIZATION_CAPABILITIES": lambda s, c: ["FP32", "FP16", "BF16", "INT8"],
    "OPTIMAL_NUMBER_OF_INFER_REQUESTS": lambda s, c: 1,
    "RANGE_FOR_ASYNC_INFER_REQUESTS": lambda s, c: (1, os.cpu_count() or 1, 1),
    "RANGE_FOR_STREAMS": lambda s, c: (1, os.cpu_count() or 1),
    "NETWORK_NAME": lambda s, c: c._original.friendly_name if c is not None else "",
    "DEVICE_ARCHITECTURE": lambda s, c: platform.machine(),
}


class Settings:
    """The properties of a device or a compiled model, above those of ``base``."""

    def __init__(self, device: str, base: Settings | None = None) -> None:
        self.device, self._base = device, base
        self._values: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        return self._base[name] if self._base is not None else _DEFAULTS[name]

    def get(self, name: str, compiled: Any) -> Any:
        """A property's value; RuntimeError naming those there are if it is unknown."""
        key = str(name)
        if key in _READ_ONLY:
            return _READ_ONLY[key](self, compiled)
        if key not in _DEFAULTS:
            raise RuntimeError(f"Unsupported property {key} by {self.device or 'Core'}; "
                               f"there are {', '.join([*_DEFAULTS, *_READ_ONLY])}")
        return self[key]

    def update(self, values: Mapping[str, Any]) -> None:
        """Sets properties; those of other devices' plugins are taken without effect only if they are known."""
        for name, value in values.items():
            key = str(name)
            if key in _READ_ONLY:
                raise RuntimeError(f"property {key} is read-only")
            if key not in _DEFAULTS:
                raise RuntimeError(f"Unsupported property {key} by {self.device or 'Core'}")
            self._values[key] = _converted(key, value)

    def merged(self, values: Mapping[str, Any]) -> Settings:
        merged = Settings(self.device, self)
        merged.update(values)
        return merged


def _converted(key: str, value: Any) -> Any:
    """A value as its property's type: texts are what configuration files have."""
    default = _DEFAULTS[key]
    if isinstance(default, bool):
        if isinstance(value, str):
            if value.upper() not in ("YES", "NO", "TRUE", "FALSE"):
                raise RuntimeError(f"property {key} takes YES or NO, not {value!r}")
            return value.upper() in ("YES", "TRUE")
        return bool(value)
    if isinstance(default, Type):
        return value if isinstance(value, Type) else Type.parse(str(value))
    if isinstance(default, int):
        return int(value) if str(value).lstrip("-").isdecimal() else value
    if not isinstance(default, str) and isinstance(value, str):
        found = getattr(type(default), value.upper(), None)
        if found is None:
            raise RuntimeError(f"property {key} does not take {value!r}")
        return found
    return value
