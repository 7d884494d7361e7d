"""Ways to run a program that uses openvino, in a process of its own.

    python -m tests.clients.modes MODE PROGRAM FOLDER

A module in `programs` has `REQUIREMENTS`, `prepare(folder)`, which makes models with the openvino package, and
`run(folder, device)`, which returns arrays by name. They are saved as FOLDER/MODE.npz.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tests.models.drive import OPENVINO_F32


def openvino_alone() -> str:
    """Use openvino itself, with a CPU plugin that computes in f32, as the reference."""
    import openvino

    init = openvino.Core.__init__

    def with_f32(self: Any, *args: Any) -> None:
        init(self, *args)
        self.set_property("CPU", OPENVINO_F32)

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


MODES: dict[str, Callable[[], str]] = {"openvino": openvino_alone, "plug-in": plugin}


def main() -> None:
    """Run one program in one mode, or prepare it."""
    mode, name, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", YOLO_OFFLINE="1")
    program = import_module(f"tests.clients.programs.{name}")
    if mode == "prepare":
        program.prepare(folder)
        return
    results = program.run(folder, MODES[mode]())
    if mode != "openvino" and not compiled:
        sys.exit("ovgpu has compiled no model")
    np.savez(folder / f"{mode}.npz", **results)


if __name__ == "__main__":
    main()
