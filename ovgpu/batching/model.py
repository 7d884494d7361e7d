"""Models whose inputs, states and outputs have a batch axis, so that one inference runs many independent rows.

A model for one row, such as a streaming model exported with batch 1, is rewritten: the batch axis becomes dynamic in
inputs, variables, and in target shapes that have the 1 as a constant. Models that mix rows are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ovgpu.batching.axes import BatchAxis
from ovgpu.batching.proof import ALL_DIFFER, Proof, dynamic_dims, equalities_of, reads
from ovgpu.errors import Error, OpError
from ovgpu.model import Model, Node, Output
from ovgpu.ops.infrastructure.state import ReadValue3, ReadValue6
from ovgpu.ops.movement.gather import Gather
from ovgpu.passes.relax_shapes import relax_shapes
from ovgpu.types import Dimension, PartialShape


class BatchedModel:
    """Model with a dynamic batch, and its batch axes.

    ``inputs`` and ``outputs`` hold one batch axis for each input and output in order, ``variables`` maps ids to batch
    axes. An input whose axis is None has one value for all rows. ``beams`` is the index of the input that selects, for
    beam search, the row of the states that each row continues; None if there is no such input.
    """

    def __init__(
        self, model: Model, inputs: tuple[int | None, ...], variables: dict[str, int], beams: int | None, proof: Proof
    ) -> None:
        self.model, self.inputs, self.variables, self.beams = model, inputs, variables, beams
        self.outputs = proof.outputs()
        self.dims = dynamic_dims(model, inputs, variables)
        self.decode_strings: bool | None = True  # how requests return strings, see `InferRequest.infer`
        self._lock = threading.Lock()
        self._proofs = {proof.equalities: proof.conditions()}

    def check(self, extents: Sequence[int]) -> None:
        """Check that rows are independent of each other in an inference with these extents of `dims`.

        A proof holds for all extents, or only if the same extents are equal as in the proof. In the second case, the
        proof is repeated once for each other set of equalities.

        Raises: OpError that names the layer that mixes rows.
        """
        if not extents:
            return
        conditions = self._proofs.get(ALL_DIFFER)
        if conditions is None:
            equalities = equalities_of(extents)
            with self._lock:
                if equalities not in self._proofs:
                    proof = Proof(self.model.clone(), self.inputs, self.variables, self.beams, equalities)
                    if not proof.run() or proof.changed_axes():
                        raise OpError("the batch of the model depends on the shapes of its inputs")
                    self._proofs[equalities] = proof.conditions()
                conditions = self._proofs[equalities]
        if not conditions(extents):
            raise OpError("the shapes of the inputs do not fit each other: a layer would read the mask of another row")


def batched(model: Model, axes: Mapping[Any, int | None] | None = None) -> BatchedModel:
    """Return a copy of a model with a dynamic batch, after proving that it computes each row from that row alone.

    ``axes`` maps inputs, by name or index, to batch axes, or to None if all rows share the input. By default, the batch
    axis is the axis N of an input's layout, or else the first axis of extent 1 or of dynamic extent.

    Raises: OpError that names the layer for a model that mixes rows, Error for a model without a batch.
    """
    model = model.clone()
    relax_shapes(model)
    given = {model.parameters.index(model.input(key).node): axis for key, axis in (axes or {}).items()}
    beams = beams_input(model)
    inputs = [
        0 if i == beams else given[i] if i in given else _input_axis(parameter)
        for i, parameter in enumerate(model.parameters)
    ]
    if all(axis is None for axis in inputs):
        raise Error("no input of the model has an axis for a batch, of extent 1 or dynamic")
    for parameter, axis in zip(model.parameters, inputs):
        if axis is not None:
            op: Any = parameter.op
            _require_axis(parameter, axis)
            parameter.op = replace(op, shape=_dynamic(op.shape, axis))
    first_error: OpError | None = None
    try:
        for variables in _candidates(model):
            dims = dynamic_dims(model, inputs, variables)
            # Some models can only be proven if inputs have equal extents, such as the length of tokens and of their
            # mask. The second attempt takes all extents on the same axis to be equal.
            for equalities in dict.fromkeys((ALL_DIFFER, equalities_of([-1 - axis for _, axis in dims]))):
                try:
                    return _proven(model.clone(), inputs, variables, beams, equalities)
                except OpError as error:
                    first_error = first_error or error
        assert first_error is not None
        raise first_error
    finally:
        del first_error  # it refers to this frame: the cycle would keep the model until the garbage is collected


def _require_axis(parameter: Node, axis: int) -> None:
    shape = parameter.ports[0].partial_shape
    if not 0 <= axis < len(shape) or (shape[axis].is_static and shape[axis].get_length() != 1):
        raise Error(
            f"input '{parameter.friendly_name}' of shape {shape} has no axis {axis} for a batch, of extent 1 or dynamic"
        )


def _input_axis(parameter: Node) -> int | None:
    """Return the axis N of an input's layout, or its first axis of extent 1 or dynamic extent, or None."""
    layout, shape = parameter.get_layout(), parameter.ports[0].partial_shape
    if shape.rank.is_dynamic:
        raise Error(f"input '{parameter.friendly_name}' has a dynamic rank: set its shape before batching")
    if layout.has_name("N"):
        axis: int = layout.get_index_by_name("N")
        return axis
    return next(_free_axes(shape), None)


