"""Random generations in an engine, with few blocks and tokens, cancels and faults, against each generation alone."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

import ovgpu
import ovgpu.genai as ov_genai
from ovgpu.batching.gathering import Work
from ovgpu.batching.pages import PageAllocator
from ovgpu.genai import runs
from ovgpu.genai.decoder import Decoder
from ovgpu.genai.engine import Engine, Limits
from ovgpu.genai.enums import StreamingStatus
from ovgpu.genai.metrics import RawPerfMetrics
from ovgpu.genai.places import Sequences
from ovgpu.genai.stops import Stops
from ovgpu.genai.texts import Generation
from ovgpu.ops.fused.kv_cache import PAGE_TOKENS
from tests.batching.test_decoders import is_empty
from tests.genai.generation_cases import model_path

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
EXAMPLES, LONG, RULES = {"CPU": 6, "card": 1}, {"CPU": 1500, "card": 60}, 25
MOST, STEPS = 12, 3000  # generations, and steps in which they end
LONGEST = [1, *range(5, 45)]
PROMPTS = [LONGEST, LONGEST[:33], [*LONGEST[:33], 9, 9], LONGEST[:17], LONGEST[:5], [7]]
SAMPLED = {"do_sample": True, "rng_seed": 3, "top_k": 5}
CONFIGS: list[dict[str, Any]] = [
    {"max_new_tokens": 1},
    {"max_new_tokens": 5},
    {"max_new_tokens": 14},
    {"max_new_tokens": 9, "stop_token_ids": set(range(60, 110))},
    {"max_new_tokens": 7, **SAMPLED},
    {"max_new_tokens": 6, **SAMPLED, "num_return_sequences": 3},
    {"max_new_tokens": 7, "repetition_penalty": 1.5},
    {"max_new_tokens": 6, "num_beams": 2, "num_return_sequences": 2},
    {"max_new_tokens": 8, "num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5, "num_return_sequences": 4},
]
INTERRUPTED: dict[str, tuple[Any, str]] = {
    "inference": (Work, "exception"),
    "fork": (Sequences, "fork"),
    "close": (Sequences, "close"),
    "share": (PageAllocator, "share"),
    "release": (PageAllocator, "release"),
    "end": (Stops, "check"),
}
"""Functions whose calls are interrupted."""
BLOCKS_OF_BEAMS = 12  # with which a search of four beams is never cut short


@cache
def decoder_of(device: str) -> Decoder:
    return Decoder(ovgpu.Core().read_model(model_path("llama")), device, EXACT)


def generation(prompt: int, fields: int, streamer: Any = None) -> Generation:
    config = ov_genai.GenerationConfig(**CONFIGS[fields])
    raw = RawPerfMetrics(inference_durations=[0.0])
    return Generation(PROMPTS[prompt], config, Stops(config, None), raw, None, streamer)


@cache
def alone(prompt: int, fields: int) -> list[tuple[list[int], Any]]:
    """Return the texts of a prompt that runs alone on the CPU, without batches and pages, and why they end."""
    engine, one = Engine(decoder_of("CPU")), generation(prompt, fields)
    engine.add([one], alone=True)
    while engine.is_busy:
        engine.step()
    return [(text.tokens, text.reason) for text in one.texts]


class Recorder(ov_genai.StreamerBase):
    """Streamer that keeps the tokens, and raises an error at one of its calls."""

    def __init__(self, fails: int) -> None:
        self.tokens, self.fails, self.ended = list[int](), fails, 0
        self.broken = False  # whether the last call raised

    def write(self, token: int | Sequence[int]) -> StreamingStatus:
        self.tokens += token if isinstance(token, Sequence) else [token]
        self.fails -= 1
        self.broken = not self.fails
        if self.broken:
            raise ZeroDivisionError
        return StreamingStatus.RUNNING

    def end(self) -> None:
        self.ended += 1


class Machine(RuleBasedStateMachine):
    """Generations that come and go. Subclasses name the device.

    Rules have no preconditions: where an interruption hits depends on the batcher's thread, and so does the state.
    """

    device = "CPU"

    @initialize(
        texts=st.sampled_from([2, 4, 9]),
        tokens=st.sampled_from([None, 2, 5, 16]),
        blocks=st.sampled_from([None, 5, BLOCKS_OF_BEAMS, 15]),
        split=st.booleans(),
        prefixes=st.booleans(),
    )
    def begin(self, texts: int, tokens: int | None, blocks: int | None, split: bool, prefixes: bool) -> None:
        self.limits = Limits(texts, tokens if split or tokens is None else 48, blocks, split, prefixes)
        self.decoder = decoder_of(self.device)
        self.engine = Engine(self.decoder, self.limits)
        self.arrived: list[tuple[Generation, int, int, Recorder | None]] = []
        self.failed: set[Generation] = set()
        self.interrupted = False

    @rule(
        several=st.lists(
            st.tuples(
                st.integers(0, len(PROMPTS) - 1), st.integers(0, len(CONFIGS) - 1), st.sampled_from([0, 0, 0, 1, 3])
            ),
            min_size=1,
            max_size=3,
        )
    )
    def arrive(self, several: list[tuple[int, int, int]]) -> None:
        """Add generations: numbers of a prompt and of a configuration, and the call of the streamer that fails."""
        for prompt, fields, fails in several[: MOST - len(self.arrived)]:
            new, recorder = generation(prompt, fields), None
            if new.config.is_beam_search():
                if self.limits.blocks is not None and self.limits.blocks < BLOCKS_OF_BEAMS:
                    continue
            elif len(new.texts) == 1:
                recorder = Recorder(fails)
                new = generation(prompt, fields, recorder)
            if len(new.texts) > self.limits.texts:
                with pytest.raises(ovgpu.Error, match="max_num_seqs"):
                    self.engine.add([new])
                continue
            self.engine.add([new])
            self.arrived.append((new, prompt, fields, recorder))

    @rule(count=st.integers(1, 6))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    @rule(kind=st.sampled_from(["cancel", "stop", "fail", "forget", *INTERRUPTED]), number=st.integers(0, 9))
    def disturb(self, kind: str, number: int) -> None:
        """Cancel a generation, let the logits of a text be no numbers, or interrupt a call."""
        if kind in INTERRUPTED:
            self.interrupted = True
            with raising(*INTERRUPTED[kind], number, KeyboardInterrupt()), suppress(KeyboardInterrupt):
                self.step()
        elif kind == "fail":
            with raising(runs, "checked_token", number % 4, ovgpu.Error("the logits have NaN")):
                self.step()
            self.failed |= {one for one, *_ in self.arrived if one.error is not None}
        elif kind == "forget":
            self.engine.forget()
        elif self.arrived:
            status = StreamingStatus.CANCEL if kind == "cancel" else StreamingStatus.STOP
            self.arrived[number % len(self.arrived)][0].status = status

    # ----

    def step(self) -> None:
        """Run a step, which keeps the limits."""
        running = [run for run in self.engine._running if not run.has_ended]
        decoding = sum(len(run.slots) for run in running if run.left == 1)
        with counted() as sizes:
            try:
                usage = self.engine.step()
            except ZeroDivisionError:  # of a streamer
                return
        assert self.limits.blocks is None or usage.blocks <= self.limits.blocks
        assert self.limits.tokens is None or sum(sizes) <= max(self.limits.tokens, decoding) or usage.advanced == 1

    @invariant()
    def check(self) -> None:
        """Check the ledger of blocks, and the places that texts have in the decoder."""
        if not hasattr(self, "engine") or self.engine._unsettled:  # until the next step
            return
        engine, running = self.engine, self.engine._running
        holders = [*running, *engine._ended]
        assert sum(run.width for run in running) <= self.limits.texts or len(running) == 1
        assert len(engine._ended) <= self.limits.texts
        held = {page for run in holders for slot in run.slots for page in slot.held.pages}
        assert engine.blocks == len(held) and not any(run.slots for run in engine._waiting)
        for run in holders:
            for slot in run.slots:
                request, entry = slot.place._slots.request, slot.place._entry
                found = 0 if entry.initial else request._held[entry.slot].length
                assert slot.held.length == run.fed == found <= PAGE_TOKENS * len(slot.held.pages)
        order = [one for one, *_ in self.arrived]
        waiting = [order.index(run.generation) for run in engine._waiting]
        assert waiting == sorted(waiting)

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        try:
            for _ in range(STEPS):
                if not self.engine.is_busy:
                    break
                self.step()
                self.check()
            assert not self.engine.is_busy
            for arrived in self.arrived:
                self.compare(*arrived)
        finally:
            self.engine.close()
            self.engine.forget()
        assert self.engine.blocks == 0
        batchers = [batcher for batcher in self.decoder._batchers.values() if batcher is not None]
        if any(len(batcher) for batcher in batchers):
            gc.collect()  # sequences that were opened when an interruption came close as garbage
        for batcher in batchers:
            assert len(batcher) == 0 and is_empty(batcher)

    def compare(self, one: Generation, prompt: int, fields: int, recorder: Recorder | None) -> None:
        """Compare a generation that has ended with one that ran alone. If it failed or was cancelled, its texts are
        shorter."""
        wanted, whole = alone(prompt, fields), one.error is None and one.status == StreamingStatus.RUNNING
        assert (one.error is not None) == (one in self.failed)
        if whole:
            assert [(text.tokens, text.reason) for text in one.texts] == wanted
        elif not one.config.is_beam_search():
            for text, (tokens, _) in zip(one.texts, wanted):
                assert text.tokens == tokens[: len(text.tokens)]
        if whole and not (self.interrupted or one.config.is_beam_search()):
            assert sum(one.raw.m_batch_sizes) == sum(len(tokens) for tokens, _ in wanted)
        if recorder is not None and one.error is None:
            wrote_all = whole and not self.interrupted
            assert recorder.tokens == one.texts[0].tokens[: None if wrote_all else len(recorder.tokens)]
            assert recorder.ended == 1 or recorder.broken or self.interrupted


@contextmanager
def raising(owner: Any, name: str, at: int, error: BaseException) -> Iterator[None]:
    """Let a call of a function raise an error, in this thread alone, as signal handlers do."""
    function, calls, thread = getattr(owner, name), iter(range(1 << 30)), threading.get_ident()

    def replacement(*args: Any) -> Any:
        if threading.get_ident() == thread and next(calls) == at:
            raise error
        return function(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, replacement)
        yield


@contextmanager
def counted() -> Iterator[list[int]]:
    """Yield a list to which steps of places are added: the number of tokens that each gets."""
    step, sizes = Sequences.step, list[int]()

    def counting(places: Sequences, steps: Any) -> Any:
        sizes.extend(arrays[0].size for arrays in steps.values())  # of input_ids
        return step(places, steps)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sequences, "step", counting)
        yield sizes


@pytest.mark.parametrize("device", ["CPU", "card"])
def test_machine(device: str, emulated: str, pytestconfig: pytest.Config) -> None:
    machine = type("MachineOnDevice", (Machine,), {"device": emulated if device == "card" else device})
    examples = (LONG if pytestconfig.getoption("--long") else EXAMPLES)[device]
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=RULES, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
