"""Graph of a model: nodes with one op each, ports that connect them, and the model that holds them."""

from __future__ import annotations

from .batch import get_batch, set_batch
from .graph import Model, all_nodes, bodies
from .node import Input, Node, Operation, Output
from .ports import PortKey, Ports, find_port
from .rt_info import RTMap

__all__ = [
    "Input",
    "Model",
    "Node",
    "Operation",
    "Output",
    "PortKey",
    "Ports",
    "RTMap",
    "all_nodes",
    "bodies",
    "find_port",
    "get_batch",
    "set_batch",
]
