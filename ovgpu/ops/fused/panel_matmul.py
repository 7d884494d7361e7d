"""Internal op of a product by constant weights in panels of columns, for batches of sequences on the CPU."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ovgpu.ops.base.op import Array, Arrays, Op, internal_op
from ovgpu.ops.base.recorder import HostRecorder
from ovgpu.ops.base.tasks import record, shares, workers
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.matrix.matmul import MAX_UNPACKED_PRODUCTS, MIN_PARALLEL_PRODUCTS
from ovgpu.spec import Spec
from ovgpu.symbolic import same

COLUMNS = 32  # of a panel: two registers of AVX-512


@internal_op
class PanelMatMul(Op):
    """``x [..., M, K], panels [P, K, C] -> [..., M, P C]``: a product by the panels side by side.

    A panel lies in one piece, and is multiplied by so few rows at a time that OpenBLAS does not pack it first
    (`MAX_UNPACKED_PRODUCTS`).
    """

    name: ClassVar[str] = "MatMul"

    layout = "blas"
    strided_outputs = True

    def infer_specs(self, x: Spec, panels: Spec) -> tuple[Spec, ...]:
        assert x.shape is not None and panels.shape is not None
        count, depth, width = panels.shape
        same(x.shape[-1], depth, "matrices of {0} columns and {1} rows do not multiply")
        return (Spec(x.type, (*x.shape[:-1], count * width)),)

    def evaluate(self, xp: Adapter, x: Array, panels: Array) -> tuple[Array, ...]:
        count, depth, width = panels.shape
        return (xp.matmul(x, panels.swapaxes(0, 1).reshape(depth, count * width)),)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, panels), out = inputs, outputs[0]
        if not out.size or not x.size:
            return NotImplemented
        if x.flags.c_contiguous and out.flags.c_contiguous:
            x, out = x.reshape(-1, x.shape[-1]), out.reshape(-1, out.shape[-1])
        count, depth, width = panels.shape
        rows = x.shape[-2]
        results = np.moveaxis(out.reshape(*out.shape[:-1], count, width), -2, -3)
        x = x[..., None, :, :]
        most = max(MAX_UNPACKED_PRODUCTS // (depth * width), 1)
        # The threads of BLAS would divide a panel among themselves if it is multiplied by one row.
        work = workers(rows == 1 or x.size * count * width >= MIN_PARALLEL_PRODUCTS)
        for worker, part in zip(work, shares(count, len(work))):
            for piece in shares(rows, -(-rows // most)):
                worker(np.matmul, x[..., piece, :], panels[part], results[..., part, piece, :])
        record(k, work)
        return None
