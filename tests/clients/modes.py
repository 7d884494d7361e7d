"""Ways to run a program that uses openvino, in a process of its own.

    python -m tests.clients.modes MODE PROGRAM FOLDER

A module in `programs` has `REQUIREMENTS`, `prepare(folder)`, which makes models with the openvino package, and
`run(folder, device)`, which returns arrays by name. They are saved as FOLDER/MODE.npz. `MODULES` of a
light program are the modules without which the tests skip it. A program that cannot be told a device has the one that
it names itself as `NAMES`; another one may have the one that it takes by default as `DEFAULT`.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ovgpu.cli.compare.engines import F32, NO_INT8


def openvino_alone() -> str:
    """Use openvino itself, with a CPU plugin that computes in f32, as the reference."""
    import openvino

    init = openvino.Core.__init__

    def with_f32(self: Any, *args: Any) -> None:
        init(self, *args)
        self.set_property("CPU", F32 | NO_INT8)

    openvino.Core.__init__ = with_f32
    return "CPU"


def plugin() -> str:
    """Add the device NVIDIA to openvino: a card if there is one, otherwise NumPy by that name."""
    import ovgpu
    from ovgpu.api import devices
    from ovgpu.backends.cpu import CpuBackend

    if not devices.card_numbers():
        devices.register_backend("NVIDIA", CpuBackend)
    ovgpu.install()
    count_compiled()
    return "NVIDIA"


PRELOADED = (
    "_offline_transformations",
    "experimental",
    "frontend.onnx",
    "frontend.paddle",
    "frontend.pytorch",
    "frontend.tensorflow",
    "passes",
    "preprocess.torchvision",
    "tools.ovc",
)
"""Modules that openvino itself does not import, and that could not be imported any more by their names."""


def renamed() -> str:
    """Let openvino's own names mean the card, by the environment variable OVGPU_INSTALL_AS alone. The program takes the
    device that it names by itself or by default."""
    from ovgpu.api import devices
    from ovgpu.backends.cpu import CpuBackend

    if not devices.card_numbers():
        devices.register_backend("NVIDIA", CpuBackend)
    if "_ovgpu_startup" not in sys.modules:  # an editable install lacks the files that read the variable
        import ovgpu

        ovgpu.install(os.environ["OVGPU_INSTALL_AS"])
    count_compiled()
    return ""


def replaced() -> str:
    """Let ``import openvino`` import ovgpu, which keeps openvino itself for what it hands over."""
    import openvino

    for name in PRELOADED:
        with suppress(ImportError):
            import_module(f"openvino.{name}")
    tools = openvino.tools.__path__
    import ovgpu
    from ovgpu._util import openvino_package

    openvino_package.package()
    for name in [name for name in list(sys.modules) if name.partition(".")[0] == "openvino"]:
        del sys.modules[name]
    sys.modules["openvino"] = ovgpu
    sys.meta_path.insert(0, Alias("openvino", "ovgpu", {"openvino.tools.benchmark": tools}))
    count_compiled()
    return "CPU"


class Alias:
    """Finder and loader of the modules of a package as those of another package."""

    def __init__(self, package: str, other: str, programs: Mapping[str, Sequence[str]] | None = None) -> None:
        """``programs`` has modules of the package that are programs, not its interface, and where their files are."""
        self.package, self.other, self.programs = package, other, dict(programs or {})

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if any(f"{name}.".startswith(f"{program}.") for program in self.programs):
            return PathFinder.find_spec(name, self.programs.get(name, path))
        inside = f"{name}.".startswith(f"{self.package}.")
        return ModuleSpec(name, self) if inside else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python create a module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(self.other + module.__name__.removeprefix(self.package))


compiled: list[str] = []
"""The names of the models that ovgpu has compiled."""


def count_compiled() -> None:
    """Record the models that ovgpu compiles, so that a program cannot pass without it."""
    from ovgpu.api.compilation import Compilation

    init = Compilation.__init__

    def recorded(self: Any, model: Any, *args: Any) -> None:
        compiled.append(model.friendly_name)
        init(self, model, *args)

    Compilation.__init__ = recorded  # type: ignore[method-assign]


MODES: dict[str, Callable[[], str]] = {
    "openvino": openvino_alone,
    "plug-in": plugin,
    "renamed": renamed,
    "replaced": replaced,
}


def modes_of(program: ModuleType) -> list[str]:
    """Return the modes of a program. One that ``NAMES`` a device itself cannot take the plug-in's name."""
    return [mode for mode in MODES if mode != "plug-in" or not hasattr(program, "NAMES")]


def main() -> None:
    """Run one program in one mode, or prepare it."""
    mode, name, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", YOLO_OFFLINE="1")
    program = import_module(f"tests.clients.programs.{name}")
    if mode == "prepare":
        program.prepare(folder)
        return
    device = MODES[mode]()
    results = program.run(folder, device or getattr(program, "DEFAULT", "CPU"))
    if mode != "openvino" and not compiled:
        sys.exit("ovgpu has compiled no model")
    np.savez(folder / f"{mode}.npz", **results)
    gc.collect()  # openvino aborts if one of its own threads ends up destroying a request at exit


if __name__ == "__main__":
    main()
