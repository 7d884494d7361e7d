"""Attention to KV caches that are stored in another type: it reads them as they are, and no layer converts them.

    CacheAppend of f16 -> Convert to f32 -> attention        becomes CacheAppend of f16 -> StoredAttention
    CacheAppend -> attention, if caches are to be quantized  becomes CacheAppend of u8 -> StoredAttention

Between a cache and attention there may be Unsqueeze and Transpose. A cache that other layers read stays as it is, and
so does one whose tokens have an unknown size, or are not its last axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ovgpu.model import Model, Node, Output
from ovgpu.ops.arithmetic.arithmetic import Subtract
from ovgpu.ops.attention.attention import ScaledDotProductAttention
from ovgpu.ops.attention.stored_attention import StoredAttention
from ovgpu.ops.base.op import op_of
from ovgpu.ops.convert import Convert, ConvertDown
from ovgpu.ops.fused.kv_cache import CacheAppend, QuantizeTokens, Reorder
from ovgpu.ops.fused.stored_tokens import PARAMETER_BYTES
from ovgpu.ops.movement.movement import Transpose
from ovgpu.ops.shape.reshape import Unsqueeze
from ovgpu.passes._graph import HALVES, NodeBuilder, constant_integers, redirect, users_of
from ovgpu.symbolic import Sym
from ovgpu.types import PartialShape, Type

KEYS_AND_VALUES = (1, 2)  # indices among the inputs of attention


@dataclass(frozen=True)
class _Use:
    """Attention that takes a cache as its input ``index``, and the views before it, first the one next to the cache."""

    attention: Node
    index: int
    views: tuple[Node, ...]


@dataclass(frozen=True)
class _Cache:
    """Cache that only attention takes. ``source`` is the port that it takes: the cache, or its conversion."""

    append: Node
    source: Output
    uses: tuple[_Use, ...]


def attend_to_stored(model: Model, quantize: bool) -> None:
    """Rewrite the model in place. Port specs must be inferred beforehand; they are inferred again.

    If ``quantize``, caches of floats are stored in u8, see `ovgpu.ops.fused.stored_tokens`.
    """
    users = users_of(model)
    caches = [c for sink in model.sinks if (c := _find(sink, users, quantize)) is not None]
    while True:
        taken = {(use.attention, use.index) for cache in caches for use in cache.uses}
        kept = [c for c in caches if all((use.attention, i) in taken for use in c.uses for i in KEYS_AND_VALUES)]
        if len(kept) == len(caches):
            break
        caches = kept
    if not caches:
        return
    for cache in caches:
        _attend(cache)
    if quantize:
        quantized = {port for cache in caches for port in _quantize(cache)}
        shapes = [node for node in model.ops if node.op.name == "ShapeOf" and node.sources[0] in quantized]
        redirect(model, {node.ports[0]: _without_parameters(node) for node in shapes})
    model.changed()
    model.validate_nodes_and_infer_types()


def _find(sink: Node, users: dict[Output, list[Node]], quantize: bool) -> _Cache | None:
    """Return the cache that an Assign sets, None if attention cannot take it as it is stored."""
    append = None if sink.sources[0] is None else sink.sources[0].node
    if append is None or not isinstance(append.op, CacheAppend) or len(append.sources) != 2:
        return None
    source = append.ports[0]
    readers = [user for user in users[source] if user is not sink]
    if quantize:
        if not _is_quantizable(append, users):
            return None
    else:
        if source.spec.type not in HALVES or len(readers) != 1 or not isinstance(readers[0].op, Convert):
            return None
        source = readers[0].ports[0]
        readers = users[source]
    uses = _uses(source, readers, (), users)
    return _Cache(append, source, tuple(uses)) if uses else None


def _is_quantizable(append: Node, users: dict[Output, list[Node]]) -> bool:
    """Return whether the tokens of a cache can be quantized: their size is known, and nothing but the append takes the
    variable."""
    op: Any = append.op
    spec = append.ports[0].spec
    shape = spec.shape or ()
    if spec.type not in (Type.f32, *HALVES) or not shape or op.axis % len(shape) == len(shape) - 1:
        return False
    if isinstance(shape[-1], Sym) or not shape[-1]:
        return False
    read = _read(append)
    return read[-1].node.op.name == "ReadValue" and all(len(users[port]) == 1 for port in read)


def _read(append: Node) -> list[Output]:
    """Return the port of the old value that an append takes, and the one that the Reorder before it takes if there is
    one."""
    past = append.sources[0]
    assert past is not None
    read = past.node.sources[0] if isinstance(past.node.op, Reorder) else None
    return [past] if read is None else [past, read]


def _uses(
    port: Output, readers: Sequence[Node], views: tuple[Node, ...], users: dict[Output, list[Node]]
) -> list[_Use] | None:
    """Return the attention that takes a cache, here as ``port``, which ``readers`` take. Return None if other layers
    take it."""
    found = list[_Use]()
    for node in readers:
        if type(node.op) is ScaledDotProductAttention:
            indices = [i for i, source in enumerate(node.sources) if source is port]
            if not set(indices) <= set(KEYS_AND_VALUES):
                return None
            found += [_Use(node, i, views) for i in indices]
            continue
        if not _keeps_last_axis(node, port):
            return None
        uses = _uses(node.ports[0], users.get(node.ports[0], ()), (*views, node), users)
        if uses is None:
            return None
        found += uses
    return found


def _keeps_last_axis(node: Node, port: Output) -> bool:
    """Return whether the node is an Unsqueeze or Transpose of the port whose last axis is the port's last axis."""
    numbers = constant_integers(node.sources[1]) if isinstance(node.op, (Unsqueeze, Transpose)) else None
    if numbers is None or node.sources[0] is not port:
        return False
    rank = len(node.ports[0].spec.shape or ())
    last = numbers[-1:] if isinstance(node.op, Transpose) else [i for i in range(rank) if i not in _axes(numbers, rank)]
    return bool(last) and last[-1] % rank == rank - 1


