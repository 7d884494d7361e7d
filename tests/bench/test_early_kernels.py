"""Kernels that are launched early, in machine code: what they access before they wait for the launches before them."""

from __future__ import annotations

import pytest

from bench.kernels.estimate import WAIT
from bench.kernels.machine_code import of_file
from tests.kernels import gate

pytestmark = pytest.mark.usefixtures("disassembler")

ACCESSES = ("LD", "ST", "LDG", "STG", "LDL", "STL", "ATOM", "ATOMG", "RED", "REDG", "LDGSTS")
PRODUCTS = [name for name in gate.table()["product_mma.cu"] if ", 1, 4, " in name or ", 8, 2, " in name][::16]
TILES = [*gate.table()["product_tiles.cu"]][::16]
CONVOLUTIONS = [*gate.table()["implicit_gemm.cu"]][::6]
NORMS = [name for name in gate.table()["normalization.cu"] if "normalize_rows" in name][::6]
ATTENTIONS = [name for name in gate.table()["attention_stream.cu"] if ", 64, 64, " in name][::4]
OTHERS = [
    (file, name)
    for file, step in (("attention_mma.cu", 40), ("gather.cu", 40), ("copy.cu", 30))
    for name in [n for n in gate.table()[file] if "tree" not in n][::step]
]


def accesses(file: str, name: str) -> list[str]:
    """Return the accesses to global memory before the wait. They follow one another in the listing: there is no jump
    over the wait."""
    instructions = of_file(file, name, "sm_90").flow.instructions
    (wait,) = (i for i, instruction in enumerate(instructions) if instruction.name == WAIT)
    assert not any(i.name in ("EXIT", "RET") and not i.predicate for i in instructions[:wait])
    return [instruction.opcode for instruction in instructions[:wait] if instruction.name in ACCESSES]


@pytest.mark.drawn(8)
@pytest.mark.parametrize(
    ("file", "name"), [("product_mma.cu", name) for name in PRODUCTS] + [("product_tiles.cu", name) for name in TILES]
)
def test_products_copy_codes(file: str, name: str) -> None:
    """Codes are copied to shared memory, and x is not. Scales and zero points are loaded through the cache for
    constants."""
    found = accesses(file, name)
    copies = [opcode for opcode in found if opcode.startswith("LDGSTS")]
    assert copies and all(".CONSTANT" in opcode for opcode in found if opcode not in copies)


@pytest.mark.drawn(8)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_copy_kernels(name: str) -> None:
    """The constant kernel is copied to shared memory before the wait, x after it."""
    found = accesses("implicit_gemm.cu", name)
    assert found and all(opcode.startswith("LDGSTS") for opcode in found)


@pytest.mark.drawn(8)
@pytest.mark.parametrize("name", NORMS)
def test_norms_load_nothing(name: str) -> None:
    assert not accesses("normalization.cu", name)


@pytest.mark.drawn(6)
@pytest.mark.parametrize(("file", "name"), OTHERS)
def test_others_load_nothing(file: str, name: str) -> None:
    assert not accesses(file, name)


@pytest.mark.drawn(8)
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_loads_caches(name: str) -> None:
    """Only a kernel that appends to the caches itself loads from them, and the length."""
    found = accesses("attention_stream.cu", name)
    assert all(opcode.startswith("LDG") and ".CONSTANT" not in opcode for opcode in found)
    assert bool(found) == (name.split(", ")[8] == "true")
