"""Integer tensors whose elements contain the numbers of the rows, such as the flat indices of ``mask[rows, keys]``.

PyTorch's indexing by several tensors becomes a Gather from a flattened tensor, by ``row * keys + key``. Its assignment
to a slice becomes a ScatterNDUpdate of a flattened tensor, by indices taken from a Range over all elements. `Batch`
follows `RowNumbers` through the layers that compute such indices. They show that the layer stays within each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ovgpu.errors import OpError
from ovgpu.ops.arithmetic.arithmetic import Add, Multiply
from ovgpu.ops.base.view import equal
from ovgpu.ops.convert import Convert
from ovgpu.ops.movement.broadcast import _Broadcast
from ovgpu.ops.movement.gather import Gather
from ovgpu.ops.movement.movement import Transpose
from ovgpu.ops.movement.scatter import _ScatterND
from ovgpu.ops.shape.reshape import _Reshaping
from ovgpu.ops.shape.shape import Range
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, Sym, bounds

MOVING = (_Reshaping, _Broadcast, Transpose, Convert)


@dataclass(frozen=True)
class RowNumbers:
    """Elements ``row * step + i`` with ``0 <= i < below``, where ``row`` is the row to which the element belongs."""

    step: Int
    below: Int


def counted(op: Any, inputs: Sequence[Spec | None], size: Sym) -> RowNumbers | None:
    """Return the elements of a Range from 0 on in steps of 1: over the ``size`` rows of a batch, over equally many
    elements of each row, or over anything else.

    Return None for any other node.
    """
    if not isinstance(op, Range):
        return None
    start, stop, step = (
        None if spec is None or spec.ints() is None else spec.ints()[0]  # type: ignore[index]
        for spec in inputs
    )
    if stop is None or isinstance(start, Sym) or start != 0 or isinstance(step, Sym) or step != 1:
        return None
    elements = stop // size if isinstance(stop, Sym) else 0
    return RowNumbers(elements, elements) if equal(elements * size, stop) else RowNumbers(0, stop)


def computed(op: Any, operands: Sequence[RowNumbers | None], inputs: Sequence[Spec | None]) -> RowNumbers | None:
    """Return the elements of a node's result, or None if they are not known to have this form.

    Raises: OpError if the node computes something else with the numbers of rows.
    """
    x = operands[0]
    if isinstance(op, MOVING) and x is not None:
        return x
    if isinstance(op, (Add, Multiply)):
        a, b = [n if n is not None else _constant(spec) for n, spec in zip(operands, inputs)]
        if a is not None and b is not None:
            if isinstance(op, Add):
                return RowNumbers(a.step + b.step, a.below + b.below - 1)
            for factor, scaled in ((_factor(inputs[0]), b), (_factor(inputs[1]), a)):
                if factor is not None:
                    return RowNumbers(scaled.step * factor, (scaled.below - 1) * factor + 1)
    for i, n in enumerate(operands):
        if n is not None and not equal(n.step, 0) and not (isinstance(op, (Gather, _ScatterND)) and i == 1):
            raise OpError("the layer computes with the position of a row in the batch")
    return None


def _factor(spec: Spec | None) -> Int | None:
    """Return the only element of a tensor if it is known and not negative, else None."""
    values = None if spec is None else spec.ints()
    return values[0] if values is not None and len(values) == 1 and bounds(values[0])[0] >= 0 else None


def _constant(spec: Spec | None) -> RowNumbers | None:
    """Return known numbers that are not negative as `RowNumbers` that are the same in all rows."""
    value = _factor(spec)
    if value is not None:
        return RowNumbers(0, value + 1)
    values = None if spec is None else spec.ints()  # of a Range to a known number
    numbers = [n for n in values or () if not isinstance(n, Sym) and n >= 0]
    return RowNumbers(0, max(numbers) + 1) if values and len(numbers) == len(values) else None
