"""A small builder of IR v11 documents, so that tests need no openvino to make a model.

    net = Net()
    x = net.parameter("f32", (2, 3, -1))
    w = net.const(np.eye(3, dtype="f4"))
    net.result(net.layer("MatMul", "opset1", [w, x], {"transpose_a": False}))
    xml, weights = net.build()

Output ports carry no dims: readers infer them. The body of TensorIterator, Loop or If is another `Net`:

    body = Net()
    xi, h = body.parameter("f32", (1, 5)), body.parameter("f32", (1, 5))
    r = body.result(body.layer("Add", "opset1", [xi, h]))
    last, every = net.tensor_iterator(body, [feed(x, xi, axis=0), feed(h0, h)],
                                      [take(r), take(r, axis=0)], back_edges=[(r, h)])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from xml.sax.saxutils import quoteattr

import numpy as np

from .elements import ELEMENTS, as_logical, name_of, pack

Variant = Literal["static", "dynamic", "rankless"]
Dims = Sequence[int | str] | str | None  # (3, -1, "2..5"); None or "..." is a dynamic rank


@dataclass(frozen=True)
class Port:
    """One output of a layer with its declared element type; for a Result, the layer itself."""

    layer: int
    index: int
    type: str


@dataclass(frozen=True)
class Link:
    """One line of a port map: an outer value and the layer of the body that it is connected to."""

    outer: Port | None
    inner: Port
    attrs: Mapping[str, Any]


def feed(outer: Port, inner: Port, **attrs: Any) -> Link:
    """Feed `outer` to the body's parameter `inner`; axis, start, end, stride and part_size slice it."""
    return Link(outer, inner, attrs)


def take(result: Port, **attrs: Any) -> Link:
    """Take the body's `result` out of the loop: its last value, or with an axis all values concatenated."""
    return Link(None, result, attrs)


Entry = tuple[int, Port, Mapping[str, Any]]  # a port of the layer, a layer of its body, and the slicing attributes


@dataclass(frozen=True)
class Maps:
    """Port maps of a control flow layer and one of its bodies; input and output ports are each counted from 0."""

    inputs: Sequence[Entry]
    outputs: Sequence[Entry]
    back_edges: Sequence[tuple[Port, Port]] | None = None  # (result, parameter); None for an If, which has none
    iteration: Port | None = None  # the parameter that gets the iteration number
    condition: Port | None = None  # the result that says whether to continue

    def write(self, tag: str, first_output: int) -> list[str]:
        """Return the XML elements of the maps."""
        lines = [_map("input", port, inner, **attrs) for port, inner, attrs in self.inputs]
        lines += [_map("output", first_output + port, inner, **attrs) for port, inner, attrs in self.outputs]
        if self.iteration is not None:
            lines.append(
                _tag("input", external_port_id=-1, internal_layer_id=self.iteration.layer, purpose="current_iteration")
            )
        if self.condition is not None:
            lines.append(
                _tag(
                    "output", external_port_id=-1, internal_layer_id=self.condition.layer, purpose="execution_condition"
                )
            )
        edges = [_tag("edge", **{"from-layer": a.layer, "to-layer": b.layer}) for a, b in self.back_edges or ()]
        return [_element(tag, lines), *([] if self.back_edges is None else [_element("back_edges", edges)])]


@dataclass
class Layer:
    """A layer of a net; control flow has bodies and port maps."""

    id: int
    name: str
    type: str
    version: str
    attrs: dict[str, Any]
    inputs: list[Port]
    outputs: list[str]
    names: list[str]
    data: bytes | None = None
    bodies: dict[str, Net] = field(default_factory=dict)
    maps: dict[str, Maps] = field(default_factory=dict)  # one for each body


