"""CuPy as ops' `evaluate` sees it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.xp import Adapter


class CupyAdapter(Adapter):
    """CuPy, and what it lacks."""

    def empty(self, shape: Sequence[int], dtype: Any) -> Array:
        """An array of any type: CuPy itself gives memory only to types that it has kernels for."""
        dtype = np.dtype(dtype)
        nbytes = prod(shape) * dtype.itemsize
        return self.module.ndarray(tuple(shape), dtype, memptr=self.module.cuda.alloc(max(nbytes, 1)))

    def nonzero(self, x: Array) -> Any:
        """Find non-zero elements by their bits without the sign: CuPy's own kernels take denormal numbers for zeros."""
        return self.module.nonzero(x.view(f"u{x.itemsize}") << 1 if x.dtype.kind == "f" else x)

    def asnumpy(self, x: Array) -> Any:
        return self.module.asnumpy(x)
