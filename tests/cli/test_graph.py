"""``ovgpu info --graph`` and ``--html``: drawings of plans."""

from __future__ import annotations

import argparse
import itertools
import re
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu
from ovgpu.cli import graph, main
from ovgpu.cli._ports import port_name, static_shapes
from ovgpu.cli.graph.dot import as_dot, render
from ovgpu.cli.graph.drawing import Box, Drawing, draw
from ovgpu.cli.graph.folding import MIN_REPEATS, folds
from ovgpu.cli.graph.html import COLUMNS, as_html
from ovgpu.runtime.plan import Plan
from tests.harness.ir import Net
from tests.harness.models import transformer
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
    assert len(set(blocks)) == len(blocks)
    for block in drawing.blocks:
        inside = [drawing.boxes[name] for name in block.boxes if drawing.boxes[name].kind != "state"]
        assert {box.times for box in inside} == {block.count}
        assert sum(box.nbytes for box in inside) * block.count == block.nbytes
    assert {box.name for box in boxes if box.times > 1} <= set(blocks)
    assert sum(box.times for box in drawing.boxes.values() if box.kind == "state") == len(plan.states)
    for box in boxes:
        for body in box.bodies:
            assert all(name.startswith(box.name) for name in body.boxes)


def boxes_of(drawing: Drawing, op: str) -> list[Box]:
    return [box for box in drawing.boxes.values() if box.title == op]


def is_connected(drawing: Drawing, source: Box, target: Box) -> bool:
    """Return whether a path of edges leads from one box to another."""
    reached, waiting = {source.name}, [source.name]
    while waiting:
        name = waiting.pop()
        found = {edge.target for edge in drawing.edges if edge.source == name} - reached
        reached |= found
        waiting += found
    return target.name in reached


def names(dot: str) -> tuple[set[str], set[str]]:
    """Return the names of the nodes of DOT text, and of the ends of its edges."""
    ends = {end for pair in re.findall(r'^\s*"(\w+)" -> "(\w+)"', dot, re.MULTILINE) for end in pair}
    return set(re.findall(r'^\s*"(\w+)" \[', dot, re.MULTILINE)), ends


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", sorted(path.parent.name for path in DATA.glob("*/model.xml")))
def test_models(name: str) -> None:
    compiled = ovgpu.compile_model(DATA / name, "CPU")
    with np.load(DATA / name / "expected.npz") as recorded:
        plan = compiled.plan([recorded[f"call/00/in/{port_name(port)}"].shape for port in compiled.inputs])
    drawing = draw(plan, name)
    check(drawing, plan)
    nodes, ends = names(as_dot(drawing))
    assert ends <= nodes and len(nodes) >= drawing.steps
    results = {box.name for box in drawing.boxes.values() if box.kind == "result"}
    assert results <= {edge.target for edge in drawing.edges}


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "make", [transformer.gpt2, lambda seed, sizes: transformer.bert(seed, sizes, (1, 8)), transformer.llama]
)
@pytest.mark.parametrize("device", ["CPU", "emulated"])
def test_layers_are_folded(make: Make, device: str, request: pytest.FixtureRequest) -> None:
    """Equal layers are one block, from the start of a layer to its end.

    On CUDA, the normalization after the last layer is fused differently, so that eleven of twelve layers are equal.
    """
    name = request.getfixturevalue("emulated") if device == "emulated" else device
    plans = [plan_of(ovgpu.read_model(*make(1, replace(SMALL, layers=layers)).ir), name) for layers in (2, 12)]
    drawings = [draw(plan, "model") for plan in plans]
    for drawing, plan in zip(drawings, plans):
        check(drawing, plan)
    assert not drawings[0].blocks
    (block,) = drawings[1].blocks
    assert block.count == (12 if device == "CPU" else 11)
    assert drawings[1].steps <= drawings[0].steps
    assert len({edge.source for edge in drawings[1].edges if edge.kind == "next"}) == 1
    unfolded = draw(plans[1], "model", fold=False)
    check(unfolded, plans[1])
    assert not unfolded.blocks and unfolded.steps == sum(step.kind != "view" for step in plans[1].steps)
    assert all(box.name in block.boxes for box in drawings[1].boxes.values() if box.times > 1)


def test_attention_reads_its_cache() -> None:
    """The parts of a concatenation are connected to its readers, and a block contains the states of its layers."""
    plan = plan_of(ovgpu.read_model(*transformer.gpt2(1, SMALL).ir))
    drawing = draw(plan, "gpt2")
    (attention,), (block,) = boxes_of(drawing, "ScaledDotProductAttention"), drawing.blocks
    states = [box for box in drawing.boxes.values() if box.kind == "state"]
    assert [box.times for box in states] == [12, 12] and {box.name for box in states} <= set(block.boxes)
    for state in states:
        assert is_connected(drawing, state, attention) and "12 variables" in state.lines[1]
    copied = [box for box in boxes_of(drawing, "Copy") if box.times == 12]
    assert {(box.name, attention.name) for box in copied} <= {(e.source, e.target) for e in drawing.edges}
    (result,) = [box for box in drawing.boxes.values() if box.kind == "result"]
    assert all(is_connected(drawing, box, result) for box in drawing.boxes.values())


