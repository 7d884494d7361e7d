"""Norm -> Quantize becomes one NormWithCodes on the device, which gives the norm as well if other layers take it.

A factor for each normalised element may come before the Quantize, as in models whose outliers are smoothed.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.arithmetic.arithmetic import Multiply
from ovgpu.ops.base.op import op_of
from ovgpu.ops.convert import Convert
from ovgpu.ops.fused._elementwise import Fused
from ovgpu.ops.fused.add_norm import AddNorm
from ovgpu.ops.fused.norm_codes import NormWithCodes
from ovgpu.ops.normalization.normalization import ScaledMVN
from ovgpu.ops.quantization import Quantize
from ovgpu.passes._graph import HALVES, constant_of, redirect, users_of
from ovgpu.passes.fuse_elementwise import fused, layer_of
from ovgpu.types import Type


def quantize_norms(model: Model) -> None:
    """Rewrite the model and its bodies in place. Sums must be fused with their norms, and specs inferred, before."""
    users, moved = users_of(model), dict[Output, Output]()
    for node in model.ops:
        for body in bodies(node.op):
            quantize_norms(body)
        source = node.sources[0] if node.sources else None
        if source is None or source in moved or source.index or not isinstance(source.node.op, (ScaledMVN, AddNorm)):
            continue
        codes = quantization(node, source)
        if codes is not None and all(_is_factor(port, source) for port in node.sources[1 : codes.chain.inputs]):
            _rewrite(source.node, node, codes, len(users[source]) > 1, moved)
    redirect(model, moved)
    model.changed()


def quantization(node: Node, source: Output) -> Fused | None:
    """Return a node's layers if an `OpWithCodes` takes them: Convert to f32 of another type, Multiply by the second
    input, or none, and Quantize by numbers; else None."""
    op: Any = fused([node])[0] if isinstance(node.op, Quantize) else op_of(node)
    if not isinstance(op, Fused) or op.chain.inputs > 2 or source.spec.type not in (*HALVES, Type.f32):
        return None
    chain, convert = op.chain, source.spec.type != Type.f32
    wanted = [*[Convert] * convert, *[Multiply] * (chain.inputs - 1), Quantize]
    if [type(part.op) for part in chain.parts] != wanted:
        return None
    value, literals = 0, range(chain.inputs, chain.inputs + len(chain.literals))
    for number, part in enumerate(chain.parts, literals.stop):
        first, *others = part.operands
        if first != value or not all(i == 1 if isinstance(part.op, Multiply) else i in literals for i in others):
            return None
        value = number
    return op


def _is_factor(port: Output | None, source: Output) -> bool:
    """Return whether the port is a constant of f32 with an element for each element of a normalised row."""
    norm: Any = source.node.op
    rank = (norm.norm if isinstance(norm, AddNorm) else norm).rank
    value, shape = constant_of(port), source.spec.shape
    if value is None or value.dtype != np.float32 or shape is None:
        return False
    extents = shape[len(shape) - rank :]
    return value.ndim <= len(shape) and value.size == prod(value.shape[-rank:]) and bool(value.shape[-rank:] == extents)


def _rewrite(norm: Node, node: Node, codes: Fused, keep: bool, moved: dict[Output, Output]) -> None:
    """Make a new node give the norm, if it is kept, the sum of an AddNorm, and the codes."""
    sums = norm.ports[1:]
    origin = layer_of(norm)
    op = NormWithCodes(norm=op_of(norm), codes=codes, layer=origin, keep=keep)  # type: ignore[arg-type]
    sources = [None if s is None else moved.get(s, s) for s in (*norm.sources, *node.sources[1 : codes.chain.inputs])]
    found = Node(op, sources, keep + len(sums) + 1, name=norm.friendly_name, layer_id=norm.layer_id)
    *ports, last = found.ports
    for old, new in zip([*norm.ports[:1] * keep, *sums, node.ports[0]], [*ports, last]):
        new.spec, new.names = old.spec, old.own_names
        moved[old] = new
    if not keep:
        moved[norm.ports[0]] = last  # for its shape
