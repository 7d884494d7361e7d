"""Ways to run a program that uses openvino, in a process of its own.

    python -m tests.clients.modes MODE PROGRAM FOLDER

A module in `programs` has `REQUIREMENTS`, `prepare(folder)`, which makes models with the openvino package, and
`run(folder, device)`, which returns arrays by name. They are saved as FOLDER/MODE.npz. `MODULES` of a
light program are the modules without which the tests skip it. A program that cannot be told a device has the one that
it names itself as `NAMES`; another one may have the one that it takes by default as `DEFAULT`.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ovgpu.cli.compare.engines import F32, NO_INT8
from tests.genai.compare_wheel import EXACT


def openvino_alone() -> str:
    """Use openvino itself, with a CPU plugin that computes in f32, as the reference."""
    set_in_each_core("CPU", F32 | NO_INT8)
    if importlib.util.find_spec("openvino_genai") is not None:
        compute_in_f32()
    return "CPU"


def set_in_each_core(device: str, properties: Mapping[str, str]) -> None:
    """Let every Core of openvino begin with these properties of a device."""
    import openvino

    init = openvino.Core.__init__

    def with_properties(self: Any, *args: Any) -> None:
        init(self, *args)
        self.set_property(device, properties)

    openvino.Core.__init__ = with_properties


def compute_in_f32() -> None:
    """Let pipelines and draft models of openvino_genai compute in f32."""
    import openvino_genai

    def exact(kind: Any, properties: Mapping[str, str]) -> Any:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            kind.__init__(self, *args, **{**properties, **kwargs})

        return type(kind.__name__, (kind,), {"__init__": init})

    precision = {"INFERENCE_PRECISION_HINT": EXACT["INFERENCE_PRECISION_HINT"]}
    for name in ("TextEmbeddingPipeline", "TextRerankPipeline", "WhisperPipeline", "ASRPipeline"):
        setattr(openvino_genai, name, exact(getattr(openvino_genai, name), precision))
    openvino_genai.LLMPipeline = exact(openvino_genai.LLMPipeline, EXACT)
    draft_model = openvino_genai.draft_model
    openvino_genai.draft_model = lambda *args, **kwargs: draft_model(*args, **{**EXACT, **kwargs})


def plugin() -> str:
    """Add the device NVIDIA to openvino: a card if there is one, otherwise NumPy by that name."""
    import ovgpu
    from ovgpu.backends.cpu import CpuBackend
    from ovgpu.compile import devices

    if not devices.card_numbers():
        devices.register_backend("NVIDIA", CpuBackend)
    ovgpu.install()
    set_in_each_core("NVIDIA", {"KV_CACHE_PRECISION": "f32"})  # exports of optimum-intel ask for f16
    count_compiled()
    return "NVIDIA"


def renamed() -> str:
    """Let openvino's own names mean the card, by the environment variable OVGPU_INSTALL_AS alone. The program takes the
    device that it names by itself or by default."""
    from ovgpu.backends.cpu import CpuBackend
    from ovgpu.compile import devices

    if not devices.card_numbers():
        devices.register_backend("NVIDIA", CpuBackend)
    if "_ovgpu_startup" not in sys.modules:  # an editable install lacks the files that read the variable
        import ovgpu

        ovgpu.install(os.environ["OVGPU_INSTALL_AS"])
    count_compiled()
    return ""


def replaced() -> str:
    """Let ``import openvino`` import ovgpu, which keeps openvino itself for what it hands over."""
    import ovgpu

    ovgpu.replace_openvino()
    count_compiled()
    return "CPU"


compiled: list[str] = []
"""The names of the models that ovgpu has compiled."""


def count_compiled() -> None:
    """Record the models that ovgpu compiles, so that a program cannot pass without it."""
    from ovgpu.compile.compilation import Compilation

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
