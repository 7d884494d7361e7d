"""Norm -> Quantize becomes one NormWithCodes on the device, which returns the norm too if other layers take it.

A Multiply by a factor per normalised element may come before the Quantize, as in models with smoothed outliers.
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
from ovgpu.passes.fuse_elementwise import fuse_nodes, layer_of
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
        codes = match_quantization(node, source)
        if codes is not None and all(_is_factor(port, source) for port in node.sources[1 : codes.chain.inputs]):
            _rewrite(source.node, node, codes, len(users[source]) > 1, moved)
    redirect(model, moved)
    model.changed()


def match_quantization(node: Node, source: Output) -> Fused | None:
    """Return a node's layers as a chain if an `OpWithCodes` can compute them, else None.

    The chain must be [Convert to f32 ->] [Multiply by the second input ->] Quantize with parameters of one element.
    """
    op: Any = fuse_nodes([node])[0] if isinstance(node.op, Quantize) else op_of(node)
    if not isinstance(op, Fused) or op.chain.inputs > 2 or source.spec.type not in (*HALVES, Type.f32):
        return None
    chain, convert = op.chain, source.spec.type != Type.f32
    expected = [*[Convert] * convert, *[Multiply] * (chain.inputs - 1), Quantize]
    if [type(part.op) for part in chain.parts] != expected:
        return None
    # Operands count the inputs, the literals and the results of the parts, in this order.
    previous, literals = 0, range(chain.inputs, chain.inputs + len(chain.literals))
    for result, part in enumerate(chain.parts, literals.stop):
        first, *others = part.operands
        if first != previous or not all(i == 1 if isinstance(part.op, Multiply) else i in literals for i in others):
            return None
        previous = result
    return op


def _is_factor(port: Output | None, source: Output) -> bool:
    """Return whether the port is a constant of f32 with one element per element of a normalised row."""
    norm: Any = source.node.op
    rank = (norm.norm if isinstance(norm, AddNorm) else norm).rank
    value, shape = constant_of(port), source.spec.shape
    if value is None or value.dtype != np.float32 or shape is None:
        return False
    extents = shape[len(shape) - rank :]
    return value.ndim <= len(shape) and value.size == prod(value.shape[-rank:]) and bool(value.shape[-rank:] == extents)


def _rewrite(norm: Node, node: Node, codes: Fused, keep: bool, moved: dict[Output, Output]) -> None:
    """Add a node that returns the norm (with ``keep``), the sum of an AddNorm, and the codes, and record it as their
    replacement in ``moved``."""
    sums = norm.ports[1:]
    origin = layer_of(norm)
    op = NormWithCodes(norm=op_of(norm), codes=codes, layer=origin, keep=keep)  # type: ignore[arg-type]
    sources = [None if s is None else moved.get(s, s) for s in (*norm.sources, *node.sources[1 : codes.chain.inputs])]
    quantized = Node(op, sources, keep + len(sums) + 1, name=norm.friendly_name, layer_id=norm.layer_id)
    *ports, last = quantized.ports
    for old, new in zip([*norm.ports[:1] * keep, *sums, node.ports[0]], [*ports, last]):
        new.spec, new.names = old.spec, old.own_names
        moved[old] = new
    if not keep:
        moved[norm.ports[0]] = last  # for layers that read its shape
