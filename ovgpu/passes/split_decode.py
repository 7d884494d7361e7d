"""CacheAppend -> CacheWrite in place: a decoder is split into a device part and a host part of its decode steps.

The device part takes the caches as inputs, whole, with their spare capacity, and two numbers: how many rows they had,
and have now. No shape in it depends on these numbers, so that it is bound, and captured, once for all lengths up to the
capacity. The host part computes tensors whose shapes or values depend on lengths, masks above all, from the inputs and
the lengths alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ovgpu.model import Model, Node, Output
from ovgpu.ops.attention.attention import CachedAttention, ScaledDotProductAttention
from ovgpu.ops.base.op import op_of
from ovgpu.ops.fused.kv_cache import CacheAppend, CacheWrite, Reorder
from ovgpu.ops.infrastructure.graph import Parameter
from ovgpu.ops.movement.movement import Transpose
from ovgpu.ops.shape.reshape import Unsqueeze
from ovgpu.passes._graph import users_of
from ovgpu.passes.subgraph import reached, subgraph
from ovgpu.spec import Spec
from ovgpu.symbolic import OPAQUE, Atom, Int, Sym, Table, atoms
from ovgpu.types import PartialShape, Type


@dataclass(frozen=True)
class Cache:
    """Variable that grows along ``axis``. ``shape`` is that of its new value, in the extents of the model's inputs,
    with the number of new rows at the axis."""

    name: str
    axis: int
    type: Type
    shape: tuple[Int, ...]


@dataclass(frozen=True)
class Feed:
    """Tensor that the host computes for the device; ``grows`` if its last axis is that of the keys."""

    port: Output
    grows: bool


@dataclass(frozen=True)
class DecodeSplit:
    """Two parts of a model. ``device`` takes the model's inputs, the feeds, the lengths [2] and the caches. ``host``
    takes the model's inputs and those caches, numbered in ``shape_caches``, whose shapes it reads. Its results are the
    feeds, then a flag for each way of reordering caches. The device part may run only if, by all flags, beams are
    identity."""

    device: Model
    host: Model
    caches: tuple[Cache, ...]
    feeds: tuple[Feed, ...]
    shape_caches: tuple[int, ...]

    def specs(self, table: Table) -> list[Spec]:
        """Return the specs of the device's parameters; extents known to be equal stay so. All caches have capacity for
        the same number of rows."""
        shared = _Shared(table)
        inputs = len(self.device.parameters) - len(self.feeds) - len(self.caches) - 1
        specs = [shared.declared(p, i) for i, p in enumerate(self.device.parameters[:inputs])]
        first = len(self.device.parameters) - len(self.caches)
        rows = table.atom("dim", first, self.caches[0].axis, lo=1)
        for number, feed in enumerate(self.feeds, inputs):
            shape = shared.shape(feed.port.spec.shape or (), number)
            specs.append(Spec(feed.port.spec.type, (*shape[:-1], rows) if feed.grows else shape))
        specs.append(Spec(Type.i64, (2,)))
        for number, cache in enumerate(self.caches, first):
            shape = shared.shape(cache.shape, number)
            specs.append(Spec(cache.type, (*shape[: cache.axis], rows, *shape[cache.axis + 1 :])))
        return specs


class _Shared:
    """Translation of extents to another table, as far as they are computed from the inputs' extents."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def declared(self, parameter: Node, number: int) -> Spec:
        spec = parameter.ports[0].spec
        return Spec(spec.type, self.shape(spec.shape or (), number))

    def shape(self, shape: Sequence[Int], number: int) -> tuple[Int, ...]:
        return tuple(
            self._extent(d) if is_of_inputs(d) else self.table.atom("dim", number, axis) for axis, d in enumerate(shape)
        )

    def _extent(self, value: Int) -> Int:
        if not isinstance(value, Sym):
            return value
        found: Int = 0
        for monomial, factor in value.terms:
            term: Int = factor
            for atom in monomial:
                args = [self._extent(a) if isinstance(a, Sym) else a for a in atom.args]
                term = term * self.table.atom(atom.op, *args, lo=atom.lo, hi=atom.hi)
            found = found + term
        return found


def is_of_inputs(value: Int) -> bool:
    """Return whether an extent is computed from the inputs' extents alone."""
    return all(a.op not in OPAQUE or (a.op == "dim" and isinstance(a.args[0], int)) for a in atoms(value))


def split_decode(model: Model) -> DecodeSplit | None:
    """Return the two parts of a model whose caches grow, None if it has no such caches or does not split. Port specs
    must be inferred beforehand."""
    model = model.clone()
    found = _Caches(model)
    return _Split(model, found).run() if found.names and found.splits else None