class Net:
    """A model, or the body of a control flow layer."""

    def __init__(self, name: str = "net") -> None:
        self.name = name
        self.parameters: dict[str, Port] = {}
        self.nodes: list[Layer] = []

    def parameter(self, type: str, shape: Dims, name: str | None = None) -> Port:
        """Add a model input. A shape holds ints, -1 or ranges such as "2..5"; None is a dynamic rank."""
        name = name or f"in{len(self.parameters)}"
        attrs = {"shape": _dims(shape), "element_type": type}
        layer = self._add("Parameter", "opset1", [], attrs, [type], name, [name])
        self.parameters[name] = Port(layer.id, 0, type)
        return self.parameters[name]

    def const(self, values: Any, type: str | None = None, name: str | None = None) -> Port:
        """Add a constant from anything numpy understands; `type` converts it and packs sub-byte types."""
        type = type or name_of(np.asarray(values).dtype)
        array = as_logical(values, type)
        return self.raw_const(pack(array, type), type, array.shape, name)

    def raw_const(self, data: bytes, type: str, shape: Sequence[int], name: str | None = None) -> Port:
        """Add a constant given by its bytes in the .bin, which are not checked."""
        attrs = {"element_type": type, "shape": ",".join(map(str, shape))}
        layer = self._add("Const", "opset1", [], attrs, [type], name)
        layer.data = bytes(data)
        return Port(layer.id, 0, type)

    def layer(
        self,
        type: str,
        version: str,
        inputs: Iterable[Port],
        attrs: Mapping[str, Any] | None = None,
        outputs: int | Sequence[str] = 1,
        name: str | None = None,
        names: Sequence[str] = (),
    ) -> Any:
        """Add an operation; return its output Port, or a tuple of Ports unless there is exactly one.

        `outputs` is the number of outputs or their element types (by default that of the first input);
        `names` are tensor names of the first output.
        """
        inputs = list(inputs)
        types = [inputs[0].type if inputs else "f32"] * outputs if isinstance(outputs, int) else list(outputs)
        return _ports(self._add(type, version, inputs, dict(attrs or {}), types, name, list(names)))

    def result(self, value: Port, name: str | None = None) -> Port:
        """Add a model output; the Port stands for the Result layer in `take` and back edges."""
        return Port(self._add("Result", "opset1", [value], {}, [], name).id, 0, value.type)

    def read_value(
        self, variable: str, type: str, shape: Dims = None, init: Port | None = None, version: str = "opset6"
    ) -> Port:
        """Add a ReadValue of a variable; with version opset3 the layer itself states neither type nor shape."""
        attrs: dict[str, Any] = {"variable_id": variable}
        if version != "opset3":
            attrs |= {"variable_type": type, "variable_shape": _dims(shape)}
        port: Port = self.layer("ReadValue", version, [] if init is None else [init], attrs, [type])
        return port

    def assign(self, variable: str, value: Port, version: str = "opset6") -> Port:
        """Add an Assign to a variable; its output is the assigned value."""
        port: Port = self.layer("Assign", version, [value], {"variable_id": variable})
        return port

    def tensor_iterator(
        self,
        body: Net,
        inputs: Sequence[Link],
        outputs: Sequence[Link],
        back_edges: Sequence[tuple[Port, Port]] = (),
        name: str | None = None,
    ) -> Any:
        """Add a TensorIterator-1; a back edge is (result of the body, parameter of the body)."""
        return self._loop("TensorIterator", "opset1", [], body, inputs, outputs, back_edges, name)

    def loop(
        self,
        trip_count: Port,
        condition: Port,
        body: Net,
        inputs: Sequence[Link],
        outputs: Sequence[Link],
        back_edges: Sequence[tuple[Port, Port]] = (),
        *,
        body_condition: Port | None = None,
        iteration: Port | None = None,
        name: str | None = None,
    ) -> Any:
        """Add a Loop-5; `body_condition` is a result of the body, `iteration` a parameter of it."""
        return self._loop(
            "Loop",
            "opset5",
            [trip_count, condition],
            body,
            inputs,
            outputs,
            back_edges,
            name,
            iteration,
            body_condition,
        )

    def if_(
        self,
        condition: Port,
        then_body: Net,
        else_body: Net,
        inputs: Sequence[tuple[Port, Port | None, Port | None]],
        outputs: Sequence[tuple[Port, Port]],
        name: str | None = None,
    ) -> Any:
        """Add an If-8: inputs (outer value, then parameter, else parameter), None where a branch does not take
        it; outputs (then result, else result)."""
        outer = [condition, *(value for value, _, _ in inputs)]
        layer = self._add("If", "opset8", outer, {}, [then.type for then, _ in outputs], name)
        for branch, (tag, body) in enumerate((("then", then_body), ("else", else_body))):
            layer.bodies[f"{tag}_body"] = body
            layer.maps[f"{tag}_port_map"] = Maps(
                [(1 + i, inner, {}) for i, entry in enumerate(inputs) if (inner := entry[1 + branch]) is not None],
                [(i, pair[branch], {}) for i, pair in enumerate(outputs)],
            )
        return _ports(layer)

    def layers(self) -> Iterator[tuple[str, str]]:
        """Yield (type, version) of every layer, those of bodies included."""
        for layer in self.nodes:
            yield layer.type, layer.version
            for body in layer.bodies.values():
                yield from body.layers()

    def build(self, variant: Variant = "static") -> tuple[bytes, bytes]:
        """Return the XML and the weights.

        "dynamic" declares all dims of all parameters -1, "rankless" their ranks too; bodies stay as written.
        """
        weights = bytearray()
        text = self._write(f'net name={quoteattr(self.name)} version="11"', weights, variant)
        return f'<?xml version="1.0"?>\n{text}\n'.encode(), bytes(weights)

    def _add(
        self,
        type: str,
        version: str,
        inputs: list[Port],
        attrs: dict[str, Any],
        outputs: list[str],
        name: str | None,
        names: Sequence[str] = (),
    ) -> Layer:
        number = len(self.nodes)
        layer = Layer(number, name or f"{type}_{number}", type, version, attrs, inputs, outputs, list(names))
        self.nodes.append(layer)
        return layer

    def _loop(
        self,
        type: str,
        version: str,
        first: list[Port],
        body: Net,
        inputs: Sequence[Link],
        outputs: Sequence[Link],
        back_edges: Sequence[tuple[Port, Port]],
        name: str | None,
        iteration: Port | None = None,
        condition: Port | None = None,
    ) -> Any:
        outer = [*first, *(link.outer for link in inputs if link.outer is not None)]
        layer = self._add(type, version, outer, {}, [link.inner.type for link in outputs], name)
        layer.bodies["body"] = body
        layer.maps["port_map"] = Maps(
            [(len(first) + i, link.inner, link.attrs) for i, link in enumerate(inputs)],
            [(i, link.inner, link.attrs) for i, link in enumerate(outputs)],
            back_edges,
            iteration,
            condition,
        )
        return _ports(layer)

    def _write(self, tag: str, weights: bytearray, variant: Variant) -> str:
        layers, edges = [], []
        for layer in self.nodes:
            layers.append(self._write_layer(layer, weights, variant))
            for i, port in enumerate(layer.inputs):
                source = len(self.nodes[port.layer].inputs) + port.index
                edges.append(
                    _tag("edge", **{"from-layer": port.layer, "from-port": source, "to-layer": layer.id, "to-port": i})
                )
        return _element(tag, [_element("layers", layers), _element("edges", edges)])

    def _write_layer(self, layer: Layer, weights: bytearray, variant: Variant) -> str:
        attrs = dict(layer.attrs)
        if layer.type == "Parameter" and variant == "rankless":
            attrs["shape"] = "..."
        elif layer.type == "Parameter" and variant == "dynamic" and attrs["shape"] not in ("", "..."):
            attrs["shape"] = ",".join("?" for _ in attrs["shape"].split(","))
        if layer.data is not None:
            attrs |= {"offset": len(weights), "size": len(layer.data)}
            weights += layer.data
        ports = [_port(i, port.type) for i, port in enumerate(layer.inputs)]
        outs = [_port(len(ports) + i, type, () if i else layer.names) for i, type in enumerate(layer.outputs)]
        parts = [_tag("data", **attrs)] if attrs else []
        parts += [line for tag, maps in layer.maps.items() for line in maps.write(tag, len(ports))]
        parts += [_element("input", ports)] if ports else []
        parts += [_element("output", outs)] if outs else []
        parts += [body._write(tag, weights, "static") for tag, body in layer.bodies.items()]
        head = f'layer id="{layer.id}" name={quoteattr(layer.name)} type={quoteattr(layer.type)}'
        return _element(f"{head} version={quoteattr(layer.version)}", parts)


