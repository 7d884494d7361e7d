"""Models that generate text beside others: lists, settings, changes of files, and what is refused."""

from __future__ import annotations

import gc
import json
import re
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.genai.generation_cases import make_folder
from tests.harness.servers.serving import Serving, serving, write
from tests.serve.openai.client import CHATS, COMPLETIONS, EXACT, answer, call, chat, completion, texts
from tests.serve.openai.test_connections import wait
from tests.serve.test_inference import affine


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    make_folder("llama", tmp_path / "llama" / "1")
    write(tmp_path, affine(), "affine")
    return tmp_path


def reasons(server: Serving) -> dict[str, str]:
    """Return the reasons of models that are not loaded."""
    _, index = call(server, "/v2/repository/index", {})
    return {row["name"]: row["reason"] for row in index if row["state"] != "READY"}


def test_models_beside_others(repository: Path) -> None:
    with serving(repository, engine={"properties": EXACT}) as server:
        status, found = call(server, "/v1/models")
        assert status == 200 and [model["id"] for model in found["data"]] == ["llama"]
        for path in ("/v1/models/llama", "/v3/models/llama"):
            assert call(server, path) == (200, found["data"][0])
        assert call(server, "/v1/models/affine")[1].keys() == {"model_version_status"}
        status, found = call(server, CHATS, chat(model="affine"))
        assert status == 404 and "is for inferences of KServe, not text_generation" in found["error"]["message"]
        tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
        for path, body in (
            ("/v2/models/llama/infer", {"inputs": [tensor]}),
            ("/v1/models/llama:predict", {"inputs": 1}),
        ):
            status, found = call(server, path, body)
            assert status == 400 and "'llama' is for text_generation" in found["error"]
        for path in ("/v2/models/llama", "/v2/models/llama/config", "/v2/models/llama/stats", "/v1/config"):
            assert call(server, path)[0] == 200
        call(server, CHATS, chat())
        assert re.search(rb"texts: up to 64 side by side on CPU, \d\.\d tokens per second", answer(server, "/")[1])
        assert call(server, "/v2/repository/models/llama/unload", {}) == (200, {})
        status, found = call(server, CHATS, chat())
        assert status == 503 and found["error"]["message"] == "model 'llama' is not loaded"
        assert call(server, "/v1/models")[1]["data"] == []
        assert call(server, "/v2/repository/models/llama/load", {}) == (200, {})
        assert call(server, CHATS, chat())[0] == 200


