"""Class SmallerBatches: requests with fewer rows, for inferences in which few slots of a batch have a step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from ovgpu.batching.request import BatchRequest

# A smaller batch is used if the whole batch has at least this many times its rows. The ratio is larger on a card, which
# computes a few rows more in the same time.
HOST_RATIO, DEVICE_RATIO = 2, 8


class SmallerBatches:
    """Requests with fewer rows than ``whole``, which is the request with the states of all slots.

    The states of slots with a step are copied to a smaller request and back.
    """

    def __init__(self, whole: BatchRequest, make: Callable[[], BatchRequest]) -> None:
        self._whole, self._make = whole, make
        self._requests: dict[int, BatchRequest] = {}  # by number of rows

    def request(self, count: int) -> BatchRequest | None:
        """Return a request for steps of ``count`` slots, None if `whole` is to run them."""
        ratio = DEVICE_RATIO if self._whole.is_remote else HOST_RATIO
        self._requests = {rows: request for rows, request in self._requests.items() if ratio * rows <= self._whole.rows}
        rows = power_of_two(count)
        if ratio * rows > self._whole.rows:
            return None
        if rows not in self._requests:
            request = self._make()
            request.resize(rows, ())
            self._requests[rows] = request
        return self._requests[rows]

    def infer(
        self,
        request: BatchRequest,
        inputs: Sequence[Any],
        slots: Sequence[int],
        arrays: Sequence[Sequence[Any]],
        begin: Collection[int],
    ) -> Sequence[Any]:
        """Run a step of ``slots`` in ``request``, and return the outputs as `BatchRequest.infer_rows` does.

        ``request`` is a result of `SmallerBatches.request`. ``inputs`` are stacked; ``arrays`` are the inputs of each
        slot. The slots in ``begin`` begin with the initial state.
        """
        # The remaining rows repeat the step of the first one.
        sources = [*slots, *[slots[0]] * (request.rows - len(slots))]
        given = [*arrays, *[arrays[0]] * (request.rows - len(slots))]
        request.copy_states(self._whole, [(slot, row) for row, slot in enumerate(sources) if slot not in begin])
        outputs = request.infer_rows(
            inputs, range(request.rows), given, [row for row, slot in enumerate(sources) if slot in begin]
        )
        self._whole.copy_states(request, list(enumerate(slots)))
        return outputs


def power_of_two(count: int) -> int:
    """Return the least power of two that is not less than ``count``, at least 1."""
    return 1 << max(count - 1, 0).bit_length()
