"""Inferences as REST and gRPC describe them, in one form for both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ovgpu.serve.errors import invalid
from ovgpu.types import Type

Array = np.ndarray[Any, Any]
SequenceId = int | str

CONTROL_ID, CONTROL = "sequence_id", "sequence_control_input"  # inputs of OpenVINO Model Server
NO_CONTROL, START, END = 0, 1, 2  # values of CONTROL


@dataclass(frozen=True)
class NamedTensor:
    """Input or output with its name, element type and values."""

    name: str
    kind: Type
    array: Array


@dataclass(frozen=True)
class SequenceStep:
    """Place of an inference in its sequence.

    ``strict`` is True for the control inputs of OpenVINO Model Server, which refuse to start an id that is in use; an
    ``id`` of 0 then asks for a new one. Triton's parameters start it anew.
    """

    id: SequenceId
    start: bool = False
    end: bool = False
    strict: bool = False


@dataclass
class InferenceRequest:
    """Request for an inference. ``outputs`` are the names of outputs that are wanted, none for all of them.

    ``parameters`` are the request's own, such as ``sequence_id``; ``deadline`` is a time of `time.monotonic`.
    """

    model: str
    version: str
    inputs: list[NamedTensor]
    outputs: tuple[str, ...] = ()
    id: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    deadline: float | None = None

    def sequence(self, names: frozenset[str]) -> SequenceStep | None:
        """Return the request's place in a sequence, None if it has none. ``names`` are those of the model's inputs.

        Raises: ServeError for parameters or control inputs of a wrong type.
        """
        given = [tensor for tensor in self.inputs if tensor.name in (CONTROL_ID, CONTROL) and tensor.name not in names]
        if given:
            controls = {tensor.name: tensor for tensor in given}
            if len(controls) < len(given):
                raise invalid(f"input '{given[0].name}' or '{given[-1].name}' is given twice")
            number = _scalar(controls.get(CONTROL_ID))
            if number < 0:
                raise invalid(f"{CONTROL_ID} {number} is negative")
            control = _scalar(controls.get(CONTROL))
            if not NO_CONTROL <= control <= END:
                raise invalid(f"{CONTROL} is {control}, not 0, 1 (start) or 2 (end)")
            return SequenceStep(number, control == START, control == END, True)
        found = self.parameters.get("sequence_id", 0)
        if isinstance(found, bool) or not isinstance(found, (int, str)):
            raise invalid(f"sequence_id {found!r} is neither a number nor a string")
        flags = [self.parameters.get(name, False) for name in ("sequence_start", "sequence_end")]
        if any(not isinstance(flag, bool) for flag in flags):
            raise invalid("sequence_start and sequence_end are true or false")
        return SequenceStep(found, *flags) if found not in (0, "") else None


def _scalar(tensor: NamedTensor | None) -> int:
    if tensor is None:
        return 0
    if not tensor.kind.integral or tensor.kind is Type.string or tensor.array.size != 1:
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
