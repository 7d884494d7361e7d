"""Machine code of kernels as `bench.kernels` reads it: instructions, control flow, times of one warp."""

from __future__ import annotations

import pytest

from bench.kernels import sass
from bench.kernels.budget import Budget
from bench.kernels.cards import CARDS, H100, SM80, SM90, card
from bench.kernels.dry_device import resident_blocks
from bench.kernels.flow import Flow, Loop
from bench.kernels.machine_code import MachineCode, compiled
from bench.kernels.sass import Instruction
from bench.kernels.units import Timeline, multiply_adds, occupied, unit
from tests.emulator import nvrtc

FLAGS = ("-std=c++17",)


def parse(*lines: str) -> Flow:
    """Parse instructions and labels, one per line."""
    text = [".text.kernel:"]
    for number, line in enumerate(lines):
        text.append(line if line.endswith(":") else f"        /*{16 * number:04x}*/      {line} ;")
    return Flow(*sass.parse("\n".join(text)))


def instruction(line: str) -> Instruction:
    return parse(line).instructions[0]


@pytest.mark.parametrize(
    "line, writes, reads",
    [
        ("LDG.E.128 R4, desc[UR6][R20.64+0x10]", "R4 R5 R6 R7", "UR6 R20 R21"),
        ("LDG.E.U16.CONSTANT R52, desc[UR14][R26.64]", "R52", "UR14 R26 R27"),
        ("STG.E.64 desc[UR6][R14.64], R4", "", "UR6 R14 R15 R4 R5"),
        ("@!P0 STS.128 [R41], R28", "", "P0 R41 R28 R29 R30 R31"),
        ("HMMA.16816.F32 R28, R36, R24, R12", "R28 R29 R30 R31", "R36 R37 R38 R39 R24 R25 R12 R13 R14 R15"),
        ("HMMA.1688.F32 R28, R36, R24.reuse, RZ", "R28 R29 R30 R31", "R36 R37 R24"),
        ("LDSM.16.M88.4 R4, [R8]", "R4 R5 R6 R7", "R8"),
        ("IADD3 R6, P0, R12, R7, RZ", "R6 P0", "R12 R7"),
        ("IADD3.X R9, R8, UR4, RZ, P0, !PT", "R9", "R8 UR4 P0"),
        ("LEA R14, P0, R6.reuse, UR6, 0x1", "R14 P0", "R6 UR6"),
        ("IMAD.WIDE R28, R24, 0x10, R30", "R28 R29", "R24 R30"),
        ("ISETP.GE.U32.AND P1, PT, R9, UR8, PT", "P1", "R9 UR8"),
        ("SEL R7, R2, RZ, !P2", "R7", "R2 P2"),
        ("SHFL.BFLY PT, R4, R7, R8, 0x1f", "R4", "R7 R8"),
        ("@UP0 UIADD3 UR4, UR4, -UR10, URZ", "UR4", "UP0 UR4 UR10"),
        ("DFMA R4, R8, R10, R4", "R4 R5", "R8 R9 R10 R11 R4 R5"),
        ("CS2R R8, SRZ", "R8 R9", ""),
    ],
)
def test_registers(line: str, writes: str, reads: str) -> None:
    found = instruction(line)
    assert (found.writes, found.reads) == (frozenset(writes.split()), frozenset(reads.split()))


@pytest.mark.parametrize(
    "line, name, work",
    [
        ("FFMA R1, R2, R3, R4", "fp32", 32),
        ("HFMA2 R1, R2, R3, R4", "fp16", 64),
        ("HFMA2.MMA R1, -RZ, RZ, 0, 0", "fp16", 0),
        ("IMAD R1, R2, R3, R4", "product", 0),
        ("HMMA.16816.F32.BF16 R0, R4, R8, R0", "tensor", 2048),
        ("HMMA.1688.F32.TF32 R0, R4, R8, R0", "tensor", 1024),
        ("IMMA.16832.S8.S8 R0, R4, R8, R0", "tensor", 4096),
        ("LOP3.LUT R1, R2, R3, R4, 0xc0, !PT", "integer", 0),
        ("F2FP.F16.F32.PACK_AB R1, R2, R3", "integer", 0),
        ("F2I.TRUNC R1, R2", "conversion", 0),
        ("MUFU.EX2 R1, R2", "special", 0),
        ("UIADD3 UR1, UR2, UR3, URZ", "control", 0),
        ("LDS.64 R2, [R1]", "memory", 0),
    ],
)
def test_units(line: str, name: str, work: int) -> None:
    assert (unit(instruction(line)), multiply_adds(instruction(line))) == (name, work)


