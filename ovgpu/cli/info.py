"""``ovgpu info``: what a model is made of, and what running it takes."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from rich.text import Text

from ovgpu.cli._inputs import parse_shapes, port_name, static_shape
from ovgpu.cli._print import console, ports_table, table
from ovgpu.core import Core
from ovgpu.ops._unsupported import Unsupported, all_nodes
from ovgpu.ops.graph import Constant
from ovgpu.runtime.printing import bytes_text, counted


def add_to(commands: Any) -> None:
    parser = commands.add_parser("info", help="inputs, outputs, states and ops of a model; its plan")
    parser.add_argument("model", help="the .xml file of the model")
    parser.add_argument("--plan", action="store_true", help="compile the model and print its steps and memory")
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=[1,3]",
                        help="shapes of dynamic inputs, for the plan")
    parser.add_argument("--device", default="AUTO", help="for the plan: CPU, NVIDIA[.n] or AUTO (default)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    core, out = Core(), console()
    model = core.read_model(args.model)
    nodes = list(all_nodes(model))
    weights = {id(n.op.value): n.op.value.nbytes for n in nodes if isinstance(n.op, Constant)}
    out.print(f"[bold]{model.friendly_name}[/]  {args.model}", soft_wrap=True)
    out.print(f"{counted(len(nodes), 'layer')}, {bytes_text(sum(weights.values()))} of weights in "
              f"{counted(len(weights), 'constant')}")
    out.print(ports_table("Inputs", model.inputs))
    out.print(ports_table("Outputs", model.outputs))
    states = {n.op.variable_id: n.outputs[0] for n in nodes if n.op.name == "ReadValue"}  # type: ignore[attr-defined]
    if states:
        out.print(table("State", ("variable", "type", "shape"), (
            (name, port.element_type.get_type_name(), port.partial_shape) for name, port in states.items())))
    counts = Counter((n.op.name, n.op.version, isinstance(n.op, Unsupported)) for n in nodes)
    out.print(table("Operations", ("op", "version", "count", ""), (
        (name, version, count, Text("not supported", "bold red") if unsupported else "")
        for (name, version, unsupported), count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        right=(2,)))
    if args.plan:
        compiled = core.compile_model(model, args.device)
        shapes = parse_shapes(args.shape, compiled.inputs)
        plan = compiled.plan([static_shape(port, shapes.get(i, [None])[0], "--shape")
                              for i, port in enumerate(compiled.inputs)])
        out.print(Text("Plan for " + ", ".join(
            f"{port_name(p)} {list(static_shape(p, shapes.get(i, [None])[0], '--shape'))}"
            for i, p in enumerate(compiled.inputs)), "bold"))
        out.print(plan)
