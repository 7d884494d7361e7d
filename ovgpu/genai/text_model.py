"""Models that compute a row for each text: what reads them, adds layers to them, and runs them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from ovgpu.api.core import Core
from ovgpu.errors import Error
from ovgpu.genai.files import model_path
from ovgpu.genai.tokenizer import TokenizedInputs
from ovgpu.model import Model, Node, Output
from ovgpu.ops.base.op import Op
from ovgpu.ops.convert import Convert
from ovgpu.ops.infrastructure.graph import Constant, Result
from ovgpu.types import Type

Array = np.ndarray[Any, Any]
INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "beam_idx")


def read_model(models_path: Any) -> tuple[Model, Path]:
    """Return the model of a folder, and the folder. Raises: TypeError if it is no path, Error if it has no model."""
    if not isinstance(models_path, (str, bytes, os.PathLike)):
        raise TypeError(f"models_path is the path of a folder, not {models_path!r}")
    folder = Path(os.fsdecode(models_path))
    return Core().read_model(model_path(folder)), folder


def find_input(model: Model, name: str) -> Output:
    """Return the input of a name. Raises: Error if there is none."""
    for port in model.inputs:
        if name in port.get_names():
            return port
    raise Error(f"the model has no input {name}, only {_names(model.inputs)}")


def find_output(model: Model, name: str) -> int:
    """Return the index of the output with a name, or of the only one. Raises: Error if there is none."""
    for index, port in enumerate(model.outputs):
        if name in port.get_names() or len(model.outputs) == 1:
            return index
    raise Error(f"the model has no output {name}, only {_names(model.outputs)}")


def output_value(model: Model, index: int) -> Output:
    """Return the value of an output; reals are converted to f32."""
    (source,) = model.results[index].sources
    assert source is not None
    return layer(Convert(destination_type=Type.f32), source) if source.element_type.is_real() else source


def layer(op: Op, *inputs: Any) -> Output:
    """Return the output of a new layer. Inputs that are integers, or lists of them, become constants."""
    ports = [x if isinstance(x, Output) else _constant(x) for x in inputs]
    node = Node(op, ports)
    (node.ports[0].spec,) = node.infer([port.spec for port in ports])
    return node.ports[0]


def replace_outputs(model: Model, value: Output) -> None:
    """Make ``value`` the only output of a model, in place."""
    for result in list(model.results):
        model.remove_result(result)
    model.add_results([Node(Result(), [value])])
    model.validate_nodes_and_infer_types()


def checked_texts(texts: Any) -> list[str]:
    """Return texts as a list. Raises: TypeError for values that are no texts."""
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Collection):
        raise TypeError(f"texts are a list of strings, not {texts!r}")
    return [checked_text(text) for text in texts]


def checked_text(text: Any) -> str:
    """Return a text. Raises: TypeError for another value."""
    if not isinstance(text, str):
        raise TypeError(f"a text is a string, not {text!r}")
    return text


class TextModel:
    """Compiled model that takes tokens, and has one output with a row for each text.

    Threads may call `infer` at the same time. Raises: Error for a model with other inputs than `INPUTS`.
    """

    def __init__(self, model: Model, device: str, properties: Mapping[str, Any]) -> None:
        self._inputs = [_input(port) for port in model.inputs]
        self._request = Core().compile_model(model, device, dict(properties)).create_infer_request()
        self._has_texts: bool | None = None  # whether the last call had any; None before the first one
        self._running = Lock()

    def infer(self, tokens: TokenizedInputs) -> Array:
        """Return the rows of texts. Raises: RuntimeError while an inference runs that `start` has started."""
        with self._running:
            arrays = self._arrays(tokens)
            rows = self._request.infer(arrays)[0] if arrays else np.zeros(0, np.float32)
            self._has_texts = bool(arrays)
            return rows

    def start(self, tokens: TokenizedInputs) -> None:
        """Start an inference. Raises: RuntimeError while another one runs."""
        with self._running:
            arrays = self._arrays(tokens)
            if arrays:
                self._request.start_async(arrays)
            self._has_texts = bool(arrays)

    def wait(self) -> Array:
        """Wait for the inference, and return its rows. Raises: its error, or Error if none was started."""
        if self._has_texts is None:
            raise Error("there is nothing to wait for: start an inference before")
        if not self._has_texts:
            return np.zeros(0, np.float32)
        self._request.wait()
        return self._request.results[0]

    def _arrays(self, tokens: TokenizedInputs) -> list[Array]:
        """Forget earlier texts, and return the inputs of the model; none if there are no texts."""
        self._request.reset_state()
        ids, mask = np.asarray(tokens.input_ids.data), np.asarray(tokens.attention_mask.data)
        types = None if tokens.token_type_ids is None else np.asarray(tokens.token_type_ids.data)
        values = {
            "input_ids": ids,
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(ids) if types is None else types,
            "position_ids": mask.cumsum(axis=1) - mask,
            "beam_idx": np.zeros(len(ids)),
        }
        return [values[name].astype(dtype) for name, dtype in self._inputs] if len(ids) else []


def _input(port: Output) -> tuple[str, Any]:
    """Return the name and dtype of an input. Raises: Error for one that is not known."""
    for name in INPUTS:
        if name in port.get_names():
            return name, np.int64 if port.element_type.is_dynamic() else port.element_type.storage
    raise Error(f"the model has the input {_names([port])}: texts give {', '.join(INPUTS)}")


def _names(ports: Any) -> str:
    return ", ".join(min(port.get_names(), default=port.node.friendly_name) for port in ports)


def _constant(value: Any) -> Output:
    return layer(Constant(element_type=Type.i64, value=np.array(value, np.int64)))
