"""Method `Model.evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ovgpu.api.core import Core
from ovgpu.errors import Error
from ovgpu.model import Model
from ovgpu.tensor import Tensor
from ovgpu.types import PartialShape


def evaluate(
    self: Model, output_tensors: Sequence[Tensor], input_tensors: Sequence[Tensor], evaluation_context: Any = None
) -> bool:
    """Run the model with NumPy on tensors, one for each input, and copy the results into tensors, one for each output.

    Return True. Raises: RuntimeError for a wrong number of inputs, or wrong types or shapes; IndexError if an output
    has no tensor.
    """
    if len(input_tensors) != len(self.parameters):
        raise Error(f"Cannot evaluate model! It has {len(self.parameters)} inputs, got {len(input_tensors)} tensors")
    for index, (port, tensor) in enumerate(zip(self.inputs, input_tensors)):
        if not port.partial_shape.compatible(PartialShape(tensor.shape)):
            raise Error(f"Cannot evaluate model! Input {index} has the shape {port.partial_shape}, not {tensor.shape}")
    if len(output_tensors) < len(self.results):
        raise IndexError(f"the model has {len(self.results)} outputs, got {len(output_tensors)} tensors")
    request = Core().compile_model(self, "CPU").create_infer_request()
    request.infer(dict(enumerate(input_tensors)))
    for index in range(len(self.results)):
        output_tensors[index].copy_from(request.get_output_tensor(index))
    return True


Model.evaluate = evaluate
