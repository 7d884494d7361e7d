"""OpenVINO's judgements out of a file, for machines that have no openvino: `pytest --expectations FILE`.

A judgement is found by the model and its inputs: a file serves the tests that it was written for, and what has
changed since is not in it. `store.py` writes one.
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
judged: dict[str, Any] = {}  # what has been asked for, in this process


def recall(parts: Iterable[Any], judge: Callable[[], T]) -> T:
    """What the judge says of a model and its inputs: bytes, arrays, and what has a `repr` of its own.

    It is asked where openvino is installed, unless a file has been loaded that has its answer. Without either, the
    test is skipped.
    """
    key = digest(parts)
    if key in loaded:
        found: T = loaded[key]
        return found
    if find_spec("openvino") is None:
        pytest.skip("needs openvino, or its judgement in the file that --expectations names")
    found = judged[key] = judge()
    return found


def unjudged(folder: Path) -> list[str]:
    """The test files of a folder that import openvino, themselves or through a file beside them; none of them where it
    is installed."""
    if find_spec("openvino") is not None:
        return []
    texts = {file.stem: file.read_text(encoding="utf-8") for file in folder.glob("*.py")}
    found = {name for name, text in texts.items() if re.search(r"^\s*(import|from) openvino\b", text, re.MULTILINE)}
    beside = re.compile(rf"^from \.({'|'.join(found)}) import ", re.MULTILINE)
    found |= {name for name, text in texts.items() if beside.search(text)}
    return [f"{name}.py" for name in sorted(found) if name.startswith("test_")]


def load(path: Path) -> None:
    """Uses the judgements of a file from now on."""
    with lzma.open(path) as file:
        loaded.update(pickle.load(file))


def save(path: Path) -> None:
    """Writes what the judge has said."""
    with lzma.open(path, "wb") as file:
        pickle.dump(judged, file)


def digest(parts: Iterable[Any]) -> str:
    """The same for the same contents."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            found.update(f"{part.dtype}{part.shape}".encode())
            part = repr(part.tolist()) if part.dtype.kind in "OUS" else part.tobytes()
        found.update(part if isinstance(part, bytes) else repr(part).encode())
        found.update(b"\0")
    return found.hexdigest()
