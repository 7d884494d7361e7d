"""Products of few rows on the host, by panels of columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.matrix import matmul
from ovgpu.ops.matrix.matmul import MatMul

DEPTH = 24


@pytest.mark.parametrize("rows", [2, 3, 32, 33])
@pytest.mark.parametrize(("columns", "transposed", "width"), [(70, True, 16), (64, False, 64), (70, False, 64)])
@pytest.mark.parametrize("parallel", [False, True])
def test_panels(
    rows: int, columns: int, transposed: bool, width: int, parallel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each panel has so many columns, and the last columns are no whole panel."""
    monkeypatch.setattr(matmul, "MAX_UNPACKED_PRODUCTS", 1_000_000)
    monkeypatch.setattr(matmul, "MIN_GEMV_ELEMENTS", 1)
    monkeypatch.setattr(matmul, "MIN_PARALLEL_PRODUCTS", 0 if parallel else 1 << 40)
    random, calls = np.random.default_rng(3), list[Any]()
    record = matmul.record
    monkeypatch.setattr(matmul, "record", lambda k, work: (calls.extend([*map(list, work)]), record(k, work)))
    a = random.standard_normal((rows, DEPTH), np.float32)
    b = random.standard_normal((columns, DEPTH) if transposed else (DEPTH, columns), np.float32)
    wide = np.zeros((rows, 100), np.float32)
    op, out = MatMul(transpose_b=transposed), wide[:, :columns]
    assert op.numpy(lambda function, *operands: function(*operands), [a, b], [out], []) is None
    (wanted,) = op.evaluate(NUMPY, a, b)
    np.testing.assert_allclose(out, wanted, 1e-5, 1e-5)
    assert not wide[:, columns:].any()
    shapes = [piece.args[1].shape for worker in calls for piece in worker]
    if rows > matmul.MAX_PANEL_ROWS:
        assert not shapes
    else:
        panels = [shape for shape in shapes if len(shape) == 3]
        assert sum(count for count, *_ in panels) == columns // width and {shape[2] for shape in panels} == {width}
        assert sum(shape[-1] for shape in shapes if len(shape) == 2) == columns % width


def test_other_products_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of one row, of f64, and those on hosts where BLAS packs all matrices."""
    calls = list[Any]()
    for limit, rows, kind in ((1_000_000, 1, np.float32), (1_000_000, 16, np.float64), (0, 16, np.float32)):
        monkeypatch.setattr(matmul, "MAX_UNPACKED_PRODUCTS", limit)
        a, b, out = (np.ones(shape, kind) for shape in ((rows, 512), (512, 256), (rows, 256)))
        MatMul().numpy(lambda *call: calls.append(call), [a, b], [out], [])
    assert [call[2].ndim for call in calls] == [2] * 3
