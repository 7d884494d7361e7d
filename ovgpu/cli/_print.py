"""Console and tables that the commands print with."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ovgpu.ops.base.storage import decode

MODEL = "the .xml file of the model, its folder, or a file in another format (ONNX, ...), which openvino reads"
FILE_COLUMNS = 160  # width if stdout is no terminal, so that few rows of tables wrap


def strings_as_bytes(array: Any) -> Any:
    """Return an array of strings of any dtype as an array of bytes. NULs at the ends are lost."""
    encoded = [element.encode() if isinstance(element, str) else bytes(element) for element in array.flat]
    return np.array(encoded, np.bytes_).reshape(array.shape)


def console(error: bool = False) -> Console:
    """Return a console for stdout, or stderr if ``error``. Without a terminal, it prints plain text in long lines."""
    sized = (sys.stderr if error else sys.stdout).isatty() or "COLUMNS" in os.environ
    return Console(stderr=error, highlight=False, width=None if sized else FILE_COLUMNS)


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    right: Sequence[int] = (),
    unwrapped: Sequence[int] = (),
) -> Table:
    """Return a table. ``right`` has the indices of right-aligned columns; these and ``unwrapped`` ones do not wrap."""
    result = Table(title=Text(title), title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        result.add_column(
            column,
            justify="right" if index in right else "left",
            overflow="fold",
            no_wrap=index in (*right, *unwrapped),
        )
    for row in rows:
        result.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return result


def headed(name: str, rest: str) -> Text:
    """Return a line that begins with a name in bold. Names of models and paths may look like markup."""
    return Text.assemble((name, "bold"), rest)


def results_table(title: str, named: Iterable[tuple[str, Any]]) -> Table:
    """Return a table of shape and statistics of arrays."""
    return table(
        title,
        ("name", "type", "shape", "min", "max", "mean", "first values"),
        ((name, *statistics(array)) for name, array in named),
        right=(3, 4, 5),
    )


def statistics(array: Any) -> tuple[str, ...]:
    """Return type, shape, minimum, maximum, mean and first values of an array, as text."""
    first = " ".join(f"{v:.4g}" if isinstance(v, (int, float)) else str(v) for v in array.reshape(-1)[:2].tolist())
    first += " ..." if array.size > 2 else ""
    shape = str(list(array.shape)).replace(" ", "")
    if not array.size or array.dtype == object:
        return (array.dtype.name, shape, "", "", "", first)
    numbers = decode(array).astype(np.float64)
    with np.errstate(all="ignore"):
        result = [f"{f(numbers):.4g}" for f in (np.min, np.max, np.mean)]
    return (array.dtype.name, shape, *result, first)


def milliseconds(values: Sequence[float]) -> str:
    """Return first, median and range of latencies in milliseconds, as text."""
    if len(values) == 1:
        return f"{values[0]:.2f} ms"
    rest = values[1:]
    return (
        f"first {values[0]:.2f} ms, then median {np.median(rest):.2f} ms "
        f"({min(rest):.2f} to {max(rest):.2f}) over {len(rest)}"
    )
