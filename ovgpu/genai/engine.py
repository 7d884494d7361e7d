"""Class Engine: generations side by side, which join and leave at every step."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from ovgpu.batching.pages import Tokens, pages_for
from ovgpu.errors import Error
from ovgpu.genai.blocks import Blocks, OutOfBlocksError
from ovgpu.genai.decoder import Chooser, Decoder
from ovgpu.genai.enums import StreamingStatus
from ovgpu.genai.metrics import RawPerfMetrics
from ovgpu.genai.places import Places, Sequences
from ovgpu.genai.prefixes import Prefixes
from ovgpu.genai.runs import Run, Slot, runs_of
from ovgpu.genai.texts import Generation
from ovgpu.ops.fused.kv_cache import PAGE_TOKENS


@dataclass(frozen=True)
class Limits:
    """Limits: ``texts`` that run at a time, ``tokens`` of a step, and ``blocks`` of 16 tokens that all texts have.

    Each text that has its first token takes one token of a step. Prompts get the others, in pieces if ``split``.
    Otherwise a prompt runs in one step. Texts wait until there are blocks for them. If none are left for the next
    token, the text that came last gives its blocks back, and is computed again later. A text that is alone and needs
    more ends, as at its limit of tokens. Each beam of a beam search counts as a text; a search with more beams than
    ``texts`` runs alone.

    If memory runs out, the blocks that there are become the limit. A text that is alone and needs more then fails.

    Texts of a prompt share its blocks, and so do beams those of their common beginning. With ``prefixes``, so do texts
    that begin with the same blocks of tokens, also with those of texts that have ended.
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

    Threads may add generations while another one calls `step`.
    """

    def __init__(self, decoder: Decoder, limits: Limits = DEFAULT) -> None:
        self.decoder = decoder
        self.preemptions = 0
        """The number of times that a text was taken back, to be computed again, because blocks ran out."""
        self._forms: dict[tuple[Chooser, bool], tuple[Places, Prefixes[Run]]] = {}
        self._prefixes = Prefixes[Run]()  # all forms of sequences share these and the blocks
        self._limits, self._blocks = limits, Blocks(limits.blocks)
        self._waiting: deque[Run] = deque()
        self._running: list[Run] = []  # those that came first come first
        self._ended: OrderedDict[Run, None] = OrderedDict()  # those whose blocks others may share, the last used last
        self._unsettled = False  # whether a step was interrupted, so that nobody knows how far it came

    @property
    def limits(self) -> Limits:
        """The limits, in which the blocks may have become fewer."""
        return replace(self._limits, blocks=self._blocks.most)

    @property
    def is_busy(self) -> bool:
        """True if a generation has not ended."""
        return bool(self._waiting or self._running)

    @property
    def waiting(self) -> int:
        """The number of texts and searches that do not run yet."""
        return len(self._waiting)

    @property
    def blocks(self) -> int:
        """The number of blocks that texts have, also those that only wait for others to share them."""
        return self._blocks.used

    @property
    def used_blocks(self) -> int:
        """The number of blocks of texts that run. Others become free as needed."""
        return len({page for run in [*self._running] for slot in run.slots for page in slot.held.pages})

    def add(self, generations: Sequence[Generation], alone: bool = False) -> None:
        """Add generations, which run in this order as far as the limits allow. If they are ``alone``, their texts share
        no inferences; a single one is then faster.

        Raises: Error, and adds none, for a prompt or a number of texts beyond the limits.
        """
        for generation in generations:
            self._check(generation)
        longest = max((len(generation.prompt) for generation in generations), default=0)
        runs = [run for generation in generations for run in runs_of(generation, self.decoder, longest)]
        for run in runs:
            run.alone = alone
        self._waiting.extend(runs)
        for generation in generations:
            if not generation.texts[0].limit:
                generation.end()
                _finish(generation)

    def step(self) -> Usage:
        """Add a token to each text, or read a piece of its prompt. Return what the step took.

        The error of an inference fails the generation of its text, and no other. An exception of a streamer or of a
        signal handler is raised; the generations then go on at the next step.
        """
        self._settle()
        self._unsettled = True
        try:
            usage = self._step()
            self._unsettled = False
            return usage
        finally:
            self._settle()

    def close(self) -> None:
        """End all generations, and free their places."""
        self._settle()
        for run in [*self._waiting, *self._running]:
            run.generation.end()
            self._remove(run)

    def forget(self, kept: Collection[Generation] = ()) -> None:
        """Free the blocks that wait for others to share them, but for those of some generations."""
        self._settle()
        for run in [run for run in self._ended if run.generation not in kept]:
            self._forget(run)

    # ----

    def _check(self, generation: Generation) -> None:
        """Raise Error for a generation that the limits never let run."""
        texts, tokens, limits = len(generation.texts), len(generation.prompt), self._limits
        most = self._blocks.most
        if texts > limits.texts:
            raise Error(f"num_return_sequences is {texts}, and max_num_seqs {limits.texts}")
        if limits.tokens is not None and not limits.split and tokens > limits.tokens:
            raise Error(
                f"the prompt has {tokens} tokens, more than the {limits.tokens} of max_num_batched_tokens: raise it, "
                "or set dynamic_split_fuse"
            )
        if most is not None and pages_for(tokens) > most:
            raise Error(f"the prompt needs {pages_for(tokens)} blocks of {PAGE_TOKENS} tokens, and there are {most}")

    def _form(self, run: Run) -> tuple[Places, Prefixes[Run]]:
        """Return the places of texts like one, and the texts by their beginnings."""
        key = run.chooser, run.alone
        if key not in self._forms:
            places = self.decoder.places(*key)
            if isinstance(places, Sequences):
                self._blocks.pool = places
            self._forms[key] = places, self._prefixes if places.forks else Prefixes()
        return self._forms[key]

    def _drop_ended(self) -> None:
        """Remove the texts that have ended, and tell the streamers of generations that have, even if one raises."""
        ended = dict[Generation, None]()
        for run in [*self._waiting, *self._running]:
            if run.generation.status != StreamingStatus.RUNNING:
                run.generation.end()
            if run.has_ended:
                self._remove(run)
                ended[run.generation] = None
        with ExitStack() as last_calls:
            for generation in reversed(ended):
                if not generation.is_running:
                    last_calls.callback(_finish, generation)

    def _remove(self, run: Run) -> None:
        """Remove a text, and free its places, but for one that others may share."""
        if run in self._waiting:
            self._waiting.remove(run)
            return
        self._running.remove(run)
        if self._shares(run) and run.generation.error is None and not run.generation.is_running:
            self._branch(run, [0])
            self._form(run)[1].add(run.known[: run.fed], run)
            self._ended[run] = None
            if len(self._ended) > self._limits.texts:
                self._forget(next(iter(self._ended)))
        else:
            self._free(run)

    def _free(self, run: Run) -> None:
        """Free the places and the blocks of a text."""
        self._form(run)[1].remove(run)
        self._branch(run, [])

    def _branch(self, run: Run, parents: Sequence[int]) -> None:
        """Replace the slots of a run by copies of some of them, which share their blocks.

        ``parents`` are their numbers.
        """
        if [*parents] == [*range(len(run.slots))]:
            return
        places, old = self._form(run)[0], run.slots
        run.slots = [old[parent] for parent in dict.fromkeys(parents)]
        freed = [slot for number, slot in enumerate(old) if number not in parents]
        for slot in freed:
            self._blocks.release(slot.held.pages)
        for place in {slot.place for slot in freed} - {slot.place for slot in run.slots}:
            places.close(place)
        slots = list[Slot]()
        for number, parent in enumerate(parents):
            slot = old[parent]
            if parent in parents[:number]:
                slot = replace(slot, place=places.fork(slot.place))
                run.slots.append(slot)
                self._blocks.share(slot.held.pages)
            slots.append(slot)
        run.slots = slots

    def _forget(self, run: Run) -> None:
        """Free the blocks of a text that has ended."""
        del self._ended[run]
        self._free(run)

    def _shares(self, run: Run) -> bool:
        """Return whether other texts may share the blocks of one."""
        return self._limits.prefixes and self.decoder.shares_prompts and self._form(run)[0].can_share

    # ---- steps

    def _step(self) -> Usage:
        generations = len({run.generation for run in [*self._waiting, *self._running]})
        self._drop_ended()
        plan = self._plan()
        if plan:
            self._infer(plan)
        usage = Usage(generations, len({run.generation for run in plan}), self.blocks)
        self._drop_ended()
        for generation in {run.generation for run in plan if run.generation.is_running}:
            _write(generation)
        self._drop_ended()
        return usage

    def _plan(self) -> dict[Run, int]:
        """Return the number of tokens that each text gets in the next step. Texts that wait join."""
        limits = self._limits
        plan = {run: 1 for run in self._running if run.left == 1}
        left = UNLIMITED if limits.tokens is None else max(limits.tokens - sum(len(run.slots) for run in plan), 0)
        for run in self._running:
            if run not in plan and left:
                plan[run] = run.piece(left)
                left = max(left - plan[run], 0)
        self._make_room(plan)
        texts = sum(run.width for run in self._running)
        while self._waiting and (texts + self._waiting[0].width <= limits.texts or not self._running):
            run = self._waiting[0]
            leader = self._leader(run)
            shared = self._longest_prefix(run) if leader is None else (leader, len(run.generation.prompt) - 1)
            if leader is not None and shared is not None and leader.fed < shared[1]:
                break  # until the prompt is read but for the last token
            if not self._has_room(run, shared):
                shared = None
                if leader is not None or not self._has_room(run, None):
                    if not self._running:
                        self._give_up(run)
                    break
            rest = run.left - (0 if shared is None else shared[1])
            if plan and all(other.generation is run.generation for other in plan):
                left = max(left, 1)  # texts of a prompt choose in the same step, also if they are more than its tokens
            count = rest if not (limits.split or plan) else run.piece(min(left, rest))
            if not count or (count < rest and not limits.split):
                break
            self._open(run, shared)
            if not (self._blocks.take(run.slots, count) and self._blocks.have_memory()):
                self._take_back(run)
                break
            plan[run], left, texts = count, max(left - count, 0), texts + run.width
        return self._in_step(plan)

    def _leader(self, run: Run) -> Run | None:
        """Return a text of the same prompt, whose blocks a text that begins can share, also if it begins again."""
        places, _ = self._form(run)
        shares = self.decoder.shares_prompts and places.can_share and places.forks and not run.one_by_one
        if not shares or len(run.generation.prompt) == 1:
            return None
        return next((other for other in self._running if other.generation is run.generation), None)

    def _in_step(self, plan: dict[Run, int]) -> dict[Run, int]:
        """Return a plan in which the texts of a prompt choose tokens in the same step, or none of them.

        They take random numbers in turn. If nothing could run, because blocks are missing, the plan stays as it is.
        """
        runs = [*self._waiting, *self._running]
        late = {run.generation for run in runs if plan.get(run) != run.left}
        lengths = [(run.generation, run.fed + run.left) for run in runs if len(run.generation.texts) > 1]
        least = dict(sorted(lengths, key=lambda pair: -pair[1]))  # after an interruption, some texts are longer
        ahead = {run for run in plan if run.generation in least and run.fed + run.left > least[run.generation]}
        fed = {run: n - (n == run.left and (run in ahead or run.generation in late)) for run, n in plan.items()}
        return {run: count for run, count in fed.items() if count} or plan

    def _longest_prefix(self, run: Run) -> tuple[Run, int] | None:
        """Return a text with which another one shares its first tokens, and how many; None for none."""
        if not self._limits.prefixes or run.one_by_one:
            return None
        return self._form(run)[1].find(run.known[:-1])

    def _has_room(self, run: Run, shared: tuple[Run, int] | None) -> bool:
        """Return whether there are blocks for a text that shares the first tokens of another one.

        Blocks that only wait for others to share them become free as needed, but for those of that text.
        """
        if self._blocks.most is None:
            return True
        needed = pages_for(run.left) - (0 if shared is None else pages_for(shared[1]))
        kept = shared is not None and shared[0] in self._ended
        if shared is not None and kept:
            self._ended.move_to_end(shared[0])
        most = self._blocks.most - max(needed, 1)
        while self.blocks > most and len(self._ended) > kept:
            self._forget(next(iter(self._ended)))
        return self.blocks <= most

    def _make_room(self, plan: dict[Run, int]) -> None:
        """Give each text the blocks for its next step. Texts that came last are taken back if there are too few."""
        for run in [*plan]:
            while run in plan and not self._blocks.take(run.slots, plan[run]):
                self._free_blocks(plan)
        while plan and not self._blocks.have_memory():
            self._free_blocks(plan)

    def _free_blocks(self, plan: dict[Run, int]) -> None:
        """Free the blocks of a text that has ended, or take back the text that came last."""
        last = self._running[-1]
        if self._ended:
            self._forget(next(iter(self._ended)))
        elif len(self._running) == 1:
            self._give_up(last)
            plan.clear()
        else:
            plan.pop(last, None)
            self._take_back(last)
            self.preemptions += 1

    def _give_up(self, run: Run) -> None:
        """End a text for which there are too few blocks, although it has all of them."""
        if self._blocks.is_short:
            run.generation.fail(OutOfBlocksError(self._blocks.most or 0))
        else:
            run.stop()

    def _open(self, run: Run, shared: tuple[Run, int] | None) -> None:
        """Have the first of the texts that wait run, behind some tokens that it shares with another one, if any."""
        places, _ = self._form(run)
        if shared is None:
            if not places.forks:  # take the request of a text that has ended, instead of another one
                for other in [other for other in self._ended if self._form(other)[0] is places][:1]:
                    self._forget(other)
            run.slots = [Slot(places.open(), not places.forks)]
        else:
            other, tokens = shared
            slot = other.slots[0]
            held = Tokens(slot.held.pages[: pages_for(tokens)], tokens)
            run.slots = [Slot(places.fork(slot.place, tokens), not places.forks, held)]
            self._blocks.share(held.pages)
            run.share(tokens)
            if not places.forks:  # the place is that of the other text, which has ended
                self._blocks.release(slot.held.pages)
                other.slots = []
                self._forget(other)
        self._running.append(run)
        self._waiting.popleft()

    def _take_back(self, run: Run) -> None:
        """Have a text wait, to be computed again."""
        run.restart(self.decoder.inputs(run.chooser.compiled.inputs))
        self._waiting.appendleft(run)
        self._running.remove(run)
        self._free(run)

    def _settle(self) -> None:
        """Have all texts wait, to be computed again, if a step was interrupted. Ended texts keep no blocks."""
        if not self._unsettled:
            return
        runs = [*self._ended, *self._running, *self._waiting]
        for place, places in {slot.place: self._form(run)[0] for run in runs for slot in run.slots}.items():
            places.close(place)
        self._prefixes = Prefixes()
        for key, (places, _) in self._forms.items():
            self._forms[key] = places, self._prefixes if places.forks else Prefixes()
        self._blocks.release_all()
        self._ended.clear()
        for run in reversed(self._running):
            if run not in self._waiting:
                self._waiting.appendleft(run)
        self._running.clear()
        for run in runs:
            if run.slots:
                run.restart(self.decoder.inputs(run.chooser.compiled.inputs))
                run.slots = []  # last: if interrupted before it, all this is done again
        self._unsettled = False

    def _infer(self, plan: Mapping[Run, int]) -> None:
        """Run a step of texts with so many tokens of each."""
        start, results = time.perf_counter(), dict[Any, Any]()
        for places in {self._form(run)[0]: None for run in plan}:
            steps = dict[Any, Any]()
            for run in [run for run in plan if self._form(run)[0] is places]:
                try:
                    steps |= run.steps(plan[run])
                except Error as error:
                    run.generation.fail(error)
            if steps:
                results |= places.step(steps)
        inferred = time.perf_counter()
        counts: dict[int, tuple[RawPerfMetrics, int]] = {}
        for run in plan:
            outputs = {slot.place: results[slot.place] for slot in run.slots if slot.place in results}
            if outputs and run.generation.error is None:  # that of another text of the prompt ends this one
                raw, chosen = run.generation.raw, self._accept(run, outputs)
                counts[id(raw)] = raw, counts.get(id(raw), (raw, 0))[1] + chosen
        for raw, count in counts.values():
            raw.add_inference(start, inferred, count)

    def _accept(self, run: Run, outputs: Mapping[Any, Any]) -> int:
        """Take the outputs of a step of a text. Return the number of tokens that were chosen."""
        before = run.slots[0].held.length
        for slot in run.slots:
            slot.held = Tokens(slot.held.pages, run.fed)
        try:
            for error in [found for found in outputs.values() if isinstance(found, BaseException)]:
                raise error
            places, prefixes = self._form(run)
            if before // PAGE_TOKENS < run.fed // PAGE_TOKENS and places.forks and self._shares(run):
                prefixes.add(run.known[: run.fed], run)
            chosen, slots = run.take(outputs)
            self._branch(run, slots)
        except Error as error:
            run.generation.fail(error)
            return 0
        return chosen


def _write(generation: Generation) -> None:
    """Write the new tokens of a generation to its streamer, which may end it."""
    status = generation.stream.write()
    if status != StreamingStatus.RUNNING:  # another thread may have set one meanwhile
        generation.status = status


def _finish(generation: Generation) -> None:
    """Tell the streamer of a generation that it has ended, unless it failed."""
    if generation.error is None:
        if generation.status == StreamingStatus.RUNNING:
            _write(generation)
        generation.stream.end()
