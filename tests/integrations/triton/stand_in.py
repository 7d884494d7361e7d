"""Stand-in for triton_python_backend_utils, after the documentation of Triton's Python backend.

https://github.com/triton-inference-server/python_backend
"""

from __future__ import annotations

import sys
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from ovgpu._util.dlpack import from_dlpack, to_dlpack

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
CPU = 1  # DLPack's number of the device type

Array = np.ndarray[Any, Any]


class TritonModelException(Exception):
    """Error of initialize, execute or finalize."""


class TritonError(Exception):
    """Error of a request, with a code."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        super().__init__(message)
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code


class Logger:
    """Log of the server; `lines` are kept for tests."""

    lines: ClassVar[list[str]] = []

    @staticmethod
    def log_info(message: str) -> None:
        Logger.lines.append(message)

    log_warn = log_error = log_verbose = log_info


class _Exported:
    """Object whose memory is that of a DLPack capsule."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0


class Tensor:
    """Named tensor, in host memory or on a device. ``array`` is for tests."""

    def __init__(self, name: str, array: Any) -> None:
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        self._name, self.array = name, array

    @staticmethod
    def from_dlpack(name: str, source: Any) -> Tensor:
        """Return a tensor in the memory of a capsule, or of an object with ``__dlpack__``."""
        if type(source).__name__ != "PyCapsule" and source.__dlpack_device__()[0] != CPU:
            return Tensor(name, source)
        array = from_dlpack(_Exported(source) if type(source).__name__ == "PyCapsule" else source)
        if 0 in array.strides:
            raise TritonModelException("DLPack tensor is not contiguous.")
        return Tensor(name, array)

    def name(self) -> str:
        return self._name

    def shape(self) -> list[int]:
        return list(self.array.shape)

    def is_cpu(self) -> bool:
        return isinstance(self.array, np.ndarray)

    def as_numpy(self) -> Array:
        if not self.is_cpu():
            raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")
        if self.array.dtype == ml_dtypes.bfloat16:
            raise TritonModelException("tensor dtype is bf16 and cannot be converted to numpy.")
        found: Array = self.array
        return found

    def __dlpack__(self, stream: Any = None) -> Any:  # older than the options of DLPack 1.0
        if self.is_cpu() and self.array.dtype == object:
            raise TritonModelException("DLPack does not have support for string tensors.")
        return to_dlpack(self.array) if self.is_cpu() else self.array.__dlpack__(stream=stream)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class InferenceResponse:
    """Output tensors of a request, or its error."""

    def __init__(self, output_tensors: list[Tensor] | None = None, error: TritonError | None = None) -> None:
        assert all(isinstance(tensor, Tensor) for tensor in output_tensors or [])
        self._tensors, self._error = output_tensors or [], error

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


class ResponseSender:
    """Sender of the responses to a request of a decoupled model; they are kept for tests."""

    def __init__(self) -> None:
        self.responses: list[InferenceResponse] = []
        self.closed = self.cancelled = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        if self.closed:
            raise TritonModelException("Unable to send response. Response sender has been closed.")
        if response is None and not flags:
            raise TritonModelException("Inference Response object must be provided when the flag is not set.")
        if response is not None:
            self.responses.append(response)
        self.closed = bool(flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def is_cancelled(self) -> bool:
        return self.cancelled


class InferenceRequest:
    """Request, as a model gets it."""

    def __init__(self, inputs: list[Tensor], outputs: list[str], correlation_id: int | str = 0, flags: int = 0) -> None:
        self._inputs, self._outputs, self._id, self._flags = inputs, outputs, correlation_id, flags
        self.sender = ResponseSender()

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def requested_output_names(self) -> list[str]:
        return self._outputs

    def correlation_id(self) -> int | str:
        return self._id

    def flags(self) -> int:
        return self._flags

    def is_cancelled(self) -> bool:
        return self.sender.cancelled

    def get_response_sender(self) -> ResponseSender:
        return self.sender


sys.modules.setdefault("triton_python_backend_utils", sys.modules[__name__])
