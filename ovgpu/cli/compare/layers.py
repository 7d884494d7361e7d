"""Comparison of a model layer by layer, which finds the first wrong one."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ovgpu.api.core import Core
from ovgpu.cli._inputs import build_feed
from ovgpu.cli._print import console, headed, statistics, strings_as_bytes, table
from ovgpu.cli.compare.engines import EXACT, Array, Engine, OpenVINOEngine, OutputKey, OvgpuEngine
from ovgpu.model import Node
from ovgpu.ops.base.storage import decode
from ovgpu.runtime.printing import counted
from ovgpu.types import Type

MIN_TOLERANCE = {Type.f16: 2e-3, Type.bf16: 1.6e-2}  # the least tolerance for types of 16 bits
MAX_ROWS = 20


def run(args: argparse.Namespace) -> int:
    """Compare the model with the reference. Return the exit code: 1 if an output differs."""
    core = Core()
    model = core.read_model(args.model)
    compiled = core.compile_model(model, args.device, EXACT)
    device = ", ".join(compiled.get_property("EXECUTION_DEVICES"))
    against = args.against or ("openvino" if device == "CPU" else "cpu")
    if (device, against) == ("CPU", "cpu"):
        raise ValueError("the device is the reference: choose another one with -d, or --against openvino")
    layers = {node.friendly_name: node for node in model.ops}
    precision = compiled.get_property("INFERENCE_PRECISION_HINT")
    reference: Engine = OpenVINOEngine(args.model) if against == "openvino" else OvgpuEngine(model, "CPU", precision)
    comparison = Comparison(layers, args.tolerance)
    engine, request = OvgpuEngine(model, args.device, precision), compiled.create_infer_request()
    feed = build_feed(args, model, bool(request.query_state()))
    for step in range(args.steps):
        inputs = feed.next()
        expected = reference.infer(inputs)
        comparison.add(step, engine.infer(inputs), expected)
        request.infer(inputs)
        outputs = {
            _source_key(port.node): request.get_output_tensor(i).array for i, port in enumerate(compiled.outputs)
        }
        if comparison.first is None:
            comparison.full_model(step, outputs, expected)
        if comparison.first is not None:
            break
    out = console()
    for note in args.notes:
        out.print(note, markup=False, soft_wrap=True)
    judge = "OpenVINO" if against == "openvino" else "the CPU"
    counts = f"{counted(len(comparison.errors), 'output')} of layers, {counted(step + 1, 'inference')}"
    out.print(headed(model.friendly_name, f" on {device} against {judge}: {counts}"))
    comparison.print(out, args.all)
    return int(comparison.first is not None)


def _source_key(result: Any) -> OutputKey:
    """Return the key of the port that a Result reads."""
    port = result.sources[0]
    return port.node.friendly_name, port.index


# ---- differences


@dataclass(frozen=True)
class Error:
    """Largest difference of two tensors; ``relative`` to the largest value of the reference. ``text`` describes it."""

    absolute: float
    relative: float
    text: str

    @staticmethod
    def between(actual: Array, expected: Array) -> Error | None:
        """Return the largest difference, or None if the tensors are equal."""
        if actual.shape != expected.shape:
            return Error(np.inf, np.inf, f"shape {list(actual.shape)} instead of {list(expected.shape)}")
        if actual.dtype == object or expected.dtype.kind in "OUS":
            actual, expected = strings_as_bytes(actual), strings_as_bytes(expected)
            wrong = actual != expected
            return _largest_error(actual, expected, wrong.astype(np.float64), 1.0) if wrong.any() else None
        a, b = (decode(x).astype(np.float64) for x in (actual, expected))
        with np.errstate(all="ignore"):
            error = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
            error[np.isnan(error)] = np.inf
            largest = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
        return _largest_error(actual, expected, error, largest) if error.any() else None


def _largest_error(actual: Array, expected: Array, error: Array, largest: float) -> Error:
    where = np.unravel_index(int(error.argmax()), error.shape)
    absolute = float(error[where])
    relative = absolute / largest if largest else np.inf
    return Error(
        absolute,
        relative,
        f"{int((error > 0).sum()):,} of {error.size:,} elements differ, most of all "
        f"{[int(i) for i in where]}: {actual[where]} instead of {expected[where]}, "
        f"an error of {absolute:.3g}, or {relative:.3g} of the largest value",
    )


@dataclass(frozen=True)
class FirstDifference:
    """First output that differs, and all outputs of that inference."""

    step: int
    output_key: OutputKey
    error: Error
    actual: Mapping[OutputKey, Array]


class Comparison:
    """Differences found so far. ``layers`` are the nodes of the model by name."""

    def __init__(self, layers: Mapping[str, Node], tolerance: float) -> None:
        self.layers, self.tolerance = layers, tolerance
        self.errors: dict[OutputKey, Error | None] = {}  # the largest of each output
        self.first: FirstDifference | None = None
        self.layerwise = True  # whether the layers were run one by one when `first` was found

    def add(self, step: int, actual: Mapping[OutputKey, Array], expected: Mapping[OutputKey, Array]) -> None:
        """Compare all outputs of an inference, in the order of computation."""
        for output_key, array in actual.items():
            if output_key not in expected:
                continue
            error, previous = Error.between(array, expected[output_key]), self.errors.get(output_key)
            if previous is None or (error is not None and error.relative > previous.relative):
                self.errors[output_key] = error
            if self.first is None and self.differs(output_key, error):
                assert error is not None
                self.first = FirstDifference(step, output_key, error, dict(actual))

    def full_model(self, step: int, outputs: Mapping[OutputKey, Array], expected: Mapping[OutputKey, Array]) -> None:
        """Compare the outputs of the model compiled without extra Results, so that its layers are fused."""
        self.layerwise = False
        self.add(step, outputs, expected)
        self.layerwise = self.first is None

    def differs(self, output_key: OutputKey, error: Error | None) -> bool:
        dtype = self.layers[output_key[0]].ports[output_key[1]].element_type
        if error is None or dtype.is_integral():
            return error is not None
        return error.relative > max(self.tolerance, MIN_TOLERANCE.get(dtype, 0.0))

    def print(self, out: Any, worst: bool) -> None:
        if self.first is None:
            largest = max((e.relative for e in self.errors.values() if e is not None), default=0.0)
            out.print(f"all agree; the largest error is {largest:.3g} of the largest value of its tensor")
        else:
            self._print_first(out, self.first)
        if worst:
            ranked = sorted(
                ((e, key) for key, e in self.errors.items() if e is not None), key=lambda pair: -pair[0].relative
            )[:MAX_ROWS]
            out.print(
                table(
                    "Largest errors",
                    ("layer", "operation", "type", "absolute", "relative"),
                    (
                        (
                            self._name(key),
                            self.layers[key[0]].op.name,
                            self._type(key),
                            f"{e.absolute:.3g}",
                            f"{e.relative:.3g}",
                        )
                        for e, key in ranked
                    ),
                    right=(3, 4),
                )
            )

    def _print_first(self, out: Any, first: FirstDifference) -> None:
        node = self.layers[first.output_key[0]]
        out.print(
            f"inference {first.step + 1}: {node.op.name} {node.op.version} differs, {node.source_location}, "
            f"output {first.output_key[1]}, {self._type(first.output_key)}",
            style="red",
            markup=False,
            soft_wrap=True,
        )
        out.print(first.error.text, markup=False, soft_wrap=True)
        if not self.layerwise:
            out.print("The layers agree one by one. Only the compiled model, with fused layers, differs.")
            return
        rows = [self._input(source.node, source.index, first.actual) for source in node.sources if source is not None]
        out.print(
            table(
                "Its inputs",
                ("layer", "type", "shape", "min", "max", "mean", "first values", "agrees"),
                rows,
                right=(3, 4, 5),
            )
        )

    def _input(self, node: Node, index: int, actual: Mapping[OutputKey, Array]) -> tuple[str, ...]:
        """Return the table row for an input of the layer that differs."""
        output_key = node.friendly_name, index
        array, error = getattr(node.op, "value", actual.get(output_key)), self.errors.get(output_key)
        cells = [""] * 6 if array is None else statistics(array)
        return (self._name(output_key), *cells, "yes" if error is None else f"within {error.relative:.2g}")

    def _name(self, output_key: OutputKey) -> str:
        name, output_index = output_key
        return name if len(self.layers[name].ports) == 1 else f"{name}.{output_index}"

    def _type(self, output_key: OutputKey) -> str:
        port = self.layers[output_key[0]].ports[output_key[1]]
        return f"{port.element_type.get_type_name()}{port.partial_shape}"
