"""Model: a graph of nodes. It has the methods of OpenVINO's Python API; ovgpu's own passes use the plain attributes.

A port's `Spec` (element type, shape) is the result of the last `Model.validate_nodes_and_infer_types`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from ovgpu._util import notebooks
from ovgpu._util.attributes import attribute
from ovgpu._util.openvino_package import Shared, owns, required
from ovgpu.errors import Error, ModelError
from ovgpu.spec import Spec, dims_of
from ovgpu.symbolic import Table
from ovgpu.types import OVAny, PartialShape, Shape, Type

from .node import Node, Output
from .ports import Ports, find_port, ports_table
from .rt_info import RTMap

result_class: type[Any] | None = None
"""Op class of Results. `ovgpu.ops.infrastructure.graph` sets it, as this folder cannot import ops."""

relax_shapes: Callable[[Any], None] | None = None
"""Rewrite that `Model.reshape` runs first. `ovgpu.passes` sets it, as this folder cannot import passes."""

_name_numbers = itertools.count()


@dataclass(frozen=True)
class Variable:
    """State variable that ReadValue reads. `info` is the variable itself; OpenVINO has a VariableInfo there."""

    variable_id: str
    data_shape: PartialShape
    data_type: Type

    def get_id(self) -> str:
        return self.variable_id

    def get_info(self) -> Variable:
        return self

    info = attribute(get_info)


class Model(Ports, metaclass=Shared):
    """Graph with parameters (inputs), results (outputs) and sinks (Assign).

    - `Model(results, parameters, name)`
    - `Model(results, sinks, parameters, name)`

    ``results`` may also be other nodes and ports, for which Results are added. A call with nodes of openvino returns an
    `openvino.Model`.

    Raises: RuntimeError if results or sinks depend on a Parameter that is not one of ``parameters``.
    """

    evaluate: Callable[..., bool]
    """See `ovgpu.api.evaluate`, which sets it."""

    def __new__(cls, results: Any = (), *args: Any, **kwargs: Any) -> Any:
        if owns(results) or (isinstance(results, (list, tuple)) and any(map(owns, results))):
            if cls is not Model:
                raise TypeError(
                    f"{cls.__name__} is made of nodes of ovgpu; nodes of openvino make a plain openvino.Model"
                )
            return required("the model").Model(results, *args, **kwargs)
        return super().__new__(cls)

    def __init__(
        self,
        results: Sequence[Node | Output] | Node,
        sinks: Sequence[Node] | None = None,
        parameters: Sequence[Node] | str | None = None,
        name: str = "",
        *,
        source: str = "",
    ) -> None:
        if parameters is None or isinstance(parameters, str):  # the second argument has the parameters
            sinks, parameters, name = (), sinks or (), parameters or name
        results = [results] if isinstance(results, Node) else results
        self.results = [_as_result(result) for result in results]
        self.sinks, self.parameters = list(sinks or ()), list(parameters)
        self._name = f"Model{next(_name_numbers)}"
        self.friendly_name, self.source = name or self._name, source
        self.rt_info = RTMap()
        self._other_variables: list[Any] = []
        self._removed_variables: set[str] = set()
        self._order: list[Node] | None = None
        declared = set(self.parameters)
        for node in self.ops:
            if node.op.name == "Parameter" and node not in declared:
                raise Error(f"the model does not have the parameter that it depends on: {node.source_location}")
            node.model = self

    # ---- the graph

    @property
    def ops(self) -> list[Node]:
        """All parameters, and all nodes that results and sinks depend on, in topological order."""
        if self._order is None:
            self._order = _topological([*self.parameters, *self.results, *self.sinks], self.source)
        return self._order

    def changed(self) -> None:
        """Recompute the topological order and set `model` of every node. Call it after the graph was rewired."""
        self._order = None
        for node in self.ops:
            node.model = self

    def infer(
        self, inputs: Sequence[Spec], table: Table, refine: Callable[[Output, Spec], Spec] = lambda port, spec: spec
    ) -> list[Spec]:
        """Infer the specs of all ports from ``inputs``, the specs of the parameters. Return those of the results.

        ``refine`` may replace the spec of a port before its users see it. Raises: OpError for a node that fails.
        """
        for parameter, spec in zip(self.parameters, inputs, strict=True):
            parameter.ports[0].spec = refine(parameter.ports[0], spec)
        previous_layer, parameter_ids = table.layer, set(self.parameters)
        with table:
            try:
                for node in self.ops:
                    if node not in parameter_ids:
                        table.layer = node
                        specs = node.infer([None if s is None else s.spec for s in node.sources])
                        for port, spec in zip(node.ports, specs):
                            port.spec = refine(port, spec)
            finally:
                table.layer = previous_layer
        return [r.ports[0].spec for r in self.results]

    def validate_nodes_and_infer_types(self) -> None:
        """Infer the element types and shapes of all ports from those that the parameters declare."""
        table = Table()
        self.infer([_declared(p, table, i) for i, p in enumerate(self.parameters)], table)

    @property
    def states(self) -> list[str]:
        """Ids of the variables that ReadValue reads, in topological order."""
        return list(dict.fromkeys(n.op.variable_id for n in self.ops if n.op.name == "ReadValue"))  # type: ignore[attr-defined]

    # ---- OpenVINO's API

    def get_ordered_ops(self) -> list[Node]:
        """Return the nodes in the topological order that OpenVINO has."""
        return _ordered([*self.results, *self.sinks, *self.parameters])

    get_ops = get_ordered_ops

    def get_parameters(self) -> list[Node]:
        """Return the Parameter nodes, in order."""
        return list(self.parameters)

    def get_results(self) -> list[Node]:
        """Return the Result nodes, in order."""
        return list(self.results)

    def get_sinks(self) -> list[Node]:
        """Return the nodes without users, such as Assign."""
        return list(self.sinks)

    def get_friendly_name(self) -> str:
        """Return the name of the model."""
        return self.friendly_name

    def set_friendly_name(self, name: str) -> None:
        """Set the name of the model."""
        self.friendly_name = name

    def get_name(self) -> str:
        """Return the unique name."""
        return self._name

    name = attribute(get_name)

    def is_dynamic(self) -> bool:
        """Return whether a shape of the model is dynamic."""
        return any(o.partial_shape.is_dynamic for n in self.ops for o in n.ports)

    dynamic = attribute(is_dynamic)

    def get_result(self) -> Node:
        """Return the only Result node. Raises RuntimeError if there are several."""
        return self.output().node

    result = attribute(get_result)

    def get_output_size(self) -> int:
        """Return the number of outputs."""
        return len(self.results)

    def get_output_op(self, index: int) -> Node:
        """Return the Result node of an output of the model."""
        return self.output(index).node

    def get_output_element_type(self, index: int) -> Type:
        """Return the element type of an output of the model."""
        return self.output(index).get_element_type()

    def get_output_partial_shape(self, index: int) -> PartialShape:
        """Return the shape of an output, whose dimensions may be dynamic."""
        return self.output(index).get_partial_shape()

    def get_output_shape(self, index: int) -> Shape:
        """Return the shape of an output. Raises RuntimeError if it is not static."""
        return self.output(index).get_shape()

    def get_result_index(self, port: Output | Node) -> int:
        """Return the index of the output for ``port``: a Result, its port, or the port it reads. -1 if none."""
        indices = [i for i, r in enumerate(self.results) if port in (r, r.ports[0], r.ports[0].tensor_port)]
        return indices[0] if indices else -1

    def get_parameter_index(self, parameter: Node) -> int:
        """Return the index of the input that a Parameter defines; -1 if the model does not have it."""
        return self.parameters.index(parameter) if parameter in self.parameters else -1

    def get_sink_index(self, sink: Output | Node) -> int:
        """Return the index of a sink, given as a node or as its port; -1 if the model does not have it."""
        node = sink.node if isinstance(sink, Output) else sink
        return self.sinks.index(node) if node in self.sinks else -1

    def get_variables(self) -> list[Variable]:
        """Return the variables of ReadValue and Assign."""
        reads = {n.op.variable_id: n.ports[0] for n in self.ops if n.op.name == "ReadValue"}  # type: ignore[attr-defined]
        kept = [
            Variable(name, port.partial_shape, port.element_type)
            for name, port in reads.items()
            if name not in self._removed_variables
        ]
        return [*kept, *self._other_variables]

    variables = attribute(get_variables)

    def add_variables(self, variables: Sequence[Any]) -> None:
        """Add variables to the list. The nodes that read and assign them are added with results and sinks."""
        for variable in variables:
            name = variable.get_info().variable_id
            if name in self._removed_variables:
                self._removed_variables.remove(name)
            elif self.get_variable_by_id(name) is None:
                self._other_variables.append(variable)

    def remove_variable(self, variable: Any) -> None:
        """Remove a variable from the list. The nodes that use it stay in the graph."""
        name = variable.get_info().variable_id
        others = [other for other in self._other_variables if other.get_info().variable_id != name]
        if len(others) == len(self._other_variables):
            self._removed_variables.add(name)
        self._other_variables = others

    def get_variable_by_id(self, variable_id: str) -> Variable | None:
        """Return the variable of this name, None if there is none."""
        return next((v for v in self.get_variables() if v.get_info().variable_id == variable_id), None)

    def get_rt_info(self, path: str | Sequence[str] | None = None) -> Any:
        """Return all runtime information as `RTMap`, or the value at ``path`` as `OVAny` (RuntimeError if absent)."""
        if path is None:
            return self.rt_info
        value: Any = self.rt_info.plain()
        for key in [path] if isinstance(path, str) else path:
            if not isinstance(value, dict) or key not in value:
                raise _no_attribute(key)
            value = value[key]
        return OVAny(value)

    def has_rt_info(self, path: str | Sequence[str]) -> bool:
        """Return whether the runtime information has an entry at this path of keys."""
        try:
            self.get_rt_info(path)
        except RuntimeError:
            return False
        return True

    def set_rt_info(self, value: Any, path: str | Sequence[str]) -> None:
        """Set the value at ``path`` and create the dicts on the way. Raises RuntimeError if one of them is no dict."""
        *parents, last = [path] if isinstance(path, str) else path
        target = self.rt_info
        for key in parents:
            inner = target.nested(key)
            if inner is None:
                raise _no_attribute(key)
            target = inner
        target[last] = value

    # ---- changing the model

    def reshape(self, shapes: Any, variables_shapes: Mapping[str, Any] | None = None) -> None:
        """Set new shapes of inputs: one shape for the only input, or a dict by port, name or index.

        ``variables_shapes`` has new shapes of variables by id. Constants in target shapes that hold the batch of the
        file are replaced by the extents of inputs, in the cases in which OpenVINO does so (see
        `ovgpu.passes.relax_shapes`). The shapes stay as they were if inference fails.
        """
        if not isinstance(shapes, Mapping):
            if len(self.parameters) != 1:
                raise RuntimeError(
                    "reshape to one shape must be called on a model with exactly one input; "
                    f"it has {len(self.parameters)}"
                )
            shapes = {0: shapes}
        ops: dict[Node, Any] = {}
        for key, shape in shapes.items():
            node = find_port(self.inputs, key, "input").node
            ops[node] = replace(node.op, shape=PartialShape(shape))  # type: ignore[type-var]
        for variable, shape in (variables_shapes or {}).items():
            reads = [n for n in self.ops if n.op.name == "ReadValue" and n.op.variable_id == variable]  # type: ignore[attr-defined]
            if not reads:
                raise RuntimeError(f"there is no variable '{variable}': the model has {self.states}")
            for node in reads:
                if not hasattr(node.op, "variable_shape"):
                    raise RuntimeError(f"the shape of variable '{variable}' is that of its initial value")
                ops[node] = replace(node.op, variable_shape=PartialShape(shape))  # type: ignore[type-var]
        before = {node: node.op for node in ops}
        if relax_shapes is not None and any(vars(op) != vars(node.op) for node, op in ops.items()):
            relax_shapes(self)
        for node, op in ops.items():
            node.op = op
        try:
            self.validate_nodes_and_infer_types()
        except Exception:
            for node, op in before.items():
                node.op = op
            self.validate_nodes_and_infer_types()
            raise

    def add_outputs(self, outputs: Any) -> list[Output]:
        """Add outputs for tensors of the graph, except for those that are outputs. Return the ports of all of them.

        ``outputs`` is a tensor name, a pair (friendly name of a node, index of its port), a port, or a list of them.

        Raises: RuntimeError if there is no such tensor, TypeError for another kind of value.
        """
        sources = [self._tensor(key) for key in (outputs if isinstance(outputs, list) else [outputs])]
        for source in sources:
            if all(source not in (result.ports[0], result.sources[0]) for result in self.results):
                self.results.append(_as_result(source))
        self.changed()
        self.validate_nodes_and_infer_types()
        return [self.results[self.get_result_index(source)].ports[0] for source in sources]

    def _tensor(self, key: Any) -> Output:
        """Return the port of the graph for a key of `add_outputs`."""
        if isinstance(key, str):
            ports = [port for node in self.ops for port in node.ports if key in port.get_names()]
            if not ports:
                raise Error(f"there is no tensor '{key}' to add as an output")
            return ports[0].tensor_port
        if isinstance(key, tuple):
            nodes = [node for node in self.ops if node.friendly_name == key[0]]
            if not nodes:
                raise Error(f"there is no node '{key[0]}' to add an output for")
            return nodes[0].output(key[1])
        if not isinstance(key, Output):
            raise TypeError(f"an output to add is a tensor name, a pair (node, port number) or a port, got {key!r}")
        return key

    def replace_parameter(self, index: int, parameter: Node) -> None:
        """Replace the parameter at an index, and connect its users to the new one. RuntimeError if out of range."""
        if not 0 <= index < len(self.parameters):
            raise Error(f"there is no parameter {index} to replace: the model has {len(self.parameters)}")
        old, new = self.parameters[index].ports[0], parameter.ports[0]
        for node in self.ops:
            node.sources = [new if source is old else source for source in node.sources]
        self.parameters[index] = parameter
        self.changed()

    def add_results(self, results: Sequence[Node]) -> None:
        """Add Result nodes, or one for each given output port."""
        self.results.extend(results)
        self.changed()

    def remove_result(self, result: Node) -> None:
        """Remove a Result node."""
        self.results.remove(result)
        self.changed()

    def add_sinks(self, sinks: Sequence[Node]) -> None:
        """Add nodes without users, such as Assign."""
        self.sinks.extend(sinks)
        self.changed()

    def remove_sink(self, sink: Node) -> None:
        """Remove a node without users."""
        self.sinks.remove(sink)
        self.changed()

    def add_parameters(self, parameters: Sequence[Node]) -> None:
        """Add Parameter nodes, the inputs of the model."""
        self.parameters.extend(parameters)
        self.changed()

    def remove_parameter(self, parameter: Node) -> None:
        """Remove a Parameter node."""
        self.parameters.remove(parameter)
        self.changed()

    def clone(self) -> Model:
        """Return a copy of the graph and of the bodies in it. Constants and other attributes are shared."""
        copied_ports: dict[Output, Output] = {}
        nodes: dict[Node, Node] = {}
        for node in self.ops:
            inputs = [None if s is None else copied_ports[s] for s in node.sources]
            copied = Node(
                _clone_bodies(node.op), inputs, len(node.ports), name=node.friendly_name, layer_id=node.layer_id
            )
            copied.extra = dict(node.extra)
            if node.rt_info:
                copied.rt_info = node.rt_info.copy()
            copied.input_rt_info = {i: info.copy() for i, info in node.input_rt_info.items()}
            for port, other in zip(node.ports, copied.ports):
                other.set_names(port.own_names)
                other.spec = port.spec
                if port.tensor_port is port and port.rt_info:
                    other.rt_info = port.rt_info.copy()
                copied_ports[port] = other
            nodes[node] = copied
        model = Model(
            [nodes[n] for n in self.results],
            [nodes[n] for n in self.sinks],
            [nodes[n] for n in self.parameters],
            self.friendly_name,
            source=self.source,
        )
        model.rt_info = self.rt_info.copy()
        model._other_variables = list(self._other_variables)
        model._removed_variables = set(self._removed_variables)
        return model

    def __copy__(self) -> Model:
        raise TypeError("Cannot copy 'ovgpu.Model'. Please, use deepcopy instead.")

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        return self.clone()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def __repr__(self) -> str:
        lines = [
            f"{title}[\n" + ",\n".join(f"<ConstOutput: {port.describe()}>" for port in ports) + "\n]"
            for title, ports in (("inputs", self.inputs), ("outputs", self.outputs))
        ]
        return f"<Model: '{self.friendly_name}'\n" + "\n".join(lines) + ">"

    def _repr_html_(self) -> str:
        title = f"Model {self.friendly_name}: {len(self.ops)} operations"
        return notebooks.table(title, *ports_table(self.inputs, self.outputs))


def bodies(op: Any) -> list[Model]:
    """Return the body models of an op, in order of declaration."""
    # `attributes` may unpack constants. Iterating over the dict itself would fail if another thread adds a cached
    # property meanwhile.
    values = tuple(vars(op).values())
    return [value for value in values if type(value) is Model]


def all_nodes(model: Model) -> Iterator[Node]:
    """Yield the nodes of a model and of all bodies in it."""
    models = [model]
    for graph in models:
        for node in graph.ops:
            yield node
            models.extend(bodies(node.op))


def _no_attribute(key: str) -> Error:
    # Programs look for OpenVINO's own text in the message.
    return Error(f"{key!r}: Cannot get runtime attribute. Path to runtime attribute is incorrect.")


def _as_result(source: Node | Output) -> Node:
    """Return a Result, or a new one that reads a port or the only output of another node."""
    if isinstance(source, Node):
        if source.op.name == "Result":
            return source
        source = source.output(0)
    assert result_class is not None
    result = Node(result_class(), [source])
    if not source.get_names():
        result.ports[0].set_names({result.friendly_name})
    return result


def _clone_bodies(op: Any) -> Any:
    copies = {name: value.clone() for name, value in tuple(vars(op).items()) if type(value) is Model}
    return replace(op, **copies) if copies else op


def _declared(parameter: Node, table: Table, index: int) -> Spec:
    op: Any = parameter.op
    return Spec(op.element_type, dims_of(op.shape, table, index))


def _topological(roots: Sequence[Node], source: str) -> list[Node]:
    """Return ``roots`` and the nodes they depend on in topological order. Raises ModelError for a cycle."""
    order: list[Node] = []
    state: dict[Node, bool] = {}  # False: being visited, True: done
    for root in roots:
        stack: list[tuple[Node, Iterator[Output | None]]] = []
        if root not in state:
            state[root] = False
            stack.append((root, iter(root.sources)))
        while stack:
            node, sources = stack[-1]
            for port in sources:
                if port is None:
                    continue
                producer = port.node
                done = state.get(producer)
                if done is None:
                    if not producer.sources:  # constants are half of all nodes: keep them off the stack
                        state[producer] = True
                        order.append(producer)
                        continue
                    state[producer] = False
                    stack.append((producer, iter(producer.sources)))
                    break
                if done is False:
                    raise ModelError(
                        f"the graph has a cycle through '{producer.friendly_name}'" + (f" ({source})" if source else "")
                    )
            else:
                state[node] = True
                order.append(node)
                stack.pop()
    return order


def _ordered(roots: Sequence[Node]) -> list[Node]:
    """Return roots and the nodes they depend on, in the order of OpenVINO's `topological_sort`: the last root first."""
    order: dict[Node, None] = {}
    stack = list(roots)
    while stack:
        sources = () if stack[-1] in order else reversed(stack[-1].sources)
        waiting = [port.node for port in sources if port is not None and port.node not in order]
        if waiting:
            stack += waiting
        else:
            order[stack.pop()] = None
    return list(order)
