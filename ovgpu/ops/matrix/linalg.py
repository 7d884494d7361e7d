"""Linear algebra beyond MatMul: Inverse, GroupedMatMul."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Arrays, Op, op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.shapes import check_integers
from ovgpu.ops.base.storage import is_plain
from ovgpu.ops.base.view import equal
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.matrix.matmul import TILE, MatMul
from ovgpu.spec import Shape, Spec
from ovgpu.symbolic import Int, same

SHARED_BYTES = 48 << 10  # shared memory of a block; it holds the matrix to invert
THREADS = 256


@op("Inverse", "opset14", "matrix/inverse-14")
class Inverse(Op):
    """``x [..., n, n] -> [..., n, n]``: the inverses of square matrices, transposed if ``adjoint``.

    f64 is computed in f64. A singular matrix is an error on the CPU, and gives infinities on a device.

    >>> inverse([[2.0, 1], [1, 1]])
    [[1.0, -1.0], [-1.0, 2.0]]
    """

    adjoint: bool = False

    layout = "dense"

    def infer_specs(self, x: Spec) -> tuple[Spec, ...]:
        if not (x.type.is_dynamic() or x.type.is_real()):
            raise OpError(f"element type {x.type.get_type_name()} is not a floating-point type")
        if x.shape is not None:
            if len(x.shape) < 2:
                raise OpError(f"rank {len(x.shape)} is no matrix")
            same(x.shape[-2], x.shape[-1], "a matrix of {0} rows and {1} columns is not square")
        return (Spec(x.type, x.shape),)

    def evaluate(self, xp: Adapter, x: Array) -> tuple[Array, ...]:
        if not x.size:
            return (x.copy(),)
        try:
            return (xp.linalg.inv(x.swapaxes(-1, -2) if self.adjoint else x),)
        except np.linalg.LinAlgError:
            raise OpError("a matrix has no inverse") from None

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, out = inputs[0], outputs[0]
        n, count = x.shape[-1], prod(x.shape[:-2])
        matrix_bytes = n * n * max(4, x.itemsize)
        if not is_plain(x.dtype) or matrix_bytes > SHARED_BYTES - 8 * n - 64 or count >= 2**31:
            return NotImplemented
        if x.size:
            k.kernel(
                "linalg.cu",
                f"inverse<{k.c_type(x.dtype)}>",
                (count,),
                (THREADS,),
                (x, out, np.int32(n), np.bool_(self.adjoint)),
                matrix_bytes + 4 * n,
            )
        return None


@op("GroupedMatMul", "opset17", "matrix/grouped-matmul-17")
class GroupedMatMul(Op):
    """Products of groups of rows, each with its own matrix; group ``g`` ends before row ``ends[g]``.

    ``a [T, K], b [G, N, K], ends -> [T, N]``: each row is multiplied by the matrix of its group; rows without a group
    give 0. ``a [G, M, K], b [G, N, K] -> [G, M, N]``: all groups have the same size.
    ``a [K, T], b [T, N], ends -> [G, K, N]``: the sums are over the rows of a group. The specification has
    ``b [G, K, N]``, OpenVINO takes only ``[G, N, K]``: both are accepted, as ``[G, N, K]`` if the extents allow either.
    A group whose end lies before the end of the previous group has no rows. An end past the last row counts as the
    number of rows.

    >>> grouped_matmul([[1.0], [2], [3]], [[[10.0]], [[100]]], i32([1, 3]))
    [[10.0], [200.0], [300.0]]
    """

    layout = "dense"

    def infer_specs(self, a: Spec, b: Spec, ends: Spec | None = None) -> tuple[Spec, ...]:
        dtype = merge_types((a, b))
        if ends is not None:
            check_integers(ends, "the ends")
        if a.shape is None or b.shape is None:
            return (Spec(dtype, None),)
        ranks = (len(a.shape), len(b.shape))
        if ranks not in ((2, 3), (3, 3), (2, 2)):
            raise OpError(f"factors of ranks {ranks[0]} and {ranks[1]} have no meaning")
        if (ends is None) != (ranks == (3, 3)):
            raise OpError(
                f"factors of ranks {ranks[0]} and {ranks[1]} "
                + ("need the ends of the groups" if ends is None else "have no ends of groups")
            )
        return (Spec(dtype, self._shape(a.shape, b.shape, None if ends is None else ends.shape)),)

    def _shape(self, a: Sequence[Int], b: Sequence[Int], ends: Shape) -> tuple[Int, ...] | None:
        if len(b) == 2:
            same(a[1], b[0], "there are {0} columns on the left and {1} rows on the right")
            return None if ends is None else (ends[0], a[0], b[1])
        columns, rows = (1, 2) if is_transposed(a, b) else (2, 1)
        same(a[-1], b[rows], "matrices of {0} columns and {1} rows do not multiply")
        if len(a) == 2 and ends is not None:
            same(ends[0], b[0], "there are {0} ends of groups and {1} matrices")
        if len(a) == 3:
            same(a[0], b[0], "there are {0} and {1} groups")
        return (*a[:-1], b[columns])

    def evaluate(self, xp: Adapter, a: Array, b: Array, ends: Array | None = None) -> tuple[Array, ...]:
        product = MatMul().evaluate
        if b.ndim == 3 and is_transposed(a.shape, b.shape):
            b = b.swapaxes(-1, -2)
        if ends is None:
            return product(xp, a, b)
        row_count = a.shape[1 if b.ndim == 2 else 0]
        bounds = accumulate((min(int(end), row_count) for end in ends), max, initial=0)
        groups = [slice(*pair) for pair in pairwise(bounds)]
        if b.ndim == 2:
            sums = [product(xp, a[:, rows], b[rows])[0] for rows in groups]
            return (xp.stack(sums) if sums else xp.zeros((0, a.shape[0], b.shape[1]), a.dtype),)
        out = xp.zeros((a.shape[0], b.shape[2]), a.dtype)
        for rows, matrix in zip(groups, b):
            out[rows] = product(xp, a[rows], matrix)[0]
        return (out,)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (a, b, ends), out = (*inputs, None)[:3], outputs[0]
        transposed = b.ndim == 3 and is_transposed(a.shape, b.shape)
        if ends is None:
            return MatMul(transpose_b=transposed).cuda(k, (a, b), outputs, workspace)
        if not is_plain(a.dtype):
            return NotImplemented
        types = f"{k.c_type(a.dtype)}, {k.c_type(ends.dtype)}"
        across, count = -(-out.shape[-1] // TILE), np.int64(ends.size)
        if b.ndim == 2:
            down = -(-out.shape[1] // TILE)
            name, grid = "grouped_sums", ends.size * across * down
            sizes = out.shape[1], out.shape[2], a.shape[1]
        else:
            down = -(-a.shape[0] // TILE) + ends.size + 1  # each group may add a partial tile
            name, grid = "grouped_rows", across * down
            sizes = a.shape[0], out.shape[1], a.shape[1]
        if grid >= 2**31:  # CUDA's limit
            return NotImplemented
        if out.size:
            flags = (np.bool_(transposed),) if b.ndim == 3 else ()
            k.kernel(
                "linalg.cu",
                f"{name}<{types}>",
                (grid,),
                (TILE, TILE),
                (a, b, ends, out, count, *map(np.int64, sizes), *flags),
            )
        return None


def is_transposed(a: Sequence[Int], b: Sequence[Int]) -> bool:
    """Return whether ``b`` is [G, N, K], with the contracted axis last, for factors of these shapes."""
    return equal(a[-1], b[2]) or not equal(a[-1], b[1])
