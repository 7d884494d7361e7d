"""The same code run with ``import openvino as ov`` and with ``import ovgpu as ov``: the outcomes must agree."""

from __future__ import annotations

import io
import pathlib
import textwrap
import warnings
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import numpy as np
import openvino
import pytest

import ovgpu

from . import nets

LIBRARIES = pytest.mark.parametrize("ov", [openvino, ovgpu], ids=["openvino", "ovgpu"])


def compiled(ov: Any, ir: nets.IR, config: Mapping[str, Any] | None = None) -> Any:
    """Compile the model for the CPU, in f32."""
    core = ov.Core()
    config = {"INFERENCE_PRECISION_HINT": "f32"} | dict(config or {})
    return core.compile_model(core.read_model(*ir), "CPU", config)


def request(ov: Any, ir: nets.IR, config: Mapping[str, Any] | None = None) -> Any:
    """Create a request of the model compiled for the CPU."""
    return compiled(ov, ir, config).create_infer_request()


def plain(value: Any) -> Any:
    """Convert the result of a library to data that can be compared."""
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.shape, value.tolist()
    if isinstance(value, np.generic):
        return str(value.dtype), value.item()
    if isinstance(value, Enum) or hasattr(value, "__members__"):
        return type(value).__name__, value.name
    if isinstance(value, Mapping):
        return "mapping", [(plain(k), plain(v)) for k, v in value.items()]
    if isinstance(value, set):
        return "set", sorted(map(plain, value))
    if isinstance(value, (list, tuple)) or type(value).__name__ == "Shape":
        return type(value).__name__, [plain(v) for v in value]
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    kind = type(value).__name__
    if kind == "Tensor":
        return kind, plain(value.element_type), list(value.shape), plain(np.array(value.data))
    if kind == "ConstOutput":
        return kind, sorted(value.get_names()), str(value.partial_shape), plain(value.element_type)
    return kind, repr(value)


def run(ov: Any, code: str) -> Any:
    """Evaluate an expression; statements may precede it, separated by "; "."""
    names = {
        "ov": ov,
        "np": np,
        "io": io,
        "pathlib": pathlib,
        "P": ov.properties,
        "comp": lambda ir, config=None: compiled(ov, ir, config),
        "req": lambda ir, config=None: request(ov, ir, config),
        **{name: getattr(nets, name) for name in ("one", "two", "total", "slow")},
    }
    *statements, expression = code.split("; ")
    for statement in statements:
        exec(statement, names)
    return plain(eval(expression, names))


def outcome(code: Callable[[], Any]) -> Any:
    """Return the value, or the name of the built-in class of the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return code()
        except Exception as error:
            return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")


def agree(table: str) -> Any:
    """Parametrise a test by a table of expressions, one per line; continuation lines are indented more."""
    codes: list[str] = []
    for line in textwrap.dedent(table).strip("\n").splitlines():
        if line.startswith(" "):
            codes[-1] += " " + line.strip()
        elif line:
            codes.append(line)
    return pytest.mark.parametrize("code", codes)


def check(code: str) -> Any:
    """Assert that both libraries give the same value, and return it."""
    found, expected = (outcome(lambda ov=ov: run(ov, code)) for ov in (ovgpu, openvino))
    assert found == expected
    return found
