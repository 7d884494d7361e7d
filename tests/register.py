"""Bring the generated lists up to date after operations, kernels or tests were added.

    python -m tests.register [TEST_FILE ...]

The test files are those that were added or changed; without any, all tests are run. Updated are

    tests/opsets.json            the operations in ovgpu's registry that the list lacks
    ovgpu/ops/README.md          the table of operations
    tests/kernels/eager.json     the cases that need more than CUDA graphs
    tests/kernels/instances.json and compiled.json
                                 the kernel instances that the tests launch, and what NVRTC says of them

Exit status 1 if a test fails.
"""
from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ovgpu import cli
from tests.conformance import own
from tests.kernels import eager, gate

ROOT = Path(__file__).parents[1]
OPSETS = Path(__file__).with_name("opsets.json")
OPERATIONS = ROOT / "ovgpu" / "ops" / "README.md"
TABLE = re.compile(r"(<!-- begin: .*? -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def add_operations() -> None:
    """Add the registry's op versions to the list. Versions that the registry has lost stay, and fail their test."""
    listed: dict[str, list[str]] = json.loads(OPSETS.read_text())
    for name, version in own():
        if version not in listed.setdefault(name, []):
            listed[name].append(version)
    rows = [f" {json.dumps(name)}: {json.dumps(versions)}" for name, versions in sorted(listed.items())]
    OPSETS.write_text("{\n" + ",\n".join(rows) + "\n}\n")


def table() -> str:
    """Return what `ovgpu ops --markdown` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        cli.main(["ops", "--markdown"])
    return out.getvalue()


def update_table() -> None:
    """Write the table of operations between its marks."""
    OPERATIONS.write_text(TABLE.sub(lambda m: f"{m[1]}{table()}{m[3]}", OPERATIONS.read_text()))


def main(files: Sequence[str]) -> int:
    """Update all lists; return the exit status."""
    add_operations()
    update_table()
    eager.update(files)
    return gate.main(files)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
