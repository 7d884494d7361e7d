"""Class Engine: generations side by side, which join and leave at every step."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ovgpu.batching.pages import PageAllocator, PoolFullError, Tokens, pages_for, with_room
from ovgpu.errors import Error
from ovgpu.genai.decoder import Chooser, Decoder
from ovgpu.genai.enums import GenerationFinishReason, StreamingStatus
from ovgpu.genai.metrics import RawPerfMetrics
from ovgpu.genai.places import Places, Sequences
from ovgpu.genai.prefixes import Prefixes
from ovgpu.genai.sampling import Sampler, checked_token, random_numbers, sampling_of
from ovgpu.genai.search import Search
from ovgpu.genai.texts import Feed, Generation, Text
from ovgpu.ops.fused.kv_cache import PAGE_TOKENS


@dataclass(frozen=True)
class Limits:
    """Limits: ``texts`` that run at a time, ``tokens`` of a step, and ``blocks`` of 16 tokens that all texts have.

    Each text that has its first token takes one token of a step. Prompts get the others, in pieces if ``split``.
    Otherwise a prompt runs in one step. Texts wait until there are blocks for them. If none are left for the next
    token, the text that came last gives its blocks back, and is computed again later. A text that is alone and needs
    more ends, as at its limit of tokens.

    Texts of a prompt share its blocks. With ``prefixes``, so do texts that begin with the same blocks of tokens, also
    with those of texts that have ended.
    """

    texts: int = 256
    tokens: int | None = None
    blocks: int | None = None
    split: bool = True
    prefixes: bool = False


DEFAULT = Limits()
UNLIMITED = 1 << 62  # tokens of a step


@dataclass(frozen=True)
class Usage:
    """Use of a step: how many generations had not ended, how many of them it advanced, and the blocks of all."""

    generations: int
    advanced: int
    blocks: int


class Engine:
    """Generations by a decoder, which join and leave at every step.

    With ``alone``, texts share no inferences. Threads may add generations while another one calls `step`.
    """

    def __init__(self, decoder: Decoder, limits: Limits = DEFAULT, alone: bool = False) -> None:
        self._decoder, self.limits, self._alone = decoder, limits, alone
        self._places: dict[bool, Places] = {}  # by whether there are penalties
        self._waiting: deque[_Run] = deque()
        self._running: list[_Run] = []  # those that came first come first
        self._ended: OrderedDict[_Run, None] = OrderedDict()  # those whose blocks others may share, the last used last
        self._prefixes = {penalises: Prefixes[_Run]() for penalises in (False, True)}
        self._ledger = PageAllocator(1 + (limits.blocks or 0))
        self._searches: deque[Search] = deque()  # the first one runs

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
        """The number of blocks that texts have, also those that only wait for others to share them."""
        return self._ledger.capacity - 1 - self._ledger.free

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
                self._searches.append(Search(generation, self._decoder))
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

    def forget(self) -> None:
        """Free the blocks that wait for others to share them."""
        while self._ended:
            self._forget_oldest()

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
        if limits.blocks is not None and pages_for(tokens) > limits.blocks:
            raise Error(
                f"the prompt needs {pages_for(tokens)} blocks of {PAGE_TOKENS} tokens, and there are {limits.blocks}"
            )

    def _runs(self, generation: Generation, longest: int) -> Iterator[_Run]:
        """Yield the texts of a generation. ``longest`` is the length of the longest prompt that comes with it."""
        config = generation.config
        sampling = replace(sampling_of(config), logit_bias=generation.logit_bias)
        chooser = self._decoder.chooser(sampling.penalises)
        ports = chooser.compiled.inputs
        numbers = random_numbers(config.rng_seed)
        for text in generation.texts:
            sampler = Sampler(ports, sampling, numbers, text.prompt, longest)
            feed = Feed(self._decoder.inputs(ports), text, sampler, config, generation.grammar)
            yield _Run(generation, text, feed, chooser, sampling.penalises)

    def _all(self) -> list[_Run | Search]:
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

    def _remove(self, run: _Run | Search) -> None:
        """Remove a text or a search, and free its place."""
        if isinstance(run, Search):
            self._searches.remove(run)
        elif run in self._waiting:
            self._waiting.remove(run)
        else:
            self._running.remove(run)
            if self._shares(run) and run.generation.error is None and not run.generation.is_running:
                self._ended[run] = None
                if len(self._ended) > self.limits.texts:
                    self._forget_oldest()
            else:
                self._free(run)

    def _free(self, run: _Run) -> None:
        """Free the place and the blocks of a text."""
        self._prefixes[run.penalises].remove(run)
        self._ledger.release(run.held.pages)
        run.held = Tokens()
        self._places[run.penalises].close(run.place)

    def _forget_oldest(self) -> None:
        run, _ = self._ended.popitem(last=False)
        self._free(run)

    def _shares(self, run: _Run) -> bool:
        """Return whether other texts may share the blocks of one."""
        return self.limits.prefixes and self._decoder.shares_prompts and self._places[run.penalises].can_fork

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
            leader = self._leader(run)
            if leader is not None and leader.feed.left > 1:
                break  # until its prompt is read but for the last token
            shared = (leader, leader.feed.fed) if leader is not None else self._longest_prefix(run)
            if not self._has_room(run, shared):
                shared = None
                if leader is not None or not self._has_room(run, None):
                    break
            rest = run.feed.left - (0 if shared is None else shared[1])
            count = 1 if leader is not None else rest if not (limits.split or plan) else run.feed.piece(min(left, rest))
            if not count or (count < rest and not limits.split):
                break
            self._open(run, shared)
            self._take(run, count)
            plan[run], left = count, max(left - count, 0)
        return self._in_step(plan)

    def _leader(self, run: _Run) -> _Run | None:
        """Return a text of the same prompt, whose blocks a text that begins can share."""
        if run.text.tokens or not run.feed.can_share or not self._decoder.shares_prompts or len(run.text.prompt) == 1:
            return None
        for other in self._running:
            if other.generation is run.generation and not other.text.tokens and self._places[run.penalises].can_fork:
                return other
        return None

    def _in_step(self, plan: dict[_Run, int]) -> dict[_Run, int]:
        """Return a plan in which the texts of a prompt choose tokens in the same step, or none of them.

        They take random numbers in turn. If nothing could run, because blocks are missing, the plan stays as it is.
        """
        late = {run.generation for run in [*self._waiting, *self._running] if plan.get(run) != run.feed.left}
        fed = {run: n - (n == run.feed.left and run.generation in late) for run, n in plan.items()}
        return {run: count for run, count in fed.items() if count} or plan

    def _longest_prefix(self, run: _Run) -> tuple[_Run, int] | None:
        """Return a text with which another one shares its first tokens, and how many; None for none."""
        if not self.limits.prefixes or not run.feed.can_share:
            return None
        return self._prefixes[run.penalises].find(run.feed.known[:-1])

    def _has_room(self, run: _Run, shared: tuple[_Run, int] | None) -> bool:
        """Return whether there are blocks for a text that shares the first tokens of another one.

        Blocks that only wait for others to share them become free as needed, but for those of that text.
        """
        if self.limits.blocks is None:
            return True
        needed = pages_for(run.feed.left) - (0 if shared is None else pages_for(shared[1]))
        kept = shared is not None and shared[0] in self._ended
        if shared is not None and kept:
            self._ended.move_to_end(shared[0])
        while self._ledger.free < max(needed, 1) and len(self._ended) > kept:
            self._forget_oldest()
        return self._ledger.free >= max(needed, 1)

    def _make_room(self, plan: dict[_Run, int]) -> None:
        """Give each text the blocks for its next step. Texts that came last are taken back if there are too few."""
        for run in [*plan]:
            while run in plan and not self._take(run, plan[run]):
                if self._ended:
                    self._forget_oldest()
                elif len(self._running) == 1:
                    run.text.reason = GenerationFinishReason.LENGTH
                    del plan[run]
                else:
                    last = self._running[-1]
                    plan.pop(last, None)
                    self._take_back(last)

    def _take(self, run: _Run, count: int) -> bool:
        """Give a text the blocks for more tokens. Return False if there are too few."""
        while True:
            try:
                run.held = with_room(run.held, count, self._ledger)[0]
                return True
            except PoolFullError as error:
                if self.limits.blocks is not None:
                    return False
                self._ledger.extend(2 * self._ledger.capacity + error.missing)

    def _open(self, run: _Run, shared: tuple[_Run, int] | None) -> None:
        """Have the first of the texts that wait run, behind some tokens that it shares with another one, if any."""
        if run.penalises not in self._places:
            self._places[run.penalises] = self._decoder.places(run.penalises, self._alone)
        places = self._places[run.penalises]
        if shared is None:
            run.place = places.open()
        else:
            assert isinstance(places, Sequences)
            other, tokens = shared
            run.place = places.fork(other.place, tokens)
            run.held = Tokens(other.held.pages[: pages_for(tokens)], tokens)
            self._ledger.share(run.held.pages)
            run.feed.share(tokens)
        self._running.append(self._waiting.popleft())

    def _take_back(self, run: _Run) -> None:
        """Have a text wait, to be computed again."""
        self._running.remove(run)
        self._free(run)
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
            before, run.held = run.held.length, Tokens(run.held.pages, run.feed.fed)
            counts[id(raw)] = raw, counts.get(id(raw), (raw, 0))[1] + chosen
            if isinstance(outputs, Error):
                run.generation.fail(outputs)
            elif isinstance(outputs, BaseException):
                raise outputs
            else:
                if before // PAGE_TOKENS < run.held.length // PAGE_TOKENS and self._shares(run):
                    self._prefixes[run.penalises].add(run.feed.known[: run.feed.fed], run)
                if chosen:
                    run.accept(outputs)
        for raw, count in counts.values():
            raw.add_inference(start, inferred, count)


class _Run:
    """A text in an engine: the feed of its steps, and its place while it runs."""

    place: Any = None
    held = Tokens()  # its blocks

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
            values = outputs.to_tuple()
            token = checked_token(values[output])
            self.feed.accept(token)
        except Error as e:
            self.generation.fail(e)
            return
        self.text.logs.append(values[output + 1].item())
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


def _finish(generation: Generation) -> None:
    """Tell the streamer of a generation that it has ended, unless it failed."""
    if generation.error is None:
        if generation.status == StreamingStatus.RUNNING:
            generation.status = generation.stream.write()
        generation.stream.end()
