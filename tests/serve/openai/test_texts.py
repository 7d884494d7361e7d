"""Texts of chats and completions beside those of ContinuousBatchingPipeline."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import ovgpu.genai as ov_genai
from ovgpu.serve.openai.requests import parse_chat
from tests.genai.generation_cases import make_folder
from tests.harness.servers.serving import Serving, serving
from tests.serve.openai.client import CHATS, COMPLETIONS, EXACT, Stream, call, chat, completion, streamed, texts

PROMPTS = ["To be, or not", "a", "Hello, World! "]
SCHEMA = {"type": "boolean"}  # the tokenizer of the tests has no braces


def wanted(pipeline: Any, prompt: Any, **fields: Any) -> Any:
    """Return the result of a prompt, by default greedy and of 6 tokens."""
    config = ov_genai.GenerationConfig(**{"max_new_tokens": 6, "ignore_eos": True, **fields})
    if isinstance(prompt, str):
        config.apply_chat_template = False
        return pipeline.generate([prompt], [config])[0].m_generation_ids[0]
    (result,) = pipeline.generate([ov_genai.ChatHistory(prompt)], [config])
    return result.m_generation_ids[0]


@pytest.mark.parametrize("path", [CHATS, "/v3/chat/completions"])
def test_chat(path: str, server: Serving, pipeline: Any) -> None:
    parts = [{"type": "text", "text": "hi"}, {"type": "text", "text": "you"}]
    for messages, plain in (
        ([{"role": "user", "content": "hi"}],) * 2,
        ([{"role": "user", "content": parts}], [{"role": "user", "content": "hi\nyou"}]),
    ):
        expected = wanted(pipeline, plain)
        status, found = call(server, path, chat(messages=messages))
        assert status == 200 and found["object"] == "chat.completion" and found["model"] == "llama"
        (choice,) = found["choices"]
        assert choice["message"] == {"role": "assistant", "content": expected, "refusal": None}
        assert choice["finish_reason"] == "length" and found["usage"]["completion_tokens"] == 6
        assert streamed(server, path, chat(messages=messages)) == ([expected], ["length"])


def test_completion(server: Serving, pipeline: Any) -> None:
    expected = [wanted(pipeline, prompt) for prompt in PROMPTS]
    tokens = [pipeline.get_tokenizer().encode(prompt).input_ids.data[0].tolist() for prompt in PROMPTS]
    for prompt in (PROMPTS, tokens, [PROMPTS[0], *tokens[1:]]):
        assert texts(server, COMPLETIONS, completion(prompt)) == expected
    for prompt in (PROMPTS[0], tokens[0]):
        status, found = call(server, COMPLETIONS, completion(prompt))
        assert status == 200 and found["object"] == "text_completion"
        count = len(tokens[0])
        assert found["usage"] == {"prompt_tokens": count, "completion_tokens": 6, "total_tokens": count + 6}
    assert streamed(server, "/v3/completions", completion(PROMPTS)) == (expected, ["length"] * 3)
    assert texts(server, COMPLETIONS, completion(PROMPTS[:2], echo=True, n=2)) == [
        prompt + text for prompt, text in zip(PROMPTS[:2], expected) for _ in range(2)
    ]
    assert len(call(server, COMPLETIONS, completion("a", max_tokens=None))[1]["choices"][0]["text"]) > 0


def test_penalties_bias_and_ends(server: Serving, pipeline: Any) -> None:
    fields = {"repetition_penalty": 1.25, "presence_penalty": 0.5, "frequency_penalty": 0.25}
    assert texts(server, COMPLETIONS, completion(PROMPTS[0], **fields)) == [wanted(pipeline, PROMPTS[0], **fields)]
    token = pipeline.get_tokenizer().encode("Q", add_special_tokens=False).input_ids.data[0].tolist()[0]
    body = completion("a", logit_bias={str(token): 100})
    assert texts(server, COMPLETIONS, body) == ["Q" * 6]
    _, found = call(server, COMPLETIONS, {**body, "stop_token_ids": [token], "ignore_eos": False})
    assert found["choices"][0]["finish_reason"] == "stop" and found["usage"]["completion_tokens"] == 1
    _, found = call(server, COMPLETIONS, {**body, "stop_token_ids": [token], "ignore_eos": False, "min_tokens": 3})
    assert found["usage"]["completion_tokens"] > 3


def test_draws(server: Serving, pipeline: Any) -> None:
    """A seed repeats the texts. Those of a request differ, and the first one is the pipeline's."""
    body = completion("To be", temperature=0.9, seed=7, n=3, top_k=50, top_p=0.95, min_p=0.01)
    first, second, third = texts(server, COMPLETIONS, body)
    rules = {"top_k": 50, "top_p": 0.95, "min_p": 0.01, "temperature": 0.9}
    assert first == wanted(pipeline, "To be", do_sample=True, rng_seed=7, **rules)
    assert second == wanted(pipeline, "To be", do_sample=True, rng_seed=8, **rules)
    assert len({first, second, third}) == 3
    assert streamed(server, COMPLETIONS, body)[0] == [first, second, third]
    unseeded = {text for _ in range(2) for text in texts(server, COMPLETIONS, {**body, "seed": None})}
    assert len(unseeded) > 1


