"""Parsers of generated texts: the reasoning and the calls of tools in them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from ovgpu.errors import Error

Message = dict[str, Any]
"""Parts of a text: ``content``, and what parsers add, such as ``reasoning_content`` and ``tool_calls``."""


class Parser:
    """Base class of parsers of whole texts. Subclasses override `parse`."""

    def parse(self, message: Message) -> None:
        """Add parts to a message, whose ``content`` is the text, in place."""
        raise Error(f"{type(self).__name__} has no method parse")


class ReasoningParser(Parser):
    """Parser of the reasoning between two tags, which becomes ``reasoning_content``.

    Without ``expect_open_tag``, the text begins with the reasoning. Without ``keep_original_content``, the reasoning
    and its tags are removed from ``content``.
    """

    def __init__(
        self,
        expect_open_tag: bool = True,
        keep_original_content: bool = True,
        open_tag: str = "<think>",
        close_tag: str = "</think>",
    ) -> None:
        self._expects, self._keeps = expect_open_tag, keep_original_content
        self._open, self._close = open_tag, close_tag

    def parse(self, message: Message) -> None:
        """Add the reasoning, "" if there is none. Raises: RuntimeError for a message without ``content``."""
        content = content_of(message)
        before, reasoning, after = content, "", ""
        end = content.find(self._close)
        if self._expects:
            begin = content.find(self._open)
            if 0 <= begin < end:
                before, reasoning = content[:begin], content[begin + len(self._open) : end]
                after = content[end + len(self._close) :]
        elif end >= 0:
            before, reasoning, after = "", content[:end], content[end + len(self._close) :]
        else:
            before, reasoning = "", content
        if not self._keeps:
            message["content"] = before + after
        message["reasoning_content"] = reasoning


class DeepSeekR1ReasoningParser(ReasoningParser):
    """Parser of texts of DeepSeek-R1, which begin with the reasoning."""

    def __init__(self) -> None:
        super().__init__(expect_open_tag=False)


class Phi4ReasoningParser(ReasoningParser):
    """Parser of texts of Phi-4-reasoning."""

    def __init__(self) -> None:
        super().__init__()


class Llama3JsonToolParser(Parser):
    """Parser of a call of a tool in JSON, which becomes the only element of ``tool_calls``."""

    def parse(self, message: Message) -> None:
        """Add the call, from the first brace to the last one. Raises: RuntimeError if that is no JSON."""
        content = content_of(message)
        begin, end = content.find("{"), content.rfind("}")
        if 0 <= begin < end:
            message["tool_calls"] = [read_json(content[begin : end + 1])]


class Llama3PythonicToolParser(Parser):
    """Parser of a call of a tool like ``[name(key="value")]``, which becomes the only element of ``tool_calls``."""

    _CALL = re.compile(r"\[([^\n\r]*?)\]")
    _ARGUMENT = re.compile(r'(\w+)\s*=\s*"([^"]*)"', re.ASCII)

    def parse(self, message: Message) -> None:
        """Add the call, with its arguments in double quotes."""
        found = self._CALL.search(content_of(message))
        if found:
            name, bracket, rest = found[1].partition("(")
            arguments = dict(self._ARGUMENT.findall((rest if bracket else name)[:-1]))
            message["tool_calls"] = [{"arguments": arguments, "name": name}]


class VLLMParserWrapper(Parser):
    """Parser that calls a parser of vLLM: its methods extract_tool_calls or extract_reasoning, or both.

    Raises: RuntimeError for an object that has neither.
    """

    def __init__(self, py_parser: Any) -> None:
        methods: list[tuple[str, Callable[[Any], Message]]] = [
            ("extract_tool_calls", _calls),
            ("extract_reasoning", _reasoning),
        ]
        self._methods = [(getattr(py_parser, name), read) for name, read in methods if hasattr(py_parser, name)]
        if not self._methods:
            raise Error(f"{py_parser!r} has neither a method extract_tool_calls nor extract_reasoning")

    def parse(self, message: Message) -> None:
        """Add what the methods find, in place of earlier parts. Raises: RuntimeError for results of another form."""
        content, found = content_of(message), Message()
        for method, read in self._methods:
            concatenate(found, read(method(content, None)))
        message.update(found)


def _calls(result: Any) -> Message:
    dump = getattr(result, "model_dump_json", None) or getattr(result, "json", None)
    if dump is None:
        raise Error("the result of extract_tool_calls has no method model_dump_json")
    message: Message = read_json(dump())
    return message


def _reasoning(result: Any) -> Message:
    if not isinstance(result, tuple) or len(result) != 2 or not all(isinstance(part, str) for part in result):
        raise Error("the result of extract_reasoning is no tuple of reasoning and content")
    return {"reasoning": result[0], "content": result[1]}


def content_of(message: Message) -> str:
    """Return the text of a message. Raises: Error if it has none."""
    content = message.get("content")
    if not isinstance(content, str):
        raise Error(f"a message has its text as content, not {content!r}")
    return content


def read_json(text: str) -> Any:
    """Return the value of JSON. Raises: Error for other texts."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as e:
        raise Error(f"the text has no JSON: {e}") from None


def concatenate(message: Message, other: Message) -> None:
    """Add the parts of another message in place: texts are appended, and objects joined.

    Raises: Error for parts of other types that both have.
    """
    for key, value in other.items():
        known = message.get(key)
        if key not in message:
            message[key] = value
        elif isinstance(known, dict) and isinstance(value, dict):
            concatenate(known, value)
        elif isinstance(known, str) and isinstance(value, str):
            message[key] = known + value
        else:
            raise Error(f"{key} of a message is a text or an object that grows, not {known!r} and then {value!r}")


def parse_texts(parsers: list[Parser], texts: list[str], messages: list[Message]) -> list[Message]:
    """Return the messages of texts after all parsers. ``messages`` are those that a streamer already has."""

    if not parsers:
        return messages
    messages = messages or [{} for _ in texts]
    for message, text in zip(messages, texts, strict=True):
        message.setdefault("content", text)
        for parser in parsers:
            parser.parse(message)
    return messages
