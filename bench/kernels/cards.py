"""Cards and their architectures as data: sizes, clocks, bandwidths, and rates and latencies of execution units.

Sources, by the letters at the figures:
a  CUDA C++ Best Practices Guide 13, "Throughput of Native Arithmetic Instructions"
b  Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", arXiv 2402.13499, and its continuation
   arXiv 2501.12084: tensor cores by mma.sync (63 % of the peak of an H100, all of an RTX 4090's), latencies
c  github.com/RRZE-HPC/gpu-benches: latencies and bandwidths of caches and memories, empty kernels in graphs
d  NVIDIA's data sheets and architecture white papers
e  github.com/connollydavid/tu102: rates and latencies of compute capability 7.5
f  this project's runs on an H100, `results/gpu-h100*.md`: a copy moves 3.0 TB/s; an empty kernel takes 1.2 us
g  github.com/ggml-org/llama.cpp/pull/22522: tokens per second with early launches in CUDA graphs, about 0.8 us less per
   kernel
Where none is given, the figure is that of the nearest architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Architecture:
    """A compute capability.

    rates      instructions of a warp per clock and multiprocessor, by unit: fp32, fp16 (packed), fp64, integer (also
               logic, shifts, comparisons), product (of integers), conversion, special (exp2, reciprocal), shuffle,
               memory (loads and stores)
    latencies  cycles until a result can be read: of these units, and of shared memory, L2 (cache), memory, constants,
               tensor cores (m16n8k16), barriers of a block, fences and atomics
    """

    name: str
    rates: Mapping[str, float]
    latencies: Mapping[str, float]
    threads: int = 2048  # of a multiprocessor, as the next three
    blocks: int = 32
    shared_bytes: int = 100 << 10
    registers: int = 1 << 16
    issue: float = 4  # warp instructions per clock and multiprocessor
    shared_bandwidth: float = 128  # bytes per clock and multiprocessor, of shared memory and L1
    cache_bandwidth: float = 64  # bytes per clock and multiprocessor, of L2


@dataclass(frozen=True)
class Card:
    """A card.

    clock      in Hz, as it runs products; bandwidth of memory and L2 in bytes per second; L2 in bytes
    tensor     multiply-adds per clock and multiprocessor by mma.sync, with sums in f32 or i32, by operand type
    launch     seconds of an empty kernel in a CUDA graph
    barrier    seconds of a barrier of all blocks
    """

    name: str
    architecture: Architecture
    multiprocessors: int
    clock: float
    bandwidth: float
    copy_share: float  # of the bandwidth, that a copy reaches
    cache: int
    cache_bandwidth: float
    tensor: Mapping[str, float]
    launch: float
    barrier: float
    early_launch: float = 0.0  # as `launch`, of a kernel that begins before the one before it has ended
    peak_tensor: float = 0.0  # multiply-adds of f16 per clock and multiprocessor by other instructions, such as wgmma


_RATES = {
    "fp32": 4,
    "fp16": 4,
    "fp64": 2,
    "integer": 2,
    "product": 2,
    "conversion": 0.5,
    "special": 0.5,
    "shuffle": 1,
    "memory": 1,
}  # a
_LATENCIES = {
    "fp32": 4,
    "fp16": 5,
    "fp64": 8,
    "integer": 4,
    "product": 4,
    "conversion": 16,
    "special": 18,
    "shuffle": 24,
    "shared": 29,
    "cache": 270,
    "memory": 680,
    "constant": 29,
    "tensor": 33,
    "barrier": 30,
    "fence": 500,
    "atomic": 400,
}  # b, c; of fences and atomics estimated

SM75 = Architecture(
    "sm_75",
    {**_RATES, "fp32": 2, "fp16": 2, "fp64": 1 / 16, "shuffle": 0.5, "memory": 0.5},
    {
        **_LATENCIES,
        "fp16": 6,
        "fp64": 46,
        "special": 15,
        "shared": 22,
        "cache": 235,
        "memory": 436,
        "constant": 26,
        "tensor": 28,
        "atomic": 312,
    },
    threads=1024,
    blocks=16,
    shared_bytes=64 << 10,
    shared_bandwidth=64,
)  # e
SM80 = Architecture(
    "sm_80", {**_RATES, "fp32": 2, "fp64": 1}, {**_LATENCIES, "tensor": 25, "memory": 552}, shared_bytes=164 << 10
)  # a, b
SM89 = Architecture(
    "sm_89",
    {**_RATES, "fp16": 2, "fp64": 1 / 16, "shuffle": 0.5, "memory": 0.5},
    {**_LATENCIES, "fp64": 54, "special": 15, "memory": 600},
    threads=1536,
    blocks=24,
)  # a, b, c
SM90 = Architecture("sm_90", _RATES, _LATENCIES, shared_bytes=228 << 10)  # a, b, c

H100 = Card(
    "H100",
    SM90,
    132,
    1.755e9,
    3.352e12,
    0.89,
    50 << 20,
    5.5e12,
    {"f16": 1290, "tf32": 645, "i8": 2580},
    1.2e-6,
    1.08e-6,
    0.4e-6,
    peak_tensor=2048,
)  # b, d, f, g
CARDS = {
    card.name: card
    for card in (
        Card("T4", SM75, 40, 1.59e9, 0.32e12, 0.8, 4 << 20, 1.27e12, {"f16": 512, "i8": 1024}, 0.9e-6, 0.85e-6),  # d, e
        Card(
            "RTX 4090",
            SM89,
            128,
            2.52e9,
            1.008e12,
            0.92,
            72 << 20,
            4.0e12,
            {"f16": 256, "tf32": 128, "i8": 1024},
            0.94e-6,
            1.1e-6,
        ),  # b, d
        Card(
            "L40S",
            SM89,
            142,
            2.52e9,
            0.864e12,
            0.9,
            96 << 20,
            5.2e12,
            {"f16": 512, "tf32": 256, "i8": 1024},
            0.94e-6,
            0.8e-6,
        ),  # c, d
        H100,
        replace(H100, name="H200", bandwidth=4.8e12, launch=1.26e-6, barrier=1.2e-6),  # c, d
    )
}


def card(name: str) -> Card:
    """Return a card by its name, in any case and with or without spaces. Raises ValueError that lists the cards."""
    plain = {known.lower().replace(" ", ""): known for known in CARDS}
    found = plain.get(name.lower().replace(" ", "").replace("-", ""))
    if found is None:
        raise ValueError(f"there is no card {name!r}: {', '.join(CARDS)}")
    return CARDS[found]
