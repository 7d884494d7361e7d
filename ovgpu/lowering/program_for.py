"""Programs that are built once the inputs are known, and cached by the inputs' ranks and element types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ovgpu.lowering.build import build
from ovgpu.lowering.program import Program
from ovgpu.model import Model
from ovgpu.ops.base.op import Array
from ovgpu.spec import Spec, dims_of
from ovgpu.symbolic import Table
from ovgpu.types import PartialShape, Type


def program_for(
    model: Model,
    inputs: Sequence[Array],
    programs: dict[tuple[Any, ...], Program],
    *,
    uploads: bool = False,
    downloads: bool = False,
) -> Program:
    """Return the program of a model for inputs of these ranks and types, of any extents; ``programs`` is the cache."""
    key = tuple((x.ndim, x.dtype) for x in inputs)
    program = programs.get(key)
    if program is None:
        table = Table()
        specs = []
        for index, (parameter, x) in enumerate(zip(model.parameters, inputs)):
            op: Any = parameter.op
            shape = PartialShape.dynamic(x.ndim)
            element_type: Type = op.element_type
            if (
                element_type.is_dynamic() or element_type.storage != x.dtype
            ):  # the input's type overrides the declared one
                element_type = Type.of(x.dtype)
            specs.append(Spec(element_type, dims_of(shape, table, index)))
        # Build from a copy: shape inference writes to the ports, and other requests may build from the same model.
        program = programs[key] = build(model.clone(), specs, table, uploads=uploads, downloads=downloads)
    return program
