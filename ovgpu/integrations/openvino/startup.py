"""Call `ovgpu.install()`, or `ovgpu.replace_openvino()`, when a program imports openvino.

A wheel has this file as ``_ovgpu_startup.py`` beside the package, and a file ``ovgpu.pth``. Python reads ``ovgpu.pth``
when it starts. That file imports this one if the environment variable OVGPU_INSTALL or OVGPU_REPLACE is 1, or if
OVGPU_INSTALL_AS has names of openvino's devices that are to mean a card, such as AUTO,GPU. This file imports the
standard library alone.
"""

import os
import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec


class Finder(MetaPathFinder):
    """Finder of openvino, whose loader installs ovgpu after it has loaded the package. OVGPU_REPLACE replaces
    openvino_genai, too.

    It stays in place, since programs also look for openvino without importing it. `replace_openvino` removes it.
    """

    installs_ovgpu = True

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        replaces = os.environ.get("OVGPU_REPLACE") == "1"
        if name == "openvino_genai" and replaces:
            import_module("openvino")  # which replaces both
            return find_spec(name)
        if name != "openvino":
            return None
        if replaces:
            return ModuleSpec(name, ReplacingLoader())
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            spec.loader = InstallingLoader(spec.loader)
        return spec


class InstallingLoader(Loader):
    """Loader that installs ovgpu after ``loader`` has loaded openvino."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec):  # type: ignore[no-untyped-def]
        return self.loader.create_module(spec)

    def exec_module(self, module) -> None:  # type: ignore[no-untyped-def]
        self.loader.exec_module(module)
        from ovgpu.integrations.openvino import install

        install(os.environ.get("OVGPU_INSTALL_AS", ""))

    def __getattr__(self, name: str) -> object:
        return getattr(self.loader, name)


class ReplacingLoader(Loader):
    """Loader that imports ovgpu in openvino's place."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create a module, which `exec_module` replaces."""

    def exec_module(self, module) -> None:  # type: ignore[no-untyped-def]
        del sys.modules["openvino"]
        from ovgpu.integrations.openvino.replacement import replace_openvino

        replace_openvino()


sys.meta_path.insert(0, Finder())
