"""The exceptions of ovgpu. All are `RuntimeError`s, as OpenVINO's are."""

from __future__ import annotations

import re


class Error(RuntimeError):
    """Base of every error that ovgpu raises on purpose."""


class ModelError(Error):
    """A model file or a model is malformed."""


class OpError(Error):
    """An operation cannot be built, inferred or run; raised inside an op, located by its caller.

    The message of an op says only what is wrong ("axis 4 is out of range for rank 3"); whoever knows the
    node adds the rest with `at`: ``[Softmax] axis 4 is out of range for rank 3 (layer 'sm', id 17, m.xml)``.
    """

    located = False

    def at(self, op: str, location: str) -> OpError:
        """The same error with the op in front and the place behind; the innermost place wins."""
        if self.located:
            return self
        error = type(self)(f"[{op}] {self} ({location})" if location else f"[{op}] {self}")
        error.located = True
        return error


class UnsupportedOpError(Error):
    """The model has op types that ovgpu does not implement; names all of them with their layers."""


class DeviceError(Error):
    """A device does not exist, is not usable, or ran out of memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error, or one of its causes, is about missing memory."""
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
    """Return the message for an exception of a library: `explained`, or else its type and text."""
    return explained(error) or f"{type(error).__name__}: {error}"


def explained(error: Exception) -> str:
    """Return the message for an exception that numbers of the model cause: they ask for too much memory, do not fit
    into a type or make a shape negative. It is empty for other exceptions."""
    if isinstance(error, MemoryError):
        return str(error) if str(error).startswith("out of memory") else f"out of memory: {error}"
    if isinstance(error, OverflowError):
        return f"a number of the layer is too large: {error}"
    if isinstance(error, ValueError) and str(error).startswith(("Maximum allowed", "array is too big")):  # of NumPy
        return f"out of memory: {error}"
    if isinstance(error, ValueError) and NEGATIVE.search(str(error)):
        return "the result would have a negative extent"
    return ""
