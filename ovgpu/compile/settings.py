"""Properties of devices and compiled models: names, default values, and read-only properties.

`properties.table` lists the properties that can be set.
"""

from __future__ import annotations

import os
import platform
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from ovgpu._util.nearest import did_you_mean
from ovgpu.backends.cuda import device as cuda
from ovgpu.compile import devices
from ovgpu.model import Model
from ovgpu.properties import device as device_properties
from ovgpu.properties import hint, intel_auto, table
from ovgpu.properties._property import PropertyEnum
from ovgpu.types import TF32, Type

PRECISIONS = (Type.bf16, Type.f16, Type.f32, TF32, Type.dynamic)  # values of INFERENCE_PRECISION_HINT
CACHE_PRECISIONS = (Type.bf16, Type.f16, Type.f32, Type.u8, Type.i8)  # values of KV_CACHE_PRECISION with an effect
CACHES = ("KV_CACHE_PRECISION", "KEY_CACHE_PRECISION", "VALUE_CACHE_PRECISION")
# Properties that a model may bring in ``rt_info/runtime_options``. ACTIVATIONS_SCALE_FACTOR has no effect: products
# keep their sums in f32, and f16 that was chosen for its speed is widened where its range is too small.
OPTIONS = (
    *CACHES,
    "KEY_CACHE_GROUP_SIZE",
    "VALUE_CACHE_GROUP_SIZE",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE",
    "ACTIVATIONS_SCALE_FACTOR",
)
LOG_LEVELS = {"LOG_NONE": "NO", "LOG_ERROR": "ERR"}  # OpenVINO's texts whose enumerators have other names
STREAM_POLICIES = {"AUTO": -1, "NUMA": -2}
SIZES = ("DYNAMIC_QUANTIZATION_GROUP_SIZE", "KEY_CACHE_GROUP_SIZE", "VALUE_CACHE_GROUP_SIZE")  # of 64 bits, unsigned

# Default values of writable properties. The type of the default is the type of the property. The defaults of
# properties in `COMPUTED` are never returned.
WRITABLE: dict[str, Any] = {name: row.default for name, row in table.WRITABLE.items()}
OF_SELECTORS = {
    selector: {name: row.default for name, row in rows.items()} for selector, rows in table.OF_SELECTORS.items()
}

OF_MACHINE = (
    "CACHE_DIR",
    "CACHE_ENCRYPTION_CALLBACKS",
    "DEVICE_ID",
    "MULTI_DEVICE_PRIORITIES",
)  # not exported with a compiled model

# OpenVINO's compiled models return these as strings.
TEXTS_WHEN_COMPILED = ("PERF_COUNT", "PERFORMANCE_HINT", "PERFORMANCE_HINT_NUM_REQUESTS")

_CAPABILITY = device_properties.Capability
_TYPE = device_properties.Type
_cpus = os.cpu_count() or 1

# Numbers of inferences in parallel: the default for throughput, and the maximum. While a card computes for one request,
# the host prepares others. A card has eight queues for the work of streams.
STREAMS = {"NVIDIA": (4, 8)}

