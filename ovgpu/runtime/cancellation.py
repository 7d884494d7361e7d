"""Ending an inference that runs."""

from __future__ import annotations

from ovgpu.errors import Error


class Cancellation:
    """A flag of one request: any thread sets it, and the inference looks at it between steps, iterations and graphs."""

    __slots__ = ("requested",)

    def __init__(self) -> None:
        self.requested = False

    def check(self) -> None:
        """Raise Error if the inference is to end."""
        if self.requested:
            raise Error("Infer Request was canceled")
