"""Facades (see `classes`): compiled models, requests and queues of ovgpu with the interface of openvino's classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any, ClassVar

import openvino  # type: ignore[import-untyped]
from openvino.utils.data_helpers import OVDict  # type: ignore[import-untyped]

import ovgpu
from ovgpu.api.request_tensors import one_of
from ovgpu.integrations.openvino.classes import expose
from ovgpu.integrations.openvino.ports import PortsOfModel, key_to_ovgpu, make_ports
from ovgpu.integrations.openvino.remote import input_from_program, value_from_program, value_to_program
from ovgpu.interop.models import to_openvino_model
from ovgpu.interop.values import properties_to_ovgpu, property_to_openvino
from ovgpu.request.live_tensor import LiveTensor


class VariableState:
    """Variable of a request; see `ovgpu.VariableState`. `isinstance` takes it for openvino's class, whose constructor
    wants a C++ object."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return openvino._pyopenvino.VariableState

    def __init__(self, variable: ovgpu.VariableState) -> None:
        self._variable = variable

    @property
    def name(self) -> str:
        return self._variable.name

    @property
    def state(self) -> Any:
        return value_to_program(self._variable.state)

    @state.setter
    def state(self, tensor: Any) -> None:
        self._variable.state = value_from_program(tensor)

    def reset(self) -> None:
        self._variable.reset()

    def __repr__(self) -> str:
        return repr(self._variable)


class InferRequest:
    """Request of a compiled model; see `ovgpu.InferRequest`."""

    stands_for: ClassVar[Any] = openvino.InferRequest

    def __init__(self, compiled: CompiledModel, request: ovgpu.InferRequest) -> None:
        self._compiled, self._request = compiled, request

    def stand_in(self) -> Any:
        return self._compiled.request_to_stand_in()

    def made_from(self) -> InferRequest:
        """Return the facade of ``openvino.InferRequest(request)``: the same request."""
        return self

    # ---- running

    def infer(
        self,
        inputs: Any = None,
        share_inputs: bool = False,
        share_outputs: bool = False,
        *,
        decode_strings: bool = True,
    ) -> OVDict:
        return self._compiled._results(
            self._request.infer(
                self._compiled._inputs(inputs), share_inputs, share_outputs, decode_strings=decode_strings
            )
        )

    def start_async(self, inputs: Any = None, userdata: Any = None, share_inputs: bool = False) -> None:
        self._request.start_async(self._compiled._inputs(inputs), userdata, share_inputs)

    def wait(self) -> None:
        self._request.wait()

    def wait_for(self, timeout: int) -> bool:
        return self._request.wait_for(timeout)

    def cancel(self) -> None:
        self._request.cancel()

    def set_callback(self, callback: Callable[[Any], Any], userdata: Any = None) -> None:
        self._request.set_callback(callback, userdata)

    @property
    def userdata(self) -> Any:
        return self._request.userdata

    @property
    def results(self) -> OVDict:
        return self._compiled._results(self._request.results)

    # ---- tensors

    def get_tensor(self, name_or_port: Any = None, *, name: Any = None, port: Any = None) -> Any:
        key = self._compiled._key(one_of(name_or_port, name, port))
        index = self._compiled.live_inputs.get(key)
        return value_to_program(self._request.get_tensor(key)) if index is None else self._input_tensor(index)

    def _input_tensor(self, index: int | None) -> Any:
        """Return an input's tensor as one of openvino. The program may change its strings or dynamic shape."""
        tensor, request_input = self._request.get_input_tensor(index), self._request._session.inputs[index or 0]
        if isinstance(tensor, LiveTensor):
            return tensor.wrapped
        given = value_to_program(tensor)
        if tensor.remote or not _is_live(request_input.port):
            return given
        if tensor is request_input.own and tensor.element_type != ovgpu.Type.string:
            request_input.replace_own(live := LiveTensor.copy_of(given))
        else:
            request_input.bind(live := LiveTensor(given))
        return live.wrapped

    def set_tensor(self, name_or_port: Any = None, tensor: Any = None, *, name: Any = None, port: Any = None) -> None:
        self._request.set_tensor(*self._compiled._item(one_of(name_or_port, name, port), tensor))

    def set_tensors(
        self, inputs: Any = None, tensors: Any = None, *, tensor_name: Any = None, port: Any = None
    ) -> None:
        inputs = one_of(inputs, tensor_name, port)
        if tensors is None:
            self._request.set_tensors(self._compiled._inputs(inputs))
        else:
            self._request.set_tensors(self._compiled._key(inputs), _items(tensors))

    def get_input_tensor(self, index: int | None = None) -> Any:
        return self._input_tensor(index)

    def get_output_tensor(self, index: int | None = None) -> Any:
        return value_to_program(self._request.get_output_tensor(index))

    def set_input_tensor(self, *args: Any, **kwargs: Any) -> None:
        kwargs = {name: input_from_program(arg) for name, arg in kwargs.items()}
        self._request.set_input_tensor(*map(input_from_program, args), **kwargs)

    def set_output_tensor(self, *args: Any, **kwargs: Any) -> None:
        kwargs = {name: value_from_program(arg) for name, arg in kwargs.items()}
        self._request.set_output_tensor(*map(value_from_program, args), **kwargs)

    def set_input_tensors(self, *args: Any, **kwargs: Any) -> None:
        kwargs = {name: _items(arg) for name, arg in kwargs.items()}
        self._request.set_input_tensors(*map(_items, args), **kwargs)

    def set_output_tensors(self, outputs: Mapping[int, Any]) -> None:
        self._request.set_output_tensors({i: value_from_program(value) for i, value in outputs.items()})

    @property
    def input_tensors(self) -> list[Any]:
        return list(map(self._input_tensor, range(len(self._compiled.inputs))))

    @property
    def output_tensors(self) -> list[Any]:
        return list(map(value_to_program, self._request.output_tensors))

    @property
    def model_inputs(self) -> list[Any]:
        return self._compiled.inputs

    @property
    def model_outputs(self) -> list[Any]:
        return self._compiled.outputs

    # ---- state and measurements

    def query_state(self) -> list[VariableState]:
        return list(map(VariableState, self._request.query_state()))

    def reset_state(self) -> None:
        self._request.reset_state()

    @property
    def latency(self) -> float:
        return self._request.latency

    def get_profiling_info(self) -> list[Any]:
        return list(map(_profiling_info, self._request.get_profiling_info()))

    profiling_info = property(get_profiling_info)

    def get_compiled_model(self) -> Any:
        return expose(CompiledModel(self._request.get_compiled_model(), self._compiled._ports))

    def _is_single_input(self) -> bool:
        return len(self._compiled.inputs) == 1

    def __repr__(self) -> str:
        return repr(self._request)


