"""Faults put into products in tiles with compressed weights: wrong results or the device's checks reveal each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.fused import _product_tiles
from ovgpu.types import Type
from tests.kernels.broken import Fault, is_noticed
from tests.kernels.test_product_mma import multiply, packed

FILE = "product_tiles.cu"


def tiled(multiprocessors: int, *arguments: Any, tf32: bool = False, clusters: bool = False) -> None:
    """Multiply in tiles on a device with so many multiprocessors, with clusters or without; see `multiply` for the
    arguments."""
    backend = CudaBackend(tf32=tf32)
    with backend.stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(_product_tiles, "pays", lambda *_: True)
        patch.setattr(Launcher, "multiprocessors", multiprocessors)
        patch.setattr(Launcher, "has_clusters", clusters)
        multiply(backend, *arguments)


def nibbles() -> None:
    """Several blocks share a tile, and one block has parts of several tiles."""
    tiled(3, packed(Type.u4, 1000, 1376), 14, (1000, 43), (1000, 43))


def whole_bytes() -> None:
    """One block has several tiles; the weights have one row more than tiles have."""
    tiled(1, packed(Type.i8, 257, 912), 70, (257, 1), (257, 1))


def terms() -> None:
    """Multiply f32, which is split into two terms."""
    tiled(132, packed(Type.u4, 37, 1152), 20, (37, 9), (37, 9), np.float32, tf32=True)


def clustered() -> None:
    """Four blocks of a cluster share a tile."""
    tiled(12, packed(Type.u4, 257, 1376), 40, (257, 43), (257, 43), clusters=True)


FAULTS = [
    Fault("no arrival at the cluster", clustered, FILE, "arrive_at_cluster<UNTOUCHED>();"),
    Fault("a stage is read before it is there", nibbles, FILE, "wait_copies_but<STAGES - 2>();"),
    Fault(
        "a stage too few is waited for",
        whole_bytes,
        FILE,
        "wait_copies_but<STAGES - 2>()",
        "wait_copies_but<STAGES - 1>()",
    ),
    Fault(
        "a stage is replaced before it is read",
        whole_bytes,
        FILE,
        "__syncthreads();  // the stage has arrived, and the one before has been read",
    ),
    Fault(
        "terms are read before they are split",
        terms,
        FILE,
        "stages + stage * S::SIZE);\n        __syncthreads();",
        "stages + stage * S::SIZE);",
    ),
    Fault("elements are not split", terms, FILE, "split_stage<S, ROWS>(stages + stage * S::SIZE);", ";"),
    Fault("x behind its end", whole_bytes, FILE, "x_piece() * S::COLUMNS_PER_PIECE < extents.k", "x_piece() >= 0"),
    Fault("weights behind their last row", whole_bytes, FILE, "valid && i * CODE_ROWS < code_rows", "valid"),
    Fault("rows of x behind the last one", whole_bytes, FILE, "valid && i * X_ROWS < x_rows", "valid"),
    Fault("codes keep their places", nibbles, FILE, "(code_piece() ^ S::code_swap(code_row()))", "code_piece()"),
    Fault("x keeps its places", nibbles, FILE, "(x_piece() ^ S::x_swap(x_row()))", "x_piece()"),
    Fault("chunks in another order", terms, FILE, "S::turn(c) * S::TERMS ^ S::x_swap(g)", "S::x_swap(g)"),
    Fault("scales of the first tile", whole_bytes, FILE, "next.start(following, warp_n", "next.start(begin, warp_n"),
    Fault(
        "parameters of the same step", nibbles, FILE, "fetch_params(same ? part + 1 : 0, 0);", "fetch_params(part, 0);"
    ),
    Fault("parameters of the last tile", nibbles, FILE, "if (!same) next.start(", "if (false) next.start("),
    Fault("sums of the last tile", whole_bytes, FILE, "memset(sum, 0, sizeof(sum));"),
    Fault("half of the columns", nibbles, FILE, "if (w < S::WARPS_K - 1) sum[j][i][e] += at(j, i, e);"),
    Fault(
        "sums are replaced before they are read", whole_bytes, FILE, "__syncthreads();  // the last sums have been read"
    ),
    Fault("partial sums of one slot", nibbles, FILE, "2 * block + (block == first_block)", "block"),
    Fault("the first block to arrive adds", nibbles, FILE, "if (before != others) return;", "if (before != 0) return;"),
    Fault("sums of other blocks are read before they are there", clustered, FILE, "stores->wait();"),
    Fault("sums for blocks that do not expect them yet", clustered, FILE, "wait_for_cluster();"),
    Fault("a row too few is expected", clustered, FILE, "own_rows * blocks * 32", "(own_rows * blocks - 1) * 32"),
    Fault("all blocks leave sums in one place", clustered, FILE, "* blocks + rank) * 32", "* blocks) * 32"),
    Fault("rows of the first block", clustered, FILE, "(own << shift) + rank", "(own << shift)"),
    Fault(
        "sums of the last block are left out",
        nibbles,
        FILE,
        "if (block + b > last_block) break;",
        "if (block + b >= last_block) break;",
    ),
]


@pytest.mark.drawn(16)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_noticed(fault: Fault) -> None:
    is_noticed(fault)
