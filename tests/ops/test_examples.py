"""Examples in the docstrings of operations: openvino's CPU plugin and ovgpu's CPU both give the result that is written.

An example calls the builder in the newest of openvino's opsets that has it, such as `openvino.opset16.gather`. ovgpu's
opsets have the same builders.

    >>> gather([10, 20, 30], [2, 0], 0)
    [30, 10]

Positional arguments are tensors. Lists of integers are i64, lists with a fraction in them f32, and `f16([1, 2])` has
the element type that its name says. Parentheses hold a list of tensors. Named arguments are attributes. The result of
an operation with several outputs is a tuple. Its numbers are rounded to four digits.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import ovgpu
from ovgpu.ops import lookup, registry
from ovgpu.ops.base.op import OPSETS, Op, is_own
from tests.harness.elements import ELEMENTS, as_logical, name_of
from tests.harness.judge import CONFIG, Value, core, infer, openvino, to_tensor

DIGITS = 4
RTOL, ATOL = 1e-3, 1e-6
MAX_LINES = 3  # of a call
EXAMPLE = re.compile(r"^>>> .*(?:\n(?!>>> ).+)*", re.MULTILINE)
CONSTANTS = {"inf": math.inf, "nan": math.nan}

NO_BUILDER = "openvino has no builder of it"
CONTROL_FLOW = "it runs models"
STATE = "the next inference shows its effect"
GRAPH = "it computes nothing"
LEFT_OUT = {
    "AUGRUCell": NO_BUILDER,
    "AUGRUSequence": NO_BUILDER,
    "Assign": STATE,
    "Atan2": NO_BUILDER,
    "BGRtoNV12": NO_BUILDER,
    "Bincount": NO_BUILDER,
    "Constant": GRAPH,
    "ExperimentalDetectronDetectionOutput": NO_BUILDER,
    "ExperimentalDetectronGenerateProposalsSingleImage": NO_BUILDER,
    "ExperimentalDetectronPriorGridGenerator": NO_BUILDER,
    "ExperimentalDetectronROIFeatureExtractor": NO_BUILDER,
    "ExperimentalDetectronTopKROIs": NO_BUILDER,
    "If": CONTROL_FLOW,
    "Loop": CONTROL_FLOW,
    "Parameter": GRAPH,
    "RGBtoNV12": NO_BUILDER,
    "RandomPoisson": NO_BUILDER,
    "ReadValue": STATE,
    "Result": GRAPH,
    "Reverse": NO_BUILDER,
    "TensorIterator": CONTROL_FLOW,
    "Xor": NO_BUILDER,
}
"""Operations without an example, and why. A new operation that openvino has no builder of need not be here."""

OPERATIONS: dict[str, type[Op]] = {cls.name: cls for cls in registry() if is_own(cls)}
"""The newest version of each operation: `registry` yields versions in ascending order."""


# ---- docstrings


def examples(cls: type[Op]) -> Iterator[tuple[str, str]]:
    """Yield the code and the result of each example in the docstring of an operation."""
    for match in EXAMPLE.finditer(inspect.getdoc(cls) or ""):
        lines = match[0].split("\n")
        code = [line[4:] for line in lines if line.startswith((">>> ", "... "))]
        yield "\n".join(code), "\n".join(lines[len(code) :])


def outputs_in(text: str) -> list[Any]:
    """Return the outputs that an example shows, as nested lists."""
    value = eval(text, dict(CONSTANTS))
    return [*value] if isinstance(value, tuple) else [value]


EXAMPLES = {name: [*examples(cls)] for name, cls in OPERATIONS.items()}


# ---- models


class Typed:
    """A tensor of the element type that an example names."""

    def __init__(self, element_type: str, values: Any) -> None:
        self.array, self.element_type = as_logical(values, element_type), element_type


def typed(value: Any) -> Typed:
    """Return a list or a number of an example as a tensor."""
    if isinstance(value, Typed):
        return value
    return Typed({"f": "f32", "i": "i64", "b": "boolean", "U": "string"}[np.asarray(value).dtype.kind], value)


class Call:
    """The call of a builder. Its first argument becomes an input of the model, the others become constants."""

    def __init__(self) -> None:
        self.parameters: list[Any] = []
        self.values: list[Value] = []

    def build(self, builder: Callable[..., Any], first: Any, *others: Any, **named: Any) -> Any:
        """Return the node that the builder makes."""
        nodes = [[*map(self.parameter, first)] if isinstance(first, tuple) else self.parameter(first)]
        nodes += [self.constant(value) for value in others]
        return builder(*nodes, **{key: self.attribute(value) for key, value in named.items()})

    def parameter(self, value: Any) -> Any:
        """Return a new input of the model, and keep its value."""
        tensor, ov = typed(value), openvino()
        self.values.append((tensor.array, tensor.element_type))
        self.parameters.append(ov.op.Parameter(getattr(ov.Type, tensor.element_type), ov.Shape(tensor.array.shape)))
        return self.parameters[-1]

    def constant(self, value: Any) -> Any:
        """Return a constant."""
        tensor = typed(value)
        return openvino().op.Constant(to_tensor(openvino(), tensor.array, tensor.element_type))

    def attribute(self, value: Any) -> Any:
        """Return a named argument: `f32([1, 2])` is an optional input, `u32(1)` in a dictionary is a number."""
        if isinstance(value, dict):
            return {key: item.array[()] if isinstance(item, Typed) else item for key, item in value.items()}
        return self.constant(value) if isinstance(value, Typed) else value


@cache
def builders() -> dict[str, Callable[..., Any]]:
    """Return openvino's builders by name, each from the newest opset that has it."""
    openvino()
    modules = [import_module(name) for opset in OPSETS if find_spec(name := f"openvino.{opset}")]
    return {name: value for module in modules for name, value in vars(module).items() if callable(value)}


