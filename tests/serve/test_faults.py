"""A short run of load and faults. `python -m tests.serve.faults` is the long one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.serve.faults import INTERFACES, Faults


@pytest.mark.long
def test_nothing_is_lost_doubled_or_mixed_up(tmp_path: Path) -> None:
    faults = Faults(tmp_path, sequences=16, rate=100, connections=500)
    run = asyncio.run(faults.serve(20))
    assert not run.mistakes, f"{run.mistakes}\n{(tmp_path / 'server.log').read_text()[-3000:]}"
    assert all(run.answers[interface] > 100 for interface in INTERFACES), run
    assert set(run.faults) == {
        "kill_client",
        "read_slowly",
        "send_nonsense",
        "send_half_messages",
        "open_connections",
        "replace_model",
        "restart",
    }
