"""Device names that openvino hands over to ovgpu: NVIDIA, NVIDIA.n, MULTI of these, and AUTO lists that name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ovgpu.api.devices import family, resolve
from ovgpu.errors import DeviceError

PRIORITIES = "MULTI_DEVICE_PRIORITIES"
NAMES = ("NVIDIA", "CUDA")


def is_ours(device: Any) -> bool:
    """Return whether a name is ovgpu's: NVIDIA or CUDA, with or without the number of a card, or MULTI of these."""
    if not isinstance(device, str):
        return False
    kind, _, listed = device.partition(":")
    if kind == "MULTI" and listed:
        return all(is_ours(name.partition("(")[0].strip()) for name in listed.split(","))
    return device.partition(".")[0] in NAMES


def select(device: Any, config: Any, core: Any) -> tuple[Any, Any]:
    """Return the device and the properties for `compile_model`. They are changed only where a list names NVIDIA.

    AUTO takes the first device of its list that can be used; if that is openvino's, AUTO gets the list without NVIDIA.
    MULTI is ovgpu's if all its devices are.

    Raises: DeviceError if HETERO or BATCH names NVIDIA, MULTI also names other devices, or AUTO finds none of its
    devices.
    """
    kind, _, listed = device.partition(":") if isinstance(device, str) else ("", "", "")
    if kind not in ("AUTO", "MULTI", "HETERO", "BATCH"):
        return device, config
    if not listed and isinstance(config, Mapping):
        listed = str(config.get(PRIORITIES, ""))
    names = [name.strip() for name in listed.split(",") if name.strip()]
    if not any(is_ours(name.lstrip("-").partition("(")[0]) for name in names):
        return device, config
    others = {name: value for name, value in dict(config or {}).items() if name != PRIORITIES}
    if kind == "AUTO":
        return _first_usable([name.partition("(")[0] for name in names], core), others
    return _shared(f"{kind}:{','.join(names)}"), others


def _shared(device: str) -> str:
    """Return MULTI with a list of cards. Raise DeviceError for any other list."""
    if not is_ours(device):
        kind = device.partition(":")[0]
        raise DeviceError(
            f"{device}: {kind} cannot share a model between NVIDIA and other devices; "
            "name NVIDIA alone, MULTI with a list of cards, or AUTO with a list of devices"
        )
    return device


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
