"""Faults put into convolutions as implicit GEMM: wrong results or the device's checks reveal each."""

from __future__ import annotations

from typing import Any

import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.convolution import _implicit_gemm
from tests.kernels.broken import Fault, is_noticed
from tests.kernels.test_implicit_gemm import F32, HALF, REQUANTIZED, S8, Case, chain, convolve, infinity

FILE = "implicit_gemm.cu"


def convolved(multiprocessors: int, *arguments: Any, clusters: bool = False, **named: Any) -> None:
    """Convolve on a device with so many multiprocessors, with clusters or without; see `convolve` for the arguments."""
    backend = CudaBackend()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Launcher, "multiprocessors", multiprocessors)
        patch.setattr(Launcher, "has_clusters", clusters)
        patch.setattr(_implicit_gemm, "MEMORY_COST", (0, 0))
        patch.setattr(_implicit_gemm, "CLUSTER_COST", (0, 0))
        convolve(backend, *arguments, **named)


def whole() -> None:
    """Tiles are ragged in all directions, stages span taps, and x has padding."""
    convolved(1, Case((2, 48, 9, 8), (72, 48, 3, 3), (1, 2), begin=(1, 1), end=(2, 1), padding=-7))


def split() -> None:
    """Several blocks share a tile, and compute several stages each."""
    convolved(
        14,
        Case((2, 64, 7, 7), (80, 64, 3, 3), begin=(1, 1), end=(1, 1), padding=5),
        S8,
        F32,
        S8,
        chain=REQUANTIZED,
        operands=[((80, 1, 1), F32), ((2, 80, 7, 7), S8)],
    )


def clustered() -> None:
    """Blocks of a cluster share a tile."""
    convolved(
        132,
        Case((2, 64, 7, 7), (80, 64, 3, 3), begin=(1, 1), end=(1, 1), padding=5),
        S8,
        F32,
        S8,
        clusters=True,
        chain=REQUANTIZED,
        operands=[((80, 1, 1), F32), ((2, 80, 7, 7), S8)],
    )


def shared() -> None:
    """Warps divide the stages of a tile."""
    convolved(132, Case((2, 64, 7, 7), (80, 64, 3, 3), begin=(1, 1), end=(1, 1)), HALF, F32, F32)


def halves() -> None:
    """Tiles are ragged, and stages span taps."""
    convolved(1, Case((1, 40, 9, 9), (72, 40, 2, 2), end=(1, 1)), HALF, F32, F32)


def infinite() -> None:
    """The last rows of x, which few pixels of the result depend on, are infinite."""
    infinity(CudaBackend())


def chained() -> None:
    """A launch reads the result of the one before."""
    chain(CudaBackend())


FAULTS = [
    Fault("no arrival at the cluster", clustered, FILE, "arrive_at_cluster<UNTOUCHED>();"),
    Fault("a stage is read before it is there", whole, FILE, "wait_copies_but<STAGES - 2>();"),
    Fault(
        "a stage too few is waited for", whole, FILE, "wait_copies_but<STAGES - 2>()", "wait_copies_but<STAGES - 1>()"
    ),
    Fault(
        "a stage is replaced before it is read",
        whole,
        FILE,
        "__syncthreads();  // the stage has arrived, and the one before has been read",
    ),
    Fault("padding is zero", whole, FILE, "pixel_copies.pad(stage);"),
    Fault("padding of the stage before", split, FILE, "outside >>= COUNT;"),
    Fault(
        "columns behind the last one",
        whole,
        FILE,
        "static_cast<unsigned>(column[n] + right) < static_cast<unsigned>(w.size[2])",
        "true",
    ),
    Fault(
        "rows before the first one",
        whole,
        FILE,
        "static_cast<unsigned>(row[n] + down) < height",
        "row[n] + down < static_cast<int>(height)",
    ),
    Fault("taps of one row", whole, FILE, "if (j >= w.kernel[2]) j -= w.kernel[2], i++;"),
    Fault("channels behind those of a tap", whole, FILE, "if (channel >= channels) channel -= channels, j++;"),
    Fault("x behind the end of K", infinite, FILE, "valid && i < w.kernel[1]", "valid"),
    Fault("weights behind the end of K", whole, FILE, "valid && left > 0", "valid"),
    Fault("channels in the order of rows", halves, FILE, "first += channel_of(own);", "first += own;"),
    Fault("channels of the first rows", halves, FILE, "channel = channel_of(n * S::EACH)", "channel = 0"),
    Fault(
        "chunks keep their places",
        halves,
        FILE,
        "target = stages + swapped(own, threadIdx.x % CHUNKS);",
        "target = stages + threadIdx.x;",
    ),
    Fault("sums of the own part are added twice", split, FILE, "memset(sum, 0, sizeof(sum));"),
    Fault("the first block to arrive adds", split, FILE, "if (before != others) return;", "if (before != 0) return;"),
    Fault(
        "the last part is left out",
        split,
        FILE,
        "first + p < division.parts.value;",
        "first + p < division.parts.value - 1;",
    ),
    Fault(
        "warps exchange sums in a stage that is still read",
        shared,
        FILE,
        "__syncthreads();       // the last stage has been read",
    ),
    Fault("sums of warps are read before they are there", shared, FILE, "__syncthreads();  // all sums are there"),
    Fault(
        "warps add up the first lines",
        shared,
        FILE,
        "slot(slice, warp * S::OWN_LINES + line, half)",
        "slot(slice, line, half)",
    ),
    Fault("sums of other blocks are read before they are there", clustered, FILE, "stores->wait();"),
    Fault("sums for blocks that do not expect them yet", clustered, FILE, "wait_for_cluster();"),
    Fault(
        "a strip too few is expected",
        clustered,
        FILE,
        "S::STRIPS - part + division.parts.value - 1",
        "S::STRIPS - part - 1",
    ),
    Fault(
        "all parts leave sums in one place",
        clustered,
        FILE,
        "slot(number, part, warp_k, pair % 2)",
        "slot(number, 0, warp_k, pair % 2)",
    ),
    Fault("strips of the first block", clustered, FILE, "number * parts + part;", "number * parts;"),
    Fault("the last part of a cluster is left out", clustered, FILE, "from < parts;", "from < parts - 1;"),
    Fault("all warps multiply the first chunks", shared, FILE, "lane / 16 + warp_k * 2", "lane / 16"),
    Fault(
        "operands of the first image",
        split,
        FILE,
        "OperandOffsets<int>(operands, image,",
        "OperandOffsets<int>(operands, 0,",
    ),
    Fault("x is read early", chained, FILE, "  wait_for_launches();"),
]


@pytest.mark.drawn(16)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_noticed(fault: Fault) -> None:
    is_noticed(fault)
