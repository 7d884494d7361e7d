"""A drawing as DOT text, and as an image by Graphviz."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

from ovgpu.cli.graph.drawing import MAX_LABELS, Block, Box, Drawing
from ovgpu.runtime.printing import bytes_text

COLORS = {
    "bound": ("#e3f1e3", "#5d8f5d"),
    "in place": ("#c9e6c9", "#5d8f5d"),
    "copy": ("#fff3c4", "#a88a1c"),
    "eager": ("#fbd9d3", "#b5523f"),
    "control": ("#ead9f2", "#8e5fa8"),
    "host": ("#d9e4f7", "#4c6fa5"),
    "upload": ("#d6f0f2", "#3f8f96"),
    "download": ("#d6f0f2", "#3f8f96"),
    "input": ("#ffffff", "#444444"),
    "result": ("#ffffff", "#444444"),
    "state": ("#ffe0b8", "#b26b00"),
}
"""Fill and border of each kind of box."""
SHAPES = {"input": "oval", "result": "oval", "state": "cylinder"}
EDGES = {
    "tensor": "",
    "next": 'style=dashed, constraint=false, color="#b26b00", fontcolor="#b26b00", ',
    "host": 'style=dotted, color="#4c6fa5", ',
}
FORMATS = (".svg", ".png", ".pdf")
TIMEOUT_SECONDS = 120
NO_XML = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]")  # characters that XML cannot have


def row_of(box: str) -> str:
    """Return the id of a box's row in the page of `as_html`."""
    return f"row-{box}"


def as_dot(drawing: Drawing, linked: bool = False) -> str:
    """Return the text of a drawing in the DOT language. With ``linked``, boxes of steps are links to their rows."""
    lines = [
        'graph [fontname="Helvetica", labelloc=t, ranksep=0.35, nodesep=0.25, compound=true, '
        f"label={_label(drawing.title, [drawing.subtitle, *_legend(drawing)])}];",
        'node [shape=box, style="filled,rounded", fontname="Helvetica", fontsize=11];',
        'edge [fontname="Helvetica", fontsize=8, color="#6e6e6e", fontcolor="#6e6e6e", arrowsize=0.6];',
        *_content(drawing, linked),
    ]
    return "\n".join(["digraph plan {", *(f"  {line}" for line in lines), "}"]) + "\n"


def render(dot: str, path: Path) -> bytes:
    """Return an image of DOT text in the format of the path's suffix, by Graphviz's program ``dot``.

    Raises: ValueError if Graphviz is not installed, takes too long, or fails.
    """
    import shutil
    import subprocess

    program = shutil.which("dot")
    if program is None:
        raise ValueError(
            f"{path.name} needs Graphviz, whose program dot is not installed: install Graphviz "
            f"(apt install graphviz), or write {path.stem}.dot"
        )
    try:
        completed = subprocess.run(
            [program, f"-T{path.suffix[1:].lower()}"], input=dot.encode(), capture_output=True, timeout=TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"Graphviz did not draw {path.name} in {TIMEOUT_SECONDS} s; {path.stem}.dot has the graph "
            "for other programs"
        ) from None
    if completed.returncode:
        raise ValueError(f"Graphviz cannot draw {path.name}: {completed.stderr.decode(errors='replace').strip()}")
    return completed.stdout


def _legend(drawing: Drawing) -> Iterator[str]:
    """Yield the line of the title that explains dashed edges, if there are any."""
    if any(edge.kind == "next" for edge in drawing.edges):
        yield "dashed: read by the next block"


def _content(drawing: Drawing, linked: bool) -> Iterator[str]:
    inside = {name for block in drawing.blocks for name in block.boxes}
    for block in drawing.blocks:
        yield from _block(block, drawing, linked)
    for name, box in drawing.boxes.items():
        if name not in inside:
            yield from _box(box, linked)
    for edge in drawing.edges:
        more = [f"and {len(edge.labels) - MAX_LABELS} more"] if len(edge.labels) > MAX_LABELS else []
        label = "<br/>".join(map(_text, (*edge.labels[:MAX_LABELS], *more)))
        yield f'"{edge.source}" -> "{edge.target}" [{EDGES[edge.kind]}label=<{label or " "}>];'


def _block(block: Block, drawing: Drawing, linked: bool) -> Iterator[str]:
    size = [f"{bytes_text(block.nbytes)} moved in all"] if block.nbytes else []
    label = _label(f"× {block.count}", [f"{block.first} to {block.last}", *size])
    yield f'subgraph "cluster_{block.boxes[0]}" {{'
    yield f'  label={label}; style="rounded,filled"; fillcolor="#f6f6f6"; color="#9a9a9a";'
    for name in block.boxes:
        yield from (f"  {line}" for line in _box(drawing.boxes[name], linked))
    yield "}"


def _box(box: Box, linked: bool) -> Iterator[str]:
    fill, border = COLORS[box.kind]
    link = f'id="{box.name}", URL="#{row_of(box.name)}", tooltip="show its row", '
    yield (
        f'"{box.name}" [shape={SHAPES.get(box.kind, "box")}, fillcolor="{fill}", color="{border}", '
        f"{link if linked and box.kind not in SHAPES else ''}label={_label(box.title, box.lines)}];"
    )
    for body_index, body in enumerate(box.bodies):
        yield f'subgraph "cluster_{box.name}_body{body_index}" {{'
        yield f'  label={_label(body.title)}; style="rounded"; color="{border}";'
        yield from (f"  {line}" for line in _content(body, linked))
        yield "}"
        read = {edge.target for edge in body.edges if edge.kind == "tensor"}
        first = next((name for name in body.boxes if name not in read), next(iter(body.boxes), ""))
        if first:
            yield (
                f'"{box.name}" -> "{first}" [style=dotted, arrowhead=none, color="{border}", '
                f'lhead="cluster_{box.name}_body{body_index}"];'
            )


def _label(title: str, lines: list[str] | None = None) -> str:
    """Return an HTML-like label, in which backslashes mean nothing."""
    small = "".join(f'<br/><font point-size="9">{_text(line)}</font>' for line in lines or () if line)
    return f"<<b>{_text(title)}</b>{small}>"


def _text(text: str) -> str:
    """Return text for an HTML-like label, which must not be empty."""
    return escape(NO_XML.sub("�", text)).replace("\n", " ") or " "
