"""Class Engine: generations side by side, which join and leave at every step."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from ovgpu.errors import Error
from ovgpu.genai.beam_search import BeamSearch, log_softmax
from ovgpu.genai.decoder import Beams, Chooser, Decoder
from ovgpu.genai.enums import GenerationFinishReason, StreamingStatus
from ovgpu.genai.generation_config import GenerationConfig
from ovgpu.genai.grammar import CompiledGrammar
from ovgpu.genai.metrics import RawPerfMetrics
from ovgpu.genai.places import Places
from ovgpu.genai.sampling import RandomNumbers, Sampler, checked_token, sampling_of
from ovgpu.genai.stops import Stops
from ovgpu.genai.streamers import StreamerBase
from ovgpu.genai.texts import REASONS, Feed, Stream, Text

BLOCK = 16  # tokens


@dataclass(frozen=True)
class Limits:
    """Limits: ``texts`` that run at a time, ``tokens`` of a step, and ``blocks`` of 16 tokens that all texts have.

    Each text that has its first token takes one token of a step. Prompts get the others, in pieces if ``split``.
    Otherwise a prompt runs in one step. Texts wait until there are blocks for them. If none are left for the next
    token, the text that came last gives its blocks back, and is computed again later. A text that is alone and needs
    more ends, as at its limit of tokens.
    """

    texts: int = 256
    tokens: int | None = None
    blocks: int | None = None
    split: bool = True


DEFAULT = Limits()
UNLIMITED = 1 << 62  # tokens of a step


@dataclass(frozen=True)
class Usage:
    """Use of a step: how many generations had not ended, how many of them it advanced, and the blocks of all."""

    generations: int
    advanced: int
    blocks: int


class Generation:
    """Texts that continue a prompt, by greedy search, random draws or beam search.

    ``raw`` gets the measured times. ``streamer``, for a single text, gets its tokens, and may end it. ``logit_bias``
    has numbers that are added to the logits of tokens; beam search ignores it.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        config: GenerationConfig,
        stops: Stops,
        raw: RawPerfMetrics,
        grammar: CompiledGrammar | None = None,
        streamer: StreamerBase | None = None,
        logit_bias: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        count = 1 if config.is_beam_search() else config.num_return_sequences
        limit = config.get_max_new_tokens(len(prompt))
        self.prompt, self.config, self.stops, self.raw, self.grammar = prompt, config, stops, raw, grammar
        self._streamer, self.logit_bias = streamer, logit_bias
        self.set_texts([Text(prompt, limit) for _ in range(count)])
        self.status = StreamingStatus.RUNNING
        """What the streamer answered last. Any thread may set another status, which ends the texts at the next step."""
        self.error: Exception | None = None
        """Why the generation failed."""

    @property
    def is_running(self) -> bool:
        """True until all texts have ended."""
        return any(text.reason is None for text in self.texts)

    @property
    def best_first(self) -> list[Text]:
        """The texts, the most likely one first."""
        return sorted(self.texts, key=lambda text: -text.score)

    def set_texts(self, texts: list[Text]) -> None:
        """Set the texts, of which the first one goes to the streamer."""
        self.texts, self.stream = texts, Stream(self._streamer, texts[0], self.config.echo, self.stops.window)

    def end(self) -> None:
        """End the texts that go on."""
        for text in self.texts:
            text.reason = text.reason or REASONS[self.status]

    def fail(self, error: Exception) -> None:
        """End the texts with an error."""
        self.error = error
        self.end()