READ_ONLY: dict[str, Callable[[Settings], Any]] = {
    "SUPPORTED_PROPERTIES": lambda s: s.supported,
    "AVAILABLE_DEVICES": lambda s: [""],
    "FULL_DEVICE_NAME": lambda s: _processor() if s.device == "CPU" else s.device,
    "EXECUTION_DEVICES": lambda s: [s.device],
    "OPTIMIZATION_CAPABILITIES": lambda s: [
        _CAPABILITY.FP32,
        _CAPABILITY.FP16,
        _CAPABILITY.BF16,
        _CAPABILITY.INT8,
        _CAPABILITY.EXPORT_IMPORT,
    ],
    "RANGE_FOR_ASYNC_INFER_REQUESTS": lambda s: (1, s.stream_limits[1], 1),
    "RANGE_FOR_STREAMS": lambda s: (1, s.stream_limits[1]),
    "DEVICE_TYPE": lambda s: _TYPE.INTEGRATED if s.device == "CPU" else _TYPE.DISCRETE,
    "DEVICE_ARCHITECTURE": lambda s: platform.machine(),
}
# Read-only properties of cards, with the names of OpenVINO's GPU device where it has them.
CARD_READ_ONLY: dict[str, Callable[[Settings], Any]] = {
    "AVAILABLE_DEVICES": lambda s: [str(n) for n in devices.card_numbers()],
    "FULL_DEVICE_NAME": lambda s: f"{s.card.name} ({'iGPU' if s.card.integrated else 'dGPU'})",
    "DEVICE_TYPE": lambda s: _TYPE.INTEGRATED if s.card.integrated else _TYPE.DISCRETE,
    "OPTIMIZATION_CAPABILITIES": lambda s: [
        c for c in READ_ONLY["OPTIMIZATION_CAPABILITIES"](s) if c != _CAPABILITY.BF16 or s.card.capability >= (8, 0)
    ],
    "DEVICE_ARCHITECTURE": lambda s: s.card.architecture,
    "DEVICE_UUID": lambda s: cuda.uuid(s.card.number),
    "GPU_DEVICE_TOTAL_MEM_SIZE": lambda s: s.card.memory,
    "GPU_EXECUTION_UNITS_COUNT": lambda s: s.card.multiprocessors,
    "GPU_UARCH_VERSION": lambda s: "{}.{}.0".format(*s.card.capability),
    "GPU_MEMORY_STATISTICS": lambda s: cuda.memory(s.card.number),
}
# Properties whose values are derived from other properties, or may differ from the value that was set.
COMPUTED: dict[str, Callable[[Settings], Any]] = {
    "NUM_STREAMS": lambda s: s.streams,
    "INFERENCE_NUM_THREADS": lambda s: s["INFERENCE_NUM_THREADS"] or _cpus,
    "INFERENCE_PRECISION_HINT": lambda s: s.precision,
    **dict.fromkeys(CACHES, lambda s: s.reported_cache),
}
COMPILED_ONLY: dict[str, Callable[[Settings], Any]] = {
    "NETWORK_NAME": lambda s: s.model_name,
    "OPTIMAL_NUMBER_OF_INFER_REQUESTS": lambda s: (
        s.requests or min(s.streams, s["PERFORMANCE_HINT_NUM_REQUESTS"] or s.streams)
    ),
    "LOADED_FROM_CACHE": lambda s: s.loaded_from_cache,
}