def test_log_probabilities(server: Serving, pipeline: Any) -> None:
    config = ov_genai.GenerationConfig(max_new_tokens=6, ignore_eos=True, logprobs=1, apply_chat_template=False)
    (result,) = pipeline.generate(["To be"], [config])
    _, found = call(server, COMPLETIONS, completion("To be", logprobs=1))
    logs = found["choices"][0]["logprobs"]
    assert sum(logs["token_logprobs"]) == pytest.approx(result.m_scores[0], abs=1e-4)
    assert [*map(len, logs.values())] == [6] * 4 and logs["text_offset"][:1] == [0]
    _, found = call(server, CHATS, chat(logprobs=True, top_logprobs=1))
    content = found["choices"][0]["logprobs"]["content"]
    with Stream(server, CHATS, chat(logprobs=True)) as stream:
        parts = [choice["logprobs"]["content"] for event in stream for choice in event["choices"]]
    assert [entry for part in parts for entry in part] == content and len(content) == 6
    joined = bytes([byte for entry in content for byte in entry["bytes"]])
    assert joined.decode(errors="replace") == found["choices"][0]["message"]["content"]


def test_stop_strings(server: Serving, pipeline: Any) -> None:
    """The text ends right before the first one, also in a stream, and also if tokens have more than that."""
    whole = wanted(pipeline, "To be", max_new_tokens=40)
    for begin, end in ((3, 5), (8, 9), (10, 16)):
        stop = whole[begin:end]
        kept = whole[: whole.index(stop)]
        body = completion("To be", max_tokens=40, stop=["never", stop])
        _, found = call(server, COMPLETIONS, body)
        assert [(choice["text"], choice["finish_reason"]) for choice in found["choices"]] == [(kept, "stop")]
        assert found["usage"]["completion_tokens"] < 40
        assert streamed(server, COMPLETIONS, body) == ([kept], ["stop"])
        assert texts(server, COMPLETIONS, {**body, "stop": stop, "include_stop_str_in_output": True}) == [kept + stop]


def test_events(server: Serving) -> None:
    with Stream(server, CHATS, chat(stream_options={"include_usage": True})) as stream:
        first, *middle, end, usage = stream
    assert first["object"] == "chat.completion.chunk" and first["choices"][0]["delta"]["role"] == "assistant"
    assert all("role" not in event["choices"][0]["delta"] for event in [*middle, end])
    assert end["choices"][0]["finish_reason"] == "length" and {event["usage"] for event in middle} <= {None}
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 6
    assert len({event["id"] for event in (first, *middle, end, usage)}) == 1


def test_many_streams(server: Serving, pipeline: Any) -> None:
    """Texts do not depend on those beside them."""
    prompts = [PROMPTS[i % 3][: 1 + i] for i in range(12)]
    with ThreadPoolExecutor(12) as pool:
        calls = [
            pool.submit(streamed, server, COMPLETIONS, completion(prompt, max_tokens=3 + i))
            for i, prompt in enumerate(prompts)
        ]
        found = [one.result()[0][0] for one in calls]
    assert found == [wanted(pipeline, prompt, max_new_tokens=3 + i) for i, prompt in enumerate(prompts)]


def test_forms(server: Serving) -> None:
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    body = chat(response_format=form, max_tokens=60, ignore_eos=False)
    _, found = call(server, CHATS, body)
    assert isinstance(json.loads(found["choices"][0]["message"]["content"]), bool)
    assert found["choices"][0]["finish_reason"] == "stop"
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        forced = {**body, "response_format": None, "tools": [tool], "tool_choice": choice}
        _, found = call(server, CHATS, forced)
        (made,) = found["choices"][0]["message"]["tool_calls"]
        assert found["choices"][0]["finish_reason"] == ("tool_calls" if choice == "required" else "stop")
        assert made["function"]["name"] == "f" and isinstance(json.loads(made["function"]["arguments"]), bool)
        with Stream(server, CHATS, forced) as stream:
            deltas = [event["choices"][0]["delta"].get("tool_calls") for event in stream]
        arguments = [delta[0]["function"]["arguments"] for delta in deltas if delta]
        assert "".join(arguments) == made["function"]["arguments"]


