"""Finding a port by number, by tensor name, or by being the only one."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from .node import Node, Output

PortKey = int | str | Output


class Ports:
    """What a model and a compiled model share: inputs (parameters) and outputs (results)."""

    parameters: list[Node]
    results: list[Node]

    @property
    def inputs(self) -> list[Output]:
        return [p.outputs[0] for p in self.parameters]

    @property
    def outputs(self) -> list[Output]:
        return [r.outputs[0] for r in self.results]

    def input(self, key: PortKey | None = None) -> Output:
        """The input of that number or tensor name; without one, the only input."""
        return find_port(self.inputs, key, "input")

    def output(self, key: PortKey | None = None) -> Output:
        """The output of that number or tensor name; without one, the only output."""
        return find_port(self.outputs, key, "output")


def find_port(ports: Sequence[Output], key: Any, kind: str) -> Output:
    """The port that a number, a tensor name or a port means.

    A tensor that is an output is also known by its names inside the model, and a port of the graph stands for
    the input or output it leads from or to.

    Raises: RuntimeError naming what there is, IndexError for a number out of range, TypeError for other keys.
    """
    if key is None:
        if len(ports) != 1:
            raise RuntimeError(f"{kind}() needs a model with exactly one {kind}; it has {len(ports)}")
        return ports[0]
    if isinstance(key, str):
        found = ([p for p in ports if key in p.get_names()]
                 or [p for p in ports if key in p.tensor_port.get_names()])
    elif isinstance(key, Output):
        found = [p for p in ports if p is key] or [p for p in ports if p.tensor_port is key]
    else:
        number = operator.index(key)
        if number < 0:
            raise TypeError(f"the number of an {kind} is not negative, as {number} is")
        if number >= len(ports):
            raise IndexError(f"there is no {kind} {number}: the model has {len(ports)}")
        return ports[number]
    if not found:
        there = ", ".join(min(p.get_names(), default=f"#{i}") for i, p in enumerate(ports)) or "none"
        title = kind.capitalize()
        what = f"tensor name '{key}'" if isinstance(key, str) else f"port {key}"
        raise RuntimeError(f"{title} for {what} is not found. The model has: {there}")
    return found[0]
