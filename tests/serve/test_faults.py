"""A short run of load and faults. `python -m tests.serve.faults` is the long one."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.harness.servers.redis import redis_server
from tests.serve.faults import INTERFACES, Faults

ALWAYS = {
    "kill_client",
    "read_slowly",
    "send_nonsense",
    "send_half_messages",
    "send_large_json",
    "open_connections",
    "replace_model",
    "restart",
}
MORE = {"": set[str](), "folder": {"kill_server", "fill_disk"}, "store": {"kill_server", "kill_store", "hang_store"}}


@pytest.mark.long
@pytest.mark.parametrize(("kind", "processes"), [("", 1), ("folder", 1), ("store", 1), ("folder", 2)])
def test_nothing_is_lost_doubled_or_mixed_up(tmp_path: Path, kind: str, processes: int) -> None:
    with redis_server(tmp_path) if kind == "store" else nullcontext() as store:
        faults = Faults(tmp_path, sequences=16, rate=100, connections=500, store=store, kind=kind, processes=processes)
        run = asyncio.run(faults.serve(60 if kind else 20))
    assert not run.mistakes, f"{run.mistakes}\n{(tmp_path / 'server.log').read_text()[-3000:]}"
    assert all(run.answers[interface] > 100 for interface in INTERFACES), run
    assert set(run.faults) == ALWAYS | MORE[kind] | ({"kill_front_end"} if processes > 1 else set())
