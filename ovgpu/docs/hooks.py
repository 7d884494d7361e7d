"""Hooks of MkDocs: pages made from files of the tree and from notebooks.

- A page listed under ``extra.included`` of mkdocs.yml is a Markdown file of the tree.
- A line ``<!-- include: PATH -->`` in a page stands for the text of a Markdown file, without its title. PATH begins at
  the folder of the page.
- A notebook is executed, and becomes a page with its outputs. An error in a cell ends the build.

Links in all of them are relative to the file that has them, so that they also work where the tree is browsed. In the
site, a link to a file that is a page leads to that page, and a link to any other file of the tree becomes plain text.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = Path(__file__).resolve().parent / "pages"
INCLUDE = re.compile(r"^<!-- include: (\S+) -->$", re.MULTILINE)
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$\n?", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
CELL_SECONDS = 60

_pages: dict[Path, str] = {}  # page of the site by the path of its source


def on_files(files: Any, config: Any) -> Any:
    """Add the included files and the executed notebooks as pages."""
    from mkdocs.structure.files import File

    _pages.clear()
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(notebook)
        page = notebook.src_uri.removesuffix(".ipynb") + ".md"
        source = PAGES / notebook.src_uri
        files.append(File.generated(config, page, content=run_notebook(source)))
        _pages[source] = page
    for page, path in config.extra["included"].items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
        _pages[ROOT / path] = page
    for file in files.documentation_pages():
        _pages.setdefault(PAGES / file.src_uri, file.src_uri)
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Replace includes by their text, and links to files of the tree by links to pages."""
    uri = page.file.src_uri
    source = next(path for path, name in _pages.items() if name == uri)

    def included(match: re.Match[str]) -> str:
        path = (source.parent / match[1]).resolve()
        text = path.read_text(encoding="utf-8").split("\n", 1)[1]
        below = _outside_code(text, lambda part: re.sub("^#", "##", part, flags=re.MULTILINE))  # a heading of the page
        return linked(below.strip(), path, uri)

    return INCLUDE.sub(included, linked(markdown, source, uri))


def on_page_content(html: str, *, page: Any, config: Any, files: Any) -> str:
    """Give a page without sections the width of the table of contents: such pages are wide tables."""
    if not any(item.children for item in page.toc):
        page.meta.setdefault("hide", ["toc"])
    return html


def linked(markdown: str, source: Path, uri: str) -> str:
    """Return Markdown whose relative links, as written in the file ``source``, fit the page ``uri`` of the site."""

    def replaced(match: re.Match[str]) -> str:
        label, (target, _, anchor) = match[1], match[2].partition("#")
        if ":" in target or not target:
            return match[0]
        path = Path(os.path.normpath(source.parent / target))
        if path in _pages:
            address = os.path.relpath(_pages[path], os.path.dirname(uri) or ".")
            return f"[{label}]({address}{'#' + anchor if anchor else ''})"
        if not path.exists():
            raise FileNotFoundError(f"{source} links to {target}")
        return label

    return _outside_code(markdown, lambda text: LINK.sub(replaced, text))


def _outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """Return a Markdown text of which all parts but fenced code are changed."""
    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [change(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(markdown[end:])])


def run_notebook(path: Path) -> str:
    """Execute a notebook in a kernel of its own, and return its cells and outputs as Markdown."""
    from jupyter_client.manager import KernelManager
    from nbclient import NotebookClient

    notebook = import_module("nbformat").read(path, as_version=4)  # which has no types
    with tempfile.TemporaryDirectory() as folder:
        # Sockets are files in the folder, since other users of the machine could connect to TCP's.
        kernel = KernelManager(kernel_name="python3", transport="ipc", ip=f"{folder}/kernel")
        try:
            resources = {"metadata": {"path": folder}}
            NotebookClient(notebook, km=kernel, timeout=CELL_SECONDS, resources=resources).execute()
        finally:
            kernel.shutdown_kernel(now=True)
    return "\n\n".join(part for cell in notebook.cells for part in _cell(cell))


def _cell(cell: Any) -> Iterator[str]:
    if cell.cell_type != "code":
        yield cell.source
        return
    yield f"```python\n{cell.source}\n```"
    for output in cell.outputs:
        yield f'<div class="output" markdown="0">{_output(output)}</div>'


def _output(output: Any) -> str:
    """Return the HTML of one output of a cell."""
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="output of the cell above" src="data:image/png;base64,{"".join(data["image/png"].split())}">'
    if "text/html" in data:
        return str(data["text/html"])
    return f"<pre>{escape(output.get('text') or data['text/plain'])}</pre>"
