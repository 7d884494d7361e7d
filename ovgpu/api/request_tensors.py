"""Access to the tensors of a request by port, name or number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ovgpu._util.unpicklable import Unpicklable
from ovgpu.api.compilation import Compilation
from ovgpu.model import Output
from ovgpu.request.inputs import InputSlot
from ovgpu.request.outputs import OutputSlot
from ovgpu.request.ports import ConstOutput
from ovgpu.tensor import Tensor


class RequestTensors(Unpicklable):
    """Base class of `InferRequest` with the access to its tensors. RuntimeError while an inference is running."""

    _compilation: Compilation
    _inputs: list[InputSlot]
    _outputs: list[OutputSlot]

    def _check_idle(self) -> None:
        raise NotImplementedError

    def get_tensor(self, name_or_port: Any) -> Tensor:
        """Return the tensor of an input or output by port or tensor name: the object that inferences read or write."""
        return self._slot(name_or_port).tensor

    def set_tensor(self, name_or_port: Any, tensor: Tensor) -> None:
        """Bind a tensor to an input or output, given by port or tensor name.

        An inference writes directly to an output's tensor, which takes the shape of the result.
        """
        self._slot(name_or_port).bind(_tensor(tensor))

    def set_tensors(self, tensors: Mapping[Any, Tensor]) -> None:
        """Call `set_tensor` for every name, port or number (of an input) in the dict."""
        for key, tensor in tensors.items():
            (self._inputs[self._compilation.inputs.number(key)] if isinstance(key, int) else self._slot(key)).bind(
                _tensor(tensor)
            )

    def _slot(self, key: Any) -> InputSlot | OutputSlot:
        self._check_idle()
        inputs, outputs = self._compilation.inputs, self._compilation.outputs
        if not isinstance(key, (str, Output)):
            raise TypeError(f"a tensor is found by port or name, got {type(key).__name__}")
        number = inputs.find(key)
        if number is not None:
            return self._inputs[number]
        number = outputs.find(key)
        if number is None:
            description = f"tensor name {key}" if isinstance(key, str) else repr(key)
            raise RuntimeError(f"Port for {description} was not found. The model has {inputs} and {outputs}")
        return self._outputs[number]

    def get_input_tensor(self, index: int | None = None) -> Tensor:
        """Return the tensor of the input with this number, by default of the only input."""
        self._check_idle()
        return self._inputs[self._compilation.inputs.index_number(index)].tensor

    def get_output_tensor(self, index: int | None = None) -> Tensor:
        """Return the tensor of the output with this number, by default of the only output."""
        self._check_idle()
        return self._outputs[self._compilation.outputs.index_number(index)].tensor

    def set_input_tensor(self, *args: Any, **kwargs: Any) -> None:
        """Bind the tensor of an input: ``set_input_tensor(tensor)`` if it is the only one, or ``(index, tensor)``."""
        self._check_idle()
        index, tensor = _indexed("set_input_tensor", args, kwargs)
        self._inputs[self._compilation.inputs.index_number(index)].bind(_tensor(tensor))

    def set_output_tensor(self, *args: Any, **kwargs: Any) -> None:
        """Bind the tensor of an output: ``set_output_tensor(tensor)`` if it is the only one, or ``(index, tensor)``."""
        self._check_idle()
        index, tensor = _indexed("set_output_tensor", args, kwargs)
        self._outputs[self._compilation.outputs.index_number(index)].bind(_tensor(tensor))

    def set_input_tensors(self, tensors: Any) -> None:
        """Bind the tensors of inputs: a dict by number, or a list of one tensor for the only input."""
        if not isinstance(tensors, Mapping):
            self._compilation.inputs.number()
            if len(tensors) != 1:
                raise RuntimeError(f"set_input_tensors: a batch of {len(tensors)} tensors is not supported")
            tensors = dict(enumerate(tensors))
        for index, tensor in tensors.items():
            self.set_input_tensor(index, tensor)

    def set_output_tensors(self, outputs: Mapping[int, Tensor]) -> None:
        """Bind the tensors of outputs: a dict by number."""
        if not isinstance(outputs, Mapping):
            raise TypeError(f"set_output_tensors takes a dict, got {type(outputs).__name__}")
        for index, tensor in outputs.items():
            self.set_output_tensor(index, tensor)

    @property
    def input_tensors(self) -> list[Tensor]:
        """Tensors of the inputs, in order."""
        self._check_idle()
        return [slot.tensor for slot in self._inputs]

    @property
    def output_tensors(self) -> list[Tensor]:
        """Tensors of the outputs, in order."""
        self._check_idle()
        return [slot.tensor for slot in self._outputs]

    @property
    def model_inputs(self) -> list[ConstOutput]:
        """Input ports, in order."""
        return list(self._compilation.inputs)

    @property
    def model_outputs(self) -> list[ConstOutput]:
        """Output ports, in order."""
        return list(self._compilation.outputs)


def _indexed(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int | None, Any]:
    """Return (index or None, tensor) from the arguments of a setter."""
    arguments = dict(kwargs)
    if len(args) == 2:
        arguments["index"], arguments["tensor"] = args
    elif len(args) == 1:
        arguments["index" if "tensor" in kwargs else "tensor"] = args[0]
    if not {"tensor"} <= arguments.keys() <= {"index", "tensor"} or len(args) > 2:
        raise TypeError(f"{name} takes (tensor) or (index, tensor)")
    return arguments.get("index"), arguments["tensor"]


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "get_byte_size"):  # openvino.Tensor
        return Tensor(value, shared_memory=True)
    raise TypeError(f"expected a Tensor, got {type(value).__name__}")
