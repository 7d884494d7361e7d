"""Constants that are concatenated only when they are uploaded, so that the host never holds them twice."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.types.mapped import let_go


class Joined:
    """Lazy concatenation of arrays of one type along an axis; it has an array's interface, and is built when read."""

    def __init__(self, parts: Sequence[Array], axis: int) -> None:
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        self.parts, self.axis = tuple(parts), axis
        self.shape, self.dtype = tuple(shape), parts[0].dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * int(self.dtype.itemsize)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        joined = np.concatenate(self.parts, self.axis, dtype=dtype)
        for part in self.parts:
            let_go(part)
        return joined
