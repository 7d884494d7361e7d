"""DFT, IDFT, RDFT and IRDFT against OpenVINO, or against their definition where its plugin fails."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, Sum, check, const, given, sweep

OPS = {"DFT": "opset7", "IDFT": "opset7", "RDFT": "opset9", "IRDFT": "opset9"}
KINDS = ("f16", "bf16", "f64")
SHAPE = (3, 6, 7)


def transform(
    op: str,
    axes: Sequence[int] | In,
    sizes: Sequence[int] | In | None = None,
    shape: Sequence[int] = SHAPE,
    kind: str = "f32",
    **kw: object,
) -> Case:
    """Return a case of an op for a signal of this shape, real or complex."""
    numbers = [x if isinstance(x, In) else const(np.array(x, np.int64)) for x in (axes, sizes) if x is not None]
    if fails_in_plugin(op, shape, *(x.data for x in numbers)) or kind == "f64":  # unsupported by OpenVINO
        kw = {"expect": lambda x, *given: defined(op, x, *given)} | kw
    data = In((*shape, *([] if op == "RDFT" else [2])), kind)
    return Case(op, OPS[op], [data, *numbers], **{"tol": Sum(int(np.prod(shape)) or 1), **kw})


def fails_in_plugin(op: str, shape: Sequence[int], axes: np.ndarray, sizes: np.ndarray | None = None) -> bool:
    """Return whether the values come from the definition, not from OpenVINO's plugin."""
    if not axes.size:
        return True
    if op in ("DFT", "IDFT") or sizes is None:
        return False
    extents = [shape[axis] for axis in axes]
    least = [size // 2 + 1 if op == "IRDFT" and i == len(axes) - 1 else size for i, size in enumerate(sizes)]
    cut = op == "IRDFT" and any(a < b for a, b in zip(least[:-1], extents))
    return min(sizes) < 1 or sorted(axes) != list(axes) or cut or any(a > b for a, b in zip(least, extents))


def defined(op: str, x: np.ndarray, axes: np.ndarray, sizes: np.ndarray | None = None) -> np.ndarray:
    """Return the transform by its definition: products with matrices of powers of roots of unity, in f64."""
    z = x.astype(np.float64)
    z = z.astype(complex) if op == "RDFT" else z[..., 0] + 1j * z[..., 1]
    sizes = [-1] * len(axes) if sizes is None else sizes.tolist()
    for axis, size, halved in zip(axes % z.ndim, sizes, [False] * (len(axes) - 1) + [op in ("RDFT", "IRDFT")]):
        n = size if size > 0 else 2 * z.shape[axis] - 2 if halved and op == "IRDFT" else z.shape[axis]
        rows = np.moveaxis(z, axis, -1)
        taken = n // 2 + 1 if halved and op == "IRDFT" else n
        rows = np.concatenate([rows[..., :taken], np.zeros((*rows.shape[:-1], max(taken - rows.shape[-1], 0)))], -1)
        if halved and op == "IRDFT":
            rows = np.concatenate([rows, rows[..., 1 : n - taken + 1][..., ::-1].conj()], -1)
        root = np.exp((2j if op.startswith("I") else -2j) * np.pi / max(n, 1))
        found = rows @ root ** np.outer(range(n), range(n)) / (n if op.startswith("I") else 1)
        z = np.moveaxis(found[..., : n // 2 + 1] if halved and op == "RDFT" else found, -1, axis)
    return (z.real if op == "IRDFT" else np.stack([z.real, z.imag], -1)).astype(x.dtype)


CASES = [
    *(transform(op, axes, rankless=True, id=f"{axes}") for op in OPS for axes in ([1], [-1], [2, 0], [0, 1, 2])),
    *(
        transform(op, axes, sizes, id=f"{axes} {sizes}")
        for op in OPS
        for axes, sizes in (
            ([1], [4]),
            ([0, 2], [2, 5]),
            ([1], [11]),
            ([2, 1], [9, 3]),
            ([1, 2], [-1, 8]),
            ([0, 1], [5, -1]),
            ([0, 1, 2], [3, 9, 1]),
            ([-1, 0], [8, 8]),
        )
    ),
    *(transform(op, [2], [n], id=f"half spectra for {n}") for op in ("RDFT", "IRDFT") for n in (1, 2, 5, 12, 13, 14)),
    *(transform(op, [2, 1], kind=kind, id=kind) for op in OPS for kind in KINDS),
    *(transform(op, [2, 1], [8, 5], kind="f16", id="f16 padded") for op in OPS),
    *(transform(op, [0], shape=(7,), rankless=True, id="a single axis") for op in OPS),
    *(transform(op, [0, 2, 3, 1], shape=(3, 2, 5, 4), id="four axes") for op in OPS),
    *(transform(op, [3, 0], [7, 5], (3, 2, 5, 4, 2), id="axes far apart") for op in OPS),
    *(transform(op, [1], shape=(2, 60, 3), id="long") for op in OPS),
    *(
        transform(
            op,
            [1],
            shape=(0, 4),
            id="no signals",
            expect=lambda x, _, op=op: np.zeros((0, *{"RDFT": (3, 2), "IRDFT": (6,)}.get(op, (4, 2))), np.float32),
        )
        for op in OPS
    ),
    *(transform(op, [1], shape=(3, 0), expect=lambda x, _: x, id="no elements") for op in ("DFT", "IDFT")),
    *(
        transform(
            op,
            [1],
            [5],
            (3, 0),
            id="nothing but zeros",
            expect=lambda x, *_, shape=shape: np.zeros((3, *shape), np.float32),
        )
        for op, shape in (("DFT", (5, 2)), ("RDFT", (3, 2)), ("IRDFT", (5,)))
    ),
    transform("IRDFT", [1], shape=(3, 1), expect=lambda x, _: np.zeros((3, 0), np.float32), id="no elements"),
    *(transform(op, [], expect=lambda x, _: x, id="no axes") for op in ("DFT", "IDFT")),
    *(
        transform(
            op, given([1], "i32"), given([9]), expect=lambda x, *given, op=op: defined(op, x, *given), id="given axes"
        )
        for op in OPS
    ),
    *(
        transform(
            op, [1, 0], given([-1, 4], "i32"), expect=lambda x, *given, op=op: defined(op, x, *given), id="given sizes"
        )
        for op in OPS
    ),
]
ERRORS = [
    *(transform(op, [3], error="axis 3 is out of range for rank 3") for op in OPS),
    *(transform(op, [0, -3], error=r"axes \[0, -3\] name an axis twice") for op in OPS),
    *(transform(op, [0, 1], [3], error="1 signal sizes for 2 axes") for op in OPS),
    *(
        transform(op, [1], size([n]), (0, 4), error=f"signal size {n} is neither -1 nor positive", id=f"{how} {n}")
        for how, size in (("constant", const), ("given", given))
        for op in OPS
        for n in (0, -2)
    ),
    *(transform(op, [1], kind="i32", error="the data must be floating-point numbers, not i32") for op in OPS),
    *(transform(op, const([1.0], "f32"), error="axes must be integers, not f32") for op in OPS),
    *(transform(op, [1], const([4.0], "f32"), error="signal sizes must be integers, not f32") for op in OPS),
    Case("DFT", "opset7", [In((4, 3)), const([0])], error="has 3 elements, but complex numbers are pairs"),
    Case("IRDFT", "opset9", [In((2,)), const([0])], error="data of rank 1 are no complex numbers with an axis"),
]
test_cases = check(CASES + ERRORS)


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    op, rank = draw(st.sampled_from(list(OPS))), draw(st.integers(1, 4))
    shape = draw(st.lists(st.integers(2, 9), min_size=rank, max_size=rank))
    axes = draw(st.lists(st.integers(0, rank - 1), min_size=1, unique=True))
    sizes = [draw(st.sampled_from((-1, *range(1, 12)))) for _ in axes] if draw(st.booleans()) else None
    if draw(st.booleans()):
        axes = [axis - rank for axis in axes]
    return transform(op, axes, sizes, shape, draw(st.sampled_from(("f32", "f32", "f16", "bf16"))))


test_random = sweep(drawn())
