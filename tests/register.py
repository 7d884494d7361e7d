"""Bring the generated lists up to date after operations, kernels or tests were added.

    python -m tests.register [TEST_FILE ...]

The test files are those that were added or changed; without any, all tests are run. Updated are

    tests/opsets.json            the operations in ovgpu's registry that the list lacks
    ovgpu/ops/README.md          the table of operations
    ovgpu/README.md              the table of passes
    tests/kernels/eager.json     the cases that need more than CUDA graphs
    tests/kernels/instances.json and compiled.json
                                 the kernel instances that the tests launch, and what NVRTC says of them

Exit status 1 if a test fails.
"""

from __future__ import annotations

import argparse
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
TABLES = {
    ROOT / "ovgpu" / "ops" / "README.md": ["ops", "--markdown"],
    ROOT / "ovgpu" / "README.md": ["ops", "--passes", "--markdown"],
}
"""Pages with a generated table, and the arguments of the command that prints it."""
TABLE = re.compile(r"(<!-- begin: .*? -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def add_operations() -> None:
    """Add the registry's op versions to the list. Versions that the registry has lost stay, and fail their test."""
    listed: dict[str, list[str]] = json.loads(OPSETS.read_text())
    for name, version in own():
        if version not in listed.setdefault(name, []):
            listed[name].append(version)
    rows = [f" {json.dumps(name)}: {json.dumps(versions)}" for name, versions in sorted(listed.items())]
    OPSETS.write_text("{\n" + ",\n".join(rows) + "\n}\n")


def printed(arguments: Sequence[str]) -> str:
    """Return what the command ``ovgpu`` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        cli.main(arguments)
    return out.getvalue()


def update_tables() -> None:
    """Write the tables between their marks."""
    for page, arguments in TABLES.items():
        text, found = page.read_text(), printed(arguments)
        begin, end = next(m.span(2) for m in TABLE.finditer(text))
        page.write_text(text[:begin] + found + text[end:])


def main(arguments: Sequence[str] | None = None) -> int:
    """Update all lists; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.register", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", metavar="TEST_FILE", help="test files that were added or changed")
    files = parser.parse_args(arguments).files
    add_operations()
    update_tables()
    eager.update(files)
    return gate.main(files)


if __name__ == "__main__":
    sys.exit(main())