def run(code: str) -> tuple[Any, list[Value], list[Value]]:
    """Run an example. Return its node, openvino's outputs and ovgpu's."""
    call = Call()
    names = CONSTANTS | {name: partial(Typed, name) for name in ELEMENTS}
    node = eval(code, names | {name: partial(call.build, builder) for name, builder in builders().items()})
    from ovgpu.interop.models import from_openvino  # needs openvino

    model = openvino().Model(node.outputs(), call.parameters)
    theirs = core().compile_model(model, "CPU", CONFIG).create_infer_request()
    ours = ovgpu.Core().compile_model(from_openvino(model), "CPU").create_infer_request()
    return node, infer(openvino(), theirs, call.values), infer(ovgpu, ours, call.values)


# ---- comparison


def kind_of(element_type: str) -> str:
    """Return whether an element type is real, integer, boolean or string."""
    if element_type in ("boolean", "string"):
        return element_type
    return "integer" if element_type[0] in "iu" else "real"


def compare(outputs: list[Value], expected: list[Any], who: str) -> None:
    """Compare the number of outputs, and their shapes, kinds and values, with those that an example shows."""
    assert len(outputs) == len(expected), who
    for index, ((array, element_type), values) in enumerate(zip(outputs, expected)):
        message, wanted = f"{who}, output {index}: {array.tolist()}", np.asarray(values)
        assert array.shape == wanted.shape, message
        assert kind_of(element_type) == kind_of(name_of(wanted.dtype)), message
        if wanted.dtype.kind == "f":
            np.testing.assert_allclose(array.astype(np.float64), wanted, RTOL, ATOL, err_msg=message)
        else:
            np.testing.assert_array_equal(array, wanted, err_msg=message)


@pytest.mark.parametrize("name", [name for name, pairs in EXAMPLES.items() if pairs])
def test_example(name: str) -> None:
    """The call makes a node of this operation and version, and both packages compute the result."""
    for code, result in EXAMPLES[name]:
        node, theirs, ours = run(code)
        info = node.get_type_info()
        assert lookup(info.name, info.version_id) is OPERATIONS[name]
        compare(theirs, outputs_in(result), "openvino")
        compare(ours, outputs_in(result), "ovgpu")


def test_form() -> None:
    """Docstrings end with their examples, whose calls are short and whose numbers are rounded."""
    for name, pairs in EXAMPLES.items():
        for code, result in pairs:
            assert code.count("\n") < MAX_LINES, name
            numbers = [float(word) for word in re.findall(r"-?\d+\.\d+", result)]
            assert numbers == [float(f"{number:.{DIGITS}g}") for number in numbers], name
        assert (inspect.getdoc(OPERATIONS[name]) or "").endswith("".join(result for _, result in pairs[-1:])), name


def test_operations_have_examples() -> None:
    """Only operations in the list have none, and those of which openvino has no builder."""
    without = {name for name, pairs in EXAMPLES.items() if not pairs}
    names = {text for name in builders() for text in (name.replace("_", ""), name.removesuffix("_op"))}
    buildable = {name for name in OPERATIONS if name.lower() in names}
    assert without >= LEFT_OUT.keys()
    assert without & buildable == {name for name, reason in LEFT_OUT.items() if reason != NO_BUILDER}
