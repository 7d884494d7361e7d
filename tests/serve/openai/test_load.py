"""The load generator of texts: what it sends, when, and what it counts."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from tests.harness.servers.serving import SECONDS, Serving
from tests.harness.servers.text_load import TextLoad, TextRecord, drive, summary
from tests.serve.openai.client import COMPLETIONS, Gate, call

ROOT = Path(__file__).parents[3]
VOCABULARY = 60
LOAD = TextLoad("llama", 12, prompt=(2, 9), new=(3, 8), vocabulary=VOCABULARY, timeout=60.0)


def test_texts_are_those_of_single_requests(server: Serving) -> None:
    records = asyncio.run(drive(server.http, replace(LOAD, concurrent=5)))
    for request, record in zip(LOAD.requests(), records, strict=True):
        alone = {key: value for key, value in request.items() if not key.startswith("stream")}
        status, found = call(server, COMPLETIONS, alone)
        assert (status, record.status, "".join(record.pieces)) == (200, "OK", found["choices"][0]["text"])
        assert record.tokens == found["usage"]["completion_tokens"] == request["max_tokens"]
        assert record.due <= record.start < record.first <= record.last


def test_at_a_rate_texts_do_not_wait_for_answers(server: Serving, gate: Gate) -> None:
    """All are sent at their times while none has a token, and the time until it comes counts."""
    load = replace(LOAD, rate=100.0)
    due = load.due()
    assert due == sorted(due) and 0 < due[0] < due[-1] < 1

    async def run() -> list[TextRecord]:
        task = asyncio.create_task(drive(server.http, load))
        assert server.server.service is not None
        version = server.server.service.models.current["llama"]
        while version.in_flight < load.texts:
            await asyncio.sleep(0.01)
        gate.open()
        return await task

    records = asyncio.run(asyncio.wait_for(run(), SECONDS))
    assert [record.due for record in records] == due
    assert max(record.start for record in records) < min(record.first for record in records)
    assert summary(records)["ttft_p99_ms"] > 1e3 * (due[-1] - due[0])


def test_errors_are_counted(server: Serving) -> None:
    records = asyncio.run(drive(server.http, replace(LOAD, model="nobody")))
    found = summary(records)
    assert (found["count"], found["errors"], found["tokens"]) == (LOAD.texts, {"404": LOAD.texts}, 0)
    records = asyncio.run(drive("127.0.0.1:9", LOAD))
    assert summary(records)["errors"] == {"ClientConnectorError": LOAD.texts}


def test_the_command(server: Serving) -> None:
    command = [sys.executable, "-m", "tests.harness.servers.text_load", "--url", server.http, "--model", "llama"]
    command += [
        "--texts",
        "6",
        "--rate",
        "50",
        "--prompt",
        "2",
        "9",
        "--new",
        "3",
        "8",
        "--vocabulary",
        str(VOCABULARY),
    ]
    run = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["errors"] == {} and found["count"] == 6 and found["tokens"] >= 18
    assert 0 < found["ttft_p50_ms"] <= found["ttft_p99_ms"] and 0 < found["tpot_p50_ms"]
    assert 0 < found["tokens_per_second"] < float("inf")
