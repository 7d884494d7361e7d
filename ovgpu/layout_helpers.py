"""Layouts of ports, and the axes that they name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ovgpu._util.openvino_package import owns, required
from ovgpu.model import Output, node
from ovgpu.types import Layout

__all__ = [
    "batch_idx",
    "channels_idx",
    "depth_idx",
    "get_layout",
    "has_batch",
    "has_channels",
    "has_depth",
    "has_height",
    "has_width",
    "height_idx",
    "set_layout",
    "width_idx",
]


def get_layout(port: Output) -> Layout:
    """Return the layout of a port of a model of ovgpu or of openvino; an empty one if none is set."""
    if owns(port):
        return Layout(str(required("the port").layout_helpers.get_layout(port)))
    return node.get_layout(port)


def set_layout(port: Output, layout: Layout | str) -> None:
    """Set the layout of a port of a model of ovgpu or of openvino."""
    if owns(port):
        openvino: Any = required("the port")
        openvino.layout_helpers.set_layout(port, openvino.Layout(str(layout)))
    else:
        node.set_layout(port, layout)


def _has(name: str) -> Callable[[Layout], bool]:
    return lambda layout: layout.has_name(name)


def _index(name: str) -> Callable[[Layout], int]:
    return lambda layout: layout.get_index_by_name(name)


has_batch, batch_idx = _has("N"), _index("N")
has_channels, channels_idx = _has("C"), _index("C")
has_depth, depth_idx = _has("D"), _index("D")
has_height, height_idx = _has("H"), _index("H")
has_width, width_idx = _has("W"), _index("W")
