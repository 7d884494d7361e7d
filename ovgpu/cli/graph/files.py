"""Files that show a plan: its graph, and a page with a table."""

from __future__ import annotations

import argparse
from pathlib import Path

from ovgpu._util.atomic_file import check_writable, replacing
from ovgpu.cli.graph.dot import FORMATS, as_dot, render
from ovgpu.cli.graph.drawing import Drawing, draw
from ovgpu.cli.graph.html import as_html
from ovgpu.runtime.plan import Plan
from ovgpu.runtime.printing import counted

DOT_SUFFIXES = (".dot", ".gv")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `write` reads."""
    parser.add_argument(
        "--graph",
        default="",
        metavar="FILE.svg",
        help="draw the graph of the plan: .dot, or .svg, .png and .pdf by Graphviz",
    )
    parser.add_argument(
        "--html",
        default="",
        metavar="FILE.html",
        help="write the plan as a table to sort, with its graph if Graphviz is installed",
    )
    parser.add_argument(
        "--unfolded",
        action="store_true",
        help="list and draw all steps, also those of equal blocks such as the layers of a decoder, and views",
    )


def check(args: argparse.Namespace) -> None:
    """Check the options before the work: ValueError for an unknown suffix, OSError for a file that is not writable."""
    if args.graph and Path(args.graph).suffix.lower() not in (*DOT_SUFFIXES, *FORMATS):
        raise ValueError(f"--graph {args.graph}: the graph is written as {', '.join((*DOT_SUFFIXES, *FORMATS))}")
    check_writable(*(Path(file) for file in (args.graph, args.html) if file))


def write(plan: Plan, title: str, args: argparse.Namespace) -> list[str]:
    """Write the files that the options name. Return a message for each. Raises: ValueError if Graphviz is missing."""
    drawing = draw(plan, title, not args.unfolded)
    messages = []
    if args.graph:
        path, dot = Path(args.graph), as_dot(drawing)
        _write(path, dot.encode() if path.suffix.lower() in DOT_SUFFIXES else render(dot, path))
        messages.append(f"wrote {path}: {_drawn(plan, drawing)}")
    if args.html:
        path = Path(args.html)
        svg, reason = "", ""
        try:
            svg = render(as_dot(drawing, linked=True), path.with_suffix(".svg")).decode()
        except ValueError as e:  # the table is useful without the graph
            reason = f", without the graph: {e}"
        _write(path, as_html(plan, drawing, svg[max(svg.find("<svg"), 0) :]).encode(errors="replace"))
        messages.append(f"wrote {path}{reason}")
    return messages


def _drawn(plan: Plan, drawing: Drawing) -> str:
    steps = sum(step.kind != "view" for step in plan.steps)
    folded = "".join(f", {block.count} equal blocks as one" for block in drawing.blocks)
    return f"{drawing.steps} of {counted(steps, 'step')} drawn{folded}"


def _write(path: Path, data: bytes) -> None:
    with replacing(path) as (file,):
        file.write(data)