class Engine:
    """Generations by a decoder, which join and leave at every step.

    With ``alone``, texts share no inferences. Threads may add generations while another one calls `step`.
    """

    def __init__(self, decoder: Decoder, limits: Limits = DEFAULT, alone: bool = False) -> None:
        self._decoder, self.limits, self._alone = decoder, limits, alone
        self._places: dict[bool, Places] = {}  # by whether there are penalties
        self._waiting: deque[_Run] = deque()
        self._running: list[_Run] = []  # those that came first come first
        self._searches: deque[_Search] = deque()  # the first one runs

    @property
    def is_busy(self) -> bool:
        """True if a generation has not ended."""
        return bool(self._waiting or self._running or self._searches)

    @property
    def waiting(self) -> int:
        """The number of texts and searches that do not run yet."""
        return len(self._waiting) + max(len(self._searches) - 1, 0)

    @property
    def blocks(self) -> int:
        """The number of blocks that all texts have."""
        return sum(_blocks(run.feed.fed) for run in self._running)

    def add(self, generations: Sequence[Generation]) -> None:
        """Add generations, which run in this order as far as the limits allow.

        Raises: Error, and adds none, for a prompt or a number of texts beyond the limits.
        """
        for generation in generations:
            self._check(generation)
        longest = max((len(generation.prompt) for generation in generations), default=0)
        for generation in generations:
            if not generation.texts[0].limit:
                generation.end()
                _finish(generation)
            elif generation.config.is_beam_search():
                self._searches.append(_Search(generation, self._decoder))
            else:
                self._waiting.extend([*self._runs(generation, longest)])

    def step(self) -> Usage:
        """Add a token to each text, or read a piece of its prompt. Return what the step took.

        The error of an inference fails the generation of its text, and no other. An exception of a streamer or of a
        signal handler is raised; the generations then go on at the next step.
        """
        generations = len({run.generation for run in self._all()})
        self._drop_ended()
        if self._searches:
            self._searches[0].step()
        plan = self._plan()
        if plan:
            self._advance(plan)
        usage = Usage(generations, len({run.generation for run in plan}) + bool(self._searches), self.blocks)
        self._drop_ended()
        for generation in {run.generation for run in plan if run.generation.is_running}:
            generation.status = generation.stream.write()
        self._drop_ended()
        return usage

    def close(self) -> None:
        """End all generations, and free their places."""
        for run in self._all():
            run.generation.end()
            self._remove(run)

    # ----

    def _check(self, generation: Generation) -> None:
        """Raise Error for a generation that the limits never let run."""
        texts, tokens, limits = len(generation.texts), len(generation.prompt), self.limits
        if texts > limits.texts:
            raise Error(f"num_return_sequences is {texts}, and max_num_seqs {limits.texts}")
        if limits.tokens is not None and not limits.split and tokens > limits.tokens:
            raise Error(
                f"the prompt has {tokens} tokens, more than the {limits.tokens} of max_num_batched_tokens: raise it, "
                "or set dynamic_split_fuse"
            )
        if limits.blocks is not None and _blocks(tokens) > limits.blocks:
            raise Error(f"the prompt needs {_blocks(tokens)} blocks of {BLOCK} tokens, and there are {limits.blocks}")

    def _runs(self, generation: Generation, longest: int) -> Iterator[_Run]:
        """Yield the texts of a generation. ``longest`` is the length of the longest prompt that comes with it."""
        config = generation.config
        sampling = replace(sampling_of(config), logit_bias=generation.logit_bias)
        chooser = self._decoder.chooser(sampling.penalises)
        ports = chooser.compiled.inputs
        numbers = RandomNumbers(config.rng_seed)
        for text in generation.texts:
            sampler = Sampler(ports, sampling, numbers, text.prompt, longest)
            feed = Feed(self._decoder.inputs(ports), text, sampler, config, generation.grammar)
            yield _Run(generation, text, feed, chooser, sampling.penalises)

    def _all(self) -> list[_Run | _Search]:
        """Return all texts and searches, also those that have just ended."""
        return [*self._waiting, *self._running, *self._searches]

    def _drop_ended(self) -> None:
        """Remove the texts that have ended, and tell the streamers of generations that have."""
        ended = set()
        for run in self._all():
            if run.generation.status != StreamingStatus.RUNNING:
                run.generation.end()
            if run.has_ended:
                self._remove(run)
                ended.add(run.generation)
        for generation in ended:
            if not generation.is_running:
                _finish(generation)

    def _remove(self, run: _Run | _Search) -> None:
        """Remove a text or a search, and free its place."""
        if isinstance(run, _Search):
            self._searches.remove(run)
        elif run in self._running:
            self._running.remove(run)
            self._places[run.penalises].close(run.place)
        else:
            self._waiting.remove(run)

    # ---- steps

    def _plan(self) -> dict[_Run, int]:
        """Return the number of tokens that each text gets in the next step. Texts that wait join."""
        limits = self.limits
        plan = {run: 1 for run in self._running if run.feed.left == 1}
        left = UNLIMITED if limits.tokens is None else max(limits.tokens - len(plan), 0)
        for run in self._running:
            if run not in plan and left:
                plan[run] = run.feed.piece(left)
                left = max(left - plan[run], 0)
        self._make_room(plan)
        while self._waiting and len(self._running) < limits.texts:
            run = self._waiting[0]
            count = run.feed.piece(left) if limits.split or plan else run.feed.left
            if not count or (count < run.feed.left and not limits.split) or not self._fits(plan, run.feed.left):
                break
            self._open(run)
            plan[run], left = count, max(left - count, 0)
        return self._in_step(plan)

    def _in_step(self, plan: dict[_Run, int]) -> dict[_Run, int]:
        """Return a plan in which the texts of a prompt choose tokens in the same step, or none of them.

        They take random numbers in turn. If nothing could run, because blocks are missing, the plan stays as it is.
        """
        late = {run.generation for run in [*self._waiting, *self._running] if plan.get(run) != run.feed.left}
        fed = {run: n - (n == run.feed.left and run.generation in late) for run, n in plan.items()}
        return {run: count for run, count in fed.items() if count} or plan

    def _fits(self, plan: Mapping[_Run, int], more: int = 0) -> bool:
        """Return whether there are blocks for the next step, and for ``more`` tokens of another text."""
        if self.limits.blocks is None:
            return True
        return (
            sum(_blocks(run.feed.fed + plan.get(run, 0)) for run in self._running) + _blocks(more) <= self.limits.blocks
        )

    def _make_room(self, plan: dict[_Run, int]) -> None:
        """Take back the texts that came last until there are blocks for the next step."""
        while not self._fits(plan):
            run = self._running[-1]
            plan.pop(run, None)
            if len(self._running) > 1:
                self._take_back(run)
            else:
                run.text.reason = GenerationFinishReason.LENGTH
                break

    def _open(self, run: _Run) -> None:
        """Have the first of the texts that wait run."""
        if run.penalises not in self._places:
            self._places[run.penalises] = self._decoder.places(run.penalises, self._alone)
        run.place = self._places[run.penalises].open()
        self._running.append(self._waiting.popleft())

    def _take_back(self, run: _Run) -> None:
        """Have a text wait, to be computed again."""
        self._remove(run)
        run.restart(self._decoder)
        self._waiting.appendleft(run)

    def _advance(self, plan: Mapping[_Run, int]) -> None:
        """Run a step of texts with so many tokens of each."""
        try:
            self._infer(plan)
        except BaseException:  # nobody knows which inferences have run
            for run in [run for run in reversed(self._running) if run in plan]:
                self._take_back(run)
            raise

    def _infer(self, plan: Mapping[_Run, int]) -> None:
        start, results = time.perf_counter(), dict[_Run, Any]()
        for penalises, places in self._places.items():
            runs = {run.place: run for run in plan if run.penalises == penalises}
            steps = {place: arrays for place, run in runs.items() if (arrays := run.next(plan[run])) is not None}
            if steps:
                found = places.step(steps)
                results |= {runs[place]: outputs for place, outputs in found.items()}
        inferred = time.perf_counter()
        counts: dict[int, tuple[RawPerfMetrics, int]] = {}
        for run, outputs in results.items():
            raw, chosen = run.generation.raw, not run.feed.left
            counts[id(raw)] = raw, counts.get(id(raw), (raw, 0))[1] + chosen
            if isinstance(outputs, Error):
                run.generation.fail(outputs)
            elif isinstance(outputs, BaseException):
                raise outputs
            elif chosen:
                run.accept(outputs)
        for raw, count in counts.values():
            raw.add_inference(start, inferred, count)


