"""Generation of texts, step by step: choose tokens, find the ends, stream."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ovgpu.genai.beam_search import BeamSearch, log_softmax
from ovgpu.genai.decoder import Chooser, Decoder, DecoderInputs, Texts
from ovgpu.genai.enums import GenerationFinishReason, StreamingStatus
from ovgpu.genai.generation_config import GenerationConfig
from ovgpu.genai.grammar import CompiledGrammar
from ovgpu.genai.metrics import RawPerfMetrics
from ovgpu.genai.sampling import Array, Sampler, checked_token, random_numbers, sampling_of
from ovgpu.genai.stops import Stops
from ovgpu.genai.streamers import StreamerBase, write_tokens

REASONS = {
    StreamingStatus.RUNNING: GenerationFinishReason.NONE,  # a text of no tokens
    StreamingStatus.STOP: GenerationFinishReason.STOP,
    StreamingStatus.CANCEL: GenerationFinishReason.NONE,
    StreamingStatus.TOOL_CALL_STOP: GenerationFinishReason.TOOL_CALL,
}


@dataclass
class Text:
    """Tokens that follow a prompt, the log probability of each, and why the text ended."""

    prompt: Sequence[int]
    limit: int
    tokens: list[int] = field(default_factory=list)
    logs: list[float] = field(default_factory=list)
    reason: GenerationFinishReason | None = None
    normalised: float | None = None  # score of beam search

    @property
    def score(self) -> float:
        """The sum of the log probabilities, which beam search normalises by the length."""
        return sum(self.logs, 0.0) if self.normalised is None else self.normalised

    def cut(self, count: int) -> None:
        """Remove the last tokens."""
        if count:
            del self.tokens[-count:], self.logs[-count:]


@dataclass
class Outcome:
    """Texts of a generation, those of the first prompt first, and what the streamer answered last."""

    texts: list[Text]
    status: StreamingStatus = StreamingStatus.RUNNING

    @property
    def cancelled(self) -> bool:
        """True if the streamer cancelled the generation."""
        return self.status == StreamingStatus.CANCEL


def generate(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    stops: Stops,
    streamer: StreamerBase | None,
    raw: RawPerfMetrics,
    grammar: CompiledGrammar | None = None,
) -> Outcome:
    """Continue each prompt ``num_return_sequences`` times, by greedy search or random draws.

    With ``grammar``, all texts follow that. The measured times are added to ``raw``. An exception of the streamer ends
    the generation.
    """
    texts = [
        Text(prompt, config.get_max_new_tokens(len(prompt)))
        for prompt in prompts
        for _ in range(config.num_return_sequences)
    ]
    sampling = sampling_of(config)
    chooser = decoder.chooser(sampling.penalises)
    count, longest = config.num_return_sequences, max(map(len, prompts))
    numbers = [random_numbers(config.rng_seed) for _ in prompts]
    samplers = [
        Sampler(chooser.compiled.inputs, sampling, numbers[i // count], text.prompt, longest)
        for i, text in enumerate(texts)
    ]
    feeds = [
        _Feed(decoder.inputs(chooser.compiled.inputs), text, sampler, config, grammar)
        for text, sampler in zip(texts, samplers)
    ]
    stream = Stream(streamer, texts[0], config.echo, stops.window)
    raw.inference_durations.append(0.0)
    status = StreamingStatus.RUNNING
    with decoder.texts(len(texts), sampling.penalises) as places:
        running = [i for i, text in enumerate(texts) if text.limit]
        while running:
            _step(chooser, places, {i: feeds[i] for i in running}, config, stops, raw)
            status = stream.write()
            if status != StreamingStatus.RUNNING:
                break
            running = [i for i in running if texts[i].reason is None]
    for text in texts:
        text.reason = text.reason or REASONS[status]
    stream.end()
    groups = [texts[first : first + count] for first in range(0, len(texts), count)]
    best_first = [text for group in groups for text in sorted(group, key=lambda text: -text.score)]
    return Outcome(best_first, status)


def search(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    stops: Stops,
    raw: RawPerfMetrics,
) -> Outcome:
    """Return the ``num_return_sequences`` best texts of each prompt by beam search. Times are added to ``raw``."""
    texts: list[Text] = []
    raw.inference_durations.append(0.0)
    for prompt in prompts:
        limit = config.get_max_new_tokens(len(prompt))
        found, batch = BeamSearch(prompt, config, stops, limit), decoder.beams()
        rows, parents = [prompt], [0]
        while rows and limit:
            start = time.perf_counter()
            logits = batch.step(rows, parents)
            inferred = time.perf_counter()
            found.advance(logits if decoder.log_probabilities else log_softmax(logits))
            beams = found.beams
            rows, parents = [beam.tokens[-1:] for beam in beams], [beam.row for beam in beams]
            raw.add_inference(start, inferred, 1)
        texts += [
            Text(prompt, limit, list(beam.tokens), list(beam.logs), reason, score)
            for beam, score, reason in found.results()
        ] or [Text(prompt, limit, reason=GenerationFinishReason.NONE)]
    return Outcome(texts)


def _step(
    chooser: Chooser,
    places: Texts,
    feeds: dict[int, _Feed],
    config: GenerationConfig,
    stops: Stops,
    raw: RawPerfMetrics,
) -> None:
    """Add a token to each text."""
    start = time.perf_counter()
    results = places.step({i: feed.next() for i, feed in feeds.items()})
    inferred = time.perf_counter()
    for i, outputs in results.items():
        text = feeds[i].text
        feeds[i].accept(checked_token(outputs[chooser.output]))
        kept, own = outputs[chooser.output + 1][0].tolist()
        text.logs.append(own if config.logprobs else kept)
        text.reason, cut = stops.check(text.tokens, text.limit)
        text.cut(cut)
        if text.reason is not None:
            places.close(i)
    raw.add_inference(start, inferred, len(feeds))


class _Feed:
    """Inputs of a text's steps."""

    def __init__(
        self,
        inputs: DecoderInputs,
        text: Text,
        sampler: Sampler,
        config: GenerationConfig,
        grammar: CompiledGrammar | None,
    ) -> None:
        self._inputs, self.text, self._sampler = inputs, text, sampler
        self._matcher = None if grammar is None else grammar.matcher()
        self._ends, self._least = config.stop_token_ids, config.min_new_tokens

    def next(self) -> dict[int, Array]:
        """Return the arrays by input index: of the prompt, or of the token that was generated last."""
        tokens = self.text.tokens
        banned = self._ends if len(tokens) < self._least else ()
        allowed = None if self._matcher is None else self._matcher.allowed()
        return self._inputs.next([tokens[-1:] or self.text.prompt]) | self._sampler.next(tokens, banned, allowed)

    def accept(self, token: int) -> None:
        """Append a token to the text."""
        self.text.tokens.append(token)
        if self._matcher is not None:
            self._matcher.accept(token)


class Stream:
    """Tokens on their way to a streamer, if there is one. The last ``window`` tokens wait until the text goes on."""

    def __init__(self, streamer: StreamerBase | None, text: Text, echo: bool, window: int) -> None:
        self._streamer, self._text, self._window = streamer, text, window
        self._before = list(text.prompt) if echo else []
        self._written = 0

    def write(self) -> StreamingStatus:
        """Write the tokens that will not be cut off. Return whether the generation goes on."""
        until = len(self._text.tokens) - (0 if self._text.reason else self._window)
        tokens = self._before + self._text.tokens[self._written : until] if until > self._written else []
        if self._streamer is None or not tokens:
            return StreamingStatus.RUNNING
        self._before, self._written = [], until
        return write_tokens(self._streamer, tokens)

    def end(self) -> None:
        """End the text. The prompt is written now if no token followed it."""
        if self._streamer is not None:
            if self._before:
                write_tokens(self._streamer, self._before)
            self._streamer.end()
