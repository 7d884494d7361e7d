"""f16 and bf16 outside elementwise ops: computed and accumulated in f32, rounded once at the output."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.ops import lookup
from ovgpu.ops.base.elementwise import Elementwise
from ovgpu.ops.base.xp import NUMPY
from tests.conformance import modules, tables
from tests.harness import Case, In, const
from tests.harness.cases import compile
from tests.harness.elements import is_float
from tests.harness.judge import infer
from tests.harness.replay import DEVICES

LONG = [
    ("MatMul", "opset1", [In((3, 2053)), In((2053, 5))], {}),
    ("ReduceSum", "opset1", [In((5, 5003), low=0, high=2), const([1])], {"keep_dims": False}),
    ("ReduceMean", "opset1", [In((5003, 3), low=0, high=2), const([0])], {"keep_dims": False}),
    ("ReduceL2", "opset4", [In((3, 5003)), const([1])], {"keep_dims": True}),
    ("Softmax", "opset8", [In((3, 1031))], {"axis": -1}),
    ("LogSoftmax", "opset5", [In((3, 1031))], {"axis": -1}),
    (
        "MVN",
        "opset6",
        [In((3, 1031), low=5, high=9), const([1])],
        {"eps": 1e-5, "normalize_variance": True, "eps_mode": "inside_sqrt"},
    ),
    ("CumSum", "opset3", [In((3, 1031), low=0, high=2), const(1)], {}),
    ("ScaledDotProductAttention", "opset13", [In((1, 2, 5, 67)), In((1, 2, 131, 67)), In((1, 2, 131, 7))], {}),
    (
        "LSTMCell",
        "opset4",
        [In((2, 131)), In((2, 17)), In((2, 17)), In((68, 131), low=-0.2, high=0.2), In((68, 17)), In((68,))],
        {"hidden_size": 17},
    ),
    (
        "GRUSequence",
        "opset5",
        [
            In((2, 5, 131)),
            In((2, 1, 17)),
            In((2,), "i64", np.array([5, 3])),
            In((1, 51, 131), low=-0.2, high=0.2),
            In((1, 51, 17)),
            In((1, 51)),
        ],
        {"hidden_size": 17, "direction": "forward", "activations": "sigmoid,tanh"},
    ),
]


def half(case: Case) -> bool:
    """Return whether a case has 16-bit floats, depends on its inputs alone, and is no elementwise op.

    BinaryConvolution is left out: the bits of its kernel have another order in `evaluate` than in a file."""
    cls = lookup(case.op, case.version)
    return (
        type(case) is Case
        and cls is not None
        and case.op != "BinaryConvolution"
        and not (cls.exact or cls.effect or issubclass(cls, Elementwise))
        and case.expect is None
        and bool({i.dtype for i in case.inputs} & {"f16", "bf16"})
    )


CASES = [c for c in tables(*modules("ops")) if isinstance(c, Case) and half(c)] + [
    Case(
        op,
        version,
        [In(i.shape, kind, i.data, i.const, i.low, i.high) if i.dtype == "f32" else i for i in inputs],
        attrs,
        2 if op in ("LSTMCell", "GRUSequence") else 1,
        id=f"long_{kind}",
    )
    for op, version, inputs, attrs in LONG
    for kind in ("f16", "bf16")
]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("device", DEVICES, indirect=True)
@pytest.mark.parametrize("case", [pytest.param(c, id=c.name) for c in CASES])
def test_rounded_once(case: Case, device: str) -> None:
    """The error is at most half a unit in the last place of the f64 result, plus the error of sums in f32."""
    request = compile(case.net, "static", device)
    arrays = case.arrays()
    found = infer(ov, request, case.parameters(arrays))
    wide = [a.astype(np.float64) if i.dtype in ("f16", "bf16") else a for a, i in zip(arrays, case.inputs)]
    op: Any = next(n for n in ov.Core().read_model(*case.net.build()).ops if n.friendly_name == "op").op
    with np.errstate(all="ignore"):
        wanted = op.evaluate(NUMPY, *wide)
    for (array, kind), exact in zip(found, wanted):
        if kind not in ("f16", "bf16"):
            np.testing.assert_allclose(array, exact, *[1e-5 if is_float(kind) else 0] * 2)
            continue
        ulp = np.spacing(np.abs(exact.astype(array.dtype))).astype(np.float64)
        with np.errstate(all="ignore"):
            error = np.abs(array.astype(np.float64) - exact)
            finite = np.abs(exact[np.isfinite(exact)]).max(initial=0)
            close = error <= 0.501 * ulp + 1e-5 * finite
            same = (array == exact.astype(array.dtype)) | (np.isnan(array) & np.isnan(exact))
        assert (close | same).all(), f"{(error / ulp)[~(close | same)].max():.3g} units in the last place"