@pytest.mark.parametrize(
    "sequence, expected",
    [
        ("", []),
        ("abc", []),
        ("abcdabcd", []),
        ("abcabcabc", [(0, 3, 3)]),
        ("xabcabcabcy", [(1, 3, 3)]),
        ("xabcabcabcabcabyabdabdabd", [(1, 3, 4), (16, 3, 3)]),
        ("aaaaaaaaaaaa", [(0, 1, 12)]),
        ("aaabbb", []),
    ],
)
def test_folds(sequence: str, expected: list[tuple[int, int, int]]) -> None:
    found = folds(sequence, [[] for _ in sequence])
    assert [(blocks[0][0], len(blocks[0]), len(blocks)) for blocks in found] == expected


def test_folds_of_interleaved_steps() -> None:
    """Steps of the first and last block that are interleaved with others belong to their blocks."""
    sequence = "aMbNcabcabcabcaNbc"
    chain = [number for number, code in enumerate(sequence) if code in "abc"]
    reads: list[list[list[int]]] = [[] for _ in sequence]
    for before, after in itertools.pairwise(chain):
        reads[after] = [[before]]
    reads[0] = [[]]  # the first a reads no step
    assert folds(sequence, reads) == [[chain[i : i + 3] for i in range(0, 15, 3)]]
    reads[chain[-2]] = [[chain[-4]]]  # the last b reads another step
    assert folds(sequence, reads) == [[chain[i : i + 3] for i in range(0, 12, 3)]]


def test_blocks_begin_where_they_read_least() -> None:
    """A layer is a, b and c, which reads both; a run that begins earlier or later has more tensors across blocks."""
    sequence = "c" + "abc" * 5 + "a"
    reads = [[[n - 1]] if n else [[]] for n in range(len(sequence))]
    for n, code in enumerate(sequence):
        reads[n].append([n - 2] if code == "c" and n else [])
    assert folds(sequence, reads) == [[[n, n + 1, n + 2] for n in range(1, 16, 3)]]


def test_folds_do_not_overlap() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        codes = random.integers(0, 2, random.integers(0, 60)).tolist()
        reads = [[[int(random.integers(0, n))] for _ in range(2)] if n else [[], []] for n in range(len(codes))]
        found = folds(codes, reads)
        for blocks in found:
            assert len(blocks) >= MIN_REPEATS
            assert len({tuple(codes[step] for step in block) for block in blocks}) == 1
        steps = [step for blocks in found for block in blocks for step in block]
        assert len(set(steps)) == len(steps)


@pytest.mark.parametrize("device", ["CPU", "emulated"])
def test_states_and_bodies(device: str, request: pytest.FixtureRequest) -> None:
    name = request.getfixturevalue("emulated") if device == "emulated" else device
    plan = net_plan(models.stateful(), name)
    stateful = draw(plan, "stateful")
    check(stateful, plan)
    (state,) = [box for box in stateful.boxes.values() if box.kind == "state"]
    (add,), (copy,) = boxes_of(stateful, "Add"), boxes_of(stateful, "Copy")
    assert state.title == "s"
    assert {(e.source, e.target) for e in stateful.edges if state.name in (e.source, e.target)} == {
        (state.name, add.name),
        (copy.name, state.name),
    }
    plan = net_plan(models.loop(), name)
    loop = draw(plan, "loop")
    check(loop, plan)
    (control,) = [box for box in loop.boxes.values() if box.bodies]
    (body,) = control.bodies
    assert body.title.startswith("body × ") and body.steps
    text = as_dot(loop)
    assert f'subgraph "cluster_{control.name}_body0"' in text and names(text)[1] <= names(text)[0]


@pytest.mark.parametrize("make", [models.chain, models.counted, models.branching, models.reshaped])
@pytest.mark.parametrize("device", ["CPU", "emulated"])
def test_everything_between_input_and_result_is_connected(
    make: Callable[[], Net], device: str, request: pytest.FixtureRequest
) -> None:
    """Inputs lead to results by way of uploads and downloads, of numbers on the host, and of parts written in place."""
    plan = net_plan(make(), request.getfixturevalue("emulated") if device == "emulated" else device)
    drawing = draw(plan, "model")
    check(drawing, plan)
    (first,) = [box for box in drawing.boxes.values() if box.kind == "input"]
    (last,) = [box for box in drawing.boxes.values() if box.kind == "result"]
    for box in drawing.boxes.values():
        assert is_connected(drawing, first, box) and is_connected(drawing, box, last)


