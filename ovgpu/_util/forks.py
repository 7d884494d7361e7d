"""Forked processes, in which threads do not live on, and CUDA cannot be used."""

from __future__ import annotations

import os

count = 0
"""Number of forks between the process that imported ovgpu and this one. An object that keeps the number it was made
with can tell whether it is used in a forked process."""


def _forked() -> None:
    global count
    count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
