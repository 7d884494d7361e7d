"""Port maps and back edges with one change: the model still runs, or fails with one clear error."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from lxml import etree

import ovgpu as ov
from tests.harness.sweep import LIMITS

from .drawn import branch, iterator, loop, nets

ENTRIES = " | ".join(f"//{tag}" for tag in ("port_map/*", "then_port_map/*", "else_port_map/*", "back_edges/*"))
NUMBERS = (
    "axis",
    "start",
    "end",
    "stride",
    "part_size",
    "external_port_id",
    "internal_layer_id",
    "from-layer",
    "to-layer",
)


@st.composite
def changed(draw: st.DrawFn) -> tuple[bytes, bytes, list[Any]]:
    """Draw the files of a net after one entry was changed, removed or repeated, and its inputs."""
    net = draw(nets(draw(st.sampled_from((iterator, loop, branch)))))
    for value in net.computed_values:
        net.net.result(value.port)
    xml, weights = net.net.build(draw(st.sampled_from(("static", "dynamic"))))
    root = etree.fromstring(xml)
    entries = root.xpath(ENTRIES)
    assume(entries)
    entry = draw(st.sampled_from(entries))
    change = draw(st.sampled_from(("number", "number", "number", "drop", "remove", "repeat")))
    if change == "remove":
        entry.getparent().remove(entry)
    elif change == "repeat":
        entry.addnext(etree.fromstring(etree.tostring(entry)))
    elif change == "drop":
        del entry.attrib[draw(st.sampled_from(sorted(entry.attrib)))]
    else:
        number = draw(st.one_of(st.integers(-7, 9), st.sampled_from((2**31, -(2**63), 10**30, "", "x", "1.5"))))
        entry.set(draw(st.sampled_from(NUMBERS)), str(number))
    return etree.tostring(root), weights, [np.asarray(make()) for make in net.draws.values()]


@settings(LIMITS, max_examples=200, derandomize=True)
@given(changed())
def test_one_clear_error(drawn: tuple[bytes, bytes, list[Any]]) -> None:
    xml, weights, inputs = drawn
    core = ov.Core()
    try:
        compiled = core.compile_model(core.read_model(xml, weights), "CPU")
        if b'type="Loop"' not in xml:  # a Loop without its condition may never end
            compiled(inputs)
    except RuntimeError as error:
        assert re.match(r"\[\w+\] .*\(.*(layer|input) '", str(error), re.DOTALL), str(error)
