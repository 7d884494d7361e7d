"""Assisted generation: an assistant proposes tokens, and the model checks several of them in one inference.

The texts are those of plain generation (Leviathan et al., arXiv 2211.17192; Saxena, prompt lookup decoding, 2023), as
each token is chosen by the model's own logits, with the same random numbers. Proposals only save inferences.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import exp
from typing import Protocol

from ovgpu.genai.assisted_metrics import AssistedRecord, add_inference
from ovgpu.genai.decoder import MAX_PROPOSED, Decoder, Retractable
from ovgpu.genai.enums import StreamingStatus
from ovgpu.genai.generation import Outcome
from ovgpu.genai.generation_config import GenerationConfig
from ovgpu.genai.grammar import CompiledGrammar
from ovgpu.genai.metrics import RawPerfMetrics
from ovgpu.genai.sampling import Sampler, Sampling, checked_token, random_numbers, sampling_of
from ovgpu.genai.stops import Stops
from ovgpu.genai.streamers import StreamerBase
from ovgpu.genai.texts import REASONS, Stream, Text


class Assistant(Protocol):
    """Source of tokens that may follow a text."""

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        """Return at most ``count`` tokens after ``text``, which has the prompt and the generated tokens."""
        ...


class PromptLookup:
    """Assistant that looks up where the last tokens of a text occurred before, and proposes what followed there."""

    def __init__(self, max_ngram_size: int) -> None:
        self._size = max_ngram_size

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        for size in range(min(self._size, len(text) - 1), 0, -1):
            tail = text[len(text) - size :]
            for begin in range(len(text) - size):
                if text[begin : begin + size] == tail:
                    return list(text[begin + size : begin + size + count])
        return []


class DraftModel:
    """Assistant that is a smaller model with the same tokens, which takes the most likely ones.

    With a ``threshold`` > 0, it ends when a token is less likely than that. Raises: Error for a model that takes one
    token at a time.
    """

    def __init__(self, decoder: Decoder, threshold: float, record: AssistedRecord) -> None:
        decoder.check_several_tokens()
        chooser = decoder.chooser(penalties=False)
        self._ports, self._output, self._threshold = chooser.compiled.inputs, chooser.output, threshold
        self._text = Retractable(chooser.request, decoder.inputs(self._ports))
        self._record = record
        self._known: list[int] = []  # tokens that the model has got

    def propose(self, text: Sequence[int], count: int) -> list[int]:
        same = next(
            (i for i, (a, b) in enumerate(zip(self._known, text)) if a != b), min(len(self._known), len(text) - 1)
        )
        self._text.drop(len(self._known) - same)
        self._known, new = list(text[:same]), list(text[same:])
        sampler = Sampler(self._ports, Sampling(by_logits=True))
        proposed: list[int] = []
        while len(proposed) < count:
            start = time.perf_counter()
            outputs = self._text.infer(new, sampler.next())
            inferred = time.perf_counter()
            add_inference(self._record.draft, start, inferred, inferred, 1)
            if not proposed:
                self._text.keep()  # what follows are proposals
            self._known += new
            new = [checked_token(outputs[self._output])]
            if self._threshold and exp(outputs[self._output + 1][0]) < self._threshold:
                break
            proposed += new
        return proposed


def generate_assisted(
    decoder: Decoder,
    assistant: Assistant,
    prompt: Sequence[int],
    config: GenerationConfig,
    stops: Stops,
    streamer: StreamerBase | None,
    raw: RawPerfMetrics,
    grammar: CompiledGrammar | None = None,
    record: AssistedRecord | None = None,
) -> Outcome:
    """Continue a prompt by greedy search or random draws, see `generate`. Inferences are also added to ``record``."""
    record = record or AssistedRecord()
    matcher = None if grammar is None else grammar.matcher()
    text = Text(prompt, config.get_max_new_tokens(len(prompt)))
    sampler = Sampler((), sampling_of(config), random_numbers(config.rng_seed), prompt)
    verifier, stream = decoder.verifier(), Stream(streamer, text, config.echo, stops.window)
    most = min(config.num_assistant_tokens or MAX_PROPOSED, MAX_PROPOSED)
    raw.inference_durations.append(0.0)
    status, new, vocabulary = StreamingStatus.RUNNING, list(prompt), 0
    while text.reason is None and status == StreamingStatus.RUNNING and text.limit:
        start, before = time.perf_counter(), len(text.tokens)
        proposed = list[int]()
        if before and text.limit - before > 1:
            proposed = assistant.propose([*prompt, *text.tokens], min(most, text.limit - before - 1))
            proposed = proposed[: next((i for i, n in enumerate(proposed) if n >= vocabulary), len(proposed))]
        verified = time.perf_counter()
        logits = verifier.step([*new, *proposed], len(proposed) + 1)
        inferred, vocabulary = time.perf_counter(), logits.shape[1]
        accepted = 0
        for row in logits:
            banned = config.stop_token_ids if len(text.tokens) < config.min_new_tokens else ()
            allowed = None if matcher is None else matcher.allowed()
            token, log = sampler.choose(row, text.tokens, banned, allowed)
            text.tokens.append(token)
            if matcher is not None:
                matcher.accept(token)
            text.logs.append(log)
            text.reason, cut = stops.check(text.tokens, text.limit)
            is_accepted = proposed[accepted : accepted + 1] == [token]
            accepted += is_accepted
            if text.reason is not None or not is_accepted:
                break
        new = [token]
        verifier.drop(len(proposed) - accepted)
        raw.add_inference(start, inferred, len(text.tokens) - before)
        add_inference(record.main, verified, inferred, time.perf_counter(), len(text.tokens) - before)
        record.proposed, record.accepted = record.proposed + len(proposed), record.accepted + accepted
        text.cut(cut)
        status = stream.write()
    text.reason = text.reason or REASONS[status]
    stream.end()
    return Outcome([text], status)
