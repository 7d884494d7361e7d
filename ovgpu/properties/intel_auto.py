"""Properties of OpenVINO's AUTO device."""

from __future__ import annotations

import re
from typing import Any

from ._property import Property, PropertyEnum, boolean, instance, real, text, unsigned


class SchedulePolicy(PropertyEnum):
    """Order in which the devices of a list are used: in turns, or the first one that is free."""

    ROUND_ROBIN = 0
    DEVICE_PRIORITY = 1
    DEFAULT = 1


_CURVE = re.compile(r"([\w.]+)\s*:\s*\{([^{}]*)\}")
_POINT = re.compile(r"(\d+)\s*:\s*([\d.]+)")


def _thresholds(value: Any) -> dict[str, int]:
    return {text(name): unsigned(threshold) for name, threshold in instance(dict)(value).items()}


def _curves(value: Any) -> dict[str, dict[int, float]]:
    if isinstance(value, str):
        curves = {name: dict(_POINT.findall(points)) for name, points in _CURVE.findall(value)}
        if value and not (curves and all(curves.values())):
            raise RuntimeError(f"PERF_CURVE_TABLE is {{DEVICE:{{utilization:score,...}},...}}, not {value!r}")
        return {name: {int(use): float(score) for use, score in curve.items()} for name, curve in curves.items()}
    return {
        text(name): {unsigned(use): real(score) for use, score in instance(dict)(curve).items()}
        for name, curve in instance(dict)(value).items()
    }


device_bind_buffer = Property("DEVICE_BIND_BUFFER", boolean)
devices_utilization_threshold = Property("DEVICES_UTILIZATION_THRESHOLD", _thresholds)
enable_runtime_fallback = Property("ENABLE_RUNTIME_FALLBACK", boolean)
enable_startup_fallback = Property("ENABLE_STARTUP_FALLBACK", boolean)
low_power_device = Property("LOW_POWER_DEVICE", text)
perf_curve_table = Property("PERF_CURVE_TABLE", _curves)
schedule_policy = Property("SCHEDULE_POLICY", instance(SchedulePolicy))
