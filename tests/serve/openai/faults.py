"""Texts of OpenAI's protocol under load and faults: none is lost, doubled, mixed with others, or cut off.

    python -m tests.serve.openai.faults --minutes 20 --streams 32

Clients ask for chats and completions, with and without streams, greedy and seeded, with stop strings and several
choices. Every text must be that of the same request alone on another server, which shares no prefixes. Meanwhile
clients are killed and leave in the middle of streams, read slowly, send malformed and oversized requests and more texts
than may wait, and open thousands of connections; versions of two models replace each other under one name; and, in the
last third of the time, the server is stopped by SIGTERM and started again. A request that was refused is sent again;
one whose answer has begun must be answered to its end. Memory, threads, open files and blocks of KV caches of the
server must stay the same until the first restart. Prints a summary as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tests.genai.generation_cases import MODELS, make_folder
from tests.harness.servers.faults import Fault, Run, ServerFaults
from tests.harness.servers.serving import SECONDS, Serving, serving
from tests.serve.openai.client import CHATS, COMPLETIONS, EXACT, call, chat, completion

NAME = "model"
CONTEXT, BLOCKS = 256, 192  # tokens of a text, and blocks of all texts: fewer than they would take
REQUESTS = 48  # different ones
LEAST_RATE = 20.0  # tokens per second
PATIENCE = 5 * SECONDS  # of a client: hundreds of texts of a flood may run before its own, on a machine that is busy
BEGINNINGS = ("", "To be, or not to be, that is the question", "To be, or not to be, that is no question of mine")
VICTIM = """
import http.client, json, sys
address, path, body = sys.argv[1:]
connections = [http.client.HTTPConnection(address) for _ in range(8)]
for connection in connections:
    connection.request("POST", path, body)
responses = [connection.getresponse() for connection in connections]
while True:
    for response in responses:
        response.readline()
