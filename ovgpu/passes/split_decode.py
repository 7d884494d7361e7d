"""CacheAppend -> CacheWrite in place: decode steps of a decoder are split into a device part and a host part.

The inputs of the device part include the whole caches, with their spare capacity, and two lengths: the numbers of valid
rows before and after the step. No shape depends on these lengths, so that the part is bound and captured once for all
lengths up to the capacity. The host part computes tensors whose shapes or values depend on lengths, above all masks. It
needs only the model's inputs and the lengths.

For batches of sequences, each with a length of its own, the caches lie in pages (`ovgpu.ops.fused.kv_cache`): the
device part takes pools in place of caches, and a table of pages in place of the lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ovgpu.model import Model, Node, Output
from ovgpu.ops.attention.attention import CachedAttention, ScaledDotProductAttention
from ovgpu.ops.attention.stored_attention import StoredAttention
from ovgpu.ops.base.lazy import LazyConstant
from ovgpu.ops.base.op import op_of
from ovgpu.ops.convert import ConvertDown
from ovgpu.ops.fused.kv_cache import PAGE_TOKENS, CacheAppend, CacheWrite, QuantizeTokens, Reorder, table_tokens
from ovgpu.ops.infrastructure.graph import Constant, Parameter
from ovgpu.ops.movement.movement import Transpose
from ovgpu.ops.shape.reshape import Unsqueeze
from ovgpu.passes._graph import HALVES, users_of
from ovgpu.passes.subgraph import reached, subgraph
from ovgpu.spec import Spec
from ovgpu.symbolic import OPAQUE, Atom, Int, Sym, Table, atoms, same
from ovgpu.types import PartialShape, Type

MASK_INPUT = 3  # index of the mask among the inputs of an attention


@dataclass(frozen=True)
class Cache:
    """Variable that grows along ``axis``.

    ``shape`` is the shape of its new value, in terms of the extents of the model's inputs. At ``axis`` it has the
    number of new rows. The other extents of ``new``, the shape of the new rows, must be the same. ``append`` is the
    layer that writes them.
    """

    name: str
    axis: int
    type: Type
    shape: tuple[Int, ...]
    new: tuple[Int, ...]
    append: Node


@dataclass(frozen=True)
class Feed:
    """Tensor that the host computes for the device. If it ``grows``, its last axis is the axis of keys."""

    port: Output
    grows: bool


@dataclass(frozen=True)
class DecodeSplit:
    """The two parts of a model.

    ``device`` takes the model's inputs, the feeds, the lengths [2] and the caches. ``host`` takes the model's inputs
    and the caches whose shapes it reads; ``shape_caches`` are their indices in ``caches``. Its results are the feeds,
    then one flag for each tensor of beams that reorders caches. The device part may run only if all flags are true: it
    leaves out the reordering, so the beams must be the identity. If ``paged``, it takes a table of pages and pools.
    """

    device: Model
    host: Model
    caches: tuple[Cache, ...]
    feeds: tuple[Feed, ...]
    shape_caches: tuple[int, ...]
    paged: bool

    def specs(self, table: Table) -> list[Spec]:
        """Return the specs of the device part's parameters, with extents from ``table``.

        Extents that are equal in the model stay equal. All caches have capacity for the same number of rows, and all
        pools the same number of pages.
        """
        translator = _ExtentTranslator(table)
        inputs = len(self.device.parameters) - len(self.feeds) - len(self.caches) - 1
        specs = [translator.spec(p, i) for i, p in enumerate(self.device.parameters[:inputs])]
        first = len(self.device.parameters) - len(self.caches)
        if self.paged:
            sequences = translator.shape(self.caches[0].shape, first)[0]
            lengths = Spec(Type.i32, (sequences, table.atom("dim", first - 1, 1, lo=3)))
            pages, columns = [table.atom("dim", first, 0, lo=1)], table_tokens(lengths.shape or ())
            rows: Int = PAGE_TOKENS
        else:
            rows = columns = table.atom("dim", first, self.caches[0].axis, lo=1)
            lengths, pages = Spec(Type.i64, (2,)), []
        for parameter, feed in enumerate(self.feeds, inputs):
            shape = translator.shape(feed.port.spec.shape or (), parameter)
            specs.append(Spec(feed.port.spec.type, (*shape[:-1], columns) if feed.grows else shape))
        specs.append(lengths)
        for parameter, cache in enumerate(self.caches, first):
            shape = translator.shape(cache.shape, parameter)
            table.layer = cache.append
            for axis, (extent, of_new) in enumerate(zip(shape, cache.new)):
                if axis != cache.axis and is_of_inputs(of_new):
                    same(extent, translator.extent(of_new), f"extents {{0}} and {{1}} of axis {axis} differ")
            whole = (*pages, *shape[len(pages) : cache.axis], rows, *shape[cache.axis + 1 :])
            specs.append(Spec(cache.type, whole))
        table.layer = None
        return specs


class _ExtentTranslator:
    """Translator of extents to another table. Extents that do not follow from the inputs' extents become new atoms."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def spec(self, parameter: Node, index: int) -> Spec:
        """Return the translated spec of the parameter with this index."""
        spec = parameter.ports[0].spec
        return Spec(spec.type, self.shape(spec.shape or (), index))

    def shape(self, shape: Sequence[Int], index: int) -> tuple[Int, ...]:
        """Return the translated shape of the parameter with this index."""
        return tuple(
            self.extent(d) if is_of_inputs(d) else self.table.atom("dim", index, axis) for axis, d in enumerate(shape)
        )

    def extent(self, extent: Int) -> Int:
        """Return a translated extent."""
        if not isinstance(extent, Sym):
            return extent
        total: Int = 0
        for monomial, factor in extent.terms:
            term: Int = factor
            for atom in monomial:
                args = [self.extent(a) if isinstance(a, Sym) else a for a in atom.args]
                term = term * self.table.atom(atom.op, *args, lo=atom.lo, hi=atom.hi)
            total = total + term
        return total


