"""Reasoning and calls of tools in the texts of chats: formats, pieces, and texts that only look like calls."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ovgpu.serve.openai import choices
from ovgpu.serve.openai.message_parser import MessageParser, Part
from ovgpu.serve.openai.tool_formats import FORMATS, ToolCall, format_of
from tests.genai.generation_cases import make_folder
from tests.harness.servers.serving import Serving, serving
from tests.serve.openai.client import CHATS, EXACT, Stream, call, chat

FUNCTIONS: dict[str, Any] = {
    "f": {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": ["integer", "null"]}, "b": True}},
    "g": {},
}
ARGUMENTS = {"a": '2 "</x>" ä', "n": 3}

TEXTS: list[tuple[str, str, str, list[tuple[str, Any]]]] = [
    (
        "hermes3",
        'See:\n<tool_call>\n{"name": "f", "arguments": {"a": "2 \\"</x>\\" ä", "n": 3}}\n</tool_call>\n'
        '<tool_call>{"name": "g", "arguments": {}}</tool_call>\n',
        "See:\n",
        [("f", ARGUMENTS), ("g", {})],
    ),
    ("hermes3", '<tool_call>{"name": "g"}', "", [("g", {})]),
    ("hermes3", '<tool_call>{"name": "f", "arguments": "{\\"n\\": null}"}</tool_call> ok', "ok", [("f", {"n": None})]),
    ("llama3", '{"name": "f", "parameters": {"n": 3}}', "", [("f", {"n": 3})]),
    (
        "llama3",
        '<|python_tag|>{"name": "f", "parameters": {"n": 3}}; {"name": "g", "parameters": {}}',
        "",
        [("f", {"n": 3}), ("g", {})],
    ),
    (
        "mistral",
        '[{"name": "f", "arguments": {"n": 3}}, {"name": "g", "arguments": {}}]',
        "",
        [("f", {"n": 3}), ("g", {})],
    ),
    ("mistral", '[TOOL_CALLS] [{"name": "g", "arguments": {}}]', "", [("g", {})]),
    ("phi4", 'functools[{"name": "f", "arguments": {"n": 3}}]', "", [("f", {"n": 3})]),
    ("pythonic", "[f(a='2 \"</x>\" ä', n=3), g()]", "", [("f", ARGUMENTS), ("g", {})]),
    ("pythonic", " [f(b=[True, {'x': None}, -1.5])]", "", [("f", {"b": [True, {"x": None}, -1.5]})]),
    (
        "qwen3coder",
        "Well.\n<tool_call>\n<function=f>\n<parameter=a>\n12\n</parameter>\n<parameter=n>\n12\n</parameter>\n"
        "<parameter=b>\n[1, 2]\n</parameter>\n<parameter=c>\ntext\n</parameter>\n</function>\n</tool_call>",
        "Well.\n",
        [("f", {"a": "12", "n": 12, "b": [1, 2], "c": "text"})],
    ),
    ("qwen3coder", "<tool_call>\n<function=g>\n</function>\n</tool_call>", "", [("g", {})]),
]
"""Format, text, and the content and calls in it."""

NO_CALLS = [
    ("hermes3", "no call, <tool_c"),
    ("hermes3", "<tool_call>{</tool_call> or <tool_call>"),
    ("hermes3", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
    ("hermes3", '<tool_call>{"name": "f", "arguments": 3}</tool_call>'),
    ("hermes3", '<tool_call>{"name": "f", "arguments": {"n": NaN}}</tool_call>'),
    ("hermes3", '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>'),
    ("hermes3", '<tool_call>{"name": ["f"], "arguments": {}}</tool_call>'),
    ("hermes3", "<tool_call>" + "[" * 5000 + "</tool_call>"),
    ("llama3", '{"name": "f"}'),
    ("llama3", '{"name": "f", "parameters": {}} and more'),
    ("llama3", '["parameters"]'),
    ("llama3", '"parameters"'),
    ("llama3", "{"),
    ("mistral", "[1, 2]"),
    ("mistral", "[{"),
    ("phi4", "functools are tools"),
    ("pythonic", "[1, 2]"),
    ("pythonic", "[f(1)]"),
    ("pythonic", "[f(**{'a': 1})]"),
    ("pythonic", "[f(a=b)]"),
    ("pythonic", "[f(a=1j)]"),
    ("pythonic", "[" * 5000),
    ("pythonic", "[f(a=" + "-" * 5000 + "1)]"),
    ("qwen3coder", "<tool_call><function=f></tool_call>"),
    ("qwen3coder", "<tool_call><function=unknown></function></tool_call>"),
]


def parsed(parser: MessageParser, pieces: Sequence[str]) -> Part:
    """Return the parts of a text that comes in pieces."""
    found = Part()
    for part in (*map(parser.add, pieces), parser.end()):
        found.text += part.text
        found.reasoning += part.reasoning
        found.calls += part.calls
    return found


def splits(text: str) -> list[list[str]]:
    """Return a text as a whole, character by character, and in two and in many pieces."""
    rng = random.Random(len(text))
    cuts = [sorted(rng.sample(range(len(text) + 1), min(5, len(text)))) for _ in range(10)]
    many = [[text[i:j] for i, j in zip((0, *cut), (*cut, len(text)))] for cut in cuts]
    return [[text], [*text], *([text[:cut], text[cut:]] for cut in range(0, len(text), 1 + len(text) // 50)), *many]


@pytest.mark.parametrize(("name", "text", "content", "calls"), TEXTS)
def test_calls(name: str, text: str, content: str, calls: list[tuple[str, Any]]) -> None:
    for pieces in splits(text):
        found = parsed(MessageParser(FORMATS[name], FUNCTIONS, False), pieces)
        assert (found.text, found.reasoning) == (content, "")
        assert [(call.name, json.loads(call.arguments)) for call in found.calls] == calls
    assert parsed(MessageParser(FORMATS[name], {}, False), [text]) == parsed(MessageParser(None, {}, False), [text])
    assert parsed(MessageParser(None, FUNCTIONS, False), [text]) == Part(text)


@pytest.mark.parametrize(("name", "text"), NO_CALLS, ids=[f"{name}-{text[:40]}" for name, text in NO_CALLS])
def test_texts_that_are_no_calls(name: str, text: str) -> None:
    for pieces in splits(text)[:20]:
        assert parsed(MessageParser(FORMATS[name], FUNCTIONS, False), pieces) == Part(text)


def test_parameters_without_an_end() -> None:
    """They are left out. Each is read once, as the text may be long."""
    text = "<tool_call><function=f><parameter=a>\n\n1\n\n</parameter>" + "<parameter=b>" * 30_000
    (made,) = FORMATS["qwen3coder"].calls(text + "</function></tool_call>", FUNCTIONS)
    assert json.loads(made.arguments) == {"a": "\n1\n"}


def test_calls_beyond_the_first_are_left_out() -> None:
    text = 'a<tool_call>{"name": "f"}</tool_call>b<tool_call>{"name": "g"}</tool_call>c'
    for pieces in splits(text):
        assert parsed(MessageParser(FORMATS["hermes3"], FUNCTIONS, False, most=1), pieces) == Part(
            "abc", calls=[ToolCall("f", "{}")]
        )
    text = '{"name": "g", "parameters": {}}; {"name": "f", "parameters": {}}'
    assert parsed(MessageParser(FORMATS["llama3"], FUNCTIONS, False, most=1), [text]) == Part(
        calls=[ToolCall("g", "{}")]
    )


def test_text_comes_early() -> None:
    """Only what may become a tag waits."""
    for tools in FORMATS.values():
        parser = MessageParser(tools, FUNCTIONS, True)
        assert [parser.add(piece).text for piece in ("a <", "b", " c")] in (["a <", "b", " c"], ["a ", "<b", " c"])
    parser = MessageParser(FORMATS["hermes3"], FUNCTIONS, True)
    parts = [parser.add(piece) for piece in ("<thi", "nk>\n", "why</", "then</think>", "\n\n", "so<tool", "x")]
    assert [part.reasoning for part in parts] == ["", "", "why", "</then", "", "", ""]
    assert [part.text for part in parts] == ["", "", "", "", "", "so", "<toolx"]


@pytest.mark.parametrize(
    ("text", "begun", "reasoning", "content"),
    [
        ("<think>\nwhy\n</think>\n\nso", False, "why\n", "so"),
        ("\n<think></think>so", False, "", "so"),
        ("why</think>so", True, "why", "so"),
        ("so </think> <think>", False, "", "so </think> <think>"),
        ("<think>why", False, "why", ""),
        ("<think", False, "", "<think"),
        ("why</thin", True, "why</thin", ""),
        ("", False, "", ""),
    ],
)
def test_reasoning(text: str, begun: bool, reasoning: str, content: str) -> None:
    for pieces in splits(text):
        assert parsed(MessageParser(None, {}, True, begun), pieces) == Part(content, reasoning)
        made = parsed(
            MessageParser(FORMATS["llama3"], FUNCTIONS, True, begun), [*pieces, '{"name": "g", "arguments": {}}']
        )
        if content == "" and "</think>" in text:
            assert [call.name for call in made.calls] == ["g"]


def test_reasoning_before_a_call() -> None:
    parser = MessageParser(FORMATS["llama3"], FUNCTIONS, True)
    found = parsed(parser, ['<think>why</think>\n{"name": "g", ', '"arguments": {}}'])
    assert (found.text, found.reasoning, [call.name for call in found.calls]) == ("", "why", ["g"])


def test_formats_of_templates() -> None:
    for sign, name in (
        ('<tool_call>\\n{"name": <function-name>', "hermes3"),
        ("<tool_call>\\n<function=example_function_name>", "qwen3coder"),
        ("{{ '[TOOL_CALLS]' }}", "mistral"),
        ("{{ 'functools' }}", "phi4"),
        ("[func_name1(params_name1=params_value1)]", "pythonic"),
        ("{{ '<|python_tag|>' }}", "llama3"),
    ):
        assert format_of(f"{{% if tools %}}{sign}{{% endif %}}") is FORMATS[name]
    assert format_of("{{ messages }}") is None


# ---- chats

SCRIPT = '<think>\nhm\n</think>\n\nWell.\n<tool_call>{"name": "f", "arguments": {"a": "x"}}</tool_call>'
TOOLS = [{"type": "function", "function": {"name": name, "parameters": FUNCTIONS[name]}} for name in FUNCTIONS]


class Scripted:
    """Pieces of a script, three characters for each token, in the place of those of the tokens."""

    script = SCRIPT

    def __init__(self, tokenizer: Any) -> None:
        self._place = 0

    def add(self, tokens: Sequence[int]) -> str:
        begin, self._place = self._place, self._place + 3 * len(tokens)
        return self.script[begin : self._place]

    def end(self) -> str:
        return self.script[self._place :]


def body(**fields: Any) -> dict[str, Any]:
    """Return the request of a chat with tools, whose text has the end of the script."""
    tokens = len(Scripted.script) // 3 + 1
    return chat(model="talks", tools=TOOLS, max_tokens=tokens, **fields)


def test_chats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder("llama", tmp_path / "talks" / "1")
    settings = tmp_path / "talks" / "ovgpu.toml"
    settings.write_text('pipeline = { tool_parser = "hermes3", reasoning_parser = "qwen3" }')
    monkeypatch.setattr(choices, "Pieces", Scripted)
    monkeypatch.setitem(choices.REASONS, choices.GenerationFinishReason.LENGTH, "stop")
    with serving(tmp_path, engine={"properties": EXACT}, poll_seconds=0.0) as server:
        _, found = call(server, CHATS, body(n=2))
        for choice in found["choices"]:
            message = choice["message"]
            assert choice["finish_reason"] == "tool_calls"
            assert message["content"] == "Well.\n" and message["reasoning_content"] == "hm\n"
            (made,) = message["tool_calls"]
            assert made["type"] == "function" and made["id"].startswith("call_")
            assert made["function"] == {"name": "f", "arguments": '{"a": "x"}'}
        deltas, reason = _deltas(server, body())
        assert "".join([delta.get("content") or "" for delta in deltas]) == "Well.\n" and reason == "tool_calls"
        assert "".join([delta.get("reasoning_content", "") for delta in deltas]) == "hm\n"
        (made,) = [made for delta in deltas for made in delta.get("tool_calls", ())]
        assert made["index"] == 0 and made["function"] == {"name": "f", "arguments": '{"a": "x"}'}
        monkeypatch.setattr(Scripted, "script", SCRIPT + '\n<tool_call>{"name": "g"}</tool_call>')
        deltas, _ = _deltas(server, body())
        made = [made for delta in deltas for made in delta.get("tool_calls", ())]
        assert [(one["index"], one["function"]["name"]) for one in made] == [(0, "f"), (1, "g")]
        assert made[0]["id"] != made[1]["id"]
        (message,) = [
            choice["message"] for choice in call(server, CHATS, body(parallel_tool_calls=False))[1]["choices"]
        ]
        assert [one["function"]["name"] for one in message["tool_calls"]] == ["f"]
        for other in (body(tool_choice="none"), {**body(), "tools": None}):
            _, found = call(server, CHATS, other)
            message = found["choices"][0]["message"]
            assert "tool_calls" not in message and message["content"].count("<tool_call>") == 2
            assert found["choices"][0]["finish_reason"] == "stop" and message["reasoning_content"] == "hm\n"
        settings.write_text('pipeline = { tool_parser = "none" }')
        call(server, "/v1/config/reload", {})
        assert call(server, CHATS, body())[1]["choices"][0]["message"]["content"] == Scripted.script
        for text, reason in (
            ('pipeline = { tool_parser = "llama9" }', "tool_parser is 'llama9', not one of hermes3, "),
            ("pipeline = { reasoning_parser = 3 }", "reasoning_parser is 3, not one of qwen3 and none"),
            ("pipeline = { parser = 3 }", "pipeline has no setting parser, only tool_parser, reasoning_parser"),
        ):
            settings.write_text(text)
            status, found = call(server, "/v2/repository/models/talks/load", {})
            assert status == 400 and reason in found["error"], found


def _deltas(server: Serving, request: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    with Stream(server, CHATS, request) as stream:
        found = [event["choices"][0] for event in stream]
    return [choice["delta"] for choice in found], found[-1]["finish_reason"]
