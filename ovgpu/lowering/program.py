"""Compiled form of a model: a flat program of steps, whose extents are symbols.

A `Program` is a list of `Value`s (tensors, each with its memory and its view of it) and of `Segment`s of
`Step`s. Every extent, stride and offset is an int or a `Sym`. When a segment starts, its `shape_function` computes the
values of those symbols. A segment ends where the next one needs a number that is known only at run time: an extent of a
data-dependent result, or a computed value on the host.

A program is plain data: nothing here runs, allocates, or knows a backend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ovgpu.model import Model, Node, Output
from ovgpu.ops.base.op import Arrays, Op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.view import View
from ovgpu.ops.fused._epilogue import OpWithEpilogue
from ovgpu.ops.fused.channels_last import ChannelsLastConvolution
from ovgpu.symbolic import Int, Sym
from ovgpu.types import Type

MemoryKind = Literal["constant", "input", "state", "buffer", "output", "variable", "eager"]


@dataclass(slots=True)
class Value:
    """A tensor of the program: a ``view`` of the memory of value ``root``.

    A root owns memory, of one of these kinds: constant (``source``: the array), input (``source``: its index), state
    (a variable's current buffer; ``source``: its id), variable (the buffer that becomes current on success; ``source``:
    the variable's id), output (``source``: the result's index), buffer (part of the segment's arena) or eager
    (allocated by the step that computes it).
    """

    id: int
    type: Type
    view: View
    root: int
    memory: MemoryKind
    source: Any = None
    name: str = ""

    @property
    def is_root(self) -> bool:
        return self.id == self.root


@dataclass(slots=True)
class HostInput:
    """Source of an input's value on the host: a constant, Ints of symbols, or the result of a host node."""

    constant: np.ndarray[Any, Any] | None = None
    ints: tuple[Int, ...] | None = None
    shape: tuple[int, ...] = ()
    type: Type = Type.i64
    host_node: int = -1


@dataclass(slots=True)
class Body:
    """A body of a control flow op: its model, and its program unless one is built at run time.

    ``dense`` builds a variant of the program whose inputs and results are dense and in memory of their own.
    """

    model: Model
    program: Program | None
    dense: Callable[[], Program | None] | None = None


@dataclass(slots=True)
class Step:
    """One op on values.

    Kinds: bound (writes to given outputs), eager (`evaluate` allocates the results), copy, control (bodies bound
    ahead), and upload of an input or download of a result where device and host have separate memory.
    """

    op: Op
    kind: Literal["bound", "copy", "eager", "control", "upload", "download"]
    inputs: tuple[int, ...]  # value ids; -1 where absent or on the host only
    outputs: tuple[int, ...]
    workspace: tuple[int, ...] = ()
    host: dict[int, HostInput] = field(default_factory=dict)
    node: Node | None = None
    bodies: tuple[Body, ...] = ()
    types: tuple[Type, ...] = ()  # types of the outputs

    @property
    def name(self) -> str:
        return self.node.friendly_name if self.node is not None else ""

    @property
    def source_location(self) -> str:
        """The source location of the layer that gives the step its name."""
        if isinstance(self.op, (OpWithEpilogue, ChannelsLastConvolution)):
            return self.op.layer.source_location
        return self.node.source_location if self.node is not None else ""


@dataclass(slots=True)
class ElidedNode:
    """A node without a step, because its outputs are views; recorded for the plan."""

    node: Node
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    segment: int
    position: int  # number of the segment's steps before it


@dataclass(slots=True)
class HostNode:
    """An op that the shape function evaluates: shape arithmetic that symbols cannot express."""

    op: Op
    inputs: tuple[HostInput | int | None, ...]  # an int is a value id: an input, or a computed value to fetch
    outputs: tuple[Type, ...]
    source_location: str


Geometry = Callable[[Sequence[int]], tuple[tuple[int, ...], tuple[int, ...], int]]
"""A function from symbol values to (shape, strides in bytes, offset in bytes)."""


@dataclass(slots=True)
class Segment:
    """Steps that run without reading any result back to the host in between."""

    steps: list[Step] = field(default_factory=list)
    values: list[int] = field(default_factory=list)  # ids of the values whose arrays this segment makes, in order
    symbols: list[Int] = field(default_factory=list)  # the shape function returns their values
    host_nodes: list[HostNode] = field(default_factory=list)
    fetches: set[int] = field(default_factory=set)  # value ids that the shape function reads on the host
    read_host_nodes: list[int] = field(default_factory=list)  # indices of the host nodes whose results steps take
    shape_function: Callable[[Sequence[Any]], tuple[tuple[int, ...], list[Any]]] = lambda arrays: ((), [])
    shape_function_source: str = ""
    buffers: list[Buffer] = field(default_factory=list)
    value_deps: dict[int, list[int]] = field(default_factory=dict)  # position in `symbols` -> positions in `values`
    step_deps: dict[int, list[int]] = field(default_factory=dict)  # position in `symbols` -> positions in `steps`
    # value from outside the segment -> positions in `values` of its views, and in `steps` of the steps that use it
    external_users: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict)
    geometries: list[tuple[Geometry, int, int, Type]] = field(default_factory=list)  # `_array_recipe` per value
    # (position in `buffers`, position of its size in `symbols`)
    dynamic_sizes: list[tuple[int, int]] = field(default_factory=list)
    position_of: dict[int, int] = field(default_factory=dict)  # root -> position in `buffers`
    caller_roots: dict[int, Geometry] = field(default_factory=dict)  # roots in the caller's memory: outputs, variables
    index: dict[int, int] = field(default_factory=dict)  # index of a Sym -> its position in `symbols`
    host_node_of: dict[Output, int] = field(default_factory=dict)  # port -> index in `host_nodes`, while building

    def add_symbol(self, value: Int) -> None:
        """Add a symbol, unless the segment has it or ``value`` is a number."""
        if isinstance(value, Sym) and value.index not in self.index:
            self.index[value.index] = len(self.symbols)
            self.symbols.append(value)

    def resolve(self, value: Int, symbol_values: Sequence[int]) -> int:
        """Return the value of an int or symbol, given the values of `symbols`."""
        return symbol_values[self.index[value.index]] if isinstance(value, Sym) else value


