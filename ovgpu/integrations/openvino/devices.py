"""Device names of openvino's Core that ovgpu takes over, and the devices that are tried for a compiled model.

The names are NVIDIA and NVIDIA.n (alias CUDA), MULTI of these, lists of AUTO and HETERO that contain them, and any of
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
"""Names of openvino's devices that mean a card."""


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

    ``device`` is its name in ovgpu. ``asked`` is NVIDIA, or the name of openvino's device that the call has instead.
    Such a replaced device has properties of its own, and models that ovgpu cannot run go on to openvino's device.
    """

    device: str
    asked: str

    @property
    def is_replaced(self) -> bool:
        """True if the call names a device of openvino, which ovgpu replaces."""
        return self.asked in REPLACEABLE


def target(name: Any) -> Target | None:
    """Return the device of ovgpu for a device name, or None for a device of openvino. AUTO and lists other than MULTI's
    are openvino's here; see `attempts`."""
    if not isinstance(name, str):
        return None
    selector, _, listed = name.partition(":")
    if selector == "MULTI" and listed:
        targets = [(target(entry.partition("(")[0].strip()), entry) for entry in listed.split(",")]
        if any(each is None for each, _ in targets):
            return None
        entries = [each.device + "".join(entry.partition("(")[1:]) for each, entry in targets if each is not None]
        return Target(f"MULTI:{','.join(dict.fromkeys(entries))}", "NVIDIA")
    word, dot, card_index = name.partition(".")
    if word in NAMES:
        return Target(name, "NVIDIA")
    if word in replaced and (word == "GPU" or name == "CPU"):
        return Target(f"NVIDIA{dot}{card_index}", word)
    return None


@dataclass(frozen=True)
class Attempt:
    """Device to compile a model for: ``target``, or openvino's ``device`` if that is None. ``config`` is for both."""

    target: Target | None
    device: Any
    config: Any


def attempts(device: Any, config: Any, core: Any, set_priorities: Callable[[str], Any]) -> list[Attempt]:
    """Return the devices to compile a model for, in the order in which they are tried.

    For AUTO with a list, these are the cards one by one, and openvino's devices together, as openvino's AUTO of these.
    ``set_priorities`` returns the list that was set as a property of AUTO, HETERO or MULTI.

    Raises: DeviceError if MULTI names NVIDIA and devices of openvino, or if no device of AUTO's list can be used.
    """
    own = target(device)
    if own is not None and not own.device.startswith("MULTI"):
        alone = Attempt(own, device, config)
        return [alone, replace(alone, target=None)] if own.is_replaced else [alone]
    selector, _, listed = ("AUTO" if device is None else str(device)).partition(":")
    if selector not in ("AUTO", "MULTI", "HETERO", "BATCH"):
        return [Attempt(None, device, config)]
    if not listed:
        listed = str((config or {}).get(PRIORITIES, "") or set_priorities(selector)) if _is_properties(config) else ""
    names = [name.strip() for name in listed.split(",") if name.strip()]
    others = {name: value for name, value in dict(config or {}).items() if name != PRIORITIES}
    if selector == "AUTO" and all(name[0] == "-" for name in names):
        return _of_auto_without(names, device, config, others)
    if not any(target(_bare(name)) for name in names):
        return [Attempt(None, device, config)]
    if selector == "AUTO":
        return _of_auto(names, others, core)
    first = target(f"MULTI:{','.join(names)}") if selector == "MULTI" else target(_bare(names[0]))
    if first is None and selector == "MULTI":
        raise DeviceError(
            f"MULTI:{','.join(names)}: MULTI cannot share a model between NVIDIA and other devices; "
            "name NVIDIA alone, MULTI with a list of cards, or AUTO with a list of devices"
        )
    if first is None:  # openvino's devices run all operations, so nothing is left for a card
        return [Attempt(None, f"{selector}:{','.join(name for name in names if not target(_bare(name)))}", others)]
    ours = first if selector == "MULTI" else replace(first, device=f"{selector}:{first.device}")
    best = target(_bare(names[0]))
    rest = _in_place_of(selector, names, others) if best is not None and best.is_replaced else []
    return [Attempt(ours, ours.device, others), *rest]


def _of_auto_without(names: list[str], device: Any, config: Any, others: Mapping[str, Any]) -> list[Attempt]:
    """Return the devices to try for AUTO without a list, or with a list that only excludes devices."""
    excluded = {name: card for name in names if (card := target(_bare(name))) is not None}
    kept = [name for name in names if name not in excluded or excluded[name].is_replaced]
    theirs = Attempt(None, ":".join(["AUTO", ",".join(kept)]).rstrip(":"), others)
    if not excluded:
        theirs = Attempt(None, device, config)
    if "AUTO" not in replaced or any(card.asked != "CPU" for card in excluded.values()):
        return [theirs]
    return [Attempt(Target("AUTO:NVIDIA", "AUTO"), device, others), theirs]


def _in_place_of(selector: str, names: list[str], config: Mapping[str, Any]) -> list[Attempt]:
    """Return openvino's own devices in place of the replaced ones of a list, for models that ovgpu cannot run."""
    cards = {name: target(_bare(name)) for name in names if name[0] != "-"}
    replaced_names = [name for name, card in cards.items() if card is not None and card.is_replaced]
    if not replaced_names:
        return []
    families = {family(name) for name in own_core().available_devices}
    available = [name for name in replaced_names if family(_bare(name)) in families] or replaced_names
    return [Attempt(None, f"{selector}:{','.join(available)}", config)]


def _of_auto(names: list[str], config: Mapping[str, Any], core: Any) -> list[Attempt]:
    """Return the usable devices to try for AUTO with a list, up to the first device of openvino.

    That attempt is openvino's AUTO with all its devices of the list. If there is none, openvino's own devices come last
    in place of replaced ones, for models that ovgpu cannot run.
    """
    own = {name: target(_bare(name)) for name in names}
    theirs = Attempt(None, f"AUTO:{','.join(name for name in names if not own[name])}", config)
    usable: list[Attempt] = []
    refused: list[str] = []
    for name in names:
        if name.startswith("-"):
            continue
        card = own[name]
        reason = _reason_against_openvinos(_bare(name), core) if card is None else _reason_against(card.device)
        if reason is not None:
            refused.append(reason)
        elif card is not None:
            usable.append(Attempt(replace(card, device=f"AUTO:{card.device}"), name, config))
        else:
            if not usable:
                warn_of_unused_cards("AUTO", _bare(name), [r for r in refused if "NVIDIA" in r], stacklevel=6)
            return [*usable, theirs]
    usable += _in_place_of("AUTO", names, config)
    if not usable:
        raise DeviceError(f"AUTO:{','.join(names)}: no device of the list can be used: {'; '.join(refused)}")
    return usable


def _bare(name: str) -> str:
    """Return a name of a list without the minus that excludes it, and without the number of requests in parentheses."""
    return name.lstrip("-").partition("(")[0]


def _is_properties(config: Any) -> bool:
    return config is None or isinstance(config, Mapping)


def _reason_against(device: str) -> str | None:
    """Return the reason why a device of ovgpu cannot be used, or None if it can."""
    try:
        resolve(device)
    except DeviceError as e:
        return str(e)
    return None


def _reason_against_openvinos(name: str, core: Any) -> str | None:
    available = any(family(name) == family(device) for device in core.available_devices)
    return None if available else f'device "{name}" is not there'
