"""Writer of OpenVINO IR, version 10 or 11. OpenVINO can read and run the files as well."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ovgpu._util import openvino_package
from ovgpu._util.atomic_file import replacing
from ovgpu.errors import ModelError, OpError
from ovgpu.ir._blobs import Blobs, constant_bytes, f16_bytes, fits_f16
from ovgpu.ir._constants import check_files
from ovgpu.ir._layers import join_names
from ovgpu.ir._xml import Lines
from ovgpu.model import Model, Node, Output, RTMap, all_nodes
from ovgpu.ops.base.unsupported import Unsupported
from ovgpu.ops.infrastructure.control_flow import If, InputMap, Loop, OutputMap, TensorIterator
from ovgpu.ops.infrastructure.graph import Constant
from ovgpu.types import PartialShape, Type
from ovgpu.types.any import text as rt_text

IR_VERSIONS = {"UNSPECIFIED": 11, "IR_V10": 10, "IR_V11": 11}
IR_TYPES = {"Constant": "Const", "PRelu": "PReLU", "Relu": "ReLU", "Softmax": "SoftMax"}
PRECISIONS = {"boolean": "BOOL", "f16": "FP16", "f32": "FP32", "f64": "FP64", "u1": "BIN", "dynamic": "UNSPECIFIED"}
PathLike = str | bytes | os.PathLike[str]
XML_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
LOW_PRECISION = {Type.i4, Type.u4, Type.i8, Type.u8, Type.nf4, Type.f8e4m3, Type.f8e5m2}


def save_model(model: Model, output_model: PathLike, compress_to_fp16: bool = True) -> None:
    """Write ``output_model`` (an .xml file) and the .bin file beside it.

    With ``compress_to_fp16``, floating point constants are stored as f16 and converted back in the graph, as in
    OpenVINO; a quantized model is written unchanged. openvino writes its own models. Raises: ModelError if the files
    cannot be written.
    """
    if openvino_package.owns(model):
        openvino_package.required("the model").save_model(model, output_model, compress_to_fp16)
        return
    _write(model, output_model, "", 11, compress_to_fp16 and not _is_quantized(model))


def serialize(model: Model, xml_path: PathLike, bin_path: PathLike = "", version: str = "UNSPECIFIED") -> None:
    """Write the model unchanged. ``version`` is "IR_V11" (default) or "IR_V10", which has less rt_info.

    openvino writes its own models. Raises: ModelError if the files cannot be written.
    """
    if openvino_package.owns(model):
        openvino_package.required("the model").serialize(model, xml_path, bin_path, version)
        return
    if version not in IR_VERSIONS:
        raise ModelError(f"IR version {version!r} is none of {', '.join(IR_VERSIONS)}")
    _write(model, xml_path, bin_path, IR_VERSIONS[version], False)


def _is_quantized(model: Model) -> bool:
    """Return whether the model has low-precision weights with a scale, or fake quantization."""
    for node in all_nodes(model):
        if node.op.name in ("FakeQuantize", "FakeConvert"):
            return True
        if node.op.name == "Multiply":
            source = node.sources[0].node if node.sources[0] is not None else node
            if source.op.name == "Subtract" and source.sources[0] is not None:
                source = source.sources[0].node
            weights = source.sources[0].node.op if source.op.name == "Convert" and source.sources[0] else None
            if isinstance(weights, Constant) and weights.element_type in LOW_PRECISION:
                return True
    return False


def _write(model: Model, xml_path: Any, bin_path: Any, version: int, compress: bool) -> None:
    xml = Path(os.fsdecode(xml_path))
    if xml.suffix != ".xml":
        raise ModelError(f"a model is written to a path that ends with .xml, not to {xml.name!r}")
    weights = Path(os.fsdecode(bin_path)) if bin_path else xml.with_suffix(".bin")
    if os.path.realpath(xml) == os.path.realpath(weights):
        raise ModelError(f"the .xml and the .bin file of a model are two files, not {str(xml)!r} alone")
    check_files(model)
    try:
        xml.parent.mkdir(parents=True, exist_ok=True)
        # Both files replace the old ones only when they are complete, because the model's constants may be views of
        # the old .bin file. The .xml is replaced first, as its checksum tells whether the .bin file belongs to it.
        with replacing(xml, weights) as (xml_file, bin_file):
            Writer(Lines(xml_file), Blobs(bin_file), version, compress).net(model)
    except OSError as e:
        raise ModelError(f"the model cannot be written: {e.filename or xml}: {e.strerror or e}") from None


# ---- graphs

EDGE_ATTRIBUTES = ("from-layer", "from-port", "to-layer", "to-port")


@dataclass
class NumberedLayers:
    """Layers of a graph: ids by node, and the constants stored as f16, which become two layers: Const and Convert."""

    nodes: list[Node]
    ids: dict[Node, int] = field(default_factory=dict)
    compressed: set[Node] = field(default_factory=set)


@dataclass
class Writer:
    """Writer of one model into an .xml and a .bin file."""

    lines: Lines
    blobs: Blobs
    version: int
    compress: bool

    def net(self, model: Model) -> None:
        """Write the whole .xml file."""
        self.lines.put('<?xml version="1.0"?>')
        with self.lines.element("net", name=model.friendly_name, version=self.version):
            self.graph(model, self.number_layers(model))
            # Not in <rt_info>, which other programs copy when they write the model with other weights.
            size, checksum = self.blobs.write_checksum()
            self.lines.empty("weights", size=size, checksum=checksum)

    def graph(self, model: Model, layers: NumberedLayers) -> None:
        """Write the contents of a ``<net>`` or a body."""
        with self.lines.element("layers"):
            for node in layers.nodes:
                try:
                    self.layer(node, layers)
                except OpError as e:
                    raise e.at(node.op.name, node.source_location) from None
        with self.lines.element("edges"):
            for edge in _edges(layers):
                self.lines.empty("edge", **dict(zip(EDGE_ATTRIBUTES, edge)))
        with self.lines.element("rt_info"):
            self.meta(model.rt_info)

    def number_layers(self, model: Model) -> NumberedLayers:
        """Number the nodes of a graph. A compressed constant has the id of its Convert; its Const has the id before."""
        ends = {*model.parameters, *model.sinks, *model.results}
        inner = [node for node in model.ops if node not in ends]
        layers = NumberedLayers([*model.parameters, *inner, *model.sinks, *model.results])
        next_id = 0
        for node in layers.nodes:
            if self.compress and isinstance(node.op, Constant) and _may_round(node) and fits_f16(node.op):
                layers.compressed.add(node)
                next_id += 1
            layers.ids[node] = next_id
            next_id += 1
        return layers

    def layer(self, node: Node, layers: NumberedLayers) -> None:
        op: Any = node.op
        if "execTimeMcs" in node.rt_info:
            self.execution_layer(node, layers.ids[node])
            return
        if node in layers.compressed:
            self.compressed_constant(node, layers.ids[node])
            return
        version = "opset1" if op.version == "opset0" else op.version  # RNNCell alone has opset0
        attributes = {
            "id": layers.ids[node],
            "name": node.friendly_name,
            "type": IR_TYPES.get(op.name, op.name),
            "version": version,
        }
        if op.name == "Result":
            attributes["output_names"] = join_names(node.ports[0].own_names) or None
        body_layers = {key: self.number_layers(value) for key, value in vars(op).items() if type(value) is Model}
        with self.lines.element("layer", **attributes):
            data = self.data(node)
            if data:
                self.lines.empty("data", **data)
            self.port_maps(op, len(_sources(node)), len(node.ports), body_layers)
            self.rt_info(node.rt_info)
            self.ports(node)
            for key, inner in body_layers.items():
                with self.lines.element(key):
                    self.graph(getattr(op, key), inner)

    def execution_layer(self, node: Node, layer_id: int) -> None:
        """Write a layer of an execution graph as OpenVINO does. Its data are the runtime information."""
        info = {key: rt_text(value) for key, value in node.rt_info.plain().items()}
        with self.lines.element("layer", id=layer_id, name=node.friendly_name, type=info.pop("layerType")):
            self.lines.empty("data", **(self.data(node) if node.op.name == "Parameter" else {}), **info)
            self.ports(node)

    def compressed_constant(self, node: Node, layer_id: int) -> None:
        op: Any = node.op
        port, name = node.ports[0], node.friendly_name
        offset, size = self.blobs.write(f16_bytes(op), 2)
        shape = ", ".join(map(str, op.value.shape))
        compressed_name = f"{name}_compressed"
        with self.lines.element("layer", id=layer_id - 1, name=compressed_name, type="Const", version="opset1"):
            self.lines.empty("data", element_type="f16", shape=shape, offset=offset, size=size)
            with self.lines.element("output"):
                self.port(0, Type.f16, port.partial_shape)
        with self.lines.element("layer", id=layer_id, name=name, type="Convert", version="opset1"):
            self.lines.empty("data", destination_type=op.element_type.type_name)
            self.rt_info(RTMap({**node.rt_info.plain(), "decompression_0": {}}))
            with self.lines.element("input"):
                self.port(0, Type.f16, port.partial_shape)
            with self.lines.element("output"):
                self.output(1, port)

    def data(self, node: Node) -> dict[str, str]:
        """Return the attributes of a node by name, as texts. Write the bytes of a Constant."""
        op: Any = node.op
        if isinstance(op, Unsupported):
            return dict(op.texts)
        if isinstance(op, Constant):
            shape = node.ports[0].get_shape()
            offset, size = self.blobs.write(constant_bytes(op), _alignment(op.element_type))
            return {
                "element_type": op.element_type.type_name,
                "shape": ", ".join(map(str, shape)),
                "offset": str(offset),
                "size": str(size),
            }
        if isinstance(op, (TensorIterator, Loop, If)):
            return node.extra
        known = {name: value for name, value in op.attributes().items() if value is not None}
        return {name: attribute_text(value) for name, value in known.items()} | node.extra

    # ---- ports

    def ports(self, node: Node) -> None:
        op: Any = node.op
        sources = _sources(node)
        if sources:
            with self.lines.element("input"):
                for port_id, source in enumerate(sources):
                    info = node.input_rt_info.get(port_id)
                    self.port(port_id, source.element_type, source.partial_shape, info=info)
        if op.name != "Result":
            with self.lines.element("output"):
                for port_id, port in enumerate(node.ports, start=len(sources)):
                    self.output(port_id, port, rankless="..." if isinstance(op, Unsupported) else None)

    def output(self, port_id: int, port: Output, rankless: str | None = None) -> None:
        names = join_names(port.get_names())
        self.port(port_id, port.element_type, port.partial_shape, names or None, port.rt_info, rankless)

    def port(
        self,
        port_id: int,
        dtype: Type,
        shape: PartialShape,
        names: str | None = None,
        info: RTMap | None = None,
        rankless: str | None = None,
    ) -> None:
        precision = PRECISIONS.get(dtype.type_name, dtype.type_name.upper())
        dims = (
            ([rankless] if rankless else [])
            if shape.rank.is_dynamic
            else [str(d.get_length()) if d.is_static else "-1" for d in shape]
        )
        if not dims and not info:
            self.lines.empty("port", id=port_id, precision=precision, names=names)
            return
        with self.lines.element("port", id=port_id, precision=precision, names=names):
            for dim in dims:
                self.lines.put(f"<dim>{dim}</dim>")
            if info:
                self.rt_info(info)

    # ---- bodies

    def port_maps(self, op: Any, inputs: int, outputs: int, body_layers: dict[str, NumberedLayers]) -> None:
        if isinstance(op, If):
            for branch in ("else", "then"):
                layers, body = body_layers[f"{branch}_body"], getattr(op, f"{branch}_body")
                with self.lines.element(f"{branch}_port_map"):
                    self.map_entries(
                        getattr(op, f"{branch}_inputs"), getattr(op, f"{branch}_outputs"), inputs, body, layers
                    )
        elif isinstance(op, (TensorIterator, Loop)):
            layers, body = body_layers["body"], op.body
            with self.lines.element("port_map"):
                self.map_entries(op.inputs, op.outputs, inputs, body, layers)
                if isinstance(op, Loop):
                    self.special_ports(op, layers)
            with self.lines.element("back_edges"):
                for edge in op.back_edges:
                    ends = layers.ids[body.results[edge.result]], layers.ids[body.parameters[edge.parameter]]
                    self.lines.empty("edge", **{"from-layer": ends[0], "to-layer": ends[1]})

    def map_entries(
        self,
        inputs: Iterable[InputMap],
        outputs: Iterable[OutputMap],
        first_output: int,
        body: Model,
        layers: NumberedLayers,
    ) -> None:
        for entry in inputs:
            self.map_entry("input", entry, entry.port, layers.ids[body.parameters[entry.parameter]])
        for exit in outputs:
            self.map_entry("output", exit, first_output + exit.port, layers.ids[body.results[exit.result]])

    def map_entry(self, tag: str, entry: InputMap | OutputMap, port: int, layer: int) -> None:
        slicing: dict[str, int] = {}
        if entry.axis is not None:
            slicing = {name: getattr(entry, name) for name in ("start", "end", "stride", "part_size")}
        self.lines.empty(tag, axis=entry.axis, external_port_id=port, internal_layer_id=layer, **slicing)

    def special_ports(self, op: Loop, layers: NumberedLayers) -> None:
        if op.current_iteration is not None:
            self.lines.empty(
                "input",
                external_port_id=-1,
                purpose="current_iteration",
                internal_layer_id=layers.ids[op.body.parameters[op.current_iteration]],
            )
        if op.condition is not None:
            self.lines.empty(
                "output",
                external_port_id=-1,
                purpose="execution_condition",
                internal_layer_id=layers.ids[op.body.results[op.condition]],
            )

    # ---- runtime information

    def rt_info(self, info: RTMap) -> None:
        """Write the runtime attributes and user data of a layer or port. Other entries are not written."""
        if self.version < 11:
            return
        attributes: dict[str, dict[str, Any]] = {}
        user: dict[str, Any] = {}
        for key, value in info.plain().items():
            if key.startswith("user_data"):
                user[key.removeprefix("user_data")] = value
            elif isinstance(value, dict) and re.search(r"_\d+$", key):
                attributes[key] = value
        if attributes or user:
            with self.lines.element("rt_info"):
                for key, values in attributes.items():
                    name, version = key.rsplit("_", 1)
                    texts = {attribute: rt_text(value) for attribute, value in values.items()}
                    self.lines.empty("attribute", **{"name": name, "version": version, **texts})
                self.user_data(user)

    def user_data(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, dict):
                with self.lines.element("user_data", name=name):
                    self.user_data(value)
            else:
                self.lines.empty("user_data", name=name, value=rt_text(value))

    def meta(self, info: RTMap) -> None:
        """Write a model's runtime information: nested elements, ``<info name="...">`` if the key is no XML name."""
        for key, value in info.plain().items():
            self.meta_entry(key, value)

    def meta_entry(self, key: str, value: Any) -> None:
        tag, name = (key, None) if XML_NAME.fullmatch(key) else ("info", key)
        if not isinstance(value, dict):
            self.lines.empty(tag, name=name, value=rt_text(value))
        elif value:
            with self.lines.element(tag, name=name):
                for inner, item in value.items():
                    self.meta_entry(inner, item)
        else:
            self.lines.empty(tag, name=name)


