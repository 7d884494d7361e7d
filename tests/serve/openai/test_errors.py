"""Fields that are ignored or refused, malformed requests, and tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ovgpu.serve.openai.fields import BOTH, CHAT, IGNORED, REFUSED
from ovgpu.serve.openai.fields import COMPLETIONS as OF_COMPLETIONS
from ovgpu.serve.openai.models import METHODS
from ovgpu.serve.openai.routes import OpenAI
from ovgpu.serve.tokens import INFERRING
from tests.harness.servers.serving import Serving, serving
from tests.serve.openai.client import CHATS, COMPLETIONS, EXACT, call, chat, completion, texts

TOKENS = ("a-token-that-infers", "a-token-that-reads-only")


def fails(server: Serving, path: str, body: Any, param: str | None, status: int = 400) -> str:
    """Check the error of a request, and return its message."""
    found, document = call(server, path, body)
    assert found == status, document
    error = document["error"]
    assert error.keys() == {"message", "type", "param", "code"} and error["param"] == param, error
    message: str = error["message"]
    return message


WRONG: list[tuple[str, Any]] = [
    ("model", 3),
    ("model", None),
    ("stream", 1),
    ("stream_options", []),
    ("n", 0),
    ("n", 129),
    ("n", True),
    ("stop", 5),
    ("stop", [""]),
    ("stop", ["a"] * 17),
    ("stop_token_ids", [-1]),
    ("max_tokens", 0),
    ("max_tokens", "5"),
    ("min_tokens", 1.5),
    ("temperature", -1),
    ("temperature", "hot"),
    ("top_p", 2),
    ("top_k", -2),
    ("min_p", 1.5),
    ("presence_penalty", 3),
    ("seed", "x"),
    ("logit_bias", {"a": 1}),
    ("logit_bias", {"1": "x"}),
    ("logit_bias", {"1": 101}),
    ("logit_bias", {"211": 1}),
    ("response_format", {"type": "xml"}),
    ("response_format", {"type": "json_schema"}),
]
CHAT_WRONG: list[tuple[str, Any]] = [
    ("messages", []),
    ("messages", "hi"),
    ("messages", [{"content": "hi"}]),
    ("messages", [{"role": "user", "content": 3}]),
    ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
    ("messages", [{"role": "assistant", "tool_calls": "x"}]),
    ("logprobs", 1),
    ("top_logprobs", 1),
    ("top_logprobs", 5),
    ("tools", [{"type": "function"}]),
    ("tool_choice", "required"),  # without tools
    ("parallel_tool_calls", "yes"),
    ("tool_choice", {"type": "function", "function": {"name": "g"}}),
    ("chat_template_kwargs", []),
]
COMPLETION_WRONG: list[tuple[str, Any]] = [
    ("prompt", None),
    ("prompt", []),
    ("prompt", [[]]),
    ("prompt", [1, "a"]),
    ("prompt", [1, -1]),
    ("prompt", [5000]),
    ("logprobs", 2),
    ("echo", "yes"),
]


def test_wrong_values(server: Serving) -> None:
    for path, make, rows in (
        (CHATS, chat, WRONG + CHAT_WRONG),
        (COMPLETIONS, lambda **fields: completion(**{"prompt": "a", **fields}), WRONG + COMPLETION_WRONG),
    ):
        for name, value in rows:
            fails(server, path, make(**{name: value}), name)
    fails(server, COMPLETIONS, completion(["a"] * 65, n=2), "n")
    fails(server, COMPLETIONS, completion("a", logprobs=0, echo=True), "logprobs")
    fails(server, CHATS, chat(stream_options={"include_usage": 3}), "include_usage")
    assert "greater than 0" in fails(server, CHATS, chat(repetition_penalty=0), None)


def test_malformed_bodies(server: Serving) -> None:
    for body in (b"{", b"[]", b"\xff", b'{"model": "llama", "messages": ' + b"[" * 2000):
        fails(server, CHATS, body, None)
    nested: Any = {"type": "boolean"}
    for _ in range(300):
        nested = {"type": "object", "properties": {"a": nested}}
    form = {"type": "json_schema", "json_schema": {"schema": nested}}
    assert call(server, CHATS, chat(response_format=form))[0] == 400
    fails(server, CHATS, chat(messages=[{"role": "user", "content": "x", "extra": nested}]), None)
    half = "\ud800"  # of a surrogate pair
    for body in (chat(messages=[{"role": "user", "content": half}]), chat(stop=half), chat(user=half)):
        assert "surrogates" in fails(server, CHATS, body, None)
    fails(server, COMPLETIONS, completion([1 << 70]), "prompt")


def test_ignored_fields(server: Serving) -> None:
    ignored = {name: {"any": "value"} for name in (*IGNORED, "a_field_that_is_not_known")}
    assert texts(server, COMPLETIONS, completion("a", **ignored)) == texts(server, COMPLETIONS, completion("a"))


@pytest.mark.parametrize("name", REFUSED)
def test_refused_fields(name: str, server: Serving) -> None:
    assert "is not supported" in fails(server, CHATS, chat(**{name: "some value"}), name)
    for neutral in (None, *REFUSED[name]):
        assert call(server, CHATS, chat(max_tokens=1, **{name: neutral}))[0] == 200


def test_unknown_models(server: Serving) -> None:
    assert fails(server, CHATS, chat(model="none"), "model", 404) == "there is no model 'none'"
    fails(server, "/v3/models/none", None, "model", 404)


def test_tokens_and_limits(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"{TOKENS[0]} infer\n{TOKENS[1]} read\n")
    with serving(folder, engine={"properties": EXACT}, token_file=file, json_mib=1) as server:
        status, found = call(server, CHATS, chat())
        assert status == 401 and found["error"]["code"] == "invalid_api_key"
        assert call(server, "/v1/models", None, Authorization=f"Bearer {TOKENS[1]}")[0] == 200
        status, found = call(server, CHATS, chat(), Authorization=f"Bearer {TOKENS[1]}")
        assert status == 403 and found["error"]["type"] == "permission_error"
        assert call(server, CHATS, chat(), Authorization=f"Bearer {TOKENS[0]}")[0] == 200
        large = completion("a" * (1 << 20))
        status, found = call(server, COMPLETIONS, large, Authorization=f"Bearer {TOKENS[0]}")
        assert status == 413 and found["error"]["type"] == "invalid_request_error"


def test_all_methods_that_run_models_need_a_token_for_that() -> None:
    nothing: Any = None
    endpoints = OpenAI(nothing, nothing, nothing, nothing).endpoints
    assert {method for (verb, _), (method, _) in endpoints.items() if verb == "POST"} == {*METHODS} < INFERRING


def test_table() -> None:
    """The table of fields in the documentation is that of the code."""
    from tests.serve.openai import table

    assert table.is_current(), "python -m tests.serve.openai.table --write"
    names = [*BOTH, *CHAT, *OF_COMPLETIONS]
    assert len({*names}) >= len(names) - 1 and not {*names} & {*IGNORED, *REFUSED}
