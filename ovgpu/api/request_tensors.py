"""Access to the tensors of a request by port, name or index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ovgpu._util.unpicklable import Unpicklable
from ovgpu.compile.ports import ConstOutput
from ovgpu.model import Output
from ovgpu.request.batched_tensor import BatchedTensor
from ovgpu.request.inputs import RequestInput
from ovgpu.request.live_tensor import LiveTensor
from ovgpu.request.outputs import RequestOutput
from ovgpu.request.session import Session
from ovgpu.tensor import Tensor


class RequestTensors(Unpicklable):
    """Base class of `InferRequest` with the access to its tensors. RuntimeError while an inference is running."""

    _session: Session

    def _check_idle(self) -> None:
        raise NotImplementedError

    def get_tensor(self, name_or_port: Any = None, *, name: str | None = None, port: Any = None) -> Tensor:
        """Return the tensor of an input or output by port or tensor name: the object that inferences read or write."""
        return _tensor_of(self._input_or_output(one_of(name_or_port, name, port)))

    def set_tensor(
        self, name_or_port: Any = None, tensor: Any = None, *, name: str | None = None, port: Any = None
    ) -> None:
        """Bind a tensor to an input or output, given by port or tensor name.

        An inference writes directly to an output's tensor, which takes the shape of the result.
        """
        _bind(self._input_or_output(one_of(name_or_port, name, port)), tensor)

    def set_tensors(
        self,
        inputs: Any = None,
        tensors: Sequence[Tensor] | None = None,
        *,
        tensor_name: str | None = None,
        port: Any = None,
    ) -> None:
        """Call `set_tensor` for every name, port or index (of an input) in the dict ``inputs``.

        ``set_tensors(name_or_port, tensors)`` binds a batch to an input; see `set_input_tensors`.
        """
        inputs = one_of(inputs, tensor_name, port)
        if tensors is not None:
            io = self._input_or_output(inputs)
            if not isinstance(io, RequestInput):
                raise RuntimeError(f"Cannot find input tensors for port {inputs}: a batch of tensors is for inputs")
            _bind_batch(io, tensors)
            return
        for key, tensor in inputs.items():
            _bind(self._input(key) if isinstance(key, int) else self._input_or_output(key), tensor)

    def _input(self, index: int | None) -> RequestInput:
        """Return the input with this index, or the only one."""
        self._check_idle()
        return self._session.inputs[self._session.compilation.inputs.checked_index(index)]

    def _output(self, index: int | None) -> RequestOutput:
        """Return the output with this index, or the only one."""
        self._check_idle()
        return self._session.outputs[self._session.compilation.outputs.checked_index(index)]

    def _input_or_output(self, key: Any) -> RequestInput | RequestOutput:
        self._check_idle()
        inputs, outputs = self._session.compilation.inputs, self._session.compilation.outputs
        if not isinstance(key, (str, Output)):
            raise TypeError(f"a tensor is found by port or name, got {type(key).__name__}")
        index = inputs.find(key)
        if index is not None:
            return self._session.inputs[index]
        index = outputs.find(key)
        if index is None:
            description = f"tensor name {key}" if isinstance(key, str) else repr(key)
            raise RuntimeError(f"Port for {description} was not found. The model has {inputs} and {outputs}")
        return self._session.outputs[index]

    def get_input_tensor(self, index: int | None = None) -> Tensor:
        """Return the tensor of the input with this index, by default of the only input."""
        return _tensor_of(self._input(index))

    def get_output_tensor(self, index: int | None = None) -> Tensor:
        """Return the tensor of the output with this index, by default of the only output."""
        return self._output(index).tensor

    def set_input_tensor(self, *args: Any, **kwargs: Any) -> None:
        """Bind the tensor of an input: ``set_input_tensor(tensor)`` if it is the only one, or ``(index, tensor)``."""
        index, tensor = _indexed("set_input_tensor", args, kwargs)
        _bind(self._input(index), tensor)

    def set_output_tensor(self, *args: Any, **kwargs: Any) -> None:
        """Bind the tensor of an output: ``set_output_tensor(tensor)`` if it is the only one, or ``(index, tensor)``."""
        index, tensor = _indexed("set_output_tensor", args, kwargs)
        _bind(self._output(index), tensor)

    def set_input_tensors(self, *args: Any, **kwargs: Any) -> None:
        """Bind the tensors of inputs, given as a dict by index, or a batch of tensors to one input.

        ``set_input_tensors(tensors)`` or ``(index, tensors)`` takes a list of as many tensors as the batch has items,
        each with an extent of 1 for N, the first dimension of the input's layout. An inference reads them one after the
        other.
        """
        if "inputs" in kwargs:  # openvino's name of the dict
            kwargs["tensors"] = kwargs.pop("inputs")
        index, tensors = _indexed("set_input_tensors", args, kwargs, "idx", "tensors")
        if isinstance(tensors, Mapping):
            for input_index, tensor in tensors.items():
                self.set_input_tensor(input_index, tensor)
        else:
            _bind_batch(self._input(index), tensors)

    def set_output_tensors(self, outputs: Mapping[int, Tensor]) -> None:
        """Bind the tensors of outputs, given as a dict by index."""
        if not isinstance(outputs, Mapping):
            raise TypeError(f"set_output_tensors takes a dict, got {type(outputs).__name__}")
        for index, tensor in outputs.items():
            self.set_output_tensor(index, tensor)

    @property
    def input_tensors(self) -> list[Tensor]:
        """Tensors of the inputs, in order."""
        self._check_idle()
        return list(map(_tensor_of, self._session.inputs))

    @property
    def output_tensors(self) -> list[Tensor]:
        """Tensors of the outputs, in order."""
        self._check_idle()
        return [output.tensor for output in self._session.outputs]

    @property
    def model_inputs(self) -> list[ConstOutput]:
        """Input ports, in order."""
        return list(self._session.compilation.inputs)

    @property
    def model_outputs(self) -> list[ConstOutput]:
        """Output ports, in order."""
        return list(self._session.compilation.outputs)


def _indexed(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], index: str = "index", tensor: str = "tensor"
) -> tuple[int | None, Any]:
    """Return (index or None, tensor) from the arguments of a setter, which have these names."""
    arguments = dict(kwargs)
    if len(args) == 2:
        arguments[index], arguments[tensor] = args
    elif len(args) == 1:
        arguments[index if tensor in kwargs else tensor] = args[0]
    if not {tensor} <= arguments.keys() <= {index, tensor} or len(args) > 2:
        raise TypeError(f"{name} takes ({tensor}) or ({index}, {tensor})")
    return arguments.get(index), arguments[tensor]


def one_of(*given: Any) -> Any:
    """Return the one argument that is not None. Raise TypeError unless exactly one is given."""
    values = [value for value in given if value is not None]
    if len(values) != 1:
        raise TypeError("give one tensor name or port")
    return values[0]


def _bind_batch(input_: RequestInput, tensors: Sequence[Any]) -> None:
    """Bind a list of tensors to an input: a single one as it is, several as a batch."""
    if not isinstance(tensors, list):
        raise TypeError(f"a batch of tensors is a list, got {type(tensors).__name__}")
    if not tensors:
        raise RuntimeError("set_input_tensors/set_tensors can't be called with empty tensors")
    items = list(map(_tensor, tensors))
    input_.bind(items[0] if len(items) == 1 else BatchedTensor(items, input_.port))


def _tensor_of(io: RequestInput | RequestOutput) -> Tensor:
    tensor = io.tensor
    if isinstance(tensor, BatchedTensor):
        raise RuntimeError(
            f"get_tensor shall not be used together with batched set_tensors/set_input_tensors for port '{io.port}'"
        )
    return tensor


def _bind(io: RequestInput | RequestOutput, value: Any) -> None:
    io.bind(_tensor(value) if isinstance(io, RequestInput) else _tensor(value, live=False))


def _tensor(value: Any, live: bool = True) -> Tensor:
    """Return a tensor of ovgpu. One of openvino is wrapped, without a copy; if ``live``, its program may resize it."""
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "get_byte_size"):  # openvino.Tensor
        return LiveTensor(value) if live else Tensor(value, shared_memory=True)
    raise TypeError(f"expected a Tensor, got {type(value).__name__}")
