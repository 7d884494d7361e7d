"""RotaryCacheWrite -> CachedAttention becomes one RotaryAttention in a decode step."""

from __future__ import annotations

from ovgpu.model import Model, Node, Output
from ovgpu.ops.attention.attention import CachedAttention
from ovgpu.ops.base.op import op_of
from ovgpu.ops.fused.rotary import RotaryCacheWrite
from ovgpu.ops.fused.rotary_attention import RotaryAttention
from ovgpu.ops.shape.reshape import Reshape, Unsqueeze
from ovgpu.passes._graph import add_port, redirect, users_of
from ovgpu.symbolic import Sym


def attend_rotated(model: Model) -> None:
    """Rewrite the model in place. Port specs must be inferred beforehand."""
    users, moved = users_of(model), dict[Output, Output]()
    for node in model.ops:
        if isinstance(node.op, CachedAttention):
            _join(node, users, moved)
    redirect(model, moved)
    model.changed()


def _join(node: Node, users: dict[Output, list[Node]], moved: dict[Output, Output]) -> None:
    """Make an attention compute the rotary layer before it as well, and record the ports that it replaces."""
    attention, rotary = op_of(node), _find_rotary(node, users)
    grouped = None if rotary is None else _is_grouped(node, rotary)
    if rotary is None or grouped is None:
        return
    assert isinstance(attention, CachedAttention) and isinstance(rotary.op, RotaryCacheWrite)
    node.op = RotaryAttention(rotary=rotary.op, attention=attention, grouped=grouped)
    node.sources = [*rotary.sources[:-1], *node.sources[3:]]
    moved.update({port: add_port(node, port) for port in rotary.ports[1:]})


def _find_rotary(attention: Node, users: dict[Output, list[Node]]) -> Node | None:
    """Return the RotaryCacheWrite whose three results, perhaps reshaped, are the queries, keys and values of an
    attention. Return None if there is none, or if the queries have other users."""
    layers = list[Node]()
    for i in range(3):
        port, user = attention.sources[i], attention
        while port is not None and isinstance(port.node.op, (Reshape, Unsqueeze, RotaryCacheWrite)):
            if i == 0 and users[port] != [user]:
                return None
            if isinstance(port.node.op, RotaryCacheWrite):
                break
            user, port = port.node, port.node.sources[0]
        if port is None or not isinstance(port.node.op, RotaryCacheWrite) or port is not port.node.ports[i]:
            return None
        layers.append(port.node)
    lengths = {node.sources[-1] for node in (*layers, attention)}
    return layers[0] if layers == layers[:1] * 3 and len(lengths) == 1 else None


def _is_grouped(attention: Node, rotary: Node) -> bool | None:
    """Return True if an attention has an extra axis for the query heads that share a key head, False if its inputs have
    the shapes of the rotary layer's results, and None for any other arrangement of heads."""
    (q, keys, values), (own_q, own_keys, own_values) = (
        [s.spec.shape or () for s in ports[:3] if s is not None] for ports in (attention.sources, rotary.ports)
    )
    if (q, keys, values) == (own_q, own_keys, own_values):
        return False
    heads, groups = own_q[-3], own_keys[-3]
    if isinstance(heads, Sym) or isinstance(groups, Sym) or heads % groups:
        return None
    wanted = [(*x[:-3], groups, x[-3] // groups, *x[-2:]) for x in (own_q, own_keys, own_values)]
    return True if [q, keys, values] == wanted else None
