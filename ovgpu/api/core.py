"""Class Core: reading models and compiling them for devices."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ovgpu._util.extras import install_command
from ovgpu._util.gc_pause import paused
from ovgpu._util.openvino_package import owns, package
from ovgpu._util.unpicklable import Unpicklable
from ovgpu.api.compiled_model import CompiledModel
from ovgpu.api.multi_compiled_model import MultiCompiledModel
from ovgpu.backends.cuda import device as cuda
from ovgpu.compile import devices
from ovgpu.compile.compilation import Compilation
from ovgpu.compile.devices import is_multi, register_backend, resolve, resolve_multi
from ovgpu.compile.settings import Settings, bare
from ovgpu.errors import Error, ModelError, UnsupportedOpError
from ovgpu.interop import formats
from ovgpu.model import Model
from ovgpu.ops.base.unsupported import Unsupported
from ovgpu.request.remote_tensor import RemoteContext
from ovgpu.runtime.backend import Backend, is_remote
from ovgpu.tensor import Tensor
from ovgpu.version import Version

__all__ = ["CompiledModel", "Core", "compile_model", "register_backend"]


class Core(Unpicklable):
    """Entry point that reads models and compiles them for devices: ``CPU`` (NumPy) and ``NVIDIA[.n]`` (CUDA).

    ``AUTO`` selects the best device, and ``AUTO:A,B`` the first usable device of its list. The usable devices of
    ``MULTI:A,B`` share the requests of a compiled model, see `MultiCompiledModel`. A device that does not exist or
    cannot be used raises DeviceError with the reason.
    """

    def __init__(self, xml_config_file: str = "") -> None:
        if xml_config_file:
            raise RuntimeError("ovgpu has no plugins to configure")
        self._global = Settings("")
        self._settings: dict[str, Settings] = {}
        self._extensions: tuple[str, ...] = ()  # paths of libraries for openvino
        self._donors: Sequence[Compilation] = ()  # whose constants the models that are compiled for their devices use

    # ---- models

    def read_model(self, model: Any, weights: Any = None, config: Mapping[str, Any] | None = None) -> Model:
        """Read the model of an IR file. openvino reads other formats, such as ONNX, where it is installed.

        ``model`` is the path of an .xml file, the path of a folder with an .xml file, or the XML itself (str, bytes, a
        binary file object). ``weights`` is the path of the .bin file (by default beside the .xml file), its contents
        (bytes, an array, a Tensor, a binary file object), or a function from the name of a constant's layer to its
        contents. Arrays are not copied.

        Raises: ModelError and OpError for a malformed file, TypeError for another kind of ``model``.
        """
        if isinstance(model, Model):
            raise TypeError("Provided python object type Model isn't supported as 'model' argument.")
        with paused():
            return formats.read_model(_contents(model), _contents(weights))

    def compile_model(
        self,
        model: Any,
        device_name: str | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        weights: Any = None,
    ) -> CompiledModel:
        """Compile a model of ovgpu or of openvino, or the model of a file, for a device (by default ``AUTO``).

        Later changes to the model do not affect the compiled model. ``config`` has properties for this model only.

        Raises: UnsupportedOpError that names all operations of the model that ovgpu does not implement.
        """
        if not (config is None or isinstance(config, Mapping)) or not isinstance(device_name, (str, type(None))):
            raise TypeError(
                "compile_model takes (model, device_name: str, config: dict), got "
                f"{type(device_name).__name__} and {type(config).__name__}"
            )
        name = "AUTO" if device_name is None else device_name
        candidates = self._resolve_devices(name, config or {})
        return self._compile_for(name, candidates, config or {}, model, weights, self._read_any)

    def _compile_for(
        self,
        name: str,
        candidates: Sequence[Mapping[str, int]],
        config: Mapping[str, Any],
        model: Any,
        weights: Any,
        read: Callable[[Any, Any], Model],
    ) -> CompiledModel:
        """Compile a model for the first of the ``candidates``, from `_resolve_devices`, that can compile it.

        ``read(model, weights)`` reads a model that is not one of ovgpu's. Warns if an earlier candidate has failed.
        Raises: the error of the first candidate if all fail, and at once an error of the model itself.
        """
        failed: dict[str, Error] = {}
        for shared in candidates:
            try:
                compiled = self._compile_any(self._settings_for(shared, config, name), model, weights, read)
            except (ModelError, UnsupportedOpError):
                raise
            except Error as e:
                failed[",".join(shared)] = e
                continue
            if failed:
                reasons = "; ".join(f"{device} cannot compile the model: {e}" for device, e in failed.items())
                warnings.warn(f"{name} takes {','.join(shared)}: {reasons}", RuntimeWarning, stacklevel=3)
            return compiled
        raise next(iter(failed.values()))

    def _compile_any(
        self, settings: Sequence[Settings], model: Any, weights: Any, read: Callable[[Any, Any], Model]
    ) -> CompiledModel:
        """Compile a model, or the one that ``read`` returns, unless the first device's CACHE_DIR has it."""
        with paused():
            if isinstance(model, Model) and not owns(model):
                return self._compile(settings, model, may_change=True)
            first = settings[0]
            if not first["CACHE_DIR"]:
                return self._compile(settings, read(model, weights))
            from ovgpu.api.model_cache import entry  # imports zipfile and hashlib, which take 10 ms

            family, ciphers = devices.family(first.device), first["CACHE_ENCRYPTION_CALLBACKS"]
            cache = entry(first["CACHE_DIR"], model, weights, family, first.exported(), ciphers)
            cached = None if cache is None else cache.read()
            for each in settings:
                each.loaded_from_cache = cached is not None
            source = read(model, weights) if cached is None else cached
            compiled = self._compile(settings, source)
            if cache is not None and cached is None:
                cache.write(source)
            return compiled

    def _read_any(self, model: Any, weights: Any) -> Model:
        if owns(model):
            return _own(model)
        check_readable(model)
        return self.read_model(model, weights)

    def _compile(
        self,
        settings: Sequence[Settings],
        model: Model,
        may_change: bool = False,
        kernels: Mapping[str, bytes] | None = None,
    ) -> CompiledModel:
        """Compile a model for one device or several, which share its constants on the host.

        A model that the caller keeps ``may_change`` afterwards. ``kernels`` are the machine code exported with it.
        """
        compilations: list[Compilation] = []
        try:
            for each in settings:  # one after the other: a card takes the kernels that were compiled for an equal one
                each.adopt(model)
                backend = self._open_backend(each)
                backend.import_kernels(kernels or {})
                donor = next((d for d in self._donors if d.settings.device == each.device), None)
                compilations.append(Compilation(model, backend, each, may_change, donor))
        except UnsupportedOpError:
            first = settings[0]
            if not self._extensions or len(settings) > 1 or first.device != "CPU":
                raise
            from ovgpu.interop.extensions import compile_for_cpu

            compiled: CompiledModel = compile_for_cpu(model, self._extensions, first.exported())
            return compiled
        return CompiledModel(compilations[0]) if len(compilations) == 1 else MultiCompiledModel(compilations)

    def _open_backend(self, settings: Settings) -> Backend:
        return devices.open_backend(
            settings.device, settings["CACHE_DIR"], settings.tf32, settings["COMPILATION_NUM_THREADS"]
        )

    def query_model(self, model: Model, device_name: str, config: Mapping[str, Any] | None = None) -> dict[str, str]:
        """Return a dict from friendly name to device for the nodes that the device can run."""
        device = resolve(device_name)
        return {n.friendly_name: device for n in _own(model).ops if not isinstance(n.op, Unsupported)}

    def import_model(
        self, model_stream: Any, device_name: str, config: Mapping[str, Any] | None = None
    ) -> CompiledModel:
        """Return the compiled model that `CompiledModel.export_model` wrote.

        ``model_stream`` is a binary file, which is read from its beginning and rewound, or its contents: bytes, a
        Tensor, an array. The properties are those it was exported with, unless ``config`` sets them. Constants are not
        copied. The machine code in it runs on the card: import only files whose source you trust.

        Raises: ModelError for a damaged file, one of another version of ovgpu, or one for another kind of device.
        """
        from ovgpu.api.compiled_model_file import read, rewind  # imports zipfile and hashlib, which take 10 ms

        rewind(model_stream)
        data = _contents(model_stream)
        rewind(model_stream)
        if not isinstance(data, (bytes, bytearray, memoryview, np.ndarray)):
            raise TypeError(f"import_model takes bytes, a binary file, a Tensor or an array, got {type(data).__name__}")
        shared = self._resolve_devices(device_name, config or {})[0]
        ciphers = self._settings_for(shared, config or {}, device_name)[0]["CACHE_ENCRYPTION_CALLBACKS"]
        with paused():
            for family in sorted(set(map(devices.family, shared))):
                exported = read(data, family, *ciphers[1:])  # raises for all families but one
            settings = self._settings_for(shared, {**exported.properties, **(config or {})}, device_name)
            return self._compile(settings, exported.model, kernels=exported.kernels)

    # ---- devices and properties

    @property
    def available_devices(self) -> list[str]:
        """The names of the devices that a model can be compiled for."""
        return devices.available_devices()

    def get_available_devices(self) -> list[str]:
        """Return the names of the devices that a model can be compiled for."""
        return self.available_devices

    def get_property(self, *args: str, **kwargs: str) -> Any:
        """Return a property: ``get_property(device_name, property)``, or ``get_property(property)`` for the core.

        Raises: RuntimeError that lists the existing properties if this one does not exist.
        """
        device, name = _device_and_value(args, kwargs, "property", "name")
        if not isinstance(name, str):
            raise TypeError(f"a property is named by a str, got {type(name).__name__}")
        return self._settings_of(device).get(name)

    def set_property(self, *args: Any, **kwargs: Any) -> None:
        """Set properties: ``set_property(properties)`` for all devices, or ``set_property(device_name, properties)``.

        ``properties`` is a dict, or a pair for a single property. It affects models that are compiled from now on.

        Raises: RuntimeError for an unknown or read-only property, or a value that it does not accept.
        """
        device, properties = _device_and_value(args, kwargs, "properties", "property")
        if isinstance(properties, tuple) and len(properties) == 2:
            properties = {properties[0]: properties[1]}
        if not isinstance(properties, Mapping):
            raise TypeError(f"properties are a dict or a pair, got {type(properties).__name__}")
        for name in resolve_multi(device) if device.startswith("MULTI:") else (device,):
            self._settings_of(name).update(properties)

    def get_versions(self, device_name: str) -> dict[str, Version]:
        """Return the version of a device's backend by device name; an empty dict if there is no such device."""
        try:
            device = resolve(device_name)
        except RuntimeError:
            return {}
        libraries = f" ({cuda.libraries()})" if devices.is_card(device) else ""
        return {device: Version(f"ovgpu {device} backend{libraries}")}

    def _settings_of(self, name: str) -> Settings:
        """Return the settings of a device, or of the core if the name is empty."""
        if not name:
            return self._global
        if (selector := name.partition(":")[0]) in devices.SELECTORS:
            return self._settings.setdefault(selector, Settings(selector, self._global))
        device = resolve(name)
        family = devices.family(device)
        base = self._settings.setdefault(family, Settings(family, self._global))
        if device == family or name in (family, "CUDA"):
            return base
        return self._settings.setdefault(device, Settings(device, base))

    def _settings_for(self, shared: Mapping[str, int], config: Mapping[str, Any], name: str) -> list[Settings]:
        """Return the settings, one per device, of a model compiled for a candidate of `_resolve_devices`."""
        selector = self._settings_of(name) if name.partition(":")[0] in devices.SELECTORS else None
        compiled = [self._settings_of(device).compiled(config, selector) for device in shared]
        for settings, requests in zip(compiled, shared.values()):
            settings.requests = requests
        return compiled

    def _resolve_devices(self, name: str, config: Mapping[str, Any]) -> list[dict[str, int]]:
        """Return the candidates for a name in the order of trial, each a map from devices to numbers of requests.

        MULTI has one candidate: all its devices, each with its number of requests in the list, or 0. AUTO has a
        candidate per device. ``config`` may list the devices of AUTO and MULTI, or give the card's number.
        """
        if name in devices.SELECTORS:
            given = bare(config.get("MULTI_DEVICE_PRIORITIES"))
            given = ",".join(given) if isinstance(given, (list, tuple)) else given
            listed = self._settings_of(name)["MULTI_DEVICE_PRIORITIES"] if given in (None, "") else str(given)
            name += f":{listed}" if listed else ""
        if name in ("NVIDIA", "CUDA"):
            card_number = bare(config.get("DEVICE_ID", self._settings_of(name)["DEVICE_ID"]))
            name += f".{card_number}" if card_number else ""
        return [resolve_multi(name)] if is_multi(name) else [{device: 0} for device in devices.candidates(name)]

    # ---- plugins and remote contexts of OpenVINO's Core

    def add_extension(self, extension: Any) -> None:
        """Add the operations of a library for openvino, such as that of openvino_tokenizers.

        openvino's CPU then runs models with such operations on the device CPU; their compiled models are openvino's.
        Operations of ovgpu are Python classes instead, see `ovgpu.register_op`.

        Raises: RuntimeError unless ``extension`` is the path of a library, openvino is installed and can load it.
        """
        if not isinstance(extension, (str, os.PathLike)) or package() is None:
            advice = (
                f"libraries need openvino ({install_command('openvino')})"
                if package() is None
                else "this takes the paths of libraries, and `convert_model` the extensions of frontends"
            )
            raise RuntimeError(
                "Cannot add extension: operations are Python classes here, register them with @ovgpu.register_op; "
                + advice
            )
        from ovgpu.interop.extensions import core_with

        extensions = (*self._extensions, os.fspath(extension))
        core_with(extensions)
        self._extensions = extensions

    def register_plugin(self, *args: Any, **kwargs: Any) -> None:
        """Raise RuntimeError: ovgpu has no plugins."""
        raise RuntimeError("ovgpu has no plugins to register")

    register_plugins = register_plugin

    def unload_plugin(self, device_name: str) -> None:
        """Reset the properties that were set for a device."""
        self._settings.pop(resolve(device_name), None)

    def get_default_context(self, device_name: str) -> RemoteContext:
        """Return the context that creates tensors in a device's memory. Raise RuntimeError for the CPU."""
        device = resolve(device_name)
        backend = devices.open_backend(device)
        if not is_remote(backend):
            raise RuntimeError(f"{device} has no remote context: its tensors are on the host")
        return RemoteContext(device, backend)

    def create_context(self, device_name: str, params: Mapping[str, Any] | None = None) -> RemoteContext:
        """Return the default context, as all share CUDA's primary context. Raise RuntimeError for any ``params``."""
        if params:
            raise RuntimeError("a remote context takes no parameters: arrays of CuPy and torch are shared by DLPack")
        return self.get_default_context(device_name)

    def __repr__(self) -> str:
        return f"<Core: available plugins[{', '.join(self.available_devices)}]>"


