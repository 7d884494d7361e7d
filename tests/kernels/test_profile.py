"""Profiling: times per step from device events, NVTX ranges, and timelines as Chrome traces."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cuda import rt
from ovgpu.debug import NVTX
from ovgpu.runtime.trace import Trace
from tests.harness import Net

X = np.ones((2, 3), np.float32)


def softmax_of_product() -> Net:
    net = Net("net")
    x = net.parameter("f32", (2, 3), "x")
    y = net.layer("MatMul", "opset1", [x, net.const(np.eye(3, dtype=np.float32))], name="product")
    net.result(net.layer("Softmax", "opset8", [y], {"axis": 1}, name="probabilities"))
    return net


def request(device: str, profiling: bool = True) -> Any:
    core = ov.Core()
    config = {"PERF_COUNT": True} if profiling else {}
    return core.compile_model(core.read_model(*softmax_of_product().build()), device, config).create_infer_request()


@pytest.fixture(params=["CPU", "emulated"])
def device(request: pytest.FixtureRequest, emulated: str) -> str:
    return emulated if request.param == "emulated" else "CPU"


def named(infos: Any) -> list[str]:
    return [i.node_name for i in infos if i.node_name in ("product", "probabilities")]


def test_every_step_has_its_times(device: str) -> None:
    profiled = request(device)
    for _ in range(3):  # the steps of the last inference, not of all
        profiled.infer([X])
        infos = profiled.profiling_info
        assert named(infos) == ["product", "probabilities"]
        assert all(i.real_time > timedelta() and i.cpu_time > timedelta() for i in infos)
        assert {i.status for i in infos} == {ov.ProfilingInfo.Status.EXECUTED}


def test_times_lie_in_the_inference(device: str) -> None:
    profiled = request(device)
    profiled.infer([X])
    before = time.perf_counter()
    profiled.infer([X])
    after = time.perf_counter()
    spans = [s for s in profiled.timeline() if s.name in ("product", "probabilities")]
    assert [s.op for s in spans] == ["MatMul", "Softmax"]
    ends = [before, *(time for s in spans for time in s.host), after]
    assert ends == sorted(ends)
    for span in spans:
        assert before <= span.device[0] < span.device[1] <= after


def test_device_times_are_those_of_events(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Device times come from events and host times do not: here each pair of events is three seconds apart."""
    profiled = request(emulated)
    monkeypatch.setattr(rt.cupy().cuda, "get_elapsed_time", lambda start, end: 3000.0)
    profiled.infer([X])
    assert all(
        i.real_time == timedelta(seconds=3) and i.cpu_time < timedelta(seconds=3) for i in profiled.profiling_info
    )


def test_no_times_without_profiling(device: str) -> None:
    plain = request(device, profiling=False)
    plain.infer([X])
    assert {i.status for i in plain.profiling_info} == {ov.ProfilingInfo.Status.NOT_RUN}
    with pytest.raises(RuntimeError, match="enable_profiling"):
        plain.timeline()


@pytest.fixture
def ranges(emulated: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of names that are pushed to NVTX, with ``)`` for each pop."""
    seen: list[str] = []
    monkeypatch.setattr(
        rt.cupy().cuda, "nvtx", SimpleNamespace(RangePush=seen.append, RangePop=lambda: seen.append(")"))
    )
    return seen


@pytest.mark.parametrize("profiling", [True, False])
def test_ranges_are_named_by_layer(profiling: bool, emulated: str, ranges: list[str]) -> None:
    some = request(emulated, profiling)
    with NVTX(0 if profiling else 1):
        for _ in range(3):
            ranges.clear()
            some.infer([X])
            assert [name for name in ranges if name in ("product", "probabilities")] == ["product", "probabilities"]
            assert set(ranges[1::2]) == {")"} and ")" not in ranges[::2]  # each is popped before the next is pushed


def test_no_ranges_otherwise(emulated: str, ranges: list[str]) -> None:
    request(emulated, profiling=False).infer([X])
    assert not ranges


def test_a_trace_has_both_timelines_of_each_request(device: str, tmp_path: Path) -> None:
    trace = Trace(device)
    for number in range(2):
        profiled = request(device)
        for _ in range(3):
            profiled.infer([X])
            trace.add(profiled.timeline(), number)
    trace.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [e for e in events if e["ph"] == "X" and e["name"] == "probabilities"]
    assert sorted((e["pid"], e["tid"]) for e in spans) == sorted([(p, t) for p in (0, 1) for t in (0, 1)] * 3)
    assert all(e["dur"] > 0 and e["args"]["op"] == "Softmax" for e in spans)
    titles = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert titles == ["host", f"device {device}"]


def test_times_of_a_plan(device: str) -> None:
    """The steps of a plan have measured times if they are asked for, and the printed plan shows them."""
    timed = request(device, profiling=False)
    for _ in range(3):
        timed.infer([X])
    plain, plan = timed.plan(), timed.plan(times=True)
    assert all(step.seconds is None for step in plain.steps) and " us in " not in str(plain)
    steps = {step.op: step.seconds for step in plan.steps}
    assert steps["MatMul"] > 0 and steps["Softmax"] > 0
    assert f" us in {len(plan.steps)} steps" in " ".join(str(plan).split())  # the line breaks where its numbers end
    assert [replace(step, seconds=None) for step in plan.steps] == list(plain.steps)


def test_times_with_a_state(device: str) -> None:
    """Timing keeps results and states. It is refused once a state has changed."""
    net = Net()
    x = net.parameter("f32", (4,), "x")
    held = net.layer("ReadValue", "opset6", [x], {"variable_id": "v", "variable_type": "f32", "variable_shape": "4"})
    total = net.layer("Add", "opset1", [held, x])
    net.layer("Assign", "opset6", [total], {"variable_id": "v"})
    found = net.layer("NonZero", "opset3", [total], {"output_type": "i64"}, ["i64"])
    net.result(net.layer("Multiply", "opset1", [found, found]))
    core = ov.Core()
    timed = core.compile_model(core.read_model(*net.build()), device).create_infer_request()
    for _ in range(3):
        timed.infer([np.array([1, 0, 2, 0], np.float32)])
    plan = timed.plan(times=True)
    assert {step.op for step in plan.steps if step.seconds is not None} >= {"Add", "Multiply"}
    np.testing.assert_array_equal(timed.query_state()[0].state.data, [4, 0, 8, 0])
    np.testing.assert_array_equal(timed.get_output_tensor().data, [[0, 4]])
    timed.reset_state()
    with pytest.raises(RuntimeError, match="states have changed"):
        timed.plan(times=True)
