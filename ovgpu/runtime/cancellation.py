"""Cancellation of a running inference."""

from __future__ import annotations

from ovgpu.errors import Error


class Cancellation:
    """Cancellation flag of one request, set by any thread and checked between steps, loop iterations and graphs."""

    __slots__ = ("requested",)

    def __init__(self) -> None:
        self.requested = False

    def check(self) -> None:
        """Raise Error if the inference was cancelled."""
        if self.requested:
            raise Error("Infer Request was canceled")
