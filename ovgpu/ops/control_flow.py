"""Ops with a body: TensorIterator, Loop, If."""

from __future__ import annotations

from dataclasses import dataclass

from ovgpu.model import Model
from ovgpu.ops._op import Op, op


@dataclass(frozen=True)
class InputMap:
    """An input of the node that enters the body: whole, or sliced along ``axis``, one slice per iteration.

    ``start`` and ``end`` (exclusive) count from the end of the axis when negative, -1 being one past the last
    element; ``part_size`` elements make a slice, and ``stride`` (either sign) leads to the next one.
    """

    port: int
    """Index among the node's inputs."""
    parameter: int
    """Index in ``body.parameters``."""
    axis: int | None = None
    start: int = 0
    end: int = -1
    stride: int = 1
    part_size: int = 1


@dataclass(frozen=True)
class OutputMap:
    """A result of the body that leaves it: the last iteration's, or all concatenated along ``axis``."""

    port: int
    """Index among the node's outputs."""
    result: int
    """Index in ``body.results``."""
    axis: int | None = None
    start: int = 0
    end: int = -1
    stride: int = 1
    part_size: int = 1


@dataclass(frozen=True)
class BackEdge:
    """A result of an iteration that is a parameter of the next one."""

    result: int
    """Index in ``body.results``."""
    parameter: int
    """Index in ``body.parameters``."""


@op("TensorIterator", "opset1")
class TensorIterator(Op):
    """Runs ``body`` once per slice of the sliced inputs."""

    body: Model
    inputs: tuple[InputMap, ...]
    outputs: tuple[OutputMap, ...]
    back_edges: tuple[BackEdge, ...] = ()


@op("Loop", "opset5")
class Loop(Op):
    """Runs ``body`` up to input 0 times (-1: no limit), and only while input 1 and then `condition` hold."""

    body: Model
    inputs: tuple[InputMap, ...]
    outputs: tuple[OutputMap, ...]
    back_edges: tuple[BackEdge, ...] = ()
    current_iteration: int | None = None
    """Index in ``body.parameters`` of the one that gets the iteration number."""
    condition: int | None = None
    """Index in ``body.results`` of the one that says whether to go on."""


@op("If", "opset8")
class If(Op):
    """Runs ``then_body`` if input 0 is true, else ``else_body``."""

    then_body: Model
    else_body: Model
    then_inputs: tuple[InputMap, ...]
    else_inputs: tuple[InputMap, ...]
    then_outputs: tuple[OutputMap, ...]
    else_outputs: tuple[OutputMap, ...]
