"""ovgpu in openvino's place: `import openvino` imports ovgpu, which hands over to openvino itself what it lacks."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from ovgpu._util import openvino_package
from ovgpu.integrations.openvino import genai
from ovgpu.interop.names import MODULES

OWN = frozenset({*MODULES, "exceptions", "helpers", "layout_helpers", "passes", "preprocess", "properties", "utils"})
"""Modules of openvino that ovgpu has as well. Other modules of ovgpu cannot be imported by openvino's name."""

PROGRAM = "openvino.tools.benchmark"  # openvino's benchmark_app: it imports openvino, and so runs on ovgpu

_lock = threading.Lock()


def replace_openvino() -> None:
    """Let ``import openvino`` import ovgpu, from now on and in this process. Call it before other imports of openvino.

    ovgpu hands over to openvino what it does not do itself, such as frontends and builders of models, if openvino is
    installed. ``import openvino_genai`` imports `ovgpu.genai`, and says so on stderr. Modules that have imported
    openvino before keep it. Calling it again does nothing.
    """
    with _lock:
        if openvino_package.is_replaced():
            return
        # The finder of `startup.py` would call this function again when openvino is imported here.
        sys.meta_path[:] = [finder for finder in sys.meta_path if not getattr(finder, "installs_ovgpu", False)]
        openvino_package.hide()
        sys.modules["openvino"] = import_module("ovgpu")
        sys.meta_path.insert(0, Finder())
        genai.answer()


class Finder:
    """Finder and loader of the modules of openvino: ovgpu's where it has them, else openvino's own."""

    replaces_openvino = True

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        package, _, rest = name.partition(".")
        if package != "openvino":
            return None
        if f"{name}.".startswith(f"{PROGRAM}."):
            own = openvino_package.package()
            tools = [] if own is None else list(own.tools.__path__)
            return PathFinder.find_spec(name, tools if name == PROGRAM else path)
        if rest and rest.partition(".")[0] not in OWN and not _is_openvinos(name):
            # Without an error, Python would go on to look for a module of this name in ovgpu's folder.
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return ModuleSpec(name, self)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create a module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        rest = name.removeprefix("openvino")
        if not rest or rest.split(".")[1] in OWN:
            sys.modules[name] = import_module(f"ovgpu{rest}")
        else:
            sys.modules[name] = openvino_package.import_own(name)


def _is_openvinos(name: str) -> bool:
    try:
        openvino_package.import_own(name)
    except ImportError:
        return False
    return True
