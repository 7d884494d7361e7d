"""A decoder for one text: a batch of 1."""

from __future__ import annotations

from contextlib import suppress

from ovgpu.errors import Error
from ovgpu.model import Model
from ovgpu.types import PartialShape


def fix_batch(model: Model) -> bool:
    """Set the batch of a decoder's inputs to 1, in place. Return False, and change nothing, if a shape forbids it.

    A row of [1, length, width] is contiguous, so that kernels read it where it is. In a batch of unknown size, it
    has to be copied.
    """
    shapes = {}
    for index, port in enumerate(model.inputs):
        shape = port.partial_shape
        if shape.rank.is_dynamic:
            return False
        if "cache_position" in port.get_names():  # [length], of all rows
            continue
        batch = len(shape) - 2 if "position_ids" in port.get_names() else 0  # [3, batch, length] in Qwen-VL
        shapes[index] = PartialShape([1 if axis == batch else extent for axis, extent in enumerate(shape)])
        if not shape.compatible(shapes[index]):
            return False
    with suppress(Error):
        model.reshape(shapes)
        return True
    return False
