"""The graph: nodes with an op each, ports between them, and the model that holds them.

`Model`, `Node` and the ports answer to openvino's names; ovgpu's own passes use the plain attributes.
A port's `Spec` (element type, shape) is what the last `Model.validate_nodes_and_infer_types` found.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ovgpu.errors import ModelError, OpError
from ovgpu.symbolic import Spec, Table, dims_of
from ovgpu.types import Dimension, PartialShape, Shape, Type


class Operation(Protocol):
    """What the graph needs to know of an op; see `ovgpu.ops.Op`."""

    name: str
    version: str

    def infer(self, *inputs: Any) -> tuple[Spec, ...]: ...
    def propagate(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Sequence[Spec]: ...
    def attributes(self) -> dict[str, Any]: ...


class Output:
    """An output port of a node: a tensor of the graph. Hashes by identity, so it keys results."""

    __slots__ = ("index", "names", "node", "rt_info", "spec")

    def __init__(self, node: Node, index: int) -> None:
        self.node, self.index = node, index
        self.names: set[str] = set()
        self.rt_info: dict[str, Any] = {}
        self.spec = Spec(Type.dynamic, None)

    # ---- openvino's names

    @property
    def tensor_port(self) -> Output:
        """The port that carries this tensor's names: for a Result, the one it takes its value from."""
        return self.node.inputs[0] if self.node.op.name == "Result" and self.node.inputs else self  # type: ignore[return-value]

    def get_names(self) -> set[str]:
        return self.tensor_port.names

    def set_names(self, names: Iterable[str]) -> None:
        self.tensor_port.names = set(names)

    def add_names(self, names: Iterable[str]) -> None:
        self.tensor_port.names |= set(names)

    def get_any_name(self) -> str:
        names = self.get_names()
        if not names:
            raise RuntimeError("Attempt to get a name for a Tensor without names")
        return min(names)

    any_name = property(get_any_name)

    def get_element_type(self) -> Type:
        return self.spec.type

    element_type = property(get_element_type)

    def get_partial_shape(self) -> PartialShape:
        return self.spec.partial_shape

    partial_shape = property(get_partial_shape)

    def get_shape(self) -> Shape:
        return self.partial_shape.to_shape()

    shape = property(get_shape)

    def get_index(self) -> int:
        return self.index

    def get_node(self) -> Node:
        return self.node

    def get_rt_info(self) -> dict[str, Any]:
        return self.rt_info

    def get_target_inputs(self) -> set[Input]:
        model = self.node.model
        users = model.ops if model is not None else []
        return {Input(n, i) for n in users for i, source in enumerate(n.inputs) if source is self}

    def __repr__(self) -> str:
        names = ", ".join(sorted(self.get_names()))
        return f"<Output: names[{names}] shape{self.partial_shape} type: {self.element_type.get_type_name()}>"


class Input:
    """An input port: node and position. Two of the same place are equal."""

    __slots__ = ("index", "node")

    def __init__(self, node: Node, index: int) -> None:
        self.node, self.index = node, index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Input) and (self.node, self.index) == (other.node, other.index)

    def __hash__(self) -> int:
        return hash((id(self.node), self.index))

    def get_source_output(self) -> Output:
        source = self.node.inputs[self.index]
        if source is None:
            raise RuntimeError(f"input {self.index} of {self.node.friendly_name!r} is not connected")
        return source

    def get_node(self) -> Node:
        return self.node

    def get_index(self) -> int:
        return self.index

    def get_element_type(self) -> Type:
        return self.get_source_output().element_type

    element_type = property(get_element_type)

    def get_partial_shape(self) -> PartialShape:
        return self.get_source_output().partial_shape

    partial_shape = property(get_partial_shape)

    def get_shape(self) -> Shape:
        return self.get_source_output().shape

    shape = property(get_shape)

    def replace_source_output(self, source: Output) -> None:
        self.node.inputs[self.index] = source