def test_a_loop_with_alternatives() -> None:
    """The path enters loops, takes skipped code and wide accesses, and leaves out slow paths and early exits."""
    flow = parse(
        "@P3 EXIT",
        "@P0 BRA `(.L_x_1)",  # skips code
        "IADD3 R1, R1, 0x1, RZ",
        ".L_x_1:",
        "@P1 BRA `(.L_x_2)",  # two alternatives
        "LDG.E R4, desc[UR4][R2.64]",
        "LDG.E R5, desc[UR4][R2.64+0x4]",
        "BRA `(.L_x_3)",
        ".L_x_2:",
        "LDG.E.64 R4, desc[UR4][R2.64]",
        ".L_x_3:",
        "FFMA R6, R4, R5, R6",
        "@P2 BRA `(.L_x_4)",  # a slow path
        "CALL.REL.NOINC `($__internal_0_$__cuda_sm20_div)",
        ".L_x_4:",
        "ISETP.GE.AND P0, PT, R6, R1, PT",
        "@!P0 BRA `(.L_x_3)",
        "STG.E desc[UR4][R2.64], R6",
        "EXIT",
        "MUFU.RCP R1, R1",  # reached by calls alone
        "RET.REL.NODEC R2",
    )
    names = [x.name for x in flow.code(flow.path)]
    assert names == ["EXIT", "BRA", "IADD3", "BRA", "LDG", "FFMA", "BRA", "ISETP", "BRA", "STG", "EXIT"]
    (loop,) = flow.loops
    assert [x.name for x in flow.code(loop.path)] == ["FFMA", "BRA", "ISETP", "BRA"]
    assert [item for item in flow.path if isinstance(item, Loop)] == [loop] == list(flow.entered())


def test_nested_loops() -> None:
    """A call of a label within the kernel, which nvdisasm shows for some jumps, leaves the loop."""
    flow = parse(
        ".L_x_1:",
        "LDG.E R4, desc[UR4][R2.64]",
        ".L_x_2:",
        "FADD R5, R5, R4",
        "@P0 BRA `(.L_x_2)",
        "@!P1 CALL.REL.NOINC `(.L_x_3)",
        "BRA `(.L_x_1)",
        ".L_x_3:",
        "EXIT",
    )
    (outer,) = flow.loops
    (inner,) = outer.loops
    assert [x.name for x in flow.code(outer.path, False)] == ["LDG", "CALL", "BRA"]
    assert [x.name for x in flow.code(inner.path)] == ["FADD", "BRA"]


def test_the_time_of_a_warp() -> None:
    """Instructions wait for their operands, and asynchronous copies are awaited in groups."""

    def cycles(*lines: str) -> float:
        return Timeline(SM90, 500).run(parse(*lines).instructions)

    assert cycles("FFMA R1, R1, R2, R1", "FFMA R3, R1, R2, R1") == 1 + SM90.latencies["fp32"]
    assert cycles("FFMA R1, R1, R2, R1", "FFMA R3, R4, R2, R4") == 2
    assert cycles("LDG.E.64 R2, desc[UR4][R6.64]", "FADD R4, R4, R3") == 501
    assert cycles("LDG.E R2, desc[UR4][R6.64]", "LDG.E R3, desc[UR4][R6.64]", "FADD R4, R2, R3") == 502
    copies = [
        "LDGSTS.E [R1], desc[UR4][R2.64]",
        "LDGDEPBAR",
        "FFMA R1, R1, R2, R1",
        "FFMA R1, R1, R2, R1",
        "LDGSTS.E [R1], desc[UR4][R2.64]",
        "LDGDEPBAR",
    ]
    first, both = (cycles(*copies, f"DEPBAR.LE SB0, {left}") for left in ("0x1", "0x0"))
    assert first == 501 and both > first
    assert cycles("BAR.SYNC.DEFER_BLOCKING 0x0", "IADD3 R1, R1, R2, RZ") == 1 + SM90.latencies["barrier"] + 1