def _device_and_value(args: tuple[Any, ...], kwargs: dict[str, Any], *names: str) -> tuple[str, Any]:
    """Return (device name or "", value) of a call with a value and an optional device, by position or by keyword."""
    values = [kwargs["device_name"]] if "device_name" in kwargs else []
    values += [*args, *(kwargs[name] for name in names if name in kwargs)]
    if not 1 <= len(values) <= 2 or kwargs.keys() - {"device_name", *names}:
        raise TypeError(f"takes ({names[0]}) or (device_name, {names[0]})")
    device = values[0] if len(values) == 2 else ""
    if not isinstance(device, str):
        raise TypeError(f"a device is named by a str, got {type(device).__name__}")
    return device, values[-1]


def check_readable(model: Any) -> None:
    """Raise RuntimeError for an object that is neither a path nor a file nor the contents of one."""
    if not isinstance(model, (str, bytes, os.PathLike)) and not hasattr(model, "read"):
        cls = type(model)
        raise Error(f"compile_model takes a model or the path of one, got {cls.__module__}.{cls.__name__}")


def _own(model: Any) -> Model:
    """Return a model of openvino as one of ovgpu, and one of ovgpu unchanged."""
    if not owns(model):
        return model  # type: ignore[no-any-return]
    from ovgpu.interop.models import from_openvino

    return from_openvino(model)


def _contents(source: Any) -> Any:
    """Return the contents of a file object, the array of a tensor, or any other object unchanged."""
    if hasattr(source, "read"):
        return source.read()
    if isinstance(source, Tensor):
        return source.array
    if hasattr(source, "get_byte_size"):  # openvino.Tensor
        return source.data
    return source


def compile_model(
    model: Any, device_name: str | None = "AUTO", config: Mapping[str, Any] | None = None
) -> CompiledModel:
    """Compile a model, or the model of a file, with a new Core; see `Core.compile_model`."""
    return Core().compile_model(model, device_name, config)
