"""The ops: one file per family, each registered by being imported; there is no list to keep."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from ovgpu.ops._op import Op, lookup, op, registry

__all__ = ["Op", "lookup", "op", "registry"]

for _module in pkgutil.iter_modules(__path__):
    if not _module.name.startswith("_"):
        import_module(f"{__name__}.{_module.name}")
