"""Device names and the backends behind them: ``CPU`` (NumPy), ``NVIDIA[.n]`` (CUDA), and those that choose."""

from __future__ import annotations

from collections.abc import Callable

from ovgpu.backends.cpu import CpuBackend
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
    return sorted(_backends)


def open_backend(device: str) -> Backend:
    """A backend for one compiled model. ``device`` is a name that `resolve` gave."""
    return _backends[device]()


def resolve(name: str) -> str:
    """The device that a name means: itself, or the one that AUTO chooses.

    Raises: DeviceError if there is none of that name, or it cannot be used here.
    """
    kind, _, listed = name.partition(":")
    if kind in CHOOSING:
        wanted = [n.strip().split("(")[0] for n in listed.split(",")] if listed else PREFERRED
        for candidate in wanted:
            if (found := _find(candidate)) is not None:
                return found
        raise DeviceError(f"No available device to filter {kind} plugin: none of {', '.join(wanted)} can be used")
    found = _find(name)
    if found is not None:
        return found
    base, _, number = name.partition(".")
    if base == "CPU":
        raise DeviceError(f"CPU plugin supports only '' as device id, not '{number}'")
    if base in ("NVIDIA", "CUDA"):
        raise DeviceError(f'Device "{name}" is not available: the CUDA backend cannot be '
                          "chosen in this version of ovgpu yet; use CPU or AUTO")
    raise DeviceError(f'Device with "{name}" name is not registered in ovgpu: there are '
                      f'{", ".join(available_devices())} and AUTO')


def _find(name: str) -> str | None:
    """The registered device that a plain name means, if there is one; ``CUDA`` is another name of ``NVIDIA``."""
    if name in _backends:
        return name
    base, _, number = name.partition(".")
    base = "NVIDIA" if base == "CUDA" else base
    if base != "CPU" and base in _backends and number in ("", "0"):
        return base
    return f"{base}.{number}" if f"{base}.{number}" in _backends else None
