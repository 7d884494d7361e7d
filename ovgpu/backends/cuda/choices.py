"""Choices among kernels that all give right results, as `ovgpu tune` measured them on a card.

They are kept beside the compiled kernels: in the folder CACHE_DIR, or else CuPy's cache. There is a JSON file per card
model, with the name of the fastest answer to each question; see `KernelRecorder.choose`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path

from ovgpu._util.atomic_file import replacing
from ovgpu.backends.cuda import device, kernel_cache
from ovgpu.backends.cuda.kernel_cache import KernelStore
from ovgpu.ops.base.recorder import T
from ovgpu.version import OWN


class Choices:
    """Names of the chosen answers by question. A question without a known name gets the first answer."""

    def __init__(self, known: Mapping[str, str] | None = None) -> None:
        self.known = dict(known or {})

    def choose(self, question: str, answers: Mapping[str, T]) -> T:
        """See `KernelRecorder.choose`."""
        name = self.known.get(question, "")
        return answers[name] if name in answers else next(iter(answers.values()))


def path(kernels: KernelStore, number: int) -> Path | None:
    """Return the file for the card of this number, which need not exist; None if nothing is cached."""
    folder = kernel_cache.folder(kernels)
    if folder is None:
        return None
    name = re.sub(r"\W+", "-", device.card(number).name.lower())
    return folder / f"choices-{name}.json"


def measured(kernels: KernelStore, number: int) -> Choices:
    """Return the choices that were measured on the card of this number; none, with a warning, if the file is damaged or
    of another version of ovgpu."""
    file = path(kernels, number)
    if file is None or not file.exists():
        return Choices()
    import json  # here, since few programs need it

    try:
        contents = json.loads(file.read_text(encoding="utf-8"))
        if contents["version"] == OWN:
            return Choices({str(question): str(name) for question, name in contents["choices"].items()})
        reason = f"is of ovgpu {contents['version']}"
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as e:
        reason = f"cannot be read ({type(e).__name__}: {e})"
    warnings.warn(f"{file} {reason}: usual kernels are used; `ovgpu tune` measures again", RuntimeWarning, 2)
    return Choices()


def write(file: Path, choices: Choices) -> None:
    """Write a file for `measured`. OSError if that fails."""
    import json

    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as (stream,):
        text = json.dumps({"version": OWN, "choices": dict(sorted(choices.known.items()))}, indent=1)
        stream.write(text.encode() + b"\n")