class _Caches:
    """KV caches of a model and the attention to them. ``splits``: whether nothing else takes the caches."""

    def __init__(self, model: Model) -> None:
        self.users = users_of(model)
        self.appends: list[Node] = []
        self.names: list[str] = []
        self.reads: list[Output] = []
        self.flags: list[Output] = []  # tensors that tell whether beams are identity
        self.attention: dict[Node, set[int]] = {}  # attention -> numbers of its inputs that are caches
        self.path: set[Node] = set()  # nodes that a cache passes through
        self.splits = all(self._add(sink) for sink in model.sinks if isinstance(_source(sink), CacheAppend))
        self.splits &= all(inputs == {1, 2} for inputs in self.attention.values())

    def _add(self, sink: Node) -> bool:
        node = sink.sources[0].node  # type: ignore[union-attr]
        past = node.sources[0]
        if len(node.sources) != 2 or past is None or past.node in self.appends:
            return False
        if isinstance(past.node.op, Reorder):
            read, _, flag = past.node.sources
            if flag is not None and flag not in self.flags:
                self.flags.append(flag)
            self.path.add(past.node)
            if len(self.users.get(past, ())) != 1:
                return False
        else:
            read = past
        if read is None or read.node.op.name != "ReadValue" or len(self.users.get(read, ())) != 1:
            return False
        self.path |= {read.node, node}
        self.appends.append(node)
        self.names.append(sink.op.variable_id)  # type: ignore[attr-defined]
        self.reads.append(read)
        op: Any = node.op
        return self._follow(node.ports[0], op.axis % len(node.ports[0].spec.shape or ()), sink)

    def _follow(self, port: Output, axis: int, sink: Node | None) -> bool:
        """Find the attention to a cache that grows along ``axis``; return False if anything else takes it."""
        users = [user for user in self.users.get(port, ()) if user is not sink]
        return bool(users) and all(self._takes(user, port, axis) for user in users)

    def _takes(self, user: Node, port: Output, axis: int) -> bool:
        op: Any = user.op
        rank = len(port.spec.shape or ())
        if type(op) is ScaledDotProductAttention:
            numbers = {i for i, source in enumerate(user.sources) if source is port}
            if op.causal or axis != rank - 2 or not numbers <= {1, 2}:
                return False
            self.attention.setdefault(user, set()).update(numbers)
            return True
        other = user.sources[1] if isinstance(op, (Unsqueeze, Transpose)) and user.sources[0] is port else None
        if other is None or other.spec.constant is None:
            return False
        order = [int(i) for i in other.spec.constant.reshape(-1)]
        if isinstance(op, Transpose):
            axis = order.index(axis) if order else rank - 1 - axis
        else:
            added = {i % (rank + len(order)) for i in order}
            axis = [i for i in range(rank + len(order)) if i not in added][axis]
        self.path.add(user)
        return self._follow(user.ports[0], axis, None)


