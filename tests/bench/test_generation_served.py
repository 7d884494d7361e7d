"""The benchmark of texts side by side: each request gets its tokens, and the figures follow from their times."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import engines
from bench.generation_load import Request, Server, figures, requests_of
from tests.genai.generation_cases import make_folder

SETTINGS = {"prompt": (3, 40), "new": (2, 6), "vocabulary": 60}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Server:
    return Server("ovgpu.genai", str(make_folder("llama", tmp_path_factory.mktemp("llama"))), "CPU")


@pytest.mark.parametrize("limits", [{"most": 1}, {"most": 4}, {}])
def test_each_request_gets_its_tokens(limits: dict[str, int], server: Server) -> None:
    """As if it were alone, in a closed loop and in an open one."""
    requests, alone = (requests_of(6, SETTINGS, seed=2, rate=None if limits else 1000) for _ in range(2))
    seconds = server.run(requests, **limits)
    for request, single in zip(requests, alone):
        single.due = 0
        server.run([single])
        assert request.generated == single.generated and len(request.times) == request.new == single.new
        assert request.due <= request.times[0] and request.times == sorted(request.times)
    found = figures(requests, seconds, 1.0)
    assert found["tokens_per_second"] == pytest.approx(sum(r.new for r in requests) / seconds)
    assert 0 < found["ttft_p50"] <= found["ttft_p99"] and 0 < found["tpot_p50"] <= found["tpot_p99"]


def test_figures() -> None:
    first, second = Request(None, 3, due=1.0), Request(None, 1)
    first.generated, first.times = [5, 6, 7], [1.5, 1.6, 1.9]
    second.generated, second.times = [5], [0.25]
    found = figures([first, second], 2.0, 0.4)
    assert found["tokens_per_second"] == 2 and found["processor_ms"] == pytest.approx(100)
    assert found["ttft_p50"] == pytest.approx(375) and found["tpot_p99"] == pytest.approx(200)


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, with small texts."""
    monkeypatch.syspath_prepend(str(Path(engines.__file__).parent))
    module: Any = __import__("generation_served")
    for name, value in SETTINGS.items():
        monkeypatch.setitem(module.SETTINGS, name, value)
    yield module
    for name in ("generation_served", "generation_load", "serving", "sequences"):
        del sys.modules[name]


def test_the_server_gets_the_same_texts(benchmark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_folder("llama", tmp_path / "models" / benchmark.MODEL / "1")
    monkeypatch.setattr(benchmark, "REQUESTS", {2: 3})
    drawn = requests_of(3, SETTINGS, seed=2)
    texts = benchmark.SameTexts("m", 3, drawn=tuple(drawn))
    assert [body["prompt"] for body in texts.requests()] == [request.tokens[0].tolist() for request in drawn]
    assert [body["max_tokens"] for body in texts.requests()] == [request.new for request in drawn]
    (found,) = benchmark.served(tmp_path / "models", "CPU", []).values()
    assert found["tokens"] == sum(request.new for request in drawn) and set(benchmark.COLUMNS) <= set(found)


def test_the_profile_has_each_operation(benchmark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(benchmark, "PROMPT", 20)
    found = benchmark.profile(make_folder("llama", tmp_path), "CPU")
    whole = found.pop("the whole step")
    assert {"MatMul", "CachedAttention", "CacheWrite", "SampleToken"} <= set(found) and sum(found.values()) < whole
