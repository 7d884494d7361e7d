"""Interval analysis of a program: bounds of its values from bounds of its inputs, without computing the values.

In most steps of a decoder an attention mask hides nothing: the additive mask is a single number throughout. Interval
arithmetic shows this in a few microseconds for any number of keys, whereas computing the mask takes several passes
over them. Each tensor has one interval that contains all its elements; an interval of one number is exact. If a
program has layers without a rule here, or bounds are too wide, the caller computes the values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ovgpu.lowering.program import HostInput, Program, Segment, Step
from ovgpu.ops.base.elementwise import Elementwise, Interval
from ovgpu.ops.base.op import evaluate, is_own
from ovgpu.ops.base.shapes import normalize_axis
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.movement.gather import Gather
from ovgpu.symbolic import Int, Sym
from ovgpu.types import Type

KnownIntervals = dict[int, Interval]  # by the value id of a root
Rule = Callable[[KnownIntervals, Sequence[int]], Interval | None]
"""A function from known intervals and symbol values to the bounds of a step's result; None if they are too wide."""

MAX_CACHED_RESULTS = 64  # per step, by inputs that are single numbers
INTEGERS = frozenset({Type.i8, Type.i16, Type.i32, Type.i64, Type.u8, Type.u16, Type.u32})
SUPPORTED_TYPES = INTEGERS | {Type.boolean, Type.f16, Type.f32, Type.f64}


class Unknown(Exception):
    """Error for a program to which interval analysis does not apply."""


