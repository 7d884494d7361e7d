"""Device names of openvino's Core that ovgpu takes over, and the devices that are tried for a compiled model.

These are NVIDIA, NVIDIA.n (CUDA is an alias), MULTI of these, lists of AUTO and HETERO that name them, and those of
openvino's own names AUTO, GPU and CPU that `ovgpu.install` was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ovgpu._util.openvino_package import own_core
from ovgpu.compile.devices import family, resolve, warn_of_unused_cards
from ovgpu.errors import DeviceError

PRIORITIES = "MULTI_DEVICE_PRIORITIES"
NAMES = ("NVIDIA", "CUDA")
REPLACEABLE = ("AUTO", "GPU", "CPU")
replaced: set[str] = set()
"""The names of openvino's devices that mean a card."""


def replace_names(names: str | Iterable[str]) -> None:
    """Let names of openvino's devices mean a card. Raises: ValueError for other names than `REPLACEABLE`."""
    listed = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    wrong = [name for name in listed if name and name not in REPLACEABLE]
    if wrong:
        raise ValueError(
            f"of openvino's devices, {', '.join(REPLACEABLE)} can mean a card, not {', '.join(map(repr, wrong))}"
        )
    replaced.update(filter(None, listed))


@dataclass(frozen=True)
class Target:
    """Device of ovgpu that a call of openvino's Core names.

    ``device`` is its name in ovgpu. ``asked`` is the first word of the name in the call: the devices CPU and GPU have
    properties of their own, and what ovgpu cannot run goes on to openvino's.
    """

    device: str
    asked: str

    @property
    def is_replaced(self) -> bool:
        """True if the name is that of a device of openvino."""
        return self.asked in REPLACEABLE


def target(name: Any) -> Target | None:
    """Return the device of ovgpu for a device name, None for one of openvino's. AUTO and lists other than MULTI's are
    openvino's here; see `attempts`."""
    if not isinstance(name, str):
        return None
    kind, _, listed = name.partition(":")
    if kind == "MULTI" and listed:
        found = [(target(entry.partition("(")[0].strip()), entry) for entry in listed.split(",")]
        if any(each is None for each, _ in found):
            return None
        entries = [each.device + "".join(entry.partition("(")[1:]) for each, entry in found if each is not None]
        return Target(f"MULTI:{','.join(dict.fromkeys(entries))}", "NVIDIA")
    word, dot, number = name.partition(".")
    if word in NAMES:
        return Target(name, "NVIDIA")
    if word in replaced and (word == "GPU" or name == "CPU"):
        return Target(f"NVIDIA{dot}{number}", word)
    return None


@dataclass(frozen=True)
class Attempt:
    """A device to compile a model for: ``target``, or if that is None, openvino's ``device`` with ``config``."""

    target: Target | None
    device: Any
    config: Any


def attempts(device: Any, config: Any, core: Any, set_priorities: Callable[[str], Any]) -> list[Attempt]:
    """Return the devices to compile a model for, in the order in which they are tried.

    AUTO goes through its list: cards of ovgpu one by one, and the devices of openvino together, as AUTO of these.
    ``set_priorities`` returns the list that was set as a property of AUTO, HETERO or MULTI.

    Raises: DeviceError if MULTI names NVIDIA and devices of openvino, or AUTO finds none of its devices.
    """
    own = target(device)
    if own is not None and not own.device.startswith("MULTI"):
        alone = Attempt(own, device, config)
        return [alone, replace(alone, target=None)] if own.is_replaced else [alone]
    kind, _, listed = ("AUTO" if device is None else str(device)).partition(":")
    if kind not in ("AUTO", "MULTI", "HETERO", "BATCH"):
        return [Attempt(None, device, config)]
    if not listed:
        listed = str((config or {}).get(PRIORITIES, "") or set_priorities(kind)) if _is_properties(config) else ""
    names = [name.strip() for name in listed.split(",") if name.strip()]
    others = {name: value for name, value in dict(config or {}).items() if name != PRIORITIES}
    if kind == "AUTO" and all(name[0] == "-" for name in names):
        return _of_auto_without(names, device, config, others)
    if not any(target(_bare(name)) for name in names):
        return [Attempt(None, device, config)]
    if kind == "AUTO":
        return _of_auto(names, others, core)
    first = target(f"MULTI:{','.join(names)}") if kind == "MULTI" else target(_bare(names[0]))
    if first is None and kind == "MULTI":
        raise DeviceError(
            f"MULTI:{','.join(names)}: MULTI cannot share a model between NVIDIA and other devices; "
            "name NVIDIA alone, MULTI with a list of cards, or AUTO with a list of devices"
        )
    if first is None:  # openvino's devices run all operations, so nothing is left for a card
        return [Attempt(None, f"{kind}:{','.join(name for name in names if not target(_bare(name)))}", others)]
    ours = first if kind == "MULTI" else replace(first, device=f"{kind}:{first.device}")
    best = target(_bare(names[0]))
    rest = _in_place_of(kind, names, others) if best is not None and best.is_replaced else []
    return [Attempt(ours, ours.device, others), *rest]


