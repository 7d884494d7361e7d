"""Measurement of choices among kernels on a card, for `ovgpu tune`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ovgpu.backends.cuda import CudaBackend, rt
from ovgpu.backends.cuda.choices import Choices
from ovgpu.backends.cuda.kernels import Kernel
from ovgpu.ops.base.op import Array, Op
from ovgpu.ops.base.recorder import T
from ovgpu.runtime.backend import Call, HostCall, Uncaptured
from ovgpu.types import Type

ROUNDS = 20  # runs of a step's kernels in a graph
REPEATS = 5  # launches of the graph, of which the shortest counts
MIN_GAIN = 0.97  # another answer is chosen if it takes less than this share of the first answer's time


@dataclass
class Measured:
    """Seconds of each answer to each question, the first answer first, and the resulting choices."""

    seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    choices: Choices = field(default_factory=Choices)


class Tuner(CudaBackend):
    """Backend that measures the answers to a step's questions when the step runs for the first time.

    Each answer's kernels run on the step's own inputs, which are not in the cache. A step may thus change its inputs
    several times, so that the results of the inference are useless. All requests share ``found``.
    """

    def __init__(self, backend: CudaBackend, found: Measured | None = None) -> None:
        self.found = found or Measured(choices=backend.choices)
        super().__init__(backend.number, backend.kernels, backend.dnn.plans, backend.blas.tf32, self.found.choices)

    def for_request(self) -> Tuner:
        return Tuner(self, self.found)

    def bind(
        self,
        op: Op,
        inputs: Sequence[Array | None],
        outputs: Sequence[Array],
        workspace: Sequence[Array],
        types: Sequence[Type],
    ) -> Sequence[Call]:
        asked = _Asked(self.choices.known)
        record = partial(self.record, op, inputs, outputs, workspace)
        record(asked)
        return [HostCall(self._measure, record)] if asked.names else super().bind(op, inputs, outputs, workspace, types)

    def _measure(self, record: Callable[[Choices], Sequence[Call]]) -> None:
        """Measure the answers to questions that have not been measured, then run the step with the chosen answers. An
        answer may lead to further questions."""
        known = self.choices.known
        while True:
            asked = _Asked(known)
            calls = record(asked)
            question = next((q for q in asked.names if q not in self.found.seconds), None)
            if question is None:
                break
            times = dict[str, float]()
            launched = set[Any]()
            for name in asked.names[question]:
                answered = record(Choices({**known, question: name}))
                if _launches(answered) not in launched:  # an answer that is not available gives another one's kernels
                    launched.add(_launches(answered))
                    times[name] = self._seconds(answered)
            usual, best = next(iter(times)), min(times, key=times.__getitem__)
            known[question] = best if times[best] < MIN_GAIN * times[usual] else usual
            self.found.seconds[question] = times
        for call in calls:
            call()

    def _seconds(self, calls: Sequence[Call]) -> float:
        """Return the seconds of one run of the calls, whose operands are not in the cache."""
        for call in calls:
            call()
        cache_bytes = int(rt.cupy().cuda.Device().attributes.get("L2CacheSize", 0))
        others = rt.cupy().empty(2 * cache_bytes + 1, "uint8")
        evict = partial(others.data.memset_async, 0, others.nbytes, self.stream)
        both, alone = self._time([evict, *calls] * ROUNDS), self._time([evict] * ROUNDS)
        return max(both - alone, 1e-9) / ROUNDS

    def _time(self, calls: list[Call]) -> float:
        """Return the seconds of one launch of a graph of the calls; call by call if they cannot be captured."""
        recording, clock = _Calls(calls), self.clock()
        times = []
        for _ in range(REPEATS + 1):
            start = clock.mark()
            if not self._launch_graph(recording):
                for call in calls:
                    call()
            end = clock.mark()
            self.synchronize()
            times.append(clock.seconds(start, end))
        return min(times[1:])

    def _launch_graph(self, recording: _Calls) -> bool:
        """Launch a graph of the calls. Return False if they cannot be captured."""
        try:
            return self.graphs.launch(recording)
        except Uncaptured:
            return False


def _launches(calls: Sequence[Call]) -> tuple[Any, ...]:
    """Return the called functions; for kernels, also grid, block, and the carveout of early launches. Operands are left
    out, since all answers have the same ones."""
    launches = list[tuple[Any, ...]]()
    for call in calls:
        if isinstance(call, partial) and isinstance(call.func, Kernel):
            launches.append((call.func, *call.args[:2], getattr(call.keywords.get("driver"), "carveout", None)))
        else:
            launches.append((getattr(call, "func", call),))
    return tuple(launches)


class _Asked(Choices):
    """Choices that note the questions, and the names of their answers."""

    def __init__(self, known: Mapping[str, str]) -> None:
        super().__init__(known)
        self.names: dict[str, list[str]] = {}

    def choose(self, question: str, answers: Mapping[str, T]) -> T:
        self.names[question] = list(answers)
        return super().choose(question, answers)


@dataclass
class _Calls:
    """The calls of a graph, as `ovgpu.runtime.backend.Recording`."""

    flat: list[Call]
    runs: int = 1
    graph: Any = None
    reason: str = ""
    number: int = 0
