"""Device NVIDIA in `openvino.Core`: its methods, replaced by ones that hand calls for this device over to ovgpu."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial, wraps
from typing import Any

import openvino  # type: ignore[import-untyped]

import ovgpu
from ovgpu._util.gc_pause import paused
from ovgpu.api import devices
from ovgpu.api.core import check_readable
from ovgpu.integrations.openvino.devices import is_ours, select
from ovgpu.integrations.openvino.inference import AsyncInferQueue, CompiledModel
from ovgpu.interop.models import from_openvino, mark_onnx
from ovgpu.interop.values import properties_to_ovgpu, property_to_openvino
from ovgpu.ir import is_xml_text

Method = Callable[..., Any]


def ovgpu_core(core: openvino.Core) -> ovgpu.Core:
    """Return the ovgpu Core that holds the properties of device NVIDIA for one openvino Core."""
    found: ovgpu.Core = core.__dict__.setdefault("_ovgpu_core", ovgpu.Core())
    return found


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
    device_name, config = select(device_name, config, self)
    if not is_ours(device_name):
        return original(self, model, device_name, config, weights=weights)
    core, config = ovgpu_core(self), properties_to_ovgpu(config)
    candidates = core._resolve_devices(device_name, config)
    compile_with = partial(core._compile_by, partial(read_for_ovgpu, self), model, weights)
    return CompiledModel(core._compile_for(device_name, candidates, config, compile_with))


def read_model(original: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the model that openvino reads, which says so if it comes from ONNX; see `mark_onnx`."""
    return mark_onnx(args[0] if args else kwargs.get("model"), original(self, *args, **kwargs))


def available_devices(original: Method, self: Any) -> list[str]:
    """Return the names of openvino's devices, and of the cards that ovgpu can use."""
    return [*original(self), *(name for name in devices.available_devices() if is_ours(name))]


def get_property(original: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a property of a device, or of the Core."""
    device, name = _device_and_value(args, kwargs)
    if not is_ours(device):
        return original(self, *args, **kwargs)
    return property_to_openvino(ovgpu_core(self).get_property(device, name))


def set_property(original: Method, self: Any, *args: Any, **kwargs: Any) -> None:
    """Set properties of a device, or of all devices. ovgpu takes the common ones that it knows."""
    device, values = _device_and_value(args, kwargs)
    if is_ours(device):
        ovgpu_core(self).set_property(device, properties_to_ovgpu(values))
        return
    original(self, *args, **kwargs)
    for name, value in properties_to_ovgpu(values).items() if device is None else ():
        with suppress(RuntimeError):
            ovgpu_core(self).set_property({name: value})


def _device_and_value(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return (device or None, value) of a call with a value and an optional device, by position or by keyword."""
    values = [*args, *(value for name, value in kwargs.items() if name != "device_name")]
    device = kwargs["device_name"] if "device_name" in kwargs else values[0] if len(values) == 2 else None
    return device, values[-1] if values else None


def query_model(
    original: Method, self: Any, model: Any, device_name: str, config: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Return a dict from friendly name to device for the nodes that the device can run."""
    if is_ours(device_name):
        return ovgpu_core(self).query_model(read_for_ovgpu(self, model), device_name)
    found: dict[str, str] = original(self, model, device_name, config)
    return found


def import_model(
    original: Method, self: Any, model_stream: Any, device_name: str, config: Mapping[str, Any] | None = None
) -> Any:
    """Return a compiled model that was exported for the device."""
    if is_ours(device_name):
        return CompiledModel(ovgpu_core(self).import_model(model_stream, device_name, properties_to_ovgpu(config)))
    return original(self, model_stream, device_name, config)


def get_versions(original: Method, self: Any, device_name: str) -> Any:
    """Return the version of a device's backend by device name."""
    return ovgpu_core(self).get_versions(device_name) if is_ours(device_name) else original(self, device_name)


def unload_plugin(original: Method, self: Any, device_name: str) -> None:
    """Unload openvino's plugin, or reset the properties that were set for NVIDIA."""
    if is_ours(device_name):
        ovgpu_core(self).unload_plugin(device_name)
    else:
        original(self, device_name)


def get_default_context(original: Method, self: Any, device_name: str) -> Any:
    """Return a device's context for remote tensors; that of NVIDIA is an `ovgpu.RemoteContext`."""
    return ovgpu_core(self).get_default_context(device_name) if is_ours(device_name) else original(self, device_name)


def create_context(original: Method, self: Any, device_name: str, *args: Any, **kwargs: Any) -> Any:
    """Create a device's context for remote tensors; that of NVIDIA is an `ovgpu.RemoteContext`."""
    if is_ours(device_name):
        return ovgpu_core(self).create_context(device_name, *args, **kwargs)
    return original(self, device_name, *args, **kwargs)


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

_replaced: dict[tuple[Any, str], Any] = {}
"""The original attributes of openvino's classes, by class and name; a missing one is inherited."""


def install() -> None:
    """Replace the methods. Does nothing if they are replaced already."""
    if _replaced:
        return
    core = openvino.Core
    for method in METHODS:
        _replace(core, method.__name__, _with_original(method, getattr(core, method.__name__)))
    listing = _with_original(available_devices, core.get_available_devices)
    _replace(core, "get_available_devices", listing)
    _replace(core, "available_devices", property(listing, doc=core.available_devices.__doc__))
    _replace(openvino.AsyncInferQueue, "__new__", staticmethod(_new_queue))


def uninstall() -> None:
    """Restore the methods. Compiled models keep working, in queues that exist too."""
    while _replaced:
        (cls, name), original = _replaced.popitem()
        if original is None:
            delattr(cls, name)
        else:
            setattr(cls, name, original)


def _replace(cls: Any, name: str, value: Any) -> None:
    _replaced[cls, name] = vars(cls).get(name)
    setattr(cls, name, value)


def _with_original(method: Method, original: Method) -> Method:
    @wraps(original)
    def replaced(self: Any, *args: Any, **kwargs: Any) -> Any:
        return method(original, self, *args, **kwargs)

    return replaced


def _new_queue(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a queue of ovgpu for a model that it has compiled; then Python does not call the class's ``__init__``."""
    model = args[0] if args else kwargs.get("model")
    if type(model) is CompiledModel:
        return AsyncInferQueue(*args, **kwargs)
    return openvino._pyopenvino.AsyncInferQueue.__new__(cls)
