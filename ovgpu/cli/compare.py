"""``ovgpu compare``: a model on a device and on a reference, layer by layer; names the first layer that differs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from ovgpu.api.core import Core
from ovgpu.cli._inputs import add_options, feed_of
from ovgpu.cli._print import console, statistics, table
from ovgpu.model import Model, Node
from ovgpu.ops.base.storage import decode
from ovgpu.ops.infrastructure.graph import Result
from ovgpu.runtime.printing import counted
from ovgpu.types import Type

Array = np.ndarray[Any, Any]
Place = tuple[str, int]  # a layer's name and the number of its output
SILENT = ("Constant", "Result", "Assign")  # layers that compute nothing
COARSE = {Type.f16: 2e-3, Type.bf16: 1.6e-2}  # the tolerance of what is rounded to so few bits, at least
WORST = 20


def add_to(commands: Any) -> None:
    parser = commands.add_parser("compare", help="compare every layer's outputs with those of a reference")
    parser.add_argument("model", help="the .xml file of the model, or its folder")
    parser.add_argument("--against", choices=("cpu", "openvino"), metavar="cpu|openvino",
                        help="the reference: ovgpu's CPU, or OpenVINO's CPU plugin in f32 (default for -d CPU)")
    parser.add_argument("-d", "--device", default="AUTO", help="CPU, NVIDIA[.n] or AUTO (default)")
    add_options(parser)
    parser.add_argument("--tolerance", type=float, default=1e-3, metavar="T",
                        help="the largest error, relative to a tensor's largest value (default 0.001)")
    parser.add_argument("--all", action="store_true", help="show the layers with the largest errors as well")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """The exit code: 1 if something differs."""
    core = Core()
    model = core.read_model(args.model)
    compiled = core.compile_model(model, args.device)
    device = ", ".join(compiled.get_property("EXECUTION_DEVICES"))
    against = args.against or ("openvino" if device == "CPU" else "cpu")
    if (device, against) == ("CPU", "cpu"):
        raise ValueError("the device is the reference: choose another one with -d, or --against openvino")
    layers = {node.friendly_name: node for node in model.ops}
    precision = compiled.get_property("INFERENCE_PRECISION_HINT")
    reference: Side = OpenVINO(args.model) if against == "openvino" else Ours(model, "CPU", precision)
    comparison = Comparison(layers, args.tolerance)
    ours, request = Ours(model, args.device, precision), compiled.create_infer_request()
    feed = feed_of(args, compiled.inputs, bool(request.query_state()))
    for step in range(args.steps):
        inputs = feed.next()
        wanted = reference.infer(inputs)
        comparison.add(step, ours.infer(inputs), wanted)
        request.infer(inputs)
        outputs = {_source(port.node): request.get_output_tensor(i).array for i, port in enumerate(compiled.outputs)}
        if comparison.first is None:
            comparison.whole(step, outputs, wanted)
        if comparison.first is not None:
            break
    out = console()
    out.print(f"[bold]{model.friendly_name}[/] on {device} against "
              f"{'OpenVINO' if against == 'openvino' else 'the CPU'}: "
              f"{counted(len(comparison.errors), 'output')} of layers, {counted(step + 1, 'inference')}")
    comparison.print(out, args.all)
    return int(comparison.first is not None)


def _source(result: Any) -> Place:
    """The output of a layer that a Result takes."""
    port = result.inputs[0]
    return port.node.friendly_name, port.index


# ---- who computes

class Side(Protocol):
    """Infers with a model, and gives what all its layers make."""

    def infer(self, inputs: Mapping[int, Array]) -> dict[Place, Array]: ...


class Ours:
    """ovgpu, with a Result for every output of a layer. Loops and branches are layers as a whole."""

    def __init__(self, model: Model, device: str, precision: Type) -> None:
        whole = model.clone()
        ports = [port for node in whole.ops if node.op.name not in SILENT for port in node.outputs]
        self.first = len(whole.results)
        self.places = [(port.node.friendly_name, port.index) for port in ports]
        whole.add_results([Node(Result(), [port], name=f"{port.node.friendly_name}/{port.index}") for port in ports])
        whole.validate_nodes_and_infer_types()
        config = {"INFERENCE_PRECISION_HINT": precision}
        self.request = Core().compile_model(whole, device, config).create_infer_request()

    def infer(self, inputs: Mapping[int, Array]) -> dict[Place, Array]:
        self.request.infer(dict(inputs))
        return {place: self.request.get_output_tensor(self.first + i).array for i, place in enumerate(self.places)}


class OpenVINO:
    """OpenVINO's CPU plugin in f32, likewise."""

    def __init__(self, path: str) -> None:
        try:
            openvino: Any = import_module("openvino")
        except ImportError:
            raise ValueError("--against openvino needs openvino: pip install openvino") from None
        self.openvino = openvino
        core = openvino.Core()
        model = core.read_model(path)
        self.kinds = [port.get_element_type() for port in model.inputs]
        ports = [port for node in model.get_ordered_ops() if node.get_type_name() not in SILENT
                 for port in node.outputs()]
        self.first = len(model.outputs)
        self.places = [(port.get_node().get_friendly_name(), port.get_index()) for port in ports]
        model.add_results([openvino.opset1.result(port) for port in ports])
        exact = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY", "KV_CACHE_PRECISION": "f32",
                 "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
        self.request = core.compile_model(model, "CPU", exact).create_infer_request()

    def infer(self, inputs: Mapping[int, Array]) -> dict[Place, Array]:
        self.request.infer({i: self._tensor(x, self.kinds[i]) for i, x in inputs.items()})
        tensors = self.request.output_tensors[self.first :]
        return {place: np.array(x.str_data if x.element_type.get_type_name() == "string" else x.data)
                for place, x in zip(self.places, tensors)}

    def _tensor(self, x: Array, kind: Any) -> Any:
        if x.dtype == object or x.dtype.isbuiltin == 1:
            return self.openvino.Tensor(np.ascontiguousarray(x))
        tensor = self.openvino.Tensor(kind, self.openvino.Shape(x.shape))  # of a type that NumPy lacks
        tensor.data.reshape(-1).view(np.uint8)[...] = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
        return tensor


