"""Random arrivals, lengths, resets, closes and moves of sequences, against a request for each sequence."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import ovgpu as ov
from tests.batching.test_sequences import MODELS, close_to, step

EXAMPLES, STEPS, SLOTS = 12, 20, 8
NAMES = ("streaming_lstm", "sums", "first_frame", "time_major")


class Pair:
    """A sequence of the batcher, and its twin: a request of its own."""

    def __init__(self, sequence: Any, request: Any) -> None:
        self.sequence, self.request = sequence, request
        self.waiting: list[tuple[Any, Any]] = []  # (future, expected results)


class Machine(RuleBasedStateMachine):
    """Sequences that come and go. Subclasses name the device."""

    device = "CPU"

    @initialize(name=st.sampled_from(NAMES), wait=st.sampled_from([0, 0, 1]))
    def begin(self, name: str, wait: int) -> None:
        self.model = MODELS[name]()
        self.rng = np.random.default_rng(0)
        self.batcher = ov.SequenceBatcher(self.model, SLOTS, self.device, max_wait_ms=wait)
        self.compiled = ov.Core().compile_model(self.model, "CPU")
        self.open: list[Pair] = []

    def pick(self, number: int) -> Pair:
        return self.open[number % len(self.open)]

    def settle(self, pair: Pair) -> None:
        for future, expected in pair.waiting:
            close_to(future.result(30).to_tuple(), expected)
        pair.waiting.clear()

    @precondition(lambda self: len(self.open) < SLOTS)
    @rule(count=st.integers(1, 3))
    def opens(self, count: int) -> None:
        for _ in range(min(count, SLOTS - len(self.open))):
            self.open.append(Pair(self.batcher.open(), self.compiled.create_infer_request()))

    @precondition(lambda self: self.open)
    @rule(numbers=st.lists(st.integers(0, SLOTS - 1), min_size=1, max_size=2 * SLOTS))
    def submits(self, numbers: list[int]) -> None:
        for number in numbers:
            pair, inputs = self.pick(number), step(self.model, self.rng)
            pair.waiting.append((pair.sequence.submit(inputs), pair.request.infer(inputs).to_tuple()))

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0, SLOTS - 1))
    def resets(self, number: int) -> None:
        pair = self.pick(number)
        pair.sequence.reset()
        pair.request.reset_state()

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0, SLOTS - 1))
    def closes(self, number: int) -> None:
        pair = self.pick(number)
        self.settle(pair)
        pair.sequence.close()
        self.open.remove(pair)

    @precondition(lambda self: len(self.open) > 1)
    @rule(source=st.integers(0, SLOTS - 1), destination=st.integers(0, SLOTS - 1))
    def moves(self, source: int, destination: int) -> None:
        a, b = self.pick(source), self.pick(destination)
        state = a.sequence.state
        b.sequence.state = state
        for variable in b.request.query_state():
            variable.state = state[variable.name].data

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0, SLOTS - 1))
    def reads(self, number: int) -> None:
        pair = self.pick(number)
        for variable in pair.request.query_state():
            found = pair.sequence.state[variable.name].data
            np.testing.assert_allclose(found, variable.state.data, 2e-6, 2e-6)

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "batcher"):
            assert len(self.batcher) == len(self.open)

    def teardown(self) -> None:
        if hasattr(self, "batcher"):
            for pair in self.open:
                self.settle(pair)
            self.batcher.close()


def test_machine(device: str, pytestconfig: pytest.Config) -> None:
    machine = type("MachineOnDevice", (Machine,), {"device": device})
    examples = EXAMPLES * (40 if pytestconfig.getoption("--long") else 1)
    run_state_machine_as_test(machine, settings=settings(
        max_examples=examples, stateful_step_count=STEPS, deadline=None, suppress_health_check=list(HealthCheck)))
