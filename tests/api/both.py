"""One expression, evaluated with openvino's names and with ours: the outcomes must agree."""

from __future__ import annotations

import copy
import warnings
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import openvino
import pytest

import ovgpu.properties
import ovgpu.tensor
import ovgpu.types

OPENVINO = openvino
OURS = SimpleNamespace(
    **{name: getattr(ovgpu.types, name) for name in ovgpu.types.__all__},
    Tensor=ovgpu.tensor.Tensor,
    properties=ovgpu.properties,
)
_NAMES = ("Type", "Dimension", "PartialShape", "Shape", "Strides", "Layout", "Tensor", "properties")


def evaluate(library: Any, code: str) -> Any:
    """Evaluate an expression; statements may precede it, separated by "; "."""
    names = {name: getattr(library, name) for name in _NAMES}
    names |= {"np": np, "ml_dtypes": ml_dtypes, "copy": copy}
    *statements, expression = code.split("; ")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for statement in statements:
            exec(statement, names)
        return eval(expression, names)


def outcome(library: Any, code: str) -> Any:
    """Return the value as plain data (library objects as class, repr and str), or the class of the error."""
    try:
        return plain(evaluate(library, code))
    except Exception as error:
        return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")


def plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return "ndarray", str(value.dtype), value.shape, value.tolist()
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    return type(value).__name__, repr(value), str(value)


def members(kind: Any) -> set[str]:
    """Return the public names of a class."""
    return {name for name in dir(kind) if not name.startswith("_")}


def product(template: str, **choices: list[str]) -> list[str]:
    """Fill the template with every combination of the choices."""
    codes = [template]
    for name, values in choices.items():
        codes = [code.replace(f"<{name}>", value) for code in codes for value in values]
    return codes


def table(text: str) -> list[str]:
    """Split a text into expressions at " | " and newlines."""
    return [code for line in text.strip().splitlines() for code in line.strip().split(" | ")]


def agree(codes: list[str]) -> Any:
    return pytest.mark.parametrize("code", codes)


def check(code: str) -> None:
    assert outcome(OURS, code) == outcome(OPENVINO, code)