def _of_auto_without(names: list[str], device: Any, config: Any, others: Mapping[str, Any]) -> list[Attempt]:
    """Return the devices of AUTO without a list, or with one that only excludes devices."""
    excluded = {name: card for name in names if (card := target(_bare(name))) is not None}
    kept = [name for name in names if name not in excluded or excluded[name].is_replaced]
    theirs = Attempt(None, ":".join(["AUTO", ",".join(kept)]).rstrip(":"), others)
    if not excluded:
        theirs = Attempt(None, device, config)
    if "AUTO" not in replaced or any(card.asked != "CPU" for card in excluded.values()):
        return [theirs]
    return [Attempt(Target("AUTO:NVIDIA", "AUTO"), device, others), theirs]


def _in_place_of(kind: str, names: list[str], config: Mapping[str, Any]) -> list[Attempt]:
    """Return the list of openvino's devices that ovgpu replaces in a list, which run what ovgpu cannot run."""
    cards = {name: target(_bare(name)) for name in names if name[0] != "-"}
    replaced_names = [name for name, card in cards.items() if card is not None and card.is_replaced]
    if not replaced_names:
        return []
    there = {family(name) for name in own_core().available_devices}
    found = [name for name in replaced_names if family(_bare(name)) in there] or replaced_names
    return [Attempt(None, f"{kind}:{','.join(found)}", config)]


def _of_auto(names: list[str], config: Mapping[str, Any], core: Any) -> list[Attempt]:
    """Return the devices of AUTO's list that are there. For one of openvino's, AUTO with the list of these; it also
    comes last for replaced ones, to run what ovgpu cannot run."""
    own = {name: target(_bare(name)) for name in names}
    theirs = Attempt(None, f"AUTO:{','.join(name for name in names if not own[name])}", config)
    found: list[Attempt] = []
    refused: list[str] = []
    for name in names:
        if name.startswith("-"):
            continue
        card = own[name]
        reason = _reason_against_openvinos(_bare(name), core) if card is None else _reason_against(card.device)
        if reason is not None:
            refused.append(reason)
        elif card is not None:
            found.append(Attempt(replace(card, device=f"AUTO:{card.device}"), name, config))
        else:
            if not found:
                warn_of_unused_cards("AUTO", _bare(name), [r for r in refused if "NVIDIA" in r], stacklevel=6)
            return [*found, theirs]
    found += _in_place_of("AUTO", names, config)
    if not found:
        raise DeviceError(f"AUTO:{','.join(names)}: no device of the list can be used: {'; '.join(refused)}")
    return found


def _bare(name: str) -> str:
    return _without_number(name.lstrip("-"))


def _without_number(name: str) -> str:
    """Return a name of a list without the number of requests in parentheses."""
    return name.partition("(")[0]


def _is_properties(config: Any) -> bool:
    return config is None or isinstance(config, Mapping)


def _reason_against(device: str) -> str | None:
    """Return the reason why a device of ovgpu cannot be used, None if it can."""
    try:
        resolve(device)
    except DeviceError as e:
        return str(e)
    return None


def _reason_against_openvinos(name: str, core: Any) -> str | None:
    there = any(family(name) == family(found) for found in core.available_devices)
    return None if there else f'device "{name}" is not there'
