"""A plan as one HTML file: a summary, a table of steps to sort and filter, and the drawing."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import NamedTuple

from ovgpu.cli.graph.dot import row_of
from ovgpu.cli.graph.drawing import Box, Drawing
from ovgpu.runtime.plan import Plan, PlanStep
from ovgpu.runtime.printing import bytes_text, counted, legend, memory_text, shapes_text

COLUMNS = ("#", "kind", "op", "layer", "shapes", "memory", "read", "written", "share", "calls", "us")
NUMBERS = {"#", "read", "written", "share", "calls", "us"}  # columns that are sorted as numbers

STYLE = """
:root { color-scheme: light dark; font: 14px system-ui, sans-serif; }
body { margin: 1.5em; }
table { border-collapse: collapse; font-size: 13px; }
th { cursor: pointer; text-align: left; white-space: nowrap; user-select: none; }
th { position: sticky; top: 0; background: Canvas; }
th.n { text-align: right; }
th[aria-sort=ascending]::after { content: " ▲"; }
th[aria-sort=descending]::after { content: " ▼"; }
th, td { padding: .25em 1em .25em 0; vertical-align: top; border-bottom: 1px solid #8883; }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td a { color: inherit; }
tr.view { opacity: .55; }
tr:target { background: #fc35; scroll-margin-top: 3em; }
td:nth-child(2), .times { white-space: nowrap; }
.times { color: #a0a; }
.folded .again, .folded .view, body:not(.folded) .times { display: none; }
summary, th:hover { text-decoration: underline dotted; cursor: pointer; }
input[type=search] { font: inherit; margin: .8em 1em .8em 0; padding: .3em .5em; width: 24em; }
.zoom { margin: .5em 0; }
.graph { overflow: auto; max-height: 95vh; border: 1px solid #8883; }
.graph g:target :is(path, polygon, ellipse) { stroke: #e00; stroke-width: 4; }
@media (prefers-color-scheme: dark) { .graph svg { filter: invert(.9) hue-rotate(180deg); } .times { color: #f8f; } }
"""
SCRIPT = """
const table = document.querySelector("table"), body = table.tBodies[0], rows = [...body.rows];
let sorted = table.tHead.rows[0].cells[0], order = 1;
table.tHead.addEventListener("click", event => {
  const head = event.target.closest("th");
  if (!head) return;
  const numeric = head.className === "n", first = numeric && head.cellIndex ? -1 : 1;
  order = head === sorted ? -order : first;
  sorted.removeAttribute("aria-sort");
  sorted = head;
  sorted.setAttribute("aria-sort", order > 0 ? "ascending" : "descending");
  const key = row => row.cells[head.cellIndex].dataset.key;
  const compare = numeric ? (a, b) => key(a) - key(b) : (a, b) => key(a).localeCompare(key(b));
  body.append(...rows.sort((a, b) => order * compare(a, b)));
});

const search = document.querySelector("[type=search]"), all = document.querySelector("[type=checkbox]");
const show = () => {
  const text = search.value.toLowerCase();
  for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(text);
  document.body.classList.toggle("folded", all !== null && !all.checked && !text);
};
search.addEventListener("input", show);
all?.addEventListener("change", show);
show();

const graph = document.querySelector(".graph"), svg = graph?.querySelector("svg");
if (svg) {
  const width = svg.width.baseVal.value;
  let scale = 1;
  const zoom = (wanted, x = graph.clientWidth / 2, y = graph.clientHeight / 2) => {
    const factor = Math.min(Math.max(wanted, .05), 8) / scale;
    const left = (graph.scrollLeft + x) * factor - x, top = (graph.scrollTop + y) * factor - y;
    scale *= factor;
    svg.style.width = `${width * scale}px`;
    svg.style.height = "auto";
    graph.scrollTo(left, top);
  };
  const fit = () => zoom(Math.min(1, graph.clientWidth / width));
  document.querySelector(".zoom").addEventListener("click", event => {
    const factor = event.target.dataset.factor;
    if (factor) factor === "fit" ? fit() : zoom(scale * factor);
  });
  graph.addEventListener("wheel", event => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const at = graph.getBoundingClientRect();
    zoom(scale * Math.exp(-event.deltaY / 300), event.clientX - at.left, event.clientY - at.top);
  }, {passive: false});
  graph.addEventListener("pointermove", event => {
    if (event.buttons === 1) graph.scrollBy(-event.movementX, -event.movementY);
  });
  graph.addEventListener("dragstart", event => event.preventDefault());
  fit();
}
"""
ZOOM = (
    '<div class="zoom"><button data-factor="1.25">+</button> <button data-factor="0.8">−</button> '
    '<button data-factor="fit">fit</button> drag to move, Ctrl and wheel to zoom; a step is linked to its row</div>'
)


def as_html(plan: Plan, drawing: Drawing, svg: str = "") -> str:
    """Return the page, which needs no other file and no network. ``svg`` is the drawing as an image, if there is one.

    The page opens without the rows of views, and of equal blocks after the first one.
    """
    head = "".join(
        f'<th class="{"n" if name in NUMBERS else ""}"{" aria-sort=ascending" if name == "#" else ""}>{name}</th>'
        for name in COLUMNS
    )
    title = escape(drawing.title)
    rows = "\n".join(_row(position, line, plan, bool(svg)) for position, line in enumerate(_lines(plan, drawing)))
    words = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in legend(plan))
    graph = f'<details open><summary>Graph</summary>\n{ZOOM}<div class="graph">{svg}</div>\n</details>' if svg else ""
    unfold = '<label><input type="checkbox"> all steps, also equal blocks and views</label>' if drawing.blocks else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n<p>{escape(_summary(plan))}</p>\n"
        f"<details><summary>Words</summary><dl>{words}</dl></details>\n"
        f'<input type="search" placeholder="filter by op, layer, shape ..." aria-label="filter">{unfold}\n'
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>\n{graph}\n"
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _summary(plan: Plan) -> str:
    parts = [f"device {plan.device}"] if plan.device else []
    parts += [
        f"{counted(plan.launches, 'launch', 'launches')} of {counted(plan.kernels, 'kernel')}",
        f"{bytes_text(plan.bytes_moved)} moved per inference",
        f"arena {bytes_text(plan.arena) if None not in plan.arenas else '?'}",
        f"constants {bytes_text(plan.constants)}",
        f"state {bytes_text(plan.state)}",
        *(f"runs call by call: {reason}" for reason in plan.uncaptured),
    ]
    return "; ".join(parts)


class Line(NamedTuple):
    """A row of the table: a step that runs ``runs`` times per inference, and its box in the drawing, if it has one.

    ``first`` is true if the box stands for this step, false if it stands for an equal one before it.
    """

    step: PlanStep
    depth: int
    number: str
    runs: int
    box: Box | None
    first: bool


def _lines(
    plan: Plan, drawing: Drawing, depth: int = 0, prefix: str = "", runs: int = 1, again: bool = False
) -> Iterator[Line]:
    """Yield the lines of the steps, each followed by those of its bodies."""
    names, seen = iter(drawing.names), set[str]()
    for step in plan.steps:
        number = "" if step.number is None else f"{prefix}{step.number}"
        box = None if step.kind == "view" else drawing.boxes[next(names)]
        first = box is None or (not again and box.name not in seen)
        yield Line(step, depth, number, runs, box, first)
        if box is None:
            continue
        seen.add(box.name)
        for body, drawn in zip((body for body in step.bodies if body.trips != 0), box.bodies, strict=True):
            name = f"{number}.{body.name}." if len(step.bodies) > 1 else f"{number}."
            yield from _lines(body.plan, drawn, depth + 1, name, runs * (body.trips or 1), not first)


def _row(position: int, line: Line, plan: Plan, linked: bool) -> str:
    step, depth, number, runs, box, first = line
    fused = f"<details><summary>{counted(len(step.fused), 'fused layer')}</summary>{_names(step)}</details>"
    calls = -1 if step.calls is None or step.kind in ("view", "host") else step.calls
    memory = memory_text(step, plan)
    bodies = "".join(f" ({body.name} × {'?' if body.trips is None else body.trips})" for body in step.bodies)
    times = f' <span class="times">× {box.times}</span>' if box and box.times > 1 and first else ""
    moved = step.bytes_moved * runs
    cells: list[tuple[object, object]] = [
        (position, f'<a href="#{box.name}">{number}</a>' if linked and box else number),
        (step.kind, "in place" if step.in_place else step.kind),
        (step.op, "&emsp;" * depth + escape(step.op + bodies) + times),
        (step.layer, escape(step.layer) + (fused if step.fused else "")),
        *((text, escape(text)) for text in (shapes_text(step), memory)),
        *((size, bytes_text(size) if size else "") for size in (step.bytes_read, step.bytes_written)),
        (moved, f"{moved / max(plan.bytes_moved, 1):.1%}" if moved else ""),
        (calls, "" if calls < 0 else calls),
        (-1, "") if step.seconds is None else (step.seconds, f"{1e6 * step.seconds:.1f}"),
    ]
    cells_html = "".join(
        f'<td class="{"n" if name in NUMBERS else ""}" data-key="{escape(str(key))}">{text}</td>'
        for name, (key, text) in zip(COLUMNS, cells)
    )
    anchor = f' id="{row_of(box.name)}"' if box and first else ""
    return f'<tr class="{step.kind}{"" if first else " again"}"{anchor}>{cells_html}</tr>'


def _names(step: PlanStep) -> str:
    return "<br>".join(map(escape, step.fused))
