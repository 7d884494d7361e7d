"""What nobody has expected, as an error that names the layer and says whose fault it is."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from ovgpu.errors import Error, OpError
from ovgpu.model import Node


def fault(doing: str, error: Exception) -> Error:
    """The error to raise from an exception that is none of ovgpu's own: a model or a call must not cause others.

    It names the innermost layer that the code was dealing with when it was raised.
    """
    text = f"{doing} failed: {type(error).__name__}: {error}. This is a fault of ovgpu, please report it"
    node = _node(error.__traceback__)
    return Error(text) if node is None else OpError(text).at(node.op.name, node.place)


def _node(traceback: TracebackType | None) -> Node | None:
    """The layer that a function on the way to where an exception was raised has as ``node``."""
    found: Node | None = None
    while traceback is not None:
        local: Any = traceback.tb_frame.f_locals.get("node")
        found = local if isinstance(local, Node) else found
        traceback = traceback.tb_next
    return found
