"""Forked processes. Threads do not live on in them, and CUDA cannot be used."""

from __future__ import annotations

import os

count = 0
"""Number of forks between this process and the one that imported ovgpu: objects that remember it tell whether they were
made in another process."""


def _forked() -> None:
    global count
    count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
