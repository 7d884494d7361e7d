"""CompiledModel: a model made ready for a device, shared by its requests."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from ovgpu.api.compilation import Compilation
from ovgpu.api.infer_request import InferRequest
from ovgpu.model import Model
from ovgpu.request.ports import ConstOutput
from ovgpu.request.results import OVDict
from ovgpu.request.variables import VariableState
from ovgpu.runtime.plan import Plan


class CompiledModel:
    """A model made ready for a device; see `Core.compile_model`. Immutable, may be shared by threads.

    ``compiled(inputs)`` runs it in a private request, which also keeps the state that `query_state` gives: threads
    that run it in parallel make requests of their own.
    """

    def __init__(self, compilation: Compilation) -> None:
        self._compilation = compilation
        self._private: InferRequest | None = None
        self._lock = threading.Lock()

    # ---- ports

    @property
    def inputs(self) -> list[ConstOutput]:
        return list(self._compilation.inputs)

    @property
    def outputs(self) -> list[ConstOutput]:
        return list(self._compilation.outputs)

    def input(self, key: Any = None) -> ConstOutput:
        """The input of that number or tensor name; without one, the only input. RuntimeError if there is none."""
        return self._compilation.inputs.port(key)

    def output(self, key: Any = None) -> ConstOutput:
        """The output of that number or tensor name; without one, the only output. RuntimeError if there is none."""
        return self._compilation.outputs.port(key)

    # ---- running

    def __call__(self, inputs: Any = None, share_inputs: bool = True, share_outputs: bool = False, *,
                 decode_strings: bool = True) -> OVDict:
        """Runs the model in its private request; see `InferRequest.infer`. Shares inputs by default."""
        return self._request().infer(inputs, share_inputs, share_outputs, decode_strings=decode_strings)

    def infer_new_request(self, inputs: Any = None) -> OVDict:
        """Runs the model in a new request, that is: with initial state."""
        return self.create_infer_request().infer(inputs)

    def create_infer_request(self) -> InferRequest:
        """A request with inputs, outputs, state and memory of its own."""
        return InferRequest(self._compilation)

    def query_state(self) -> list[VariableState]:
        """The variables of the private request."""
        return self._request().query_state()

    def reset_state(self) -> None:
        """Gives every variable of the private request its initial value again."""
        self._request().reset_state()

    def release_memory(self) -> None:
        """Frees what the private request holds, except its state and tensors."""
        if self._private is not None:
            self._private._release_memory()

    def memory_held(self) -> int:
        """Bytes of the device's memory that this process has taken, for all models, in use or kept for later; 0 where
        it is the host's."""
        return self._compilation.backend.memory_held()

    def _request(self) -> InferRequest:
        if self._private is None:
            with self._lock:
                if self._private is None:
                    self._private = self.create_infer_request()
        return self._private

    def plan(self, shapes: Any = None) -> Plan:
        """What an inference runs, for inputs of these shapes (a list, or a dict by port, name or number).

        Without shapes: what the last inference of the private request ran, or, before there was one, what the
        declared shapes give. Nothing is run; what depends on computed values stays open. `InferRequest.plan`
        gives the plan of a request's last inference. RuntimeError if a shape is needed and not given.
        """
        if shapes is None and self._private is not None and self._private._last is not None:
            return self._private.plan()
        return self.create_infer_request()._planned(shapes)

    # ---- properties

    def get_property(self, property: str) -> Any:
        """A property's value. RuntimeError if there is no such property."""
        return self._compilation.settings.get(property)

    def set_property(self, properties: Mapping[str, Any] | tuple[str, Any]) -> None:
        """Raises RuntimeError: what is compiled is compiled."""
        raise RuntimeError("It's not possible to set property of an already compiled model. "
                           "Set property to Core::compile_model during compilation")

    def get_runtime_model(self) -> Model:
        """The model as it is run, after the passes."""
        return self._compilation.model.clone()

    def export_model(self, model_stream: Any = None) -> Any:
        """Raises RuntimeError: compiling is quick, so it is the model that is kept."""
        raise RuntimeError("exporting a compiled model is not supported: save the model with ovgpu.save_model")

    def __repr__(self) -> str:
        return f"<CompiledModel:\n{self._compilation.inputs.listing()}\n{self._compilation.outputs.listing()}>"

