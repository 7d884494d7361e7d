"""Conversion of unexpected exceptions to errors that name the layer and report missing memory or a bug in ovgpu."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from ovgpu.errors import Error, OpError, explained
from ovgpu.model import Node


def fault(doing: str, error: Exception) -> Error:
    """Return the error to raise in place of an unexpected exception. ``doing`` says what ovgpu was doing.

    The error names the innermost layer that the code was working on.
    """
    text = explained(error) or (
        f"{doing} failed: {type(error).__name__}: {error}. This is a fault of ovgpu, please report it"
    )
    node = _node(error.__traceback__)
    return Error(text) if node is None else OpError(text).at(node.op.name, node.source_location)


def _node(traceback: TracebackType | None) -> Node | None:
    """Return the layer in the variable ``node`` of the innermost frame that has one."""
    innermost: Node | None = None
    while traceback is not None:
        local: Any = traceback.tb_frame.f_locals.get("node")
        innermost = local if isinstance(local, Node) else innermost
        traceback = traceback.tb_next
    return innermost
