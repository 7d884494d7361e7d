"""A card that runs nothing: CuPy's emulator, with kernels compiled by NVRTC for a card's architecture and not launched.

Steps, grids, blocks and machine code are those of the card. Results are not computed, except by steps on the host and
copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import count
from types import ModuleType
from typing import Any

from bench.kernels.cards import CARDS, Card
from bench.kernels.machine_code import MachineCode, compiled
from ovgpu.backends.cuda import rt
from tests.emulator import array_ops, blas_emu, blaslt_emu, cudnn_emu, cupy_emu, driver_emu, kernel
from tests.emulator.kernel_source import extern_c_kernels
from tests.emulator.limits import SHARED
from tests.harness.cuda import Namespace

RESERVED_SHARED = 1 << 10  # bytes of a block that the system takes, from compute capability 8.0 on


class IdleFunction:
    """A kernel that does nothing when it is launched."""

    pointers = count(1)

    def __init__(self, code: MachineCode) -> None:
        self.code, self.ptr = code, next(self.pointers)

    def __call__(self, *launch: Any) -> None:
        pass


def resident_blocks(code: MachineCode, card: Card, threads: int, shared: int) -> int:
    """Return the number of blocks that a multiprocessor runs at the same time; ``shared`` is dynamic, in bytes."""
    architecture, warps = card.architecture, -(-threads // 32)
    registers = -(-code.usage.registers * 32 // 256) * 256 * (-(-warps // 4) * 4)  # for four warps at a time
    bytes_used = code.usage.shared + shared + (RESERVED_SHARED if architecture.name != "sm_75" else 0)
    limits = (
        architecture.blocks,
        architecture.threads // (warps * 32),
        architecture.registers // max(registers, 1),
        architecture.shared_bytes // bytes_used if bytes_used else architecture.blocks,
    )
    return max(min(limits), 0)


class DryCupy(ModuleType):
    """The emulator of CuPy as the device of a card."""

    def __init__(self, card: Card) -> None:
        super().__init__("cupy")
        self.card, self.functions = card, dict[int, IdleFunction]()
        self.codes: dict[bytes, MachineCode] = {}
        cuda, capability = cupy_emu.cuda, card.architecture.name.removeprefix("sm_")
        properties = {
            "name": card.name.encode(),
            "major": int(capability[:-1]),
            "minor": int(capability[-1]),
            "multiProcessorCount": card.multiprocessors,
            "l2CacheSize": card.cache,
            "sharedMemPerBlockOptin": SHARED[card.architecture.name],
        }

        class Device(cuda.Device):
            compute_capability = capability

            @property
            def attributes(self) -> dict[str, Any]:
                return super().attributes | {"MultiProcessorCount": card.multiprocessors}

        class Module:
            def load(module, cubin: bytes) -> None:
                module.function = IdleFunction(self.codes[cubin])
                self.functions[module.function.ptr] = module.function

            def get_function(module, name: str) -> IdleFunction:
                found: IdleFunction = module.function
                return found

        runtime = Namespace(
            cuda.runtime, getDeviceProperties=lambda device: cuda.runtime.getDeviceProperties(device) | properties
        )
        driver = Namespace(
            cuda.driver,
            funcSetAttribute=lambda *attribute: None,
            funcGetAttribute=self._attribute,
            occupancyMaxActiveBlocksPerMultiprocessor=self._resident,
        )
        self.driver = Namespace(
            driver_emu,
            cuLaunchKernelEx=lambda *launch: (0,),
            cuFuncSetAttribute=lambda *attribute: (0,),
            cuOccupancyMaxActiveClusters=lambda function, config: (0, 1),
        )
        self.cuda = Namespace(
            cuda,
            Device=Device,
            runtime=runtime,
            driver=driver,
            compiler=Namespace(cuda.compiler, compile_using_nvrtc=self._compile),
            function=Namespace(cuda.function, Module=Module),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(cupy_emu, name)

    def _compile(
        self,
        source: str,
        options: Sequence[str],
        arch: object,
        filename: str,
        name_expressions: Sequence[str] = (),
        *more: object,
        **named: object,
    ) -> tuple[bytes, dict[str, str] | None]:
        """Compile one kernel in place of CuPy's `compile_using_nvrtc`."""
        flags = tuple(option for option in options if not option.startswith("-I"))
        name = name_expressions[0] if name_expressions else extern_c_kernels(source)[0]
        code = compiled(source, name, self.card.architecture.name, flags, not name_expressions)
        self.codes[code.cubin] = code
        return code.cubin, {name: code.symbol} if name_expressions else None

    def _attribute(self, attribute: int, function: int) -> int:
        return self.functions[function].code.usage.shared

    def _resident(self, function: int, threads: int, shared: int) -> int:
        return resident_blocks(self.functions[function].code, self.card, threads, shared)


@lru_cache
def _dry(name: str) -> DryCupy:
    return DryCupy(CARDS[name])  # kept: kernels remember the modules that they were loaded with


@contextmanager
def idle() -> Iterator[None]:
    """Make emulated kernels and products do nothing within the block, so that kernels are recorded at full size."""
    saved: list[tuple[Any, Callable[..., Any]]] = []
    for module in (array_ops, blas_emu, blaslt_emu, cudnn_emu, kernel):
        for name, node in vars(module).items():
            if name.endswith("Node") and isinstance(node, type) and "run" in vars(node) and name != "CopyNode":
                saved.append((node, node.run))
                node.run = lambda self: None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for node, run in saved:
            node.run = run


@contextmanager
def dry_device(card: Card, cudnn: bool = False) -> Iterator[str]:
    """Yield the name of the device, with a card's properties, that runs nothing."""
    with rt.replacing(_dry(card.name), blas_emu, cudnn_emu if cudnn else False, blaslt_emu), idle():
        yield "NVIDIA"
