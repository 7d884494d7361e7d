"""Checks of `cuda_expr` against `fn`: the CUDA expressions of all ops, compiled for the host in one source."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda import sources
from ovgpu.errors import OpError
from ovgpu.ops import registry
from ovgpu.ops.base import op as op_module
from ovgpu.ops.base.elementwise import Elementwise, cuda_body, names
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.convert import Convert
from ovgpu.spec import Spec
from ovgpu.types import Type
from tests.emulator.toolchain import compiler

C_TYPES = {
    Type.f32: "float",
    Type.f64: "double",
    Type.i32: "int",
    Type.i64: "long long",
    Type.i8: "signed char",
    Type.u8: "unsigned char",
    Type.u64: "unsigned long long",
    Type.boolean: "bool",
}
ATTRIBUTES: dict[str, list[dict[str, Any]]] = {
    "Elu": [{"alpha": 0.7}, {"alpha": 2.0}],
    "Clamp": [{"min": -1.5, "max": 2.5}, {"min": -np.inf, "max": 1.0}, {"min": 0.0, "max": np.inf}],
    "Gelu": [{}, {"approximation_mode": "tanh"}],
    "Round": [{}, {"mode": "half_away_from_zero"}],
    "IsInf": [{}, {"detect_negative": False}, {"detect_positive": False}],
    "Divide": [{}, {"m_pythondiv": False}],
    "FakeQuantize": [{"levels": 7}, {"levels": 256}],
}
SCALARS = ("HardSigmoid", "Selu", "Swish")  # ops whose further inputs have one element
DEVICE_ONLY = ("ErfInv", "FakeConvert")  # ops that call functions that the host does not have
SPECIAL = [np.nan, np.inf, -np.inf, 0, -0.0, 1, -1, 2.5, -2.5, 0.5, 0.49999997, 100, -100, 3]
N = 64


def ops() -> Iterator[Elementwise]:
    for cls in registry():
        if issubclass(cls, Elementwise) and not issubclass(cls, Convert) and cls.name not in DEVICE_ONLY:
            for attributes in ATTRIBUTES.get(cls.name, [{}]):
                if set(attributes) <= set(op_module.schema(cls)):
                    yield cls(**attributes)
    yield from (Convert(destination_type=kind) for kind in C_TYPES)


def signature(op: Elementwise, kind: Type, optional: bool) -> list[Spec]:
    count = 1 if not optional and op.name == "Swish" else len(names(type(op)))
    kinds = [Type.boolean, kind, kind] if op.name == "Select" else [kind] * count
    return [Spec(k, () if i and op.name in SCALARS else (N,)) for i, k in enumerate(kinds)]


def functions() -> Iterator[tuple[Elementwise, list[Spec], Type]]:
    """Yield each op with the specs of its inputs and the type of its output, for all supported types."""
    for op in ops():
        for kind in C_TYPES:
            for optional in (True, False) if op.name == "Swish" else (True,):
                specs = signature(op, kind, optional)
                try:
                    yield op, specs, op.infer_specs(*specs)[0].type
                except OpError:
                    pass


FUNCTIONS = list(functions())


def integer_power() -> str:
    """Return the source of `integer_power`, from the header that generated kernels include."""
    text = (sources.folder() / "elementwise.cuh").read_text()
    begin = text.index("template <typename T>\n__device__ __forceinline__ T integer_power")
    return text[begin : text.index("\n}\n", begin) + 3].replace("__device__ __forceinline__ ", "")


def source() -> str:
    lines = ["#include <cmath>", "using namespace std;", integer_power()]
    for number, (op, specs, result) in enumerate(FUNCTIONS):
        given = names(type(op))[: len(specs)]
        pointers = ", ".join(f"const {C_TYPES[s.type]}* p{i}" for i, s in enumerate(specs))
        loads = " ".join(
            f"{C_TYPES[s.type]} _{name} = p{i}[{'n' if s.shape else 0}];"
            for i, (s, name) in enumerate(zip(specs, given))
        )
        lines.append(
            f'extern "C" void f{number}({pointers}, {C_TYPES[result]}* o) {{ for (int n = 0; n < {N}; ++n) {{'
            f" {C_TYPES[result]} out; {loads} {cuda_body(op, [s.type for s in specs])} o[n] = out; }} }}"
        )
    return "\n".join(lines)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("expressions")
    (folder / "all.cc").write_text(source())
    subprocess.run(
        [compiler(), "-std=c++17", "-O0", "-w", "-fwrapv", "-shared", "-fPIC", "-o", "all.so", "all.cc"],
        cwd=folder,
        check=True,
    )
    return ctypes.CDLL(str(folder / "all.so"))


def values(op: Elementwise, spec: Spec, first: bool, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    kind, shape = spec.type, tuple(spec.shape or ())
    if kind == Type.boolean:
        return np.asarray(rng.integers(0, 2, shape), bool)
    if kind.is_real():
        x = np.array(rng.uniform(-4, 4, shape))
        if shape:
            x[: len(SPECIAL)] = rng.permutation(SPECIAL)
        return x.astype(kind.storage)
    info = np.iinfo(kind.storage)
    size = 3 if op.name == "Power" else 9  # so that powers fit
    x = np.array(rng.integers(max(info.min, -size), size, shape)).astype(kind.storage)
    if first and op.name != "Power":
        x[:4] = [0, 1, info.max, info.min]
    return x


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "number",
    range(len(FUNCTIONS)),
    ids=[
        "-".join([op.name, op.version, *map(str, op.attributes().values()), *(s.type.type_name for s in specs)])
        for op, specs, _ in FUNCTIONS
    ],
)
def test_expression(number: int, library: ctypes.CDLL) -> None:
    op, specs, result = FUNCTIONS[number]
    rng = np.random.default_rng(number)
    inputs = [np.ascontiguousarray(values(op, s, i == 0, rng)).reshape(s.shape) for i, s in enumerate(specs)]
    if isinstance(op, Convert) and result.is_integral_number() and specs[0].type.is_real():
        inputs = [np.nan_to_num(x, posinf=0, neginf=0) for x in inputs]  # undefined as integers
    wanted = op_module.evaluate(op, NUMPY, inputs, [result])[0]
    found = np.empty(N, result.storage)
    pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in (*inputs, found)]
    library[f"f{number}"](*pointers)
    if not result.is_real():
        assert np.array_equal(found, wanted)
        return
    with np.errstate(all="ignore"):
        close = np.abs(found - wanted) <= (2e-6 if result == Type.f32 else 1e-13) * np.maximum(1, np.abs(wanted))
    wrong = ~(close | (found == wanted) | (np.isnan(found) & np.isnan(wanted)))
    assert not wrong.any(), [
        (*(x[i] if x.ndim else x for x in inputs), found[i], wanted[i]) for i in np.flatnonzero(wrong)[:5]
    ]