def test_a_call_of_any_function(tmp_path: Path) -> None:
    """Its schema is that of one of them, whose references begin at its own root."""
    pytest.importorskip("llguidance")
    folder = make_folder("llama", tmp_path / "llama" / "1")
    for file in folder.glob("openvino_*tokenizer.*"):
        file.unlink()
    words = folder / "tokenizer.json"
    text = words.read_text()
    for word, sign in zip("ĢģĤĥ", ("{", "}", '\\"', ":")):  # tokens of JSON
        text = text.replace(f'"{word}"', f'"{sign}"')
    words.write_text(text)
    flag = {"type": "object", "properties": {"a": {"$ref": "#/definitions/B"}}, "required": ["a"]}
    named = {"F": {**flag, "additionalProperties": False}, "B": {"type": "boolean"}}
    draft = "http://json-schema.org/draft-07/schema#"
    schemas = {"f": {"$schema": draft, "$ref": "#/definitions/F", "definitions": named}, "g": {"enum": [{}, True]}}
    tools = [{"type": "function", "function": {"name": name, "parameters": of}} for name, of in schemas.items()]
    forced = {"tools": tools, "tool_choice": "required", "temperature": 1.5, "seed": 0, "ignore_eos": False}
    request = chat(max_tokens=100, top_k=0, **forced)
    with serving(tmp_path, engine={"properties": EXACT}) as server:
        found = call(server, CHATS, {**request, "n": 8})[1]["choices"]
        calls = list[Any]()
        for choice in found:
            assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
            (made,) = choice["message"]["tool_calls"]
            calls.append((made["function"]["name"], json.loads(made["function"]["arguments"])))
        assert {name for name, _ in calls} == {"f", "g"}
        assert all(arguments == {} if name == "g" else [*arguments] == ["a"] for name, arguments in calls)
        assert all(isinstance(arguments["a"], bool) for name, arguments in calls if name == "f")
        with Stream(server, CHATS, request) as stream:
            deltas = [event["choices"][0]["delta"] for event in stream]
        (cut,) = call(server, CHATS, {**request, "stop": ":"})[1]["choices"]
        assert cut["finish_reason"] == "stop" and cut["message"]["content"] and "tool_calls" not in cut["message"]
    (made,) = [made["function"] for delta in deltas for made in delta.get("tool_calls", ())]
    assert (made["name"], json.loads(made["arguments"])) == calls[0]


def test_parameters_without_a_type() -> None:
    """They are those of an object, as arguments of calls are."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"minProperties": 1}}}
    forced = parse_chat(chat(tools=[tool], tool_choice="required"))
    assert json.loads(forced.schema or "") == {"type": "object", "minProperties": 1}


def test_a_form_that_no_token_follows(server: Serving, pipeline: Any) -> None:
    """It fails the request, and no text beside it."""
    pytest.importorskip("llguidance")
    with Stream(server, COMPLETIONS, completion("a", max_tokens=60)) as stream:
        first = stream.next()
        status, found = call(server, CHATS, chat(response_format={"type": "json_object"}))
        assert status == 400 and "cannot follow the grammar" in found["error"]["message"]
        parts = [choice["text"] for event in (first, *stream) if event for choice in event["choices"]]
    assert "".join(parts) == wanted(pipeline, "a", max_new_tokens=60)


def test_context(server: Serving) -> None:
    """Texts end with the model's context, of 256 tokens."""
    _, found = call(server, COMPLETIONS, completion([5] * 250, max_tokens=100))
    assert found["usage"]["completion_tokens"] == 6 and found["choices"][0]["finish_reason"] == "length"
    status, found = call(server, COMPLETIONS, completion([5] * 256))
    assert status == 400 and found["error"]["code"] == "context_length_exceeded"


def test_card(folder: Path, emulated: str, server: Serving) -> None:
    with serving(folder, emulated, engine={"properties": EXACT, "max_sequences": 2}) as card:
        for path, body in ((CHATS, chat()), (COMPLETIONS, completion(PROMPTS))):
            assert texts(card, path, body) == texts(server, path, body) == streamed(card, path, body)[0]
