"""A drawing as DOT text, and as an image by Graphviz."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

from ovgpu.cli.graph.drawing import Box, Drawing

COLORS = {"bound": "#e3f1e3", "in place": "#d2e8d2", "copy": "#fff3c4", "eager": "#fbd9d3", "control": "#ead9f2",
          "host": "#d9e4f7", "upload": "#d6f0f2", "download": "#d6f0f2", "input": "#ffffff", "result": "#ffffff",
          "state": "#ffe0b8"}
SHAPES = {"input": "oval", "result": "oval", "state": "cylinder"}
FORMATS = (".svg", ".png", ".pdf")
TIMEOUT_SECONDS = 120
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")  # XML, and so HTML labels, cannot have them


def as_dot(drawing: Drawing) -> str:
    """Return the text of a drawing in the DOT language."""
    lines = ["digraph plan {", '  graph [fontname="Helvetica", labelloc=t, ranksep=0.35, nodesep=0.25, compound=true, '
             f"label={_html(drawing.title, bold=True)}];",
             '  node [shape=box, style="filled,rounded", fontname="Helvetica", fontsize=11, color="#8a8a8a"];',
             '  edge [fontname="Helvetica", fontsize=8, color="#6e6e6e", fontcolor="#6e6e6e", arrowsize=0.6];',
             *(f"  {line}" for line in _content(drawing)), "}"]
    return "\n".join(lines) + "\n"


def render(dot: str, path: Path) -> bytes:
    """Return an image of DOT text in the format of the path's suffix, by Graphviz's program ``dot``.

    Raises: ValueError if Graphviz is not installed, takes too long, or fails.
    """
    import shutil
    import subprocess

    program = shutil.which("dot")
    if program is None:
        raise ValueError(f"{path.name} needs Graphviz, whose program dot is not installed (apt install graphviz); "
                         f"{path.stem}.dot needs nothing")
    try:
        found = subprocess.run([program, f"-T{path.suffix[1:]}"], input=dot.encode(), capture_output=True,
                               timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        raise ValueError(f"Graphviz did not draw {path.name} in {TIMEOUT_SECONDS} s; {path.stem}.dot has the graph "
                         "for other programs") from None
    if found.returncode:
        raise ValueError(f"Graphviz cannot draw {path.name}: {found.stderr.decode(errors='replace').strip()}")
    return found.stdout


def _content(drawing: Drawing) -> Iterator[str]:
    inside = {name for block in drawing.blocks for name in block.boxes}
    for number, block in enumerate(drawing.blocks):
        yield f'subgraph "cluster_{block.boxes[0]}_{number}" {{'
        yield f'  label={_html(block.title, bold=True)}; style="rounded,filled"; fillcolor="#f6f6f6"; color="#9a9a9a";'
        for name in block.boxes:
            yield from (f"  {line}" for line in _box(drawing.boxes[name]))
        yield "}"
    for name, box in drawing.boxes.items():
        if name not in inside:
            yield from _box(box)
    for edge in drawing.edges:
        style = 'style=dashed, constraint=false, color="#b26b00", ' if edge.next else ""
        yield f'"{edge.source}" -> "{edge.target}" [{style}label={_html(edge.label)}];'


def _box(box: Box) -> Iterator[str]:
    lines = "".join(f'<br/><font point-size="9">{_text(line)}</font>' for line in box.lines)
    yield (f'"{box.name}" [shape={SHAPES.get(box.kind, "box")}, fillcolor="{COLORS[box.kind]}", '
           f"label=<<b>{_text(box.title)}</b>{lines}>];")
    for number, body in enumerate(box.bodies):
        yield f'subgraph "cluster_{box.name}_body{number}" {{'
        yield f'  label={_html(body.title, bold=True)}; style="rounded"; color="#8e5fa8";'
        yield from (f"  {line}" for line in _content(body))
        yield "}"
        if body.boxes:
            yield (f'"{box.name}" -> "{next(iter(body.boxes))}" [style=dotted, arrowhead=none, '
                   f'lhead="cluster_{box.name}_body{number}"];')


def _html(text: str, bold: bool = False) -> str:
    if not text:
        return '""'
    return f"<<b>{_text(text)}</b>>" if bold else f"<{_text(text)}>"


def _text(text: str) -> str:
    """Return text for an HTML-like label, which must not be empty."""
    return escape(CONTROLS.sub("�", text)).replace("\n", " ") or " "