def test_steps_after_results_of_unknown_rank() -> None:
    """Each If returns a vector or a matrix; the steps after it belong to a program that is built at run time."""
    net = Net("ranks")
    x = y = net.parameter("f32", (4,), "x")
    state = net.read_value("s", "f32", (4,), net.const(np.zeros(4, "f4")))
    for name in "first", "second":
        total = net.layer("ReduceSum", "opset1", [x, net.const([0])], {"keep_dims": False})
        positive = net.layer("Greater", "opset1", [total, net.const(0.0, "f32")], outputs=["boolean"])
        then, other = Net("then"), Net("else")
        a, b = then.parameter("f32", None, "a"), other.parameter("f32", None, "b")
        same = then.result(then.layer("Relu", "opset1", [a]))
        matrix = other.result(other.layer("Unsqueeze", "opset1", [b, other.const([0])]))
        y = net.if_(positive, then, other, [(y, a, b)], [(same, matrix)], name=name)
        y = net.layer("Abs", "opset1", [net.layer("Add", "opset1", [y, x])], name=f"after {name}")
    net.assign("s", net.layer("Add", "opset1", [state, x], name="add"))
    net.result(y)
    request = ovgpu.compile_model(ovgpu.read_model(*net.build()), "CPU").create_infer_request()
    request.infer([np.ones(4, "f4")])
    plan = request.plan()
    drawing = draw(plan, "ranks")
    check(drawing, plan)
    assert [box.title for box in drawing.boxes.values() if box.kind in ("input", "result", "state")] == [
        "x",
        "after second",
        "s",
    ]
    (first,) = [box for box in drawing.boxes.values() if box.kind == "input"]
    (last,) = [box for box in drawing.boxes.values() if box.kind == "result"]
    (state_box,) = [box for box in drawing.boxes.values() if box.kind == "state"]
    (before, after) = boxes_of(drawing, "If")
    assert is_connected(drawing, before, after) and is_connected(drawing, after, last)
    assert is_connected(drawing, first, state_box) and not is_connected(drawing, state_box, last)
    assert len(boxes_of(drawing, "Abs")) == 2


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
    page = as_html(strange, draw(strange, "<title>"))
    assert "&lt;title&gt;" in page and "<b> &" not in page and "y" * 100 in page


def rows(page: str) -> Iterator[ElementTree.Element]:
    table = re.search(r"<tbody>.*</tbody>", page, re.DOTALL)
    assert table is not None
    yield from ElementTree.fromstring(table[0].replace("&emsp;", " ").replace("<br>", "<br/>"))


def test_html(emulated: str) -> None:
    """The table has a row for every step, of bodies too, and keys that sort numbers as numbers."""
    for plan in net_plan(models.loop()), net_plan(models.chain(), emulated):
        page = as_html(plan, draw(plan, "plan"), "<svg/>")
        found = list(rows(page))
        assert len(found) == len(list(plan.all_steps()))
        keys = [[cell.get("data-key", "") for cell in row] for row in found]
        for step, cells in zip(plan.all_steps(), keys):
            row = dict(zip(COLUMNS, cells))
            assert (row["op"], row["layer"]) == (step.op, step.layer)
            assert int(row["read"]) + int(row["written"]) == step.bytes_moved
        assert [int(cells[0]) for cells in keys] == list(range(len(keys)))
        shares = [int(cells[COLUMNS.index("share")]) for cells in keys]
        assert (
            sum(share for share, row in zip(shares, found) if "." not in "".join(row[0].itertext())) == plan.bytes_moved
        )
        fused = "".join(text for row in found for text in row.itertext())
        assert all(layer in fused for step in plan.all_steps() for layer in step.fused)
        assert "<svg/>" in page and "http" not in page


def test_html_of_bodies() -> None:
    """A body's share counts its iterations, and its steps have the number of their loop."""
    plan = net_plan(models.loop(5))
    found = [
        [("".join(cell.itertext()), cell.get("data-key", "")) for cell in row]
        for row in rows(as_html(plan, draw(plan, "x")))
    ]
    assert [row[0][0] for row in found] == ["0", "0.0", "0.1", "1"]
    assert [row[2][0].lstrip() for row in found] == ["TensorIterator (body × 5)", "Add", "Tanh", "Relu"]
    shares = [int(row[COLUMNS.index("share")][1]) for row in found]
    assert shares[0] == shares[1] + shares[2] == 5 * (48 + 32)


