"""A short run of load and faults. `python -m tests.serve.openai.faults` is the long one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.serve.openai.faults import Faults

ALL = {
    "kill_client",
    "leave_streams",
    "read_slowly",
    "send_nonsense",
    "send_too_much",
    "flood",
    "open_connections",
    "replace_model",
    "restart",
}


@pytest.mark.long
def test_no_text_is_lost_doubled_mixed_or_cut_off(tmp_path: Path) -> None:
    run = asyncio.run(Faults(tmp_path, streams=16, connections=500).serve(25))
    assert not run.mistakes, f"{run.mistakes}\n{(tmp_path / 'server.log').read_text()[-3000:]}"
    assert len(run.answers) == 4 and run.tokens > 2000, run
    assert {*run.faults} == ALL
