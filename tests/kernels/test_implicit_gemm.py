"""Convolutions as implicit GEMM on tensor cores, on the emulated device against NumPy. All sums are exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.elementwise import functor
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.activation.activation import Clamp, Relu
from ovgpu.ops.arithmetic.arithmetic import Add, Multiply, Round
from ovgpu.ops.base.op import evaluate
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.convert import Convert
from ovgpu.ops.convolution import _implicit_gemm
from ovgpu.ops.convolution._convolved import MAX_EPILOGUE_OPERANDS, Convolved, Epilogue
from ovgpu.ops.convolution._implicit_gemm import (
    FILE,
    TILES,
    Scales,
    convolve_pixels,
    forms,
    multiplies_pixels,
    partial_elements,
)
from ovgpu.ops.fused._elementwise import Chain, Part
from ovgpu.types import Type
from tests.emulator import cupy_emu, nvrtc

from .gate import ToCompile
from .recorded import kernel_name, replay, run_calls

RNG = np.random.default_rng(11)
S8, HALF, BF16, F32 = np.dtype(np.int8), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

# (value + bias + residual / 4) with Relu, rounded and saturated to s8; operands: a bias in f32 and a residual in s8
REQUANTIZED = Chain(
    3,
    ((Type.f32, np.float32(0.25).tobytes()),),
    (
        Part(Add(), (0, 1)),
        Part(Convert(destination_type=Type.f32), (2,)),
        Part(Multiply(), (5, 3)),
        Part(Add(), (4, 6)),
        Part(Relu(), (7,)),
        Part(Round(mode="half_to_even"), (8,)),
        Part(Clamp(min=-128.0, max=127.0), (9,)),
        Part(Convert(destination_type=Type.i8), (10,)),
    ),
)
# (value + first) * second in f16 or bf16
SCALED = Chain(3, (), (Part(Add(), (0, 1)), Part(Multiply(), (3, 2))))


@dataclass(frozen=True)
class Case:
    """A convolution with ``x`` [N, C, H, W] or [N, C, W], ``kernel`` [O, C, R, S] or [O, C, S], and paddings."""

    x: Shape
    kernel: Shape
    strides: Sequence[int] = (1, 1)
    dilations: Sequence[int] = (1, 1)
    begin: Sequence[int] = (0, 0)
    end: Sequence[int] = (0, 0)
    padding: int = 0

    @property
    def out(self) -> Shape:
        extents = [
            (n + b + e - d * (t - 1) - 1) // s + 1
            for n, t, s, d, b, e in zip(self.x[2:], self.kernel[2:], self.strides, self.dilations, self.begin, self.end)
        ]
        return (self.x[0], self.kernel[0], *extents)

    def sums(self, x: Array, kernel: Array) -> Array:
        """Return the sums of products, in integers."""
        pads = [(0, 0), (0, 0), *zip(self.begin, self.end)]
        padded = np.pad(x.astype(np.int64), pads[: x.ndim], constant_values=self.padding)
        total = np.zeros(self.out, np.int64)
        for tap in np.ndindex(*self.kernel[2:]):
            part = padded[
                (
                    slice(None),
                    slice(None),
                    *(
                        slice(t * d, t * d + (n - 1) * s + 1, s)
                        for t, d, n, s in zip(tap, self.dilations, self.out[2:], self.strides)
                    ),
                )
            ]
            total += np.einsum("nc...,oc->no...", part, kernel[:, :, *tap].astype(np.int64))
        return total


def channels_last(x: Array, kind: Any, skew: int = 0) -> Any:
    """Return the values on the device as [N, ..., C] in memory, with ``skew`` more channels between pixels."""
    memory = cupy_emu.empty((x.shape[0], *x.shape[2:], x.shape[1] + skew), kind)
    memory[..., : x.shape[1]] = cupy_emu.asarray(np.moveaxis(x, 1, -1).astype(kind).copy())
    axes = (0, x.ndim - 1, *range(1, x.ndim - 1))
    return memory[..., : x.shape[1]].transpose(axes)


@pytest.fixture(autouse=True)
def splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of few products are split, too."""
    monkeypatch.setattr(_implicit_gemm, "MEMORY_COST", (0, 0))
    monkeypatch.setattr(_implicit_gemm, "CLUSTER_COST", (0, 0))


