"""Command that writes OpenVINO's answers for every judged case and scenario to a file, see `recall`.

python -m tests.harness.store FILE
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from . import recall

TESTS = Path(__file__).parents[1]


def runnables(*files: Path) -> Iterator[Any]:
    """Yield the judged cases and scenarios of some test files, by default of all."""
    for file in [file.resolve() for file in files] or sorted(TESTS.rglob("test_*.py")):
        try:
            module = importlib.import_module(".".join(file.relative_to(TESTS.parent).with_suffix("").parts))
        except pytest.skip.Exception:  # an optional package is not installed
            continue
        for value in vars(module).values():
            cases = getattr(value, "cases", None)
            if type(cases) is tuple:  # made by `check`; any attribute of `unittest.mock.call` is a kind of tuple
                yield from (case for case in cases if case.judged)


def main() -> int:
    """Run the command; return exit status 1 if some case could not be judged."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    path, start, failures = Path(sys.argv[1]), time.perf_counter(), []
    cases = {id(case): case for case in runnables()}
    for case in cases.values():
        try:
            _ = case.expected
        except Exception as error:
            failures.append(f"{case.name}: {error}")
    recall.save(path)
    took = time.perf_counter() - start
    print(f"{len(cases)} cases, {len(recall.judged)} judgements, {took:.0f} s, {path.stat().st_size >> 10} KB")
    print("\n".join(failures), end="")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
