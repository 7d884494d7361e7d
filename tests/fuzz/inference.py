"""A worker's answer to a mutant: it reads, compiles and runs it, with ovgpu or with OpenVINO."""

from __future__ import annotations

import ctypes
import math
import re
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.harness import judge, values
from tests.harness.elements import ELEMENTS
from tests.harness.judge import Expected, Value
from tests.harness.replay import EMULATED

from .corpus import Subject

Ports = Sequence[tuple[str, str]]  # the element type and the partial shape of each input
LARGE_ELEMENTS = 2**20  # elements of an input; a model with a larger one is only compiled
REPLAYS = 3  # inferences of a stateless model on a device: one runs, one captures, one replays
INTERNAL_ERROR = re.compile(r"fault of ovgpu|\b[A-Z]\w+Error: ")  # errors that are not meant for the user
M_PERTURB = -6  # option of glibc's mallopt: the byte that fills allocated and freed memory
PRECISION = {"INFERENCE_PRECISION_HINT": "dynamic"}


@dataclass(frozen=True)
class Outcome:
    """The end of a mutant in one process.

    answered  `outputs` has those of every inference
    large     it compiled, but its inputs are too large to run
    refused   it raised an error that is meant for the user
    bare      it raised another exception
    died, hung   the process ended by itself, or did not answer in time
    """

    kind: str
    text: str = ""
    outputs: Sequence[Sequence[Expected]] = ()
    inputs: Ports = ()
    seconds: float = 0.0


def ovgpu_on(device: str) -> Callable[[Subject], Outcome]:
    """Return a function that answers with ovgpu on a device."""
    import ovgpu
    from tests.harness import cuda

    stack = ExitStack()  # stays open as long as `answer` exists
    if device == EMULATED:
        stack.enter_context(cuda.registered("emulator"))

    def answer(subject: Subject, _: ExitStack = stack) -> Outcome:
        return answer_with(ovgpu, subject, device)

    return answer


def answer_with(ovgpu: Any, subject: Subject, device: str) -> Outcome:
    """Read, compile and run a subject with ovgpu."""
    compiled = None
    try:
        core = ovgpu.Core()
        compiled = core.compile_model(core.read_model(subject.xml, subject.weights), device, PRECISION)
        return _run(ovgpu, compiled, subject, device)
    except ovgpu.Error as e:
        if ovgpu.errors.is_out_of_memory(e):
            return Outcome("large", str(e))
        inputs = [] if compiled is None else _ports(compiled)
        return Outcome("bare" if INTERNAL_ERROR.search(str(e)) else "refused", _error_text(e), inputs=inputs)
    except MemoryError as e:
        copied = traceback.extract_tb(e.__traceback__)[-1].filename == judge.__file__  # it copies inputs and outputs
        return Outcome("large", str(e)) if copied else Outcome("bare", _error_text(e))
    except Exception as e:
        return Outcome("bare", _error_text(e))


def openvino_plugin(perturbed: bool = False) -> Callable[[Subject], Outcome]:
    """Return a function that answers with OpenVINO's CPU plugin. If perturbed, new memory holds other stray bytes."""
    ov = judge.openvino()
    if perturbed:
        ctypes.CDLL(None).mallopt(M_PERTURB, 0x55)

    def answer(subject: Subject) -> Outcome:
        try:
            model = judge.core().read_model(subject.xml, subject.weights)
            return _run(ov, judge.core().compile_model(model, "CPU", judge.CONFIG), subject, "CPU", computed="f32")
        except Exception as e:
            return Outcome("refused", str(e))

    return answer


def openvino_reference() -> Callable[[Subject], Outcome]:
    """Return a function that answers with OpenVINO's reference implementations."""

    def answer(subject: Subject) -> Outcome:
        try:
            model = judge.core().read_model(subject.xml, subject.weights)
            ports = [(p.get_element_type().get_type_name(), str(p.get_partial_shape())) for p in model.inputs]
            if any("ReadValue" in op.get_type_name() for op in model.get_ops()):
                return Outcome("refused", "the reference keeps no state")
            calls = [fed(ports, call) for call in subject.calls]
            if any(call is None for call in calls):
                return Outcome("large")
            outputs = [judge.evaluate(subject.xml, subject.weights, call) for call in calls]
            return Outcome("answered", "", outputs, ports)
        except Exception as e:
            return Outcome("refused", str(e))

    return answer


def fed(ports: Ports, call: Sequence[Value]) -> list[Value] | None:
    """Return inputs for a model: the given ones where they fit, others drawn; None if they are too large."""
    found = []
    for number, (kind, shape) in enumerate(ports):
        given = call[number] if number < len(call) else None
        extents = _extents(shape, given)
        if math.prod(extents) > LARGE_ELEMENTS or math.prod(filter(None, extents)) > 2**60 or len(extents) > 32:
            return None  # the second condition is for empty arrays that NumPy cannot make
        if given is not None and given[1] == kind and given[0].shape == tuple(extents):
            found.append(given)
        else:
            kind = kind if kind in ELEMENTS else "f32"
            low, high = (0, 3) if kind[0] in "iu" else (None, None)
            rng = np.random.default_rng([number, *extents])
            found.append((values.random(rng, tuple(extents), kind, low, high), kind))
    return found


def _extents(shape: str, given: Value | None) -> list[int]:
    """Return a shape that a partial shape allows, that of the given value if possible."""
    old = None if given is None else given[0].shape
    if shape in ("[...]", "..."):
        return list(old) if old is not None else [2, 3]
    found = []
    dims = [dim for dim in shape.strip("[]").split(",") if dim]
    for number, dim in enumerate(dims):
        low, _, high = dim.replace("?", "0..").partition("..")
        least, most = int(low or 0), int(high) if high else (int(low) if ".." not in dim and dim != "?" else 2**31)
        before = old[number] if old is not None and len(old) == len(dims) else 2
        found.append(min(max(before, least), most))
    return found


def _ports(compiled: Any) -> Ports:
    return [(p.element_type.get_type_name(), str(p.partial_shape)) for p in compiled.inputs]


def _run(library: Any, compiled: Any, subject: Subject, device: str, computed: str | None = None) -> Outcome:
    """Run all calls with one request."""
    ports = _ports(compiled)
    calls = [fed(ports, call) for call in subject.calls]
    if any(call is None for call in calls):
        return Outcome("large", inputs=ports)
    request = compiled.create_infer_request()
    declared = [p.element_type.get_type_name() for p in compiled.outputs]
    outputs = []
    for call in calls:
        for _ in range(REPLAYS if device == EMULATED and not request.query_state() else 1):
            found = judge.infer(library, request, call)
        outputs.append(
            [
                expected(array, kind if computed is None else said, computed)
                for (array, kind), said in zip(found, declared)
            ]
        )
    return Outcome("answered", "", outputs, ports)


def expected(array: Any, kind: str, computed: str | None) -> Expected:
    array = array if kind in ("string", "dynamic") else array.astype(ELEMENTS[kind].dtype, copy=False)
    return Expected(array, kind, computed if computed and kind == "f64" else kind)


def _error_text(error: Exception) -> str:
    """Return the text of an error, with its origin if it is not meant for the user."""
    text = f"{type(error).__name__}: {error}"
    cause = error.__cause__ or error
    where = "".join(traceback.format_exception(cause)[-3:])
    return f"{text}\n{where}" if "fault of ovgpu" in text or not isinstance(error, RuntimeError) else text