class Settings:
    """Properties of a device. Properties that are not set have the values in ``base``, such as those of the core."""

    model_name: str | None = None  # set for a compiled model, whose settings are read-only
    loaded_from_cache = False
    requests = 0  # number of requests that MULTI's list gives this device in parentheses

    def __init__(self, device: str, base: Settings | None = None) -> None:
        self.device: str = device
        self._read_only = {**READ_ONLY, **CARD_READ_ONLY} if devices.is_card(device) else READ_ONLY
        self._writable = {**WRITABLE, **OF_SELECTORS.get(device, {})}
        self._base = base
        self._values: dict[str, Any] = {}
        self._options: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        explicit = self._explicit(name)
        return self._options.get(name, self._writable[name]) if explicit is None else explicit

    @property
    def supported(self) -> dict[str, str]:
        """The names of the properties, each with ``RO`` or ``RW``."""
        if self.model_name is not None:
            return dict.fromkeys([*COMPILED_ONLY, *self._read_only, *self._writable], "RO")
        return {**dict.fromkeys(self._read_only, "RO"), **dict.fromkeys(self._writable, "RW")}

    @property
    def card(self) -> cuda.Card:
        """The card of a device of the family NVIDIA."""
        return cuda.card(int(self._card_number))

    @property
    def _card_number(self) -> str:
        return self.device.partition(".")[2] or self["DEVICE_ID"] or "0"

    @property
    def stream_limits(self) -> tuple[int, int]:
        """The numbers of inferences in parallel: the default for throughput, and the maximum."""
        return STREAMS.get(devices.family(self.device), (_cpus, _cpus))

    @property
    def precision(self) -> Type:
        """The type that floats are computed in; dynamic means that each is computed in its own type.

        NumPy computes in f32 unless a 16-bit type was set explicitly. A card computes in the model's types, or, if
        performance is preferred, in f16, which has a smaller error than bf16. Devices without units for bf16 or TF32
        use f32 instead.
        """
        explicit: Type | None = self._explicit("INFERENCE_PRECISION_HINT")
        if (explicit is TF32 and not self._has_ampere_units) or (
            explicit == Type.bf16 and devices.is_card(self.device) and not self._has_ampere_units
        ):
            return Type.f32
        if explicit is not None or self.device == "CPU":
            return explicit or Type.f32
        fast = self["EXECUTION_MODE_HINT"] is hint.ExecutionMode.PERFORMANCE
        return Type.f16 if fast else Type.dynamic

    @property
    def may_widen(self) -> bool:
        """True if f16 was chosen for its speed, so that another type may replace it where its range is too small."""
        return self.precision is Type.f16 and self._explicit("INFERENCE_PRECISION_HINT") is None

    def widened(self) -> Settings:
        """Return these settings with bf16 in place of f16, or f32 on cards without bf16."""
        wider = Settings(self.device, self._base)
        wider.model_name, wider._options, wider._writable = self.model_name, self._options, self._writable
        wider._values = {**self._values, "INFERENCE_PRECISION_HINT": Type.bf16}
        wider.requests = self.requests
        return wider

    @property
    def tensor_type(self) -> Type:
        """The type of float tensors at this `precision`; dynamic for TF32, which only products have."""
        return Type.dynamic if self.precision is TF32 else self.precision

    @property
    def tf32(self) -> bool:
        """True if products, convolutions and attention of f32 tensors may round their operands to TF32.

        They may on cards that have it, unless f32 or accuracy was asked for.
        """
        if not self._has_ampere_units or self.precision is Type.f32:
            return False
        return self.precision is TF32 or not self._asks_for_accuracy

    @property
    def _has_ampere_units(self) -> bool:
        """True if the device is a card whose tensor cores compute in bf16 and TF32."""
        return devices.is_card(self.device) and self.card.capability >= (8, 0)

    @property
    def cache(self) -> Type:
        """The element type of the KV cache: the type that was set if ovgpu supports it, else `tensor_type`.

        On a card, the model's own option counts like a type that was set, unless f32 or accuracy was asked for.
        """
        cache = self._set_cache
        exact = self._explicit("INFERENCE_PRECISION_HINT") == Type.f32 or self._asks_for_accuracy
        if cache is None and self.device != "CPU" and not exact:
            cache = self._options.get(CACHES[0])
        return cache if cache in CACHE_PRECISIONS else self.tensor_type

    @property
    def reported_cache(self) -> Type:
        """The value of KV_CACHE_PRECISION: `cache`, or the model's own option where nothing was set, as in OpenVINO."""
        option = None if self._asks_for_accuracy or self._set_cache is not None else self._options.get(CACHES[0])
        return option if option in CACHE_PRECISIONS else self.cache

    @property
    def _set_cache(self) -> Type | None:
        """The type that was set for keys and values, None unless it is one type."""
        both, key, value = map(self._explicit, CACHES)
        common: Type | None = key if key == value and key is not None else both
        return common

    @property
    def _asks_for_accuracy(self) -> bool:
        return self._explicit("EXECUTION_MODE_HINT") is hint.ExecutionMode.ACCURACY

    def _explicit(self, name: str) -> Any:
        """Return the value that a property was set to, or None."""
        return self._values.get(name, None if self._base is None else self._base._explicit(name))

    @property
    def streams(self) -> int:
        """The number of inferences that should run in parallel."""
        count: int = self["NUM_STREAMS"]
        if count == 0:
            return 1 if self["PERFORMANCE_HINT"] is hint.PerformanceMode.LATENCY else self.stream_limits[0]
        return count if count > 0 else self.stream_limits[0] if count == STREAM_POLICIES["AUTO"] else 1

    def get(self, name: str) -> Any:
        """Return a property's value. If it is unknown, raise RuntimeError that lists the existing properties."""
        key = _key(name)
        computed = self._read_only.get(key) or (COMPILED_ONLY.get(key) if self.model_name is not None else None)
        if computed is not None:
            return computed(self)
        if key not in self._writable:
            raise self._unknown(key)
        if key in COMPUTED:
            return COMPUTED[key](self)
        if key == "DEVICE_ID" and devices.is_card(self.device):
            return self._card_number
        value = self[key]
        return _text(value) if self.model_name is not None and key in TEXTS_WHEN_COMPILED else value

    def _unknown(self, key: str) -> RuntimeError:
        """Return the error for a property that does not exist."""
        suggestion = did_you_mean(key, self.supported)
        return RuntimeError(
            f"Unsupported property {key} by {self._owner}{suggestion or '.'} It has {', '.join(self.supported)}"
        )

    def update(self, values: Mapping[str, Any]) -> None:
        """Set properties: all of them, or none if one is wrong.

        Raises: RuntimeError for an unknown or read-only property, or a value that it does not accept.
        """
        converted = {}
        for name, value in values.items():
            key = _key(name)
            if key in self._read_only or key in COMPILED_ONLY:
                raise RuntimeError(f"Unsupported property {key} by {self._owner}: it is read-only")
            if key not in self._writable:
                raise self._unknown(key)
            converted[key] = _convert(key, value)
        device_id = converted.get("DEVICE_ID")
        if device_id and self.device == "CPU":
            raise RuntimeError(f"CPU plugin supports only '' as device id, not '{device_id}'")
        if device_id and not device_id.isdecimal() and devices.is_card(self.device):
            raise RuntimeError(f"Wrong value {device_id} for property key DEVICE_ID. Expected only numbers of GPUs")
        self._values.update(converted)

    def compiled(self, values: Mapping[str, Any], selector: Settings | None = None) -> Settings:
        """Return the settings of a model compiled with these properties; later changes to `self` do not affect them.

        If AUTO or another ``selector`` chose the device, the model also has the properties of the selector.
        """
        settings = Settings(self.device)
        settings._values = {name: explicit for name in WRITABLE if (explicit := self._explicit(name)) is not None}
        if selector is not None:
            settings._writable = selector._writable
            settings._values.update(selector._values)
        settings.update(values)
        for name, nested in settings["DEVICE_PROPERTIES"].items():
            if name in (self.device, devices.family(self.device)):
                settings.update(nested)
        if devices.is_card(self.device):
            settings._values["DEVICE_ID"] = str(devices.card_number(self.device))
        return settings

    def adopt(self, model: Model) -> None:
        """Make these the settings of a compiled model, with the options in its ``rt_info/runtime_options``.

        Warns of types of keys and values that ovgpu does not store. Raises: RuntimeError for a wrong option.
        """
        self.model_name = model.friendly_name
        options = model.rt_info.plain().get("runtime_options", {})
        for name in OPTIONS if isinstance(options, Mapping) else ():
            if name in options:
                self._options[name] = _convert(name, options[name])
        stored = "the model's type" if self.cache is Type.dynamic else self.cache.get_type_name()
        for name in CACHES if model.states else ():
            ignored = self._explicit(name) not in (None, Type.dynamic, self.cache)
            if ignored or self[name] not in (*CACHE_PRECISIONS, Type.dynamic):
                warnings.warn(
                    f"{name} {self[name].get_type_name()}: ovgpu stores keys and values in {stored} "
                    "(it can in f32, f16, bf16, u8 and i8)",
                    RuntimeWarning,
                    stacklevel=6,  # the caller of Core.compile_model
                )

    def exported(self) -> dict[str, str]:
        """Return the properties that were set, as texts that `update` takes, without those that belong to a machine."""
        return {
            name: _text(value)
            for name, value in self._values.items()
            if name in WRITABLE
            and name not in OF_MACHINE
            and isinstance(WRITABLE[name], (bool, int, float, str, Type, PropertyEnum))
        }

    @property
    def _owner(self) -> str:
        if self.model_name is not None:
            return "the compiled model"
        return f"{self.device} plugin" if self.device else "Core"


