"""Nodes and their ports. They have the methods of OpenVINO's Python API; ovgpu's passes use the plain attributes."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ovgpu._util.attributes import attribute, settable
from ovgpu._util.openvino_package import Shared
from ovgpu.errors import OpError
from ovgpu.spec import Spec
from ovgpu.types import UNBOUNDED, Layout, PartialShape, Shape, Type, nbytes

from .descriptor import DescriptorTensor
from .rt_info import RTMap

if typing.TYPE_CHECKING:
    from .graph import Model


_instance_ids = itertools.count()


class Operation(Protocol):
    """Interface of an op that the graph relies on; see `ovgpu.ops.Op`."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    def check_types(self, inputs: Sequence[Spec | None]) -> None: ...
    def infer_mixed(self, inputs: Sequence[Spec | None]) -> tuple[Spec, ...]: ...
    def propagate(self, inputs: Any, outputs: Any) -> Sequence[Spec]: ...
    def attributes(self) -> dict[str, Any]: ...


class Output(metaclass=Shared):
    """Output port of a node: a tensor of the graph. It hashes by identity, so that results can be keyed by it.

    A Result's port stands for the tensor that the Result reads. It shares the tensor's runtime information, and
    the tensor's names as long as it has none of its own. Its own names count as names of the tensor as well.
    """

    __slots__ = {
        "_names": "",
        "_rt_info": "",
        "index": "Index of the port among the outputs of its node.",
        "node": "Node that the port belongs to.",
        "spec": "Element type, shape and, where known, value of the tensor.",
    }

    def __init__(self, node: Node, index: int) -> None:
        self.node, self.index = node, index
        self._names: set[str] = set()
        self._rt_info = RTMap()
        self.spec = Spec(Type.dynamic, None)

    @property
    def tensor_port(self) -> Output:
        """The port itself; for a Result, the port that it reads."""
        inputs = self.node.sources
        return inputs[0] if self.node.op.name == "Result" and inputs and inputs[0] is not None else self

    # ---- OpenVINO's API

    @property
    def own_names(self) -> set[str]:
        """The names set on this port itself."""
        return self._names

    def get_names(self) -> set[str]:
        """Return the tensor names."""
        if self.tensor_port is not self:
            return set(self._names) or self.tensor_port.get_names()
        results = () if self.node.model is None else self.node.model.results
        return self._names.union(*(r.ports[0]._names for r in results if r.sources[:1] == [self]))

    def set_names(self, names: Iterable[str]) -> None:
        """Replace the names that are set on this port itself."""
        self._names = set(names)

    names = settable(get_names, set_names)

    def add_names(self, names: Iterable[str]) -> None:
        """Add tensor names to this port."""
        self._names |= set(names)

    def get_any_name(self) -> str:
        """Return the alphabetically first name. Raises RuntimeError if there is none."""
        names = self.get_names()
        if not names:
            raise RuntimeError("Attempt to get a name for a Tensor without names")
        return min(names)

    any_name = attribute(get_any_name)

    def get_element_type(self) -> Type:
        """Return the element type."""
        return self.spec.type

    element_type = attribute(get_element_type)

    def get_partial_shape(self) -> PartialShape:
        """Return the shape, whose dimensions may be dynamic."""
        return self.spec.partial_shape

    partial_shape = attribute(get_partial_shape)

    def get_shape(self) -> Shape:
        """Return the shape. Raises RuntimeError if it is not static."""
        return self.spec.partial_shape.to_shape()

    shape = attribute(get_shape)

    def get_tensor(self) -> DescriptorTensor:
        """Return the description of the tensor: its type, shape, names and runtime information."""
        return DescriptorTensor(self)

    tensor = attribute(get_tensor)

    def get_index(self) -> int:
        """Return the index of the port among the outputs of its node."""
        return self.index

    def get_node(self) -> Node:
        """Return the node that the port belongs to."""
        return self.node

    def get_rt_info(self) -> RTMap:
        """Return the runtime information of the tensor."""
        return self.tensor_port._rt_info

    @property
    def rt_info(self) -> RTMap:
        """Runtime information of the tensor, by key."""
        return self.tensor_port._rt_info

    @rt_info.setter
    def rt_info(self, info: RTMap) -> None:
        self.tensor_port._rt_info = info

    def set_rt_info(self, value: Any, key: str) -> None:
        """Set one entry of the runtime information."""
        self.rt_info[key] = value

    def get_target_inputs(self) -> set[Input]:
        """Return the input ports that read this tensor."""
        users = self.node.model.ops if self.node.model is not None else []
        return {Input(n, i) for n in users for i, source in enumerate(n.sources) if source is self}

    target_inputs = attribute(get_target_inputs)

    def replace(self, other: Output) -> None:
        """Connect every user of this tensor to ``other``, and add the names of this port to it."""
        for target in self.get_target_inputs():
            target.node.sources[target.index] = other
        other._names |= self._names
        if self.node.model is not None:
            self.node.model.changed()

    def __repr__(self) -> str:
        return f"<Output: {self.describe()}>"

    def describe(self) -> str:
        """Return names, shape and type in OpenVINO's print format."""
        names = ", ".join(sorted(self.get_names()))
        return f"names[{names}] shape{self.partial_shape} type: {self.element_type.get_type_name()}"