class _Run:
    """A text in an engine: the feed of its steps, and its place while it runs."""

    place: Any = None

    def __init__(self, generation: Generation, text: Text, feed: Feed, chooser: Chooser, penalises: bool) -> None:
        self.generation, self.text, self.feed = generation, text, feed
        self.chooser, self.penalises = chooser, penalises

    @property
    def has_ended(self) -> bool:
        return self.text.reason is not None

    def next(self, count: int) -> Mapping[int, Any] | None:
        """Return the inputs of the next ``count`` tokens. If nothing follows the grammar, fail, and return None."""
        try:
            return self.feed.next(count)
        except Error as e:
            self.generation.fail(e)
            return None

    def accept(self, outputs: Any) -> None:
        """Take the token that a step chose, or fail the generation if the logits are not numbers."""
        output = self.chooser.output
        try:
            token = checked_token(outputs[output])
            self.feed.accept(token)
        except Error as e:
            self.generation.fail(e)
            return
        kept, own = outputs[output + 1][0].tolist()
        self.text.logs.append(own if self.generation.config.logprobs else kept)
        self._check_end()

    def restart(self, decoder: Decoder) -> None:
        """Compute the text again, up to the last token that was accepted. The last step may have been interrupted."""
        text = self.text
        if text.reason is None:
            del text.tokens[len(text.logs) :]
            if text.tokens:
                self._check_end()
        self.feed.restart(decoder.inputs(self.chooser.compiled.inputs))

    def _check_end(self) -> None:
        self.text.reason, cut = self.generation.stops.check(self.text.tokens, self.text.limit)
        self.text.cut(cut)


