"""The work of a plan's step: multiply-adds, and steps that depend on each other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod, sqrt

from bench.kernels.launches import Launch
from ovgpu.runtime.plan import Operand, PlanStep

CONVOLUTIONS = ("Convolution", "GroupConvolution")
DECONVOLUTIONS = ("ConvolutionBackpropData", "GroupConvolutionBackpropData")
SEQUENCES = ("LSTMSequence", "GRUSequence", "RNNSequence", "AUGRUSequence")
CELLS = ("LSTMCell", "GRUCell", "RNNCell", "AUGRUCell")
TILE_ROWS = 16  # of mma.m16n8k16
TILE_COLUMNS = 8
PRODUCT_TILE = 128  # rows of the weights, of product_tiles.cu
ATTENTION_WARPS = 4  # of a block of attend_mma


def multiply_adds(step: PlanStep) -> float:
    """Return the multiply-adds that a product, convolution, attention or recurrent layer takes; 0 for other steps."""
    shapes = [() if x is None else _shape(x) for x in step.inputs]
    out = _shape(step.outputs[0]) if step.outputs else ()
    name = step.op.removesuffix("WithEpilogue")
    if name == "MatMulWithPrologue":  # the matrix comes first
        return prod(out[:-1]) * _weights(step.inputs[0], out)
    if "MatMul" in name and len(shapes) > 1:
        # a [B, M, K] and b [B, K, N] have B*M*K and B*K*N elements: K follows, whatever is transposed.
        a, b = shapes[:2]
        batch = prod(b[:-2])
        return prod(out) * sqrt(prod(a) * _weights(step.inputs[1], a) / max(prod(out) * batch, 1))
    if name in CONVOLUTIONS:
        return prod(out) * prod(shapes[1]) / out[1]
    if name in DECONVOLUTIONS:
        return prod(shapes[0]) * prod(shapes[1]) / shapes[0][1]
    if "Attention" in name:
        return _attention(step, shapes)
    if name in SEQUENCES or name in CELLS:
        return _recurrent(step, shapes)
    return 0.0


def _weights(matrix: Operand | None, other: Sequence[int]) -> int:
    """Return the number of elements of a product's matrix. Codes of 4 bits are a vector of bytes, longer than any row
    of the ``other`` array."""
    assert matrix is not None
    shape = _shape(matrix)
    return 2 * shape[0] if len(shape) == 1 and shape[0] > other[-1] and matrix.type.size == 1 else prod(shape)


def tiles(step: PlanStep, rows: int, columns: int) -> int:
    """Return the number of tiles of a step's result: of a matrix [M, N], or of positions by channels."""
    out = _shape(step.outputs[0])
    if "Convolution" in step.op:
        return -(-prod(out) // out[1] // rows) * -(-out[1] // columns)
    return -(-prod(out[:-1]) // rows) * -(-out[-1] // columns)


def _attention(step: PlanStep, shapes: list[tuple[int, ...]]) -> float:
    """Return two products per query and key. Caches are read up to their length, which the step's bytes tell."""
    queries, keys, values = (shapes[i] for i in _attended(step))
    sizes = sum(x.nbytes or 0 for x in step.inputs if x is not None)
    length = keys[-2] * min(1.0, step.bytes_read / sizes if sizes else 1.0)
    return prod(queries[:-1]) * length * (queries[-1] + values[-1])


def _attended(step: PlanStep) -> tuple[int, int, int]:
    """Return the numbers of the inputs that are queries, keys and values of an attention."""
    return (0, 5, 6) if step.op == "RotaryAttention" else (0, 1, 2)


def unmasked(step: PlanStep, kernels: Sequence[str]) -> float:
    """Return the share of the products that attention computes: tiles that a causal mask hides are skipped."""
    if not any("CAUSAL" in kernel or kernel.startswith("mark_tiles") for kernel in kernels):
        return 1.0
    queries, keys = (_shape(x)[-2] for x in step.inputs[:2] if x is not None)
    return (keys - (queries - 1) / 2) / keys if keys >= queries else 0.5


def _recurrent(step: PlanStep, shapes: list[tuple[int, ...]]) -> float:
    """Return the multiply-adds by the recurrent weights, the largest array but one that has three axes or two."""
    hidden = shapes[1][-1]
    weights = [prod(shape) for shape in shapes[2:] if len(shape) in (2, 3) and shape[-1] == hidden]
    return prod(shapes[0][:-1]) * (weights[-1] if weights else 0)


def projection(step: PlanStep) -> float:
    """Return the multiply-adds of a sequence's inputs by their weights, which a library computes; 0 for other steps."""
    x = step.inputs[0] if step.inputs else None
    if step.op not in SEQUENCES or x is None:
        return 0.0
    shape = _shape(x)
    arrays = [_shape(w) for w in step.inputs[1:] if w is not None]
    weights = [w for w in arrays if len(w) == 3 and w[1] > 2 and w[2] == shape[-1]]  # states have one or two directions
    return prod(shape[:-1]) * prod(weights[0]) if weights else 0.0


def sequences(step: PlanStep, launch: Launch) -> int:
    """Return how many times a step a warp of `recurrent` goes through its main loop, if it keeps its weights in
    registers: once for each of its sequences. 0 for other kernels."""
    arguments = template_arguments(launch.name)
    if not launch.name.startswith("recurrent<") or arguments[4] == "0" or step.inputs[0] is None:
        return 0
    return -(-_shape(step.inputs[0])[0] // (launch.grid[2] * int(arguments[5])))


def layout_changes(step: PlanStep) -> int:
    """Return the arrays whose layout cuDNN changes for a convolution on tensor cores: none if channels are adjacent,
    which the weights show, else both operands and the result."""
    x, weights = (_shape(operand) for operand in step.inputs[:2])  # type: ignore[arg-type]
    return 3 if weights[1] == x[1] and prod(weights[2:]) > 1 else 0


def dependent_steps(step: PlanStep) -> int:
    """Return the steps of a sequence, each of which waits for the one before; 1 for other steps."""
    if step.op not in SEQUENCES or step.inputs[0] is None:
        return 1
    return _shape(step.inputs[0])[1]


def padding(step: PlanStep, launch: Launch) -> float:
    """Return by which factor tiles of tensor cores exceed the rows of a product or the queries of an attention."""
    if _groups_heads(launch):
        return launch.blocks // _splits(launch) * _block_queries(launch) / prod(_shape(step.outputs[0])[:-1])
    if launch.name.startswith("implicit_gemm"):
        rows, columns = _tile(launch)
        return tiles(step, rows, columns) * rows * columns / prod(_shape(step.outputs[0]))
    found = _rows(step, launch)
    if found is None:
        return 1.0
    count, tile = found
    return -(-count // tile) * tile / max(count, 1)


def _rows(step: PlanStep, launch: Launch) -> tuple[int, int] | None:
    """Return the number of rows and the rows of a tile."""
    out = _shape(step.outputs[0])
    if launch.name.startswith("product_mma"):  # rows of x are the tile's columns
        return prod(out[:-1]), TILE_COLUMNS
    if launch.name.startswith("product_tiles"):
        return prod(out[:-1]), int(template_arguments(launch.name)[5])
    if launch.name.startswith("attend_stream"):
        arguments = template_arguments(launch.name)
        queries, keys = (_shape(step.inputs[i]) for i in _attended(step)[:2])  # type: ignore[arg-type]
        return prod(queries[:-1]) // max(prod(keys[:-2]), 1), max(int(arguments[4]), TILE_ROWS)
    if launch.name.startswith("attend_mma"):
        return out[-2], _block_queries(launch) // ATTENTION_WARPS
    return None


def _block_queries(launch: Launch) -> int:
    """Return the queries of a block of attend_mma."""
    return ATTENTION_WARPS * TILE_ROWS * int(template_arguments(launch.name)[4])


def _tile(launch: Launch) -> tuple[int, int]:
    """Return the pixels and channels of a tile of implicit_gemm.cu."""
    arguments = template_arguments(launch.name)
    return int(arguments[3]), int(arguments[4])


def nbytes(step: PlanStep, launch: Launch) -> float:
    """Return the bytes of the arrays of a launch. Joining the parts of a TopK reads one element of x per result."""
    x, values = step.inputs[0], step.outputs[0] if step.outputs else None
    if launch.name.startswith("topk_join") and x is not None and values is not None:
        return launch.nbytes - (x.nbytes or 0) + (values.nbytes or 0)
    if step.op == "RotaryAttention" and launch.name.startswith("rotate"):  # the caches get the new tokens alone
        return 2 * sum(operand.nbytes or 0 for operand in step.inputs[:3] if operand is not None)
    return launch.nbytes


def reread(step: PlanStep, launch: Launch) -> float:
    """Return the bytes that blocks read once more from L2: the rows of x of each block of a product, the operands of
    tiles and their partial sums, and the keys and values of each block of queries."""
    arguments = template_arguments(launch.name)
    out, x = _shape(step.outputs[0]), step.inputs[0]
    rows, matrix = prod(out[:-1]), 1 if step.op != "MatMulWithPrologue" else 0
    if launch.name.startswith("product_mma"):
        depth = _weights(step.inputs[matrix], out) / out[-1] / (2 if arguments[-1] == "Gate" else 1)
        each = min(rows, int(arguments[5])) * depth * step.outputs[0].type.size
        return max(launch.blocks * each - rows * depth * step.outputs[0].type.size, 0.0)
    if launch.name.startswith("product_tiles"):
        codes, scales = step.inputs[matrix : matrix + 2]
        assert codes is not None and scales is not None
        tile, columns = int(arguments[5]), _shape(scales)[0]  # a gate, which follows, takes two columns for each of out
        across, down = -(-rows // tile), -(-columns // PRODUCT_TILE)
        depth = _weights(codes, out) / columns
        operands = rows * depth * step.outputs[0].type.size * (down - 1) + (codes.nbytes or 0) * (across - 1)
        in_memory = launch.blocks > across * down and len(arguments) < 10  # sums of parts, not in a cluster
        sums = 8 * launch.blocks * tile * PRODUCT_TILE if in_memory else 0
        return float(operands + sums)
    if launch.name.startswith("implicit_gemm") and x is not None:  # every tap reads x again
        rows, columns = _tile(launch)
        depth = multiply_adds(step) / prod(out)
        count = tiles(step, rows, columns)
        sums = 8 * launch.blocks * rows * columns if "MEMORY" in template_arguments(launch.name) else 0
        return (
            count * (rows + columns) * depth * x.type.size
            + sums
            - sum(operand.nbytes or 0 for operand in step.inputs[:2] if operand is not None)
        )
    if launch.name.startswith(("attend_mma", "attend_stream")) and x is not None:
        keys, values = (_shape(step.inputs[i]) for i in _attended(step)[1:])  # type: ignore[arg-type]
        each = keys[-2] * (keys[-1] + values[-1]) * x.type.size * unmasked(step, [launch.name])
        in_memory = template_arguments(launch.name)[10] == "IN_MEMORY"
        parts = 8 * launch.blocks * _block_queries(launch) * values[-1] if in_memory else 0  # written and read
        return max(launch.blocks // _splits(launch) - prod(keys[:-2]), 0) * each + parts
    return 0.0


def products(launch: Launch) -> int:
    """Return how many products a kernel takes for each multiply-add: three in TF32 for one of f32, else one."""
    return 3 if launch.name.startswith("recurrent_mma<") and template_arguments(launch.name)[-1] == "true" else 1


def _groups_heads(launch: Launch) -> bool:
    """Return whether rows of several heads may share a tile of attend_mma."""
    return launch.name.startswith("attend_mma") and template_arguments(launch.name)[10] != "WHOLE"


def _splits(launch: Launch) -> int:
    """Return how many blocks of an attention share the keys of their queries."""
    return launch.grid[not _in_cluster(launch)] if len(launch.grid) > 1 else 1


def _in_cluster(launch: Launch) -> bool:
    """Return whether blocks of an attention that share the keys of their queries are a cluster."""
    return template_arguments(launch.name)[10] in ("IN_CLUSTER", "true")


def template_arguments(name: str) -> list[str]:
    """Return the template arguments of an instance whose arguments are not templates of several arguments."""
    found = re.search(r"<(.*)>", name)
    return [part.strip() for part in found[1].split(",")] if found else []


def _shape(operand: Operand) -> tuple[int, ...]:
    return tuple(extent or 1 for extent in operand.shape)


def merges(launch: Launch) -> bool:
    """Return whether the last block of a launch goes on behind an exit that all others take, or behind one that only
    blocks without work take.

    Kernels that split a dimension over blocks do so along the second axis of the grid. `implicit_gemm` has instances
    that do not split, without such an exit.
    """
    return launch.name.startswith("implicit_gemm") or (len(launch.grid) > 1 and launch.grid[1] > 1)
