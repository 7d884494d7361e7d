"""Exceptions of ovgpu. All are subclasses of `RuntimeError`, as OpenVINO's are."""

from __future__ import annotations

import re


class Error(RuntimeError):
    """Base class of every error that ovgpu raises on purpose."""


class ModelError(Error):
    """Error of a malformed model or model file."""


class OpError(Error):
    """Error of an operation that cannot be built, inferred or run.

    An op raises it with only the fault in its message ("axis 4 is out of range for rank 3"). The caller, which knows
    the node, adds the rest with `at`: ``[Softmax] axis 4 is out of range for rank 3 (layer 'sm', id 17, m.xml)``.
    """

    located = False  # True once `at` has added the op and the location

    def at(self, op: str, location: str) -> OpError:
        """Return the error with the op before its message and the location after it; unchanged if it has them."""
        if self.located:
            return self
        error = type(self)(f"[{op}] {self} ({location})" if location else f"[{op}] {self}")
        error.located = True
        return error


class UnsupportedOpError(Error):
    """Error of a model with op types that ovgpu does not implement; it names all of them with their layers."""


class DeviceError(Error):
    """Error of a device that does not exist, is not usable, or ran out of memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error, or an exception in its chain of causes, reports that memory ran out."""
    cause: BaseException | None = error
    seen: list[BaseException] = []  # an error may be raised from itself
    while cause is not None and cause not in seen:
        if isinstance(cause, MemoryError) or str(cause).partition("] ")[2].startswith("out of memory"):
            return True
        seen.append(cause)
        cause = cause.__cause__
    return False


NEGATIVE = re.compile("negative dimensions|must be non-negative")  # in the messages of NumPy and CuPy


def explain(error: Exception) -> str:
    """Return the message for an exception of a library: that of `explained`, or else its type and text."""
    return explained(error) or f"{type(error).__name__}: {error}"


def explained(error: Exception) -> str:
    """Return the message for an exception that the model's numbers cause, or "" for other exceptions.

    Such numbers need too much memory, do not fit into a type, or make an extent negative.
    """
    if isinstance(error, MemoryError):
        return str(error) if str(error).startswith("out of memory") else f"out of memory: {error}"
    if isinstance(error, OverflowError):
        return f"a number of the layer is too large: {error}"
    if isinstance(error, ValueError) and str(error).startswith(("Maximum allowed", "array is too big")):  # NumPy
        return f"out of memory: {error}"
    if isinstance(error, ValueError) and NEGATIVE.search(str(error)):
        return "the result would have a negative extent"
    return ""