class _Search:
    """A beam search in an engine."""

    def __init__(self, generation: Generation, decoder: Decoder) -> None:
        self.generation, self._decoder = generation, decoder
        self._found = BeamSearch(generation.prompt, generation.config, generation.stops, generation.texts[0].limit)
        self._batch: Beams | None = None
        self._rows: Sequence[Sequence[int]] = [generation.prompt]
        self._parents = [0]

    @property
    def has_ended(self) -> bool:
        return not self.generation.is_running

    def step(self) -> None:
        """Continue each beam by a token."""
        start = time.perf_counter()
        if self._batch is None:
            self._batch = self._decoder.beams()
        try:
            logits = self._batch.step(self._rows, self._parents)
            inferred = time.perf_counter()
            self._found.advance(logits if self._decoder.log_probabilities else log_softmax(logits))
        except Error as e:
            self.generation.fail(e)
            return
        beams = self._found.beams
        self._rows, self._parents = [beam.tokens[-1:] for beam in beams], [beam.row for beam in beams]
        self.generation.raw.add_inference(start, inferred, 1)
        if not beams:
            prompt, limit = self.generation.prompt, self.generation.texts[0].limit
            found = self._found.results()
            self.generation.set_texts(
                [
                    Text(prompt, limit, list(beam.tokens), list(beam.logs), reason, score)
                    for beam, score, reason in found
                ]
            )


def _finish(generation: Generation) -> None:
    """Tell the streamer of a generation that it has ended, unless it failed."""
    if generation.error is None:
        if generation.status == StreamingStatus.RUNNING:
            generation.status = generation.stream.write()
        generation.stream.end()


def _blocks(tokens: int) -> int:
    """Return the number of blocks that tokens need."""
    return -(-tokens // BLOCK)
