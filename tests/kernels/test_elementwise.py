"""The bodies of elementwise ops compile for real devices, in the types of their cases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ovgpu
from ovgpu.backends.cuda.elementwise import c_type
from ovgpu.ops import lookup, registry
from ovgpu.ops.base.elementwise import Elementwise, cuda_body, names
from ovgpu.ops.base.op import schema
from ovgpu.types import Type
from tests.conformance import modules
from tests.emulator import nvrtc
from tests.harness import Case

KINDS = ("f32", "f16", "bf16", "i32", "i64", "boolean")
TARGETS = {"f32": "real", "f16": "real", "i8": "narrow", "u8": "narrow", "i64": "wide", "boolean": "boolean"}
EXTRA = 1  # cases per op version whose inputs differ in rank, besides one case per type


def candidates() -> Iterator[Case]:
    """Yield the judged cases of all elementwise ops."""
    for module in modules("ops"):
        for value in vars(module).values():
            for case in getattr(value, "cases", ()):
                cls = lookup(case.op, case.version)
                if cls is not None and issubclass(cls, Elementwise) and case.judged and suits(case):
                    yield case


def suits(case: Case) -> bool:
    """Return whether the case has few elements, types with CUDA arithmetic, and an input to redraw."""
    kinds = {i.dtype for i in case.inputs}
    drawn = [i for i in case.inputs if not i.fixed]
    return bool(drawn) and kinds <= set(KINDS) and all(0 < np.prod(i.shape) < 500 for i in case.inputs)


def chosen() -> Iterator[Case]:
    """Yield one case per op version and type, the first in the tables, and a few with inputs of different ranks."""
    found: dict[tuple[Any, ...], Case] = {}
    counts: dict[Any, int] = {}
    for case in candidates():
        cls = lookup(case.op, case.version)
        kind = case.inputs[-1].dtype, TARGETS.get(str(case.attrs.get("destination_type")))
        ranks = len({len(i.shape) for i in case.inputs})
        if (cls, kind) not in found:
            found[cls, kind] = case
        elif ranks > 1 and counts.get(cls, 0) < EXTRA:
            counts[cls] = counts.get(cls, 0) + 1
            found[cls, kind, counts[cls]] = case
    yield from found.values()


CASES = list(chosen())


def test_every_op_has_cases() -> None:
    wanted = {cls for cls in registry() if issubclass(cls, Elementwise)}
    assert {lookup(c.op, c.version) for c in CASES} == wanted


@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
def test_every_body_compiles_for_devices(architecture: str) -> None:
    """All bodies compile as functions of one source, also with infinite and absent attributes."""
    nvrtc.compile_source("\n".join(['#include "elementwise.cuh"', *functions()]), architecture)


def functions() -> Iterator[str]:
    for number, case in enumerate(CASES):
        cls: Any = lookup(case.op, case.version)
        op = cls(
            **{
                name: getattr(Type, value) if schema(cls)[name][0] is Type else value
                for name, value in case.attrs.items()
            }
        )
        kinds = [getattr(Type, i.dtype) for i in case.inputs]
        result = op.infer_specs(*(ovgpu.spec.Spec(k, tuple(i.shape)) for k, i in zip(kinds, case.inputs)))[0].type
        given = ", ".join(f"const {c_type(k.storage)} _{n}" for k, n in zip(kinds, names(cls)))
        target = c_type(result.storage)
        yield (f"__global__ void f{number}({given}, {target}* p) {{ {target}& out = *p; {cuda_body(op, kinds)} }}")
