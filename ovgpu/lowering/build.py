"""Building a Program from a Model whose ports have symbolic specs.

Three passes. `host_values`: which values are needed on the host, and how they get there. `placement`, backwards: where
results, variables' new values and parts of a Concat should be written, so that nothing is copied afterwards. Here,
forwards: values, views, steps, and segments cut where running must tell something first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ovgpu.errors import OpError
from ovgpu.lowering import loops
from ovgpu.lowering.host_values import CONTROL, Hosts
from ovgpu.lowering.placement import Reservation, reserve_all
from ovgpu.lowering.program import (
    Body,
    Copy,
    Download,
    Free,
    HostInput,
    HostNode,
    Memory,
    Program,
    Rest,
    Segment,
    Step,
    Upload,
    Value,
)
from ovgpu.lowering.segments import finalize
from ovgpu.model import Model, Node, Output
from ovgpu.ops.base.op import Op, op_of
from ovgpu.ops.base.shape_inputs import host_indices
from ovgpu.ops.base.storage import decode
from ovgpu.ops.base.view import View, equal, positive
from ovgpu.ops.fused.kv_cache import CacheAppend, Reorder, growing
from ovgpu.ops.infrastructure.state import ReadValue3
from ovgpu.passes.subgraph import subgraph
from ovgpu.symbolic import Atom, Check, Int, Spec, Sym, Table, atoms
from ovgpu.types import Type

UNRANKED = View((), ())  # of a variable whose rank only its current value tells


def build(model: Model, specs: Sequence[Spec], table: Table, layouts: loops.Layouts | None = None, *,
          uploads: bool = False, downloads: bool = False) -> Program:
    """The program of ``model`` for parameters like ``specs``.

    ``layouts`` is given for the body of a loop that is unrolled: strides of its inputs and results, and which
    results have memory of their own first. Without it everything is dense. ``uploads``, ``downloads``: whether steps
    bring the inputs that others read to the device, and the results to the host.
    """
    return Builder(model, specs, table, layouts or loops.Layouts(), uploads, downloads).run()


class Builder:
    """Builds one program; `run` once. `placement` reads and fills ``reserved``, ``outputs`` and ``variables``."""

    def __init__(self, model: Model, specs: Sequence[Spec], table: Table, layouts: loops.Layouts,
                 uploads: bool = False, downloads: bool = False) -> None:
        self.model, self.table, self.layouts = model, table, layouts
        self.uploads, self.downloads = uploads, downloads
        self.program = Program([], [], [], [], {}, {}, {}, set(), source=model.source)
        self.values = self.program.values
        self.hosts = Hosts(model, table)
        if layouts.counter is not None:
            counter, count = layouts.counter
            self.hosts.bounds[id(model.parameters[counter].outputs[0])] = 0, count - 1
        self.unknowns: dict[int, tuple[int, int]] = {}  # atom -> (value, axis)
        model.infer(specs, table, self.hosts.refine)
        self.value_of: dict[int, int] = {}  # id(port) -> value
        self.reserved: dict[int, Reservation] = {}  # id(port) -> where it should be written
        self.copies: dict[int, int] = {}  # value -> its dense copy
        self.segment = Segment()
        self.born: dict[int, int] = {}  # value -> number of the segment that computes it
        self.host_numbers: dict[int, int] = {}  # id(port) -> host node of the current segment
        self.outputs: dict[int, int] = {}  # number of a result -> the value that is its memory
        self.variables: dict[str, int] = {}  # variable id -> likewise
        self.body_cache: dict[int, tuple[Body, ...] | None] = {}
        self.owners = self._owners()
        self.reads = {n.op.variable_id: n for n in model.ops if isinstance(n.op, ReadValue3)}
        self.growing = growing(model)
        self.checks = list(table.checks)

    def run(self) -> Program:
        for i, parameter in enumerate(self.model.parameters):
            self.program.inputs.append(self._input(parameter, i))
        wanted = self._demanded()
        for node in self.model.ops:
            if node.op.name == "ReadValue" and id(node) in wanted:
                self._state(node)
        nodes = [n for n in self.model.ops if id(n) in wanted and id(n.outputs[0]) not in self.value_of]
        if all(self.values[i].view is not UNRANKED for i in self.program.states.values()):
            reserve_all(self, nodes)
            self._steps(nodes)
        else:
            self._cut_rest(nodes)
        self._close()
        if self.uploads:
            self._upload()
        self._fetch_items()
        finalize(self.program, [c for c in self.checks if self._decides(c)], self._source, self.born)
        return self.program

    def _steps(self, nodes: Sequence[Node]) -> None:
        for position, node in enumerate(nodes):
            if self._visit(node) and any(p.spec.shape is None for p in node.outputs):
                self._cut_rest(nodes[position + 1 :])
                return
        self._results()

    # ---- the shape function

    def _host_input(self, port: Output) -> HostInput:
        """How a step or a host node gets the port's value on the host."""
        spec, value = port.spec, port.spec.value
        if value is not None and not spec.symbolic:
            return HostInput(constant=decode(value) if value.dtype.kind == "V" else value)
        if value is not None and self.hosts.is_known(port):
            return HostInput(ints=tuple(spec.ints() or ()), shape=value.shape, type=spec.type)
        return HostInput(host_node=self._host_node(port))

    def _host_node(self, port: Output) -> int:
        """The number, in the current segment, of the host node that yields the port; made on first need."""
        pending = [port]
        while pending:
            p = pending[-1]
            if id(p) in self.host_numbers:
                pending.pop()
                continue
            if not self.hosts.is_cheap(p) or p.node.op.name == "Parameter":
                value = self.value_of[id(p)]
                if p.node.op.name == "Parameter":
                    self.program.host_parameters.add(self.values[value].source)
                self.segment.fetches.add(value)
                self._add_host(p, HostNode(Copy(), (value,), (p.spec.type,), p.node.source_location))
                continue
            missing = [s for s in p.node.inputs if s is not None and s.spec.value is None
                       and id(s) not in self.host_numbers]
            if missing:
                pending += missing
                continue
            inputs = tuple(None if s is None else self._host_input(s) for s in p.node.inputs)
            types = tuple(o.spec.type for o in p.node.outputs)
            self._add_host(p, HostNode(op_of(p.node), inputs, types, p.node.source_location))
        return self.host_numbers[id(port)]

    def _add_host(self, port: Output, node: HostNode) -> None:
        self.host_numbers[id(port)] = len(self.segment.host_nodes)
        self.segment.host_nodes.append(node)

    def _fetch_items(self) -> None:
        """Keep computed values until the next segment has read them, if later shapes depend on their elements."""
        for port in self.hosts.items:
            value = self.value_of.get(id(port))
            if value is None or value not in self.born or self.hosts.is_cheap(port):
                continue
            reader = self.born[value] + 1
            if reader < len(self.program.segments):
                self.program.segments[reader].fetches.add(value)

    def _source(self, segment: Segment, atom: Atom) -> tuple[str, Any, int]:
        """Where the shape function of a segment finds an outside atom; see `shape_function.compile_shape_function`."""
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
            value = self.value_of[id(port)]
            self.program.host_parameters.add(self.values[value].source)
            return "item", value, atom.args[1]
        if self.hosts.is_cheap(port):
            outer, self.segment = self.segment, segment
            outer_numbers, self.host_numbers = self.host_numbers, segment.host_numbers
            number = self._host_node(port)
            self.segment, self.host_numbers = outer, outer_numbers
            return "host", number, atom.args[1]
        return "item", self.value_of[id(port)], atom.args[1]

    def _decides(self, check: Check) -> bool:
        """Whether this program learns what a check compares; what only the rest does, that checks anew."""
        return all(self._learns(atom) for x in (check.a, check.b) for atom in atoms(x))

    def _learns(self, atom: Atom) -> bool:
        if atom.op == "unknown":
            return atom.index in self.unknowns
        if atom.op == "dim" and isinstance(atom.args[0], str):  # of a variable that only an initial value may read
            return atom.args[0] in self.program.states
        if atom.op == "item":
            port = self.hosts.items[atom.args[0]]
            return id(port) in self.value_of or self.hosts.is_cheap(port)
        return True

    # ---- values

    def value(self, port: Output | None, view: View, memory: Memory, source: Any = None, *, kind: Type | None = None,
               root: int = -1) -> int:
        number = len(self.values)
        kind = kind or (port.spec.type if port is not None else Type.f32)
        name = port.node.friendly_name if port is not None else ""
        self.values.append(Value(number, kind, view, number if root < 0 else root, memory, source, name))
        return number

    def _input(self, parameter: Node, number: int) -> int:
        port = parameter.outputs[0]
        shape = port.spec.shape
        assert shape is not None, "a program is built for known ranks"
        value = self.value(port, View.dense(shape), "input", number)
        given = self.layouts.inputs.get(number)
        if given is not None:
            self.values[value].view = View(shape, self.strides(value, given, port.spec.type))
        self.value_of[id(port)] = value
        return value

    def strides(self, value: int, given: Sequence[int | None], kind: Type) -> tuple[Int, ...]:
        # positive: they are those of parts of dense tensors
        return tuple(self.table.atom("stride", value, axis, kind.storage.itemsize, lo=1) if s is None else s
                     for axis, s in enumerate(given))

    def _state(self, node: Node) -> None:
        port, variable = node.outputs[0], node.op.variable_id  # type: ignore[attr-defined]
        if port.spec.type.is_dynamic():
            raise OpError(f"variable '{variable}' has neither an element type nor an initial value").at(
                node.op.name, node.source_location)
        view = UNRANKED if port.spec.shape is None else View.dense(port.spec.shape)
        if variable not in self.program.states:
            value = self.program.states[variable] = self.value(port, view, "state", variable)
            axis = self.growing.get(variable, 0)
            if axis and port.spec.shape is not None:
                row = self.table.atom("stride", value, axis - 1, port.spec.type.storage.itemsize, lo=1)
                self.values[value].view = View.with_capacity(port.spec.shape, axis, row)
        self.value_of[id(port)] = self.program.states[variable]

    def _demanded(self) -> set[int]:
        """Ids of the nodes whose results are needed as tensors, not only as numbers of the shape function."""
        wanted: set[int] = set()
        stack = [*self.model.results, *self.model.sinks]
        while stack:
            node = stack.pop()
            if id(node) in wanted:
                continue
            wanted.add(id(node))
            if node.op.name == "ReadValue":  # its initial value is a program of its own
                continue
            hosts = host_indices(op_of(node), len(node.inputs))
            for i, s in enumerate(node.inputs):
                if s is not None:
                    on_host = i in hosts or self.hosts.is_known(s)
                    stack += [p.node for p in self.hosts.fetched(s).values()] if on_host else [s.node]
                    for value in self.hosts.symbolic_values(s) if on_host else ():
                        stack += self._producers(value.ravel())
            stack += self._producers(d for port in node.outputs for d in port.spec.shape or ())
        return wanted

    def _producers(self, extents: Iterable[Int]) -> list[Node]:
        """Return the nodes whose results must exist before these extents are known."""
        found = dict.fromkeys(a for d in extents for a in atoms(d))
        return [self.owners[a.index] if a.op == "unknown" else self.reads[a.args[0]] for a in found
                if a.op == "unknown" or (a.op == "dim" and isinstance(a.args[0], str))]

    def is_bound(self, node: Node) -> bool:
        """Whether the node becomes a step that writes into given memory."""
        if node.op.name in ("Parameter", "Constant", "ReadValue") or any(self.data_dependent(p) for p in node.outputs):
            return False
        return not isinstance(node.op, CONTROL) or self._bodies(node) is not None

    def data_dependent(self, port: Output) -> bool:
        """Whether the port's tensor is made by a step that allocates its own results."""
        spec = port.spec
        if spec.shape is None or spec.type == Type.string:
            return True
        return (bool(self.owners) and any(a.op == "unknown" and self.owners[a.index] is port.node
                                         for d in spec.shape for a in atoms(d))) or (
            isinstance(port.node.op, CONTROL) and self._bodies(port.node) is None)

    def _owners(self) -> dict[int, Node]:
        """Number of an unknown extent -> the first node whose results have it."""
        owners: dict[int, Node] = {}
        for node in self.model.ops:
            for port in node.outputs:
                for dim in port.spec.shape or ():
                    for atom in atoms(dim):
                        if atom.op == "unknown":
                            owners.setdefault(atom.index, node)
        return owners

    def _bodies(self, node: Node) -> tuple[Body, ...] | None:
        """The programs of a control node whose iterations are bound ahead, or None if it runs dynamically."""
        if id(node) not in self.body_cache:
            self.body_cache[id(node)] = loops.static_bodies(node, build)
        return self.body_cache[id(node)]

    # ---- steps

    def _visit(self, node: Node) -> bool:
        """Adds the node's steps; True if it is eager, after which a new segment begins."""
        if node.op.name in ("Result", "Assign"):
            self._alias(node)
            return False
        if all(self.hosts.is_known(p) for p in node.outputs) and not op_of(node).effect:
            for port in node.outputs:
                self._materialise(port)
            return False
        self._await_host(node)
        hosts = host_indices(op_of(node), len(node.inputs))
        inputs = [-1 if s is None or i in hosts else self._use(s) for i, s in enumerate(node.inputs)]
        inputs += [self.value(None, View.dense(x.shape), "constant", x, kind=Type.of(x.dtype))
                   for x in op_of(node).kept()]
        if not isinstance(node.op, CONTROL) and self._try_view(node, inputs):
            return False
        host = {i: self._host_input(s) for i in hosts if (s := node.inputs[i]) is not None}
        if not self.is_bound(node):
            self._eager(node, inputs, host)
            return True
        self._bound(node, inputs, host)
        return False

    def _alias(self, node: Node) -> None:
        source = node.inputs[0]
        assert source is not None
        self.value_of[id(node.outputs[0])] = self._use(source)

    def _use(self, port: Output) -> int:
        if id(port) not in self.value_of:
            self._materialise(port)
        return self.value_of[id(port)]

    def _materialise(self, port: Output) -> None:
        """A tensor whose value is a constant, or numbers of the shape function that a step writes out."""
        spec = port.spec
        assert spec.value is not None and spec.shape is not None
        if not spec.symbolic:
            self.value_of[id(port)] = self.value(port, View.dense(spec.value.shape), "constant", spec.value)
            return
        self._await(self.hosts.fetched(port))
        value = self.value(port, View.dense(spec.value.shape), "buffer")
        self.value_of[id(port)] = value
        step = Step(Copy(), "copy", (-1,), (value,), host={0: self._host_input(port)}, node=port.node)
        self._append(step)

    def _await_host(self, node: Node) -> None:
        for i in host_indices(op_of(node), len(node.inputs)):
            source = node.inputs[i]
            if source is not None:
                self._await(self.hosts.fetched(source))

    def _await(self, ports: Iterable[int]) -> None:
        """Begins a new segment if one of the values to read back is computed in this one."""
        if any(self.born.get(self.value_of[p]) == len(self.program.segments) for p in ports):
            self._close()

    def _close(self) -> None:
        self.segment.host_numbers = self.host_numbers
        self.program.segments.append(self.segment)
        self.segment, self.host_numbers = Segment(), {}

    def _try_view(self, node: Node, inputs: Sequence[int]) -> bool:
        if type(op_of(node)).view is Op.view or all(i < 0 for i in inputs):
            return False
        specs = [None if s is None else s.spec for s in node.inputs]
        outs = [p.spec for p in node.outputs]
        if any(s.shape is None for s in outs):
            return False
        views = op_of(node).view([self.values[i].view if i >= 0 else None for i in inputs], specs, outs)
        if views is None or any(v is None for v in views):
            return False
        base = self.values[next(i for i in inputs if i >= 0)]
        if base.memory == "eager" and any(self.hosts.is_read(p) for p in node.outputs):
            return False  # the next segment's shape function would read this view before that segment makes it
        for port, view in zip(node.outputs, views):
            assert view is not None
            value = self.value(port, view, base.memory, base.source, root=base.root)
            self.value_of[id(port)] = value
            if base.id in self.born:
                self.born[value] = self.born[base.id]
        self._free(node, inputs)
        return True

    def _free(self, node: Node, inputs: Sequence[int]) -> None:
        outputs = tuple(self.value_of[id(p)] for p in node.outputs)
        self.program.views.append(
            Free(node, tuple(inputs), outputs, len(self.program.segments), len(self.segment.steps)))

    def _eager(self, node: Node, inputs: Sequence[int], host: dict[int, HostInput]) -> None:
        outputs = []
        for port in node.outputs:
            shape = port.spec.shape
            value = self.value(port, View.dense(shape or ()), "eager")
            self.value_of[id(port)] = value
            self.born[value] = len(self.program.segments)
            outputs.append(value)
            for axis, dim in enumerate(shape or ()):
                if isinstance(dim, Sym) and len(dim.terms) == 1 and dim.terms[0][1] == 1 and len(dim.terms[0][0]) == 1:
                    atom = dim.terms[0][0][0]
                    if atom.op == "unknown":
                        self.unknowns.setdefault(atom.index, (value, axis))
        bodies = tuple(Body(body, None) for body in loops.bodies_of(op_of(node)))
        self._append(Step(op_of(node), "eager", tuple(inputs), tuple(outputs), host=host, node=node, bodies=bodies))
        self._close()

    def _bound(self, node: Node, inputs: Sequence[int], host: dict[int, HostInput]) -> None:
        op = op_of(node)
        outputs = []
        for number, port in enumerate(node.outputs):
            reservation = self.reserved.get(id(port))
            if number in op.updates:
                changed = self.values[inputs[op.updates[number][0]]]
                value = self.value(port, changed.view, changed.memory, changed.source, root=changed.root)
            elif reservation is None:
                value = self.value(port, View.dense(port.spec.shape or ()), "buffer")
            else:
                root = self.values[reservation.root]
                value = self.value(port, reservation.view, root.memory, root.source, root=root.id)
            self.value_of[id(port)] = value
            self.born[value] = len(self.program.segments)
            outputs.append(value)
        if isinstance(op, CONTROL):
            inputs = [i if i < 0 else self._laid_out(i, op) for i in inputs]
            trips = loops.trips(node)
            if trips is not None:
                host = {**host, loops.TRIPS: HostInput(ints=(trips,))}
            self._append(Step(op, "control", tuple(inputs), tuple(outputs), host=host, node=node,
                              bodies=self._bodies(node) or ()))
            return
        if op.name == "Concat":
            self._concat(node, inputs, outputs[0])
            return
        inputs = [i if i < 0 else self._laid_out(i, op) for i in inputs]
        specs = [None if s is None else s.spec for s in node.inputs]
        scratch = [self.value(None, View.dense(shape), "buffer", kind=kind)
                   for kind, shape in op.workspace(specs, [p.spec for p in node.outputs])]
        self._append(Step(op, "bound", tuple(inputs), tuple(outputs), tuple(scratch), host, node))

    def _laid_out(self, value: int, op: Op) -> int:
        """The value, or a dense copy of it, as the op's fast forms take it."""
        takes = op.layout == "strided" or (op.layout == "blas" and self.values[value].view.is_blas)
        return value if takes else self._dense(value)

    def _dense(self, value: int) -> int:
        """The value, or a dense copy of it."""
        given = self.values[value]
        if given.view.is_dense:
            return value
        if value not in self.copies:
            copy = self.value(None, View.dense(given.view.shape), "buffer", kind=given.type)
            self.born[copy] = len(self.program.segments)
            self._append(Step(Copy(), "copy", (value,), (copy,)))
            self.copies[value] = copy
        return self.copies[value]

    def _concat(self, node: Node, inputs: Sequence[int], output: int) -> None:
        """Copies the parts that their producers could not write into the result themselves."""
        target = self.values[output]
        axis = node.op.axis % len(target.view.shape)  # type: ignore[attr-defined]
        start: Int = 0
        copied = len(self.segment.steps)
        for i in inputs:
            part = self.values[i]
            length = part.view.shape[axis]
            where = target.view.slice(axis, start, length)
            start = start + length
            if (part.root, part.view.offset) == (target.root, where.offset) and part.view.strides == where.strides:
                continue
            if length == 0 and not isinstance(length, Sym):
                continue
            into = self.value(None, where, target.memory, target.source, kind=target.type, root=target.root)
            self._append(Step(Copy(), "copy", (i,), (into,), node=node))
        if len(self.segment.steps) == copied:
            self._free(node, inputs)
        if isinstance(node.op, CacheAppend) and target.root == self.variables.get(target.source):
            self.program.appended[target.source] = self._order(node.inputs[0])

    def _order(self, past: Output | None) -> HostInput | None:
        """Whether what is appended to is in order, where that is a question."""
        order = past.node.inputs[2] if past is not None and isinstance(past.node.op, Reorder) else None
        return None if order is None else self._host_input(order)

    def _results(self) -> None:
        for number, result in enumerate(self.model.results):
            source = result.inputs[0]
            assert source is not None
            value = self._use(source)
            self.program.results.append(self._settle(value, self.outputs.get(number), number, source.node))
        for sink in self.model.sinks:
            source, variable = sink.inputs[0], sink.op.variable_id  # type: ignore[attr-defined]
            assert source is not None
            value = self._use(source)
            if value != self.program.states.get(variable):  # else it keeps its value
                value = self._settle(value, self.variables.get(variable), -1, source.node)
            self.program.assigns[variable] = value
        for number, value in enumerate(self.program.results):
            if self.downloads and self.values[value].root == self.outputs.get(number):
                self._append(Step(Download(), "download", (value,), ()))

    def _settle(self, value: int, target: int | None, number: int, node: Node) -> int:
        """Return the value that ``node`` makes in the memory that was meant for it: a copy if it lies elsewhere."""
        if target is None or self.values[value].root == target:
            return value
        memory = self.values[self.values[value].root].memory
        view = self.values[value].view
        if (number >= 0 and self.layouts.may_alias(number, memory, self.values[value].source)
                and all(positive(s) or equal(d, 1) for s, d in zip(view.strides, view.shape))):
            return value
        self._append(Step(Copy(), "copy", (value,), (target,), node=node))
        return target

    def _upload(self) -> None:
        """Puts the uploads of inputs that steps read at the beginning of the first segment."""
        used = {self.values[i].root for step in self.program.steps for i in step.inputs if i >= 0}
        if self.program.rest is not None:
            used.update(self.values[i].root for i in self.program.rest.inputs)
        steps = [Step(Upload(), "upload", (-1,), (i,), node=parameter)
                 for i, parameter in zip(self.program.inputs, self.model.parameters)
                 if i in used and self.values[i].type != Type.string]
        self.program.segments[0].steps[:0] = steps
        for view in self.program.views:
            if view.segment == 0:
                view.position += len(steps)

    def _append(self, step: Step) -> None:
        for i in step.outputs:
            self.born.setdefault(i, len(self.program.segments))
        self.segment.steps.append(step)

    # ---- what follows a result of unknown rank

    def _cut_rest(self, nodes: Sequence[Node]) -> None:
        """Leaves nodes to a program that is built when the ranks of what they need are known."""
        later = set(map(id, nodes))
        given: dict[int, Output] = {}
        users = [*nodes, *self.model.results, *self.model.sinks]
        for user in users:
            for port in user.inputs:
                if port is None or id(port.node) in later or port.node.op.name == "Constant":
                    continue
                if id(port) in self.value_of:
                    given.setdefault(id(port), port)
                else:  # so far it was numbers of the shape function
                    later.add(id(port.node))
                    users.append(port.node)
        ports = list(given.values())
        model = subgraph(self.model, ports, [_source(r) for r in self.model.results], self.model.sinks)
        self.program.rest = Rest(model, [self._dense(self._use(p)) for p in ports])


def _source(result: Node) -> Output:
    source = result.inputs[0]
    if source is None:
        raise OpError("a Result without an input").at("Result", result.source_location)
    return source
