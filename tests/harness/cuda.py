"""CuPy itself in the emulator's place, on a machine with a GPU: `pytest --device cuda`.

Tests that ask for the fixture `emulated` then run on the card, and nothing else about them changes: what they call
`cupy_emu` is CuPy. The order of threads is the card's own, and what only the emulator can count equals whatever it is
compared with.
"""
from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from .replay import EMULATED


class Card(ModuleType):
    """CuPy, with the names besides that tests use of the emulator."""

    is_emulated = False

    def __init__(self, cupy: Any) -> None:
        super().__init__("cupy")
        self._cupy = cupy
        self.cuda = Namespace(cupy.cuda, Stream=_streams(cupy.cuda.Stream))
        self.counters = uncounted()
        self.CaptureError = cupy.cuda.runtime.CUDARuntimeError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cupy, name)

    @staticmethod
    def thread_order(order: int | str) -> AbstractContextManager[None]:
        return nullcontext()


class Uncounted(int):
    """A number that was not counted: whatever is said of it is taken for true."""

    __hash__ = int.__hash__

    def _true(self, other: object) -> bool:
        return True

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _true  # type: ignore[assignment]

    def _uncounted(self, other: object) -> Uncounted:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _uncounted  # type: ignore[assignment]


def uncounted() -> Any:
    """Counters of such numbers."""
    from tests.emulator.state import Counters

    class Idle(Counters):
        def reset(self) -> None:
            pass

    return Idle(**{field.name: Uncounted() for field in fields(Counters)})


class Namespace(SimpleNamespace):
    """A module's names, some of them replaced."""

    __hash__ = object.__hash__

    def __init__(self, module: Any, **names: Any) -> None:
        super().__init__(_module=module, **names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _streams(base: Any) -> Any:
    """Streams of tests, which wait for the null stream's work and it for theirs: where arrays are made and read."""

    class Stream(base):  # type: ignore[misc]
        def __init__(self, non_blocking: bool = False) -> None:
            super().__init__(non_blocking=False)

        def end_capture(self) -> Any:
            return Namespace(super().end_capture(), node_count=Uncounted())

    return Stream


@contextmanager
def bound(where: str) -> Iterator[None]:
    """Within the block the CUDA backend runs on the "emulator", or on the card ("cuda")."""
    from ovgpu.backends.cuda import rt
    from tests.emulator import blas_emu, blaslt_emu, cupy_emu

    try:
        if where == "cuda":
            rt.bind(None, None)
            with renamed(Card(rt.cupy())):
                yield
        elif where == "arrays":
            from ovgpu.backends import cuda

            from . import arrays

            rt.bind(arrays.MODULE, blas_emu, False, blaslt_emu)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(cuda, "evaluate", arrays.evaluate)
                yield
        else:
            rt.bind(cupy_emu, blas_emu, False, blaslt_emu)
            yield
    finally:
        rt.bind(None, None)


@contextmanager
def registered(where: str) -> Iterator[str]:
    """Within the block there is a device of that name: the CUDA backend, bound likewise."""
    from ovgpu.api import devices
    from ovgpu.backends.cuda import CudaBackend

    with bound(where):
        devices.register_backend(EMULATED, CudaBackend)
        try:
            yield EMULATED
        finally:
            devices.unregister_backend(EMULATED)


@contextmanager
def renamed(real: Card) -> Iterator[None]:
    """Within the block, what tests have imported as the emulator is the card."""
    from tests.emulator import cupy_emu, state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "counters", real.counters)
        for name, module in list(sys.modules.items()):
            if name.startswith("tests.") and not name.startswith("tests.emulator"):
                for key, value in list(vars(module).items()):
                    if value is cupy_emu:
                        patch.setattr(module, key, real)
        yield
