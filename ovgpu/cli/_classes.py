"""The best classes of a classifier's output, with their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from ovgpu.cli._print import table
from ovgpu.model import Model
from ovgpu.ops.base.storage import decode
from ovgpu.runtime.printing import counted

COLUMNS = ("row", "class", "name", "score", "probability")
MAX_ROWS = 8  # of a batch that are shown


def class_names(model: Model, folder: Path, file: str) -> list[str]:
    """Return the names of classes: the lines of ``file``, else those in the model or in config.json beside it.

    The list is empty if there are none.
    """
    if file:
        return Path(file).read_text(encoding="utf-8").splitlines()
    info = model.rt_info.plain().get("model_info")
    if isinstance(info, dict) and info.get("labels"):
        return str(info["labels"]).split()
    path = folder / "config.json"
    names = json.loads(path.read_text(encoding="utf-8")).get("id2label") if path.is_file() else None
    return [names[key] for key in sorted(names, key=int)] if isinstance(names, dict) else []


def best_classes(name: str, scores: Any, count: int, names: list[str]) -> Table:
    """Return a table of the classes with the largest scores, for each row of a batch.

    Classes are along the last axis that is longer than 1. The probability is the softmax of the scores, or the score
    itself if a row's scores are probabilities already.
    """
    values = decode(scores).astype(np.float64)
    while values.ndim > 1 and values.shape[-1] == 1:
        values = values[..., 0]
    values = values.reshape(-1, values.shape[-1] if values.ndim else 1)
    rows = []
    for row_index, row in enumerate(values[:MAX_ROWS]):
        probabilities = row if row.min() >= 0 and abs(row.sum() - 1) < 1e-3 else _softmax(row)
        for rank, i in enumerate(np.argsort(-row, kind="stable")[:count]):
            rows.append(
                (
                    row_index if rank == 0 else "",
                    i,
                    names[i] if i < len(names) else "",
                    f"{row[i]:.4g}",
                    f"{probabilities[i]:.1%}",
                )
            )
    shown = [c for c in range(5) if (c != 0 or len(values) > 1) and (c != 2 or names)]
    hidden = len(values) - MAX_ROWS
    title = f"Best classes of '{name}'" + (f" (without {counted(hidden, 'more row')})" if hidden > 0 else "")
    return table(
        title,
        [COLUMNS[c] for c in shown],
        [[row[c] for c in shown] for row in rows],
        right=[shown.index(c) for c in shown if c != 2],
    )


def _softmax(row: Any) -> Any:
    powers = np.exp(row - row.max())
    return powers / powers.sum()
