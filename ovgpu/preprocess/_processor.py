"""PrePostProcessor, which inserts the steps into a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ovgpu._util.openvino_package import owns
from ovgpu.interop.names import attribute
from ovgpu.model import Model, Node, Output
from ovgpu.model.ports import find_port
from ovgpu.preprocess import _color, _layouts
from ovgpu.preprocess._color import ColorFormat
from ovgpu.preprocess._graph import NodeFactory
from ovgpu.preprocess._info import InputInfo, InputTensorInfo, OutputInfo
from ovgpu.preprocess._steps import Context, Step, to_element_type, to_layout
from ovgpu.types import Layout, PartialShape

Log = list[str]


class PrePostProcessor:
    """Builder of a model with pre- and postprocessing. `build` changes the given model in place and returns it.

    For a model of openvino, the call returns a `PrePostProcessor` of openvino.
    """

    def __new__(cls, model: Any) -> Any:
        if owns(model):
            return attribute("ovgpu._pyopenvino.preprocess", "PrePostProcessor")(model)
        return super().__new__(cls)

    def __init__(self, model: Model) -> None:
        self._model = model
        self._inputs = [InputInfo() for _ in model.parameters]
        self._outputs = [OutputInfo() for _ in model.results]

    def input(self, key: int | str | None = None) -> InputInfo:
        """Return the input with an index or tensor name; without ``key``, the only input."""
        return self._inputs[self._model.inputs.index(find_port(self._model.inputs, key, "input"))]

    def output(self, key: int | str | None = None) -> OutputInfo:
        """Return the output with an index or tensor name; without ``key``, the only output."""
        return self._outputs[self._model.outputs.index(find_port(self._model.outputs, key, "output"))]

    def build(self) -> Model:
        """Insert all steps. Raises: RuntimeError if they do not fit the model, which is then unchanged."""
        model = self._model
        inputs = {node: list(node.sources) for node in model.ops}
        parameters = model.parameters
        try:
            self._connect_inputs()
            model.validate_nodes_and_infer_types()
            connected = self._connect_outputs()
            model.validate_nodes_and_infer_types()
        except Exception:
            for node, sources in inputs.items():
                node.sources = sources
            model.parameters = parameters
            model.changed()
            model.validate_nodes_and_infer_types()
            raise
        for result, source, layout in connected:
            _rename(model, result, source)
            if not layout.empty:
                result.set_layout(layout)
        return model

    def _connect_inputs(self) -> None:
        parameters: list[Node] = []
        for parameter, info in zip(self._model.parameters, self._inputs, strict=True):
            new_parameters, port = new_input(NodeFactory(), parameter, info, [])
            if (
                new_parameters == [port.node]
                and port.spec.partial_shape == parameter.partial_shape
                and port.element_type == parameter.element_type
            ):  # there are no steps: keep the Parameter
                new_parameters, port = [parameter], parameter.ports[0]
            for node in self._model.ops:
                node.sources = [port if source is parameter.ports[0] else source for source in node.sources]
            parameters += new_parameters
        self._model.parameters = parameters
        self._model.changed()

    def _connect_outputs(self) -> list[tuple[Node, Output, Layout]]:
        """Insert the steps before the results. Return each result, its former input and its new layout."""
        connected = []
        for result, info in zip(self._model.results, self._outputs, strict=True):
            source = result.sources[0]
            assert source is not None
            port, layout = new_output(NodeFactory(), result, info, [])
            result.sources = [port]
            connected.append((result, source, layout))
        self._model.changed()
        return connected

    def __repr__(self) -> str:
        return f"<PrePostProcessor of '{self._model.friendly_name}'>\n{self}"

    def __str__(self) -> str:
        log: Log = []
        try:
            for parameter, info in zip(self._model.parameters, self._inputs, strict=True):
                new_input(NodeFactory(), parameter, info, log)
            for result, output in zip(self._model.results, self._outputs, strict=True):
                new_output(NodeFactory(), result, output, log)
        except RuntimeError as error:
            log += ["", f"Error occurred: {error}"]
        return "\n".join(log)


def new_input(graph: NodeFactory, parameter: Node, info: InputInfo, log: Log) -> tuple[list[Node], Output]:
    """Build an input's steps. Return the new parameters and the tensor that replaces the old one's output."""
    tensor, steps = info.tensor(), info.preprocess()
    dtype, shape = parameter.get_element_type(), parameter.get_partial_shape()
    user_layout, model_layout, user_shape = _user_side(parameter, info)
    planes = []
    for i in range(_color.planes(tensor.color)):
        sub = f"/{tensor.sub_names[i]}" if tensor.sub_names else ""
        port = graph.parameter(
            tensor.element_type or dtype,
            _color.plane_shape(tensor.color, i, user_shape, user_layout),
            parameter.friendly_name + sub,
        )
        if sub or _color.planes(tensor.color) == 1:
            port.set_names(name + sub for name in parameter.ports[0].own_names)
        port.rt_info = parameter.ports[0].rt_info.copy()
        if not user_layout.empty:
            port.node.set_layout(user_layout)
        if tensor.memory_type:
            port.rt_info["memory_type"] = tensor.memory_type
        planes.append(port)
    context = Context(graph, user_layout, model_layout, dtype, shape, tensor.color)
    log += [
        f"Input {_quoted(parameter)}:",
        f"    User's input tensor: {_described(context, planes)}",
        f"    Model's expected tensor: {shape}, {model_layout}, {dtype.get_type_name()}",
    ]
    tensors = _run(steps, context, planes, log)
    if len(tensors) != 1 or context.color not in (
        ColorFormat.UNDEFINED,
        ColorFormat.RGB,
        ColorFormat.BGR,
        ColorFormat.GRAY,
    ):
        raise RuntimeError(
            f"a model takes no images of color format '{context.color.name}': convert them with 'convert_color'"
        )
    tensors = _run(_implicit(context, tensors[0]), context, tensors, log)
    if not tensors[0].partial_shape.compatible(shape):
        raise RuntimeError(
            f"Resulting shape '{tensors[0].partial_shape}' after preprocessing is not aligned with "
            f"original parameter's shape: {shape}, input parameter: {parameter.friendly_name}"
        )
    return [port.node for port in planes], tensors[0]


def _user_side(parameter: Node, info: InputInfo) -> tuple[Layout, Layout, PartialShape]:
    """Return the layouts of the user's and the model's tensor, and the shape of the user's tensor."""
    tensor, steps = info.tensor(), info.preprocess()
    layout = tensor.layout or _color.default_layout(tensor.color)
    model_layout = info.model().layout or parameter.get_layout()
    if model_layout.empty and tensor.layout is not None:
        model_layout = steps.forward_layout(layout)
    shape = parameter.get_partial_shape()
    if not layout.empty and not model_layout.empty and layout != model_layout:
        squeezed_layout, shape = _layouts.squeezed(model_layout, shape, layout)
        rank = None if shape.rank.is_dynamic else len(shape)
        order = _layouts.permutation(squeezed_layout, rank, layout)
        if order is not None and rank is not None:
            shape = _layouts.transposed(shape, order)
    else:
        shape, converted_back = steps.backward(tensor.shape or shape, model_layout)
        layout = converted_back if layout.empty else layout
    return layout, model_layout, _user_shape(tensor, layout, shape)


