"""Einsum."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import hypothesis
import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.matrix.einsum import Einsum
from tests.harness import Case, In, Sum, check, given
from tests.harness.sweep import LIMITS, sweep


def einsum(equation: str, *shapes: Sequence[int], kind: str = "f32", **more: Any) -> Case:
    inputs = [s if isinstance(s, In) else In(s, kind, low=-2, high=2) for s in shapes]
    more.setdefault("id", equation.replace("...", "_").replace("->", "=").replace(",", "-").replace(" ", "+"))
    if kind in ("f32", "f64"):
        more.setdefault("tol", Sum(max([prod(i.shape) for i in inputs])))
    return Case("Einsum", "opset7", inputs, {"equation": equation}, [kind], **more)


CASES = [
    einsum("ij,jk->ik", (3, 5), (5, 7), rankless=True),
    einsum("ij,jk", (3, 5), (5, 7)),
    einsum("ij,jk->ki", (3, 5), (5, 7)),
    einsum("ij,kj->ik", (3, 5), (7, 5)),
    einsum("bhqd,bhkd->bhqk", (2, 3, 5, 7), (2, 3, 4, 7)),
    einsum("bqhd,bkhd->bhqk", (2, 5, 3, 7), (2, 4, 3, 7)),
    einsum("acbe,aecd->abcd", (2, 3, 5, 7), (2, 7, 3, 4)),
    einsum("abc,cde->abde", (2, 3, 5), (5, 7, 4)),
    einsum("abcd,cde->abe", (2, 3, 5, 7), (5, 7, 4)),
    einsum("abde,cdeb->ac", (2, 3, 5, 7), (4, 5, 7, 3)),
    einsum("i,j->ij", (3,), (5,)),
    einsum("i,j->ji", (3,), (5,)),
    einsum("i,i->", (5,), (5,)),
    einsum("i,i->i", (5,), (5,)),
    einsum("ij,j->i", (3, 5), (5,)),
    einsum("j,ij->i", (5,), (3, 5)),
    einsum("ij,ij->i", (3, 5), (3, 5)),
    einsum("ij,kl->", (3, 5), (2, 4)),
    einsum("ij,kl->jl", (3, 5), (2, 4)),
    einsum(",ij->ji", (), (3, 5)),
    einsum("->", ()),
    # one input
    einsum("ij->ij", (3, 5)),
    einsum("ij->ji", (3, 5), rankless=True),
    einsum("ijk->kij", (2, 3, 5)),
    einsum("ijk->", (2, 3, 5)),
    einsum("ijk->ki", (2, 3, 5)),
    einsum("kii->k", (2, 3, 3)),
    einsum("kii->ki", (2, 3, 3)),
    einsum("iki->k", (3, 2, 3)),
    einsum("ijkj->ij", (2, 4, 5, 4)),
    einsum("iii->i", (3, 3, 3)),
    # OpenVINO retains labels that occur twice in a subscript
    einsum("ii", (5, 5), expect=lambda x: np.trace(x)),
    einsum("AbC", (2, 3, 5)),
    einsum("dbbc,ca", (2, 3, 3, 5), (5, 4), expect=lambda x, y: np.einsum("dbbc,ca", x, y)),
    # ellipses
    einsum("a...->...", (3, 5)),
    einsum("a...->...a", (3, 5, 2)),
    einsum("...ij->...ji", (2, 4, 3, 5), rankless=True),
    einsum("...ij", (2, 3, 5)),
    einsum("...ij,...jk->...ik", (2, 4, 3, 5), (2, 4, 5, 7)),
    einsum("...ij,...jk->...ik", (4, 1, 3, 5), (6, 5, 7), id="batches_that_broadcast"),
    einsum("a...,...->a...", (3, 5), (1,)),
    einsum("a...b,b...->a...", (9, 1, 4, 3), (3, 11, 7, 1)),
    einsum("i...i->...", (3, 5, 3)),
    einsum("ab...->ab", (2, 3, 4)),
    einsum("ab...,b->a...", (2, 3), (3,), id="an_empty_ellipsis"),
    # if an ellipsis precedes labels of one input, OpenVINO mixes up the axes
    einsum("...a,...", (2, 3, 5), (2, 3), expect=lambda x, y: x * y[..., None]),
    einsum("...a,...->...a", (1, 1, 5), (4, 2, 3), expect=lambda x, y: x[:, None] * y[..., None]),
    # several inputs
    einsum("ab,bcd,bc->ca", (2, 5), (5, 3, 6), (5, 3)),
    einsum("ab...,ac...,ade->...bc", (2, 3, 4), (2, 7, 1), (2, 4, 7)),
    einsum("ij,ik,il->jkl", (2, 3), (2, 4), (2, 5)),
    einsum("ab,bc,cd,de->ae", (2, 3), (3, 5), (5, 4), (4, 7)),
    einsum("aac,abd,ddde->bce", (3, 3, 2), (3, 5, 2), (2, 2, 2, 4)),
    # extents of 1
    einsum("ij,jk->ik", (3, 1), (5, 7), id="one_to_be_summed"),
    einsum("ij,jk->ik", (3, 5), (1, 7), id="one_to_be_summed_behind"),
    einsum("ij,jk->ik", (3, 1), (1, 7), id="ones"),
    einsum("bij,bjk->bik", (1, 3, 5), (2, 5, 7), id="one_batch"),
    einsum("ij,ij->ij", (1, 3), (2, 1), id="ones_of_both"),
    # sizes and types
    einsum("ij,jk->ik", (3, 0), (0, 7), id="no_terms", expect=np.zeros((3, 7), np.float32)),
    einsum("ij,jk->ik", (0, 5), (5, 7), id="no_rows", expect=np.zeros((0, 7), np.float32)),
    *(
        einsum("bij,bjk->bik", (2, 3, 5), (2, 5, 7), kind=kind, id=f"type_{kind}")
        for kind in ("f16", "bf16", "i32", "i64", "i8", "u8")
    ),
    *(einsum("kii->k", (2, 3, 3), kind=kind, id=f"trace_{kind}") for kind in ("f16", "i32")),
    # neither the plugin nor the reference computes in f64
    einsum(
        "bij,bjk->bik",
        (2, 3, 5),
        (2, 5, 7),
        kind="f64",
        id="type_f64",
        expect=lambda a, b: np.einsum("bij,bjk->bik", a, b),
    ),
    einsum(
        " ij , jk -> ik",
        given(np.ones((2, 3), np.float32)),
        given(np.ones((3, 5), np.float32)),
        id="spaces",
        expect=np.full((2, 5), 3, np.float32),
    ),
    einsum("ij,jk->ik", (3, 5), (4, 7), error="5 and 4 do not broadcast", id="extents", dynamic=False),
    einsum("ii->i", (3, 5), error="the diagonal 'i' has extents 3 and 5", id="diagonal"),
    einsum("ij,jk->ik", (3, 5), error="for 2 inputs, not 1", id="inputs"),
    einsum("ij->ji", (3, 5, 7), error="input 0 has rank 3, which 'ij' does not fit", id="rank"),
    einsum("ijk...->i", (3, 5), error="input 0 has rank 2", id="rank_of_an_ellipsis"),
    einsum("ij->ik", (3, 5), error="no input has the output's label 'k'", id="label"),
    einsum("ij->iij", (3, 5), error="the output has label 'i' twice", id="twice"),
    einsum("i1->i", (3, 5), error="'i1' is no subscript", id="subscript"),
    einsum("...i...->i", (3, 5), error="is no subscript", id="ellipses"),
    einsum("ij->ji", (3, 5), kind="boolean", error="boolean is not numeric", id="boolean"),
]
test_cases = check(CASES)


@st.composite
def equations(draw: st.DrawFn, anywhere: bool = False) -> Case:
    """Draw an equation with ellipses ``anywhere``, or for a single input only: OpenVINO mixes up the axes that
    ellipses of several inputs cover."""
    extents = {label: draw(st.integers(1, 5)) for label in "abcdef"}
    subscripts, shapes = [], []
    count = draw(st.integers(1, 3))
    for _ in range(count):
        labels = draw(st.lists(st.sampled_from("abcdef"), max_size=4))
        ones = {label for label in labels if draw(st.integers(0, 7)) == 0 and labels.count(label) == 1}
        shape = [1 if label in ones else extents[label] for label in labels]
        subscript = "".join(labels)
        if (anywhere or count == 1) and draw(st.integers(0, 3)) == 0:
            at = draw(st.integers(0, len(labels)))
            covered = [draw(st.sampled_from([1, n])) for n in (3, 2)][draw(st.integers(0, 2)) :]
            subscript, shape = subscript[:at] + "..." + subscript[at:], shape[:at] + covered + shape[at:]
        subscripts.append(subscript)
        shapes.append(shape)
    equation = ",".join(subscripts)
    if draw(st.booleans()) or (not anywhere and any(s.count(c) > 1 for s in subscripts for c in "abcdef")):
        letters = sorted({c for c in equation if c.isalpha()})
        output = "".join(draw(st.permutations(letters))[: draw(st.integers(0, 5))])
        if "..." in equation and draw(st.booleans()):
            at = draw(st.integers(0, len(output)))
            output = output[:at] + "..." + output[at:]
        equation += "->" + output
    kind = draw(st.sampled_from(["f32", "f32", "i32"]))
    positive = [In(shape, kind, low=1, high=4) for shape in shapes]  # nothing cancels in the sums
    return einsum(equation, *positive, kind=kind, id="drawn")


test_random = sweep(equations(), 150)


@settings(LIMITS, max_examples=300, derandomize=True)
@hypothesis.given(equations(anywhere=True))
def test_as_numpy(case: Case) -> None:
    equation, arrays = case.attrs["equation"], case.arrays()
    try:
        wanted = np.einsum(equation, *arrays)
    except ValueError:  # NumPy requires every ellipsis in the output
        hypothesis.assume(False)
    (found,) = Einsum(equation=equation).evaluate(NUMPY, *arrays)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, 1e-4, 1e-4)
