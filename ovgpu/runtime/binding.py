"""Bindings: the arrays and calls of a segment for one set of symbol values, and the host values that steps take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ovgpu.lowering.program import HostInput, Segment
from ovgpu.ops.base.op import Array
from ovgpu.ops.base.storage import decode
from ovgpu.runtime.backend import Call, Recording
from ovgpu.runtime.memory import Layout
from ovgpu.types import Type

Constants = dict[int, tuple[Any, Array]]
"""A model's constants on the device, shared by its requests: id of the host array -> (that array, the constant)."""


class Recorded(Recording, Protocol):
    """A recording that knows the calls of each step."""

    @property
    def calls(self) -> Sequence[Sequence[Call]]: ...


class MemoryProvider(Protocol):
    """Provider of a program's memory: of its outputs and of its variables' new values.

    `host` returns the host array to download an output to, or None if it is not downloaded.
    """

    def output(self, index: int, shape: tuple[int, ...], element_type: Type) -> Array: ...
    def variable(
        self, name: str, shape: tuple[int, ...], element_type: Type, strides: tuple[int, ...], append: bool
    ) -> Array: ...
    def host(self, index: int) -> Array | None: ...


@dataclass(slots=True, weakref_slot=True, eq=False)
class Binding:
    """Segment bound to one set of symbol values: arrays in the order of `Segment.values`, calls in that of `steps`."""

    symbol_values: tuple[int, ...]
    hosts: list[Any]  # see `host_values`
    outside: dict[int, Array]  # the arrays that come from outside the segment, by value id
    layout: Layout
    arrays: list[Array]
    calls: list[Sequence[Call]]
    flat: list[Call] = field(default_factory=list)  # all calls in order
    runs: int = 0  # this and the next three: see `Recording`
    graph: Any = None
    reason: str = ""
    number: int = 0
    started: bool = False  # whether its calls have run once already, while they were bound


def host_values(segment: Segment, hosts: Sequence[Any]) -> list[Any]:
    """Return copies of the host nodes' results that steps take, None for the others. Copies are needed because some are
    the caller's inputs, which the next inference overwrites."""
    return [np.array(h) if i in segment.read_host_nodes else None for i, h in enumerate(hosts)]


def host_value(
    segment: Segment, given: HostInput, symbol_values: Sequence[int], hosts: Sequence[Any]
) -> np.ndarray[Any, Any]:
    """Return a host input's value for these symbol values and results of host nodes."""
    if given.constant is not None:
        return given.constant
    if given.ints is not None:
        values = [segment.resolve(i, symbol_values) for i in given.ints]
        return np.array(values, given.type.storage).reshape(given.shape)
    result: np.ndarray[Any, Any] = hosts[given.host_node]
    return decode(result) if result.dtype.kind == "V" else result
