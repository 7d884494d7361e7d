"""Faults put into attention on tensor cores: each is caught by wrong results or by the device's checks."""

from __future__ import annotations

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.attention import _tensor_cores
from tests.kernels.broken import Fault, is_noticed
from tests.kernels.recorded import kernel_name
from tests.kernels.test_attention import attend
from tests.kernels.test_attention_codes import HEADS, run
from tests.kernels.test_attention_mma import MASKS, attend_masked
from tests.kernels.test_attention_parts import attend_sinks
from tests.kernels.test_kv_cache import check, rotary_attention

FILE = "attention_mma.cu"
TILES = "attention_tiles.cuh"
STREAM = "attention_stream.cu"
CLUSTER = "attention_cluster.cuh"
KEYS = "__syncthreads();  // keys and values have arrived, and the previous ones have been read"
ROUND = "round_staged<KEYS, DEPTH>"
MASK = "__syncthreads();  // the mask has arrived"


def many(causal: bool = False) -> None:
    backend = CudaBackend()
    with backend.stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(_tensor_cores, "STREAMED_WIDTH", 0)
        attend(backend, (1, 140 if causal else 40, 16), (1, 140, 16), (1, 140, 16), kind=np.float16, causal=causal)


def in_tf32() -> None:
    backend = CudaBackend(tf32=True)
    with backend.stream:
        attend(backend, (1, 40, 16), (1, 140, 16), (1, 140, 16))


def causal() -> None:
    many(True)


def marked() -> None:
    """Attend with an additive mask as exported decoders have it, which hides all keys of the first query."""
    mask = np.where(np.arange(264) > np.arange(264)[:, None], -65504, 0).astype(np.float16)
    mask[0] = -65504
    backend = CudaBackend()
    with backend.stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(_tensor_cores, "STREAMED_WIDTH", 0)
        attend_masked(backend, mask)


def parted(clusters: bool = False) -> None:
    """Attend with keys in parts, which the last warps or clusters merge, and heads that are rows of one head."""
    backend = CudaBackend()
    with backend.stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Launcher, "multiprocessors", 4)
        patch.setattr(Launcher, "has_clusters", clusters)
        attend(backend, (1, 20, 3, 16), (1, 530, 1, 16), (1, 530, 1, 16), (1, 3, 1, 530), kind=np.float16, swapped=True)
        attend_sinks(backend)


def clustered() -> None:
    parted(True)


def hidden() -> None:
    """Attend in clusters, some of whose blocks have hidden keys alone."""
    backend = CudaBackend()
    with backend.stream, pytest.MonkeyPatch.context() as patch, np.errstate(invalid="ignore"):
        patch.setattr(Launcher, "multiprocessors", 16)
        attend_masked(backend, MASKS["infinite"])


def whole() -> None:
    """Attend with all keys in each block, and heads that are rows of one tile."""
    backend = CudaBackend()
    with backend.stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Launcher, "multiprocessors", 1)
        (call,) = attend(
            backend,
            (1, 20, 3, 16),
            (1, 130, 1, 16),
            (1, 130, 1, 16),
            (1, 3, 1, 130),
            sink=(1, 3, 1, 1),
            kind=np.float16,
            swapped=True,
        )
        assert kernel_name(call).endswith(", GROUPED>")


def few(clusters: bool = False) -> None:
    """Attend with few queries: keys are split, and the last block or the cluster merges the splits."""
    backend = CudaBackend()
    with backend.stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Launcher, "has_clusters", clusters)
        keys = (1, 2, 1, 1000, 40)
        attend(backend, (1, 2, 4, 1, 40), keys, keys, (1, 1, 1, 1, 1000), kind=np.float16)


def few_clustered() -> None:
    few(True)


def grouped() -> None:
    """Attend with few queries of heads that share their keys: they are rows of one tile."""
    backend = CudaBackend()
    with backend.stream:
        keys = (1, 140, 1, 32)
        attend(backend, (1, 5, 3, 32), keys, keys, (1, 1, 5, 140), sink=(1, 3, 1, 1), kind=np.float16, swapped=True)


def appending() -> None:
    """Attend to a key that the kernel rotates and appends."""
    backend = CudaBackend()
    op, shapes, scratch = rotary_attention(batch=1)
    with backend.stream:
        check(backend, op, shapes, "f16", 1, 6e-3, scratch)


def coded(streamed: bool = True) -> None:
    """Attend with codes as results, which factors multiply before."""
    backend = CudaBackend()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_tensor_cores, "STREAMED_WIDTH", 64 if streamed else 0)
        run(backend, **HEADS, factor=True, zero=5, limits=(-10, 15))


def coded_by_tiles() -> None:
    coded(False)