class Intervals:
    """Interval rules of the steps of one program."""

    def __init__(self, program: Program) -> None:
        """Raise Unknown if interval analysis does not apply to the program."""
        if len(program.segments) != 1 or program.deferred is not None or program.states or program.assigns:
            raise Unknown
        self._values = program.values
        self._segment = segment = program.segments[0]
        if segment.read_host_nodes or segment.host_nodes:
            raise Unknown
        self._fixed: KnownIntervals = {}
        inputs = {value: index for index, value in enumerate(program.inputs)}
        self.inputs: dict[int, int] = {}
        """The root of each input whose elements are read, by the input's index."""
        self._ordered: dict[int, int] = {}  # root of a BeamsAreIdentity result -> index of its input
        self._rules: list[tuple[int, Rule]] = []
        for step in segment.steps:
            if len(step.outputs) != 1 or step.kind not in ("bound", "copy"):
                raise Unknown
            for i in (*(i for i in step.inputs if i >= 0), *step.outputs):
                self._admit(i)
            output = self._values[step.outputs[0]].root
            if step.op.name == "BeamsAreIdentity":
                index = inputs.get(step.inputs[0], -1)
                if index < 0:
                    raise Unknown
                self._ordered[output] = index
                continue
            for i in step.inputs:
                root = self._values[i].root if i >= 0 else -1
                if root in inputs:
                    self.inputs[inputs[root]] = root
            self._rules.append((output, self._rule(step)))
        self._results = []
        for i in program.results:
            root = self._values[i].root
            if root not in segment.caller_roots or (i != root and i not in segment.values):
                raise Unknown
            geometry = segment.caller_roots[i] if i == root else segment.geometries[segment.values.index(i)][0]
            self._results.append((root, geometry))

    def uniform(
        self, symbol_values: Sequence[int], inputs: Sequence[np.ndarray[Any, Any]]
    ) -> list[tuple[tuple[int, ...], Any]] | None:
        """Return (shape, number) per result if every result provably consists of a single number, else None.

        ``symbol_values`` and ``inputs`` (host arrays) are those of the inference.
        """
        known = dict(self._fixed)
        for index, root in self.inputs.items():
            x = inputs[index]
            if not x.size:
                return None
            low, high = known[root] = (x.min().item(), x.max().item()) if x.size > 1 else (x.item(),) * 2
            if low != low or high != high:  # NaN
                return None
        for root, index in self._ordered.items():
            known[root] = (_is_arange(inputs[index]),) * 2
        for root, rule in self._rules:
            bounds = rule(known, symbol_values)
            if bounds is None:
                return None
            before = known.get(root)  # bounds of another part of the same root
            known[root] = bounds if before is None else _hull(before, bounds)
        results = []
        for root, geometry in self._results:
            low, high = known[root]
            if low != high:
                return None
            results.append((geometry(symbol_values)[0], low))
        return results

    def _admit(self, i: int) -> None:
        """Raise Unknown for a value of another type than its root, or of an unsupported type or memory."""
        value = self._values[i]
        root = self._values[value.root]
        if value.type is not root.type or value.type not in SUPPORTED_TYPES:
            raise Unknown
        if root.memory == "constant" and value.root not in self._fixed:
            self._fixed[value.root] = _bounds(root.source)
        elif root.memory not in ("constant", "input", "buffer", "output"):
            raise Unknown

    # ---- rules

    def _rule(self, step: Step) -> Rule:
        op: Any = step.op
        if not is_own(type(op)) and op.name != "Copy":
            raise Unknown
        if op.moves_elements or op.is_reshape:
            return self._source(step, 0)
        if op.name == "Concat":
            sources = [self._source(step, i) for i in range(len(step.inputs))]
            return lambda known, symbol_values: _union([source(known, symbol_values) for source in sources])
        if op.name == "Range" and self._type(step) in INTEGERS:
            limits = [self._integer(step, i) for i in range(3)]
            return lambda known, symbol_values: _range(*(limit(symbol_values) for limit in limits))
        if isinstance(op, Gather) and len(step.inputs) == 3:
            return self._gather(step)
        if isinstance(op, Elementwise) and op.position_independent and getattr(op, "auto_broadcast", "") != "pdpd":
            return self._elementwise(step)
        raise Unknown

    def _type(self, step: Step) -> Type:
        return self._values[step.outputs[0]].type

    def _source(self, step: Step, input_index: int) -> Rule:
        """Return the rule for the bounds of an input of a step."""
        if input_index in step.host:
            given = step.host[input_index]
            if given.ints is not None:
                ints = [self._resolved(d) for d in given.ints]
                return lambda known, symbol_values: _bounds_of([get(symbol_values) for get in ints])
            if given.constant is None:
                raise Unknown
            bounds = _bounds(given.constant)
            return lambda known, symbol_values: bounds
        if step.inputs[input_index] < 0:
            raise Unknown
        root = self._values[step.inputs[input_index]].root
        return lambda known, symbol_values: known[root]

    def _integer(self, step: Step, input_index: int) -> Callable[[Sequence[int]], int]:
        """Return a function from symbol values to a single integer that the step reads on the host."""
        given = step.host.get(input_index, HostInput())
        if given.ints is not None and len(given.ints) == 1:
            return self._resolved(given.ints[0])
        if given.constant is not None and given.constant.size == 1 and given.constant.dtype.kind in "iu":
            known = int(given.constant.item())
            return lambda symbol_values: known
        raise Unknown

    def _resolved(self, expression: Int) -> Callable[[Sequence[int]], int]:
        if not isinstance(expression, Sym):
            return lambda symbol_values: expression
        index = _symbol_index(self._segment, expression)
        return lambda symbol_values: symbol_values[index]

    def _gather(self, step: Step) -> Rule:
        """Return the rule of Gather: the bounds of the data if all indices are in range, since others give zeros."""
        data, indices, axis = self._source(step, 0), self._source(step, 1), self._integer(step, 2)
        if step.inputs[0] < 0:
            raise Unknown
        shape = self._values[step.inputs[0]].view.shape
        extent = self._resolved(shape[normalize_axis(axis(()), len(shape))])

        def bounds(known: KnownIntervals, symbol_values: Sequence[int]) -> Interval | None:
            index_bounds = indices(known, symbol_values)
            inside = index_bounds is not None and index_bounds[0] >= 0 and index_bounds[1] < extent(symbol_values)
            return data(known, symbol_values) if inside else None

        return bounds

    def _elementwise(self, step: Step) -> Rule:
        sources = [self._source(step, i) for i in range(len(step.inputs))]
        input_types = [self._values[i].type if i >= 0 else step.host[n].type for n, i in enumerate(step.inputs)]
        output_type = self._type(step)
        single = _single_number_rule(step, input_types, output_type)
        op: Any = step.op
        rule = op.interval
        if rule is None or _limits(output_type) is None or None in map(_limits, input_types):
            return lambda known, symbol_values: single([source(known, symbol_values) for source in sources])
        least, most = _limits(output_type)  # type: ignore[misc]

        def bounds(known: KnownIntervals, symbol_values: Sequence[int]) -> Interval | None:
            given = [source(known, symbol_values) for source in sources]
            if None in given:
                return None
            low, high = rule(*given)
            return (low, high) if least <= low and high <= most else None

        return bounds