"""

Choices = list[tuple[str, str]]
"""The text of each choice, and why it ended."""


@dataclass(frozen=True)
class Wanted:
    """A request, and its answer by each of the models."""

    path: str
    body: dict[str, Any]
    choices: tuple[Choices, ...]


@dataclass
class TextRun(Run):
    """Figures of a run, with the tokens of all answers."""

    tokens: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / max(self.seconds, 1e-3)

    def summary(self) -> dict[str, Any]:
        return {**super().summary(), "tokens": self.tokens, "tokens_per_second": round(self.rate, 1)}


class RefusedError(Exception):
    """Error of a request that was not accepted."""


class Faults(ServerFaults):
    """A server of texts, its clients and its faults."""

    run: TextRun

    def __init__(self, folder: Path, streams: int, connections: int) -> None:
        self._streams, self._restarting = streams, False
        self._folders = [make_folder(model, folder / "kinds" / model / NAME) for model in MODELS]
        self._wanted = wanted(self._folders)
        repository = folder / "models" / NAME
        shutil.copytree(self._folders[1], repository / "1")
        scheduler = f"{{ enable_prefix_caching = true, num_kv_blocks = {BLOCKS} }}"
        (repository / "ovgpu.toml").write_text(
            f'scheduler = {scheduler}\nproperties = {{ INFERENCE_PRECISION_HINT = "f32" }}\n'
        )
        super().__init__(folder, connections, TextRun())

    def _options(self) -> dict[str, Any]:
        return {"--max-body-mib": 8, "--max-json-mib": 1}

    def _write_version(self, number: int) -> Path:
        target = self._models.parent / "new" / NAME / str(number)
        shutil.copytree(self._folders[number % len(self._folders)], target)
        return target

    def _resources(self) -> dict[str, float]:
        measured = self._metrics()
        return {**super()._resources(), "blocks": BLOCKS * measured["vllm:kv_cache_usage_perc"]}

    def _metrics(self) -> dict[str, float]:
        """Return the sums of gauges of texts over all versions."""
        found = dict[str, float]()
        for family in text_string_to_metric_families(self._call("GET", "/metrics")[1].decode()):
            if family.name.startswith("vllm:") and family.type == "gauge":
                found[family.name] = sum(sample.value for sample in family.samples)
        return found

    # ---- load

    @asynccontextmanager
    async def _clients(self) -> AsyncIterator[Sequence[Awaitable[None]]]:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=None, sock_read=PATIENCE)
        began = time.monotonic()
        async with aiohttp.ClientSession(f"http://{self._rest}", connector=connector, timeout=timeout) as session:
            self._session = session
            yield [self._text_after_text(number) for number in range(self._streams)]
        self.run.seconds = time.monotonic() - began
        await asyncio.to_thread(self._check_end)

    def _check_end(self) -> None:
        """Check that no text is left when all clients have theirs, and how many tokens came."""
        end = time.monotonic() + SECONDS
        while any((left := self._metrics())[f"vllm:num_requests_{state}"] for state in ("running", "waiting")):
            if time.monotonic() > end:
                self.run.mistakes.append(f"texts that no client waits for: {left}")
                break
            time.sleep(0.1)
        if self.run.rate < LEAST_RATE:
            self.run.mistakes.append(f"{self.run.rate:.1f} tokens per second")

    async def _text_after_text(self, number: int) -> None:
        rng = random.Random(number)
        given_up = time.monotonic() + PATIENCE
        while not self._stopping:
            request, stream, pause = rng.choice(self._wanted), rng.random() < 0.7, 0.05 * max(rng.random() - 0.7, 0.0)
            began, restarting = time.monotonic(), self._restarting
            try:
                found = await self._answer(request, stream, pause)
            except RefusedError as refusal:
                status = str(refusal)
                if status == "reset" and not (restarting or self._restarting):
                    raise RuntimeError(f"{request.body}: the connection was closed before an answer") from None
                self.run.refusals[status] += 1
                if time.monotonic() > given_up:
                    raise RuntimeError(f"refused for too long ({status})") from None
                await asyncio.sleep(0.05)
                continue
            if found not in request.choices:
                raise RuntimeError(f"{request.body}: {found}, not {request.choices}")
            self.run.answers[f"{request.path.removeprefix('/v1/')}{', stream' if stream else ''}"] += 1
            self.run.latencies.append(time.monotonic() - began)
            given_up = time.monotonic() + PATIENCE

    async def _answer(self, request: Wanted, stream: bool, pause: float) -> Choices:
        """Return the choices of an answer. A client sleeps for ``pause`` after each event.

        Raises: RefusedError if there is no answer; others for one that is not whole.
        """
        options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        try:
            response = await self._session.post(request.path, json={**request.body, "model": NAME, **options})
        except aiohttp.ClientConnectorError:
            raise RefusedError("not listening") from None
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            raise RefusedError("reset") from None
        async with response:
            if response.status in (429, 503):
                assert (await response.json())["error"]["message"]
                raise RefusedError(str(response.status))
            if response.status != 200:
                raise RuntimeError(f"{response.status}: {await response.text()}")
            documents = [item async for item in _events(response, pause)] if stream else [await response.json()]
        self.run.tokens += documents[-1]["usage"]["completion_tokens"]
        texts = dict[int, str]()
        reasons = dict[int, str]()
        for document in documents:
            for choice in document["choices"]:
                index, part = choice["index"], choice.get("message") or choice.get("delta") or {}
                assert index not in reasons, f"choice {index} goes on behind its end"
                texts[index] = texts.get(index, "") + (choice.get("text") or part.get("content") or "")
                if choice["finish_reason"]:
                    reasons[index] = choice["finish_reason"]
        return [(texts[index], reasons[index]) for index in sorted(texts)]

    # ---- faults

    def _faults(self) -> list[Fault]:
        return [
            self._kill_client,
            self._leave_streams,
            self._read_slowly,
            self._send_nonsense,
            self._send_too_much,
            self._flood,
            self._open_connections,
            self._replace_model,
        ]

    async def _kill_client(self) -> None:
        """Kill a client with 8 streams."""
        await self._kill_after_a_while(sys.executable, "-c", VICTIM, self._rest, COMPLETIONS, self._long())

    async def _leave_streams(self) -> None:
        """Close connections in the middle of streams, and before their first event."""

        async def leave(events: int) -> None:
            async with self._session.post(CHATS, data=_body(chat(max_tokens=200, n=2, stream=True))) as response:
                for _ in range(2 * events):
                    await response.content.readline()

        await asyncio.gather(*[leave(self._random.randrange(20)) for _ in range(16)])
        for _ in range(8):
            task = asyncio.create_task(leave(0))
            await asyncio.sleep(0.01 * self._random.random())
            task.cancel()
            await asyncio.wait((task,))

    async def _read_slowly(self) -> None:
        """Ask for streams, and do not read them."""
        await self._send_unread(COMPLETIONS, self._long().encode(), 3)

    async def _send_nonsense(self) -> None:
        """Send what is no HTTP, no JSON, or has wrong fields."""
        await self._send_broken(CHATS)
        nested = b'{"model": "model", "messages": ' + b"[" * 3000
        wrong = [chat(messages="hi"), chat(n=0), chat(temperature=-1), chat(stop=[""]), chat(stream="yes")]
        await self._expect(400, CHATS, b"{", b"[]", b"\xff\xfe", nested, *map(_body, wrong))
        await self._expect(404, CHATS, _body(chat(), "nobody"))

    async def _send_too_much(self) -> None:
        """Send prompts beyond the context, and bodies beyond the limits."""
        await self._expect(400, COMPLETIONS, _body(completion([5] * CONTEXT)), _body(completion("a" * 100_000)))
        await self._expect(400, COMPLETIONS, _body(completion(["a"] * 200)), _body(completion("a", n=129)))
        values = b'{"prompt": [' + b"0," * 200_000 + b"0]}"
        await self._expect(413, COMPLETIONS, _body(completion("a" * (2 << 20))), values, bytes(9 << 20))

    async def _flood(self) -> None:
        """Ask for more texts than may wait."""

        async def status() -> int:
            async with self._session.post(COMPLETIONS, data=_body(completion("a", n=128, max_tokens=1))) as response:
                await response.read()
                return response.status

        codes = await asyncio.gather(*[status() for _ in range(12)])
        if {*codes} - {200, 429}:
            self.run.mistakes.append(f"too many texts: {codes}")
        self.run.refusals["429 of too many texts"] += codes.count(429)

    async def _expect(self, status: int, path: str, *bodies: bytes) -> None:
        """Check the status of requests that are wrong."""
        for body in bodies:
            code, data = await asyncio.to_thread(self._call, "POST", path, body)
            if code != status or "message" not in json.loads(data)["error"]:
                self.run.mistakes.append(f"{body[:60]!r}: {code} {data[:200]!r}, not {status}")

    async def _restart(self) -> None:
        self._restarting = True
        try:
            await super()._restart()
        finally:
            self._restarting = False

    @staticmethod
    def _long() -> str:
        return _body(completion("To be", max_tokens=200, stream=True)).decode()


async def _events(response: aiohttp.ClientResponse, pause: float) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a stream. Raise RuntimeError if it does not end as it should."""
    async for line in response.content:
        if not line.startswith(b"data: "):
            assert line == b"\n", line
            continue
        data = line.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            return
        document = json.loads(data)
        if "error" in document:
            raise RuntimeError(f"an error in a stream: {document}")
        yield document
        await asyncio.sleep(pause)
    raise RuntimeError("a stream without an end")


