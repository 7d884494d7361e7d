"""Scenarios: a small model and the steps taken with one request of it (state, control flow).

def accumulate() -> Net:
    net = Net()
    x = net.parameter("f32", (2, 3), "x")
    total = net.layer("Add", "opset1", [net.read_value("sum", "f32", (2, 3)), x])
    net.assign("sum", total)
    net.result(total)
    return net

SCENARIOS = [Scenario("accumulate", accumulate(), [Infer(x=ones), Infer(x=ones), Reset(), Infer(x=ones)])]
test_scenarios = check(SCENARIOS)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pytest

from . import judge
from .cases import api, check_error, compile, variants_of
from .elements import as_logical, name_of
from .ir import Net, Variant
from .judge import Expected, Value
from .recall import digest, recall
from .replay import DEVICES, EMULATED, Watch
from .tolerance import Tol, compare, compare_all

States = dict[str, np.ndarray[Any, Any]]
Wanted = list[tuple[list[Expected], States]]  # outputs and states that each step must show
PASSES = 5  # passes on a device: before the last one, every buffer of a state has been the current one twice


class Infer:
    """One inference with inputs by parameter name.

    `expect` (outputs in order) and `states` (by variable) are the expected values where OpenVINO errs.
    """

    def __init__(self, expect: Sequence[Any] = (), states: Mapping[str, Any] | None = None, **inputs: Any) -> None:
        self.inputs, self.expect = inputs, [Expected.of(values) for values in expect]
        self.states: States = {name: np.asarray(value) for name, value in (states or {}).items()}


@dataclass(frozen=True)
class Reset:
    """`reset_state()` of the request, or `reset()` of one variable."""

    variable: str | None = None


@dataclass(frozen=True, eq=False)
class SetState:
    """`state.state = Tensor`; the element type defaults to that of the array."""

    variable: str
    value: Any
    type: str | None = None


Step = Infer | Reset | SetState


@dataclass(frozen=True, eq=False)
class Scenario:
    """A model and the steps taken with one request; outputs and states are compared after every step.

    tol       as in `Case`
    oracle    "auto": OpenVINO's CPU plugin, and for a stateless model its reference if the plugin refuses;
              "evaluate": the reference (stateless only); "value": every Infer has `expect`
    error     a regular expression: some step must raise an error that begins with "[error_op]"
    dynamic   also run with all dims of all parameters dynamic
    rankless  also run with a dynamic rank
    emulated  also run on the emulated device
    specified the steps with the values that the specification requires: a random scenario that differs from
              OpenVINO passes if it agrees with these, since the plugin sometimes returns stray memory
    """

    id: str
    net: Net
    steps: Sequence[Step]
    tol: Tol = None
    oracle: judge.Oracle = "auto"
    dynamic: bool = True
    rankless: bool = False
    error: str | None = None
    error_op: str = ""
    emulated: bool = True
    specified: Sequence[Step] = ()

    @property
    def name(self) -> str:
        return self.id

    @property
    def variants(self) -> tuple[Variant, ...]:
        fed = bool(self.net.parameters)
        return variants_of(self.dynamic and fed, self.rankless and fed)

    @property
    def judged(self) -> bool:
        return self.error is None

    @property
    def valued(self) -> bool:
        """True if the steps have their expected values, and need no judge."""
        return self.oracle == "value"

    @property
    def devices(self) -> tuple[str, ...]:
        return DEVICES if self.judged and self.emulated else DEVICES[:1]

    @property
    def group(self) -> str:
        return "scenarios"

    @cached_property
    def expected(self) -> Wanted:
        return recall(digest([*self.net.build(), self.oracle, *self._contents()]), self.judge)

    def judge(self) -> Wanted:
        """Return OpenVINO's outputs and states of each step; the expectations of a step itself take precedence."""
        xml, weights = self.net.build()
        stateful = any(kind == "ReadValue" for kind, _ in self.net.layers())
        assert not (stateful and self.oracle == "evaluate"), f"{self.id}: evaluate keeps no state"
        plugin = judge.Plugin(xml, weights) if stateful and self.oracle != "value" else None
        stateless = judge.Judge(xml, weights, self.oracle)
        seen = []
        for step in self.steps:
            outputs, states = (step.expect, step.states) if isinstance(step, Infer) else ([], {})
            if plugin is not None:
                judged = plugin.expect(self._take(judge.openvino(), plugin.request, step))
                outputs, states = outputs or judged, _states(plugin.request, step) | states
            elif isinstance(step, Infer) and not outputs:
                assert self.oracle != "value", f"{self.id}: an Infer lacks `expect`"
                outputs = stateless.expect(list(self.values(step).values()))
            seen.append((outputs, states))
        return seen

    def run(self, variant: Variant, device: str) -> None:
        """Take every step and compare, or check the error."""
        where = f"{self.id} ({variant}, {device})"
        if self.error is not None:
            with pytest.raises(Exception) as caught:
                request = compile(self.net, variant, device)
                for step in self.steps:
                    self._take(api(), request, step)
            check_error(where, caught.value, self.error_op, self.error)
            return
        watch = self.watched(variant, device)
        if device == EMULATED:
            watch.close(self.group, self.name, variant)

    def watched(self, variant: Variant, device: str, passes: int = PASSES, expected: Wanted | None = None) -> Watch:
        """Take every step and compare, on a device in several passes; return the watch over the last pass."""
        expected = self.expected if expected is None else expected
        request, watch = compile(self.net, variant, device, self.valued), Watch()
        last = passes - 1 if device == EMULATED else 0
        for number in range(last + 1):
            if number:
                request.reset_state()
            where = f"{self.id} ({variant}, {device}), pass {number}"
            self._pass(where, request, expected, watch if 0 < number == last else None)
        return watch

    def _pass(self, where: str, request: Any, expected: Wanted, watch: Watch | None) -> None:
        """Take the steps from the initial state, and compare."""
        settled = False
        for number, (step, (outputs, states)) in enumerate(zip(self.steps, expected, strict=True)):
            label = f"{where} step {number} {type(step).__name__}"
            take = partial(self._take, api(), request, step)
            infers = isinstance(step, Infer)
            got = watch.infer(request, take, settled=settled) if watch and infers else take()
            settled = infers
            compare_all(label, got, outputs, self.tol)
            found = _states(request, step)
            for name, value in states.items():
                # OpenVINO shows some states in wider types, and scalars as [1]
                kind, one = name_of(found[name].dtype), value.size == found[name].size == 1
                value = value.reshape(found[name].shape) if one else value
                wanted = Expected(value.astype(found[name].dtype), kind, kind)
                compare(f"{label} state {name}", found[name], kind, wanted, self.tol)

    def _contents(self) -> Iterator[Any]:
        """Yield everything that the steps hold, for `recall`."""
        for step in self.steps:
            yield type(step).__name__
            if isinstance(step, Infer):
                for array, kind in self.values(step).values():
                    yield from (array, kind)
                yield from (expected.array for expected in step.expect)
                for name, value in step.states.items():
                    yield from (name, value)
            else:
                yield step.variable
                if isinstance(step, SetState):
                    yield from (np.asarray(step.value), step.type)

    def values(self, step: Infer) -> dict[str, Value]:
        """Return the inputs in the order of the parameters, in their element types."""
        ports = self.net.parameters
        assert set(step.inputs) == set(ports), f"{self.id}: parameters are {set(ports)}"
        return {name: (as_logical(step.inputs[name], port.type), port.type) for name, port in ports.items()}

    def _take(self, library: Any, request: Any, step: Step) -> list[Value]:
        """Take a step with a request of `library`; return the outputs."""
        if isinstance(step, Infer):
            return judge.infer(library, request, self.values(step))
        if isinstance(step, Reset) and step.variable is None:
            request.reset_state()
            return []
        state = next(state for state in request.query_state() if state.name == step.variable)
        if isinstance(step, Reset):
            state.reset()
        else:
            kind = step.type or name_of(np.asarray(step.value).dtype)
            state.state = judge.to_tensor(library, as_logical(step.value, kind), kind)
        return []


def _states(request: Any, step: Step) -> States:
    """Return the states by variable. After a reset none is defined before the next inference, and after setting a
    variable only that one is."""
    if isinstance(step, Reset):
        return {}
    wanted = step.variable if isinstance(step, SetState) else None
    return {s.name: judge.to_array(s.state) for s in request.query_state() if wanted in (None, s.name)}
