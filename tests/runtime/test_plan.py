"""Plans: steps, memory locations, and bytes moved."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import ovgpu as ov
from ovgpu.backends.cpu import CpuBackend
from ovgpu.runtime.plan import Plan, plan_of_program
from ovgpu.runtime.printing import bytes_text, shapes_text
from tests.harness.ir import Net

from . import models
from .models import compiled


def kinds(plan: Plan) -> list[str]:
    return [step.kind for step in plan.steps]


def test_elementwise_chain() -> None:
    plan = compiled(models.chain()).plan()
    assert [(s.number, s.op, s.layer) for s in plan.steps] == [
        (0, "Add", "add"),
        (1, "Relu", "relu"),
        (2, "Multiply", "mul"),
    ]
    assert [s.in_place for s in plan.steps] == [False, True, False]
    assert [(s.bytes_read, s.bytes_written) for s in plan.steps] == [(24 + 4, 24), (24, 24), (24 + 12, 24)]
    assert [s.outputs[0].location for s in plan.steps] == ["arena+0", "arena+0", "output 0"]
    assert (plan.arena, plan.constants, plan.state) == (64, 16, 0)
    assert (plan.launches, plan.bytes_moved, plan.captured) == (3, 160, (False,))


def test_views_are_rows_but_no_steps() -> None:
    plan = compiled(models.reshaped()).plan()
    assert [(s.number, s.kind, s.op) for s in plan.steps] == [
        (0, "bound", "Relu"),
        (1, "bound", "Sigmoid"),
        (None, "view", "Concat"),
        (None, "view", "Reshape"),
    ]
    assert {s.outputs[0].location for s in plan.steps} == {"output 0"}
    assert plan.copies() == [] and plan.bytes_moved == 4 * 24 and plan.arena == 0


def test_a_copy_is_listed() -> None:
    plan = compiled(models.stateful()).plan()
    (copy,) = plan.copies()
    assert plan.count("copy") == 1 and copy.bytes_moved == 2 * 32
    assert {step.outputs[0].location for step in plan.steps} == {"output 0", "variable s"}
    assert plan.steps[0].inputs[0] is not None and plan.steps[0].inputs[0].location == "state s"
    assert plan.state == 32


def test_a_gather_reads_only_its_rows() -> None:
    net = Net()
    ids = net.parameter("i64", (2,), "ids")
    table = net.const(np.ones((1000, 8), "f4"))
    net.result(net.layer("Gather", "opset8", [table, ids, net.const(0)], {"batch_dims": 0}))
    step = next(s for s in compiled(net).plan().steps if s.op == "Gather")
    assert (step.bytes_read, step.bytes_written) == (2 * 32 + 2 * 8, 2 * 32)


@pytest.mark.parametrize("steps", [0, 1, 7])
def test_loop(steps: int) -> None:
    plan = compiled(models.loop()).plan([steps, 4])
    loop, relu = plan.steps
    (body,) = loop.bodies
    assert (loop.kind, body.name, body.trips) == ("control", "body", steps)
    assert loop.calls == steps * 2  # an addition and a tanh, and no copy
    assert [s.op for s in body.plan.steps] == ["Add", "Tanh"]
    if steps:
        assert body.plan.bytes_moved == 3 * 16 + 2 * 16
    assert loop.bytes_moved == steps * 5 * 16 and relu.bytes_moved == steps * 2 * 16
    assert plan.copies() == [] and plan.count("bound") == 3


def test_shapes_and_slots_of_the_last_inference() -> None:
    model = compiled(models.loop())
    model([np.ones((3, 4), "f4")])
    assert model.plan().steps[0].outputs[0].shape == (3, 4)
    assert 3 in [value for _, value in model.plan().symbol_values[0]]
    model([np.ones((5, 4), "f4")])
    assert model.plan().steps[0].bodies[0].trips == 5
    assert model.plan({"x": [2, 4]}).steps[0].bodies[0].trips == 2
    assert model.plan().steps[0].bodies[0].trips == 5  # plans for other shapes change nothing


def test_plan_of_a_request() -> None:
    request = compiled(models.chain()).create_infer_request()
    with pytest.raises(RuntimeError, match="before the first inference"):
        request.plan()
    request.infer([np.ones((2, 3), "f4")])
    assert kinds(request.plan()) == ["bound"] * 3


def test_shapes_are_needed_and_checked() -> None:
    model = compiled(models.chain((-1, 3)))
    with pytest.raises(RuntimeError, match=r"input 0 has the dynamic shape \[\?,3\]"):
        model.plan()
    with pytest.raises(ov.Error, match=r"\[Parameter\].*\[2, 4\]"):
        model.plan([2, 4])
    assert model.plan([[2, 3]]).bytes_moved == model.plan({0: (2, 3)}).bytes_moved == 160


def test_extents_known_at_run_time() -> None:
    model = compiled(models.branching())
    ahead = model.plan()
    assert kinds(ahead)[-2:] == ["eager", "bound"]
    assert ahead.steps[-1].outputs[0].shape == (None,) and ahead.steps[-1].calls is None
    assert ahead.count("host") >= 2 and ahead.launches == 1
    model([np.ones(4, "f4")])
    plan = model.plan()
    assert plan.steps[-1].outputs[0].shape == (4,) and plan.launches == 2
    assert [(b.name, b.trips) for b in plan.steps[-2].bodies] == [("then", 1)]
    model([-np.ones(4, "f4")])
    assert [(b.name, b.trips) for b in model.plan().steps[-2].bodies] == [("then", 0), ("else", 1)]
    assert model.plan().steps[-1].outputs[0].shape == (2,)


def test_computed_extent() -> None:
    model = compiled(models.counted())
    model([np.full(6, 5, "f4")])
    plan = model.plan()
    assert [s.op for s in plan.steps if s.kind == "host"] == ["Fetch", "ReduceMax", "Convert"]
    assert plan.steps[-1].outputs[0].shape == (5,)


def test_plan_of_a_program_without_executor() -> None:
    model = compiled(models.chain((-1, 3)))
    (program,) = model._compilation.programs.values()
    unknown = plan_of_program(program)
    assert unknown.steps[0].outputs[0].shape == (None, 3)
    assert unknown.steps[0].outputs[0].nbytes is None and unknown.arenas == (None,)
    segment = program.segments[0]
    symbol_values, _ = segment.shape_function([np.empty((2, 3), "f4")])
    known = plan_of_program(program, [symbol_values])
    assert known.bytes_moved == 160 and known.arena >= 24 and known.steps[0].calls is None


def test_a_captured_segment_is_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(self: CpuBackend, recording: Any) -> bool:
        """Replay as a backend with graphs, which captures at the second run."""
        recording.runs += 1
        recording.graph = recording.runs > 1 or None
        for call in recording.flat:
            call()
        return True

    monkeypatch.setattr(CpuBackend, "launch", launch)
    model, x = compiled(models.loop()), np.ones((4, 4), "f4")
    model([x])
    assert model.plan().captured == (False,) and model.plan().launches == 4 * 2 + 1
    model([x])
    assert model.plan().captured == (True,) and model.plan().launches == 1


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_prints_as_a_table(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(compiled(models.loop()).plan([6, 4]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= width
    for word in ("control", "body × 6", "Tanh", "Relu", "layer", "constants 16 B", "state 0 B"):
        assert word in " ".join(text.split()), word
    assert ("result " in text) == (width >= 100)


def test_shapes_text() -> None:
    first, _, last = compiled(models.chain()).plan().steps
    assert shapes_text(first) == "[2,3] [1,1] → f32[2,3]"
    assert shapes_text(replace(first, tf32=True)) == "[2,3] [1,1] → f32[2,3] in tf32"
    assert shapes_text(replace(last, inputs=(None, *last.inputs), outputs=())) == "- f32[2,3] f32[3]"


def test_str_is_plain() -> None:
    text = str(compiled(models.chain()).plan())
    assert "\x1b" not in text and "Multiply 1" in text and " in place  Relu 1 " in text
    assert "160 B moved" in " ".join(text.split())


@pytest.mark.parametrize(
    "count, text",
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KB"),
        (3 << 20, "3.0 MB"),
        (5 << 40, "5.0 TB"),
        (5 << 50, "5120.0 TB"),
        (None, "?"),
    ],
)
def test_bytes_text(count: int | None, text: str) -> None:
    assert bytes_text(count) == text