def _body(request: dict[str, Any], model: str = NAME) -> bytes:
    return json.dumps({**request, "model": model}).encode()


def wanted(folders: Sequence[Path]) -> list[Wanted]:
    """Return requests, and the answers to each one alone by the model of each folder."""
    rng = random.Random(0)
    requests = [_request(rng) for _ in range(REQUESTS)]
    answers: list[list[Choices]] = [[] for _ in requests]
    for folder in folders:
        with serving(folder, engine={"properties": EXACT}, name=NAME) as server:
            for (path, body), found in zip(requests, answers):
                found.append(_alone(server, path, body))
    return [Wanted(path, body, tuple(found)) for (path, body), found in zip(requests, answers)]


def _request(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Return a request: many of them begin in the same way, and one in three has stop strings."""
    text = rng.choice(BEGINNINGS) + "".join(rng.choices("abcdefg hi, no!", k=rng.randint(1, 20)))
    fields: dict[str, Any] = {"max_tokens": rng.choice((1, 8, 20, 60, 120)), "n": rng.choice((1, 1, 1, 2, 3))}
    if rng.random() < 0.5:
        fields |= {"temperature": 0.9, "seed": rng.randrange(1000), "top_k": rng.choice((5, 50)), "ignore_eos": False}
    if rng.random() < 1 / 3:
        fields["stop"] = ["".join(rng.choices("abcdefghiABCDEF", k=length)) for length in (1, 1, 2)]
    if rng.random() < 0.5:
        return CHATS, chat(
            messages=[{"role": "system", "content": "be brief"}, {"role": "user", "content": text}], **fields
        )
    return COMPLETIONS, completion(text, **fields)


def _alone(server: Serving, path: str, body: dict[str, Any]) -> Choices:
    status, found = call(server, path, {**body, "model": NAME})
    assert status == 200, found
    texts = [choice["text"] if "text" in choice else choice["message"]["content"] for choice in found["choices"]]
    return [(text, choice["finish_reason"]) for text, choice in zip(texts, found["choices"])]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--log", type=Path, metavar="FILE", help="where to keep the server's log")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        run = asyncio.run(Faults(Path(name), options.streams, options.connections).serve(60 * options.minutes))
        if options.log:
            shutil.copy(Path(name) / "server.log", options.log)
    print(json.dumps(run.summary(), indent=1))
    sys.exit(bool(run.mistakes))


if __name__ == "__main__":
    main()