def _user_shape(tensor: InputTensorInfo, layout: Layout, shape: PartialShape) -> PartialShape:
    """Return ``shape``, replaced by the shape that the user has set, or with the user's height and width."""
    if tensor.shape is not None:
        return tensor.shape
    if tensor.spatial is None:
        return shape
    dims: list[Any] = list(shape)
    for name, extent in zip("HW", tensor.spatial):
        dims[_layouts.axis(layout, name, shape)] = extent
    return PartialShape(dims)


def new_output(graph: NodeFactory, result: Node, info: OutputInfo, log: Log) -> tuple[Output, Layout]:
    """Build an output's steps. Return the new input of the result and its layout."""
    tensor, source = info.tensor(), result.sources[0]
    assert source is not None
    context = Context(
        graph,
        info.model().layout or result.get_layout(),
        tensor.layout or Layout(),
        tensor.element_type or source.element_type,
    )
    log += [f"Output {_quoted(result)}:", f"    Model's data tensor: {_described(context, [source])}"]
    tensors = _run(info.postprocess(), context, [source], log)
    if tensor.element_type is None:
        context.target_type = tensors[0].element_type
    tensors = _run(_implicit(context, tensors[0]), context, tensors, log)
    log.append(f"    User's output tensor: {_described(context, tensors)}")
    return tensors[0], context.layout


def _implicit(context: Context, x: Output) -> list[Step]:
    """Return the steps that convert a tensor to the target's element type and layout, if they differ."""
    steps = []
    if x.element_type != context.target_type:
        name = f"convert type ({context.target_type.get_type_name()})"
        steps.append(Step(name, lambda context, planes: [to_element_type(context, planes[0], context.target_type)]))
    if not context.target_layout.empty and context.target_layout != context.layout:
        name = f"convert layout {context.target_layout}"
        steps.append(Step(name, lambda context, planes: [to_layout(context, planes[0], context.target_layout)]))
    return steps


def _run(steps: Iterable[Step], context: Context, planes: Sequence[Output], log: Log) -> list[Output]:
    tensors = list(planes)
    for step in steps:
        before = _described(context, tensors)
        tensors = step.run(context, tensors)
        log.append(f"      {step.name}: ({before}) -> ({_described(context, tensors)})")
    return tensors


def _rename(model: Model, result: Node, source: Output) -> None:
    """Give the names of ``source``, a result's former input, to its current input. Name the input's node after it."""
    port = result.sources[0]
    if port is None or port is source:
        return
    port.add_names(source.own_names)
    port.node.friendly_name = f"{source.node.friendly_name}.{source.index}"
    if source.node.op.name != "Parameter" and not any(r.sources[0] is source for r in model.results):
        source.set_names(())


def _quoted(node: Node) -> str:
    names: Any = node.ports[0].get_names()
    return f'"{min(names)}"' if names else f"'{node.friendly_name}'"


def _described(context: Context, planes: Sequence[Output]) -> str:
    color = "" if context.color == ColorFormat.UNDEFINED else f", {context.color.name}"
    return "; ".join(f"{p.partial_shape}, {context.layout}, {p.element_type.get_type_name()}" for p in planes) + color
