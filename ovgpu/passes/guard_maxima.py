"""max + Log(Sum(Exp(x - max))), where the maximum may be infinite -> the same with 0 in place of an infinite maximum.

Frontends write logsumexp and logaddexp in this form, whose value does not depend on the number that is subtracted. If
all elements are -inf, x - max would be NaN. OpenVINO's plugin has no such NaN, since its maxima begin at the lowest
finite number.
"""

from __future__ import annotations

from collections.abc import Iterator

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.arithmetic.arithmetic import Add, Exp, Log, Maximum, Subtract
from ovgpu.ops.arithmetic.cumsum import CumSum
from ovgpu.ops.base.op import op_of
from ovgpu.ops.comparison import IsFinite, Select
from ovgpu.ops.reduction import ReduceMax, ReduceSum
from ovgpu.passes._graph import NodeBuilder, operands, users_of

Users = dict[Output, list[Node]]


def guard_maxima(model: Model) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand; they are inferred again."""
    if _rewrite(model):
        model.validate_nodes_and_infer_types()


def _rewrite(model: Model) -> bool:
    changed = any([_rewrite(body) for node in model.ops for body in bodies(node.op)])
    users: Users | None = None
    for node in model.ops:
        for total, maximum in operands(node, Add):
            port = _strip_reshapes(maximum)
            if not isinstance(port.node.op, (Maximum, ReduceMax)) or port.spec.type.is_dynamic():
                continue
            log = _strip_reshapes(total).node
            differences = list(_differences(log.sources[0])) if isinstance(log.op, Log) else []
            readers = {node, *(each for each in differences if each is not None)}
            users = users_of(model) if users is None else users
            if None in differences or not differences or not _all_subtract(readers - {node}, port):
                continue
            if not set(_maximised(port)) <= {_strip_optional(each.sources[0]) for each in readers - {node}}:
                continue  # an infinite maximum of other tensors makes the sum 0 or NaN
            # No other layer may see that the maximum changes.
            if all(reader in readers for reader in _readers(port, users)):
                _make_finite(port, users)
                changed = True
    model.changed()
    return changed


def _strip_reshapes(port: Output) -> Output:
    """Return the tensor behind a chain of reshapes."""
    while op_of(port.node).is_reshape and port.node.sources[0] is not None:
        port = port.node.sources[0]
    return port


def _strip_optional(port: Output | None) -> Output | None:
    return None if port is None else _strip_reshapes(port)


def _maximised(maximum: Output) -> Iterator[Output | None]:
    """Yield the tensors that the maximum is computed from."""
    for source in maximum.node.sources[: 2 if isinstance(maximum.node.op, Maximum) else 1]:
        port = _strip_optional(source)
        if port is not None and isinstance(maximum.node.op, Maximum) and isinstance(port.node.op, Maximum):
            yield from _maximised(port)
        else:
            yield port


def _differences(port: Output | None) -> Iterator[Node | None]:
    """Yield, for each term of a sum, the Subtract whose exponential the term is, None for a term of another form."""
    node = None if port is None else _strip_reshapes(port).node
    if node is not None and isinstance(node.op, (Add, ReduceSum, CumSum)):
        for source in node.sources[: 2 if isinstance(node.op, Add) else 1]:
            yield from _differences(source)
    else:
        source = node.sources[0] if node is not None and isinstance(node.op, Exp) else None
        yield None if source is None or not isinstance(source.node.op, Subtract) else source.node


def _all_subtract(differences: set[Node], maximum: Output) -> bool:
    """Return whether all these nodes subtract the maximum."""
    return all(node.sources[1] is not None and _strip_reshapes(node.sources[1]) is maximum for node in differences)


def _readers(port: Output, users: Users) -> Iterator[Node]:
    """Yield the nodes that read a tensor, or a reshaped form of it."""
    for node in users.get(port, ()):
        if op_of(node).is_reshape and node.sources[0] is port:
            yield from _readers(node.ports[0], users)
        else:
            yield node


def _make_finite(port: Output, users: Users) -> None:
    """Make the users of a maximum take 0 where it is infinite."""
    graph, dtype = NodeBuilder(port.node), port.spec.type
    finite = graph.add(Select(), graph.add(IsFinite(), port), port, graph.constant(0, dtype))
    for node in users[port]:
        node.sources = [finite if source is port else source for source in node.sources]