class CompiledModel:
    """Model compiled by ovgpu; see `ovgpu.CompiledModel`. ``ports`` may be taken from an equal compiled model."""

    stands_for: ClassVar[Any] = openvino.CompiledModel

    def __init__(self, compiled: ovgpu.CompiledModel, ports: PortsOfModel | None = None) -> None:
        self._compiled = compiled
        self._ports = ports or make_ports(compiled)
        self._request: InferRequest | None = None
        self.shown: Callable[[], Any] = lambda: None  # returns the object of openvino that this is the facade of
        self._request_to_stand_in: Any = None
        self.live_inputs: dict[Any, int] = {  # indices of inputs that have a `LiveTensor`, by port, name and index
            key: i for i, port in enumerate(compiled.inputs) if _is_live(port) for key in (port, *port.get_names(), i)
        }

    def stand_in(self) -> Any:
        return self._ports.stand_in

    def request_to_stand_in(self) -> Any:
        if self._request_to_stand_in is None:
            self._request_to_stand_in = openvino._pyopenvino.CompiledModel.create_infer_request(self.stand_in())
        return self._request_to_stand_in

    def made_from(self, weights: Any = None) -> CompiledModel:
        """Return the facade of ``openvino.CompiledModel(compiled)``, which does not share the private request."""
        return CompiledModel(ovgpu.CompiledModel(self._compiled), self._ports)

    # ---- ports

    @property
    def inputs(self) -> list[Any]:
        return list(self._ports.inputs.openvino)

    @property
    def outputs(self) -> list[Any]:
        return list(self._ports.outputs.openvino)

    def input(self, key: int | str | None = None) -> Any:
        return self._ports.inputs.to_openvino(self._compiled.input(key))

    def output(self, key: int | str | None = None) -> Any:
        return self._ports.outputs.to_openvino(self._compiled.output(key))

    def _key(self, key: Any) -> Any:
        return key_to_ovgpu((self._ports.inputs, self._ports.outputs), key)

    def _inputs(self, values: Any) -> Any:
        """Return ``values``, inputs of an inference or tensors by key, with ovgpu's keys and tensors."""
        if isinstance(values, Mapping):
            return dict(self._item(key, value) for key, value in values.items())
        if isinstance(values, (list, tuple)):
            return [self._item(i, value)[1] for i, value in enumerate(values)]
        return self._item(0, values)[1]

    def _item(self, key: Any, value: Any) -> tuple[Any, Any]:
        """Return ovgpu's key and value for the key and value of an input or output."""
        return self._key(key), input_from_program(value)

    def _results(self, results: ovgpu.OVDict) -> OVDict:
        return OVDict(dict(zip(self._ports.outputs.openvino, results.values(), strict=True)))

    # ---- running

    def __call__(
        self, inputs: Any = None, share_inputs: bool = True, share_outputs: bool = False, *, decode_strings: bool = True
    ) -> OVDict:
        return self._own_request().infer(inputs, share_inputs, share_outputs, decode_strings=decode_strings)

    def infer_new_request(self, inputs: Any = None) -> OVDict:
        return InferRequest(self, self._compiled.create_infer_request()).infer(inputs)

    def create_infer_request(self) -> Any:
        return expose(InferRequest(self, self._compiled.create_infer_request()))

    def query_state(self) -> list[VariableState]:
        return self._own_request().query_state()

    def reset_state(self) -> None:
        self._own_request().reset_state()

    def release_memory(self) -> None:
        self._compiled.release_memory()

    def _own_request(self) -> InferRequest:
        if self._request is None:
            self._request = InferRequest(self, self._compiled._request())
            shown = self.shown()
            if shown is not None:
                shown._infer_request = expose(self._request)  # as openvino's class keeps it
        return self._request

    # ---- properties

    def get_property(self, property: str) -> Any:
        return property_to_openvino(self._compiled.get_property(str(property)))

    def set_property(self, properties: Any) -> None:
        self._compiled.set_property(properties_to_ovgpu(properties))

    def get_runtime_model(self) -> openvino.Model:
        graph = self._compiled.get_runtime_model()
        described = {}
        for node in graph.ops:  # openvino cannot read an execution graph: the info is set after the conversion
            info = {key: value for key, value in node.rt_info.plain().items() if isinstance(value, str)}
            described[node.friendly_name] = info
            for key in info:
                del node.rt_info[key]
        model = to_openvino_model(graph)
        for node in model.get_ops():
            for key, value in described.get(node.get_friendly_name(), {}).items():
                node.set_rt_info(value, key)
        return model

    def export_model(self, model_stream: Any = None) -> Any:
        return self._compiled.export_model(model_stream)

    def __repr__(self) -> str:
        return repr(self._compiled)


