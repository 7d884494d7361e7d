"""Errors of calls, with status codes of gRPC and HTTP. Their texts have no paths of files."""

from __future__ import annotations

import re
from concurrent.futures import CancelledError
from enum import Enum
from typing import Any

from ovgpu.batching import BatchFullError
from ovgpu.errors import DeviceError, Error, is_out_of_memory

# The folders of an absolute path, which may have spaces inside their names. Names of layers may look the same.
PATH = re.compile(r"(?<![\w./])(?<!layer ')/(?:[^/\s'\"]+(?: [^/\s'\"]+)*/)+")
MAX_BYTES = 2000  # of an error's text: it may have names that a client made up, and gRPC sends it as a header


class Status(Enum):
    """Outcome of a call: the name is a status code of gRPC, the value one of HTTP."""

    OK = 200
    INVALID_ARGUMENT = 400
    UNAUTHENTICATED = 401
    PERMISSION_DENIED = 403
    NOT_FOUND = 404
    ALREADY_EXISTS = 409
    RESOURCE_EXHAUSTED = 429
    CANCELLED = 499
    INTERNAL = 500
    UNIMPLEMENTED = 501
    UNAVAILABLE = 503
    DEADLINE_EXCEEDED = 504


class ServeError(Error):
    """Error of a call, with its status. ``retry_after`` is in seconds, for calls that may succeed later."""

    def __init__(self, status: Status, message: str, retry_after: int | None = None) -> None:
        encoded = message.encode(errors="replace")  # JSON may have halves of surrogate pairs, which have no encoding
        super().__init__(encoded[:MAX_BYTES].decode(errors="ignore") + "..." * (len(encoded) > MAX_BYTES))
        self.status, self.retry_after = status, retry_after

    def __reduce__(self) -> Any:
        return ServeError, (self.status, str(self), self.retry_after)


def invalid(message: str) -> ServeError:
    """Return the error of a call with wrong arguments."""
    return ServeError(Status.INVALID_ARGUMENT, message)


def public(error: BaseException) -> ServeError:
    """Return an exception as an error that a client may see, without paths, and without details of internal errors."""
    if isinstance(error, ServeError):
        return error
    text = PATH.sub("", str(error))
    if isinstance(error, BatchFullError):
        return ServeError(Status.RESOURCE_EXHAUSTED, text, 1)
    if is_out_of_memory(error):
        return ServeError(Status.RESOURCE_EXHAUSTED, text)
    if isinstance(error, CancelledError):
        return ServeError(Status.CANCELLED, "the inference was cancelled")
    if isinstance(error, DeviceError) or not isinstance(error, Error):
        return ServeError(Status.INTERNAL, "internal error of the server")
    return ServeError(Status.INVALID_ARGUMENT, text)
