"""The operations, by family. Importing this package imports all modules in it, which registers their operations."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from ovgpu.ops.base.op import Op, lookup, op, registry

__all__ = ["Op", "lookup", "op", "registry"]

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    if not any(part.startswith("_") for part in _module.name.split(".")):
        import_module(_module.name)