@dataclass(slots=True)
class Buffer:
    """A root in the arena: its size in bytes, and its live range from step ``first`` to step ``last``."""

    root: int
    nbytes: Int
    first: int
    last: int
    shares: int = -1  # position in `buffers` of the buffer whose memory it takes over in place, or -1


@dataclass(slots=True)
class Program:
    """A compiled model, see the module's docstring. ``inputs`` and ``results``: value ids per parameter and result."""

    values: list[Value]
    segments: list[Segment]
    inputs: list[int]
    results: list[int]
    states: dict[str, int]  # variable id -> its state value (the result of ReadValue)
    assigns: dict[str, int]  # variable id -> the value that Assign takes
    # id of a variable that a cache append assigns -> host input that is true if the new value begins with the old one;
    # None instead of the input if it always does
    appended: dict[str, HostInput | None]
    host_parameters: set[int]  # indices of the inputs whose values the shape function reads
    deferred: DeferredModel | None = None
    source: str = ""
    views: list[ElidedNode] = field(default_factory=list)
    caches: dict[int, str] = field(default_factory=dict)  # index of an input that is a whole cache -> variable id

    @property
    def steps(self) -> list[Step]:
        return [step for segment in self.segments for step in segment.steps]


@dataclass(slots=True)
class DeferredModel:
    """The nodes after a result of unknown rank: a model whose program is built at run time, once per rank."""

    model: Model
    inputs: list[int]  # the values that are the parameters of ``model``
    programs: dict[tuple[Any, ...], Program] = field(default_factory=dict)


def constants(program: Program) -> dict[int, np.ndarray[Any, Any]]:
    """Return, by `id`, the constants of a program and of its bodies, except bodies built at run time."""
    arrays = {id(v.source): v.source for v in program.values if v.memory == "constant" and v.is_root}
    for step in program.steps:
        for body in step.bodies:
            if body.program is not None:
                arrays.update(constants(body.program))
    return arrays


class Copy(Op):
    """A copy that lowering inserts where memory must be dense, or where a value is needed in other memory as well."""

    name = "Copy"
    version = "ovgpu"
    exact = True
    strided_outputs = True
    moves_elements = True

    def evaluate(self, xp: Any, x: Any) -> tuple[Any, ...]:
        return (x,)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        k(np.copyto, outputs[0], inputs[0])

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        k.copy(inputs[0], outputs[0])

    def attributes(self) -> dict[str, Any]:
        return {}


class Upload(Op):
    """The copy of an input from the host to the device."""

    name = "Upload"
    version = "ovgpu"

    def attributes(self) -> dict[str, Any]:
        return {}


class Download(Upload):
    """The copy of a result from the device to the host."""

    name = "Download"
