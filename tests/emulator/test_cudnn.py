"""The stand-in for cuDNN's frontend: the frontend's own names, if it is installed, and the calls that it refuses."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest

from . import cudnn_emu
from . import cupy_emu as cp
from .state import CaptureError, CUDARuntimeError

METHODS = sorted(name for name in vars(cudnn_emu.pygraph) if not name.startswith("_"))


@pytest.fixture(scope="module")
def real() -> Any:
    return pytest.importorskip("cudnn")


def check(ours: Any, *real: Any) -> None:
    """Check that the real functions, which overload each other, have every keyword argument of ours."""
    known = set().union(*map(arguments, real))
    assert {p.name for p in inspect.signature(ours).parameters.values() if p.kind != p.POSITIONAL_ONLY} <= known


def arguments(function: Any) -> set[str]:
    """Return the names of a function's arguments, from its signature or from the docstring of its bindings."""
    try:
        return set(inspect.signature(function).parameters)
    except ValueError:
        return set(re.findall(r"(\w+): ", function.__doc__)) | {"self"}


@pytest.mark.parametrize("name", ["__init__", *METHODS])
def test_graphs(name: str, real: Any) -> None:
    bound = getattr(real._pybind_module, "backend_graph", real.pygraph)  # newer versions wrap it
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


# ---- refused calls

FLOAT = cudnn_emu.data_type.FLOAT
PADDED = {"pre_padding": (1, 1), "post_padding": (0, 1), "stride": (1, 2), "dilation": (1, 1)}


def planned(x: tuple[int, ...] = (1, 2, 3, 4), out: tuple[int, ...] = (1, 5, 3, 3),
            steps: tuple[int, ...] = (24, 12, 4, 1), handle: int = 0, **numbers: Any) -> cudnn_emu.pygraph:  # fmt: skip
    """Return a graph with a built plan: a convolution by a kernel [5, 2, 2, 1]."""
    graph = cudnn_emu.pygraph(handle=handle or cudnn_emu.create_handle())
    image = graph.tensor(x, steps, FLOAT, uid=1)
    kernel = graph.tensor((5, 2, 2, 1), (4, 2, 1, 1), FLOAT, uid=2)
    result = graph.conv_fprop(image, kernel, **PADDED | numbers, compute_data_type=FLOAT)
    result.set_uid(3).set_output(True).set_data_type(FLOAT).set_dim(out).set_stride((45, 9, 3, 1))
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn_emu.heur_mode.A])
    graph.check_support()
    graph.build_plans()
    return graph


@pytest.mark.parametrize(("given", "error", "message"), [
    ({"out": (1, 5, 3, 2)}, RuntimeError, "BAD_PARAM"), ({"out": (1, 4, 3, 3)}, RuntimeError, "BAD_PARAM"),
    ({"x": (1, 3, 3, 4)}, RuntimeError, "BAD_PARAM"), ({"steps": (24, 12, 4)}, ValueError, "dimensionality"),
    ({"steps": (0, 12, 4, 1)}, RuntimeError, "BAD_PARAM"), ({"steps": (24, 12, -4, 1)}, RuntimeError, "BAD_PARAM"),
    ({"x": (1, 2, 3), "steps": (6, 3, 1)}, RuntimeError, "BAD_PARAM"), ({"stride": ()}, ValueError, "not set"),
    ({"pre_padding": (-1, 1)}, RuntimeError, "BAD_PARAM"), ({"dilation": (1, 1, 1)}, RuntimeError, "BAD_PARAM"),
])  # fmt: skip
def test_refused_graphs(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        planned(**given)


@pytest.mark.parametrize(("other", "out"), [((1, 4, 1, 1), (1, 5, 3, 3)), ((2, 5, 3, 3), (1, 5, 3, 3)),
                                            ((1, 5, 1, 1), (1, 5, 3, 2))])  # fmt: skip
def test_refused_sums(other: tuple[int, ...], out: tuple[int, ...]) -> None:
    graph = cudnn_emu.pygraph(intermediate_data_type=FLOAT, handle=cudnn_emu.create_handle())
    image, kernel = graph.tensor((1, 2, 3, 4), (24, 12, 4, 1), FLOAT), graph.tensor((5, 2, 2, 1), (4, 2, 1, 1), FLOAT)
    found = graph.conv_fprop(image, kernel, **PADDED, compute_data_type=FLOAT)
    found = graph.add(found, graph.tensor(other, (1, 1, 1, 1), FLOAT), compute_data_type=FLOAT)
    found.set_output(True).set_data_type(FLOAT).set_dim(out).set_stride((45, 9, 3, 1))
    graph.validate()
    with pytest.raises(RuntimeError, match="BAD_PARAM"):
        graph.build_operation_graph()


def test_refused_executions() -> None:
    graph, memory = planned(), cp.empty((4096,), np.float32)
    start = int(memory.data.ptr)
    right = {1: start, 2: start + 256, 3: start + 512}
    graph.execute(right, start + 1024)
    for given, workspace, error in (
        ({1: start, 2: start + 256}, start + 1024, ValueError), ({**right, 3: start + 4}, start + 1024, RuntimeError),
        (right, 0, RuntimeError), (right, start + 4 * 4096 - 4, CUDARuntimeError),
        ({**right, 1: start + 4 * 4096 - 16}, start + 1024, CUDARuntimeError),
    ):  # fmt: skip
        with pytest.raises(error):
            graph.execute(given, workspace)


def test_captures_only_executions() -> None:
    stream, handle = cp.cuda.Stream(non_blocking=True), cudnn_emu.create_handle()
    with stream:
        stream.begin_capture()
        with pytest.raises(CaptureError, match="cudnnCreate"):
            cudnn_emu.create_handle()
        with pytest.raises(CaptureError, match="building a graph"):
            planned(handle=handle)
        stream.end_capture()