class Node:
    """A layer: an op, where its inputs come from, and its output ports.

    ``inputs`` holds the `Output` that feeds each input; an optional input that is absent is None.
    """

    __slots__ = ("friendly_name", "inputs", "layer_id", "model", "op", "outputs", "rt_info")

    def __init__(self, op: Operation, inputs: Sequence[Output | None], outputs: int = 1, *,
                 name: str = "", layer_id: str = "") -> None:
        self.op = op
        self.inputs: list[Output | None] = list(inputs)
        self.outputs = [Output(self, i) for i in range(outputs)]
        self.friendly_name = name
        self.layer_id = layer_id
        self.rt_info: dict[str, Any] = {}
        self.model: Model | None = None

    @property
    def place(self) -> str:
        """Where the node is, for messages: ``layer 'attn/sm', id 17, model.xml``."""
        parts = [f"layer '{self.friendly_name}'"]
        if self.layer_id:
            parts.append(f"id {self.layer_id}")
        if self.model is not None and self.model.source:
            parts.append(self.model.source)
        return ", ".join(parts)

    def infer(self, inputs: Sequence[Spec | None]) -> Sequence[Spec]:
        """The specs of the outputs, with values where they are known; errors are located at this node."""
        try:
            return self.op.propagate(inputs, self.op.infer(*inputs))
        except OpError as e:
            raise e.at(self.op.name, self.place) from None
        except TypeError as e:
            if "positional argument" in str(e):
                raise OpError(f"{len(inputs)} inputs are not what the operation takes").at(
                    self.op.name, self.place) from e
            raise

    # ---- openvino's names

    def get_type_name(self) -> str:
        return self.op.name

    type_name = property(get_type_name)

    def get_friendly_name(self) -> str:
        return self.friendly_name

    def set_friendly_name(self, name: str) -> None:
        self.friendly_name = name

    get_name = get_friendly_name
    name = property(get_friendly_name)

    def get_attributes(self) -> dict[str, Any]:
        return self.op.attributes()

    def get_rt_info(self) -> dict[str, Any]:
        return self.rt_info

    def input(self, index: int) -> Input:
        if not 0 <= index < len(self.inputs):
            raise RuntimeError(f"node {self.friendly_name!r} has no input {index}")
        return Input(self, index)

    def output(self, index: int) -> Output:
        if not 0 <= index < len(self.outputs):
            raise RuntimeError(f"node {self.friendly_name!r} has no output {index}")
        return self.outputs[index]

    def input_value(self, index: int) -> Output:
        return self.input(index).get_source_output()

    def input_values(self) -> list[Output]:
        return [source for source in self.inputs if source is not None]

    def get_input_size(self) -> int:
        return len(self.inputs)

    def get_output_size(self) -> int:
        return len(self.outputs)

    def get_element_type(self) -> Type:
        return self.outputs[0].element_type

    def get_output_element_type(self, index: int) -> Type:
        return self.output(index).element_type

    def get_output_partial_shape(self, index: int) -> PartialShape:
        return self.output(index).partial_shape

    def get_output_shape(self, index: int) -> Shape:
        return self.output(index).shape

    def get_partial_shape(self) -> PartialShape:
        return self.outputs[0].partial_shape

    def get_shape(self) -> Shape:
        return self.outputs[0].shape

    def __repr__(self) -> str:
        shapes = ", ".join(str(o.partial_shape) for o in self.outputs)
        return f"<{self.op.name}-{self.op.version.removeprefix('opset')} '{self.friendly_name}' -> {shapes}>"


PortKey = int | str | Output


class Ports:
    """What a model and a compiled model share: ports found by number, name, or by being the only one."""

    parameters: list[Node]
    results: list[Node]

    @property
    def inputs(self) -> list[Output]:
        return [p.outputs[0] for p in self.parameters]

    @property
    def outputs(self) -> list[Output]:
        return [r.outputs[0] for r in self.results]

    def input(self, key: PortKey | None = None) -> Output:
        return find_port(self.inputs, key, "input")

    def output(self, key: PortKey | None = None) -> Output:
        return find_port(self.outputs, key, "output")


def find_port(ports: Sequence[Output], key: Any, kind: str) -> Output:
    """The port that an int, a tensor name or a port means; RuntimeError naming what there is."""
    if key is None:
        if len(ports) != 1:
            raise RuntimeError(f"{kind}() must be called on a model with exactly one {kind}; it has {len(ports)}")
        return ports[0]
    if isinstance(key, str):
        for port in ports:
            if key in port.get_names():
                return port
    elif isinstance(key, Output):
        for port in ports:
            if port is key or (kind == "input" and port.node is key.node) or (
                    kind == "output" and port.tensor_port is key):
                return port
    elif 0 <= int(key) < len(ports):
        return ports[int(key)]
    there = ", ".join(sorted(min(p.get_names(), default=f"#{i}") for i, p in enumerate(ports)))
    raise RuntimeError(f"no {kind} {key!r}: the model has {len(ports)} ({there})")


