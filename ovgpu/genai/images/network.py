"""Classes Network and Component: base of the models of a pipeline."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np

from ovgpu.api.core import Core
from ovgpu.api.infer_request import InferRequest
from ovgpu.errors import Error
from ovgpu.model import Model
from ovgpu.request.remote_tensor import RemoteContext
from ovgpu.tensor import Tensor

Array = np.ndarray[Any, Any]


class Network:
    """Model that is compiled once. Copies run at the same time."""

    def __init__(self, name: str, model: Model | None) -> None:
        self._name, self._model = name, model
        self._request: InferRequest | None = None
        self._context: RemoteContext | None = None  # of a CUDA device
        self._uploaded: dict[str, Tensor] = {}

    def copy(self) -> Network:
        """Return a network with the same model, and an inference request of its own."""
        copy = Network(self._name, None if self._model is None else self._model.clone())
        if self._request is not None:
            copy._request = self._request.get_compiled_model().create_infer_request()
            copy._context = self._context
        return copy

    @property
    def model(self) -> Model:
        """The model. Raises: Error once it is compiled."""
        if self._model is None:
            raise Error(f"{self._name} is compiled already: reshape it before, and compile it once")
        return self._model

    @property
    def request(self) -> InferRequest:
        """The inference request. Raises: Error before the model is compiled."""
        if self._request is None:
            raise Error(f"{self._name} must be compiled first: call compile(), or give a device to the constructor")
        return self._request

    def compile(self, device: str, properties: Mapping[str, Any]) -> None:
        """Compile the model. Raises: Error if it was compiled before."""
        if "blob_path" in properties:
            raise Error("compiled models of openvino_genai cannot be imported: the property CACHE_DIR keeps own ones")
        self._request = Core().compile_model(self.model, device, dict(properties)).create_infer_request()
        self._model = None
        with suppress(RuntimeError):  # the CPU has none
            self._context = Core().get_default_context(device)

    def keep(self, name: str, values: Array) -> None:
        """Set an input for several inferences: a CUDA device gets it once, in memory that the next call uses again."""
        tensor = Tensor(values)
        if self._context is not None:
            if name not in self._uploaded:
                self._uploaded[name] = self._context.create_tensor(tensor.element_type, tensor.shape)
            self._uploaded[name].copy_from(tensor)
            tensor = self._uploaded[name]
        self.request.set_tensor(name, tensor)

    def output(self, index: int = 0) -> Array:
        """Return a copy of an output. Raises: Error if there is none of this index."""
        if not 0 <= index < len(self.request.model_outputs):
            raise Error(f"{self._name} has {len(self.request.model_outputs)} outputs, none of index {index}")
        return np.array(self.request.get_output_tensor(index).data)


class Component:
    """Base of models that are a single network."""

    _network: Network

    def compile(self, device: str, **properties: Any) -> None:
        """Compile the model for a device. Raises: RuntimeError if it was compiled before."""
        self._network.compile(device, properties)

    def export_model(self, export_path: str | bytes | os.PathLike[str]) -> NoReturn:
        """Raise RuntimeError: there are no files of compiled models."""
        refuse_export()

    def set_adapters(self, adapters: None) -> None:
        """Do nothing for None. Raises: RuntimeError for adapters."""
        if adapters is not None:
            raise Error("LoRA adapters are not applied: adapters must be None")


def refuse_export() -> NoReturn:
    """Raise the error of export_model()."""
    raise Error("compiled models are not exported: the property CACHE_DIR keeps them")
