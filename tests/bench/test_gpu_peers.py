"""`python -m bench.gpu_peers` at tiny sizes on the emulated device, with engines in torch's place; and its
calculations."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench import gpu_measure, gpu_peers, workloads
from bench.gpu_engines import Engine, engine, error
from bench.gpu_measure import captured
from bench.workloads import WORKLOADS, workload
from tests.harness.models.transformer import Sizes

TRIAL = ["--emulated", "--tiny", "--torch", "none"]
SOME = [
    "llama int4 128",
    "llama f16 prefill 512",
    "llama f16 sequences 8",
    "lstm_state",
    "tensor_iterator_lstm",
    "gpt2_decode",
    "elementwise_f16",
]


@pytest.mark.long
def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Networks, language models and single operations have times and figures; decoders append in place."""
    out = tmp_path / "found.json"
    assert gpu_peers.main([*TRIAL, "--out", str(out), "--only", *SOME]) == 0
    result = json.loads(out.read_text())
    assert result["copy_bytes_per_second"] > 0 and list(result["items"]) == SOME
    for name, item in result["items"].items():
        row = item["engines"]["ovgpu"]
        assert row["right"] and "failed" not in row and item["least_bytes"] > 0, (name, row)
        assert ("device" in row) == ("sequences" not in name) and row["wall"]["us"] > 0
        assert ("call" in row) == (not name.startswith(("llama", "gpt2")))
        assert ("ovgpu tf32" in item["engines"]) == (name in ("lstm_state", "tensor_iterator_lstm", "gpt2_decode"))
    rows = {name: item["engines"]["ovgpu"] for name, item in result["items"].items()}
    assert rows["llama int4 128"]["appended"] and rows["gpt2_decode"]["appended"]
    assert rows["llama f16 prefill 512"]["tflops"] > 0 and rows["llama f16 sequences 8"]["tokens_per_second"] > 0
    assert rows["elementwise_f16"]["host_launches"] == 1 and rows["elementwise_f16"]["percent_of_copy"] > 0
    assert "llama int4 128     ovgpu                ok, error" in capsys.readouterr().out


def test_all_workloads_can_be_made() -> None:
    """Each is a model of static shapes that takes its inputs, or a language model; names in TF32 change the config."""
    for name in WORKLOADS:
        found = workload(name, tiny=True)
        assert bool(found.inputs) == (found.text is None) and found.nbytes > 0, name
    assert workload("bert_base tf32", tiny=True).config == workloads.TF32


