"""Execution units: which one runs an instruction, how long it is occupied, and when the result is there."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from bench.kernels.cards import Architecture, Card
from bench.kernels.sass import Instruction

LANES = 32  # of a warp
SHAPE = re.compile(r"\.(884|1684|1688|16816|16832|168128)(?=\.|$)")
EXTENTS = {
    "884": 8 * 8 * 4,
    "1684": 16 * 8 * 4,
    "1688": 16 * 8 * 8,
    "16816": 16 * 8 * 16,
    "16832": 16 * 8 * 32,
    "168128": 16 * 8 * 128,
}  # multiply-adds of a tensor core instruction
FMA = {"FFMA": 1, "FFMA2": 2, "HFMA2": 2, "DFMA": 1}  # multiply-adds of a thread
TENSOR = ("HMMA", "IMMA", "QMMA", "DMMA", "BMMA")
LOADS = ("LDG", "LD", "LDGSTS")  # from global memory
GLOBAL = (*LOADS, "STG", "ST", "ATOM", "ATOMG", "RED", "REDG", "LDL", "STL")
SHARED = ("LDS", "STS", "LDSM", "STSM", "ATOMS")
SPILLS = ("LDL", "STL")
BARRIERS = ("BAR", "MEMBAR", "ERRBAR", "UCGABAR_ARV", "UCGABAR_WAIT")
CONTROL = (
    "BRA",
    "EXIT",
    "RET",
    "CALL",
    "NOP",
    "BSSY",
    "BSYNC",
    "WARPSYNC",
    "YIELD",
    "DEPBAR",
    "LDGDEPBAR",
    "BREAK",
    "NANOSLEEP",
    "S2R",
    "S2UR",
    "LDC",
    "LDCU",
    "CCTL",
    "R2UR",
    *BARRIERS,
)
UNITS = {
    "fp32": ("FFMA", "FFMA2", "FADD", "FADD2", "FMUL", "FMUL2"),
    "fp16": ("HFMA2", "HADD2", "HMUL2"),
    "fp64": ("DFMA", "DADD", "DMUL", "DSETP"),
    "product": ("IMAD", "IMUL", "IDP"),
    "conversion": ("I2F", "F2I", "F2F", "FRND"),  # I2FP and F2FP are run by the integer unit
    "special": ("MUFU", "POPC", "FLO", "BREV"),
    "shuffle": ("SHFL", "MATCH"),
    "memory": (*GLOBAL, *SHARED),
    "tensor": TENSOR,
    "control": CONTROL,
}
UNIT_OF = {name: unit for unit, names in UNITS.items() for name in names}


def unit(instruction: Instruction) -> str:
    """Return the unit that runs an instruction: a key of `Architecture.rates`, "tensor" or "control"."""
    # The uniform datapath ("U...") computes once for a warp.
    default = "control" if instruction.name.startswith("U") else "integer"
    return UNIT_OF.get(instruction.name, default)


def multiply_adds(instruction: Instruction) -> int:
    """Return the multiply-adds of a warp: of a tensor core instruction, or of a fused multiply-add."""
    if instruction.name in TENSOR:
        found = SHAPE.search(instruction.opcode)
        return EXTENTS[found[1]] if found else 0
    if instruction.operands[1:3] == ("-RZ", "RZ"):  # zero times zero: the compiler moves a constant so
        return 0
    return LANES * FMA.get(instruction.name, 0)


def operand_type(instruction: Instruction) -> str:
    """Return the type that a tensor core instruction multiplies: a key of `Card.tensor`. bf16 counts as f16."""
    if instruction.name == "IMMA":
        return "i8"
    return "tf32" if ".TF32" in instruction.opcode else "f16"


def occupied(code: Iterable[Instruction], card: Card) -> Mapping[str, float]:
    """Return the cycles of a multiprocessor that one warp takes of each unit, and of the issue of instructions."""
    rates = card.architecture.rates
    cycles: dict[str, float] = defaultdict(float)
    for instruction in code:
        name = unit(instruction)
        cycles["issue"] += 1 / card.architecture.issue
        if name == "tensor":
            cycles[name] += multiply_adds(instruction) / card.tensor[operand_type(instruction)]
        elif name == "memory":
            nbytes = LANES * instruction.width / card.architecture.shared_bandwidth
            cycles[name] += max(nbytes, 1 / rates[name])
        elif name != "control":
            cycles[name] += 1 / rates[name]
            if name == "product":  # half of the units for f32 multiply integers
                cycles["fp32"] += 1 / rates["fp32"]
    return cycles


def latency(instruction: Instruction, architecture: Architecture, memory: float) -> float:
    """Return the cycles until the result can be read; ``memory`` is that of loads from global memory."""
    name, known = instruction.name, architecture.latencies
    if name in (*LOADS, "LDL"):
        return memory
    if name in ("ATOM", "ATOMG"):
        return known["atomic"]
    if name in SHARED:
        return known["shared"]
    if name in BARRIERS:
        return known["barrier" if name == "BAR" else "fence"]
    if name in TENSOR:
        return known["tensor"] * (1.0 if multiply_adds(instruction) >= EXTENTS["16816"] else 0.6)
    if name in ("S2R", "S2UR", "R2UR"):
        return known["special"]
    return known.get("constant" if name == "LDC" else unit(instruction), known["fp32"])


class Timeline:
    """Time of one warp, which issues its instructions in order, each when its operands are there.

    ``memory`` is the latency of loads from global memory in cycles.
    """

    def __init__(self, architecture: Architecture, memory: float) -> None:
        self.architecture, self.memory = architecture, memory
        self.now = 0.0
        self._ready: dict[str, float] = {}
        self._copies: list[float] = []  # when groups of asynchronous copies are done
        self._open = 0.0  # when the copies of the open group are done

    def run(self, code: Iterable[Instruction]) -> float:
        """Issue instructions, and return the cycle in which the last one was issued."""
        for instruction in code:
            self._issue(instruction)
        return self.now

    def _issue(self, instruction: Instruction) -> None:
        start = max([self.now + 1, *(self._ready.get(register, 0.0) for register in instruction.reads)])
        done = start + latency(instruction, self.architecture, self.memory)
        if instruction.name == "LDGSTS":
            self._open = max(self._open, done)
        elif instruction.name == "LDGDEPBAR":
            self._copies.append(self._open)
        elif instruction.name == "DEPBAR":
            start = max(start, self._copied(instruction.operands))
        elif instruction.name in BARRIERS:
            start = done
        self._ready.update(dict.fromkeys(instruction.writes, done))
        self.now = start

    def _copied(self, operands: Sequence[str]) -> float:
        """Return when all groups of copies are done but as many of the last ones as the operand says."""
        left = int(operands[-1], 16) if operands and operands[-1].startswith("0x") else 0
        return max(self._copies[: max(len(self._copies) - left, 0)], default=0.0)
