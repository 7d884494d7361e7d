"""Device NVIDIA in `openvino.Core`: replacements of its methods, which hand calls for this device over to ovgpu."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial, wraps
from typing import Any

import openvino  # type: ignore[import-untyped]

import ovgpu
from ovgpu._util.gc_pause import paused
from ovgpu._util.openvino_package import PLAIN
from ovgpu.api.core import check_readable
from ovgpu.compile import devices
from ovgpu.integrations.openvino.classes import expose, patch
from ovgpu.integrations.openvino.devices import (
    PRIORITIES,
    REPLACEABLE,
    Attempt,
    Target,
    attempts,
    replace_names,
    replaced,
    target,
)
from ovgpu.integrations.openvino.inference import AsyncInferQueue, CompiledModel, InferRequest
from ovgpu.integrations.openvino.remote import RemoteContext
from ovgpu.interop.models import from_openvino, mark_onnx
from ovgpu.interop.values import properties_to_ovgpu, property_to_openvino
from ovgpu.ir import is_xml_text

Method = Callable[..., Any]


def ovgpu_core(core: openvino.Core, asked: str = "NVIDIA") -> ovgpu.Core:
    """Return the ovgpu Core that has the properties of one device of an openvino Core.

    ``asked`` is NVIDIA, or the name of a device that ovgpu replaces. The replaced CPU computes in f32, as programs that
    name it expect.
    """
    cores: dict[str, ovgpu.Core] | None = core.__dict__.get("_ovgpu_cores")
    if cores is None:
        cores = {name: ovgpu.Core() for name in ("NVIDIA", *REPLACEABLE)}
        cores["CPU"].set_property({"INFERENCE_PRECISION_HINT": "f32"})
        cores = core.__dict__.setdefault("_ovgpu_cores", cores)
    return cores[asked]


def read_for_ovgpu(core: openvino.Core, model: Any, weights: Any = None) -> ovgpu.Model:
    """Return the model for ovgpu. ovgpu reads IR itself, files and text; openvino reads all other formats.

    Raises: RuntimeError for an object that is neither a model nor the path or contents of one.
    """
    if isinstance(model, (str, os.PathLike)) and (os.fspath(model).endswith(".xml") or is_xml_text(model)):
        return ovgpu_core(core).read_model(model, weights)
    if not isinstance(model, (openvino.Model, openvino._pyopenvino.Model)):
        check_readable(model)
        model = core.read_model(model, weights)
    with paused():
        return from_openvino(model)


# ---- methods of Core; each takes the original method first


def compile_model(
    original: Method,
    self: Any,
    model: Any,
    device_name: str | None = None,
    config: Mapping[str, Any] | None = None,
    *,
    weights: Any = None,
) -> Any:
    """Compile a model with ovgpu if ``device_name`` selects NVIDIA. See `ovgpu.Core.compile_model`."""
    failed: list[Exception] = []
    for attempt in attempts(device_name, config, self, partial(_priorities, self)):
        try:
            compiled = _compile(original, self, attempt, model, weights)
        except ovgpu.Error as e:
            failed.append(e)
            continue
        except (RuntimeError, TypeError, ValueError) as e:
            if attempt.target is not None and attempt.target.is_replaced:  # such as a property that ovgpu refuses
                failed.append(e)
                continue
            if failed and isinstance(failed[0], ovgpu.Error):
                raise failed[0] from e
            raise
        if failed:
            reasons = "; ".join(f"ovgpu cannot compile it: {e}" for e in failed)
            device = attempt.device or "AUTO"
            warnings.warn(f"openvino's {device} runs the model: {reasons}", RuntimeWarning, stacklevel=3)
        return compiled
    raise failed[0]


def _compile(original: Method, self: Any, attempt: Attempt, model: Any, weights: Any) -> Any:
    """Compile a model for one device. Raises: ovgpu.Error only for a device of ovgpu."""
    if attempt.target is None:
        return original(self, model, attempt.device, attempt.config, weights=weights)
    core, name = ovgpu_core(self, attempt.target.asked), attempt.target.device
    config = properties_to_ovgpu(attempt.config)
    candidates, read = core._resolve_devices(name, config), partial(read_for_ovgpu, self)
    return expose(CompiledModel(core._compile_for(name, candidates, config, model, weights, read)))


def _priorities(self: Any, selector: str) -> Any:
    """Return the list that was set as a property of AUTO, MULTI or HETERO."""
    return ovgpu_core(self).get_property(selector, PRIORITIES)


def read_model(original: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the model that openvino reads. A model that comes from ONNX is marked; see `mark_onnx`."""
    return mark_onnx(args[0] if args else kwargs.get("model"), original(self, *args, **kwargs))


def available_devices(original: Method, self: Any) -> list[str]:
    """Return the names of openvino's devices and of the usable cards. If ovgpu replaces GPU, the cards are listed as
    GPUs as well, and openvino's GPUs are not."""
    cards = devices.cards()
    gpus = [name.replace("NVIDIA", "GPU") for name in cards] if "GPU" in replaced else []
    theirs = [name for name in original(self) if not gpus or devices.family(name) != "GPU"]
    return [*theirs, *gpus, *cards]


