"""OVDict, compared with openvino's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ovgpu

from . import nets
from .sides import LIBRARIES, agree, check, compiled

RESULT = "c = comp(two()); r = c([np.ones((2, 3)), np.array([-1, 2])]); "


@agree("""
    r
    [r[0], r[1], r[-1], r["r"], r["rr"], r["a"], r[c.output(0)], r[c.output("a")]]
    r["zz"]
    r[5]
    r[1.5]
    r[None]
    [r.names(), len(r), list(r.keys()) == c.outputs, list(r) == c.outputs]
    ["r" in r, 0 in r, 7 in r, "zz" in r, c.output(0) in r, c.input(0) in r]
    [r.get("zz", 3), r.get(0), r.get(9)]
    [type(r.values()).__name__, type(r.items()).__name__, type(r.keys()).__name__, type(r.to_dict()).__name__]
    r.to_tuple()
    r.to_dict()
    dict(r)
    [a.sum() for a in r.values()]
    {k.any_name: v for k, v in r.items()}
    list(r.values())[0].flags.owndata
    r.__setitem__("a", 3)
    delattr(r, "names")
    c2 = comp(two()); r[c2.output(0)]
    c(r)
    c(r)[1]
    [x.shape for x in r.to_tuple()]
    bool(r)
    r == r
""")
def test_agrees(code: str) -> None:
    check(RESULT + code)


@LIBRARIES
def test_cannot_be_changed(ov: Any) -> None:
    result = compiled(ov, nets.one())(np.ones((2, 3), "f4"))
    with pytest.raises(TypeError):
        result[0] = 3
    with pytest.raises(TypeError):
        del result[0]


@LIBRARIES
def test_unpacking(ov: Any) -> None:
    r, a = compiled(ov, nets.two())([np.ones((2, 3)), np.array([-1])]).values()
    assert (r.shape, a.tolist()) == ((2, 3), [1])


def test_same_value_behind_two_outputs() -> None:
    """Two outputs with the same tensor have two entries."""
    net = nets.Net("twice")
    y = net.layer("Abs", "opset1", [net.parameter("f32", (2,), "x")], names=["y"])
    net.result(y)
    net.result(y)
    c = compiled(ovgpu, net.build())
    result = c(np.array([-1, 2], "f4"))
    assert len(result) == 2 and c.output(0) != c.output(1)
    assert result[c.output(0)].tolist() == result[c.output(1)].tolist() == result["y"].tolist() == [1, 2]
