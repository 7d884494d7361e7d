"""Device names and their backends: ``CPU`` (NumPy), ``NVIDIA[.n]`` (CUDA), and names such as ``AUTO`` that select one.

Importing ovgpu does not look for cards; the first use of a device does. A single card is named ``NVIDIA``. Several
cards are named ``NVIDIA.0``, ``NVIDIA.1``..., and ``NVIDIA`` is the first one. ``CUDA`` is an alias of ``NVIDIA``.
``MULTI:A,B`` names several devices, which share the requests of a compiled model.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable, Sequence

from ovgpu._util.nearest import did_you_mean
from ovgpu.backends.cpu import CpuBackend
from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda import device as cuda
from ovgpu.backends.cuda.kernel_cache import KernelStore
from ovgpu.errors import DeviceError
from ovgpu.runtime.backend import Backend

PREFERRED = ("NVIDIA", "CPU")  # the order in which AUTO tries devices
SELECTORS = ("AUTO", "MULTI", "HETERO", "BATCH")  # "AUTO:A,B" selects the first usable device of its list
LISTED = re.compile(r"([^()]+)(?:\(([1-9]\d*)\))?")  # device of a list, with a number: NVIDIA.0(4)

_backends: dict[str, Callable[[], Backend]] = {"CPU": CpuBackend}
_warned: set[str] = set()  # warnings of cards that cannot be used


def register_backend(device: str, backend: Callable[[], Backend]) -> None:
    """Register a device with this name. A device of the same name is replaced."""
    _backends[device] = backend


def unregister_backend(device: str) -> None:
    """Remove a registered device. Models compiled for it keep working."""
    del _backends[device]


def available_devices() -> list[str]:
    """Return the names of the devices that a model can be compiled for."""
    numbers = [] if "NVIDIA" in _backends else card_numbers()
    return sorted([*_backends, *(resolve(f"NVIDIA.{n}") for n in numbers)])


def open_backend(device: str, folder: str = "", tf32: bool = False, threads: int = 0) -> Backend:
    """Return a backend for one compiled model. ``device`` is a result of `resolve`, ``folder`` the CACHE_DIR; see
    `CudaBackend` for ``tf32``, `KernelStore` for ``threads``."""
    if device in _backends:
        return _backends[device]()
    kernels = KernelStore(folder and os.path.abspath(folder), threads)  # they are compiled later
    return CudaBackend(card_number(device), kernels, tf32=tf32)


def card_number(device: str) -> int:
    """Return the number of the card for a device name from `resolve`."""
    return int(device.partition(".")[2] or 0)


def is_card(device: str) -> bool:
    """Return whether a name is that of an NVIDIA card, and not of a backend registered under that name."""
    return family(device) == "NVIDIA" not in _backends


def card_numbers() -> list[int]:
    """Return the numbers of the usable cards."""
    try:
        return [n for n in range(cuda.count()) if _usable(n)]
    except DeviceError:
        return []


def family(name: str) -> str:
    """Return a device's name without its number; ``CUDA.1`` belongs to the family ``NVIDIA``."""
    if name in _backends:
        return name
    base = name.partition(".")[0]
    return "NVIDIA" if base == "CUDA" else base


def resolve(name: str) -> str:
    """Return the device for a name: the device itself, or the one that AUTO selects.

    Raises: DeviceError if there is no device of that name, or it cannot be used on this machine.
    """
    return candidates(name)[0]


def candidates(name: str) -> list[str]:
    """Return the devices for a name, best first: the device itself, or those of AUTO that can be used.

    Raises: DeviceError as `resolve`.
    """
    selector, _, listed = name.partition(":")
    return _choose(selector, listed) if selector in SELECTORS else [_resolve_one(name)]


def _resolve_one(name: str) -> str:
    base, number = family(name), "" if name in _backends else name.partition(".")[2]
    registered = f"{base}.{number}" if number else base
    if registered in _backends:
        return registered
    if base == "CPU":
        raise DeviceError(f"CPU plugin supports only '' as device id, not '{number}'")
    if base in _backends and number == "0":
        return base
    if base == "NVIDIA" and base not in _backends:
        return _card(name, number)
    unknown = f'Device with "{name}" name is not registered in ovgpu'
    if base == "GPU":  # OpenVINO's name for GPUs of Intel
        raise DeviceError(f"{unknown}, where GPUs are named NVIDIA{_why_no_card()}")
    names = [*available_devices(), "AUTO"]
    raise DeviceError(f"{unknown}: there are {', '.join(names[:-1])} and AUTO{did_you_mean(name, [*names, 'NVIDIA'])}")


