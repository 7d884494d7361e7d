"""Findings that are stored as tests: ``cases/NAME.xml``, with its weights and inputs beside it if it needs any.

The comment before the model states its expected result:

    <!-- as OpenVINO -->    its outputs are OpenVINO's
    <!-- answers -->        it can be computed, while OpenVINO cannot or contradicts itself
    <!-- [Split] axis 1 is out of range -->    reading, compiling or running it raises an error that begins so

The comment of a new finding states the fault that was found. Its test fails until the fault is fixed and the comment
states the right result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.harness.elements import name_of

from .corpus import Subject

FOLDER = Path(__file__).parent / "cases"
SAME, ANSWERS = "as OpenVINO", "answers"


def save(folder: Path, name: str, expected: str, subject: Subject) -> Path:
    """Write a subject, and return the path of its model."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.xml"
    comment = expected.strip().partition("\n")[0].replace("--", "- -")
    path.write_bytes(f"<!-- {comment} -->\n".encode() + subject.xml + b"\n")
    if subject.weights:
        path.with_suffix(".bin").write_bytes(subject.weights)
    values = [(array, kind) for call in subject.calls[:1] for array, kind in call]
    if values and all(array.dtype.isbuiltin == 1 and kind == name_of(array.dtype) for array, kind in values):
        arrays: dict[str, Any] = {f"input{i}": array for i, (array, _) in enumerate(values)}
        np.savez_compressed(path.with_suffix(".npz"), **arrays)
    return path


def load(path: Path) -> tuple[str, Subject]:
    """Return the expected result of a stored model, and the model."""
    comment, _, xml = path.read_bytes().partition(b"-->\n")
    weights, inputs = path.with_suffix(".bin"), path.with_suffix(".npz")
    call = []
    if inputs.exists():
        with np.load(inputs) as arrays:
            call = [(arrays[f"input{i}"], name_of(arrays[f"input{i}"].dtype)) for i in range(len(arrays.files))]
    subject = Subject(path.stem, xml, weights.read_bytes() if weights.exists() else b"", [call])
    return comment.decode().removeprefix("<!--").strip(), subject
