"""The emulated card, in a process that compares one model."""

from __future__ import annotations

from contextlib import ExitStack

from tests.harness import cuda

_stack = ExitStack()  # the card stays until the process ends


def emulate() -> None:
    """Register the emulated card in this process."""
    _stack.enter_context(cuda.registered("emulator"))