@pytest.fixture
def torch_in_order(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Put engines of the CPU in torch's place; return the list of those that were made."""
    order: list[tuple[str, str]] = []

    def made(title: str, mode: str, found: Any) -> Engine:
        order.append((title, mode))
        return engine(found, "CPU")

    def peers(found: Any, options: Any) -> dict[str, Callable[[], Engine]]:
        return {
            mode: partial(made, found.title.partition(",")[0], mode, found)
            for mode in ("reference", "torch graph", "torch graph tf32", "torch compile+graph")
        }

    cudnn = SimpleNamespace(version=lambda: 0)
    fake = SimpleNamespace(
        __version__="0", backends=SimpleNamespace(cudnn=cudnn), cuda=SimpleNamespace(empty_cache=lambda: None)
    )
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setattr(gpu_peers, "peers", peers)
    return order


def test_modules_are_compiled_ahead(
    torch_in_order: list[tuple[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Modules that torch compiled in time are timed as well, and ratios are to the fastest peer; a compilation that
    fails or hangs takes nothing else along."""
    ends = {"lstm_b1": "pass", "bilstm": "import time; time.sleep(60)", "lstm_b32": "raise SystemExit(1)"}
    monkeypatch.setattr(gpu_peers, "command", lambda name, modes, options: [sys.executable, "-c", ends[name]])
    out = tmp_path / "found.json"
    assert (
        gpu_peers.main(
            [
                "--emulated",
                "--tiny",
                "--torch",
                "cuda",
                "--out",
                str(out),
                "--ahead",
                "3",
                "--ahead-seconds",
                "2",
                "--modes",
                "graph",
                "compile+graph",
                "--only",
                *ends,
            ]
        )
        == 0
    )
    assert "compiled ahead: lstm_b1\n" in capsys.readouterr().out
    usual = ("reference", "torch graph", "torch graph tf32")
    assert [mode for _, mode in torch_in_order] == [*usual, "torch compile+graph", *usual, *usual]
    engines = json.loads(out.read_text())["items"]["lstm_b1"]["engines"]
    assert all(row["right"] for row in engines.values()) and len(engines) == 5
    assert engines["ovgpu"]["device"]["best_peer"] in ("torch graph", "torch compile+graph")
    peers = [row["device"]["us"] for name, row in engines.items() if name.startswith("torch")]
    found = engines["ovgpu tf32"]["device"]
    assert found["ratio"] == pytest.approx(found["us"] / min(peers))


def test_modules_in_8_bits_are_those_in_f16(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def command(name: str, modes: object, options: object) -> list[str]:
        ran.append(name)
        return [sys.executable, "-c", "pass"]

    monkeypatch.setattr(gpu_peers, "command", command)
    names = ["bert_f16", "bert_int8", "yolo_int8"]
    options = gpu_peers.parse(["--only", *names, "--modes", "compile+graph", "--torch", "cuda", "--ahead", "1"])
    assert gpu_peers.compiled_ahead(options) == set(names) and ran == ["bert_f16", "yolo_int8"]


def test_an_engine_that_fails_or_is_wrong_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The others go on, and wrong results are not timed."""
    usual = Engine.infer

    def infer(self: Engine) -> Any:
        if self.device == "CPU":
            return usual(self)
        if "softmax" in self.workload.title:
            raise RuntimeError("out of luck")
        return [1.01 * y for y in usual(self)] if "elementwise" in self.workload.title else usual(self)

    monkeypatch.setattr(Engine, "infer", infer)
    out = tmp_path / "found.json"
    assert gpu_peers.main([*TRIAL, "--out", str(out), "--only", "softmax_f32", "elementwise_f32", "max_row"]) == 1
    failed, wrong, right = (item["engines"]["ovgpu"] for item in json.loads(out.read_text())["items"].values())
    assert "out of luck" in failed["failed"] and right["right"]
    assert wrong["right"] is False and wrong["error"] == pytest.approx(0.01, rel=1e-3) and "device" not in wrong
    assert "failed or wrong: softmax_f32, elementwise_f32" in capsys.readouterr().out


@pytest.mark.drawn(3)
@pytest.mark.parametrize("name", ["llama f16 128", "llama f16 prefill 512", "gpt2_decode"])
def test_device_time_has_no_download(name: str, emulated: str) -> None:
    """The graph that is timed leaves the logits on the device, as torch's does."""
    made = engine(workload(name, tiny=True), emulated)

    def nodes() -> int:
        (cached,) = made.resident._session.last.bindings
        return int(next(reversed(cached.values())).graph.nodes)

    before = nodes()
    made.keep_outputs()
    made.launch()
    assert nodes() == before - 1


def test_errors_are_relative_to_each_output() -> None:
    a, b = np.array([3.0, 4.0]), np.array([1e-3])
    assert error([a, 1.5 * b], [a, b]) == pytest.approx(0.5)
    assert np.isnan(error([a], [b])) and np.isnan(error([a, a * np.nan], [a, a]))


class Ticks:
    """Clock that each launch advances by the given duration."""

    def __init__(self) -> None:
        self.now = 0.0

    def mark(self) -> float:
        return self.now

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def synchronize(self) -> None:
        pass


def test_device_time_is_that_of_the_launches() -> None:
    ticks = Ticks()
    counts = {"launch": 0, "flush": 0}

    def work(what: str, takes: float) -> None:
        counts[what] += 1
        ticks.now += takes

    samples = gpu_measure.device_seconds(lambda: work("launch", 2e-5), ticks, 0.0, 5)
    assert samples == pytest.approx([2e-5] * 5) and counts["launch"] == 3 + 1 + 5 * 50  # 1 ms between events
    samples = gpu_measure.device_seconds(lambda: work("launch", 2e-5), ticks, 0.0, 5, lambda: work("flush", 1.0))
    assert samples == pytest.approx([2e-5] * 5) and counts["flush"] == 5


def test_summary() -> None:
    found = gpu_measure.summary([[1e-6, 3e-6, 2e-6], [9e-6], [4e-6]])
    assert (found["us"], found["rounds_us"], found["samples"]) == (4.0, [2.0, 9.0, 4.0], 5)


def test_minimum_traffic_counts_weights_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are read once, but for the tables of embeddings; the masks' constants in the file are small."""
    sizes = Sizes(2, 24, 2, 48, 50, 16)
    monkeypatch.setattr(workloads, "BERT_BASE", sizes)
    small, large = (workloads.encoder(batch, 8, tiny=False) for batch in (1, 3))
    assert large.nbytes - small.nbytes == 2 * 8 * (3 * 8 + 24 * 4)  # i64 inputs, and the output
    layer = 4 * 24 * 25 + 2 * 48 * 24 + 48 + 24 + 2 * 2 * 24
    assert 0 <= small.nbytes - 4 * (2 * layer + 2 * 24 + 8 * 24) - 8 * 3 * 8 < 2000
    half = workloads.encoder(1, 8, tiny=False, half=True)
    assert half.nbytes < small.nbytes - 4 * layer


def test_a_capture_ends_whatever_happens() -> None:
    ended = []
    stream = SimpleNamespace(begin_capture=lambda: None, end_capture=lambda: ended.append(True))
    with pytest.raises(ZeroDivisionError):
        captured(stream, lambda: 1 // 0)
    assert ended == [True]
