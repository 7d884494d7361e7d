"""A plan as one HTML file: a summary, a table of steps to sort and filter, and the drawing."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from ovgpu.runtime.plan import Plan, PlanStep
from ovgpu.runtime.printing import bytes_text, counted, legend, memory_text, shapes_text

COLUMNS = ("#", "kind", "op", "layer", "shapes", "memory", "read", "written", "share", "calls", "us")
NUMBERS = {"#", "read", "written", "share", "calls", "us"}  # columns that are sorted by their numbers

STYLE = """
:root { color-scheme: light dark; font: 14px system-ui, sans-serif; }
body { margin: 1.5em; }
table { border-collapse: collapse; font-size: 13px; }
th { cursor: pointer; text-align: left; position: sticky; top: 0; background: Canvas; user-select: none; }
th.n { text-align: right; }
th[aria-sort=ascending]::after { content: " ▲"; }
th[aria-sort=descending]::after { content: " ▼"; }
th, td { padding: .25em 1em .25em 0; vertical-align: top; border-bottom: 1px solid #8883; }
td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.view { opacity: .55; }
summary, th:hover { text-decoration: underline dotted; cursor: pointer; }
input { font: inherit; margin: .8em 0; padding: .3em .5em; width: 24em; }
.graph { overflow: auto; max-height: 95vh; background: #fff; }
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
document.querySelector("input").addEventListener("input", event => {
  const text = event.target.value.toLowerCase();
  for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(text);
});
"""


def as_html(plan: Plan, title: str, svg: str = "") -> str:
    """Return the page, which needs no other file and no network. ``svg`` is the drawing, if there is one."""
    head = "".join(
        f'<th class="{"n" if name in NUMBERS else ""}"{" aria-sort=ascending" if name == "#" else ""}>{name}</th>'
        for name in COLUMNS
    )
    rows = "\n".join(_row(position, *row, plan) for position, row in enumerate(_steps(plan, 0, "", 1)))
    words = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in legend(plan))
    drawing = f'<details open><summary>Graph</summary>\n<div class="graph">{svg}</div>\n</details>' if svg else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n<p>{escape(_summary(plan))}</p>\n"
        f"<details><summary>Words</summary><dl>{words}</dl></details>\n"
        f'<input type="search" placeholder="filter by op, layer, shape ..." aria-label="filter">\n'
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>\n{drawing}\n"
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


def _steps(plan: Plan, depth: int, prefix: str, runs: int) -> Iterator[tuple[PlanStep, int, str, int]]:
    """Yield (step, depth, number, runs per inference) of the steps, each followed by those of its bodies."""
    for step in plan.steps:
        number = "" if step.number is None else f"{prefix}{step.number}"
        yield step, depth, number, runs
        for body in step.bodies:
            if body.trips != 0:
                name = f"{number}.{body.name}." if len(step.bodies) > 1 else f"{number}."
                yield from _steps(body.plan, depth + 1, name, runs * (body.trips or 1))


def _row(position: int, step: PlanStep, depth: int, number: str, runs: int, plan: Plan) -> str:
    fused = f"<details><summary>{counted(len(step.fused), 'fused layer')}</summary>{_names(step)}</details>"
    calls = -1 if step.calls is None or step.kind in ("view", "host") else step.calls
    memory = memory_text(step, plan)
    bodies = "".join(f" ({body.name} × {'?' if body.trips is None else body.trips})" for body in step.bodies)
    moved = step.bytes_moved * runs
    cells: list[tuple[object, object]] = [
        (position, number),
        (step.kind, "in place" if step.in_place else step.kind),
        (step.op, "&emsp;" * depth + escape(step.op + bodies)),
        (step.layer, escape(step.layer) + (fused if step.fused else "")),
        *((text, escape(text)) for text in (shapes_text(step), memory)),
        *((size, bytes_text(size) if size else "") for size in (step.bytes_read, step.bytes_written)),
        (moved, f"{moved / max(plan.bytes_moved, 1):.1%}" if moved else ""),
        (calls, "" if calls < 0 else calls),
        (-1, "") if step.seconds is None else (step.seconds, f"{1e6 * step.seconds:.1f}"),
    ]
    found = "".join(
        f'<td class="{"n" if name in NUMBERS else ""}" data-key="{escape(str(key))}">{text}</td>'
        for name, (key, text) in zip(COLUMNS, cells)
    )
    return f'<tr class="{step.kind}">{found}</tr>'


def _names(step: PlanStep) -> str:
    return "<br>".join(map(escape, step.fused))
