"""Device names and the backends behind them: ``CPU`` (NumPy), ``NVIDIA[.n]`` (CUDA), and those that choose.

Cards are looked for when a device is asked for, never by importing ovgpu. One card is ``NVIDIA``, several are
``NVIDIA.0``, ``NVIDIA.1``...; ``NVIDIA`` is then the first one, and ``CUDA`` another name of ``NVIDIA`` everywhere.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable

from ovgpu.backends.cpu import CpuBackend
from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda import device as cuda
from ovgpu.errors import DeviceError
from ovgpu.runtime.backend import Backend

PREFERRED = ("NVIDIA", "CPU")  # what AUTO takes, best first
CHOOSING = ("AUTO", "MULTI", "HETERO", "BATCH")  # "AUTO:A,B" takes the first of its list that there is

_backends: dict[str, Callable[[], Backend]] = {"CPU": CpuBackend}


def register_backend(device: str, backend: Callable[[], Backend]) -> None:
    """Makes a device of this name; another one of the same name is replaced."""
    _backends[device] = backend


def unregister_backend(device: str) -> None:
    """Takes a device away again; models compiled for it go on."""
    del _backends[device]


def available_devices() -> list[str]:
    """The devices that a model can be compiled for."""
    numbers = [] if "NVIDIA" in _backends else card_numbers()
    return sorted([*_backends, *(resolve(f"NVIDIA.{n}") for n in numbers)])


def open_backend(device: str, folder: str = "") -> Backend:
    """A backend for one compiled model. ``device`` is a name that `resolve` gave, ``folder`` the CACHE_DIR."""
    if device in _backends:
        return _backends[device]()
    return CudaBackend(card_number(device), folder and os.path.abspath(folder))  # kernels are compiled later on


def card_number(device: str) -> int:
    """The number of the card that a name which `resolve` gave stands for."""
    return int(device.partition(".")[2] or 0)


def is_card(device: str) -> bool:
    """Whether a name stands for one of NVIDIA's cards, and not for a backend registered by that name."""
    return family(device) == "NVIDIA" not in _backends


def card_numbers() -> list[int]:
    """The numbers of the cards that can be used."""
    try:
        return [n for n in range(cuda.count()) if _usable(n)]
    except DeviceError:
        return []


def family(name: str) -> str:
    """A device's name without its number: ``CUDA.1`` is of the family ``NVIDIA``."""
    if name in _backends:
        return name
    base = name.partition(".")[0]
    return "NVIDIA" if base == "CUDA" else base


def resolve(name: str) -> str:
    """The device that a name means: itself, or the one that AUTO chooses.

    Raises: DeviceError if there is none of that name, or it cannot be used here.
    """
    kind, _, listed = name.partition(":")
    if kind in CHOOSING:
        return _choose(kind, listed)
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
    raise DeviceError(f'Device with "{name}" name is not registered in ovgpu: there are '
                      f'{", ".join(available_devices())} and AUTO')


def _choose(kind: str, listed: str) -> str:
    """The first of the devices listed that there is; names behind a ``-`` are left out of those preferred."""
    names = [n.strip().split("(")[0] for n in listed.split(",")] if listed else []
    left_out = {family(n[1:]) for n in names if n.startswith("-")}
    wanted = [n for n in names if not n.startswith("-")] or [n for n in PREFERRED if n not in left_out]
    refused: dict[str, DeviceError] = {}
    for name in wanted:
        try:
            found = resolve(name)
        except DeviceError as e:
            refused[name] = e
            continue
        _warn_of_idle_cards(kind, found, refused)
        return found
    raise DeviceError(f"No available device to filter {kind} plugin: " + "; ".join(map(str, refused.values())))


def _warn_of_idle_cards(kind: str, found: str, refused: dict[str, DeviceError]) -> None:
    """Without a card there is nothing to say; one that something small keeps from working should not go unnoticed."""
    reasons = [str(e) for name, e in refused.items() if family(name) == "NVIDIA"]
    try:
        if reasons and cuda.count():
            warnings.warn(f"{kind} takes {found}: {'; '.join(reasons)}", RuntimeWarning, stacklevel=6)
    except DeviceError:
        pass


def _card(name: str, number: str) -> str:
    """The name of a card that can be used."""
    try:
        if not number.isdecimal() and number:
            raise DeviceError("GPUs are numbered, as in NVIDIA.0")
        cuda.check(int(number or 0))
        cards = cuda.count()
    except DeviceError as e:
        raise DeviceError(f'Device "{name}" cannot be used: {e}') from e.__cause__
    return "NVIDIA" if cards == 1 else f"NVIDIA.{int(number or 0)}"


def _usable(number: int) -> bool:
    try:
        cuda.check(number)
    except DeviceError:
        return False
    return True
