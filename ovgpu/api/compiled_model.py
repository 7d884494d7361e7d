"""Class CompiledModel: a model compiled for a device, shared by its requests."""

from __future__ import annotations

import io
import threading
from collections import Counter
from collections.abc import Mapping
from typing import IO, Any, Literal, overload

from ovgpu._util import notebooks
from ovgpu._util.unpicklable import Unpicklable
from ovgpu.api.execution_graph import execution_graph
from ovgpu.api.infer_request import InferRequest
from ovgpu.compile import devices
from ovgpu.compile.compilation import Compilation
from ovgpu.compile.ports import ConstOutput
from ovgpu.errors import DeviceError
from ovgpu.model import Model
from ovgpu.model.ports import ports_table
from ovgpu.request.results import OVDict
from ovgpu.request.session import Session
from ovgpu.request.variables import VariableState
from ovgpu.runtime.plan import Plan


class CompiledModel(Unpicklable):
    """Model compiled for a device; see `Core.compile_model`. Threads may share it.

    It is immutable, except that a model in f16 that leaves the range of f16 is compiled again in bf16, see
    `ovgpu.runtime.overflow`. Its properties then show the new type.

    ``compiled(inputs)`` runs the model in a private request, which also holds the state that `query_state` returns.
    Threads that run the model in parallel must each create their own request.
    """

    def __init__(self, other: Compilation | CompiledModel) -> None:
        """Make another object for the same compiled model, with a private request of its own. A subclass may add to it.

        `Core.compile_model` compiles models.
        """
        if not isinstance(other, (Compilation, CompiledModel)):
            raise TypeError(
                f"CompiledModel takes a compiled model, got {type(other).__name__}: Core.compile_model compiles models"
            )
        self._origin = other if isinstance(other, CompiledModel) else None
        self._compilation: Compilation = other._compilation if isinstance(other, CompiledModel) else other
        self._compilations: tuple[Compilation, ...] = (
            other._compilations if isinstance(other, CompiledModel) else (self._compilation,)
        )
        self._private: InferRequest | None = None
        self._lock = threading.Lock()

    # ---- ports

    @property
    def inputs(self) -> list[ConstOutput]:
        """Input ports, in order."""
        return list(self._compilation.inputs)

    @property
    def outputs(self) -> list[ConstOutput]:
        """Output ports, in order."""
        return list(self._compilation.outputs)

    def input(self, key: Any = None) -> ConstOutput:
        """Return the input with this index or tensor name, or the only one. Raise RuntimeError if there is none."""
        return self._compilation.inputs.port(key)

    def output(self, key: Any = None) -> ConstOutput:
        """Return the output with this index or tensor name, or the only one. Raise RuntimeError if there is none."""
        return self._compilation.outputs.port(key)

    # ---- running

    def __call__(
        self,
        inputs: Any = None,
        share_inputs: bool = True,
        share_outputs: bool = False,
        *,
        decode_strings: bool | None = True,
        ml_dtypes: bool = False,
    ) -> OVDict:
        """Run the model in its private request; see `InferRequest.infer`. Inputs are shared by default."""
        return self._request().infer(
            inputs, share_inputs, share_outputs, decode_strings=decode_strings, ml_dtypes=ml_dtypes
        )

    def infer_new_request(self, inputs: Any = None) -> OVDict:
        """Run the model in a new request, which starts with the initial state."""
        return self.create_infer_request().infer(inputs)

    def create_infer_request(self) -> InferRequest:
        """Create a request with its own inputs, outputs, state and memory."""
        if self._origin is not None:
            return self._origin.create_infer_request()
        return InferRequest(self._compilation.current)

    def query_state(self) -> list[VariableState]:
        """Return the variables of the private request."""
        return self._request().query_state()

    def reset_state(self) -> None:
        """Reset every variable of the private request to its initial value."""
        self._request().reset_state()

    def release_memory(self) -> None:
        """Free the memory of the private request, except its state and tensors."""
        if self._private is not None:
            self._private._release_memory()

    @overload
    def memory_held(self, device: str | None = None, *, by_purpose: Literal[False] = False) -> int: ...
    @overload
    def memory_held(self, device: str | None = None, *, by_purpose: Literal[True]) -> dict[str, int]: ...
    def memory_held(self, device: str | None = None, *, by_purpose: bool = False) -> int | dict[str, int]:
        """Return the bytes of device memory that this process has allocated for all models, in use or cached.

        ``device`` is one of the model's EXECUTION_DEVICES, by default all of them. Host memory does not count.

        With ``by_purpose``, return them in parts: this model's "constants", and of its requests the "arenas" with
        intermediate results, "states", "workspaces" of cuBLAS and cuDNN, and "graphs" (an estimate). The rest is
        "other": inputs and outputs, other models, and cached memory that is free.
        """
        compilations = [c for c in self._compilations if device in (None, c.settings.device) and c.backend.remote]
        total = sum(compilation.backend.memory_held() for compilation in compilations)
        if not by_purpose:
            return total
        parts = Counter(dict.fromkeys(("constants", "arenas", "states", "workspaces", "graphs"), 0))
        for compilation in {of for each in compilations for of in (each, each.current)}:
            parts.update(compilation.memory_by_purpose())
        return {**parts, "other": max(total - sum(parts.values()), 0)}

    @property
    def _device(self) -> str:
        """The name of the device, for `Core.compile_model`."""
        if self._origin is not None:
            return self._origin._device
        return self._compilation.settings.device

    def _request(self) -> InferRequest:
        if self._private is None:
            with self._lock:
                if self._private is None:
                    self._private = InferRequest(self._compilation.current)
        return self._private

    def plan(self, shapes: Any = None) -> Plan:
        """Return the plan of an inference for inputs of these shapes (a list, or a dict by port, name or index).

        Without shapes, return the plan of the private request's last inference, or, before the first inference, the
        plan for the declared shapes. Nothing is run, so extents that depend on computed values stay unknown.
        `InferRequest.plan` returns the plan of a request's last inference.

        Raises: RuntimeError if the shape of an input is dynamic and not given.
        """
        if shapes is None and self._private is not None and self._private._session.last is not None:
            return self._private.plan()
        return Session(self._compilation.current).plan_for(shapes)

    # ---- properties

    def get_property(self, property: str) -> Any:
        """Return a property's value. Raise RuntimeError if there is no such property."""
        if self._origin is not None:
            return self._origin.get_property(property)
        return self._compilation.current.settings.get(property)

    def set_property(self, properties: Mapping[str, Any] | tuple[str, Any]) -> None:
        """Raise RuntimeError: the properties of a compiled model cannot be changed."""
        raise RuntimeError(
            "It's not possible to set property of an already compiled model. "
            "Set property to Core::compile_model during compilation"
        )

    def get_runtime_model(self) -> Model:
        """Return a copy of the model that is run, after the passes. Its nodes have the runtime information that
        OpenVINO's execution graphs have; with profiling, also times of the last inference of any request."""
        compilation = self._compilation.current
        profiler = compilation.last_profiler
        return execution_graph(
            compilation.model, compilation.settings.device, () if profiler is None else profiler.infos()
        )

    def export_model(self, model_stream: IO[bytes] | None = None) -> IO[bytes] | None:
        """Write the model, its properties and, on a card, the kernels it launches, for `Core.import_model`.

        Without a stream, return an `io.BytesIO`. A stream is rewound afterwards. Run a model with dynamic shapes or
        states first with typical inputs, so that its kernels are known.

        Raises: ModelError if a file that holds constants has changed, OSError if the stream cannot be written,
        DeviceError for a model that is compiled for devices of several kinds.
        """
        from ovgpu.api.compiled_model_file import rewind, write  # imports zipfile and hashlib, which take 10 ms

        stream = io.BytesIO() if model_stream is None else model_stream
        if not hasattr(stream, "write"):
            raise TypeError(f"export_model takes a binary file such as io.BytesIO, got {type(stream).__name__}")
        compilation = self._compilation
        names = [each.settings.device for each in self._compilations]
        if len(set(map(devices.family, names))) > 1:
            raise DeviceError(
                f"a compiled model is exported for one kind of device, not for {' and '.join(names)}: "
                "compile it for one of them"
            )
        kernels = {name: code for each in self._compilations for name, code in each.backend.export_kernels().items()}
        settings = compilation.settings
        encrypt = next(iter(settings["CACHE_ENCRYPTION_CALLBACKS"]), None)
        family = devices.family(names[0])
        write(stream, family, settings.exported(), compilation.source, kernels, encrypt=encrypt)
        rewind(stream)
        return stream if model_stream is None else None

    def __repr__(self) -> str:
        return f"<CompiledModel:\n{self._compilation.inputs.listing()}\n{self._compilation.outputs.listing()}>"

    def _repr_html_(self) -> str:
        devices = ", ".join(self.get_property("EXECUTION_DEVICES"))
        title = f"CompiledModel {self._compilation.settings.model_name} on {devices}"
        return notebooks.table(title, *ports_table(self.inputs, self.outputs))
