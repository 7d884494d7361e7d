"""Writes eager.json anew: which judged cases and scenarios do more than launch graphs on the device, by op version.

    python -m tests.kernels.eager
"""
from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from ovgpu.api import devices
from ovgpu.backends.cuda import CudaBackend
from tests.harness import cuda
from tests.harness.replay import EMULATED, LIST
from tests.harness.store import runnables


def cases() -> Iterator[Any]:
    """Those that run on the device, each once."""
    yield from {id(case): case for case in runnables() if EMULATED in case.devices}.values()


def found() -> dict[str, Any]:
    """The list, by running every case; what fails is told, and left out."""
    groups: dict[str, dict[str, Any]] = defaultdict(dict)
    for case in cases():
        seen = []
        for variant in case.variants:
            try:
                seen += [variant] if case.watched(variant, EMULATED).seen else []
            except Exception as error:
                print(f"{case.name} ({variant}): {error}"[:300], file=sys.stderr)
        groups[case.group][case.name] = seen, case.variants
    return {group: names for group, each in sorted(groups.items()) if (names := summary(each))}


def summary(each: dict[str, Any]) -> list[str] | str:
    """The names of a group's cases, from the variants of each that are eager and all its variants."""
    if all(len(seen) == len(variants) for seen, variants in each.values()):
        return "all"
    return sorted(text for name, (seen, variants) in each.items()
                  for text in ([name] if len(seen) == len(variants) else [f"{name} ({v})" for v in seen]))


def main() -> None:
    with cuda.bound("emulator"):
        devices.register_backend(EMULATED, CudaBackend)
        LIST.write_text(json.dumps(found(), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
