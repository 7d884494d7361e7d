"""Inputs and outputs of an IR of version 10, as OpenVINO gives them to programs.

These files were written for an interface of few element types, which addressed inputs and outputs by the names of
layers. OpenVINO adds conversions and names when it reads them (`update_v10_model` in its model_reader.cpp).
"""

from __future__ import annotations

from ovgpu.errors import ModelError
from ovgpu.model import Model, Output
from ovgpu.preprocess import PrePostProcessor
from ovgpu.types import Type

INTEGERS = (Type.i32, Type.i64, Type.u32, Type.u64)
ADVICE = "Export the original model again, to an IR of version 11."


def adapt(model: Model, suffix: str) -> None:
    """Let f16 inputs take f32. Convert outputs of a type in `INTEGERS` to i32, and all others to f32. Add the names of
    layers to inputs and outputs. Raises ModelError if two tensors have the same name."""
    _add_names(model, suffix)
    processor = PrePostProcessor(model)
    for index, port in enumerate(model.inputs):
        if port.element_type == Type.f16:
            processor.input(index).tensor().set_element_type(Type.f32)
    for index, port in enumerate(model.outputs):
        processor.output(index).tensor().set_element_type(Type.i32 if port.element_type in INTEGERS else Type.f32)
    sources = [result.sources[0] for result in model.results]
    processor.build()
    for result, source in zip(model.results, sources, strict=True):
        converted = result.sources[0]
        if source is None or converted is None or converted is source or source.node.op.name == "Parameter":
            continue
        if len(source.node.ports) == 1:
            name = converted.node.friendly_name = source.node.friendly_name  # programs ask for outputs by it
            source.node.friendly_name = f"{name}/{source.node.op.name}"


def _add_names(model: Model, suffix: str) -> None:
    """Add the names of layers to inputs and outputs. Raise ModelError if two tensors have the same name."""
    owners: dict[str, Output | None] = {}
    for port in (*model.inputs, *model.outputs):
        for name in sorted(port.get_names()):
            if owners.setdefault(name, port) is not port:
                raise ModelError(
                    f"two inputs or outputs are called '{name}', which IR 10 does not allow{suffix}. {ADVICE}"
                )
    ports = [(_layer_name(result.ports[0]), result.ports[0]) for result in model.results]
    ports += [(parameter.friendly_name, parameter.ports[0]) for parameter in model.parameters]
    for name, port in ports:
        if name in owners and name not in port.get_names():
            raise ModelError(f"'{name}' is the name of a layer and of another tensor{suffix}. {ADVICE}")
        owners.setdefault(name, None)
        port.tensor_port.add_names({name})


def _layer_name(result: Output) -> str:
    """Return the name of the layer that a Result reads, with the index of the output if it has several."""
    port = result.tensor_port
    name = port.node.friendly_name
    return name if len(port.node.ports) == 1 else f"{name}.{port.index}"
