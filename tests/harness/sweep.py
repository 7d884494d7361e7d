"""Random cases of an op family against OpenVINO: hypothesis draws attributes, shapes and types.

    @st.composite
    def pools(draw: st.DrawFn) -> Case: ...
    test_random = sweep(pools())

Each draw is one inference on NumPy, or the steps of a scenario, with static or dynamic shapes. By default an eighth of
the draws is made, the same in every run. `pytest --long` makes forty times as many as given, different ones in every
run, and a tenth of that on the emulated device as well. A case that OpenVINO refuses does not count; the test fails if
OpenVINO refuses most of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, assume, given, note, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers

from . import guarded, joint, judge
from .cases import Case, api, compile
from .ir import Variant
from .replay import EMULATED
from .scenario import Scenario
from .tolerance import compare_all

Draws = st.SearchStrategy[Case] | st.SearchStrategy[Scenario]
DRAWS, LONGER, SHARE = 50, 40, 8
VARIANTS: st.SearchStrategy[Variant] = st.sampled_from(("static", "dynamic"))
PASSES = 3  # passes of a scenario on a device: one runs, one captures, one replays
# Hypothesis would also draw constants of the loaded modules: cases would differ between workers and after changes.
providers.is_local_module_file = lambda path: False  # type: ignore[assignment]
LIMITS = settings(
    database=None,
    deadline=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=[check for check in HealthCheck if check != HealthCheck.filter_too_much],
)


def sweep(cases: Draws, draws: int = DRAWS) -> Callable[..., None]:
    """Return a pytest function that judges so many draws of cases: `test_random = sweep(cases())`."""

    def test(request: pytest.FixtureRequest) -> None:
        judge.openvino()
        long = request.config.getoption("--long")
        examples = draws * LONGER if long else draws // SHARE
        run(cases, "CPU", settings(LIMITS, max_examples=examples, derandomize=not long))
        if long:
            request.getfixturevalue("emulated")  # a kernel may have to be compiled for every draw
            run(cases, EMULATED, settings(LIMITS, max_examples=draws * LONGER // 10, derandomize=False))

    test.drawn = cases  # type: ignore[attr-defined]  # read by tests.conformance
    return pytest.mark.timeout(3600)(test)


def run(cases: Draws, device: str, limits: settings) -> None:
    """Judge draws of cases and of the variants in which their shapes are declared. Of a draw that fails, hypothesis
    looks for a smaller one."""
    drawn: list[tuple[Case | Scenario, Variant]] = []
    collects = True

    @limits
    @given(cases, VARIANTS)
    def test(case: Case | Scenario, variant: Variant) -> None:
        if collects:
            drawn.append((case, variant))
            return
        note(described(case, variant))
        try:
            judged(case, variant, device)
        except judge.Refused:
            assume(False)

    test()
    collects, refused = False, 0
    for (case, variant), expected in zip(drawn, answers([case for case, _ in drawn])):
        try:
            judged(case, variant, device, expected)
        except judge.Refused:
            refused += 1
        except Exception as error:
            test()
            error.add_note(described(case, variant))
            raise
    assert 2 * refused <= len(drawn), f"OpenVINO refuses {refused} of {len(drawn)} draws"


def answers(cases: Sequence[Case | Scenario]) -> Iterator[list[judge.Expected] | None]:
    """Yield what OpenVINO's CPU plugin answers to cases when asked about many at once; None if it has to be asked about
    one alone."""
    for start in range(0, len(cases), joint.TOGETHER):
        some = cases[start : start + joint.TOGETHER]
        asked = [case.question(draws=1) if isinstance(case, Case) else None for case in some]
        try:
            found = iter(guarded.ask(joint.answers, [question for question in asked if question]))
        except judge.Refused:
            found = iter([None] * len(some))
        for question in asked:
            answer = next(found) if question else None
            yield answer[0] if answer else None


def described(case: Case | Scenario, variant: Variant) -> str:
    """Describe a draw so that it can be reproduced by hand."""
    if isinstance(case, Scenario):
        return f"{case.net.build(variant)[0].decode()}\n{case.steps}"
    return f"{case.op} {case.version} {dict(case.attrs)} of {', '.join(map(str, case.inputs))} ({variant})"


def judged(case: Case | Scenario, variant: Variant, device: str, wanted: list[judge.Expected] | None = None) -> None:
    """Compare a case with OpenVINO, or with its own expectation: one inference, or all steps of a scenario.

    ``wanted`` is what OpenVINO has answered to a case already. Raise `Refused` if OpenVINO does not answer. A case that
    does not run with dynamic shapes runs with static ones."""
    variant = variant if case.dynamic else "static"
    if isinstance(case, Scenario):
        expected = case.judge() if case.oracle == "value" else guarded.ask(case.judge)
        try:
            case.watched(variant, device, PASSES, expected)
        except AssertionError:
            if not case.specified:
                raise
            case.watched(variant, device, PASSES, replace(case, steps=case.specified, oracle="value").judge())
        return
    if wanted is None:
        wanted = (
            case.expected[0]
            if case.expect
            else guarded.ask(guarded.expect, *case.net.build(), case.oracle, case.parameters(case.arrays()))
        )
    found = judge.infer(api(), compile(case.net, variant, device, case.valued), case.parameters(case.arrays()))
    compare_all(f"[{case.op}] {case.name} ({variant}, {device})", found, wanted, case.tol)
