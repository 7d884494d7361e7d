"""The batch of a model: the dimension N in the layouts of its inputs."""

from __future__ import annotations

from ovgpu._util.openvino_package import owns, required
from ovgpu.errors import Error
from ovgpu.types import Dimension, PartialShape

from .graph import Model
from .node import Node, Output


def get_batch(model: Model) -> Dimension:
    """Return the batch: the dimension N of the inputs' layouts. Raises RuntimeError if none has it or they differ."""
    if owns(model):
        return Dimension(str(required("the model").get_batch(model)))
    batch: Dimension | None = None
    for parameter, axis in _batch_axes(model).items():
        dimension = parameter.get_partial_shape()[axis]
        merged = dimension if batch is None else batch.merge(dimension)
        if merged is None:
            raise RuntimeError(f"the inputs have different batches, {batch} and {dimension}")
        batch = merged
    if batch is None:
        raise RuntimeError("no layout of an input has a batch (N); set one with input.node.set_layout")
    return batch


def set_batch(model: Model, batch_size: int | Dimension = -1) -> None:
    """Reshape the inputs so that the dimension N of their layouts is ``batch_size``.

    Raises: RuntimeError if no layout has an N or the model cannot have that batch; it is then left unchanged.
    """
    if owns(model):
        batch = batch_size if isinstance(batch_size, int) else required("the model").Dimension(str(batch_size))
        required("the model").set_batch(model, batch)
        return
    get_batch(model)
    shapes: dict[Output, PartialShape] = {}
    for parameter, axis in _batch_axes(model).items():
        shape = PartialShape(parameter.get_partial_shape())
        shape[axis] = batch_size
        shapes[parameter.ports[0]] = shape
    try:
        model.reshape(shapes)
    except Error as e:
        raise RuntimeError(
            f"Failed to set batch size to {batch_size}; the layouts of all inputs with a batch must say so: {e}"
        ) from e


def _batch_axes(model: Model) -> dict[Node, int]:
    layouts = {parameter: parameter.get_layout() for parameter in model.parameters}
    return {p: layout.get_index_by_name("N") for p, layout in layouts.items() if layout.has_name("N")}
