"""``ovgpu info``: the available devices, or the contents of a model and its plan."""

from __future__ import annotations

import argparse
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from ovgpu.api.compiled_model import CompiledModel
from ovgpu.api.core import Core
from ovgpu.backends.cuda import device
from ovgpu.backends.cuda.kernels import refused_clusters
from ovgpu.cli import graph
from ovgpu.cli._feed import Feed
from ovgpu.cli._inputs import fill, is_decoder
from ovgpu.cli._ports import parse_shapes, port_name, static_shapes
from ovgpu.cli._print import MODEL, console, headed, table
from ovgpu.errors import DeviceError
from ovgpu.model import Node, Output, all_nodes
from ovgpu.model.ports import ports_table
from ovgpu.ops.base.unsupported import Unsupported
from ovgpu.ops.infrastructure.graph import Constant
from ovgpu.runtime.plan import Plan
from ovgpu.runtime.printing import STYLES, bytes_text, counted, legend
from ovgpu.version import OWN

INFERENCES = 3  # before steps are timed: the second captures a graph, and a decoder's first is not a decode step


def add_to(commands: Any) -> None:
    """Add the command to the subparsers ``commands``."""
    parser = commands.add_parser("info", help="show the devices, or inputs, outputs, states, ops and plan of a model")
    parser.add_argument("model", nargs="?", help=f"{MODEL}; without it, the devices")
    parser.add_argument(
        "--plan",
        action="store_true",
        help="compile the model and print its steps and memory; on a card, also run it on random "
        "inputs, and print the time of each step",
    )
    graph.add_options(parser)
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=[1,3]",
        help="shapes of dynamic inputs, for the plan; by default, a language model with state gets one token",
    )
    parser.add_argument("--times", action="store_true", help="with --plan: measure the steps also on the CPU")
    parser.add_argument("-d", "--device", default="AUTO", help="for the plan: CPU, NVIDIA[.n] or AUTO (default)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Print the model, or the devices if no model is given."""
    if args.model is None:
        _print_devices()
    else:
        _print_model(args)


def _print_devices() -> None:
    core, out = Core(), console()
    out.print(f"ovgpu {OWN}, Python {platform.python_version()}, NumPy {np.__version__}")
    out.print(headed("CPU", f"  {core.get_property('CPU', 'FULL_DEVICE_NAME')}"), soft_wrap=True)
    try:
        cards = device.count()
    except DeviceError as e:
        out.print(headed("NVIDIA", f"  cannot be used: {e}"), soft_wrap=True)
        return
    for index in range(cards):
        _print_card(out, f"NVIDIA.{index}", index)
    out.print(f"driver {device.driver()}; {device.libraries()}", soft_wrap=True)


def _print_card(out: Console, name: str, index: int) -> None:
    card, memory = device.card(index), device.memory(index)
    out.print(
        headed(
            name,
            f"  {card.name}, {card.architecture}, {counted(card.multiprocessors, 'multiprocessor')}, "
            f"{bytes_text(memory['free'])} of {bytes_text(memory['total'])} free",
        ),
        soft_wrap=True,
    )
    try:
        device.check(index)
        device.check_compiler(index)
        blocks = device.largest_cluster(index)
    except DeviceError as e:
        out.print("    cannot be used:", Text(str(e)), soft_wrap=True)
        return
    out.print(f"    clusters of up to {blocks} blocks" if blocks > 1 else "    no clusters of blocks")


def _print_model(args: argparse.Namespace) -> None:
    graph.check(args)
    if args.times and not args.plan:
        raise ValueError("--times measures the steps of the plan: add --plan")
    core, out = Core(), console()
    model = core.read_model(args.model)
    nodes = list(all_nodes(model))
    weights = {id(n.op.value): n.op.value.nbytes for n in nodes if isinstance(n.op, Constant)}
    out.print(headed(model.friendly_name, f"  {args.model}"), soft_wrap=True)
    out.print(
        f"{counted(len(nodes), 'layer')}, {bytes_text(sum(weights.values()))} of weights in "
        f"{counted(len(weights), 'constant')}"
    )
    states = {n.op.variable_id: n.ports[0] for n in nodes if n.op.name == "ReadValue"}  # type: ignore[attr-defined]
    columns, rows = ports_table(model.inputs, model.outputs)
    out.print(table("", columns, [*rows, *_states(states, args.unfolded)]))
    out.print(Text(", ").join(_operations(nodes)), "\n")
    if args.plan or args.graph or args.html:
        compiled = core.compile_model(model, args.device)
        shapes = static_shapes(
            compiled.inputs,
            parse_shapes(args.shape, compiled.inputs),
            "--shape",
            is_decoder(compiled.inputs, bool(states)),
        )
        on_card = compiled.get_property("EXECUTION_DEVICES") != ["CPU"]
        timed = args.plan and (on_card or args.times)
        plan = _timed_plan(compiled, shapes) if timed else compiled.plan(shapes)
        if args.plan:
            out.print(
                Text(
                    "Plan for "
                    + ", ".join(f"{port_name(port)} {list(shape)}" for port, shape in zip(compiled.inputs, shapes)),
                    "bold",
                )
            )
            out.print(plan if args.unfolded else graph.folded(plan))
            words = [Text.assemble((word, STYLES.get(word, "bold")), f" {meaning}") for word, meaning in legend(plan)]
            out.print(Text("; ").join(words), style="dim")
            for name, blocks, shared in refused_clusters():
                out.print(
                    f"clusters of {blocks} blocks with {bytes_text(shared)} of shared memory do not fit on the "
                    "card, blocks exchange sums through device memory:",
                    Text(name),
                    soft_wrap=True,
                )
        for message in graph.write(plan, model.friendly_name, args) if args.graph or args.html else ():
            out.print(message, markup=False, soft_wrap=True)


def _states(states: Mapping[str, Output], unfolded: bool) -> Iterator[tuple[object, ...]]:
    """Yield a row for all variables of one type and shape or, if ``unfolded``, for each variable."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for name, port in states.items():
        key = str(port.partial_shape), port.element_type.get_type_name(), name if unfolded else ""
        groups.setdefault(key, []).append(name)
    for (shape, dtype, _), names in groups.items():
        several = len(names) > 1
        yield (
            "states" if several else "state",
            len(names) if several else "",
            f"{names[0]} to {names[-1]}" if several else names[0],
            shape,
            dtype,
        )


def _operations(nodes: Sequence[Node]) -> Iterator[Text]:
    """Yield the number, name and version of operations, the most frequent first."""
    counts = Counter((n.op.name, n.op.version, isinstance(n.op, Unsupported)) for n in nodes)
    for (name, version, unsupported), count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        text = Text(f"{name}-{version.removeprefix('opset')}: {count}")
        yield text.append(" not supported", "bold red") if unsupported else text


def _timed_plan(compiled: CompiledModel, shapes: Sequence[tuple[int, ...]]) -> Plan:
    """Return the plan of an inference on random inputs, with the time of each step."""
    request, random = compiled.create_infer_request(), np.random.default_rng(0)
    arrays = {
        index: fill(port, shape, None, random) for index, (port, shape) in enumerate(zip(compiled.inputs, shapes))
    }
    feed = Feed(compiled.inputs, arrays, bool(request.query_state()))
    for _ in range(INFERENCES):
        request.infer(feed.next())
    return request.plan(times=True)
