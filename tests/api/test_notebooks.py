"""Objects in notebooks and at prompts, and objects that cannot be copied or pickled."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import numpy as np
import openvino
import pytest

import ovgpu
from tests.harness import Net

from . import nets


def model_named(name: str = "x<y") -> Any:
    net = Net("small & fast")
    net.result(net.layer("Relu", "opset1", [net.parameter("f32", (-1, 3), name)], names=["y"]))
    return ovgpu.read_model(*net.build())


class Tags(HTMLParser):
    """Parser that checks that tags are closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html() -> None:
    model = model_named()
    compiled = ovgpu.Core().compile_model(model, "CPU")
    for shown, title in ((model, "Model small & fast: 3 operations"), (compiled, "CompiledModel small & fast on CPU")):
        text = Tags(shown._repr_html_()).text
        assert text.startswith(title) and "x<y" in text and "[?,3]" in text and "f32" in text
    text = Tags(compiled.plan([(2, 3)])._repr_html_()).text
    assert "Relu" in text and "[2,3]" in text


def test_plans_in_jupyter(monkeypatch: pytest.MonkeyPatch) -> None:
    """rich would display a plan there, instead of returning its text."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *_: pytest.fail("displayed"))
    plan = ovgpu.Core().compile_model(model_named(), "CPU").plan([(2, 3)])
    assert "Relu" in str(plan) and "Relu" in plan._repr_html_()


@pytest.mark.parametrize("kind", ["f32", "bf16", "u4", "string", "boolean", "f8e4m3", "nf4"])
def test_tensors(kind: str) -> None:
    tensor = ovgpu.Tensor(getattr(ovgpu.Type, kind), [40, 50])
    text = Tags(tensor._repr_html_()).text
    assert text.startswith(f"Tensor: {kind} [40,50]") and "..." in text and len(text) < 2000


def test_prompts() -> None:
    model = model_named("x")
    plan = ovgpu.Core().compile_model(model, "CPU").plan([(2, 3)])
    assert repr(plan) == "<Plan: 1 steps on CPU, 48 bytes moved; print it to see them>" and len(str(plan)) > 200
    assert repr(ovgpu.preprocess.PrePostProcessor(model)).startswith(
        "<PrePostProcessor of 'small & fast'>\nInput \"x\""
    )
    with ovgpu.DynamicBatcher(model, 4, "CPU") as batcher:
        assert repr(batcher) == "<DynamicBatcher: batches of 1, 2, 4 rows, batch axes (0,)>"
    with ovgpu.SequenceBatcher(model, 4, "CPU") as batcher, batcher.open():
        assert repr(batcher) == "<SequenceBatcher: 1 of 4 sequences open, batch axes (0,)>"


@pytest.mark.parametrize("use", [pickle.dumps, copy.copy, copy.deepcopy])
def test_objects_that_cannot_be_copied(use: Callable[[Any], Any]) -> None:
    """The errors are openvino's. A copy of a request, for example, would share its memory without knowing it."""
    messages = []
    for library in (openvino, ovgpu):
        core = library.Core()
        compiled = core.compile_model(core.read_model(*nets.one((2,))), "CPU")
        found = []
        for value in (core, compiled, compiled.create_infer_request(), library.AsyncInferQueue(compiled, 1)):
            with pytest.raises(TypeError) as error:
                use(value)
            found.append(str(error.value))
        messages.append(found)
    assert messages[0] == messages[1]


def test_results_can_be_pickled() -> None:
    result = ovgpu.Core().compile_model(model_named("x"), "CPU")(np.ones((2, 3), np.float32))
    assert pickle.loads(pickle.dumps(result)).to_tuple()[0].tolist() == result[0].tolist()
