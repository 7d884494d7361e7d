"""Launch shape of `product_mma.cu`: how warps and blocks share a product of few rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ovgpu.ops.base.op import Array
from ovgpu.ops.fused._packed import Packed

MAX_ROWS = 64  # rows of x
TILE = 16  # rows of the weights per warp; as in product_mma.cu
CHUNK = 8  # 16-bit elements in 16 bytes
LANES, LANES_PER_ROW = 32, 4  # lanes of a warp, and lanes that share a row of codes
PITCH = 20  # floats between columns of partial sums; as in product_mma.cu
WARPS, MAX_WARPS = 8, 16  # usual number of warps per block, and the most if many warps split K
ROWS = (1, 4, 8, 16, 32)  # rows of x per block
MIN_STEPS = 2  # least steps per warp; if there are fewer, fewer warps split K
SHARED_BYTES = 64 << 10  # shared memory for x at most
BLOCK_SHARED_BYTES = 96 << 10  # shared memory per block at most; capability 9.0 then runs two blocks at a time, 8.6 one


@dataclass(frozen=True)
class Form:
    """Launch shape of the kernel.

    ``words``: words of codes per lane and step; ``rows``: rows of x per block; ``grouped``: True if scales or zero
    points vary along K; ``along_k``, ``along_n``: warps along K and N; ``steps``: steps of each warp for a group of
    rows of the weights; ``rounds``: steps for which x is in shared memory at a time; ``terms``: 16-bit numbers per
    element of x; ``parts``: rows of the weights per column of the result.
    """

    words: int
    rows: int
    grouped: bool
    along_k: int
    along_n: int
    steps: int
    rounds: int
    terms: int
    parts: int

    @property
    def warps(self) -> int:
        return self.along_k * self.along_n

    def staged(self, weights: Packed) -> int:
        """Return the number of elements of a row of x in shared memory at a time."""
        return min(self.rounds, self.steps) * self.along_k * step_of(weights, self.words)

    def shared(self, weights: Packed) -> int:
        """Return the bytes of shared memory of a block: for copied codes, partial sums, and x."""
        return _fixed(self.words, self.rows, self.warps) + self.staged(weights) * _padded(
            weights, self.words, self.rows, self.terms
        )

    def groups(self, columns: int) -> int:
        """Return the number of groups of ``columns`` that blocks take at once."""
        return -(-columns // (TILE * self.along_n // self.parts))

    def blocks(self, groups: int, others: int, multiprocessors: int) -> int:
        """Return the number of blocks for ``groups`` of columns; ``others`` is the number of matrices times that of the
        parts of x. Where a multiprocessor would get more than `MAX_WARPS` warps, blocks take several groups: each
        stages x once, and blocks of the next launch fit beside them."""
        at_once = multiprocessors * MAX_WARPS // self.warps
        return -(-groups // max(round(groups * others / at_once), 1))


def step_of(weights: Packed, words: int) -> int:
    """Return the number of codes of a row that a warp takes in a step."""
    return LANES_PER_ROW * words * (32 // weights.dtype.bitwidth)


def steps_ahead(rows: int) -> int:
    """Return how many steps before their use codes are copied, for ``rows`` rows of x per block."""
    return 4 if rows == 1 else 2


def form(
    weights: Packed,
    m: int,
    multiprocessors: int,
    addresses: Sequence[int],
    quant_params: Sequence[Array | None],
    terms: int = 1,
    whole: bool = False,
    parts: int = 1,
) -> Form | None:
    """Return the launch shape for ``m`` rows of x, None where the kernel does not apply.

    ``addresses`` are the addresses of x and of the codes; ``quant_params`` are the scale and the zero point; see `Form`
    for ``terms`` and ``parts``. ``whole``: True if shared memory has to hold all of x."""
    if not 0 < m <= MAX_ROWS:
        return None
    (n, k), bits = weights.shape, weights.dtype.bitwidth
    groups = [1 if values is None else values.shape[1] for values in quant_params]
    words = [
        w
        for w in (4, 2, 1)
        if k % (w * 32 // bits) == 0
        and addresses[1] % (4 * w) == 0
        and w * 32 // bits >= CHUNK
        and not any(g > 1 and k // g % step_of(weights, w) for g in groups)
    ]
    if k % CHUNK or addresses[0] % 16 or not words:
        return None
    rows = next(r for r in ROWS if r >= min(m, ROWS[-1]))
    tiles = -(-n // TILE) * weights.matrices * -(-m // rows)
    most = MAX_WARPS // 2 if terms > 1 else MAX_WARPS
    shape = _divided(
        weights, words[0], rows, max(groups) > 1, tiles / multiprocessors, terms, most // parts, parts, whole
    )
    return shape if shape.rounds and (shape.rounds == shape.steps or not whole) else None


def _divided(
    weights: Packed, words: int, rows: int, grouped: bool, tiles: float, terms: int, warps: int, parts: int, whole: bool
) -> Form:
    """Return the launch shape that splits K over up to ``warps`` warps (split-K): as many as keep a multiprocessor busy
    that has ``tiles`` tiles of rows, but fewer if x would not fit into shared memory. The limits were measured on an
    H100 (`bench.gpu_layers`)."""
    step = step_of(weights, words)
    least, most, target = (4, warps, 16) if rows <= CHUNK else (1, 8 if rows <= 16 else 4, 8)
    along_k = least
    while along_k < most and tiles * along_k < target:
        along_k *= 2
    while along_k > 1 and along_k * MIN_STEPS > -(-weights.columns // step):
        along_k //= 2
    along_n = max(WARPS // along_k, parts)
    ahead, nbytes = steps_ahead(rows), _padded(weights, words, rows, terms)
    while True:
        steps = -(-weights.columns // (step * along_k))
        free = min(SHARED_BYTES, BLOCK_SHARED_BYTES - _fixed(words, rows, along_k * along_n))
        fitting_steps = free // (nbytes * step * along_k)
        rounds = steps if steps <= fitting_steps else fitting_steps // ahead * ahead
        if along_k == 1 or rounds == steps or (rounds and not whole):
            return Form(words, rows, grouped, along_k, along_n, steps, rounds, terms, parts)
        along_k //= 2


def _fixed(words: int, rows: int, warps: int) -> int:
    """Return the bytes of shared memory for copied codes and partial sums."""
    return warps * (steps_ahead(rows) * 2 * LANES * 4 * words + 4 * rows * PITCH)


def _padded(weights: Packed, words: int, rows: int, terms: int) -> int:
    """Return the bytes of shared memory of a column of x, with padding, as StagedRows in product_input.cuh."""
    chunks = step_of(weights, words) // (LANES_PER_ROW * CHUNK)
    padding = 0 if rows == 1 else 2 if chunks == 4 else 4
    return (terms * rows * 4 + padding) * 16 // (LANES_PER_ROW * CHUNK)
