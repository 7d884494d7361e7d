"""Generator of eager.json: the judged cases and scenarios that do more than launch graphs on the device, by op version.

    python -m tests.kernels.eager [TEST_FILE ...]

With test files, only the op versions of their cases are examined anew.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from ovgpu.backends.cuda import CudaBackend
from ovgpu.compile import devices
from tests.harness import cuda
from tests.harness.replay import EMULATED, LIST
from tests.harness.store import runnables


def cases(*files: Path) -> Collection[Any]:
    """Return the cases and scenarios that run on the device, each once: those of some test files, by default of all."""
    return {id(case): case for case in runnables(*files) if EMULATED in case.devices}.values()


def eager_cases(some: Collection[Any]) -> dict[str, Any]:
    """Run cases and return their part of eager.json. Cases that fail are printed and left out."""
    groups: dict[str, dict[str, Any]] = defaultdict(dict)
    for case in some:
        seen = []
        for variant in case.variants:
            try:
                seen += [variant] if case.watched(variant, EMULATED).seen else []
            except Exception as error:
                print(f"{case.name} ({variant}): {error}"[:300], file=sys.stderr)
        groups[case.group][case.name] = seen, case.variants
    return {group: names for group, each in sorted(groups.items()) if (names := summary(each))}


def summary(each: dict[str, Any]) -> list[str] | str:
    """Return the names of a group's eager cases, given the eager variants and all variants of each case."""
    if all(len(seen) == len(variants) for seen, variants in each.values()):
        return "all"
    return sorted(
        text
        for name, (seen, variants) in each.items()
        for text in ([name] if len(seen) == len(variants) else [f"{name} ({v})" for v in seen])
    )


def update(files: Sequence[str] = ()) -> None:
    """Write eager.json anew, or only the groups that cases of these test files belong to."""
    groups = {case.group for case in cases(*map(Path, files))}
    found = {group: names for group, names in json.loads(LIST.read_text()).items() if group not in groups}
    with cuda.bound("emulator"):
        devices.register_backend(EMULATED, CudaBackend)
        found.update(eager_cases([case for case in cases() if case.group in groups]))
    LIST.write_text(json.dumps(dict(sorted(found.items())), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    update(sys.argv[1:])
