"""Table of endpoints and fields in the documentation: ``python -m tests.serve.openai.table --write``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ovgpu.serve.openai.fields import BOTH, CHAT, COMPLETIONS, IGNORED, REFUSED, SPEECH

PAGE = Path(__file__).parents[3] / "ovgpu" / "serve" / "openai" / "README.md"
BEGIN, END = "<!-- begin: written by `python -m tests.serve.openai.table --write` -->", "<!-- end -->"


def table() -> str:
    """Return the table."""
    groups = {"both": BOTH, "chat/completions": CHAT, "completions": COMPLETIONS, "audio": SPEECH}
    rows = [
        f"| `{name}` | {endpoint} | same{'; ' * bool(text)}{text} |"
        for endpoint, fields in groups.items()
        for name, text in fields.items()
    ]
    rows.append(f"| {', '.join(f'`{name}`' for name in IGNORED)}, and unknown fields | both | ignored |")
    for name, neutral in REFUSED.items():
        kept = f", but for `{json.dumps(neutral[0])}`" if neutral else ""
        rows.append(f"| `{name}` | both | error (400){kept} |")
    rows.append("| `include[]` | audio | error (400) |")
    rows.append("| unknown fields | audio | ignored |")
    return "\n".join(["| Field | Endpoint | Handling |", "| --- | --- | --- |", *rows])


def is_current() -> bool:
    """Return whether the documentation has the table."""
    return _replaced(PAGE.read_text()) == PAGE.read_text()


def _replaced(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(_replaced(PAGE.read_text()))
    else:
        print(table())
