"""Properties of devices."""

from __future__ import annotations

from typing import Any

from ._property import Property, PropertyEnum, instance, text


class Type(PropertyEnum):
    """Kind of a GPU: integrated or discrete."""

    INTEGRATED = 0
    DISCRETE = 1


class Capability:
    """Names that `capabilities` may list."""

    FP32 = "FP32"
    BF16 = "BF16"
    FP16 = "FP16"
    INT8 = "INT8"
    INT16 = "INT16"
    BIN = "BIN"
    WINOGRAD = "WINOGRAD"
    EXPORT_IMPORT = "EXPORT_IMPORT"


class _Priorities(Property):
    """A property that takes several values: `priorities("A", "B")` returns the pair (key, "A,B")."""

    def __call__(self, *values: Any) -> Any:
        return super().__call__(*([",".join(map(text, values))] if values else []))


architecture = Property("DEVICE_ARCHITECTURE")
capabilities = Property("OPTIMIZATION_CAPABILITIES")
full_name = Property("FULL_DEVICE_NAME")
gops = Property("DEVICE_GOPS")
id = Property("DEVICE_ID", text)
luid = Property("DEVICE_LUID")
pci_info = Property("DEVICE_PCI_INFO")
priorities = _Priorities("MULTI_DEVICE_PRIORITIES", text)
properties = Property("DEVICE_PROPERTIES", instance(dict))
thermal = Property("DEVICE_THERMAL")
type = Property("DEVICE_TYPE")
uuid = Property("DEVICE_UUID")
