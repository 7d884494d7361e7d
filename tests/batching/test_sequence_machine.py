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
from tests.batching import nets
from tests.batching.test_decoders import VOCABULARY, frames, is_empty, nearly, tokens
from tests.batching.test_sequences import MODELS, close_to, step
from tests.harness.models.drive import DATA

EXAMPLES, LONG, STEPS, SLOTS = 4, 480, 20, 8
NAMES = ("streaming_lstm", "sums", "first_frame", "time_major")


class Pair:
    """A sequence of the batcher, and its twin: a request of its own."""

    def __init__(self, sequence: Any, request: Any) -> None:
        self.sequence, self.request = sequence, request
        self.waiting: list[tuple[Any, Any]] = []  # (future, expected results)
        self.past = 0  # rows of its KV caches
        self.begun = False  # whether it has left the initial state


class Machine(RuleBasedStateMachine):
    """Sequences that come and go. Subclasses name the device."""

    device = "CPU"
    names: tuple[str, ...] = NAMES

    def load(self, name: str) -> ov.Model:
        return MODELS[name]()

    def inputs(self, pair: Pair) -> Any:
        """Return random inputs of the next step of a sequence."""
        return step(self.model, self.rng)

    def compare(self, found: Any, wanted: Any) -> None:
        close_to(found, wanted)

    @initialize(number=st.integers(0, 3), wait=st.sampled_from([0, 0, 1]))
    def begin(self, number: int, wait: int) -> None:
        self.model = self.load(self.names[number % len(self.names)])
        self.rng = np.random.default_rng(0)
        self.batcher = ov.SequenceBatcher(self.model, SLOTS, self.device, max_wait_ms=wait)
        self.compiled = ov.Core().compile_model(self.model, "CPU")
        self.open: list[Pair] = []

    def pick(self, number: int) -> Pair:
        return self.open[number % len(self.open)]

    def settle(self, pair: Pair) -> None:
        for future, expected in pair.waiting:
            self.compare(future.result(30).to_tuple(), expected)
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
            pair = self.pick(number)
            inputs, pair.begun = self.inputs(pair), True
            pair.waiting.append((pair.sequence.submit(inputs), pair.request.infer(inputs).to_tuple()))

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0, SLOTS - 1))
    def resets(self, number: int) -> None:
        pair = self.pick(number)
        pair.sequence.reset()
        pair.request.reset_state()
        pair.past, pair.begun = 0, False

    @precondition(lambda self: 0 < len(self.open) < SLOTS)
    @rule(number=st.integers(0, SLOTS - 1))
    def forks(self, number: int) -> None:
        pair = self.pick(number)
        forked = Pair(pair.sequence.fork(), self.compiled.create_infer_request())
        if pair.begun:
            for ours, theirs in zip(forked.request.query_state(), pair.request.query_state()):
                ours.state = theirs.state.data.copy()
        forked.past, forked.begun = pair.past, pair.begun
        self.open.append(forked)

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
        b.past, b.begun = a.past, True

    @precondition(lambda self: self.open)
    @rule(number=st.integers(0, SLOTS - 1))
    def reads(self, number: int) -> None:
        pair = self.pick(number)
        for variable in pair.request.query_state():
            found = pair.sequence.state[variable.name].data
            if 0 not in found.shape:  # at first, caches of a plain request may have no batch
                self.compare([found], [variable.state.data])

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "batcher"):
            assert len(self.batcher) == len(self.open)

    def teardown(self) -> None:
        if hasattr(self, "batcher"):
            for pair in self.open:
                self.settle(pair)
                pair.sequence.close()
            self.ends()
            self.batcher.close()

    def ends(self) -> None:
        """Check the batcher after all sequences were closed."""


class DecoderMachine(Machine):
    """Decoders whose sequences have KV caches of different lengths."""

    names = ("decoder", "llama")

    def load(self, name: str) -> ov.Model:
        return nets.decoder() if name == "decoder" else ov.Core().read_model(DATA / name / "model.xml")

    def inputs(self, pair: Pair) -> Any:
        count, past = int(self.rng.choice([1, 1, 1, 2, 5])), pair.past
        pair.past += count
        if len(self.model.inputs) == 2:
            return frames(count, past, int(self.rng.integers(1000)))
        return tokens(self.model, self.rng.integers(1, VOCABULARY, count).tolist(), past)

    def compare(self, found: Any, wanted: Any) -> None:
        nearly(found, wanted)

    def ends(self) -> None:
        assert is_empty(self.batcher)


@pytest.mark.parametrize("base", [Machine, DecoderMachine])
def test_machine(base: type[Machine], device: str, pytestconfig: pytest.Config) -> None:
    machine = type("MachineOnDevice", (base,), {"device": device})
    examples = LONG if pytestconfig.getoption("--long") else EXAMPLES
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=STEPS, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