class _Split:
    """Split of a model, which it changes, into two parts; `run` may be called once."""

    def __init__(self, model: Model, found: _Caches) -> None:
        self.model, self.found = model, found
        self.lengths = self._lengths()
        self.hostable: set[Output] = set()  # ports that the host can compute
        self.length_dependent: set[Output] = set()  # ports that depend on lengths
        self.feeds: dict[Output, Feed] = {}
        self.consumers: list[tuple[Node, int, Output]] = []  # (node, number of its input, the feed)

    def run(self) -> DecodeSplit | None:
        caches = self._describe_caches()
        if caches is None:
            return None
        for node in self.model.ops:
            self._classify(node)
        if not self._cut():
            return None
        feeds = tuple(self.feeds.values())
        reads, results = self.found.reads, [*(f.port for f in feeds), *self.found.flags]
        numbers = {read: number for number, read in enumerate(reads)}
        shape_caches = tuple(numbers[port] for port in reached(results, numbers))
        host = subgraph(self.model, [*self.model.inputs, *(reads[number] for number in shape_caches)], results)
        return DecodeSplit(self._device(feeds, caches), host, caches, feeds, shape_caches)

    def _describe_caches(self) -> tuple[Cache, ...] | None:
        found = []
        for node, name in zip(self.found.appends, self.found.names):
            op: Any = node.op
            new, whole = node.sources[1], node.ports[0].spec
            if new is None or new.spec.shape is None or whole.shape is None:
                return None
            axis = op.axis % len(whole.shape)
            # Apart from the axis, the new rows have the extents of the whole, which may be only those of the variable.
            shape = tuple(
                d if i != axis and is_of_inputs(d) else n for i, (d, n) in enumerate(zip(whole.shape, new.spec.shape))
            )
            if not all(map(is_of_inputs, shape)):
                return None
            found.append(Cache(name, axis, whole.type, shape))
        return tuple(found)

    def _lengths(self) -> set[Atom]:
        """Return the extents that change from step to step: those of caches, and of masks along the keys."""
        changing: set[Atom] = set()
        fixed: set[Atom] = set()
        for node, read in zip(self.found.appends, self.found.reads):
            op: Any = node.op
            changing |= _atoms([(read.spec.shape or ())[op.axis]])
            fixed |= _atoms(node.sources[1].spec.shape or ())  # type: ignore[union-attr]
        for node in self.found.attention:
            mask = _input(node, 3)
            if mask is not None and mask.spec.shape:
                changing |= _atoms(mask.spec.shape[-1:])
            fixed |= _atoms(node.sources[0].spec.shape or ())  # type: ignore[union-attr]
        return changing - fixed

    def _classify(self, node: Node) -> None:
        """Record whether a node's results depend on lengths, and whether the host can compute them. Its inputs
        must have been classified."""
        op = op_of(node)
        cheap = op.name in ("Parameter", "Constant", "ShapeOf") or (
            not op.effect and op.host_in_decode and all(s is None or s in self.hostable for s in node.sources)
        )
        for port in node.ports:
            value = port.spec.value
            if cheap:
                self.hostable.add(port)
            if value is not None:
                length_dependent = self._grows(value.ravel().tolist() if value.dtype == object else ())
            else:
                length_dependent = self._grows(port.spec.shape or ()) or (
                    cheap
                    and op.name != "ShapeOf"
                    and any(s is not None and s in self.length_dependent for s in node.sources)
                )
            if length_dependent:
                self.length_dependent.add(port)

    def _grows(self, numbers: Iterable[Int]) -> bool:
        return not self.lengths.isdisjoint(_atoms(numbers))

    def _cut(self) -> bool:
        """Find the tensors that the host has to compute; return whether the rest has shapes that do not change."""
        sinks = [s for s in self.model.sinks if not isinstance(_source(s), CacheAppend)]
        stack = [*self.model.results, *sinks, *self.found.attention]
        seen: set[Node] = set()
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            attends = node in self.found.attention
            for i, source in enumerate(node.sources):
                if source is None or (isinstance(node.op, CacheAppend) and not i):
                    continue
                if attends and i == 3:
                    if not self._mask(node, source, stack):
                        return False
                elif source in self.length_dependent and source in self.hostable:
                    if self._grows(source.spec.shape or ()):
                        return False
                    self._feed(node, i, source, False)
                else:
                    stack.append(source.node)
            if node not in self.found.path and any(
                p.spec.shape is None or self._grows(p.spec.shape) for p in node.ports
            ):
                return False
        return True

    def _mask(self, node: Node, mask: Output, stack: list[Node]) -> bool:
        """Feed an attention's mask, unless it is the same for all keys; return False if neither is possible."""
        number = 3
        while _adds_axes_in_front(mask.node):  # the device adds them, for all layers that share the mask
            node, number, mask = mask.node, 0, mask.node.sources[0]  # type: ignore[assignment]
        shape = mask.spec.shape
        if shape is None:
            return False
        if mask in self.length_dependent and mask in self.hostable:
            self._feed(node, number, mask, self._grows(shape[-1:]))
            return not self._grows(shape[:-1])
        stack.append(mask.node)
        return not shape or shape[-1] == 1

    def _feed(self, node: Node, number: int, port: Output, grows: bool) -> None:
        self.feeds.setdefault(port, Feed(port, grows))
        self.consumers.append((node, number, port))

    def _device(self, feeds: Sequence[Feed], caches: Sequence[Cache]) -> Model:
        """Change the model into the device part, and return it."""
        fed = {f.port: _parameter(f.port.spec, f.port) for f in feeds}
        lengths = _parameter(Spec(Type.i64, (2,)), self.found.reads[0])
        for node, number, port in self.consumers:
            node.sources[number] = fed[port]
        whole = []
        for node, read, cache in zip(self.found.appends, self.found.reads, caches):
            whole.append(_parameter(read.spec, read))
            node.op, node.sources = CacheWrite(axis=cache.axis), [whole[-1], node.sources[1], lengths]
        for node in self.found.attention:
            node.op = CachedAttention()
            node.sources = [*node.sources, *[None] * (6 - len(node.sources)), lengths]
        model = self.model
        parameters = [*model.parameters, *(fed[f.port].node for f in feeds), lengths.node, *(p.node for p in whole)]
        sinks = [s for s in model.sinks if not isinstance(_source(s), CacheWrite)]
        device = Model(model.results, sinks, parameters, model.friendly_name, source=model.source)
        device.validate_nodes_and_infer_types()
        return device


def _adds_axes_in_front(node: Node) -> bool:
    """Return whether the node is an Unsqueeze that leaves the last axis where it is."""
    axes = node.sources[1].spec.constant if isinstance(node.op, Unsqueeze) and node.sources[1] is not None else None
    rank = len(node.ports[0].spec.shape or ())
    return axes is not None and rank - 1 not in {int(i) % rank for i in axes.reshape(-1)}


def _atoms(numbers: Iterable[Int]) -> set[Atom]:
    return {a for n in numbers for a in atoms(n) if a.op == "dim"}


def _source(sink: Node) -> Any:
    return None if sink.sources[0] is None else sink.sources[0].node.op


def _input(node: Node, number: int) -> Output | None:
    return node.sources[number] if len(node.sources) > number else None


def _parameter(spec: Spec, port: Output) -> Output:
    shape = PartialShape([d if not isinstance(d, Sym) else -1 for d in spec.shape or ()])
    op: Any = Parameter(element_type=spec.type, shape=shape)
    return Node(op, [], name=port.node.friendly_name, layer_id=port.node.layer_id).ports[0]