class Model(Ports):
    """A graph with parameters (inputs), results (outputs) and sinks (Assign)."""

    def __init__(self, results: Sequence[Node], sinks: Sequence[Node] | None = None,
                 parameters: Sequence[Node] = (), name: str = "Model", *, source: str = "") -> None:
        self.results, self.sinks, self.parameters = list(results), list(sinks or ()), list(parameters)
        self.friendly_name, self.source = name, source
        self.rt_info: dict[str, Any] = {}
        self._order: list[Node] | None = None
        for node in self.ops:
            node.model = self

    # ---- the graph

    @property
    def ops(self) -> list[Node]:
        """Every node that a result, a sink or nothing else (a parameter) needs, inputs before users."""
        if self._order is None:
            self._order = _topological([*self.parameters, *self.results, *self.sinks], self.source)
        return self._order

    def changed(self) -> None:
        """Call after rewiring: the order is found anew and nodes learn where they belong."""
        self._order = None
        for node in self.ops:
            node.model = self

    def infer(self, inputs: Sequence[Spec], table: Table,
              refine: Callable[[Output, Spec], Spec] = lambda port, spec: spec) -> list[Spec]:
        """Infers every port from specs of the parameters, and returns those of the results.

        ``refine`` may replace the spec of a port before its users see it.
        """
        for parameter, spec in zip(self.parameters, inputs, strict=True):
            parameter.outputs[0].spec = refine(parameter.outputs[0], spec)
        outside, where = table.place, set(map(id, self.parameters))
        with table:
            for node in self.ops:
                if id(node) not in where:
                    table.place = node
                    specs = node.infer([None if s is None else s.spec for s in node.inputs])
                    for port, spec in zip(node.outputs, specs):
                        port.spec = refine(port, spec)
        table.place = outside
        return [r.outputs[0].spec for r in self.results]

    def validate_nodes_and_infer_types(self) -> None:
        """Infers element types and shapes of all ports from the parameters' declarations."""
        table = Table()
        self.infer([_declared(p, table, i) for i, p in enumerate(self.parameters)], table)

    @property
    def states(self) -> list[str]:
        """The ids of the variables that ReadValue reads, in order of appearance."""
        return list(dict.fromkeys(n.op.variable_id for n in self.ops if n.op.name == "ReadValue"))  # type: ignore[attr-defined]

    # ---- openvino's names

    def get_ops(self) -> list[Node]:
        return list(self.ops)

    get_ordered_ops = get_ops

    def get_parameters(self) -> list[Node]:
        return list(self.parameters)

    def get_results(self) -> list[Node]:
        return list(self.results)

    def get_sinks(self) -> list[Node]:
        return list(self.sinks)

    def get_friendly_name(self) -> str:
        return self.friendly_name

    def set_friendly_name(self, name: str) -> None:
        self.friendly_name = name

    get_name = get_friendly_name
    name = property(get_friendly_name)

    def is_dynamic(self) -> bool:
        return any(o.partial_shape.is_dynamic for n in self.ops for o in n.outputs)

    dynamic = property(is_dynamic)

    def get_rt_info(self, path: str | Sequence[str] | None = None) -> Any:
        value: Any = self.rt_info
        for key in [] if path is None else [path] if isinstance(path, str) else path:
            if key not in value:
                raise RuntimeError(f"Cannot get runtime attribute. Path to runtime attribute is incorrect: {key!r}")
            value = value[key]
        return value

    def has_rt_info(self, path: str | Sequence[str]) -> bool:
        try:
            self.get_rt_info(path)
        except RuntimeError:
            return False
        return True

    def set_rt_info(self, value: Any, path: str | Sequence[str]) -> None:
        *parents, last = [path] if isinstance(path, str) else path
        target = self.rt_info
        for key in parents:
            target = target.setdefault(key, {})
        target[last] = value

    def reshape(self, shapes: Any, variables_shapes: Mapping[str, Any] | None = None) -> None:
        """Gives inputs new shapes: one shape for the only input, or a dict by port, name or number.

        ``variables_shapes`` gives variables new ones by id. The model stays as it was if that is impossible.
        """
        if isinstance(shapes, Mapping):
            wanted = {self.input(key).node: PartialShape(shape) for key, shape in shapes.items()}
        else:
            wanted = {self.input().node: PartialShape(shapes)}
        before = {node: node.op for node in self.ops if node in wanted or node.op.name == "ReadValue"}
        for node, shape in wanted.items():
            node.op = replace(node.op, shape=shape)  # type: ignore[type-var]
        for node in before:
            variable = getattr(node.op, "variable_id", None)
            if variable in (variables_shapes or {}):
                node.op = replace(node.op, variable_shape=PartialShape((variables_shapes or {})[variable]))  # type: ignore[type-var]
        try:
            self.validate_nodes_and_infer_types()
        except Exception:
            for node, op in before.items():
                node.op = op
            self.validate_nodes_and_infer_types()
            raise

    def clone(self) -> Model:
        """A copy of the graph; ops (immutable) and constants are shared."""
        twins: dict[int, Output] = {}
        nodes: dict[int, Node] = {}
        for node in self.ops:
            twin = Node(node.op, [None if s is None else twins[id(s)] for s in node.inputs], len(node.outputs),
                        name=node.friendly_name, layer_id=node.layer_id)
            twin.rt_info = dict(node.rt_info)
            for port, other in zip(node.outputs, twin.outputs):
                other.names, other.spec, other.rt_info = set(port.names), port.spec, dict(port.rt_info)
                twins[id(port)] = other
            nodes[id(node)] = twin
        model = Model([nodes[id(n)] for n in self.results], [nodes[id(n)] for n in self.sinks],
                      [nodes[id(n)] for n in self.parameters], self.friendly_name, source=self.source)
        model.rt_info = copy.deepcopy(self.rt_info)
        return model

    def __copy__(self) -> Model:
        raise TypeError("cannot copy 'openvino.Model'. Please, use deepcopy instead.")

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        return self.clone()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __repr__(self) -> str:
        ports = [("inputs", self.inputs), ("outputs", self.outputs)]
        lines = [f"{title}[\n" + ",\n".join(map(repr, found)) + "\n]" for title, found in ports]
        return f"<Model: '{self.friendly_name}'\n" + "\n".join(lines) + ">"


