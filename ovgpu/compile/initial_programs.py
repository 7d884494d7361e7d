"""Programs that compute the initial values of variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ovgpu.lowering.program import Program
from ovgpu.model import Model, Output
from ovgpu.passes.subgraph import needed, reached, subgraph
from ovgpu.runtime.state import VariableInfo


@dataclass(frozen=True)
class Stage:
    """Variables whose initial values one model computes from the inputs and from the variables ``reads``."""

    names: tuple[str, ...]
    reads: tuple[str, ...]
    model: Model
    programs: dict[Any, Program]


class InitialPrograms:
    """Programs that compute the initial values of a model's variables, shared by its requests.

    The first stage needs no inputs, the later ones do. A variable whose initial value reads other variables is in a
    later stage than these. ``declared`` is the user's model, which determines the order of the variables and the types
    that users see. ``axes``: the axes along which variables grow, see `growing`.
    """

    def __init__(self, model: Model, declared: Model, axes: Mapping[str, int]) -> None:
        self.infos: dict[str, VariableInfo] = {}
        initial: dict[str, Output] = {}
        reads: dict[Output, str] = {}  # port -> name of the variable
        seen = {
            node.op.variable_id: node.ports[0].element_type  # type: ignore[attr-defined]
            for node in declared.ops
            if node.op.name == "ReadValue"
        }
        for node in model.ops:
            if node.op.name == "ReadValue":
                name, port = node.op.variable_id, node.ports[0]  # type: ignore[attr-defined]
                self.infos[name] = VariableInfo(
                    name, port.element_type, port.partial_shape, axes.get(name, 0), seen.get(name, port.element_type)
                )
                reads[port] = name
                if node.sources and node.sources[0] is not None:
                    initial[name] = node.sources[0]
        self.infos = {name: self.infos[name] for name in declared.states if name in self.infos}
        inputs, levels = set(model.parameters), dict[str, int]()
        for name, port in initial.items():  # `initial` lists a variable before its readers
            sources = [levels.get(reads[p], 0) for p in reached([port], reads)]
            fixed = not sources and not inputs & needed([], [port])
            levels[name] = 0 if fixed else 1 + max(sources, default=0)
        self.stages = []
        for level in range(max(levels.values(), default=0) + 1):
            names = tuple(name for name in initial if levels[name] == level)
            ports = reached([initial[name] for name in names], reads)
            subgraph_inputs = [*(model.inputs if level else ()), *ports]
            part = subgraph(model, subgraph_inputs, [initial[name] for name in names])
            self.stages.append(Stage(names, tuple(reads[port] for port in ports), part, {}))
