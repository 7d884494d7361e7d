"""Requests and responses of inferences, in one form for REST and gRPC."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from ovgpu.serve.errors import ServeError, Status, invalid
from ovgpu.types import Type

Array = np.ndarray[Any, Any]
SequenceId = int | str

CONTROL_ID, CONTROL = "sequence_id", "sequence_control_input"  # inputs of OpenVINO Model Server
NO_CONTROL, START, END = 0, 1, 2  # values of CONTROL
MAX_ID_LENGTH = 1024  # characters of a sequence's id, which is kept for some time after the end of the sequence


@dataclass(frozen=True)
class Placement:
    """Bytes in a region of shared memory."""

    region: str
    offset: int
    size: int


@dataclass(frozen=True)
class NamedTensor:
    """Input or output with its name, element type and values. The client has those of a ``placed`` output in shared
    memory."""

    name: str
    dtype: Type
    array: Array
    placed: bool = False


@dataclass(frozen=True)
class PlacedInput:
    """Input whose values are in shared memory."""

    name: str
    dtype: Type
    shape: tuple[int, ...]
    placement: Placement


@dataclass(frozen=True)
class SequenceStep:
    """Step of a sequence: its id, and whether an inference starts and ends it.

    ``strict`` is True for the control inputs of OpenVINO Model Server. With them, it is an error to start an id that is
    in use, and an ``id`` of 0 asks for a new id. With Triton's parameters, the sequence then begins anew.

    ``number`` counts the steps of a sequence from 1 on. With it, a step can be repeated safely, see `OpenSequences`.
    """

    id: SequenceId
    start: bool = False
    end: bool = False
    strict: bool = False
    number: int | None = None


@dataclass(frozen=True)
class RequestedOutput:
    """Output that a request asks for. If ``classes`` is not 0, its highest values are wanted, see `classified`.
    ``placement`` is a place in shared memory for its values."""

    name: str
    classes: int = 0
    placement: Placement | None = None


def placement(name: str, parameters: Mapping[str, Any]) -> Placement | None:
    """Return the place in shared memory that the parameters of an input or output have, or None without one.

    Raises: ServeError for wrong ones.
    """
    region, size = parameters.get("shared_memory_region"), parameters.get("shared_memory_byte_size")
    offset = parameters.get("shared_memory_offset", 0)
    if region is None and size is None:
        return None
    if not isinstance(region, str) or any(type(x) is not int or not 0 <= x < 2**62 for x in (offset, size)):
        raise invalid(f"'{name}' needs shared_memory_region and shared_memory_byte_size, a string and a number")
    return Placement(region, offset, cast(int, size))


def requested_output(name: str, parameters: Mapping[str, Any]) -> RequestedOutput:
    """Return an output with the parameters that a request has for it. Raise ServeError for wrong ones."""
    classes = parameters.get("classification", 0)
    if type(classes) is not int or not 0 <= classes < 2**32:
        raise invalid(f"classification {classes!r} of output '{name}' is no number of classes")
    place = placement(name, parameters)
    if place is not None and classes:
        raise invalid(f"classes of output '{name}' cannot be in shared memory")
    return RequestedOutput(name, classes, place)


@dataclass
class InferenceRequest:
    """Request for an inference. ``outputs`` are the wanted outputs; an empty tuple means all of them. ``placed`` are
    inputs that must be read from shared memory.

    ``parameters`` are those of the request, such as ``sequence_id``; ``deadline`` is a time of `time.monotonic`.
    """

    model: str
    version: str
    inputs: list[NamedTensor]
    outputs: tuple[RequestedOutput, ...] = ()
    id: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    deadline: float | None = None
    placed: list[PlacedInput] = field(default_factory=list)

    def refuse_shared_memory(self) -> None:
        """Raise ServeError if inputs or outputs are in shared memory."""
        if self.placed or any(output.placement for output in self.outputs):
            raise ServeError(Status.UNIMPLEMENTED, "shared memory is not supported")

    def sequence(self, names: Container[str]) -> SequenceStep | None:
        """Return the step of a sequence that the request asks for, or None. ``names`` are those of the model's inputs.

        Raises: ServeError for parameters or control inputs of a wrong type, and for an id that is too long.
        """
        number = self.parameters.get("sequence_step")
        if number is not None and (type(number) is not int or number < 1):
            raise invalid(f"sequence_step {number!r} is no number from 1 on")
        given = [tensor for tensor in self.inputs if tensor.name in (CONTROL_ID, CONTROL) and tensor.name not in names]
        if given:
            controls = {tensor.name: tensor for tensor in given}
            if len(controls) < len(given):
                raise invalid(f"input '{given[0].name}' or '{given[-1].name}' is given twice")
            control_id = _scalar(controls.get(CONTROL_ID))
            if control_id < 0:
                raise invalid(f"{CONTROL_ID} {control_id} is negative")
            control = _scalar(controls.get(CONTROL))
            if not NO_CONTROL <= control <= END:
                raise invalid(f"{CONTROL} is {control}, not 0, 1 (start) or 2 (end)")
            return SequenceStep(control_id, control == START, control == END, True, number)
        sequence_id = self.parameters.get("sequence_id", 0)
        if isinstance(sequence_id, bool) or not isinstance(sequence_id, (int, str)):
            raise invalid(f"sequence_id {sequence_id!r} is neither a number nor a string")
        if isinstance(sequence_id, str) and len(sequence_id) > MAX_ID_LENGTH:
            raise invalid(f"sequence_id has {len(sequence_id):,} characters, and {MAX_ID_LENGTH:,} are allowed")
        flags = [self.parameters.get(name, False) for name in ("sequence_start", "sequence_end")]
        if any(not isinstance(flag, bool) for flag in flags):
            raise invalid("sequence_start and sequence_end are true or false")
        start, end = flags
        return SequenceStep(sequence_id, start, end, number=number) if sequence_id not in (0, "") else None


def _scalar(tensor: NamedTensor | None) -> int:
    """Return the integer in a control input, or 0 without the input."""
    if tensor is None:
        return 0
    if not tensor.dtype.integral or tensor.dtype is Type.string or tensor.array.size != 1:
        raise invalid(f"input '{tensor.name}' is not one integer")
    return int(tensor.array.reshape(()))


@dataclass(frozen=True)
class InferenceResponse:
    """Outputs of an inference, and the version of the model that computed them."""

    model: str
    version: str
    id: str
    outputs: list[NamedTensor]
    parameters: dict[str, Any]