def get_layout(port: Output) -> Layout:
    """Return the layout (meaning of the axes) of a model's input or output; an empty one if none is set."""
    info = port.rt_info.plain()
    return Layout(info["layout_0"]["layout"]) if "layout_0" in info else Layout()


def set_layout(port: Output, layout: Layout | str) -> None:
    """Set the layout of a model's input or output."""
    text = (layout if isinstance(layout, Layout) else Layout(layout)).to_string()
    port.rt_info["layout_0"] = {"layout": text}


class Input(metaclass=Shared):
    """Input port: a node and the index of one of its inputs. Ports with equal node and index are equal."""

    __slots__ = {"index": "Index of the port among the inputs of its node.", "node": "Node that the port belongs to."}

    def __init__(self, node: Node, index: int) -> None:
        self.node, self.index = node, index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Input) and (self.node, self.index) == (other.node, other.index)

    def __hash__(self) -> int:
        return hash((id(self.node), self.index))

    def get_source_output(self) -> Output:
        """Return the output port that feeds this input. Raises RuntimeError if there is none."""
        source = self.node.sources[self.index]
        if source is None:
            raise RuntimeError(f"input {self.index} of {self.node.friendly_name!r} is not connected")
        return source

    def get_node(self) -> Node:
        """Return the node that the port belongs to."""
        return self.node

    def get_index(self) -> int:
        """Return the index of the port among the inputs of its node."""
        return self.index

    def get_element_type(self) -> Type:
        """Return the element type of the tensor that is read."""
        return self.get_source_output().get_element_type()

    element_type = attribute(get_element_type)

    def get_partial_shape(self) -> PartialShape:
        """Return the shape of the tensor that is read, whose dimensions may be dynamic."""
        return self.get_source_output().get_partial_shape()

    partial_shape = attribute(get_partial_shape)

    def get_shape(self) -> Shape:
        """Return the shape of the tensor that is read. Raises RuntimeError if it is not static."""
        return self.get_source_output().get_shape()

    shape = attribute(get_shape)

    def get_tensor(self) -> DescriptorTensor:
        """Return the description of the tensor that is read."""
        return self.get_source_output().get_tensor()

    def get_rt_info(self) -> RTMap:
        """Return the runtime information of this input."""
        return self.node.input_rt_info.setdefault(self.index, RTMap())

    rt_info = attribute(get_rt_info)

    def set_rt_info(self, value: Any, key: str) -> None:
        """Set one entry of the runtime information."""
        self.get_rt_info()[key] = value

    def replace_source_output(self, source: Output) -> None:
        """Connect this input to another output port."""
        self.node.sources[self.index] = source
        if self.node.model is not None:
            self.node.model.changed()

    def __repr__(self) -> str:
        return f"<Input: shape{self.get_partial_shape()} type: {self.get_element_type().get_type_name()}>"


@dataclass(frozen=True)
class DiscreteTypeInfo:
    """Name and opset of an op, as in OpenVINO's API."""

    name: str
    version_id: str

    def get_version(self) -> str:
        """Return the opset."""
        return self.version_id


