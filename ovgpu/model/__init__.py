"""Graph of a model: nodes with one op each, ports that connect them, and the model that holds them."""

from __future__ import annotations

from .graph import Model, get_batch, set_batch
from .node import Input, Node, Operation, Output
from .ports import PortKey, Ports, find_port
from .rt_info import OVAny, RTMap

__all__ = [
    "Input",
    "Model",
    "Node",
    "OVAny",
    "Operation",
    "Output",
    "PortKey",
    "Ports",
    "RTMap",
    "find_port",
    "get_batch",
    "set_batch",
]
