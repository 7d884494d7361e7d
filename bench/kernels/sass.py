"""Machine code of kernels: NVIDIA's disassembler, and its listing as instructions.

`nvdisasm` comes with the wheel nvidia-cuda-nvdisasm, or is found on PATH. Its operands are described in the CUDA Binary
Utilities; the widths of registers in `reads` and `writes` follow from the names of the instructions.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

LINE = re.compile(r"\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?(\S+)\s*(.*?)\s*;")
LABEL = re.compile(r"(\.L_x_\d+):")
SECTION = re.compile(r"\.text\.(\S+):")
TARGET = re.compile(r"`\((\.L_x_\d+)\)")
REGISTER = re.compile(r"(?<![A-Za-z_])(UR|UP|R|P)(\d+)(?:\.reuse)?(\.64)?")
PREDICATE = re.compile(r"U?P")
WIDTH = re.compile(r"\.(8|U8|S8|16|U16|S16|32|64|128)(?=\.|$)")
WITHOUT_RESULT = frozenset(
    {
        "ST",
        "STG",
        "STS",
        "STL",
        "RED",
        "REDG",
        "BAR",
        "BRA",
        "BRX",
        "EXIT",
        "RET",
        "CALL",
        "NOP",
        "BSSY",
        "BSYNC",
        "WARPSYNC",
        "YIELD",
        "MEMBAR",
        "ERRBAR",
        "CCTL",
        "CCTLL",
        "DEPBAR",
        "LDGSTS",
        "LDGDEPBAR",
        "BREAK",
        "BPT",
        "KILL",
        "NANOSLEEP",
        "FENCE",
        "UTMALDG",
    }
)
CARRIES = frozenset({"IADD3", "UIADD3", "LEA", "ULEA", "IMAD", "UIMAD"})  # may return a carry behind the first register


class DisassemblyError(RuntimeError):
    """There is no nvdisasm, or it rejects a cubin."""


@dataclass(frozen=True)
class Instruction:
    """An instruction. ``predicate`` is ``P0``, ``!UP1``, or empty; ``target`` is the label that a branch names."""

    address: int
    predicate: str
    opcode: str
    operands: tuple[str, ...]
    target: str = ""

    @cached_property
    def name(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @cached_property
    def width(self) -> int:
        """Bytes that a thread loads or stores; 4 if the opcode names no size."""
        if self.name in ("LDSM", "STSM"):  # 8 x 8 matrices of 16 bits
            return 4 * int(self.opcode[-1]) if self.opcode[-1].isdigit() else 4
        found = WIDTH.search(self.opcode)
        return {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}[found[1].lstrip("US")] if found else 4

    @cached_property
    def writes(self) -> frozenset[str]:
        """The registers and predicates that it writes."""
        return frozenset(self._written())

    @cached_property
    def reads(self) -> frozenset[str]:
        """The registers and predicates that it reads."""
        found = set(_registers(self.predicate, 1))
        for position, operand in self._sources():
            found.update(_registers(operand, self._source_width(position)))
        return frozenset(found)

    def _result_count(self) -> int:
        """Return the number of operands that are results."""
        if self.name in WITHOUT_RESULT or not self.operands:
            return 0
        if PREDICATE.match(self.operands[0]):  # comparisons, votes and shuffles have another result behind it
            return 1 if self.name == "R2P" else 2
        count = 1
        while self.name in CARRIES and count + 2 < len(self.operands) and PREDICATE.match(self.operands[count]):
            count += 1
        return count

    def _written(self) -> Iterator[str]:
        for operand in self.operands[: self._result_count()]:
            yield from _registers(operand, self._result_width())

    def _result_width(self) -> int:
        """Return the number of registers of the first result."""
        if self.name in ("HMMA", "IMMA", "QMMA", "DMMA"):
            return 2 if self.opcode.endswith(".F16") else 4
        if self.name.startswith(("LD", "ULDC", "ATOM")):
            return max(self.width // 4, 1)
        if self.opcode == "CS2R.32":
            return 1
        wide = self.name in ("CS2R", "DFMA", "DADD", "DMUL") or ".WIDE" in self.opcode or ".F64." in self.opcode
        return 2 if wide else 1

    def _sources(self) -> Iterator[tuple[int, str]]:
        yield from enumerate(self.operands[self._result_count() :])

    def _source_width(self, position: int) -> int:
        if self.name in ("HMMA", "IMMA", "QMMA"):
            a, b = (4, 2) if "16816" in self.opcode or "16832" in self.opcode else (2, 1)
            return (a, b, 4, 1)[min(position, 3)]
        if self.name.startswith("ST") and position:
            return max(self.width // 4, 1)
        return 2 if self.name in ("DFMA", "DADD", "DMUL", "DSETP") else 1


def _registers(text: str, width: int) -> Iterator[str]:
    for kind, number, pair in REGISTER.findall(text):
        for offset in range(max(width if kind in ("R", "UR") else 1, 2 if pair else 1)):
            yield f"{kind}{int(number) + offset}"


def nvdisasm() -> str:
    """Return the path of nvdisasm. Raises DisassemblyError if there is none."""
    spec = find_spec("nvidia")
    wheels = [
        path
        for root in (spec.submodule_search_locations or () if spec else ())
        for path in Path(root).glob("*/bin/nvdisasm")
    ]
    found = str(wheels[0]) if wheels else shutil.which("nvdisasm")
    if not found:
        raise DisassemblyError("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
    return found


def listing(cubin: bytes) -> str:
    """Return nvdisasm's listing of a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin + b"\0")  # CuPy drops the last byte of NVRTC's cubins
        file.flush()
        done = subprocess.run([nvdisasm(), "-c", file.name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise DisassemblyError(done.stderr.strip())
    return done.stdout


def parse(text: str, symbol: str = "") -> tuple[Sequence[Instruction], dict[str, int]]:
    """Return the instructions of a kernel, and the index of the instruction behind each label.

    ``symbol`` is the kernel's mangled name; without it, the first one of the listing is returned.
    """
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    inside = False
    for line in text.splitlines():
        if section := SECTION.match(line.strip()):
            inside = not instructions and symbol in ("", section[1])
        elif not inside:
            continue
        elif label := LABEL.match(line.strip()):
            labels[label[1]] = len(instructions)
        elif found := LINE.match(line):
            address, predicate, opcode, operands = found.groups()
            target = TARGET.search(operands)
            instructions.append(
                Instruction(int(address, 16), predicate or "", opcode, _split(operands), target[1] if target else "")
            )
    if not instructions:
        raise DisassemblyError(f"the listing has no kernel {symbol}")
    return instructions, labels


def _split(operands: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in operands.split(",")) if operands else ()