def _declared(parameter: Node, table: Table, index: int) -> Spec:
    op: Any = parameter.op
    return Spec(op.element_type, dims_of(op.shape, table, index))


def _topological(roots: Sequence[Node], source: str) -> list[Node]:
    """Inputs before users, without recursion. ModelError if there is a cycle."""
    order: list[Node] = []
    state: dict[int, bool] = {}  # False: being visited, True: done
    for root in roots:
        stack: list[tuple[Node, Iterator[Output | None]]] = []
        if id(root) not in state:
            state[id(root)] = False
            stack.append((root, iter(root.inputs)))
        while stack:
            node, sources = stack[-1]
            for port in sources:
                if port is None:
                    continue
                done = state.get(id(port.node))
                if done is None:
                    state[id(port.node)] = False
                    stack.append((port.node, iter(port.node.inputs)))
                    break
                if done is False:
                    raise ModelError(f"the graph has a cycle through '{port.node.friendly_name}'"
                                     + (f" ({source})" if source else ""))
            else:
                state[id(node)] = True
                order.append(node)
                stack.pop()
    return order


def set_batch(model: Model, size: int | Dimension) -> None:
    """Sets the batch, the first dimension of every input without a layout that says otherwise."""
    shapes: dict[Output, PartialShape] = {}
    for port in model.inputs:
        shape = PartialShape(port.partial_shape)
        layout = getattr(port.node.op, "layout", None)
        shape[layout.get_index_by_name("N") if layout is not None and layout.has_name("N") else 0] = size
        shapes[port] = shape
    model.reshape(shapes)


def get_batch(model: Model) -> Dimension:
    """The batch: the first dimension of the first input."""
    dimension: Dimension = model.inputs[0].partial_shape[0]
    return dimension
