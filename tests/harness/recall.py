"""OpenVINO's answers from a file, for machines without openvino: `pytest --expectations FILE`.

An answer is found by the model and its inputs: a file serves the tests that it was written for, without those that
have changed since. `store.py` writes such a file.
"""

from __future__ import annotations

import hashlib
import lzma
import pickle
import re
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

T = TypeVar("T")

loaded: dict[str, Any] = {}
judged: dict[str, Any] = {}  # answers that this process has requested


def recall(key: str, judge: Callable[[], T]) -> T:
    """Return the judge's answer for a model and its inputs, see `digest`.

    The answer comes from the loaded file or from this process if it is there, otherwise from the judge if openvino is
    installed. Without either, the test is skipped.
    """
    for known in (loaded, judged):
        if key in known:
            found: T = known[key]
            return found
    if find_spec("openvino") is None:
        pytest.skip("needs openvino, or its judgement in the file that --expectations names")
    found = judged[key] = judge()
    return found


def remember(keys: Iterable[str], judge: Callable[[list[str]], Iterable[Any]]) -> None:
    """Keep the judge's answers to those of some questions that have none, except where it gives None."""
    unknown = [key for key in keys if key not in loaded and key not in judged]
    if unknown and find_spec("openvino") is not None:
        judged.update((key, answer) for key, answer in zip(unknown, judge(unknown)) if answer is not None)


def unjudged(folder: Path) -> list[str]:
    """Return the test files of a folder that import openvino, directly or through a file beside them; none if openvino
    is installed."""
    if find_spec("openvino") is not None:
        return []
    texts = {file.stem: file.read_text(encoding="utf-8") for file in folder.glob("*.py")}
    found = {name for name, text in texts.items() if re.search(r"^\s*(import|from) openvino\b", text, re.MULTILINE)}
    beside = re.compile(rf"^from \.({'|'.join(found)}) import ", re.MULTILINE)
    found |= {name for name, text in texts.items() if beside.search(text)}
    return [f"{name}.py" for name in sorted(found) if name.startswith("test_")]


def load(path: Path) -> None:
    """Load the answers of a file."""
    with lzma.open(path) as file:
        loaded.update(pickle.load(file))


def save(path: Path) -> None:
    """Write the answers that this process has requested."""
    with lzma.open(path, "wb") as file:
        pickle.dump(judged, file)


def digest(parts: Iterable[Any]) -> str:
    """Return a hash of the contents: bytes, arrays, and objects with a unique `repr`."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            found.update(f"{part.dtype}{part.shape}".encode())
            part = repr(part.tolist()) if part.dtype.kind in "OUS" else part.tobytes()
        found.update(part if isinstance(part, bytes) else repr(part).encode())
        found.update(b"\0")
    return found.hexdigest()
