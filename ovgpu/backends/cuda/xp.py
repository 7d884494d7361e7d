"""CuPy as the array module of ops' `evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.xp import Adapter


class CupyAdapter(Adapter):
    """CuPy, with the functions and dtypes that it lacks."""

    def empty(self, shape: Sequence[int], dtype: Any) -> Array:
        """Return an uninitialized array of any dtype; `cupy.empty` takes only dtypes that CuPy has kernels for."""
        dtype = np.dtype(dtype)
        nbytes = prod(shape) * dtype.itemsize
        return self.module.ndarray(tuple(shape), dtype, memptr=self.module.cuda.alloc(max(nbytes, 1)))

    def nonzero(self, x: Array) -> Any:
        """Find non-zero elements by their bits without the sign: CuPy's kernels treat denormal numbers as zeros."""
        return self.module.nonzero(x.view(f"u{x.itemsize}") << 1 if x.dtype.kind == "f" else x)

    def asnumpy(self, x: Array) -> Any:
        return self.module.asnumpy(x)