H100, RTX_4090 = 227 << 10, 99 << 10  # bytes of shared memory of a block


def draw(shape: Shape | int, low: int, high: int) -> Array:
    return np.asarray(RNG.integers(low, high, shape))


class Made:
    """Random arrays of a case on the device, and the recorded launch."""

    def __init__(
        self,
        backend: CudaBackend,
        case: Case,
        kind: Any,
        value: Any,
        out: Any,
        chain: Chain | None = None,
        operands: Sequence[tuple[Shape, Any]] = (),
        skew: int = 0,
    ) -> None:
        self.case, self.kind, self.value, self.chain = case, kind, value, chain
        limit = 128 if kind == S8 else 5
        self.x = [draw(case.x, -limit, limit) for _ in range(3)]
        self.kernel = draw(case.kernel, -limit, limit)
        self.factor = RNG.uniform(1e-4, 2e-3, case.out[1]).astype(F32)
        self.correction = draw(case.out[1], -50000, 50000).astype(np.int32)
        self.operands = [draw(shape, -100, 100).astype(t) for shape, t in operands]
        self.device_x = channels_last(self.x[0], kind, skew)
        self.out = channels_last(np.zeros(case.out), out, skew)
        given = [channels_last(x, x.dtype) if x.shape == case.out else cupy_emu.asarray(x) for x in self.operands]
        self.scales = (
            None
            if kind != S8
            else Scales(cupy_emu.asarray(self.factor), cupy_emu.asarray(self.correction), case.padding)
        )
        kernel = channels_last(self.kernel, kind)
        self.c = Convolved(
            self.device_x,
            kernel[None],
            self.out,
            case.strides,
            case.dilations,
            case.begin,
            epilogue=None if chain is None else Epilogue(chain, tuple(given)),
        )
        self.launcher = Launcher(backend.stream, backend.blas)

    def record(self) -> str:
        """Record the launch; return the kernel's name."""
        assert multiplies_pixels(self.launcher, self.c, self.scales)
        convolve_pixels(self.launcher, self.c, self.scales, self.value, early=True)
        (call,) = self.launcher.calls
        return kernel_name(call)

    def wanted(self, number: int) -> Array:
        """Return the result for the first, second or third x."""
        sums = self.case.sums(self.x[number], self.kernel)
        each = (-1, *(1 for _ in self.case.out[2:]))
        value = sums.astype(self.value if self.kind != S8 else F32)
        if self.kind == S8:
            shifted = (sums - self.correction.reshape(each)).astype(F32)
            value = (shifted * self.factor.reshape(each)).astype(self.value)
        chain = self.chain or Chain.of(Convert(destination_type=Type.of(self.out.dtype)), 1)
        values = [value, *self.operands, *(np.frombuffer(data, kind.storage) for kind, data in chain.literals)]
        for part in chain.parts:
            arguments = [values[i] for i in part.operands]
            values += evaluate(part.op, NUMPY, arguments, [part.type_of([Type.of(a.dtype) for a in arguments])])
        return np.asarray(values[-1])


def convolve(backend: CudaBackend, case: Case, kind: Any = S8, value: Any = F32, out: Any = F32, **named: Any) -> str:
    """Check a convolution, all bits; return the kernel's template arguments."""
    with backend.stream:
        made = Made(backend, case, kind, value, out, **named)
        name = made.record()
        run_calls(made.launcher.calls)
        np.testing.assert_array_equal(made.out.get(), made.wanted(0))
    return name.removeprefix("implicit_gemm<").removesuffix(">")