# ---- how they differ

@dataclass(frozen=True)
class Error:
    """The largest difference of two tensors: ``relative`` to the largest value of the reference, and where."""

    absolute: float
    relative: float
    text: str

    @staticmethod
    def between(found: Array, wanted: Array) -> Error | None:
        """None if the tensors are alike."""
        if found.shape != wanted.shape:
            return Error(np.inf, np.inf, f"shape {list(found.shape)} instead of {list(wanted.shape)}")
        if found.dtype == object or wanted.dtype.kind in "OUS":
            wrong = found.astype(str) != wanted.astype(str)
            return _described(found, wanted, wrong.astype(np.float64), 1.0) if wrong.any() else None
        a, b = (decode(x).astype(np.float64) for x in (found, wanted))
        with np.errstate(all="ignore"):
            error = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
            error[np.isnan(error)] = np.inf
            largest = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
        return _described(found, wanted, error, largest) if error.any() else None


def _described(found: Array, wanted: Array, error: Array, largest: float) -> Error:
    where = np.unravel_index(int(error.argmax()), error.shape)
    absolute = float(error[where])
    relative = absolute / largest if largest else np.inf
    return Error(absolute, relative, f"{int((error > 0).sum()):,} of {error.size:,} elements differ, most of all "
                 f"{[int(i) for i in where]}: {found[where]} instead of {wanted[where]}, an error of {absolute:.3g}, "
                 f"or {relative:.3g} of the largest value")


@dataclass(frozen=True)
class First:
    """The first output that differs."""

    step: int
    place: Place
    error: Error
    found: Mapping[Place, Array]


class Comparison:
    """What has been found so far, of the model's layers by name."""

    def __init__(self, layers: Mapping[str, Node], tolerance: float) -> None:
        self.layers, self.tolerance = layers, tolerance
        self.errors: dict[Place, Error | None] = {}  # the largest
        self.first: First | None = None
        self.apart = True  # whether the layers were computed one by one when it was found

    def add(self, step: int, found: Mapping[Place, Array], wanted: Mapping[Place, Array]) -> None:
        """Compares all layers, in the order in which they are computed."""
        for place, array in found.items():
            if place not in wanted:
                continue
            error, before = Error.between(array, wanted[place]), self.errors.get(place)
            if before is None or (error is not None and error.relative > before.relative):
                self.errors[place] = error
            if self.first is None and self.differs(place, error):
                assert error is not None
                self.first = First(step, place, error, dict(found))

    def whole(self, step: int, outputs: Mapping[Place, Array], wanted: Mapping[Place, Array]) -> None:
        """Compares the outputs of the model as it is compiled when nobody looks into it."""
        self.apart = False
        self.add(step, outputs, wanted)
        self.apart = self.first is None

    def differs(self, place: Place, error: Error | None) -> bool:
        kind = self.layers[place[0]].outputs[place[1]].element_type
        if error is None or kind.is_integral():
            return error is not None
        return error.relative > max(self.tolerance, COARSE.get(kind, 0.0))

    def print(self, out: Any, worst: bool) -> None:
        if self.first is None:
            largest = max((e.relative for e in self.errors.values() if e is not None), default=0.0)
            out.print(f"all agree; the largest error is {largest:.3g} of the largest value of its tensor")
        else:
            self._print_first(out, self.first)
        if worst:
            ranked = sorted(((e, place) for place, e in self.errors.items() if e is not None),
                            key=lambda pair: -pair[0].relative)[:WORST]
            out.print(table("Largest errors", ("layer", "operation", "type", "absolute", "relative"), (
                (self._name(place), self.layers[place[0]].op.name, self._type(place), f"{e.absolute:.3g}",
                 f"{e.relative:.3g}") for e, place in ranked), right=(3, 4)))

    def _print_first(self, out: Any, first: First) -> None:
        node = self.layers[first.place[0]]
        out.print(f"inference {first.step + 1}: {node.op.name} {node.op.version} differs, {node.source_location}, "
                  f"output {first.place[1]}, {self._type(first.place)}", style="red", markup=False, soft_wrap=True)
        out.print(first.error.text, markup=False, soft_wrap=True)
        if not self.apart:
            out.print("The layers agree one by one: what differs is the model as it is compiled, with layers joined.")
            return
        rows = [self._input(source.node, source.index, first.found) for source in node.inputs if source is not None]
        out.print(table("Its inputs", ("layer", "type", "shape", "min", "max", "mean", "first values", "agrees"), rows,
                        right=(3, 4, 5)))

    def _input(self, node: Node, index: int, found: Mapping[Place, Array]) -> tuple[str, ...]:
        """What is told of an input of the layer that differs."""
        place = node.friendly_name, index
        array, error = getattr(node.op, "value", found.get(place)), self.errors.get(place)
        told = [""] * 6 if array is None else statistics(array)
        return (self._name(place), *told, "yes" if error is None else f"within {error.relative:.2g}")

    def _name(self, place: Place) -> str:
        name, number = place
        return name if len(self.layers[name].outputs) == 1 else f"{name}.{number}"

    def _type(self, place: Place) -> str:
        port = self.layers[place[0]].outputs[place[1]]
        return f"{port.element_type.get_type_name()}{port.partial_shape}"
