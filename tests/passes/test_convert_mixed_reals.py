"""Layers whose inputs have several floating-point types: read, refused and computed as by OpenVINO."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from itertools import permutations
from typing import Any

import numpy as np
import openvino
import pytest

import ovgpu
from ovgpu.ops import lookup, registry
from tests.conformance import modules, tables
from tests.harness import Case, Net, judge
from tests.harness.elements import ELEMENTS
from tests.harness.ir import feed, take
from tests.harness.tolerance import compare_all

TYPES = ("f16", "bf16", "f32", "f64")
PAIRS = tuple(permutations(TYPES, 2))
OPS = [(cls.name, cls.version) for cls in registry() if cls.mixed_reals]


def mixed(case: Case, kind: str, other: str, at: int) -> Case:
    """Return the case with its f32 inputs in ``kind``, but input ``at`` in ``other``."""
    types = [i.dtype if i.dtype != "f32" else other if n == at else kind for n, i in enumerate(case.inputs)]
    inputs = [replace(i, dtype=t) for i, t in zip(case.inputs, types)]
    outputs = case.outputs if isinstance(case.outputs, int) else len(case.outputs)
    return replace(case, inputs=inputs, outputs=outputs, id=None)


@cache
def with_reals() -> list[Case]:
    """Return a case of every operation version and number of inputs that has two or more inputs in f32."""
    found: dict[Any, Case] = {}
    for case in tables(*modules("ops")):
        if isinstance(case, Case) and sum(i.dtype == "f32" for i in case.inputs) > 1:
            found.setdefault((case.group, len(case.inputs)), case)
    return list(found.values())


def reads(library: Any, net: Net) -> list[str] | None:
    """Return the types of the outputs, None if the library refuses the model."""
    try:
        model = library.Core().read_model(*net.build())
    except RuntimeError:
        return None
    return [port.get_element_type().get_type_name() for port in model.outputs]


def takes_more(case: Case) -> bool:
    """Return whether ovgpu takes more than OpenVINO: scales that are not read, and cells without a bias."""
    unread = case.op == "Interpolate" and case.attrs["shape_calculation_mode"] == "sizes"
    return unread or (case.op, len(case.inputs)) == ("GRUCell", 4)


@pytest.mark.parametrize(("kind", "other"), [pytest.param(*p, marks=pytest.mark.drawn(6)) for p in PAIRS])
def test_types(kind: str, other: str) -> None:
    """Every operation takes what OpenVINO takes, and its results have the same types."""
    wrong = []
    for case in with_reals():
        for at in (n for n, i in enumerate(case.inputs) if i.dtype == "f32"):
            net = mixed(case, kind, other, at).net
            theirs, ours = reads(openvino, net), reads(ovgpu, net)
            if theirs != ours and not takes_more(case):
                wrong.append(f"{case.name}, input {at}: {ours} instead of {theirs}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("name", "version"), OPS)
def test_values(name: str, version: str, device: str) -> None:
    """Results are those of OpenVINO, whichever input has the wider type, or those of the operation in f32 where it only
    reads such a model (GRUCell) or does not follow the formula (FakeQuantize)."""
    tried = 0
    for case in with_reals():
        cls: Any = lookup(case.op, case.version)
        if (cls.name, cls.version) != (name, version) or takes_more(case):
            continue
        for at in (at for at in cls.mixed_reals if at < len(case.inputs)):
            for kind, other in (("f16", "f32"), ("f32", "f16")):
                tried += 1
                given = mixed(case, kind, other, at)
                if name in ("GRUCell", "FakeQuantize"):
                    given = replace(given, expect=partial(in_f32, case, kind), tol=None)
                given.run("dynamic" if case.dynamic else "static", device)
    assert tried


def in_f32(case: Case, kind: str, *arrays: Any) -> Any:
    """Return OpenVINO's result for the case in f32, rounded to ``kind``."""
    given = [(a.astype(np.float32), "f32") for a in arrays]
    case = replace(case, inputs=[replace(i, const=False) for i in case.inputs])
    return judge.Judge(*case.net.build(), case.oracle).expect(given)[0].array.astype(ELEMENTS[kind].dtype)


@pytest.mark.parametrize("hint", ["dynamic", "f32", "f16", "bf16"])
@pytest.mark.parametrize(("kind", "other"), [("f16", "f32"), ("f32", "f16"), ("bf16", "f32")])
def test_model(kind: str, other: str, hint: str, device: str) -> None:
    """In a body and beside it, in all hints of precision."""
    body, net = Net("body"), Net()
    row = body.parameter(kind, (1, 3, 4), "row")
    bent = body.result(body.layer("PRelu", "opset1", [row, body.const([0.1, 0.7, 1.3], other)], outputs=[kind]))
    x = net.parameter(kind, (2, 3, 4), "x")
    y = net.tensor_iterator(body, [feed(x, row, axis=0)], [take(bent, axis=0)])
    limits = [net.const(limit, other) for limit in (-1.0, 1.0, -1.0, 1.0)]
    net.result(net.layer("FakeQuantize", "opset1", [y, *limits], {"levels": 16}, outputs=[kind]), "y")
    given = [(np.random.default_rng(5).uniform(-1, 1, (2, 3, 4)).astype(ELEMENTS[kind].dtype), kind)]
    core, config = ovgpu.Core(), {"INFERENCE_PRECISION_HINT": hint}
    request = core.compile_model(core.read_model(*net.build()), device, config).create_infer_request()
    found = judge.infer(ovgpu, request, given)
    compare_all(f"{kind}, {other}, {hint}", found, judge.Judge(*net.build()).expect(given), None)