def is_of_inputs(value: Int) -> bool:
    """Return whether an extent is computed from the inputs' extents alone."""
    return all(a.op not in OPAQUE or (a.op == "dim" and isinstance(a.args[0], int)) for a in atoms(value))


def split_decode(model: Model, paged: bool = False) -> DecodeSplit | None:
    """Return the two parts of a model whose caches grow, None if it has no such caches or cannot be split.

    If ``paged``, the caches lie in pages. Their first axis must be that of the batch, also in attention.
    Port specs must be inferred beforehand.
    """
    model = model.clone()
    caches = _Caches(model, paged)
    return _Split(model, caches).run() if caches.names and caches.splits else None


class _Caches:
    """KV caches of a model and the attention layers that take them.

    ``splits`` is true if each cache is taken by attention layers alone, as keys and values.
    """

    def __init__(self, model: Model, paged: bool) -> None:
        self.paged = paged
        self.users = users_of(model)
        self.appends: list[Node] = []
        self.names: list[str] = []
        self.reads: list[Output] = []
        self.flags: list[Output] = []  # tensors that tell whether beams are the identity
        self.attention: dict[Node, set[int]] = {}  # attention -> indices of its inputs that are caches
        self.path: set[Node] = set()  # nodes that a cache passes through
        self.splits = all(self._add(sink) for sink in model.sinks if isinstance(_assigned_op(sink), CacheAppend))
        self.splits &= all(inputs == {1, 2} for inputs in self.attention.values())

    def _add(self, sink: Node) -> bool:
        """Record the cache that an Assign sets; return False if the model cannot be split there."""
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
        """Find the attention layers that take a cache, here as ``port``, which grows along ``axis``.

        Return False if other layers take it.
        """
        users = [user for user in self.users.get(port, ()) if user is not sink]
        return bool(users) and all(self._takes(user, port, axis) for user in users)

    def _takes(self, user: Node, port: Output, axis: int) -> bool:
        op: Any = user.op
        rank = len(port.spec.shape or ())
        if type(op) in (ScaledDotProductAttention, StoredAttention):
            inputs = {i for i, source in enumerate(user.sources) if source is port}
            if op.causal or axis != rank - 2 or not inputs <= {1, 2}:  # keys and values
                return False
            if self.paged and any(s is None or s.spec.rank != rank for s in user.sources[:3]):
                return False  # the batch of the queries would be another axis
            self.attention.setdefault(user, set()).update(inputs)
            return True
        other = user.sources[1] if isinstance(op, (Unsqueeze, Transpose)) and user.sources[0] is port else None
        if other is None or other.spec.constant is None:
            return False
        order = [int(i) for i in other.spec.constant.reshape(-1)]
        if self.paged and isinstance(op, Transpose) and (not order or order[0]):
            return False
        if isinstance(op, Transpose):
            axis = order.index(axis) if order else rank - 1 - axis
        else:
            added = {i % (rank + len(order)) for i in order}
            if self.paged and 0 in added:
                return False
            axis = [i for i in range(rank + len(order)) if i not in added][axis]
        self.path.add(user)
        return self._follow(user.ports[0], axis, None)