def _choose(selector: str, listed: str) -> list[str]:
    """Return the listed devices that can be used, by default of `PREFERRED` without the names after a ``-``."""
    names = [device for device, _ in _entries(f"{selector}:{listed}")]
    excluded = {family(n[1:]) for n in names if n.startswith("-")}
    usable: list[str] = []
    refused: dict[str, DeviceError] = {}
    for name in [n for n in names if not n.startswith("-")] or [n for n in PREFERRED if n not in excluded]:
        try:
            usable.append(_resolve_one(name))
        except DeviceError as e:
            if not usable:
                refused[name] = e
    if not usable:
        raise _no_device(selector, map(str, refused.values()))
    if selector == "BATCH":
        warnings.warn(
            f"{selector}:{listed} runs each request on its own: ovgpu.DynamicBatcher gathers rows of several requests",
            RuntimeWarning,
            stacklevel=5,  # the caller of Core.compile_model
        )
    warn_of_unused_cards(selector, usable[0], [str(e) for name, e in refused.items() if family(name) == "NVIDIA"])
    return list(dict.fromkeys(usable))


def _entries(name: str) -> list[tuple[str, int]]:
    """Return the devices in the list of a name such as ``AUTO:NVIDIA,CPU(2)``, each with its number, or 0.

    The number is the batch of BATCH, the priority in AUTO, and the number of requests in MULTI. As in OpenVINO, empty
    entries do not count.
    """
    entries = []
    for entry in filter(None, map(str.strip, name.partition(":")[2].split(","))):
        parts = LISTED.fullmatch(entry)
        if parts is None:
            raise DeviceError(
                f"{name}: '{entry}' is not the name of a device, with or without a positive number, "
                "as in NVIDIA.0 or NVIDIA.0(4)"
            )
        entries.append((parts[1].strip(), int(parts[2] or 0)))
    return entries


def is_multi(name: str) -> bool:
    """Return whether a name is that of several devices, which share requests: ``MULTI`` with or without a list."""
    return name.partition(":")[0] == "MULTI"


def resolve_multi(name: str) -> dict[str, int]:
    """Return the devices of ``MULTI:A,B(4)``, each with its number of requests in parentheses, or 0.

    These are the listed devices that can be used; a RuntimeWarning gives the reasons against the others. Without a
    list, these are all cards that can be used and are not excluded, as in ``MULTI:-NVIDIA.1``, or else the CPU.

    Raises: DeviceError if none can be used, or for a number of requests that is not positive.
    """
    selector, _, listed = name.partition(":")
    entries = _entries(name)
    names = [entry for entry in entries if not entry[0].startswith("-")]
    if not names:
        excluded = {device[1:].replace("CUDA", "NVIDIA", 1) for device, _ in entries}
        chosen = [card for card in cards() if not {"NVIDIA", f"NVIDIA.{card_number(card)}"} & excluded]
        return dict.fromkeys(chosen or _choose(selector, listed)[:1], 0)
    usable: dict[str, int] = {}
    refused = []
    for device, requests in names:
        try:
            usable.setdefault(resolve(device), requests)
        except DeviceError as e:
            refused.append(str(e))
    if not usable:
        raise _no_device(selector, refused)
    if refused:
        warnings.warn(f"{selector} takes {', '.join(usable)}: {'; '.join(refused)}", RuntimeWarning, stacklevel=4)
    return usable


def cards() -> list[str]:
    """Return the names of the usable cards, and of backends registered in their place, by number."""
    return sorted([name for name in available_devices() if name.partition(".")[0] == "NVIDIA"], key=card_number)


def _no_device(selector: str, reasons: Iterable[str]) -> DeviceError:
    return DeviceError(f"No available device to filter {selector} plugin: " + "; ".join(reasons))


def warn_of_unused_cards(selector: str, device: str, reasons: Sequence[str], stacklevel: int = 6) -> None:
    """Warn once that AUTO takes another device although CuPy is installed, for ``reasons`` against the cards.

    A program that hides all cards by CUDA_VISIBLE_DEVICES gets no warning.
    """
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1", "NoDevFiles")
    text = f"{selector} takes {device}: {'; '.join(reasons)}"
    if reasons and not hidden and text not in _warned and cuda.is_installed():
        _warned.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=stacklevel)


def _card(name: str, number: str) -> str:
    """Return the name of a card after checking that it can be used. Raise DeviceError if it cannot."""
    try:
        if not number.isdecimal() and number:
            raise DeviceError("GPUs are numbered, as in NVIDIA.0")
        cuda.check(int(number or 0))
        cards = cuda.count()
    except DeviceError as e:
        raise DeviceError(f'Device "{name}" cannot be used: {e}') from e.__cause__
    return "NVIDIA" if cards == 1 else f"NVIDIA.{int(number or 0)}"


def _why_no_card() -> str:
    """Return the reason against NVIDIA on this machine, as the end of a sentence, or "" if it can be used."""
    try:
        cuda.check(0)
    except DeviceError as e:
        return f", and none can be used: {e}"
    return ""


def _usable(number: int) -> bool:
    try:
        cuda.check(number)
    except DeviceError:
        return False
    return True
