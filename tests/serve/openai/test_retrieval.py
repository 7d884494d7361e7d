"""Embeddings and rerank beside the pipelines of ovgpu.genai."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu.genai as ov_genai
from tests.genai.retrieval_cases import DOCUMENTS, TEXTS, make_folder
from tests.harness.servers.serving import Serving, serving
from tests.serve.openai.client import CHATS, EXACT, call, chat
from tests.serve.openai.test_errors import fails

QUERY = "cat sat"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("retrieval")
    for name, model, settings in (
        ("vectors", "encoder", 'task = "embeddings"\npipeline = { pooling_type = "mean", max_length = 40 }'),
        ("scores", "sigmoid", 'task = "rerank"\npipeline = { max_length = 40 }'),
    ):
        make_folder(model, found / name / "1")
        (found / name / "ovgpu.toml").write_text(settings)
    return found


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Serving]:
    with serving(folder, engine={"properties": EXACT, "max_batch_size": 4}, poll_seconds=0.0) as found:
        yield found


@pytest.mark.parametrize("prefix", ["/v1", "/v3"])
def test_embeddings(prefix: str, server: Serving, folder: Path) -> None:
    """There are more texts than a batch has. Vectors are numbers or bytes."""
    config = {"pooling_type": ov_genai.TextEmbeddingPipeline.PoolingType.MEAN, "max_length": 40}
    pipeline = ov_genai.TextEmbeddingPipeline(folder / "vectors" / "1", "CPU", **config, **EXACT)
    wanted = np.array(pipeline.embed_documents(TEXTS))
    body = {"model": "vectors", "input": TEXTS}
    status, found = call(server, f"{prefix}/embeddings", body)
    assert status == 200 and found["object"] == "list" and [x["index"] for x in found["data"]] == [*range(len(TEXTS))]
    np.testing.assert_allclose([x["embedding"] for x in found["data"]], wanted, atol=1e-5)
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > len(TEXTS)
    status, found = call(server, f"{prefix}/embeddings", {**body, "encoding_format": "base64"})
    read = [np.frombuffer(base64.b64decode(x["embedding"]), np.float32) for x in found["data"]]
    np.testing.assert_allclose(read, wanted, atol=1e-5)
    status, found = call(server, f"{prefix}/embeddings", {**body, "input": TEXTS[0]})
    np.testing.assert_allclose(found["data"][0]["embedding"], wanted[0], atol=1e-5)


@pytest.mark.parametrize("prefix", ["/v1", "/v3"])
def test_rerank(prefix: str, server: Serving, folder: Path) -> None:
    pipeline = ov_genai.TextRerankPipeline(folder / "scores" / "1", "CPU", max_length=40, top_n=10, **EXACT)
    wanted = pipeline.rerank(QUERY, DOCUMENTS)
    body = {"model": "scores", "query": QUERY, "documents": DOCUMENTS}
    status, found = call(server, f"{prefix}/rerank", body)
    assert status == 200 and [x["index"] for x in found["results"]] == [index for index, _ in wanted]
    np.testing.assert_allclose([x["relevance_score"] for x in found["results"]], [s for _, s in wanted], atol=1e-5)
    documents = [{"text": text} for text in DOCUMENTS]
    body |= {"documents": documents, "top_n": 2, "return_documents": True}
    status, found = call(server, f"{prefix}/rerank", body)
    assert [x["document"]["text"] for x in found["results"]] == [DOCUMENTS[index] for index, _ in wanted[:2]]


def test_wrong_requests(server: Serving) -> None:
    for value in (None, [], "", 3, [3], [[1, 2]]):
        if value != "":
            fails(server, "/v1/embeddings", {"model": "vectors", "input": value}, "input")
    given: dict[str, Any] = {"model": "vectors", "input": "a"}
    fails(server, "/v1/embeddings", {**given, "encoding_format": "int8"}, "encoding_format")
    fails(server, "/v1/embeddings", {**given, "dimensions": 3}, "dimensions")
    fails(server, "/v1/embeddings", {**given, "model": "scores"}, "model", 404)
    for name, value in (("query", None), ("documents", []), ("documents", [3]), ("top_n", 0)):
        body = {"model": "scores", "query": "a", "documents": ["b"], name: value}
        fails(server, "/v1/rerank", body, name)
    assert "is for embeddings, not text_generation" in fails(server, CHATS, chat(model="vectors"), "model", 404)


def test_settings(server: Serving, folder: Path) -> None:
    file = folder / "vectors" / "ovgpu.toml"
    before = file.read_text()
    for text, reason in (
        ('task = "x"', "task is 'x', not one of text_generation, embeddings"),
        ('task = "embeddings"\npipeline = { top_n = 3 }', "pipeline has no setting top_n"),
        ('task = "embeddings"\npipeline = { pooling_type = "max" }', "pooling_type is 'max', not one of"),
        ('task = "embeddings"\npipeline = { max_length = "x" }', "max_length"),
        ('task = "rerank"', "logits"),
        ('task = "text_generation"', "no state"),
    ):
        file.write_text(text)
        status, found = call(server, "/v2/repository/models/vectors/load", {})
        assert status == 400 and reason in found["error"], found
    file.write_text('task = "tensors"')
    assert call(server, "/v2/repository/models/vectors/load", {}) == (200, {})
    assert call(server, "/v2/models/vectors")[1]["inputs"]
    file.write_text(before)
    assert call(server, "/v2/repository/models/vectors/load", {}) == (200, {})
    assert [model["id"] for model in call(server, "/v1/models")[1]["data"]] == ["scores", "vectors"]
