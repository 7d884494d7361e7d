"""Fault injection for the CUDA kernels: one fault at a time, each in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from ovgpu.backends.cuda import kernels, rt, sources
from tests.emulator import blas_emu, blaslt_emu, cupy_emu
from tests.emulator.isolation import Outcome, call
from tests.emulator.state import CUDARuntimeError

ORDERS: tuple[str | int, ...] = ("ascending", "descending", 7)
LANDINGS: tuple[str | int, ...] = ("late", "early", 7)


@dataclass(frozen=True)
class Fault:
    """Replacement of ``sound`` by ``broken`` in a file of cuda_kernels/; ``run`` is a check that passes without it."""

    name: str
    run: Callable[[], None]
    file: str
    sound: str
    broken: str = ""


def evidence(fault: Fault) -> str:
    """Return the first error that reveals the fault: wrong results or a failed check of the device; "" if none does.
    Threads run in several orders, with transfers that land late, early, or at drawn times."""
    sound = sources.folder()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for source in sound.glob("*.cu*"):
            text = source.read_text()
            if source.name == fault.file:
                assert text.count(fault.sound) >= 1, f"{fault.file} has no {fault.sound!r}"
                text = text.replace(fault.sound, fault.broken)
            (Path(folder) / source.name).write_text(text)
        patch.setattr(sources, "folder", lambda: Path(folder))
        kernels.of_file.cache_clear()
        sources.headers.cache_clear()
        rt.bind(cupy_emu, blas_emu, False, blaslt_emu)
        for landing, order in product(LANDINGS, ORDERS):
            with cupy_emu.landing(landing), cupy_emu.thread_order(order):
                try:
                    fault.run()
                except (AssertionError, CUDARuntimeError) as e:
                    return f"{type(e).__name__}: {e}"
    return ""


def _sound(fault: Fault) -> None:
    rt.bind(cupy_emu, blas_emu, False, blaslt_emu)
    fault.run()


def is_noticed(fault: Fault) -> None:
    """Assert that the check passes with the sound kernel and fails with the fault."""
    call(_sound, fault).result()
    found: Outcome = call(evidence, fault)
    assert found.result()
