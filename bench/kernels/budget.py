"""Issue budget of a kernel instance: the loop that does its work, and what one trip through it costs and does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from bench.kernels.machine_code import MachineCode
from bench.kernels.sass import Instruction
from bench.kernels.units import FMA, LANES, LOADS, SPILLS, TENSOR, multiply_adds

Work = Literal["tensor", "fma", "bytes"]
WORK: tuple[Work, ...] = ("tensor", "fma", "bytes")


@dataclass(frozen=True)
class Budget:
    """The path of a warp through a kernel, and its main loop.

    work      what the main loop does most of: multiply-adds of tensor cores, fused multiply-adds, or loads from global
              memory
    path      the instructions of the kernel, every loop entered once
    outer     one trip through the outermost loop around the main loop; empty if the main loop is in no other
    loop      one trip through the main loop; empty if the kernel has no such loop
    per_trip  the work of a warp in one trip, or on the whole path without a main loop: multiply-adds or bytes
    """

    code: MachineCode
    work: Work
    path: tuple[Instruction, ...]
    outer: tuple[Instruction, ...] = ()
    loop: tuple[Instruction, ...] = ()
    per_trip: int = 0

    @staticmethod
    def of(code: MachineCode, kinds: Sequence[Work] = WORK, exits: bool = False) -> Budget:
        """Return the budget of a kernel. The main loop does the first of these kinds of work that any loop does.

        If ``exits``, the path ends at the first exit behind the main loop. Otherwise it goes on past all exits that
        have conditions.
        """
        flow = code.flow
        path = tuple(flow.code(flow.path))
        for kind in kinds:
            amounts = {loop: amount(flow.code(loop.path, False), kind) for loop in flow.entered()}
            main = max(amounts, key=lambda loop: amounts[loop], default=None)
            if main is not None and amounts[main]:
                loop = tuple(flow.code(main.path))
                around = next(outer for outer in flow.loops if main in outer.all())
                outer = () if around is main else tuple(flow.code(around.path))
                return Budget(code, kind, _until_exit(path, loop) if exits else path, outer, loop, amounts[main])
            if total := amount(path, kind):
                return Budget(code, kind, path, per_trip=total)
        return Budget(code, "bytes", path)

    @cached_property
    def counts(self) -> Counter[str]:
        """Instructions of the main loop, or of the whole path without one, by opcode without modifiers."""
        return Counter(instruction.name for instruction in self.loop or self.path)

    @property
    def instructions(self) -> int:
        return len(self.loop or self.path)

    @property
    def per_element(self) -> float:
        """Instructions of a thread per element, see `elements`."""
        return self.instructions / max(self.elements, 1)

    @cached_property
    def elements(self) -> int:
        """The elements that a thread handles in one trip: tensor core instructions, multiply-adds, or bytes."""
        code = self.loop or self.path
        if self.work == "tensor":
            return sum(instruction.name in TENSOR for instruction in code)
        return self.per_trip // LANES

    @cached_property
    def load_width(self) -> int:
        """Bytes of the widest load from global memory in the kernel."""
        return max((x.width for x in self.path if x.name in LOADS), default=0)

    @cached_property
    def predicated(self) -> int:
        """Instructions of `counts` that a predicate may turn off."""
        return sum(bool(x.predicate) and x.name != "BRA" for x in self.loop or self.path)

    @cached_property
    def spills(self) -> int:
        """Loads and stores of local memory on the path."""
        return sum(x.name in SPILLS for x in self.path)


def _until_exit(path: Sequence[Instruction], loop: Sequence[Instruction]) -> tuple[Instruction, ...]:
    end = max(i for i, instruction in enumerate(path) if instruction is loop[-1])
    exits = (i for i, instruction in enumerate(path) if i > end and instruction.name == "EXIT")
    return tuple(path[: next(exits, len(path)) + 1])


def amount(code: Iterator[Instruction] | Sequence[Instruction], work: Work) -> int:
    """Return the work of a warp in some code: multiply-adds, or bytes loaded from global memory."""
    if work == "bytes":
        return sum(LANES * x.width for x in code if x.name in LOADS)
    names = TENSOR if work == "tensor" else tuple(FMA)
    return sum(multiply_adds(x) for x in code if x.name in names)
