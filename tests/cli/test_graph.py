"""``ovgpu info --graph`` and ``--html``: drawings of plans."""
from __future__ import annotations

import re
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ovgpu
from ovgpu.cli import main
from ovgpu.cli._ports import port_name, static_shapes
from ovgpu.cli.graph.dot import as_dot, render
from ovgpu.cli.graph.drawing import MIN_REPEATS, Drawing, draw, repeats
from ovgpu.cli.graph.html import COLUMNS, as_html
from ovgpu.runtime.plan import Plan
from tests.harness.ir import Net
from tests.models import transformer
from tests.runtime import models

from .conftest import Write

DATA = Path(__file__).parents[1] / "models" / "data"
Make = Callable[[int, transformer.Sizes], transformer.Transformer]
SMALL = transformer.Sizes(12, 48, 4, 96, 211, 64)


def plan_of(model: ovgpu.Model, device: str = "CPU") -> Plan:
    """Return the plan of a model, for one token if it is a language model."""
    compiled = ovgpu.Core().compile_model(model, device)
    return compiled.plan(static_shapes(compiled.inputs, {}, "--shape", True))


def net_plan(net: Net, device: str = "CPU") -> Plan:
    return plan_of(ovgpu.read_model(*net.build()), device)


def check(drawing: Drawing, plan: Plan) -> None:
    """Check that all steps are drawn as often as they occur, with their bytes, and that edges have both ends."""
    boxes = [box for box in drawing.boxes.values() if box.kind not in ("input", "result", "state")]
    steps = [step for step in plan.steps if step.kind != "view"]
    assert sum(box.times for box in boxes) == len(steps) and len(boxes) == drawing.steps
    assert sum(box.times * box.nbytes for box in boxes) == plan.bytes_moved
    for edge in drawing.edges:
        assert {edge.source, edge.target} <= drawing.boxes.keys()
    blocks = [name for block in drawing.blocks for name in block.boxes]
    assert len(set(blocks)) == len(blocks) and {name for name, box in drawing.boxes.items() if box.times > 1
                                                and box.kind != "state"} == set(blocks)


def names(dot: str) -> tuple[set[str], set[str]]:
    """Return the names of the nodes of DOT text, and of the ends of its edges."""
    ends = {end for pair in re.findall(r'^\s*"(\w+)" -> "(\w+)"', dot, re.MULTILINE) for end in pair}
    return set(re.findall(r'^\s*"(\w+)" \[', dot, re.MULTILINE)), ends


@pytest.mark.parametrize("name", sorted(path.parent.name for path in DATA.glob("*/model.xml")))
def test_models(name: str) -> None:
    compiled = ovgpu.compile_model(DATA / name, "CPU")
    with np.load(DATA / name / "expected.npz") as recorded:
        plan = compiled.plan([recorded[f"call/00/in/{port_name(port)}"].shape for port in compiled.inputs])
    drawing = draw(plan, name)
    check(drawing, plan)
    nodes, ends = names(as_dot(drawing))
    assert ends <= nodes and len(nodes) >= drawing.steps


@pytest.mark.parametrize("make", [transformer.gpt2, lambda seed, sizes: transformer.bert(seed, sizes, (1, 8)),
                                  transformer.llama])
@pytest.mark.parametrize("device", ["CPU", "emulated"])
def test_layers_are_folded(make: Make, device: str, request: pytest.FixtureRequest) -> None:
    """Ten or more of twelve equal layers are one block, so that a drawing has few more boxes than that of two layers."""
    device = request.getfixturevalue("emulated") if device == "emulated" else device
    plans = [plan_of(ovgpu.read_model(*make(1, replace(SMALL, layers=layers)).ir), device) for layers in (2, 12)]
    drawings = [draw(plan, "model") for plan in plans]
    for drawing, plan in zip(drawings, plans):
        check(drawing, plan)
    assert not drawings[0].blocks
    (block,) = drawings[1].blocks
    assert int(block.title.split()[1].rstrip(":")) >= 10
    assert drawings[1].steps <= drawings[0].steps + len(block.boxes)
    assert any(edge.next for edge in drawings[1].edges)
    unfolded = draw(plans[1], "model", fold=False)
    check(unfolded, plans[1])
    assert not unfolded.blocks and unfolded.steps == sum(step.kind != "view" for step in plans[1].steps)
    states = [box.times for box in drawings[1].boxes.values() if box.kind == "state"]
    assert sum(states) == len(plans[1].states) and (not states or max(states) >= 10)


@pytest.mark.parametrize("sequence, expected", [
    ("", []), ("abc", []), ("abcabc", []), ("abcabcabc", [(0, 3, 3)]), ("xabcabcabcy", [(1, 3, 3)]),
    ("xabcabcabcabcabyabdabdabd", [(1, 3, 4), (16, 3, 3)]), ("aaaaaaaaaaaa", [(0, 3, 4)]),
])
def test_repeats(sequence: str, expected: list[tuple[int, int, int]]) -> None:
    assert repeats(sequence) == expected


def test_repeats_do_not_overlap() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        codes = random.integers(0, 2, random.integers(0, 60)).tolist()
        end = 0
        for first, period, count in repeats(codes):
            assert first >= end and count >= MIN_REPEATS
            assert codes[first:first + period * (count - 1)] == codes[first + period:first + period * count]
            end = first + period * count
        assert end <= len(codes)