FAULTS = [
    Fault(
        "queries of one head",
        parted,
        FILE,
        "offset<false>(first_query + r, stride.q, heads.q)",
        "offset<true>(first_query + r, stride.q, heads.q)",
    ),
    Fault("masks of one head", parted, FILE, "offset<ONE_HEAD>(first_query", "offset<true>(first_query"),
    Fault("sinks of one head", parted, FILE, "offset<false>(at, stride.sink", "offset<true>(at, stride.sink"),
    Fault("results of one head", parted, FILE, "offset<false>(at, stride.out", "offset<true>(at, stride.out"),
    Fault(
        "sinks of one head in all keys", whole, FILE, "offset<ONE_HEAD>(r, stride.sink", "offset<true>(r, stride.sink"
    ),
    Fault(
        "results of one head in all keys", whole, FILE, "offset<ONE_HEAD>(r, stride.out", "offset<true>(r, stride.out"
    ),
    Fault("each part has the first keys", parted, FILE, "part, begin, visible);", "part, begin, visible), begin = 0;"),
    Fault("all parts in one place", parted, FILE, "static_cast<int>(part) * ROWS + r", "r"),
    Fault("the first warp to arrive merges", parted, FILE, "before, 0) != others", "before, 0) != 0"),
    Fault(
        "warps are counted together",
        parted,
        FILE,
        "arrived + block * WARPS + warp, others",
        "arrived + block * WARPS, others",
    ),
    Fault(
        "sums of different maxima",
        parted,
        TILES,
        "const float old = exp2_approximate(highest - shift)",
        "const float old = 1.f",
    ),
    Fault("weights of the last part", parted, TILES, "total = total * old + state[s].y * own;", "total = state[s].y;"),
    Fault(
        "codes of other columns",
        coded,
        STREAM,
        "convert(x.y * rescale, factor[0][1])",
        "convert(x.y * rescale, factor[0][0])",
    ),
    Fault(
        "factors of the first head",
        coded,
        STREAM,
        "convert.select_batch(batch, block / query_blocks)",
        "convert.select_batch(batch, I(0))",
    ),
    Fault(
        "codes of other columns, by tiles",
        coded_by_tiles,
        "attention_mma.cuh",
        "convert(y, factor[1])",
        "convert(y, factor[0])",
    ),
    Fault("factors of the first head, by tiles", coded_by_tiles, FILE, "convert.select_batch(batch, head);", ";"),
    Fault("codes beyond the largest", coded, "quantizer.cuh", ", high)", ", high + 1)"),
    Fault("new rows not waited for", appending, STREAM, "width);\n      __syncthreads();", "width);"),
    Fault(
        "new rows in another place",
        appending,
        STREAM,
        "key_rows.offset(known, true, stride.k",
        "key_rows.offset(end, true, stride.k",
    ),
    Fault("new rows not read", appending, STREAM, "load_row(start, known);"),
    Fault("queries not rotated", appending, STREAM, "fresh.rotate(query, static_cast<I>(quad));", ";"),
    Fault(
        "factors of other elements",
        appending,
        STREAM,
        "i * 32 + quad * CHUNK<T>;\n      const T* const",
        "i * 32;\n      const T* const",
    ),
    Fault("factors of the first half", appending, STREAM, "float(cos[i + cos_second])", "float(cos[i])"),
    Fault("rows of another head", appending, STREAM, "fresh.key += offset(batch, at, 6)", "fresh.key += 0"),
    Fault("keys not waited for", many, FILE, f"wait_copies();\n    {ROUND}", ROUND),
    Fault("keys not waited for in TF32", in_tf32, FILE, f"wait_copies();\n    {ROUND}", ROUND),
    Fault("weights of other keys in TF32", in_tf32, TILES, "weight[m][n][i % 2 * 2 + i / 2]", "weight[m][n][i]"),
    Fault("values of other keys in TF32", in_tf32, FILE, "lane % 4 * 2, lane / 4)", "lane % 4, lane / 4)"),
    Fault(
        "elements in other places",
        many,
        TILES,
        "to += Staged<T, N>::index(row, column);\n#pragma unroll(V",
        "to += row * N + column;\n#pragma unroll(V",
    ),
    Fault("columns of another row", in_tf32, TILES, "columns % GROUP", "0"),
    Fault("no barrier before keys are read", many, FILE, KEYS),
    Fault("mask not waited for", marked, FILE, f"wait_copies_but<1>();\n      {MASK}", MASK),
    Fault(
        "mask in the group of the next keys",
        marked,
        FILE,
        "vectored, mask_tile);\n      commit_copies();",
        "vectored, mask_tile);",
    ),
    Fault("no barrier before the mask is read", marked, FILE, MASK),
    Fault("marks of the last tiles", marked, FILE, "window.plain >> bit", "window.plain >> (bit + 1)"),
    Fault("tiles hidden from one strip", marked, "attention_marks.cuh", "seen == FULL)", "own == (ALL_HIDDEN & PART))"),
    Fault("rows that see nothing", marked, "attention_marks.cu", "visible   ? HIDDEN", "true ? HIDDEN"),
    Fault("keys behind the end", many, TILES, "row + r < rows && column + c < columns", "column + c < columns"),
    Fault("sum not rescaled", many, TILES, "[i % 2 * 2] *= rescale[i / 2][i % 2]", "[i % 2 * 2] *= 1.f"),
    Fault("weights of other keys", many, TILES, "weight[m][n + i / 2] + i % 2 * 2", "weight[m][n + i % 2] + i / 2 * 2"),
    Fault("keys beyond the diagonal", causal, FILE, "first_key + KEYS <= top + 1", "first_key + KEYS <= top + 16"),
    Fault("keys up to the diagonal", causal, FILE, "first_key < top + TILES * 16", "first_key < top"),
    Fault(
        "splits merged early", few, "attention.cuh", "arrived, splits - 1) == splits - 1", "arrived, splits - 1) == 0"
    ),
    Fault(
        "splits of one maximum", few, "attention.cuh", "maxima[i] = math::exp_fast(maxima[i] - shift)", "maxima[i] = 1"
    ),
    Fault("weights not waited for", few, "attention.cuh", "__syncthreads();\n  for (int first", "for (int first"),
    Fault("warps of one maximum", few, STREAM, "maximum[m][h] - softmax_shift(highest)", "0.f"),
    Fault("maxima of warps not waited for", few, STREAM, "__syncthreads();\n#pragma unroll", "#pragma unroll"),
    Fault(
        "sums of warps not waited for",
        few,
        STREAM,
        "__syncthreads();\n  if constexpr (SAVES_REGISTERS) found",
        "if constexpr (SAVES_REGISTERS) found",
    ),
    Fault("splits of one maximum in a cluster", few_clustered, CLUSTER, "exponential(state.x - lowered)", "1.f"),
    Fault("total of the last split of a cluster", few_clustered, CLUSTER, "total += weight", "total = weight"),
    Fault(
        "all splits of a cluster in one place",
        few_clustered,
        CLUSTER,
        "parts + blockIdx.x) * CHUNKS",
        "parts) * CHUNKS",
    ),
    Fault(
        "rows of another block of a cluster",
        few_clustered,
        CLUSTER,
        "row & ((1 << shift) - 1)",
        "(row + 1) & ((1 << shift) - 1)",
    ),
    Fault("sums of a cluster not waited for", few_clustered, CLUSTER, "    stores->wait();\n"),
    Fault("blocks of a cluster not waited for", clustered, FILE, "      cluster.ready();\n"),
    Fault("queries not waited for in a cluster", hidden, FILE, "wait_copies();    // those of q", "// those of q"),
    Fault("no arrival at the cluster", clustered, CLUSTER, "if (parts > 1) arrive_at_cluster<MEMORY>();"),
    Fault(
        "the arrival of one thread",
        clustered,
        CLUSTER,
        "if (parts > 1) arrive_at_cluster<MEMORY>();",
        "if (parts > 1 && threadIdx.x == 0) arrive_at_cluster<MEMORY>();",
    ),
    Fault(
        "stores expected after the arrival",
        clustered,
        CLUSTER,
        """    if (threadIdx.x == 0) stores->expect(own_rows * parts * CHUNKS * sizeof(uint4));
    if (parts > 1) arrive_at_cluster<MEMORY>();
""",
        """    if (parts > 1) arrive_at_cluster<MEMORY>();
    if (threadIdx.x == 0) stores->expect(own_rows * parts * CHUNKS * sizeof(uint4));
""",
    ),
    Fault("an arrival that releases nothing", clustered, FILE, "expect<REUSED>", "expect<UNTOUCHED>"),
    Fault("columns of another tile", clustered, FILE, "(n + lane % 2) * 2 + lane % 4 / 2", "n * 2 + lane % 4 / 2"),
    Fault(
        "queries of one head, streamed",
        grouped,
        STREAM,
        "q + heads.template offset<ONE_HEAD>(row",
        "q + heads.template offset<true>(row",
    ),
    Fault(
        "masks of one head, streamed",
        grouped,
        STREAM,
        "offset<ONE_HEAD>(row, stride.mask",
        "offset<true>(row, stride.mask",
    ),
    Fault(
        "sinks of one head, streamed",
        grouped,
        STREAM,
        "offset<ONE_HEAD>(found.first_query + row, stride.sink",
        "offset<true>(found.first_query + row, stride.sink",
    ),
    Fault(
        "results of one head, streamed",
        grouped,
        STREAM,
        "offset<ONE_HEAD>(found.first_query + row, stride.out",
        "offset<true>(found.first_query + row, stride.out",
    ),
    Fault(
        "values of other keys",
        few,
        STREAM,
        "restore<T>(value[4 * i + n][c]",
        "restore<T>(value[4 * i + (n ^ 1)][c]",
    ),
    Fault("keys of other tiles", few, STREAM, "at = first + 2 * n + group % 2", "at = start + n * 8 + group"),
]


@pytest.mark.drawn(32)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_noticed(fault: Fault) -> None:
    is_noticed(fault)