class _Split:
    """Split of a model into two parts. It changes the model, so `run` may be called only once."""

    def __init__(self, model: Model, caches: _Caches) -> None:
        self.model, self.caches = model, caches
        self.lengths = self._find_lengths()
        self.hostable: set[Output] = set()  # ports that the host can compute
        self.length_dependent: set[Output] = set()  # ports whose shapes or values depend on lengths
        self.feeds: dict[Output, Feed] = {}
        self.consumers: list[tuple[Node, int, Output]] = []  # (node, index of its input, port of the feed)

    def run(self) -> DecodeSplit | None:
        caches = self._describe_caches()
        if caches is None:
            return None
        for node in self.model.ops:
            self._classify(node)
        if not self._find_feeds():
            return None
        feeds = tuple(self.feeds.values())
        reads, results = self.caches.reads, [*(f.port for f in feeds), *self.caches.flags]
        indices = {read: i for i, read in enumerate(reads)}
        shape_caches = tuple(indices[port] for port in reached(results, indices))
        host = subgraph(self.model, [*self.model.inputs, *(reads[i] for i in shape_caches)], results)
        for node in host.ops:
            if isinstance(node.op, Constant) and isinstance(node.op.value, LazyConstant):
                node.op = replace(node.op, value=node.op.value.compute())
        device = self._make_device_part(feeds, caches)
        return DecodeSplit(device, host, caches, feeds, shape_caches, self.caches.paged)

    def _describe_caches(self) -> tuple[Cache, ...] | None:
        """Return the caches, None if their shapes do not follow from the inputs' shapes."""
        caches = []
        for node, name in zip(self.caches.appends, self.caches.names):
            op: Any = node.op
            new, whole = node.sources[1], node.ports[0].spec
            if new is None or new.spec.shape is None or whole.shape is None:
                return None
            axis = op.axis % len(whole.shape)
            # The new rows have the extents of the whole cache, except at the axis. Theirs replace extents of the whole
            # cache that follow only from the variable's shape.
            shape = tuple(
                d if i != axis and is_of_inputs(d) else n for i, (d, n) in enumerate(zip(whole.shape, new.spec.shape))
            )
            if not all(map(is_of_inputs, shape)):
                return None
            caches.append(Cache(name, axis, whole.type, shape, tuple(new.spec.shape), node))
        return tuple(caches)

    def _find_lengths(self) -> set[Atom]:
        """Return the extents that change from step to step: lengths of caches, and extents of masks along the keys."""
        changing: set[Atom] = set()
        fixed: set[Atom] = set()
        for node, read in zip(self.caches.appends, self.caches.reads):
            op: Any = node.op
            changing |= _atoms([(read.spec.shape or ())[op.axis]])
            fixed |= _atoms(node.sources[1].spec.shape or ())  # type: ignore[union-attr]
        for node in self.caches.attention:
            mask = _input(node, MASK_INPUT)
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
                length_dependent = self._have_lengths(value.ravel().tolist() if value.dtype == object else ())
            else:
                length_dependent = self._have_lengths(port.spec.shape or ()) or (
                    cheap
                    and op.name != "ShapeOf"
                    and any(s is not None and s in self.length_dependent for s in node.sources)
                )
            if length_dependent:
                self.length_dependent.add(port)

    def _have_lengths(self, values: Iterable[Int]) -> bool:
        """Return whether any of the values depends on lengths."""
        return not self.lengths.isdisjoint(_atoms(values))

    def _find_feeds(self) -> bool:
        """Find the tensors that the host has to compute. Return False if shapes of others depend on lengths."""
        sinks = [s for s in self.model.sinks if not isinstance(_assigned_op(s), CacheAppend)]
        stack = [*self.model.results, *sinks, *self.caches.attention]
        seen: set[Node] = set()
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            attends = node in self.caches.attention
            for i, source in enumerate(node.sources):
                if source is None or (isinstance(node.op, CacheAppend) and not i):
                    continue
                if attends and i == MASK_INPUT:
                    if not self._feed_mask(node, source, stack):
                        return False
                elif source in self.length_dependent and source in self.hostable:
                    if self._have_lengths(source.spec.shape or ()):
                        return False
                    self._feed(node, i, source, False)
                else:
                    stack.append(source.node)
            if node not in self.caches.path and any(
                p.spec.shape is None or self._have_lengths(p.spec.shape) for p in node.ports
            ):
                return False
        return True

    def _feed_mask(self, node: Node, mask: Output, stack: list[Node]) -> bool:
        """Feed an attention's mask, unless the device can compute it because it is the same for all keys.

        Return False if neither is possible.
        """
        index = MASK_INPUT
        while _adds_axes_in_front(mask.node):  # the device adds these axes, so that all layers share one feed
            node, index, mask = mask.node, 0, mask.node.sources[0]  # type: ignore[assignment]
        shape = mask.spec.shape
        if shape is None:
            return False
        if mask in self.length_dependent and mask in self.hostable:
            self._feed(node, index, mask, self._have_lengths(shape[-1:]))
            return not self._have_lengths(shape[:-1])
        stack.append(mask.node)
        return not shape or shape[-1] == 1

    def _feed(self, node: Node, index: int, port: Output, grows: bool) -> None:
        self.feeds.setdefault(port, Feed(port, grows))
        self.consumers.append((node, index, port))

    def _make_device_part(self, feeds: Sequence[Feed], caches: Sequence[Cache]) -> Model:
        """Change the model into the device part, and return it."""
        fed = {f.port: _parameter(f.port.spec, f.port) for f in feeds}
        table = Spec(Type.i32, (caches[0].shape[0], Table().atom("dim", 0, 1, lo=3)))
        lengths = _parameter(table if self.caches.paged else Spec(Type.i64, (2,)), self.caches.reads[0])
        for node, index, port in self.consumers:
            node.sources[index] = fed[port]
        whole = []
        for node, read, cache in zip(self.caches.appends, self.caches.reads, caches):
            whole.append(_parameter(self._whole_spec(read.spec, cache), read))
            node.op, node.sources = CacheWrite(axis=cache.axis), [whole[-1], _before_storage(node.sources[1]), lengths]
        for node in self.caches.attention:
            node.op = CachedAttention()
            node.sources = [*node.sources[:6], *[None] * (6 - len(node.sources)), lengths]
        model = self.model
        parameters = [*model.parameters, *(fed[f.port].node for f in feeds), lengths.node, *(p.node for p in whole)]
        sinks = [s for s in model.sinks if not isinstance(_assigned_op(s), CacheWrite)]
        device = Model(model.results, sinks, parameters, model.friendly_name, source=model.source)
        device.validate_nodes_and_infer_types()
        return device

    def _whole_spec(self, read: Spec, cache: Cache) -> Spec:
        """Return the spec of a whole cache or pool; ``read`` is that of the variable's value."""
        if not self.caches.paged or read.shape is None:
            return read
        pages = Table().atom("dim", 0, 0, lo=1)
        return Spec(read.type, (pages, *read.shape[1 : cache.axis], PAGE_TOKENS, *read.shape[cache.axis + 1 :]))