def test_states_and_bodies() -> None:
    stateful = draw(net_plan(models.stateful()), "stateful")
    (state,) = [box for box in stateful.boxes.values() if box.kind == "state"]
    assert state.title == "s"
    assert {(e.source == state.name, e.target == state.name) for e in stateful.edges
            if state.name in (e.source, e.target)} == {(True, False), (False, True)}
    loop = draw(net_plan(models.loop()), "loop")
    (control,) = [box for box in loop.boxes.values() if box.bodies]
    (body,) = control.bodies
    assert body.title.startswith("body × ") and body.steps and all(name.startswith(control.name) for name in body.boxes)
    text = as_dot(loop)
    assert f'subgraph "cluster_{control.name}_body0"' in text and names(text)[1] <= names(text)[0]


@pytest.fixture
def strange() -> Plan:
    net = Net("strange")
    x = net.layer("Relu", "opset1", [net.parameter("f32", (2,), 'in "x"')], name='<b> & "q" \\ é ‰')
    net.result(net.layer("Abs", "opset1", [x], name="y" * 100))
    return net_plan(net)


def test_names_are_escaped(strange: Plan) -> None:
    text = as_dot(draw(strange, 'title "&<'))
    assert "&lt;b&gt; &amp; &quot;q&quot; \\ é" in text and "<b> &" not in text
    assert "…" + "y" * 43 in text and "y" * 50 not in text
    page = as_html(strange, "<title>")
    assert "&lt;title&gt;" in page and "<b> &" not in page and "y" * 100 in page


def rows(page: str) -> Iterator[ElementTree.Element]:
    table = re.search(r"<tbody>.*</tbody>", page, re.DOTALL)
    assert table is not None
    yield from ElementTree.fromstring(table[0].replace("&emsp;", " ").replace("<br>", "<br/>"))


def test_html(emulated: str) -> None:
    """The table has a row for every step, of bodies too, and keys that sort numbers as numbers."""
    for plan in net_plan(models.loop()), net_plan(models.chain(), emulated):
        page = as_html(plan, "plan", "<svg/>")
        found = list(rows(page))
        assert len(found) == len(list(plan.all_steps()))
        keys = [[cell.get("data-key", "") for cell in row] for row in found]
        for step, cells in zip(plan.all_steps(), keys):
            row = dict(zip(COLUMNS, cells))
            assert (row["op"], row["layer"]) == (step.op, step.layer)
            assert int(row["read"]) + int(row["written"]) == int(row["share"]) == step.bytes_moved
            assert float(row["#"]) == (-1 if step.number is None else step.number)
        fused = "".join(text for row in found for text in row.itertext())
        assert all(layer in fused for step in plan.all_steps() for layer in step.fused)
        assert "<svg/>" in page and "http" not in page.replace("http://www.w3.org", "")


def info(model: str, capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    code = main(["info", model, "-d", "CPU", *argv])
    out, err = capsys.readouterr()
    return err if code else out


def test_command(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphviz is a program named dot; here a shell script stands in for it."""
    model, binaries = write(models.chain()), tmp_path / "bin"
    binaries.mkdir()
    monkeypatch.setenv("PATH", str(binaries))
    text = info(model, capsys, "--graph", str(tmp_path / "g.dot"), "--html", str(tmp_path / "p.html"))
    assert "g.dot: 3 of 3 steps drawn" in text and "p.html, without the graph, which needs Graphviz" in text
    assert (tmp_path / "g.dot").read_text().startswith("digraph plan {") and "Plan for" not in text
    assert "g.svg needs Graphviz, whose program dot is not installed" in info(
        model, capsys, "--graph", str(tmp_path / "g.svg"))
    assert "the graph is written as .dot, .gv, .svg" in info(model, capsys, "--graph", "g.jpeg")
    script = binaries / "dot"
    script.write_text("#!/bin/sh\necho \"<?xml?><svg>$1 $(/bin/cat | /usr/bin/wc -l)</svg>\"\n")
    script.chmod(0o755)
    info(model, capsys, "--graph", str(tmp_path / "g.svg"), "--html", str(tmp_path / "p.html"))
    assert re.fullmatch(r"<\?xml\?><svg>-Tsvg +\d+</svg>\n", (tmp_path / "g.svg").read_text())
    assert "<summary>Graph</summary>\n<svg>-Tsvg" in (tmp_path / "p.html").read_text()
    script.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    assert "Graphviz cannot draw g.svg: broken" in info(model, capsys, "--graph", str(tmp_path / "g.svg"))
    monkeypatch.setattr("ovgpu.cli.graph.dot.TIMEOUT_SECONDS", 0.1)
    script.write_text("#!/bin/sh\nexec /bin/sleep 5\n")
    assert "Graphviz did not draw g.svg in 0.1 s" in info(model, capsys, "--graph", str(tmp_path / "g.svg"))


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_with_graphviz(strange: Plan) -> None:
    for plan in strange, net_plan(models.loop()), net_plan(models.stateful()):
        assert b"</svg>" in render(as_dot(draw(plan, "plan")), Path("plan.svg"))
