"""The stand-in for cuDNN's frontend has the frontend's names and arguments, where that is installed."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from . import cudnn_emu

METHODS = sorted(name for name in vars(cudnn_emu.pygraph) if not name.startswith("_"))


@pytest.fixture(scope="module")
def real() -> Any:
    return pytest.importorskip("cudnn")


def check(ours: Any, *real: Any) -> None:
    """Every name by which ours takes an argument is one of those of the real functions, which overload each other."""
    known = set().union(*map(arguments, real))
    assert {p.name for p in inspect.signature(ours).parameters.values() if p.kind != p.POSITIONAL_ONLY} <= known


def arguments(function: Any) -> set[str]:
    """By its signature, or what its bindings say of it."""
    try:
        return set(inspect.signature(function).parameters)
    except ValueError:
        return set(re.findall(r"(\w+): ", function.__doc__)) | {"self"}


@pytest.mark.parametrize("name", ["__init__", *METHODS])
def test_graphs(name: str, real: Any) -> None:
    bound = getattr(real._pybind_module, "backend_graph", real.pygraph)  # what newer versions wrap
    check(getattr(cudnn_emu.pygraph, name), *(getattr(graph, name) for graph in (real.pygraph, bound)
                                              if hasattr(graph, name)))  # fmt: skip


@pytest.mark.parametrize("name", ["backend_version", "backend_version_string", "create_handle", "set_stream"])
def test_functions(name: str, real: Any) -> None:
    check(getattr(cudnn_emu, name), getattr(real, name))


@pytest.mark.parametrize("name", ["data_type", "heur_mode", "numerical_note"])
def test_enumerations(name: str, real: Any) -> None:
    assert all(hasattr(getattr(real, name), member.name) for member in getattr(cudnn_emu, name))


@pytest.mark.parametrize("name", [name for name in vars(cudnn_emu.Tensor) if name.startswith("set_")])
def test_tensors(name: str, real: Any) -> None:
    assert all(hasattr(getattr(real, kind), name) for kind in ("tensor", "Tensor") if hasattr(real, kind))