def _free_axes(shape: PartialShape) -> Iterator[int]:
    """Yield the axes of extent 1 or of dynamic extent."""
    for axis, extent in enumerate(shape):
        if extent.is_dynamic or extent.get_length() == 1:
            yield axis


def _dynamic(shape: PartialShape, axis: int) -> PartialShape:
    relaxed = PartialShape(shape)
    relaxed[axis] = Dimension(1, -1)
    return relaxed


def beams_input(model: Model) -> int | None:
    """Return the index of the input that only selects rows of states, as the beams of a decoder do, or None."""
    for index, parameter in enumerate(model.parameters):
        users = [node for node in model.ops if parameter.ports[0] in node.sources and node.op.name != "ShapeOf"]
        if users and all(_reads_beams(node, parameter.ports[0]) for node in users):
            return index
    return None


def _reads_beams(node: Node, beams: Output) -> bool:
    """Return whether a node gathers rows of a state along its first axis, by the indices ``beams``."""
    if not isinstance(node.op, Gather) or node.sources[1] is not beams or beams.spec.rank != 1:
        return False
    state, axis = node.sources[0], node.sources[2]
    first = axis is not None and axis.spec.constant is not None and axis.spec.constant.item() == 0
    return first and state is not None and state is not beams and state.node.op.name == "ReadValue"


def _candidates(model: Model) -> Iterator[dict[str, int]]:
    """Yield possible batch axes of the variables, by id: the first free axis of each variable, then the second ..."""
    free: dict[str, list[int]] = {}
    for name, node in reads(model).items():
        shape = node.ports[0].partial_shape
        if shape.rank.is_dynamic:
            raise OpError(f"variable '{name}' has a dynamic rank").at(node.op.name, node.source_location)
        free[name] = list(_free_axes(shape))
        if not free[name]:
            raise OpError(f"variable '{name}' of shape {shape} has no axis for a batch, of extent 1 or dynamic").at(
                node.op.name, node.source_location
            )
    for choice in range(max(map(len, free.values()), default=1)):
        yield {name: axes[min(choice, len(axes) - 1)] for name, axes in free.items()}


def _proven(
    model: Model,
    inputs: Sequence[int | None],
    variables: dict[str, int],
    beams: int | None,
    equalities: tuple[int, ...],
) -> BatchedModel:
    """Return the model with a dynamic batch.

    If a variable is assigned values with another batch axis than ``variables`` has, that axis replaces it, and the
    proof is repeated.
    """
    shapes = {name: node.ports[0].partial_shape for name, node in reads(model).items()}
    for _ in range(2 + sum(map(len, shapes.values()))):
        for node in model.ops:
            op: Any = node.op
            if isinstance(op, ReadValue3):
                shape = _dynamic(shapes[op.variable_id], variables[op.variable_id])
                node.op = ReadValue6(
                    variable_id=op.variable_id, variable_type=node.ports[0].element_type, variable_shape=shape
                )
        proof = Proof(model, inputs, variables, beams, equalities)
        while not proof.run():  # a node was rewritten: prove again from the beginning
            pass
        assigned = proof.changed_axes()
        if not assigned:
            result = BatchedModel(model, tuple(inputs), variables, beams, proof)
            model.validate_nodes_and_infer_types()
            return result
        for name, axis in assigned.items():
            node = next(s for s in model.sinks if s.op.variable_id == name)  # type: ignore[attr-defined]
            if axis is None or axis != BatchAxis(axis.axis) or axis.axis not in list(_free_axes(shapes[name])):
                raise OpError(f"the new value of variable '{name}' is not one value for each row of the batch").at(
                    node.op.name, node.source_location
                )
        variables = {**variables, **{name: axis.axis for name, axis in assigned.items() if axis is not None}}
    raise Error("the model has no consistent batch axes of its variables")
