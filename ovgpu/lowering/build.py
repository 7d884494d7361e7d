"""Lowering of a Model to a Program, with symbolic shapes.

The work has three parts. `host_values` finds the values that the host needs and how it gets them. `placement` walks the
nodes backwards and reserves memory for results, variables' new values and parts of a Concat, so that steps write there
directly. `Builder` walks forwards and adds values, views and steps. A segment ends where the next one needs a run-time
result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ovgpu.errors import OpError
from ovgpu.lowering import loops
from ovgpu.lowering.host_values import CONTROL
from ovgpu.lowering.placement import Placement, reserve_memory, takes_channels
from ovgpu.lowering.program import (
    Body,
    Copy,
    DeferredModel,
    Download,
    ElidedNode,
    HostInput,
    HostNode,
    Program,
    Segment,
    Step,
    Upload,
)
from ovgpu.lowering.segments import finalize
from ovgpu.lowering.values import UNRANKED, ProgramValues
from ovgpu.model import Model, Node, Output
from ovgpu.ops.base.op import Op, op_of
from ovgpu.ops.base.shape_inputs import host_indices
from ovgpu.ops.base.storage import decode
from ovgpu.ops.base.view import IMAGE_RANK, View, equal, positive
from ovgpu.ops.fused.kv_cache import CacheAppend, Reorder
from ovgpu.passes.subgraph import subgraph
from ovgpu.spec import Spec
from ovgpu.symbolic import Atom, Check, Int, Sym, Table, atoms
from ovgpu.types import Type


def build(
    model: Model,
    specs: Sequence[Spec],
    table: Table,
    layouts: loops.Layouts | None = None,
    *,
    uploads: bool = False,
    downloads: bool = False,
) -> Program:
    """Return the program of ``model`` for parameters with these specs. ``table`` holds their symbols.

    ``layouts`` describes the memory of inputs and results of a body; without it everything is dense. With ``uploads``,
    steps copy the inputs that other steps read to the device; with ``downloads``, steps copy the results to the host.
    """
    return Builder(model, specs, table, layouts or loops.Layouts(), uploads, downloads).run()


class Builder(ProgramValues):
    """Builder of one program, which adds steps to its values; call `run` once."""

    def __init__(
        self,
        model: Model,
        specs: Sequence[Spec],
        table: Table,
        layouts: loops.Layouts,
        uploads: bool = False,
        downloads: bool = False,
    ) -> None:
        super().__init__(model, specs, table, layouts, build)
        self.uploads, self.downloads = uploads, downloads
        self.unknowns: dict[int, tuple[int, int]] = {}  # index of an unknown extent -> (value, axis) that has it
        self.placement = Placement()
        self.channels_last: set[int] = set()  # values that ops have made in this layout
        self.copies: dict[tuple[int, bool], int] = {}  # (value, whether channels last) -> its copy
        self.segment = Segment()
        self.computed_in: dict[int, int] = {}  # value -> index of the segment that computes it
        self.host_node_of: dict[Output, int] = {}  # port -> host node of the current segment
        self.checks = list(table.checks)

    def run(self) -> Program:
        """Build the program and return it."""
        for i, parameter in enumerate(self.model.parameters):
            self.program.inputs.append(self.add_input(parameter, i))
        needed = self.needed_nodes()
        for node in self.model.ops:
            if node.op.name == "ReadValue" and node in needed:
                self.add_state(node)
        nodes = [n for n in self.model.ops if n in needed and n.ports[0] not in self.value_of]
        if all(self.values[i].view is not UNRANKED for i in self.program.states.values()):
            self.placement = reserve_memory(self, nodes)
            self._steps(nodes)
        else:
            self._defer(nodes)
        self._close()
        if self.uploads:
            self._upload()
        self._fetch_items()
        finalize(self.program, [c for c in self.checks if self._can_check(c)], self._source, self.computed_in)
        return self.program

    def _steps(self, nodes: Sequence[Node]) -> None:
        for position, node in enumerate(nodes):
            if self._visit(node) and any(p.spec.shape is None for p in node.ports):
                self._defer(nodes[position + 1 :])
                return
        self._results()

    # ---- the shape function

    def _host_input(self, port: Output) -> HostInput:
        """Return the source from which a step or a host node reads the port's value on the host."""
        spec, value = port.spec, port.spec.value
        if value is not None and not spec.symbolic:
            return HostInput(constant=decode(value) if value.dtype.kind == "V" else value)
        if value is not None and self.hosts.is_known(port):
            return HostInput(ints=tuple(spec.ints() or ()), shape=value.shape, type=spec.type)
        return HostInput(host_node=self._host_node(port))

    def _host_node(self, port: Output) -> int:
        """Return the index, in the current segment, of the host node that yields the port; create it if missing."""
        pending = [port]
        while pending:
            p = pending[-1]
            if p in self.host_node_of:
                pending.pop()
                continue
            if not self.hosts.is_cheap(p) or p.node.op.name == "Parameter":
                value = self.value_of[p]
                if p.node.op.name == "Parameter":
                    self.program.host_parameters.add(self.values[value].source)
                self.segment.fetches.add(value)
                self._add_host(p, HostNode(Copy(), (value,), (p.spec.type,), p.node.source_location))
                continue
            missing = [
                s for s in p.node.sources if s is not None and s.spec.value is None and s not in self.host_node_of
            ]
            if missing:
                pending += missing
                continue
            inputs = tuple(None if s is None else self._host_input(s) for s in p.node.sources)
            types = tuple(o.spec.type for o in p.node.ports)
            self._add_host(p, HostNode(op_of(p.node), inputs, types, p.node.source_location))
        return self.host_node_of[port]

    def _add_host(self, port: Output, node: HostNode) -> None:
        self.host_node_of[port] = len(self.segment.host_nodes)
        self.segment.host_nodes.append(node)

    def _fetch_items(self) -> None:
        """Keep each value whose elements are symbols alive until the next segment's shape function has read it."""
        for port in self.hosts.items:
            value = self.value_of.get(port)
            if value is None or value not in self.computed_in or self.hosts.is_cheap(port):
                continue
            reader = self.computed_in[value] + 1
            if reader < len(self.program.segments):
                self.program.segments[reader].fetches.add(value)

    def _source(self, segment: Segment, atom: Atom) -> tuple[str, Any, int]:
        """Return the origin of an atom's number, as ``source`` of `compile_shape_function`."""
        if atom.op == "dim":
            *key, axis = atom.args
            return "shape", self.program.states[key[0]] if isinstance(key[0], str) else key[0], axis
        if atom.op == "stride":
            value, axis, itemsize = atom.args
            return "strides", (value, itemsize), axis
        if atom.op == "unknown":
            value, axis = self.unknowns[atom.index]
            return "shape", value, axis
        port = self.hosts.items[atom.args[0]]
        if port.node.op.name == "Parameter":
            value = self.value_of[port]
            self.program.host_parameters.add(self.values[value].source)
            return "item", value, atom.args[1]
        if self.hosts.is_cheap(port):
            outer, self.segment = self.segment, segment
            outer_host_node_of, self.host_node_of = self.host_node_of, segment.host_node_of
            host_node = self._host_node(port)
            self.segment, self.host_node_of = outer, outer_host_node_of
            return "host", host_node, atom.args[1]
        return "item", self.value_of[port], atom.args[1]

    def _can_check(self, check: Check) -> bool:
        """Return whether this program knows both sides of a check. The deferred model has the other checks."""
        return all(self._is_known_here(atom) for x in (check.a, check.b) for atom in atoms(x))

    def _is_known_here(self, atom: Atom) -> bool:
        if atom.op == "unknown":
            return atom.index in self.unknowns
        if atom.op == "dim" and isinstance(atom.args[0], str):  # false if only an initial value reads it
            return atom.args[0] in self.program.states
        if atom.op == "item":
            port = self.hosts.items[atom.args[0]]
            return port in self.value_of or self.hosts.is_cheap(port)
        return True

    # ---- steps

    def _visit(self, node: Node) -> bool:
        """Add the node's steps. Return whether it is eager, in which case the segment has ended."""
        if node.op.name in ("Result", "Assign"):
            self._alias(node)
            return False
        if all(self.hosts.is_known(p) for p in node.ports) and not op_of(node).effect:
            for port in node.ports:
                self._materialise(port)
            return False
        self._split_before_host_reads(node)
        hosts = host_indices(op_of(node), len(node.sources))
        inputs = [-1 if s is None or i in hosts else self._use(s) for i, s in enumerate(node.sources)]
        inputs += [
            self.value(None, View.dense(x.shape), "constant", x, element_type=Type.of(x.dtype))
            for x in op_of(node).rng_state()
        ]
        if not isinstance(node.op, CONTROL) and self._try_view(node, inputs):
            return False
        host = {i: self._host_input(s) for i in hosts if (s := node.sources[i]) is not None}
        if not self.is_bound(node):
            self._add_eager_step(node, inputs, host)
            return True
        self._add_bound_step(node, inputs, host)
        return False

    def _alias(self, node: Node) -> None:
        source = node.sources[0]
        assert source is not None
        self.value_of[node.ports[0]] = self._use(source)

    def _use(self, port: Output) -> int:
        if port not in self.value_of:
            self._materialise(port)
        return self.value_of[port]

    def _materialise(self, port: Output) -> None:
        """Create the tensor of a port with a known value: a constant, or a step that writes shape numbers to memory."""
        spec = port.spec
        assert spec.value is not None and spec.shape is not None
        if not spec.symbolic:
            self.value_of[port] = self.value(port, View.dense(spec.value.shape), "constant", spec.value)
            return
        self._split_before_fetch(self.hosts.ports_to_fetch(port))
        value = self.value(port, View.dense(spec.value.shape), "buffer")
        self.value_of[port] = value
        step = Step(Copy(), "copy", (-1,), (value,), host={0: self._host_input(port)}, node=port.node)
        self._append(step)

    def _split_before_host_reads(self, node: Node) -> None:
        for i in host_indices(op_of(node), len(node.sources)):
            source = node.sources[i]
            if source is not None:
                self._split_before_fetch(self.hosts.ports_to_fetch(source))

    def _split_before_fetch(self, ports: Iterable[Output]) -> None:
        """Begin a new segment if the current one computes one of the ports to read back."""
        if any(self.computed_in.get(self.value_of[p]) == len(self.program.segments) for p in ports):
            self._close()

    def _close(self) -> None:
        self.segment.host_node_of = self.host_node_of
        self.program.segments.append(self.segment)
        self.segment, self.host_node_of = Segment(), {}

    def _try_view(self, node: Node, inputs: Sequence[int]) -> bool:
        if type(op_of(node)).view is Op.view or all(i < 0 for i in inputs):
            return False
        specs = [None if s is None else s.spec for s in node.sources]
        outs = [p.spec for p in node.ports]
        if any(s.shape is None for s in outs):
            return False
        views = op_of(node).view([self.values[i].view if i >= 0 else None for i in inputs], specs, outs)
        if views is None or any(v is None for v in views):
            return False
        base = self.values[next(i for i in inputs if i >= 0)]
        if base.memory == "eager" and any(self.hosts.is_read(p) for p in node.ports):
            return False  # the next segment's shape function would read this view before its array exists
        for port, view in zip(node.ports, views):
            assert view is not None
            value = self.value(port, view, base.memory, base.source, root=base.root)
            self.value_of[port] = value
            if base.id in self.computed_in:
                self.computed_in[value] = self.computed_in[base.id]
            if base.id in self.channels_last and len(view.shape) == IMAGE_RANK and view.has_pixels():
                self.channels_last.add(value)
        self._add_elided_node(node, inputs)
        return True

    def _add_elided_node(self, node: Node, inputs: Sequence[int]) -> None:
        outputs = tuple(self.value_of[p] for p in node.ports)
        self.program.views.append(
            ElidedNode(node, tuple(inputs), outputs, len(self.program.segments), len(self.segment.steps))
        )

    def _add_eager_step(self, node: Node, inputs: Sequence[int], host: dict[int, HostInput]) -> None:
        outputs = []
        for port in node.ports:
            shape = port.spec.shape
            value = self.value(port, View.dense(shape or ()), "eager")
            self.value_of[port] = value
            self.computed_in[value] = len(self.program.segments)
            outputs.append(value)
            for axis, dim in enumerate(shape or ()):
                if isinstance(dim, Sym) and len(dim.terms) == 1 and dim.terms[0][1] == 1 and len(dim.terms[0][0]) == 1:
                    atom = dim.terms[0][0][0]
                    if atom.op == "unknown":
                        self.unknowns.setdefault(atom.index, (value, axis))
        bodies = tuple(Body(body, None) for body in loops.bodies_of(op_of(node)))
        self._append(Step(op_of(node), "eager", tuple(inputs), tuple(outputs), host=host, node=node, bodies=bodies))
        self._close()

    def _add_bound_step(self, node: Node, inputs: Sequence[int], host: dict[int, HostInput]) -> None:
        op = op_of(node)
        outputs = []
        for index, port in enumerate(node.ports):
            reservation = self.placement.reserved.get(port)
            if index in op.updates:
                changed = self.values[inputs[op.updates[index][0]]]
                value = self.value(port, changed.view, changed.memory, changed.source, root=changed.root)
            elif reservation is None:
                value = self._buffer(port, op, inputs)
            else:
                root = self.values[reservation.root]
                value = self.value(port, reservation.view, root.memory, root.source, root=root.id)
                if reservation.root in self.placement.channels_last:
                    self.channels_last.add(value)
            self.value_of[port] = value
            self.computed_in[value] = len(self.program.segments)
            outputs.append(value)
        if isinstance(op, CONTROL):
            inputs = [i if i < 0 else self._in_op_layout(i, op, outputs[0]) for i in inputs]
            trips = loops.trips(node)
            if trips is not None:
                host = {**host, loops.TRIP_COUNT_KEY: HostInput(ints=(trips,))}
            self._append(
                Step(op, "control", tuple(inputs), tuple(outputs), host=host, node=node, bodies=self.bodies(node) or ())
            )
            return
        if op.name == "Concat":
            self._add_concat_copies(node, inputs, outputs[0])
            return
        inputs = [i if i < 0 else self._in_op_layout(i, op, outputs[0]) for i in inputs]
        specs = [None if s is None else s.spec for s in node.sources]
        scratch = [
            self.value(None, View.dense(shape), "buffer", element_type=element_type)
            for element_type, shape in op.workspace(specs, [p.spec for p in node.ports])
        ]
        self._append(Step(op, "bound", tuple(inputs), tuple(outputs), tuple(scratch), host, node))

    def _buffer(self, port: Output, op: Op, inputs: Sequence[int]) -> int:
        """Add the value of an output for which no memory is reserved."""
        shape = port.spec.shape or ()
        if len(shape) != IMAGE_RANK or not (
            op.layout == "channels_last" or (op.keeps_layout and not self.channels_last.isdisjoint(inputs))
        ):
            return self.value(port, View.dense(shape), "buffer")
        value = self.value(port, View.channels_last(shape), "buffer")
        self.channels_last.add(value)
        return value

    def _in_op_layout(self, value: int, op: Op, output: int) -> int:
        """Return the value if the op, which writes ``output``, takes its strides, else a copy."""
        view, element_type, out = self.values[value].view, self.values[value].type, self.values[output].view
        if op.layout == "channels_last":
            takes = (
                len(view.shape) != IMAGE_RANK
                or takes_channels(op, view, element_type)
                or self.values[value].memory == "constant"
            )  # `passes.lay_out_channels_last` has laid out a convolution's constant kernel
            return value if takes else self._copy(value, channels_last=True)
        if (
            op.layout == "image"
            and not out.is_dense
            and len(view.shape) == IMAGE_RANK
            and all(map(equal, view.shape, out.shape))
        ):
            return value if takes_channels(op, view, element_type) else self._copy(value, channels_last=True)
        takes = op.layout == "strided" or (op.layout == "blas" and view.is_blas)
        return value if takes else self._dense(value)

    def _dense(self, value: int) -> int:
        """Return the value if it is dense, else a dense copy."""
        return value if self.values[value].view.is_dense else self._copy(value)

    def _copy(self, value: int, channels_last: bool = False) -> int:
        """Return a copy that is dense, or channels last."""
        key = value, channels_last
        if key not in self.copies:
            original = self.values[value]
            view = (View.channels_last if channels_last else View.dense)(original.view.shape)
            self.copies[key] = copy = self.value(None, view, "buffer", element_type=original.type)
            self.computed_in[copy] = len(self.program.segments)
            self._append(Step(Copy(), "copy", (value,), (copy,)))
        return self.copies[key]

    def _add_concat_copies(self, node: Node, inputs: Sequence[int], output: int) -> None:
        """Add copies of the parts that their producers could not write directly into the result."""
        target = self.values[output]
        axis = node.op.axis % len(target.view.shape)  # type: ignore[attr-defined]
        start: Int = 0
        first_copy = len(self.segment.steps)
        for i in inputs:
            part = self.values[i]
            length = part.view.shape[axis]
            part_view = target.view.slice(axis, start, length)
            start = start + length
            if (part.root, part.view.offset) == (
                target.root,
                part_view.offset,
            ) and part.view.strides == part_view.strides:
                continue
            if length == 0 and not isinstance(length, Sym):
                continue
            part_value = self.value(
                None, part_view, target.memory, target.source, element_type=target.type, root=target.root
            )
            self._append(Step(Copy(), "copy", (i,), (part_value,), node=node))
        if len(self.segment.steps) == first_copy:
            self._add_elided_node(node, inputs)
        if isinstance(node.op, CacheAppend) and target.root == self.placement.variables.get(target.source):
            self.program.appended[target.source] = self._append_condition(node.sources[0])

    def _append_condition(self, past: Output | None) -> HostInput | None:
        """Return the host input that is true if beams are identity, or None if no Reorder precedes the append."""
        order = past.node.sources[2] if past is not None and isinstance(past.node.op, Reorder) else None
        return None if order is None else self._host_input(order)

    def _results(self) -> None:
        for index, result in enumerate(self.model.results):
            source = result.sources[0]
            assert source is not None
            value = self._use(source)
            target = self.placement.results.get(index)
            self.program.results.append(self._move_to_target(value, target, index, source.node))
        for sink in self.model.sinks:
            source, variable = sink.sources[0], sink.op.variable_id  # type: ignore[attr-defined]
            assert source is not None
            value = self._use(source)
            if value != self.program.states.get(variable):  # otherwise the variable keeps its value
                value = self._move_to_target(value, self.placement.variables.get(variable), -1, source.node)
            self.program.assigns[variable] = value
        for index, value in enumerate(self.program.results):
            if self.downloads and self.values[value].root == self.placement.results.get(index):
                self._append(Step(Download(), "download", (value,), ()))

    def _move_to_target(self, value: int, target: int | None, result_index: int, node: Node) -> int:
        """Return ``value`` if it lies in the memory of ``target`` or may stay elsewhere, else copy it to ``target``.

        ``result_index`` is the index of a result, or -1 for a variable.
        """
        if target is None or self.values[value].root == target:
            return value
        memory = self.values[self.values[value].root].memory
        view = self.values[value].view
        if (
            result_index >= 0
            and self.layouts.may_alias(result_index, memory, self.values[value].source)
            and all(positive(s) or equal(d, 1) for s, d in zip(view.strides, view.shape))
        ):
            return value
        self._append(Step(Copy(), "copy", (value,), (target,), node=node))
        return target

    def _upload(self) -> None:
        """Insert uploads at the beginning of the first segment, for the inputs that steps read."""
        used = {self.values[i].root for step in self.program.steps for i in step.inputs if i >= 0}
        if self.program.deferred is not None:
            used.update(self.values[i].root for i in self.program.deferred.inputs)
        steps = [
            Step(Upload(), "upload", (-1,), (i,), node=parameter)
            for i, parameter in zip(self.program.inputs, self.model.parameters)
            if i in used and self.values[i].type != Type.string
        ]
        self.program.segments[0].steps[:0] = steps
        for view in self.program.views:
            if view.segment == 0:
                view.position += len(steps)

    def _append(self, step: Step) -> None:
        for i in step.outputs:
            self.computed_in.setdefault(i, len(self.program.segments))
        self.segment.steps.append(step)

    # ---- nodes after a result of unknown rank

    def _defer(self, nodes: Sequence[Node]) -> None:
        """Defer nodes to a program that is built at run time, once the ranks of its inputs are known."""
        deferred = set(nodes)
        given: dict[Output, Output] = {}
        users = [*nodes, *self.model.results, *self.model.sinks]
        for user in users:
            for port in user.sources:
                if port is None or port.node in deferred or port.node.op.name == "Constant":
                    continue
                if port in self.value_of:
                    given.setdefault(port, port)
                else:  # so far only the shape function has computed it
                    deferred.add(port.node)
                    users.append(port.node)
        ports = list(given.values())
        model = subgraph(self.model, ports, [_source(r) for r in self.model.results], self.model.sinks)
        self.program.deferred = DeferredModel(model, [self._dense(self._use(p)) for p in ports])


def _source(result: Node) -> Output:
    source = result.sources[0]
    if source is None:
        raise OpError("a Result without an input").at("Result", result.source_location)
    return source
