"""Public names: what `dir` shows, and the docstrings of classes."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from typing import Any

import pytest

import ovgpu

CLASSES = sorted({
    value
    for name in ovgpu.__all__
    if isinstance(value := getattr(ovgpu, name), type) and not issubclass(value, BaseException)
}, key=lambda cls: cls.__name__)  # fmt: skip


def test_dir_shows_what_is_public() -> None:
    """Names of openvino that ovgpu hands over are among them, internal modules are not."""
    code = "import ovgpu; print(*dir(ovgpu))"  # before any other import
    names = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())
    assert set(ovgpu.__all__) <= names
    assert {"opset1", "opset17", "convert_model", "ray", "frontend", "properties", "utils", "op", "passes"} <= names
    internal = {"_util", "api", "backends", "debug", "errors", "interop", "ir", "lowering", "model", "ops", "request"}
    assert not names & {*internal, "runtime", "spec", "symbolic", "types", "sys", "names", "Any", "import_module"}
    assert all(hasattr(ovgpu, name) for name in names - {"ray", "torch"})  # which need packages


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_public_names_have_docstrings(cls: Any) -> None:
    assert inspect.getdoc(cls)
    fields = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    missing = [
        name
        for name in dir(cls)
        if name[0] != "_"
        and name not in fields
        and getattr(cls, name) is not None
        and not inspect.getdoc(getattr(cls, name))
    ]
    assert not missing
