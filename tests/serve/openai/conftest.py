"""A server of a tiny decoder, and the pipeline that has its texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ovgpu.genai as ov_genai
from ovgpu.genai.engine import Engine
from tests.genai.generation_cases import make_folder
from tests.harness.servers.serving import Serving, serving
from tests.serve.openai.client import EXACT, Gate

pytest.importorskip("tokenizers")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the model ``llama``."""
    found = tmp_path_factory.mktemp("texts")
    make_folder("llama", found / "llama" / "1")
    return found


@pytest.fixture(scope="session")
def server(folder: Path) -> Iterator[Serving]:
    with serving(folder, engine={"properties": EXACT}) as found:
        yield found


@pytest.fixture(scope="session")
def pipeline(folder: Path) -> ov_genai.ContinuousBatchingPipeline:
    return ov_genai.ContinuousBatchingPipeline(folder / "llama" / "1", ov_genai.SchedulerConfig(), "CPU", EXACT)


@pytest.fixture
def gate(server: Serving, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Steps wait until the test allows them. At its end, all run."""
    found = Gate(Engine.step)
    monkeypatch.setattr(Engine, "step", lambda engine: found(engine))
    yield found
    found.open()
