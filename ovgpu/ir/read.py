"""Reader of OpenVINO IR, versions 10 and 11: an .xml file with the graph, a .bin file with the constants.

Everything in a file is checked before it is used. Invalid contents raise an `ovgpu.errors.Error` that names
the op, the layer and the file. Constants are views of the memory-mapped .bin.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ovgpu.errors import ModelError, OpError
from ovgpu.ir._bodies import NumberedModel, if_attributes, loop_attributes
from ovgpu.ir._constants import Weights
from ovgpu.ir._files import document
from ovgpu.ir._layers import Layer, integer, model_rt_info, read_rt_info, split_names
from ovgpu.ir._variables import check_values, check_variables
from ovgpu.ir._xml import Element, parse
from ovgpu.model import Model, Node, Output, RTMap
from ovgpu.ops import Op, lookup, registry
from ovgpu.ops.base.op import build, declared
from ovgpu.ops.base.unsupported import Unsupported
from ovgpu.ops.infrastructure.graph import Constant, Parameter
from ovgpu.types import Type

VERSIONS = ("10", "11")
ROOT_TYPES = ("Parameter", "Result", "Assign")
REQUIRED_TYPES = (*ROOT_TYPES, "ReadValue")
CONSTANT_TYPES = ("Const", "Constant")

# Ops that opset1 lacks although files declare them in it, and extensions that a later opset includes.
ADDED_IN_OPSET2 = {"MVN", "ROIPooling", "ReorgYolo"}
FORMER_EXTENSIONS = {
    "ExperimentalDetectronDetectionOutput",
    "ExperimentalDetectronGenerateProposalsSingleImage",
    "ExperimentalDetectronPriorGridGenerator",
    "ExperimentalDetectronROIFeatureExtractor",
    "ExperimentalDetectronTopKROIs",
    "GRUCell",
    "RNNCell",
    "Proposal",
}


def read_model(model: str | bytes | os.PathLike[str], weights: Any = None) -> Model:
    """Return the model in an IR file. Arguments and errors are those of `ovgpu.read_model`, which also reads other
    formats."""
    loaded = document(model)
    root = parse(loaded.text, loaded.source)
    rt_info_elements = {element.getparent(): element for element in root.iter("rt_info")}
    default_weights = weights is None or (isinstance(weights, str) and not weights)  # OpenVINO's default is ""
    source = loaded.weights if default_weights else _weights(weights)
    file = File(loaded.source, Weights(source, root.find("weights")), rt_info_elements)
    if root.tag != "net":
        raise ModelError(f"the root element is <{root.tag}>, not <net>{file.suffix}")
    if root.get("version") not in VERSIONS:
        raise ModelError(
            f"IR version {root.get('version', 'missing')} is not supported: only "
            f"{' and '.join(VERSIONS)} are; export the original model again{file.suffix}"
        )
    result = _graph(root, file).model
    result.validate_nodes_and_infer_types()
    check_values(result)
    _make_names_unique(result)
    if root.get("version") == "10":
        from ovgpu.ir import _version_10  # imports PrePostProcessor, which few files need

        _version_10.adapt(result, file.suffix)
    else:
        _name_results(result)
    return result


def _weights(weights: Any) -> Any:
    return Path(weights) if isinstance(weights, (str, os.PathLike)) else weights


@dataclass(frozen=True)
class File:
    """IR file that is being read: its name (for messages), weights and <rt_info> elements."""

    source: str
    weights: Weights
    rt_info_elements: dict[Element | None, Element]
    """The <rt_info> of each element that has one; few ports do."""

    @property
    def suffix(self) -> str:
        return f" ({self.source})" if self.source else ""


# ---- graphs


def _graph(root: Element, file: File) -> NumberedModel:
    """Return the graph of a ``<net>`` or a body."""
    layers = _layers(root, file)
    edges = _edges(root, layers, file)
    nodes: dict[str, Node] = {}
    for layer in _reachable_layers(layers, edges):
        nodes[layer.id] = _node(layer, file)
    for name, node in nodes.items():
        for port, (producer, output) in edges[name].items():
            node.sources[port] = nodes[producer].ports[output]
        if None in node.sources:
            raise layers[name].error(f"input {node.sources.index(None)} is not connected")
    parameters, results, sinks = ([n for n in nodes if layers[n].type == root_type] for root_type in ROOT_TYPES)
    model = Model(
        [nodes[n] for n in results],
        [nodes[n] for n in sinks],
        [nodes[n] for n in parameters],
        root.get("name") or "",
        source=file.source,
    )
    model.rt_info = RTMap(model_rt_info(root))
    check_variables(model)
    return NumberedModel(model, {n: i for i, n in enumerate(parameters)}, {n: i for i, n in enumerate(results)})


def _layers(root: Element, file: File) -> dict[str, Layer]:
    container = root.find("layers")
    if container is None:
        raise ModelError(f"<{root.tag}> has no <layers>{file.suffix}")
    layers: dict[str, Layer] = {}
    for element in container.iterfind("layer"):
        layer = Layer(element, file.source)
        if layer.id in layers:
            raise layer.error(f"layer '{layers[layer.id].name}' has the same id")
        layers[layer.id] = layer
    return layers


Edges = dict[str, dict[int, tuple[str, int]]]  # layer id -> input index -> (layer id, output index) of its producer


def _edges(root: Element, layers: dict[str, Layer], file: File) -> Edges:
    edges: Edges = {name: {} for name in layers}
    for edge in root.iterfind("edges/edge"):
        ends = [edge.get(a) for a in ("from-layer", "from-port", "to-layer", "to-port")]
        start, start_port, end, end_port = ends
        if start is None or start_port is None or end is None or end_port is None:
            raise ModelError(f"an edge lacks from-layer, from-port, to-layer or to-port{file.suffix}")
        if start not in layers or end not in layers:
            missing = start if start not in layers else end
            raise ModelError(
                f"an edge leads from layer {start} to layer {end}, but there is no layer {missing}{file.suffix}"
            )
        source, target = layers[start], layers[end]
        if start_port not in source.outputs:
            raise source.error(f"an edge leaves output port {start_port}, which the layer does not have")
        if end_port not in target.inputs:
            raise target.error(f"an edge leads to input port {end_port}, which the layer does not have")
        port = target.inputs[end_port]
        if port in edges[end]:
            raise target.error(f"two edges lead to input port {end_port}")
        edges[end][port] = (start, source.outputs[start_port])
    return edges


def _reachable_layers(layers: dict[str, Layer], edges: Edges) -> list[Layer]:
    """Return the parameters, results and Assigns, and all layers they depend on, in the order of the file."""
    worklist = [name for name, layer in layers.items() if layer.type in ROOT_TYPES]
    reachable = set(worklist)
    while worklist:
        for name, _ in edges[worklist.pop()].values():
            if name not in reachable:
                reachable.add(name)
                worklist.append(name)
    return [layer for name, layer in layers.items() if name in reachable]


# ---- nodes


def _node(layer: Layer, file: File) -> Node:
    try:
        op = _operation(layer, file)
    except OpError as e:
        raise e.at(layer.type, layer.source_location) from None
    except (ValueError, TypeError, OverflowError) as e:
        raise layer.error(str(e)) from None
    outputs = max(len(layer.outputs), 1)
    node = Node(op, [None] * len(layer.inputs), outputs, name=layer.name, layer_id=layer.id)
    if not isinstance(op, (Constant, Unsupported)):
        known = declared(type(op))
        node.extra = {name: text for name, text in layer.texts.items() if name not in known}
    if layer.rt_info:
        node.rt_info = RTMap(layer.rt_info)
    for output, port in zip(node.ports, layer.output_ports):
        output.set_names(split_names(port.get("names", "")))
        if port in file.rt_info_elements:
            output.rt_info = RTMap(read_rt_info(file.rt_info_elements[port]))
    for index, port in enumerate(layer.input_ports):
        if port in file.rt_info_elements:
            node.input_rt_info[index] = RTMap(read_rt_info(file.rt_info_elements[port]))
    if layer.type == "Result":
        node.ports[0].set_names(split_names(layer.element.get("output_names", "")))
    return node


def _operation(layer: Layer, file: File) -> Op:
    if layer.type in CONSTANT_TYPES:
        return _constant(layer, file)
    cls = _op_class(layer.type, layer.version)
    texts = layer.texts
    if cls is None and layer.type in REQUIRED_TYPES:
        raise layer.error(f"there is no such operation in {layer.version}")
    if cls is None:
        return Unsupported(
            name=layer.type,
            version=layer.version,
            texts=texts,
            declared=tuple(layer.declared(port) for port in layer.output_ports),
        )
    loaded: dict[str, Any] = {}
    if cls.name in ("TensorIterator", "Loop"):
        loaded = loop_attributes(layer, cls.name, _body(layer, "body", file))
    elif cls.name == "If":
        loaded = if_attributes(layer, _body(layer, "then_body", file), _body(layer, "else_body", file))
    elif cls is Parameter:
        if layer.inputs or len(layer.outputs) > 1:
            raise layer.error("a Parameter has no inputs and one output")
        texts = _declared_attributes(layer)
    return build(cls, texts, **loaded)


def _body(layer: Layer, tag: str, file: File) -> NumberedModel:
    element = layer.element.find(tag)
    if element is None:
        raise layer.error(f"there is no <{tag}>")
    return _graph(element, file)


def _constant(layer: Layer, file: File) -> Op:
    texts = _declared_attributes(layer)
    for name in ("offset", "size"):
        if name not in texts:
            raise OpError(f"attribute '{name}' is missing")
    shape = tuple(integer(part) for part in texts["shape"].split(",") if part.strip())
    if any(extent < 0 for extent in shape):
        raise OpError(f"shape {list(shape)} has a negative extent")
    return file.weights.constant(
        layer.name, Type.parse(texts["element_type"]), shape, integer(texts["offset"]), integer(texts["size"])
    )


def _declared_attributes(layer: Layer) -> dict[str, str]:
    """Return the attributes of a Parameter or Const. Old files declare shape and type at the output port only."""
    texts = dict(layer.texts)
    ports = layer.output_ports
    if ports and "shape" not in texts:
        texts["shape"] = ",".join((dim.text or "").strip() for dim in ports[0].iterfind("dim"))
    if ports and "element_type" not in texts and "precision" in ports[0].attrib:
        texts["element_type"] = ports[0].get("precision", "")
    for name in ("shape", "element_type"):
        if name not in texts:
            raise OpError(f"attribute '{name}' is missing")
    return texts


def _op_class(name: str, version: str) -> type[Op] | None:
    """Return the op class of a layer type, or None. If the type is unknown, its letter case is ignored."""
    if name in FORMER_EXTENSIONS and version in ("experimental", "extension"):
        version = "opset6"
    elif name in ADDED_IN_OPSET2 and version == "opset1":
        version = "opset2"
    elif version == "opset0":
        version = "opset1"
    return lookup(name, version) or lookup(_types_by_lower_case(len(list(registry()))).get(name.lower(), name), version)


@cache
def _types_by_lower_case(count: int) -> dict[str, str]:
    """Return a dict from lower-case to registered names. ``count`` (of registered ops) invalidates the cache."""
    return {name.lower(): name for cls in registry() for name in (cls.name, *cls.aliases)}


# ---- after inference


def _make_names_unique(model: Model) -> None:
    """Append a number to each name that an earlier input or output has, too, as OpenVINO does."""
    owners: dict[str, Output] = {}
    for port in (*model.inputs, *model.outputs):
        tensor, names = port.tensor_port, set()
        for name in sorted(tensor.own_names):
            suffix, unique = 0, name
            while owners.setdefault(unique, tensor) is not tensor:
                suffix += 1
                unique = f"{name}_{suffix}"
            names.add(unique)
        if names != tensor.own_names:
            tensor.set_names(())
            port.set_names(names)


def _name_results(model: Model) -> None:
    """Move the names of a tensor to the unnamed outputs that read it, unless the tensor is an input."""
    moved: dict[Output, set[str]] = {}
    for result in model.results:
        port, source = result.ports[0], result.ports[0].tensor_port
        if not port.own_names and source.node.op.name != "Parameter":
            names = moved.setdefault(source, set(source.own_names))
            port.set_names(names)
    for source in moved:
        source.set_names(())