def _ports(layer: Layer) -> Any:
    ports = tuple(Port(layer.id, i, type) for i, type in enumerate(layer.outputs))
    return ports[0] if len(ports) == 1 else ports


def _dims(shape: Dims) -> str:
    if shape is None or isinstance(shape, str):
        return "..." if shape is None else shape
    return ",".join("?" if dim == -1 else str(dim) for dim in shape)


def _port(number: int, type: str, names: Sequence[str] = ()) -> str:
    precision = ELEMENTS[type].precision if type in ELEMENTS else "UNSPECIFIED"  # of a dynamic type
    return _tag("port", id=number, precision=precision, **({"names": names} if names else {}))


def _map(kind: str, port: int, inner: Port, **attrs: Any) -> str:
    return _tag(kind, external_port_id=port, internal_layer_id=inner.layer, **attrs)


def _value(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, list | tuple | np.ndarray):
        return ",".join(_value(v) for v in value)
    return repr(float(value)) if isinstance(value, float) else str(value)


def _tag(tag: str, **attrs: Any) -> str:
    return f"<{tag} " + " ".join(f"{key}={quoteattr(_value(value))}" for key, value in attrs.items()) + "/>"


def _element(head: str, children: Iterable[str]) -> str:
    lines = [line for child in children for line in child.split("\n")]
    return f"<{head}>\n" + "".join(f"  {line}\n" for line in lines) + f"</{head.split(' ')[0]}>"