class Node(metaclass=Shared):
    """Layer of a model: an op, the ports that feed its inputs, and its output ports.

    ``sources`` holds the `Output` that feeds each input, or None for an optional input that is absent; ``ports`` holds
    the node's own outputs.
    """

    __slots__ = {
        "extra": "Attributes in the file that the operation does not know, as texts by name.",
        "friendly_name": "Name of the layer in the file, or the one that was set.",
        "input_rt_info": "Runtime information of inputs, by index.",
        "instance_id": "Number that no other node of this process has.",
        "layer_id": "Id of the layer in the file, empty for a node that was made here.",
        "model": "Model that the node belongs to, None for none.",
        "op": "Operation with its attributes; see `ovgpu.ops.Op`.",
        "ports": "Output ports.",
        "rt_info": "Runtime information of the node, by key.",
        "sources": "Output port that feeds each input, None for an optional input that is absent.",
    }

    def __init__(
        self, op: Operation, inputs: Sequence[Output | None], outputs: int = 1, *, name: str = "", layer_id: str = ""
    ) -> None:
        self.op = op
        self.sources: list[Output | None] = list(inputs)
        self.ports = [Output(self, i) for i in range(outputs)]
        self.instance_id = next(_instance_ids)
        self.friendly_name = name or self.get_name()
        self.layer_id = layer_id
        self.extra: dict[str, str] = {}  # attributes in the file that the op does not know
        self.rt_info = RTMap()
        self.input_rt_info: dict[int, RTMap] = {}
        self.model: Model | None = None

    @property
    def source_location(self) -> str:
        """Location of the node for messages: ``layer 'attn/sm', id 17, model.xml``."""
        parts = [f"layer '{self.friendly_name}'"]
        if self.layer_id:
            parts.append(f"id {self.layer_id}")
        if self.model is not None and self.model.source:
            parts.append(self.model.source)
        return ", ".join(parts)

    def infer(self, inputs: Sequence[Spec | None]) -> Sequence[Spec]:
        """Return the specs of the outputs, with values where they are known. Raises OpError that names the node."""
        try:
            inferred = self.op.infer_mixed(inputs)
            self.op.check_types(inputs)
            specs = self.op.propagate(inputs, inferred)
        except OpError as e:
            raise e.at(self.op.name, self.source_location) from None
        except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as e:
            # The op did not expect the contents of the file: report it as an error of the model.
            text = f"inference failed: {type(e).__name__}: {e}"
            if "positional argument" in str(e):
                text = f"{len(inputs)} inputs are not what the operation takes"
            raise OpError(text).at(self.op.name, self.source_location) from e
        for spec in specs:
            if any(isinstance(n, int) and not 0 <= n < UNBOUNDED for n in spec.shape or ()):
                text = f"the result would have the shape [{', '.join(map(str, spec.shape or ()))}]"
                raise OpError(text).at(self.op.name, self.source_location)
        if len(self.ports) > len(specs):
            text = f"the layer declares {len(self.ports)} outputs, the operation has {len(specs)}"
            raise OpError(text).at(self.op.name, self.source_location)
        while len(self.ports) < len(specs):  # a file may omit outputs without users
            self.ports.append(Output(self, len(self.ports)))
        return specs

    # ---- OpenVINO's API

    def get_type_name(self) -> str:
        """Return the name of the operation, such as "MatMul"."""
        return self.op.name

    def get_type_info(self) -> DiscreteTypeInfo:
        """Return the name of the operation and its opset."""
        return DiscreteTypeInfo(self.op.name, self.op.version)

    type_name = attribute(get_type_name)
    type_info = attribute(get_type_info)

    def get_friendly_name(self) -> str:
        """Return the name of the layer in the file, or the one that was set."""
        return self.friendly_name

    def set_friendly_name(self, name: str) -> None:
        """Set the name of the layer."""
        self.friendly_name = name

    def get_name(self) -> str:
        """Return the unique name, such as "Relu_12"."""
        return f"{self.op.name}_{self.instance_id}"

    name = attribute(get_name)

    def get_instance_id(self) -> int:
        """Return the number that no other node of this process has."""
        return self.instance_id

    def get_attributes(self) -> dict[str, Any]:
        """Return the attributes of the operation by name."""
        return self.op.attributes()

    def get_rt_info(self) -> RTMap:
        """Return the runtime information of the node."""
        return self.rt_info

    def set_rt_info(self, value: Any, key: str) -> None:
        """Set one entry of the runtime information."""
        self.rt_info[key] = value

    def inputs(self) -> list[Input]:
        """Return all input ports, connected or not."""
        return [Input(self, index) for index in range(len(self.sources))]

    def outputs(self) -> list[Output]:
        """Return the output ports."""
        return list(self.ports)

    def input(self, index: int) -> Input:
        """Return the input port with this index. Raises RuntimeError if there is none."""
        self._check(index, self.sources)
        return Input(self, index)

    def output(self, index: int) -> Output:
        """Return the output port with this index. Raises RuntimeError if there is none."""
        self._check(index, self.ports)
        return self.ports[index]

    def _check(self, index: int, ports: Sequence[Any]) -> None:
        if not 0 <= index < (count := len(ports)):
            raise RuntimeError(f"node index is out of range: '{self.friendly_name}' has {count}, not {index}")

    def input_value(self, index: int) -> Output:
        """Return the output port that feeds an input. Raises RuntimeError if there is none."""
        return self.input(index).get_source_output()

    def input_values(self) -> list[Output]:
        """Return the output ports that feed the inputs."""
        return [source for source in self.sources if source is not None]

    def set_argument(self, index: int, source: Output) -> None:
        """Connect input ``index`` to another port."""
        self.input(index).replace_source_output(source)

    def set_arguments(self, sources: Iterable[Output | Node]) -> None:
        """Connect the inputs to other ports; a node stands for its only output."""
        self.sources = [source.output(0) if isinstance(source, Node) else source for source in sources]
        if self.model is not None:
            self.model.changed()

    def get_input_tensor(self, index: int) -> DescriptorTensor:
        """Return the description of the tensor that an input reads."""
        return self.input(index).get_tensor()

    def get_output_tensor(self, index: int) -> DescriptorTensor:
        """Return the description of an output tensor."""
        return self.output(index).get_tensor()

    def get_input_size(self) -> int:
        """Return the number of inputs."""
        return len(self.sources)

    def get_output_size(self) -> int:
        """Return the number of outputs."""
        return len(self.ports)

    def get_input_element_type(self, index: int) -> Type:
        """Return the element type of an input."""
        return self.input(index).get_element_type()

    def get_input_partial_shape(self, index: int) -> PartialShape:
        """Return the shape of an input, whose dimensions may be dynamic."""
        return self.input(index).get_partial_shape()

    def get_input_shape(self, index: int) -> Shape:
        """Return the shape of an input. Raises RuntimeError if it is not static."""
        return self.input(index).get_shape()

    def get_output_element_type(self, index: int) -> Type:
        """Return the element type of an output."""
        return self.output(index).get_element_type()

    def get_output_partial_shape(self, index: int) -> PartialShape:
        """Return the shape of an output, whose dimensions may be dynamic."""
        return self.output(index).get_partial_shape()

    def get_output_shape(self, index: int) -> Shape:
        """Return the shape of an output. Raises RuntimeError if it is not static."""
        return self.output(index).get_shape()

    def get_element_type(self) -> Type:
        """Return the element type of output 0; for a Parameter, the declared one."""
        op: Any = self.op
        return op.element_type if op.name == "Parameter" else self.ports[0].get_element_type()

    element_type = attribute(get_element_type)

    def get_partial_shape(self) -> PartialShape:
        """Return the shape of output 0; for a Parameter, the declared one."""
        op: Any = self.op
        return PartialShape(op.shape) if op.name == "Parameter" else self.ports[0].get_partial_shape()

    partial_shape = attribute(get_partial_shape)

    def get_shape(self) -> Shape:
        """Return the shape of output 0. Raises RuntimeError if it is not static."""
        return self.ports[0].get_shape()

    shape = attribute(get_shape)

    # ---- Parameter and Result

    def set_partial_shape(self, shape: Any) -> None:
        """Declare another shape of a Parameter. `Model.validate_nodes_and_infer_types` then updates the ports."""
        self.op = replace(self.op, shape=PartialShape(shape))  # type: ignore[type-var]

    def set_element_type(self, element_type: Type) -> None:
        """Declare another element type of a Parameter. The ports are updated as for `set_partial_shape`."""
        self.op = replace(self.op, element_type=Type(element_type))  # type: ignore[type-var]

    def get_layout(self) -> Layout:
        """Return the layout of a Parameter or Result; see the function `get_layout`."""
        return get_layout(self.ports[0])

    def set_layout(self, layout: Layout | str) -> None:
        """Set the layout (meaning of the axes) of a Parameter or Result."""
        set_layout(self.ports[0], layout)

    layout = settable(get_layout, set_layout)

    # ---- Constant

    def get_data(self) -> Any:
        """Return the values of a Constant, unpacked to one element per item. Raises AttributeError for other nodes."""
        op: Any = self.op
        return np.asarray(op.value)  # of a compiled model, weights may be computed only now

    data = attribute(get_data)

    def get_vector(self) -> Any:
        """Return the values of a Constant as an array of one axis."""
        return self.get_data().reshape(-1)

    def get_byte_size(self) -> int:
        """Return the size of a Constant in bytes."""
        return nbytes(self.get_element_type(), self.get_shape())

    def __repr__(self) -> str:
        shapes = ", ".join(str(o.partial_shape) for o in self.ports)
        return f"<{self.op.name}: '{self.friendly_name}' ({shapes})>"