def _before_storage(new: Output | None) -> Output | None:
    """Return new tokens before the layer that converts them to the type of the cache, which CacheWrite does as well."""
    op = None if new is None else new.node.op
    if isinstance(op, QuantizeTokens) or (isinstance(op, ConvertDown) and op.destination_type in HALVES):
        return new.node.sources[0]  # type: ignore[union-attr]
    return new


def _adds_axes_in_front(node: Node) -> bool:
    """Return whether the node is an Unsqueeze that keeps the last axis last."""
    axes = node.sources[1].spec.constant if isinstance(node.op, Unsqueeze) and node.sources[1] is not None else None
    rank = len(node.ports[0].spec.shape or ())
    return axes is not None and rank - 1 not in {int(i) % rank for i in axes.reshape(-1)}


def _atoms(values: Iterable[Int]) -> set[Atom]:
    """Return the extents of tensors that the values are computed from."""
    return {a for value in values for a in atoms(value) if a.op == "dim"}


def _assigned_op(sink: Node) -> Any:
    """Return the op that computes the value of an Assign."""
    return None if sink.sources[0] is None else sink.sources[0].node.op


def _input(node: Node, index: int) -> Output | None:
    return node.sources[index] if len(node.sources) > index else None


def _parameter(spec: Spec, port: Output) -> Output:
    """Return the output of a new Parameter with this spec and the name of the port's node."""
    shape = PartialShape([d if not isinstance(d, Sym) else -1 for d in spec.shape or ()])
    op: Any = Parameter(element_type=spec.type, shape=shape)
    return Node(op, [], name=port.node.friendly_name, layer_id=port.node.layer_id).ports[0]