@pytest.mark.parametrize("make", [models.loop, lambda: transformer.gpt2(1, SMALL)], ids=["loop", "gpt2"])
def test_rows_and_nodes_are_linked(make: Any) -> None:
    """A row leads to its node, and a node to the row of the step that it stands for. Other rows are hidden at first."""
    net = make()
    plan = plan_of(ovgpu.read_model(*(net.ir if isinstance(net, transformer.Transformer) else net.build())))
    drawing = draw(plan, "x")
    dot, page = as_dot(drawing, linked=True), as_html(plan, drawing, "<svg/>")
    ids, nodes = (re.findall(pattern, dot) for pattern in (r'id="(\w+)", URL="#row-\1"', r'"(\w+)" \[shape=box'))
    assert set(ids) == set(nodes) and "URL" not in as_dot(drawing)
    shown = [row for row in rows(page) if "again" not in row.get("class", "") and row.get("class") != "view"]
    assert [row.get("id") for row in shown] == [row[0][0].get("href", "").replace("#", "row-") for row in shown]
    assert {row.get("id") for row in shown} == {f"row-{name}" for name in ids}
    assert len({row.get("id") for row in rows(page)} - {None}) == len(shown)
    assert ("all steps, also equal blocks" in page) == bool(drawing.blocks)
    if drawing.blocks:
        assert len(shown) == drawing.steps < sum(step.kind != "view" for step in plan.steps)
        times = ["× 12" in "".join(row[2].itertext()) for row in shown]
        assert sum(times) == len([box for box in drawing.boxes.values() if box.times > 1 and box.kind != "state"])


def info(model: str, capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    code = main(["info", model, "-d", "CPU", *argv])
    out, err = capsys.readouterr()
    return err if code else out


def test_command(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Graphviz is a program named dot; here a shell script stands in for it."""
    model, binaries = write(models.chain()), tmp_path / "bin"
    binaries.mkdir()
    monkeypatch.setenv("PATH", str(binaries))
    text = info(model, capsys, "--graph", str(tmp_path / "g.dot"), "--html", str(tmp_path / "p.html"))
    assert "g.dot: 3 of 3 steps drawn" in text
    assert "p.html, without the graph: p.svg needs Graphviz, whose program dot is not installed" in text
    assert (tmp_path / "g.dot").read_text().startswith("digraph plan {") and "Plan for" not in text
    assert "g.svg needs Graphviz, whose program dot is not installed" in info(
        model, capsys, "--graph", str(tmp_path / "g.svg")
    )
    assert "install Graphviz (apt install graphviz), or write g.dot" in info(
        model, capsys, "--graph", str(tmp_path / "g.svg")
    )
    assert not (tmp_path / "g.svg").exists()
    assert "the graph is written as .dot, .gv, .svg" in info(model, capsys, "--graph", "g.jpeg")
    script = binaries / "dot"
    script.write_text('#!/bin/sh\necho "<?xml?><svg>$1 $(/bin/cat | /usr/bin/wc -l)</svg>"\n')
    script.chmod(0o755)
    info(model, capsys, "--graph", str(tmp_path / "g.svg"), "--html", str(tmp_path / "p.html"))
    assert re.fullmatch(r"<\?xml\?><svg>-Tsvg +\d+</svg>\n", (tmp_path / "g.svg").read_text())
    assert '<div class="graph"><svg>-Tsvg' in (tmp_path / "p.html").read_text()
    script.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    assert "Graphviz cannot draw g.svg: broken" in info(model, capsys, "--graph", str(tmp_path / "g.svg"))
    monkeypatch.setattr("ovgpu.cli.graph.dot.TIMEOUT_SECONDS", 0.1)
    script.write_text("#!/bin/sh\nexec /bin/sleep 5\n")
    assert "Graphviz did not draw g.svg in 0.1 s" in info(model, capsys, "--graph", str(tmp_path / "g.svg"))


def test_unfolded(decoder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = info(decoder, capsys, "--graph", str(tmp_path / "g.DOT"), "--unfolded")
    assert re.search(r"g\.DOT: (\d+) of \1 steps drawn$", text, re.MULTILINE)


def test_messages_say_what_is_folded(tmp_path: Path) -> None:
    args = argparse.Namespace(graph=str(tmp_path / "g.dot"), html="", unfolded=False)
    plan = plan_of(ovgpu.read_model(*transformer.gpt2(1, SMALL).ir))
    assert graph.write(plan, "gpt2", args) == [
        f"wrote {tmp_path / 'g.dot'}: 44 of 242 steps drawn, 12 equal blocks as one"
    ]


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_with_graphviz(strange: Plan) -> None:
    for plan in strange, net_plan(models.loop()), net_plan(models.stateful()):
        svg = ElementTree.fromstring(render(as_dot(draw(plan, "plan")), Path("plan.svg")))
        shown = "".join(svg.itertext())
        assert all(step.layer in shown for step in plan.steps if len(step.layer) < 40)