def _key(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a property is named by a str, got {type(name).__name__}")
    return str(name)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "YES" if value else "NO"
    if isinstance(value, Type):
        return value.get_type_name()
    return value.name if isinstance(value, PropertyEnum) else str(value)


def bare(value: Any) -> Any:
    """Return the value of an OVAny of ovgpu or openvino, and any other value unchanged."""
    return value.value if type(value).__name__ == "OVAny" else value


def _convert(key: str, value: Any) -> Any:
    """Convert a value to its property's type, from strings as in configuration files or from openvino's objects.

    Raises: RuntimeError for a value that the property does not accept.
    """
    value, default = bare(value), {**WRITABLE, **OF_SELECTORS["AUTO"]}[key]
    try:
        if isinstance(default, bool):
            return _boolean(value)
        if isinstance(default, Type):
            return _precision(key, value)
        if isinstance(default, PropertyEnum):
            return _member(type(default), value)
        if isinstance(default, (int, float)):
            return _number(key, value, type(default))
        if key == "CACHE_ENCRYPTION_CALLBACKS":
            return _ciphers(value)
        if key == "DEVICE_PROPERTIES":
            return _by_device(value)
        if key == "PERF_CURVE_TABLE":
            return intel_auto.perf_curve_table(value)[1].value
        if key == "MODEL_DISTRIBUTION_POLICY":
            return _policies(value)
        return value if isinstance(value, type(default)) else str(value) if isinstance(default, str) else value
    except _Refused as error:
        expected = str(error)
    except (TypeError, ValueError):
        expected = f"{type(default).__name__}s"
    raise RuntimeError(f"Wrong value {value} for property key {key}. Expected only {expected}")


class _Refused(Exception):
    """Rejection of a property's value; the message describes the accepted values."""


def _ciphers(value: Any) -> tuple[Any, ...]:
    ciphers = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if ciphers and (len(ciphers) != 2 or not all(map(callable, ciphers))):
        raise _Refused("a list of two functions, which encrypt and decrypt bytes")
    return ciphers


def _boolean(value: Any) -> bool:
    known = {"YES": True, "TRUE": True, "1": True, "NO": False, "FALSE": False, "0": False}
    if str(value).upper() not in known:
        raise _Refused("true/false")
    return known[str(value).upper()]


def _precision(key: str, value: Any) -> Type:
    name = value.get_type_name() if hasattr(value, "get_type_name") else str(value)
    try:
        precision = {"undefined": Type.dynamic, "tf32": TF32}.get(name) or Type.parse(name)
    except ValueError:
        raise _Refused("names of element types") from None
    if key == "INFERENCE_PRECISION_HINT" and precision not in PRECISIONS:
        raise _Refused(", ".join(p.get_type_name() for p in PRECISIONS))
    if key != "INFERENCE_PRECISION_HINT" and precision is TF32:
        raise _Refused("types of tensors, and no tensor is of TF32")
    return precision


def _member(enum: type[PropertyEnum], value: Any) -> PropertyEnum:
    name = str(getattr(value, "name", value)).upper()
    name = LOG_LEVELS.get(name, name.removeprefix("LOG_"))
    if name not in enum.__members__:
        raise _Refused("/".join(enum.__members__))
    return enum[name]


def _number(key: str, value: Any, number_type: type[int | float]) -> int | float:
    if key == "NUM_STREAMS":
        return _streams(value)
    number = number_type(value)
    if key in SIZES:
        return number % 2**64  # -1 is the largest size, as in C++
    if number < 0:
        raise _Refused("non negative numbers")
    if key == "CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE" and number > 1:
        raise _Refused("floats in range [0.0, 1.0]")
    return number


def _streams(value: Any) -> int:
    if hasattr(value, "to_integer"):
        value = value.to_integer()
    count = STREAM_POLICIES[value] if value in STREAM_POLICIES else int(value)
    if count < -2:
        raise _Refused("non negative numbers, AUTO and NUMA")
    return count


def _by_device(value: Any) -> dict[str, dict[str, Any]]:
    """Return properties by device, from a dict or from OpenVINO's text, such as {CPU:{NUM_STREAMS:2}}."""
    if isinstance(value, str):
        groups = re.findall(r"([\w.]+)\s*:\s*\{([^{}]*)\}", value)
        pairs = {name: [pair.partition(":") for pair in text.split(",") if pair.strip()] for name, text in groups}
        value = {name: {key.strip(): text.strip() for key, _, text in parts} for name, parts in pairs.items()}
        if not value:
            raise _Refused("dicts of properties by device")
    if not isinstance(value, Mapping) or not all(isinstance(nested, Mapping) for nested in value.values()):
        raise _Refused("dicts of properties by device")
    return {str(name): dict(nested) for name, nested in value.items()}


def _policies(value: Any) -> set[Any]:
    if not isinstance(value, str):
        return set(value)
    if value not in ("", hint.ModelDistributionPolicy.TENSOR_PARALLEL.name):
        raise _Refused("TENSOR_PARALLEL")
    return {hint.ModelDistributionPolicy.TENSOR_PARALLEL} if value else set()


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
