"""CuPy itself in the emulator's place, on a machine with a GPU: `pytest --device cuda`.

Tests that use the fixture `emulated` then run on the card without other changes: the name `cupy_emu` refers to CuPy in
them. The order of threads is the card's own. Counters that only the emulator has pass every comparison.
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
    """CuPy, with the emulator's additional names that tests use."""

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
    """A number that was not counted: every comparison with it is true."""

    __hash__ = int.__hash__

    def _true(self, other: object) -> bool:
        return True

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _true  # type: ignore[assignment]

    def _uncounted(self, other: object) -> Uncounted:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _uncounted  # type: ignore[assignment]


def uncounted() -> Any:
    """Return counters whose values are `Uncounted`."""
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
    """Return a stream class that synchronizes with the null stream, on which tests make and read arrays."""

    class Stream(base):  # type: ignore[misc]
        def __init__(self, non_blocking: bool = False) -> None:
            super().__init__(non_blocking=False)

        def end_capture(self) -> Any:
            return Namespace(super().end_capture(), node_count=Uncounted())

    return Stream


@contextmanager
def bound(where: str) -> Iterator[None]:
    """Bind the CUDA backend within the block: to the "emulator", to CuPy's "arrays" on it, or to the card ("cuda")."""
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
def cards(number: int) -> Iterator[None]:
    """Bind the CUDA backend to an emulator with so many cards within the block: NVIDIA.0, NVIDIA.1..."""
    from tests.emulator.device import devices

    with bound("emulator"), devices(number):
        yield


@contextmanager
def registered(where: str) -> Iterator[str]:
    """Register the CUDA backend as a device within the block, bound as by `bound`; yield the device's name."""
    from ovgpu.backends.cuda import CudaBackend
    from ovgpu.compile import devices

    with bound(where):
        devices.register_backend(EMULATED, CudaBackend)
        try:
            yield EMULATED
        finally:
            devices.unregister_backend(EMULATED)


@contextmanager
def renamed(real: Card) -> Iterator[None]:
    """Replace the emulator by the card within the block, in all test modules that import it."""
    from tests.emulator import cupy_emu, state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "counters", real.counters)
        for name, module in list(sys.modules.items()):
            if name.startswith("tests.") and not name.startswith("tests.emulator"):
                for key, value in list(vars(module).items()):
                    if value is cupy_emu:
                        patch.setattr(module, key, real)
        yield
