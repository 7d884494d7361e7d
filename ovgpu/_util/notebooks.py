"""HTML of objects for notebooks, which call `_repr_html_`."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

STYLE = "white-space:pre;overflow-x:auto;line-height:normal;font-family:Menlo,'DejaVu Sans Mono',consolas,monospace"


def printed(renderable: Any, width: int = 140) -> str:
    """Return the coloured text that rich prints for an object, as HTML."""
    from rich.console import Console  # the import takes 20 ms

    # Otherwise rich displays the object in the notebook, in addition to what this returns.
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, force_jupyter=False)
    console.print(renderable)
    return console.export_html(inline_styles=True, code_format=f'<pre style="{STYLE}">{{code}}</pre>')


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a titled table of texts."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<b>{escape(title)}</b><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
