"""Comparison of a model's outputs with those of OpenVINO's CPU plugin in f32, for random inputs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ovgpu.api.compiled_model import CompiledModel
from ovgpu.api.core import Core
from ovgpu.cli._feed import Feed, token_input
from ovgpu.cli._images import image_layout
from ovgpu.cli._inputs import fill, is_decoder
from ovgpu.cli._ports import example_shape, one_token
from ovgpu.cli._print import strings_as_bytes
from ovgpu.cli.compare.engines import EXACT, Array, OpenVINOEngine
from ovgpu.model import Output
from ovgpu.ops.base.storage import decode
from ovgpu.types import PartialShape

SCALES = (255, 1)  # the largest value of the pixels, in each inference
QUANTIZED_SCALES = (255, 1, 255, 1)  # more inferences, as one rounding to another code may move all outputs of one
NO_FARTHER = 1.25  # largest distance of an int8 model from OpenVINO in f32, relative to that of OpenVINO in int8
EQUAL, UNFUSED, DIFFERS, ONLY_OPENVINO, ONLY_OVGPU, NEITHER, ENDED = (
    "equal",
    "equal to OpenVINO without fusions",
    "differs",
    "OpenVINO alone runs it",
    "ovgpu alone runs it",
    "neither runs it",
    "its process ended, or took too long",
)
FAULTS = (DIFFERS, ONLY_OPENVINO, ENDED)
COLUMNS = ("model", "layers", "type", "result", "error", "of int8", "s")


@dataclass(frozen=True)
class Outcome:
    """Comparison of a model. Errors are relative to the largest value of an output.

    ``of_int8`` is the relative distance (RMS) from OpenVINO in f32, divided by that of OpenVINO's own 8-bit arithmetic.
    """

    name: str
    result: str = ENDED
    layers: int = 0
    quantized: bool = False
    error: float = 0.0
    of_int8: float | None = None
    seconds: float = 0.0
    text: str = ""

    def cells(self) -> tuple[str, ...]:
        """Return the cells of a row with `COLUMNS`."""
        compared = self.result in (EQUAL, UNFUSED, DIFFERS)
        return (
            self.name,
            str(self.layers or ""),
            "int8" if self.quantized else "real" if self.layers else "",
            self.result,
            f"{self.error:.1e}" if compared else "",
            "" if self.of_int8 is None else f"{self.of_int8:.2f}",
            f"{self.seconds:.0f}",
        )


def outcome_of(path: str, device: str, seed: int, tolerance: float) -> Outcome:
    """Compare the outputs of some inferences, or find out who refuses the model.

    If the outputs of a model that is not quantized differ, they are compared with those of OpenVINO with a Result for
    every layer, which keeps it from fusing them.
    """
    began, refusals = time.perf_counter(), Refusals()
    facts: dict[str, Any] = {}
    with refusals.of("ovgpu"):
        core = Core()
        model = core.read_model(path)
        facts = {"layers": len(model.ops), "quantized": any(node.op.name == "FakeQuantize" for node in model.ops)}
        compiled = core.compile_model(model, device, EXACT)
    with refusals.of("OpenVINO"):
        reference = OpenVINOEngine(path, only_outputs=True)
    texts = refusals.texts
    if not texts:
        int8 = OpenVINOEngine(path, only_outputs=True, int8=True) if facts["quantized"] else None
        distances = _compared(compiled, reference, int8, seed, tolerance, refusals)
        if not texts:
            facts |= {"result": distances.result, "error": distances.error, "of_int8": distances.of_int8}
            texts = distances.texts if distances.result == DIFFERS else []
            if distances.result == DIFFERS and int8 is None:
                with suppress(RuntimeError):
                    unfused = _compared(compiled, OpenVINOEngine(path), None, seed, tolerance, refusals)
                    if unfused.result == EQUAL and not refusals.texts:
                        facts |= {"result": UNFUSED, "error": unfused.error}
    facts.setdefault("result", refusals.result)
    text = "; ".join(" ".join(text.split())[:300] for text in texts[:3])
    return Outcome("", seconds=time.perf_counter() - began, text=text, **facts)


def _compared(
    compiled: CompiledModel,
    reference: OpenVINOEngine,
    int8: OpenVINOEngine | None,
    seed: int,
    tolerance: float,
    refusals: Refusals,
) -> Distances:
    """Return the distances of some inferences. Stop at the first one that ovgpu or OpenVINO refuses."""
    request, random, distances = (
        compiled.create_infer_request(),
        np.random.default_rng(seed),
        Distances(tolerance, int8 is not None),
    )
    ports, stateful = compiled.inputs, bool(request.query_state())
    images = image_inputs(ports)
    feed = Feed(ports, inputs_of(ports, stateful, random), stateful)
    for scale in SCALES if int8 is None else QUANTIZED_SCALES:
        inputs = feed.next()
        for index in images:
            pixels: Array = random.uniform(0, scale, tuple(inputs[index].shape))
            inputs[index] = pixels.astype(np.float32).astype(inputs[index].dtype)
        with refusals.of("ovgpu"):
            request.infer(dict(inputs))
            results = [np.array(tensor.array) for tensor in request.output_tensors]
        with refusals.of("OpenVINO"):
            expected = reference.outputs(inputs)
        if refusals.texts:
            break
        distances.add(results, expected, None if int8 is None else int8.outputs(inputs))
    return distances


class Refusals:
    """Errors of ovgpu and of OpenVINO; ``texts`` are their messages."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.texts: list[str] = []

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Record an error that the block raises, as an error of ``name``."""
        try:
            yield
        except (RuntimeError, ValueError, TypeError, OSError, MemoryError) as e:
            self.names.add(name)
            self.texts.append(f"{name}: {e}")

    @property
    def result(self) -> str:
        """The result of a comparison that these errors ended."""
        return NEITHER if len(self.names) == 2 else ONLY_OPENVINO if "ovgpu" in self.names else ONLY_OVGPU


def image_inputs(ports: Sequence[Output]) -> list[int]:
    """Return the indices of the inputs that take pixels as real numbers."""
    shapes = [PartialShape(example_shape(port.partial_shape)) for port in ports]
    layouts = [image_layout(port, shape) for port, shape in zip(ports, shapes)]
    return [i for i, port in enumerate(ports) if set("CHW") <= set(layouts[i]) and port.element_type.is_real()]


def inputs_of(ports: Sequence[Output], stateful: bool, random: np.random.Generator) -> dict[int, Array]:
    """Return inputs: reals in [-1, 1), tokens below 10, other integers 0, masks 1.

    Dynamic dimensions are 1, and 224 for the height and width of images.
    """
    arrays, tokens = {}, token_input(ports)
    for index, port in enumerate(ports):
        chosen = one_token(port) if is_decoder(ports, stateful) else port.partial_shape
        shape = tuple(PartialShape(example_shape(chosen)).to_shape())
        if index == tokens and port.element_type.is_integral():
            arrays[index] = random.integers(0, 10, shape).astype(port.element_type.storage)
        else:
            arrays[index] = fill(port, shape, None, random)
    return arrays


class Distances:
    """Distances of outputs from those of OpenVINO in f32; for a quantized model, also those of OpenVINO in 8 bits.

    ``error`` is the largest difference, divided by 1 + the largest value. ``texts`` describe differences above the
    tolerance, which roundings in 8 bits may cause. ``faults`` describe wrong types, shapes and strings.
    """

    def __init__(self, tolerance: float, quantized: bool) -> None:
        self.tolerance, self.quantized = tolerance, quantized
        self.error = 0.0
        self.texts: list[str] = []
        self.faults: list[str] = []
        self.squares, self.int8_squares = 0.0, 0.0  # sums of squares of the relative distances

    @property
    def of_int8(self) -> float | None:
        """The distance (RMS), divided by that of OpenVINO in 8 bits."""
        if not self.quantized:
            return None
        return float(np.sqrt(self.squares / self.int8_squares)) if self.int8_squares else float(self.squares > 0)

    @property
    def result(self) -> str:
        ratio = self.of_int8
        farther = ratio is None or ratio > NO_FARTHER
        return DIFFERS if self.faults or (self.texts and farther) else EQUAL

    def add(self, results: Sequence[Array], expected: Sequence[Array], in_int8: Sequence[Array] | None) -> None:
        """Add the outputs of an inference."""
        for index, (ours, theirs) in enumerate(zip(results, expected, strict=True)):
            fault = _fault(ours, theirs)
            if fault:
                self.faults.append(fault)
                self.texts.append(f"output {index}: {fault}")
            elif ours.dtype != object:
                self._add_numbers(index, ours, theirs, None if in_int8 is None else in_int8[index])

    def _add_numbers(self, output_index: int, ours: Array, theirs: Array, in_int8: Array | None) -> None:
        is_real = theirs.dtype.kind not in "iub"
        ours, theirs = (decode(x).astype(np.float64) for x in (ours, theirs))
        error, largest = _error(ours, theirs), float(np.abs(theirs[np.isfinite(theirs)]).max(initial=0))
        self.error = max(self.error, error / (1 + largest) if is_real else error)
        if in_int8 is not None and in_int8.shape == theirs.shape:
            self.squares += _rms(ours, theirs) ** 2
            self.int8_squares += _rms(decode(in_int8).astype(np.float64), theirs) ** 2
        if error > (self.tolerance * (1 + largest) if is_real else 0):
            self.texts.append(
                f"output {output_index}: an error of {error:.3g}, where the largest value is {largest:.3g}"
            )


def _fault(ours: Array, theirs: Array) -> str:
    """Return a text about a wrong shape, type or string; "" if there is none."""
    if ours.shape != theirs.shape:
        return f"shape {list(ours.shape)} instead of {list(theirs.shape)}"
    if ours.dtype == object or theirs.dtype.kind in "OUS":
        return "" if np.array_equal(strings_as_bytes(ours), strings_as_bytes(theirs)) else "other strings"
    return "" if ours.dtype == theirs.dtype else f"type {ours.dtype} instead of {theirs.dtype}"


def _error(a: Array, b: Array) -> float:
    """Return the largest difference; infinity where one is not a number."""
    with np.errstate(all="ignore"):
        error = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return float(np.nan_to_num(error, nan=np.inf, posinf=np.inf).max(initial=0))


def _rms(a: Array, b: Array) -> float:
    """Return the root of the mean square of the difference, relative to that of ``b``."""
    size = float(np.sqrt(np.mean(np.square(b)))) if b.size else 0.0
    return float(np.sqrt(np.mean(np.square(a - b)))) / (size or 1.0) if b.size else 0.0
