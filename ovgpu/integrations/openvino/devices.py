"""Device names that openvino hands over to ovgpu: NVIDIA, NVIDIA.n, and lists of AUTO that name it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ovgpu.api.devices import family, resolve
from ovgpu.errors import DeviceError

PRIORITIES = "MULTI_DEVICE_PRIORITIES"
NAMES = ("NVIDIA", "CUDA")


def is_ours(device: Any) -> bool:
    """Return whether a name is ovgpu's: NVIDIA or CUDA, with or without the number of a card."""
    return isinstance(device, str) and device.partition(".")[0] in NAMES


def select(device: Any, config: Any, core: Any) -> tuple[Any, Any]:
    """Return the device and the properties for `compile_model`. They are changed only where a list names NVIDIA.

    AUTO takes the first device of its list that can be used; if that is openvino's, AUTO gets the list without NVIDIA.

    Raises: DeviceError if HETERO, MULTI or BATCH names NVIDIA, or AUTO finds none of its devices.
    """
    kind, _, listed = device.partition(":") if isinstance(device, str) else ("", "", "")
    if kind not in ("AUTO", "MULTI", "HETERO", "BATCH"):
        return device, config
    if not listed and isinstance(config, Mapping):
        listed = str(config.get(PRIORITIES, ""))
    names = [name.strip() for name in listed.split(",") if name.strip()]
    if not any(is_ours(name.lstrip("-")) for name in names):
        return device, config
    others = {name: value for name, value in dict(config or {}).items() if name != PRIORITIES}
    return _first_usable(names, core) if kind == "AUTO" else _only(kind, names), others


def _only(kind: str, names: list[str]) -> str:
    if kind == "MULTI" and len(names) == 1:
        return names[0]
    raise DeviceError(f"{kind}:{','.join(names)}: {kind} cannot share a model between NVIDIA and other devices; "
                      "name NVIDIA alone, or AUTO with a list of devices")


def _first_usable(names: list[str], core: Any) -> str:
    """Return the first device of the list that can be used; for one of openvino's, AUTO with the list of these."""
    others = ",".join(name for name in names if not is_ours(name.lstrip("-")))
    refused = []
    for name in names:
        if name.startswith("-"):
            continue
        reason = _reason_against(name, core)
        if reason is None:
            return name if is_ours(name) else f"AUTO:{others}"
        refused.append(reason)
    if refused:
        raise DeviceError(f"AUTO:{','.join(names)}: no device of the list can be used: {'; '.join(refused)}")
    return f"AUTO:{others}" if others else "AUTO"  # the list only excludes devices


def _reason_against(name: str, core: Any) -> str | None:
    """Return the reason why a device cannot be used, None if it can."""
    if not is_ours(name):
        there = any(family(name) == family(found) for found in core.available_devices)
        return None if there else f'device "{name}" is not there'
    try:
        resolve(name)
    except DeviceError as e:
        return str(e)
    return None
