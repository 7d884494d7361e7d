"""Places of texts in a decoder: requests, which run one after the other, or sequences of a batcher, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ovgpu.batching import SequenceBatcher
from ovgpu.errors import Error
from ovgpu.genai.sampling import Array
from ovgpu.ops.fused.kv_cache import PAGE_TOKENS

Step = Mapping[int, Array]  # arrays by input index
Steps = Mapping[Any, Step]  # by place


class Requests:
    """Requests of a compiled model, each for a text. Closed ones are for further texts."""

    forks = False
    """False: a fork is the place itself. The beams of a search are rows of it, which steps reorder."""

    def __init__(self, first: Any, make: Callable[[], Any]) -> None:
        """``first`` is a request, ``make`` makes others."""
        self._free, self._make = [first], make
        self._variables = first._session.variables

    @property
    def can_share(self) -> bool:
        """True if the states are KV caches: a text can begin with the first tokens of one that has ended."""
        return all(variable.info.axis for variable in self._variables.all.values())

    def open(self) -> Any:
        """Return the place of an empty text."""
        request = self._free.pop() if self._free else self._make()
        request.reset_state()
        return request

    def step(self, steps: Steps) -> dict[Any, Any]:
        """Run a step of some texts. Return the outputs of each, or its error."""
        results: dict[Any, Any] = {}
        for request, arrays in steps.items():
            try:
                results[request] = request.infer(arrays, share_inputs=True, share_outputs=True)
            except Error as e:
                results[request] = e
        return results

    def fork(self, place: Any, tokens: int | None = None) -> Any:
        """Return the place itself, with all of its tokens or the first ones."""
        if tokens is not None:
            session = place._session
            with session.backend.active():
                session.variables.keep_tokens(tokens)
        return place

    def close(self, place: Any) -> None:
        """End a text, unless it was ended."""
        if place not in self._free:
            self._free.append(place)


class Sequences:
    """Sequences of a batcher, each for a text."""

    forks = True

    def __init__(self, batcher: SequenceBatcher) -> None:
        self._batcher = batcher

    @property
    def can_share(self) -> bool:
        """True if texts can share the first tokens of their KV caches."""
        return self._batcher.has_pages

    def open(self) -> Any:
        """Return the place of an empty text. Raises: BatchFullError if all are taken."""
        return self._batcher.open()

    def fork(self, place: Any, tokens: int | None = None) -> Any:
        """Return the place of a text that begins like another one, with all of its tokens or the first ones.

        ``place`` may be one in another form of the decoder. Raises: BatchFullError if all are taken.
        """
        return self._batcher.fork(place, tokens)

    def reserve(self, blocks: int, most: int | None) -> int:
        """Have memory for so many blocks of KV caches, and for at most ``most`` from now on.

        Returns: the number of blocks for which there is memory, which are fewer if it is short.
        """
        self._batcher.max_tokens = None if most is None else most * PAGE_TOKENS
        return self._batcher.reserve(blocks * PAGE_TOKENS) // PAGE_TOKENS

    def step(self, steps: Steps) -> dict[Any, Any]:
        """Run a step of some texts, in one inference for each number of tokens. Return the outputs of each, or its
        error."""
        with self._batcher.together():
            futures = {place: place.submit(arrays) for place, arrays in steps.items()}
        return {place: future.exception() or future.result() for place, future in futures.items()}

    def close(self, place: Any) -> None:
        """End a text."""
        place.close()


Places = Requests | Sequences