def _may_round(node: Node) -> bool:
    info = node.rt_info.plain()  # has OpenVINO's marks (former and current) of nodes that must stay f32
    return "precise_0" not in info and ":f16" not in info.get("DisablePrecisionConversion_0", {}).get("value", "")


def _sources(node: Node) -> list[Output]:
    """Return the inputs without absent ones at the end. Raises OpError if an absent input precedes others."""
    sources = list(node.sources)
    while sources and sources[-1] is None:
        sources.pop()
    if None in sources:
        raise OpError(f"input {sources.index(None)} is absent, which IR cannot express")
    return [source for source in sources if source is not None]


def _edges(layers: NumberedLayers) -> Iterator[tuple[int, int, int, int]]:
    """Yield (from layer, from port, to layer, to port), sorted."""
    edges = [(layer_id - 1, 0, layer_id, 0) for node, layer_id in layers.ids.items() if node in layers.compressed]
    for node in layers.nodes:
        for port, source in enumerate(_sources(node)):
            first = 1 if source.node in layers.compressed else len(_sources(source.node))
            edges.append((layers.ids[source.node], first + source.index, layers.ids[node], port))
    yield from sorted(edges)


def _alignment(dtype: Type) -> int:
    return 4 if dtype is Type.string else max(dtype.size, 1)


def attribute_text(value: Any) -> str:
    """Return an attribute as IR files write it. Raises OpError for a type that they cannot hold."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Type):
        return value.type_name
    if isinstance(value, PartialShape):
        return value.to_string().strip("[]") if value.rank.is_static else "..."
    if isinstance(value, (tuple, list)):
        return ",".join(map(attribute_text, value))
    if isinstance(value, (str, int, float)):
        return str(value)
    raise OpError(f"an attribute of type {type(value).__name__} cannot be written")