def test_cycles_of_units() -> None:
    code = parse(
        "FFMA R1, R1, R2, R1",
        "IMAD R1, R1, R2, R1",
        "LDS.128 R4, [R1]",
        "LDS R4, [R1]",
        "HMMA.16816.F32 R0, R4, R8, R0",
    ).instructions
    found = occupied(code, H100)
    assert found["issue"] == 5 / 4 and found["fp32"] == 1 / 4 + 1 / 4 and found["product"] == 1 / 2
    assert found["memory"] == 4 + 1 and found["tensor"] == 2048 / H100.tensor["f16"]
    narrow = occupied(code, CARDS["RTX 4090"])
    assert narrow["memory"] == 4 + 2 and narrow["tensor"] == 2048 / 256


@pytest.mark.parametrize(
    "registers, shared, threads, dynamic, blocks",
    [
        (64, 0, 256, 0, 4),
        (32, 0, 256, 0, 8),
        (65, 0, 256, 0, 3),
        (16, 0, 32, 0, 32),
        (32, 0, 1024, 0, 2),
        (32, 1024, 64, 110 << 10, 2),
        (255, 0, 1024, 0, 0),
    ],
)
def test_resident_blocks(registers: int, shared: int, threads: int, dynamic: int, blocks: int) -> None:
    """Registers, shared memory and threads limit the blocks of a multiprocessor, as in NVIDIA's occupancy tables."""
    code = MachineCode("", b"", nvrtc.Usage(registers, shared=shared))
    assert resident_blocks(code, H100, threads, dynamic) == blocks


def test_cards() -> None:
    assert card("rtx4090") is CARDS["RTX 4090"] and card("h100") is H100
    with pytest.raises(ValueError, match="no card 'H1000': T4, RTX 4090, L40S, H100, H200"):
        card("H1000")
    for found in CARDS.values():
        assert found.architecture.rates.keys() == SM80.rates.keys()
        assert found.architecture.latencies.keys() == SM80.latencies.keys()
        assert found.bandwidth / found.multiprocessors / found.clock < found.architecture.cache_bandwidth


SOURCE = """
extern "C" __global__ void dot(const float4* x, const float4* y, float* out, int n) {
  float sum = 0;
#pragma unroll 2
  for (int i = threadIdx.x; i < n; i += 128) {
    const float4 a = x[i], b = y[i];
    sum += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
  }
  for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x == 0) *out = sum;
}
"""


@pytest.mark.drawn(4)
@pytest.mark.usefixtures("disassembler")
@pytest.mark.parametrize("architecture", nvrtc.ARCHITECTURES)
def test_a_compiled_kernel(architecture: str) -> None:
    """The main loop loads 32 bytes for four multiply-adds in each of its unrolled trips, on all architectures."""
    code = compiled(SOURCE, "dot", architecture, FLAGS, True)
    found = Budget.of(code, ("bytes",))
    assert found.elements in (32, 64) and found.load_width == 16 and found.spills == 0
    assert found.counts["LDG"] * 16 == found.elements and 4 < found.instructions < 50
    products = Budget.of(code, ("tensor", "fma"))
    assert products.work == "fma" and products.elements == found.elements // 8 - found.counts["FMUL"]
    assert 0 < found.per_element < 1.5


@pytest.mark.usefixtures("disassembler")
def test_compile_errors() -> None:
    with pytest.raises(nvrtc.NvrtcError, match="wrong does not compile for sm_90"):
        compiled("void f() { return 1; }", "wrong", "sm_90", FLAGS, True)