def test_changed_files(repository: Path) -> None:
    """The chat template and the configuration of generation count as files of the model."""
    for file in (repository / "llama" / "1").glob("openvino_*tokenizer.*"):
        file.unlink()
    with serving(repository, engine={"properties": EXACT}, poll_seconds=0.0) as server:
        before = call(server, CHATS, chat(ignore_eos=False))[1]["usage"]["prompt_tokens"]
        (repository / "llama" / "1" / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
        assert call(server, "/v1/config/reload", {})[0] == 201
        assert call(server, CHATS, chat())[1]["usage"]["prompt_tokens"] < before
        configuration = repository / "llama" / "1" / "generation_config.json"
        configuration.write_text(json.dumps({"eos_token_id": 2, "max_new_tokens": 3}))
        assert call(server, "/v1/config/reload", {})[0] == 201
        assert call(server, CHATS, chat(max_tokens=None))[1]["usage"]["completion_tokens"] == 3


def test_a_model_that_is_replaced_is_freed(repository: Path) -> None:
    """Its memory does not wait for the garbage collector."""
    with serving(repository, engine={"properties": EXACT}, poll_seconds=0.0) as server:
        assert server.server.service is not None
        models = server.server.service.models
        texts(server, COMPLETIONS, completion(["a", "b"]))
        engine = weakref.ref(models.current["llama"].engine)
        gc.disable()
        try:
            assert call(server, "/v2/repository/models/llama/load", {}) == (200, {})
            wait(lambda: engine() is None)
        finally:
            gc.enable()


def test_settings(repository: Path) -> None:
    """Limits of texts are the model's. A wrong one keeps it from being loaded."""
    file = repository / "llama" / "ovgpu.toml"
    file.write_text("scheduler = { max_num_seqs = 2, num_kv_blocks = 3 }\n")
    with serving(repository, engine={"properties": EXACT, "max_sequences": 2}, poll_seconds=0.0) as server:
        assert len(texts(server, COMPLETIONS, completion("a", n=5, temperature=1))) == 5
        status, found = call(server, COMPLETIONS, completion([5] * 100))
        assert status == 400 and "the prompt needs 7 blocks of 16 tokens, and there are 3" in found["error"]["message"]
        for text, reason in (
            ("scheduler = { max_num_seqs = 0 }", "max_num_seqs must be at least 1"),
            ("scheduler = { seqs = 1 }", "scheduler has no setting seqs"),
            ('scheduler = { max_num_seqs = "x" }', "scheduler: "),
            ("scheduler = 3", "scheduler is 3"),
        ):
            file.write_text(text)
            call(server, "/v1/config/reload", {})
            assert call(server, CHATS, chat())[0] == 200  # the version that is served stays
            status, found = call(server, "/v2/repository/models/llama/load", {})
            assert status == 400 and reason in found["error"], found


def test_a_model_without_a_tokenizer_that_works(repository: Path) -> None:
    """Its reason is in the index; other models are served."""
    (repository / "llama" / "1" / "tokenizer.json").write_text("{")
    for file in (repository / "llama" / "1").glob("openvino_*tokenizer.*"):
        file.unlink()
    with serving(repository, engine={"properties": EXACT}) as server:
        assert reasons(server).keys() == {"llama"}
        assert call(server, CHATS, chat())[0] == 503


def test_a_folder_alone(tmp_path: Path) -> None:
    folder = make_folder("gpt2", tmp_path / "small")
    with serving(folder, engine={"properties": EXACT}) as server:
        assert [model["id"] for model in call(server, "/v1/models")[1]["data"]] == ["small"]
        assert call(server, CHATS, chat(model="small"))[0] == 200
    shutil.rmtree(folder)


def test_metrics(repository: Path) -> None:
    (repository / "llama" / "ovgpu.toml").write_text("scheduler = { num_kv_blocks = 5 }\n")

    def metrics(server: Serving) -> dict[str, Any]:
        samples = text_string_to_metric_families(answer(server, "/metrics")[1].decode())
        return {sample.name: sample for family in samples for sample in family.samples if "le" not in sample.labels}

    with serving(repository, engine={"properties": EXACT}) as server:
        assert metrics(server)["vllm:generation_tokens_total"].value == 0
        body = completion(["a", "b"], n=2)
        _, found = call(server, COMPLETIONS, body)
        measured = metrics(server)
        labels = {"model_name": "llama", "engine": "1"}
        assert measured["vllm:num_requests_running"].labels == labels
        assert {
            name: measured[f"vllm:{name}"].value
            for name in (
                "generation_tokens_total",
                "request_success_total",
                "time_to_first_token_seconds_count",
                "time_per_output_token_seconds_count",
                "num_requests_running",
                "num_requests_waiting",
                "kv_cache_usage_perc",
                "num_preemptions_total",
            )
        } == {
            "generation_tokens_total": found["usage"]["completion_tokens"],
            "request_success_total": 4,
            "time_to_first_token_seconds_count": 4,
            "time_per_output_token_seconds_count": 20,
            "num_requests_running": 0,
            "num_requests_waiting": 0,
            "kv_cache_usage_perc": 0,
            "num_preemptions_total": 0,
        }
        assert (
            b'ovgpu_requests_success{api="OpenAI",interface="REST",method="Completions"'
            in answer(server, "/metrics")[1]
        )
        call(server, COMPLETIONS, completion(["a" * 14] * 4))  # four texts of two blocks each
        assert metrics(server)["vllm:num_preemptions_total"].value == 2
