"""`python -m bench.gpu_peers` from end to end, at tiny sizes on the emulated device; and its calculations."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench import gpu_measure, gpu_peers, gpu_run
from bench.gpu_questions import captured, nodes
from bench.gpu_workloads import TINY, WORKLOADS, encoder
from tests.models.transformer import Sizes

TRIAL = ["--emulated", "--tiny", "--torch", "none"]


def test_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert gpu_peers.main([*TRIAL, "--out", str(tmp_path)]) == 0
    result = json.loads((tmp_path / "gpu-ovgpu-emulated-device.json").read_text())
    assert result["copy_bytes_per_second"] > 0
    assert result["workloads"].keys() == WORKLOADS.keys() == TINY.keys()
    for name, workload in result["workloads"].items():
        row = workload["engines"]["ovgpu"]
        assert row["right"] and "failed" not in row, (name, row)
        assert row["device"]["us"] > 0 and row["wall"]["us"] > 0
        assert ("call" in row) == (name != "gpt2_decode")
        assert row["device"]["p10_us"] <= row["device"]["us"] <= row["device"]["p90_us"]
    assert result["workloads"]["softmax_f32"]["engines"]["ovgpu"]["plan"]["host_launches"] == 1
    answers = json.loads((tmp_path / "gpu-ovgpu-emulated-device-calls.json").read_text())["answers"]
    for question, answer in answers.items():
        assert answer and "failed" not in answer, (question, answer)
    assert "GemmNode" in answers["nodes of a captured product"]["64 cubed, own workspace"]
    assert answers["a product's bias and Gelu (us)"]["float16, gelu, 4 rows, at once: kernels"] == "LtNode"
    assert "not allowed" in answers["allocation during capture"]["Global, a new block"]
    assert {p.name for p in tmp_path.iterdir()} == {
        f"gpu-ovgpu-emulated-device{part}.{kind}" for part in ("", "-calls") for kind in ("json", "md")}
    assert "Softmax of rows" in capsys.readouterr().out


def test_a_failing_engine_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    def fail(self: gpu_run.Ovgpu) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(gpu_run.Ovgpu, "call", fail)
    some = [*TRIAL, "--no-questions", "--only", "softmax_f32", "gpt2_decode"]
    result = gpu_peers.run(gpu_peers.parse(some))
    rows = {name: w["engines"]["ovgpu"] for name, w in result["workloads"].items()}
    assert "out of luck" in rows["softmax_f32"]["failed"] and "device" in rows["gpt2_decode"]
    assert gpu_peers.main(some) == 1
    assert "failed or wrong: softmax_f32" in capsys.readouterr().out


def test_wrong_results_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = gpu_run.Ovgpu.infer

    def off(self: gpu_run.Ovgpu, token: int = 0) -> Any:
        found = usual(self, token)
        return found if self.flush is None else [1.01 * y for y in found]  # wrong in measurements on the device only

    monkeypatch.setattr(gpu_run.Ovgpu, "infer", off)
    result = gpu_peers.run(gpu_peers.parse([*TRIAL, "--no-questions", "--only", "softmax_f32"]))
    row = result["workloads"]["softmax_f32"]["engines"]["ovgpu"]
    assert row["right"] is False and row["error"] == pytest.approx(0.01, rel=1e-3) and "device" not in row
    assert "wrong: error 1.0e-02" in gpu_peers.rows(result)[0]


def test_errors_are_relative_to_each_output() -> None:
    a, b = np.array([3.0, 4.0]), np.array([1e-3])
    assert gpu_run.error([a, 1.5 * b], [a, b]) == pytest.approx(0.5)
    assert np.isnan(gpu_run.error([a], [b])) and np.isnan(gpu_run.error([a * np.nan], [a]))


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


def test_minimum_traffic_counts_weights_once() -> None:
    sizes = Sizes(2, 24, 2, 48, 50, 16)
    small, large = encoder(sizes, 1, 8), encoder(sizes, 3, 8)
    assert large.nbytes - small.nbytes == 2 * 2 * 8 * 24 * 4
    layer = 4 * 24 * 25 + 2 * 48 * 24 + 48 + 24 + 2 * 2 * 24
    assert small.nbytes == 4 * (2 * layer + 2 * 24 + 2 * 8 * 24)


def test_nodes_of_a_graph_are_read_from_its_dot_text() -> None:
    """Nodes are counted in the dot text that CUDA writes for a graph."""
    text = """digraph dot {
subgraph cluster_1 {
label="graph_1" graph[style="dashed"];
"graph_1_node_0"[style="solid" shape="rectangle" label="0
MEMSET
"];
"graph_1_node_1"[style="bold" shape="octagon" label="1
_Z5scalePffi\\<\\<\\<1,256,0\\>\\>\\>
"];
"graph_1_node_0" -> "graph_1_node_1" [headlabel=0];
}
}"""
    found = nodes(SimpleNamespace(debug_dot_str=lambda: text))
    assert len(found) == 2 and "MEMSET" in found[0] and "scale" in found[1]


def test_a_capture_ends_whatever_happens() -> None:
    ended = []
    stream = SimpleNamespace(begin_capture=lambda: None, end_capture=lambda: ended.append(True))
    with pytest.raises(ZeroDivisionError):
        captured(stream, lambda: 1 // 0)
    assert ended == [True]