def _symbol_index(segment: Segment, symbol: Sym) -> int:
    if symbol.index not in segment.index:
        raise Unknown
    return segment.index[symbol.index]


def _single_number_rule(
    step: Step, input_types: Sequence[Type], output_type: Type
) -> Callable[[Sequence[Interval | None]], Interval | None]:
    """Return a rule that evaluates the op for inputs of one number each, and caches the results."""
    cached: dict[tuple[Interval | None, ...], Interval | None] = {}
    dtypes = [t.storage for t in input_types]

    def bounds(given: Sequence[Interval | None]) -> Interval | None:
        if any(x is None or x[0] != x[1] for x in given):
            return _select(given) if step.op.name == "Select" else None
        key = tuple(given)
        if key not in cached:
            if len(cached) >= MAX_CACHED_RESULTS:
                cached.clear()
            operands = [np.asarray(x[0], dtype) for x, dtype in zip(given, dtypes)]  # type: ignore[index]
            result = evaluate(step.op, NUMPY, operands, [output_type])[0].item()
            cached[key] = (result, result) if result == result else None
        return cached[key]

    return bounds


def _select(given: Sequence[Interval | None]) -> Interval | None:
    """Return the bounds of a Select from those of (condition, then, else)."""
    condition, a, b = given
    if condition is None:
        return None
    if condition[0] == condition[1]:
        return a if condition[0] else b
    return _union((a, b))


def _hull(*given: Interval) -> Interval:
    return min(low for low, _ in given), max(high for _, high in given)


def _union(given: Sequence[Interval | None]) -> Interval | None:
    known = [x for x in given if x is not None]
    return _hull(*known) if len(known) == len(given) else None


def _bounds_of(numbers: Sequence[int]) -> Interval | None:
    return (min(numbers), max(numbers)) if numbers else None


def _bounds(x: np.ndarray[Any, Any]) -> Interval:
    if not x.size or (low := x.min().item()) != low:  # empty, or with NaN
        raise Unknown
    return low, x.max().item()


def _is_arange(x: np.ndarray[Any, Any]) -> bool:
    """Return whether the elements are 0, 1, 2 and so on."""
    return x[0] == 0 if len(x) == 1 else bool((x == np.arange(len(x))).all())


def _range(start: int, stop: int, step: int) -> Interval | None:
    numbers = range(start, stop, step) if step else ()
    return (min(numbers[0], numbers[-1]), max(numbers[0], numbers[-1])) if numbers else None


def _limits(element_type: Type) -> Interval | None:
    """Return the smallest and largest number of an integer or boolean type, None for other types."""
    if element_type == Type.boolean:
        return 0, 1
    if element_type not in INTEGERS:
        return None
    info = np.iinfo(element_type.storage)
    return int(info.min), int(info.max)