class AsyncInferQueue:
    """Pool of requests; see `ovgpu.AsyncInferQueue`."""

    stands_for: ClassVar[Any] = openvino.AsyncInferQueue

    def __init__(self, model: CompiledModel, jobs: int = 0) -> None:
        self._compiled, self._queue = model, ovgpu.AsyncInferQueue(model._compiled, jobs)
        self._requests = {request: expose(InferRequest(model, request)) for request in self._queue}

    def stand_in(self) -> Any:
        return self._compiled.stand_in()

    @staticmethod
    def made_from(model: CompiledModel, jobs: int = 0) -> AsyncInferQueue:
        """Return the facade of ``openvino.AsyncInferQueue(compiled, jobs)``."""
        return AsyncInferQueue(model, jobs)

    def start_async(self, inputs: Any = None, userdata: Any = None, share_inputs: bool = False) -> None:
        self._queue.start_async(self._compiled._inputs(inputs), userdata, share_inputs)

    def wait_all(self) -> None:
        self._queue.wait_all()

    def is_ready(self) -> bool:
        return self._queue.is_ready()

    def get_idle_request_id(self) -> int:
        return self._queue.get_idle_request_id()

    def set_callback(self, callback: Callable[[Any, Any], Any]) -> None:
        if not callable(callback):
            self._queue.set_callback(callback)  # raises
        self._queue.set_callback(lambda request, userdata: callback(self._requests[request], userdata))

    @property
    def userdata(self) -> list[Any]:
        return self._queue.userdata

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._requests.values())

    def __getitem__(self, i: int) -> Any:
        return self._requests[self._queue[i]]

    def __repr__(self) -> str:
        return repr(self._queue)


def _is_live(port: ovgpu.ConstOutput) -> bool:
    """Return whether a program may change the shape or the strings of an input's tensor, and not only its numbers."""
    return port.partial_shape.is_dynamic or port.element_type == ovgpu.Type.string


def _profiling_info(info: ovgpu.ProfilingInfo) -> Any:
    converted = openvino.ProfilingInfo()
    for field in fields(info):
        value = getattr(info, field.name)
        if field.name == "status":
            value = getattr(openvino.ProfilingInfo.Status, value.name)
        setattr(converted, field.name, value)
    return converted


def _items(tensors: Any) -> Any:
    """Return the tensors of a batch, or a dict of tensors, as tensors of ovgpu."""
    if isinstance(tensors, openvino._pyopenvino.TensorVector):
        tensors = list(tensors)
    if isinstance(tensors, list):
        return list(map(input_from_program, tensors))
    if isinstance(tensors, Mapping):
        return {key: input_from_program(value) for key, value in tensors.items()}
    return tensors