def get_property(original: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a property of a device, or of the Core."""
    device, name = _device_and_value(args, kwargs)
    return _by(
        device,
        lambda card: property_to_openvino(ovgpu_core(self, card.asked).get_property(card.device, name)),
        lambda: original(self, *args, **kwargs),
    )


def set_property(original: Method, self: Any, *args: Any, **kwargs: Any) -> None:
    """Set properties of a device, or of all devices. For all devices, ovgpu takes the properties that it knows.

    Properties of a replaced device are also set for openvino's device, which runs what ovgpu cannot run.
    """
    device, values = _device_and_value(args, kwargs)
    card = target(device)
    if card is not None:
        try:
            ovgpu_core(self, card.asked).set_property(card.device, properties_to_ovgpu(values))
        except RuntimeError:
            if not card.is_replaced:
                raise
        else:
            if card.is_replaced:
                with suppress(RuntimeError):
                    original(self, *args, **kwargs)
            return
    original(self, *args, **kwargs)
    if device is None or device in devices.SELECTORS:
        for name, value in properties_to_ovgpu(values).items():
            for asked in ("NVIDIA", *REPLACEABLE):
                with suppress(RuntimeError):
                    ovgpu_core(self, asked).set_property(device or "", {name: value})


def _device_and_value(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return (device or None, value) of a call with a value and an optional device, by position or by keyword."""
    values = [*args, *(value for name, value in kwargs.items() if name != "device_name")]
    device = kwargs["device_name"] if "device_name" in kwargs else values[0] if len(values) == 2 else None
    return device, values[-1] if values else None


def _by(device: Any, own: Callable[[Target], Any], theirs: Callable[[], Any]) -> Any:
    """Call ``own`` for a device of ovgpu, and ``theirs`` for a device of openvino, or for a replaced one if ``own``
    fails."""
    card = target(device)
    if card is None:
        return theirs()
    try:
        return own(card)
    except RuntimeError as e:
        if not card.is_replaced:
            raise
        refused = e
    try:
        return theirs()
    except RuntimeError as e:  # there may be no such device of openvino
        raise refused from e


def query_model(
    original: Method, self: Any, model: Any, device_name: str, config: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Return a dict from friendly name to device for the nodes that the device can run."""

    def own(card: Target) -> dict[str, str]:
        names = ovgpu_core(self).query_model(read_for_ovgpu(self, model), card.device)
        return dict.fromkeys(names, device_name) if card.is_replaced else names

    result: dict[str, str] = _by(device_name, own, lambda: original(self, model, device_name, config))
    return result


def import_model(
    original: Method, self: Any, model_stream: Any, device_name: str, config: Mapping[str, Any] | None = None
) -> Any:
    """Return a compiled model that was exported for the device."""
    return _by(
        device_name,
        lambda card: expose(
            CompiledModel(
                ovgpu_core(self, card.asked).import_model(model_stream, card.device, properties_to_ovgpu(config))
            )
        ),
        lambda: original(self, model_stream, device_name, config),
    )


def get_versions(original: Method, self: Any, device_name: str) -> Any:
    """Return the version of a device's backend by device name."""
    card = target(device_name)
    own = {} if card is None else ovgpu_core(self).get_versions(card.device)
    if card is None or (not own and card.is_replaced):
        return original(self, device_name)
    return dict.fromkeys([device_name], next(iter(own.values()))) if card.is_replaced else own


def unload_plugin(original: Method, self: Any, device_name: str) -> None:
    """Unload openvino's plugin, or reset the properties that were set for a device of ovgpu."""
    _by(
        device_name,
        lambda card: ovgpu_core(self, card.asked).unload_plugin(card.device),
        lambda: original(self, device_name),
    )


def get_default_context(original: Method, self: Any, device_name: str) -> Any:
    """Return a device's context for remote tensors."""
    return _by(
        device_name,
        lambda card: RemoteContext(ovgpu_core(self).get_default_context(card.device)),
        lambda: original(self, device_name),
    )


def create_context(original: Method, self: Any, device_name: str, *args: Any, **kwargs: Any) -> Any:
    """Create a device's context for remote tensors."""
    return _by(
        device_name,
        lambda card: RemoteContext(ovgpu_core(self).create_context(card.device, *args, **kwargs)),
        lambda: original(self, device_name, *args, **kwargs),
    )


METHODS: tuple[Method, ...] = (
    compile_model,
    read_model,
    get_property,
    set_property,
    query_model,
    import_model,
    get_versions,
    unload_plugin,
    get_default_context,
    create_context,
)


# ---- installation

_originals: dict[tuple[Any, str], Any] = {}
"""The original attributes of openvino's classes, by class and name; None if the class inherits the attribute."""


def install(instead_of: str | Iterable[str] = ()) -> None:
    """Replace the methods of Core, unless they are replaced already, and let the names ``instead_of`` mean a card."""
    replace_names(instead_of)
    if _originals:
        return
    core = openvino.Core
    for method in METHODS:
        _replace(core, method.__name__, _with_original(method, getattr(core, method.__name__)))
    listing = _with_original(available_devices, core.get_available_devices)
    _replace(core, "get_available_devices", listing)
    _replace(core, "available_devices", property(listing, doc=core.available_devices.__doc__))
    patch((CompiledModel, InferRequest, AsyncInferQueue))


def uninstall() -> None:
    """Restore the methods of Core. Compiled models and queues that exist keep working."""
    replaced.clear()
    while _originals:
        (cls, name), original = _originals.popitem()
        if original is None:
            delattr(cls, name)
        else:
            setattr(cls, name, original)


def _replace(cls: Any, name: str, value: Any) -> None:
    _originals[cls, name] = vars(cls).get(name)
    setattr(cls, name, value)


def _with_original(method: Method, original: Method) -> Method:
    @wraps(original)
    def method_of_core(self: Any, *args: Any, **kwargs: Any) -> Any:
        if PLAIN in self.__dict__:
            return original(self, *args, **kwargs)
        return method(original, self, *args, **kwargs)

    return method_of_core