def _axes(numbers: Sequence[int], rank: int) -> set[int]:
    return {n % rank for n in numbers}


def _attend(cache: _Cache) -> None:
    """Let the attention take the cache, and its new tokens as they are before they are stored."""
    append = cache.append
    new = append.sources[1]
    assert new is not None
    if cache.source is not append.ports[0]:
        new = _in_type(new, cache.source.spec.type)
    for attention, index, views in ((use.attention, use.index, use.views) for use in cache.uses):
        if not isinstance(attention.op, StoredAttention):
            attention.op = StoredAttention(causal=attention.op.causal)  # type: ignore[attr-defined]
            attention.sources = [*attention.sources, *[None] * (8 - len(attention.sources))]
        tokens = new
        for view in views:
            tokens = NodeBuilder(view).add(op_of(view), tokens, *view.sources[1:])
        attention.sources[5 + index] = tokens
        first = views[0] if views else attention
        first.sources[index if first is attention else 0] = append.ports[0]


def _in_type(port: Output, element_type: Type) -> Output:
    """Return the port before its conversion from this type, or converted to it."""
    source = port.node.sources[0] if isinstance(port.node.op, Convert) else None
    if source is not None and source.spec.type == element_type:
        return source
    converted: Output = NodeBuilder(port.node).add(Convert(destination_type=element_type), port)
    return converted


def _quantize(cache: _Cache) -> list[Output]:
    """Store a cache in u8. Return the ports that have rows of u8 from now on."""
    append = cache.append
    read = _read(append)
    node = read[-1].node
    if node.sources and node.sources[0] is not None:
        node.sources[0] = NodeBuilder(node).add(QuantizeTokens(), node.sources[0])
    op: Any = node.op
    if hasattr(op, "variable_type"):
        shape = op.variable_shape
        if shape is not None and shape.rank.is_static:
            shape = PartialShape([*list(shape)[:-1], shape[-1].get_length() + PARAMETER_BYTES])
        node.op = replace(op, variable_type=Type.u8, variable_shape=shape)
    new = append.sources[1]
    if new is not None and isinstance(new.node.op, ConvertDown):
        new = new.node.sources[0]
    append.sources[1] = NodeBuilder(append).add(QuantizeTokens(), new)
    return [*read, append.ports[0], *(view.ports[0] for use in cache.uses for view in use.views)]


def _without_parameters(shape: Node) -> Output:
    """Return the shape of a cache without the parameters of its rows, in place of a ShapeOf of the rows."""
    add, rank = NodeBuilder(shape), shape.sources[0].spec.rank or 0  # type: ignore[union-attr]
    added = add.constant([0] * (rank - 1) + [PARAMETER_BYTES], shape.ports[0].spec.type)
    result: Output = add.add(Subtract(), add.add(op_of(shape), shape.sources[0]), added)
    return result
