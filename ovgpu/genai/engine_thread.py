"""Class EngineThread: a thread that steps an engine while it has generations, for servers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ovgpu.batching import BatchFullError
from ovgpu.errors import Error
from ovgpu.genai.engine import Engine, Usage
from ovgpu.genai.enums import StreamingStatus
from ovgpu.genai.texts import Generation

log = logging.getLogger(__name__)

OnChange = Callable[[], None]
OnStep = Callable[[Usage, float], None]
"""Function of the use of a step, and of its seconds. It is called on the thread."""


class EngineThread:
    """Thread that steps an engine, which nobody else uses, while it has generations. Without any, it sleeps.

    At most ``capacity`` generations run or wait. To cancel one, any thread sets its status to `StreamingStatus.CANCEL`:
    it ends, and frees its places, at the next step.
    """

    def __init__(self, engine: Engine, capacity: int, on_step: OnStep = lambda usage, seconds: None) -> None:
        self._engine, self._capacity, self._on_step = engine, capacity, on_step
        self._watched: list[_Watched] = []  # those of the thread
        self._new: list[_Watched] = []  # those that the thread has not taken
        self._open = 0  # generations whose end was not reported
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="ovgpu-texts", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Return the number of generations whose end was not reported."""
        return self._open

    def submit(self, generations: Sequence[Generation], on_change: OnChange) -> None:
        """Add generations, all or none.

        ``on_change`` is called on the thread after each step that gave one of them tokens, and after the end of each.
        A generation that the engine refuses ends with the error. Raises: BatchFullError if there would be more than
        ``capacity``, Error after `close`.
        """
        with self._changed:
            if self._closing:
                raise Error("the engine is closed")
            if self._open + len(generations) > self._capacity:
                raise BatchFullError(f"{self._open} texts run or wait, of at most {self._capacity}")
            self._open += len(generations)
            self._new += [_Watched(generation, on_change) for generation in generations]
            self._changed.notify()

    def close(self) -> None:
        """End all generations, as if they were cancelled, and the thread. Waits for the step that runs."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    # ---- on the thread

    def _run(self) -> None:
        while self._take():
            try:
                if self._engine.is_busy:
                    start = time.perf_counter()
                    usage = self._engine.step()
                    self._on_step(usage, time.perf_counter() - start)
            except Exception as error:
                log.exception("a step of %d texts failed", len(self._watched))
                self._end_all(error)
            self._report()
        self._end_all(None)
        self._report()

    def _take(self) -> bool:
        """Wait for work, and add new generations to the engine. Return False to end the thread."""
        with self._changed:
            while not (self._closing or self._watched or self._new):
                self._changed.wait()
            new, self._new = self._new, []
        self._watched += new
        if self._closing:
            return False
        for one in new:
            try:
                self._engine.add([one.generation])
            except Exception as error:
                one.generation.fail(error)
        return True

    def _end_all(self, error: Exception | None) -> None:
        """End all generations, with an error if there is one."""
        for one in self._watched:
            if one.generation.is_running:
                if error is None:
                    one.generation.status = StreamingStatus.CANCEL
                    one.generation.end()
                else:
                    one.generation.fail(error)
        try:
            self._engine.close()
        except Exception:
            log.exception("the places of texts could not be freed")

    def _report(self) -> None:
        """Call the functions of generations that have changed, and forget those that have ended."""
        changed = [one for one in self._watched if one.has_changed()]
        ended = sum(one.ended for one in changed)
        if ended:
            self._watched = [one for one in self._watched if not one.ended]
            with self._changed:
                self._open -= ended
        for on_change in {one.on_change: None for one in changed}:
            try:
                on_change()
            except Exception:
                log.exception("a reader of texts failed")
                for one in changed:
                    if one.on_change == on_change and not one.ended:
                        one.generation.status = StreamingStatus.CANCEL


@dataclass(eq=False)
class _Watched:
    """A generation, and the number of its tokens that were reported."""

    generation: Generation
    on_change: OnChange
    tokens: int = 0
    ended: bool = False

    def has_changed(self) -> bool:
        """Return whether there are more tokens than at the last call, or the end."""
        tokens, before = sum(len(text.logs) for text in self.generation.texts), self.tokens
        self.tokens, self.ended = tokens, not self.generation.is_running
        return self.ended or tokens != before
