"""Detection of forked processes, in which the parent's threads do not run and CUDA cannot be used."""

from __future__ import annotations

import os

count = 0
"""Number of forks between the process that imported ovgpu and this one. An object that stores the number when it is
made can find out whether it is used in a forked process."""


def _forked() -> None:
    global count
    count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