CASES = [
    Case((2, 16, 9, 7), (24, 16, 1, 1)),  # a stage is half empty
    Case((1, 48, 10, 13), (72, 48, 3, 3), begin=(1, 1), end=(1, 1), padding=-7),  # stages span taps
    Case((3, 16, 11, 12), (8, 16, 7, 7), (2, 2), begin=(3, 2), end=(1, 4), padding=99),  # eight taps in a stage
    Case((1, 64, 14, 9), (16, 64, 3, 2), (2, 1), (2, 3), (0, 2), (3, 1), -128),
    Case((2, 80, 6, 5), (80, 80, 2, 2), begin=(1, 0), end=(0, 1), padding=3),
    Case((1, 128, 5, 30), (40, 128, 1, 1), (2, 3)),
    Case((2, 32, 70), (24, 32, 3), (2,), (1,), (1,), (1,), 5),  # one spatial axis
    Case((1, 144, 130), (72, 144, 1), (1,), (1,), (0,), (0,)),  # a product of matrices
]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "x".join(map(str, case.x + case.kernel)))
def test_s8(case: Case, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """K is whole or split in parts; pixels have more channels than belong to x and out."""
    for multiprocessors, skew in ((1, 0), (132, 16)):
        monkeypatch.setattr(Launcher, "multiprocessors", multiprocessors)
        convolve(backend, case, skew=skew)


EPILOGUES: list[tuple[Any, Any, Any, Chain, Sequence[tuple[Shape, Any]]]] = [
    (S8, F32, S8, REQUANTIZED, [((80, 1, 1), F32), ((1, 80, 7, 10), S8)]),
    (S8, HALF, S8, Chain.of(Convert(destination_type=Type.i8), 1), []),
    (S8, HALF, HALF, SCALED, [((1, 80, 7, 10), HALF), ((), HALF)]),
    (HALF, F32, F32, SCALED, [((1, 80, 1, 1), F32), ((7, 1), F32)]),
    (BF16, BF16, BF16, SCALED, [((1, 80, 1, 1), BF16), ((1, 1, 7, 10), BF16)]),
]


@pytest.mark.drawn(3)
@pytest.mark.parametrize(("kind", "value", "out", "chain", "operands"), EPILOGUES)
def test_epilogues(
    kind: Any,
    value: Any,
    out: Any,
    chain: Chain,
    operands: Sequence[tuple[Shape, Any]],
    backend: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Operands differ among channels, pixels, both or neither; K is whole or split."""
    case = Case((1, 64, 8, 11), (80, 64, 2, 2), padding=9 if kind == S8 else 0)
    for multiprocessors, order in ((1, "descending"), (132, 7)):
        monkeypatch.setattr(Launcher, "multiprocessors", multiprocessors)
        with cupy_emu.thread_order(order):
            convolve(backend, case, kind, value, out, chain=chain, operands=operands)


@pytest.mark.parametrize("kind", [HALF, BF16])
def test_floats(kind: Any, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """f16 and bf16; the largest tile has three stages in shared memory."""
    for case, multiprocessors in (
        (Case((2, 24, 12, 11), (136, 24, 3, 3), begin=(1, 1), end=(1, 1)), 1),
        (Case((1, 320, 1, 66), (72, 320, 1, 1)), 132),
    ):
        monkeypatch.setattr(Launcher, "multiprocessors", multiprocessors)
        convolve(backend, case, kind, kind, kind)


def infinity(backend: CudaBackend) -> None:
    """Check that infinite elements of x have no influence on pixels that do not depend on them."""
    case = Case((1, 40, 9, 9), (72, 40, 2, 2))  # K ends within a stage
    with backend.stream:
        made = Made(backend, case, HALF, F32, F32)
        made.device_x[:, :, 2:] = np.inf
        made.record()
        run_calls(made.launcher.calls)
        np.testing.assert_array_equal(made.out.get()[:, :, 0], made.wanted(0)[:, :, 0])


def test_infinity(backend: CudaBackend) -> None:
    infinity(backend)


def chain(backend: CudaBackend) -> None:
    """Check two launches that may overlap, of which the second reads the result of the first."""
    with backend.stream:
        first, second = (Made(backend, Case((1, 64, 6, 6), (64, 64, 1, 1)), S8, F32, out) for out in (S8, F32))
        second.c, second.x = replace(second.c, x=first.out), [first.wanted(0)]
        for made in (first, second):
            made.record()
        run_calls([*first.launcher.calls, *second.launcher.calls])
        np.testing.assert_array_equal(second.out.get(), second.wanted(0))


def test_overlapping_launches(backend: CudaBackend) -> None:
    chain(backend)


TILE_EXTENTS = {
    (256, 128): (300, 136),
    (128, 128): (200, 136),
    (128, 64): (300, 64),
    (64, 128): (60, 136),
    (64, 64): (64, 64),
    (64, 32): (130, 40),
    (32, 32): (40, 72),
}
"""Pixels and outputs of a convolution for each tile."""
SPLIT_TILES = [(tile, split) for tile in TILE_EXTENTS for split in ("NONE", "MEMORY", "CLUSTER")]
SPLIT_TILES.remove(((256, 128), "CLUSTER"))  # shared memory has no room for the sums


@pytest.mark.drawn(3)
@pytest.mark.parametrize(("tile", "split"), SPLIT_TILES)
def test_tiles(backend: CudaBackend, tile: tuple[int, int], split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tiles compute the same, with whole and split sums."""
    pixels, outputs = TILE_EXTENTS[tile]
    case = Case((1, 1040, 1, pixels), (outputs, 1040, 1, 1))
    monkeypatch.setattr(_implicit_gemm, "TILES", {tile: TILES[tile]})
    monkeypatch.setattr(Launcher, "multiprocessors", 1 if split == "NONE" else 50)
    monkeypatch.setattr(Launcher, "has_clusters", split == "CLUSTER")
    assert convolve(backend, case).startswith(f"signed char, float, float, {tile[0]}, {tile[1]}, {split}, ")


def test_rows_in_registers(backend: CudaBackend) -> None:
    """Operands that are not aligned are read element by element."""
    memory = cupy_emu.empty((1, 7, 10, 81), S8)
    with backend.stream:
        made = Made(
            backend,
            Case((1, 16, 7, 10), (80, 16, 1, 1)),
            S8,
            F32,
            S8,
            REQUANTIZED,
            [((80, 1, 1), F32), ((1, 80, 7, 10), S8)],
        )
        memory[..., 1:] = made.c.operands[1].transpose((0, 2, 3, 1))
        assert made.c.epilogue is not None
        residual = memory[..., 1:].transpose((0, 3, 1, 2))
        made.c = replace(made.c, epilogue=replace(made.c.epilogue, operands=(made.c.operands[0], residual)))
        assert made.record().endswith("Operand<4, false, true>, Operand<1, true, false>>")
        run_calls(made.launcher.calls)
        np.testing.assert_array_equal(made.out.get(), made.wanted(0))


@pytest.mark.parametrize("multiprocessors", [1, 132])
def test_replays(multiprocessors: int, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured graph computes other inputs; the counters of arrived blocks are zero again."""
    monkeypatch.setattr(Launcher, "multiprocessors", multiprocessors)
    case = Case((1, 64, 6, 6), (80, 64, 3, 3), begin=(1, 1), end=(1, 1), padding=-30)
    made = Made(backend, case, S8, F32, S8, REQUANTIZED, [((80, 1, 1), F32), ((1, 80, 6, 6), S8)])
    made.record()
    replay(
        backend,
        lambda: made.launcher.calls,
        [(made.device_x, [x.astype(S8) for x in made.x])],
        [made.out],
        lambda draw: [made.wanted(draw)],
    )


def takes(
    backend: CudaBackend,
    case: Case,
    kind: Any = S8,
    out: Any = F32,
    pick: Callable[[Made], None] | None = None,
    **named: Any,
) -> bool:
    made = Made(backend, case, kind, F32, out, **named)
    if pick is not None:
        pick(made)
    return multiplies_pixels(made.launcher, made.c, made.scales)


def test_other_convolutions(backend: CudaBackend) -> None:
    """Other kernels take other types, channels that are not adjacent or no chunks, and several groups."""
    case = Case((1, 16, 5, 5), (16, 16, 3, 3))

    def changed(**parts: Any) -> Callable[[Made], None]:
        return lambda made: setattr(made, "c", replace(made.c, **parts))

    assert takes(backend, case) and takes(backend, case, HALF)
    assert not takes(backend, case, F32) and not takes(backend, case, out=np.dtype(np.int32))
    narrow = Case((1, 8, 5, 5), (16, 8, 3, 3))
    assert not takes(backend, narrow) and takes(backend, narrow, HALF)
    assert not takes(backend, Case((1, 16, 5, 5), (4, 16, 3, 3))) and not takes(backend, case, skew=4)
    assert not takes(backend, case, pick=lambda made: setattr(made, "scales", None))
    x, kernel = cupy_emu.empty(case.x, S8), cupy_emu.empty((1, *case.kernel), S8)
    assert not takes(backend, case, pick=changed(x=x)) and not takes(backend, case, pick=changed(kernel=kernel))
    assert not takes(backend, case, pick=changed(transposed=True))
    assert not takes(backend, case, pick=lambda made: setattr(made, "c", replace(made.c, x=made.c.x[:, :, ::-1])))
    volume = Case((1, 16, 3, 3, 3), (16, 16, 1, 1, 1), (1, 1, 1), (1, 1, 1), (0, 0, 0), (0, 0, 0))
    assert not takes(backend, volume)


@pytest.mark.parametrize("capability", [75, 80])
def test_capabilities(capability: int, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Launcher, "capability", capability)
    assert takes(backend, CASES[0]) is (capability == 80)


# Convolutions of ResNet-50 and products of BERT-base on a card with 132 multiprocessors: the forms without clusters and
# less shared memory, and with clusters
@pytest.mark.parametrize(
    ("pixels", "outputs", "row_bytes", "wanted", "with_clusters"),
    [
        (3136, 64, 64, (64, 32, 98, 1), None),
        (3136, 256, 64, (128, 64, 100, 1), None),
        (784, 128, 1152, (32, 32, 100, 1), None),
        (49, 512, 4608, (64, 32, 16, 6), None),
        (49, 2048, 512, (32, 32, 128, 1), None),
        (200704, 64, 576, (128, 64, 1568, 1), None),
        (50176, 512, 128, (128, 128, 1568, 1), (256, 128, 784, 1)),
        (128, 768, 1536, (32, 32, 96, 1), None),
        (128, 3072, 1536, (64, 64, 96, 1), (128, 128, 24, 4)),
        (128, 768, 3072, (64, 64, 24, 4), None),
    ],
)
def test_forms(
    pixels: int,
    outputs: int,
    row_bytes: int,
    wanted: tuple[int, ...],
    with_clusters: tuple[int, ...] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    for max_cluster, limit, expected in ((1, RTX_4090, wanted), (8, H100, with_clusters or wanted)):
        found = forms(pixels, outputs, row_bytes, 132, limit, max_cluster=max_cluster)[0]
        assert (found.rows, found.columns, found.tiles, found.parts) == expected
        stages = -(-row_bytes // 128)
        assert found.shared <= limit and found.steps * (found.parts - 1) < stages <= found.steps * found.parts


@pytest.mark.parametrize("partial", [0, 2 * 32 << 10, 1 << 20])
def test_memory_of_partial_sums(partial: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are as many parts as fit the memory, which only long rows need."""
    monkeypatch.undo()
    found = forms(49, 512, 4608, 132, H100, partial)[0]
    assert found.parts == {0: 1, 2 * 32 << 10: 2}.get(partial, 6)
    assert found.parts == 1 or found.parts * found.tiles * found.rows * found.columns <= partial
    assert partial_elements(768) == 0 and partial_elements(4608) == 1 << 20


@pytest.mark.parametrize(
    ("pixels", "outputs", "limit", "tile"),
    [
        (50176, 512, H100, (256, 128)),
        (4096, 768, H100, (256, 128)),
        (4096, 768, RTX_4090, (128, 128)),
        (3136, 64, H100, (64, 64)),
    ],
)
def test_shared_memory_of_the_largest_tile(pixels: int, outputs: int, limit: int, tile: tuple[int, int]) -> None:
    found = forms(pixels, outputs, 768, 132, limit)[0]
    assert (found.rows, found.columns) == tile and found.shared <= limit


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_compiles_without_spills(architecture: str, to_compile: ToCompile) -> None:
    """Kernels with an epilogue, too."""
    source = functor("Epilogue", REQUANTIZED, (F32, F32, S8), MAX_EPILOGUE_OPERANDS, result=S8)
    operands = "Operand<4, false, true>, Operand<1, true, true>"
    shapes = [f"{rows}, {columns}, {split}" for split in ("NONE", "MEMORY", "CLUSTER") for rows, columns in TILES]
    names = to_compile(
        FILE,
        [
            f"implicit_gemm<{kind}, float, signed char, {form}, Epilogue, {operands}>"
            for form in shapes
            for kind in ("signed char", "__half")
        ],
    )
    usage = nvrtc.compile_file(FILE, architecture, names, source).usage
    assert len(usage) == len(names) and not any(u.spill_stores or u.spill_loads for u in usage.values())
