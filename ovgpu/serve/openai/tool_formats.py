"""Formats of calls of tools in generated texts. Their names are those of OpenVINO Model Server and vLLM."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Functions = Mapping[str, Mapping[str, Any]]
"""JSON schemas of the parameters of functions by name."""
Found = Iterator[tuple[str, Any]]
"""Names of functions, and their arguments."""


@dataclass(frozen=True)
class ToolCall:
    """Call of a tool. ``arguments`` is the JSON of an object."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ToolFormat:
    """Format of calls, which begin with one of ``begins``.

    With an ``end``, calls may be anywhere in a text, and each ends with it. Otherwise a text has either calls or an
    answer: if it begins like a call, all of it is calls. ``read`` yields the calls between begin and end, and raises
    ValueError or another exception of `FAULTS` for a text that has none.
    """

    begins: tuple[str, ...]
    end: str
    read: Callable[[str, Functions], Found]

    def calls(self, text: str, functions: Functions) -> list[ToolCall]:
        """Return the calls in a text from begin to end, an empty list if it cannot be read as calls of functions."""
        inner = text.strip().removesuffix(self.end) if self.end else text.strip()
        found = list[ToolCall]()
        try:
            for name, arguments in self.read(inner, functions):
                if name not in functions or not isinstance(arguments, dict):
                    return []
                written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
                written.encode()  # halves of surrogate pairs cannot be sent
                found.append(ToolCall(name, written))
        except FAULTS:
            return []
        return found


FAULTS = (ValueError, KeyError, TypeError, AttributeError, SyntaxError, RecursionError, MemoryError)


def _hermes(text: str, functions: Functions) -> Found:
    yield _call(json.loads(text.removeprefix("<tool_call>")))


def _llama(text: str, functions: Functions) -> Found:
    """Read objects with a semicolon between them."""
    rest, decoder = text.removeprefix("<|python_tag|>").strip(), json.JSONDecoder()
    while rest:
        value, end = decoder.raw_decode(rest)
        if "parameters" not in value and "arguments" not in value:
            raise ValueError("an object that is no call")
        yield _call(value)
        rest = rest[end:].strip().removeprefix(";").strip()


def _list(text: str, functions: Functions) -> Found:
    """Read a list of objects, which a word may introduce."""
    for value in json.loads(text[text.index("[{") :]):
        yield _call(value)


def _pythonic(text: str, functions: Functions) -> Found:
    """Read a list of calls in Python's syntax, with literals as named arguments."""
    calls = ast.parse(text, mode="eval").body
    if not isinstance(calls, ast.List):
        raise ValueError("no list")
    for call in calls.elts:
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError("no call with named arguments")
        if None in (words := {word.arg: ast.literal_eval(word.value) for word in call.keywords}):
            raise ValueError("arguments of a dict")
        yield ast.unparse(call.func), words


def _qwen_coder(text: str, functions: Functions) -> Found:
    """Read tags of a function and its parameters. A value is JSON, unless its parameter is a string."""
    found = re.fullmatch(r"<tool_call>\s*<function=([^>\n]+)>(.*)</function>\s*", text, re.DOTALL)
    if found is None:
        raise ValueError("no function")
    name = found[1].strip()
    types, arguments = functions[name].get("properties", {}), dict[str, Any]()
    for part in found[2].split("</parameter>")[:-1]:  # one expression for all would look for each end up to the last
        if begun := re.search(r"<parameter=([^<>\n]+)>\n?", part):
            parameter, value = begun[1].strip(), part[begun.end() :].removesuffix("\n")
            arguments[parameter] = _value(value, types.get(parameter))
    yield name, arguments


def _call(value: Any) -> tuple[str, dict[str, Any]]:
    arguments = value.get("arguments", value.get("parameters", {})) if isinstance(value, dict) else None
    if arguments is None:
        raise ValueError("no call")
    return value["name"], json.loads(arguments) if isinstance(arguments, str) else arguments


def _value(text: str, schema: Any) -> Any:
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind == "string" or (isinstance(kind, list) and "string" in kind and text != "null"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


FORMATS = {
    "hermes3": ToolFormat(("<tool_call>",), "</tool_call>", _hermes),
    "llama3": ToolFormat(("<|python_tag|>", "{"), "", _llama),
    "mistral": ToolFormat(("[TOOL_CALLS]", "[{"), "", _list),
    "phi4": ToolFormat(("functools[",), "", _list),
    "pythonic": ToolFormat(("[",), "", _pythonic),
    "qwen3coder": ToolFormat(("<tool_call>",), "</tool_call>", _qwen_coder),
}

SIGNS = (
    ("<function=", "qwen3coder"),
    ("<tool_call>", "hermes3"),
    ("functools", "phi4"),
    ("[TOOL_CALLS]", "mistral"),
    ("[func_name1(", "pythonic"),
    ("<|python_tag|>", "llama3"),
    ('"parameters": dictionary of argument name', "llama3"),
)
"""Parts of chat templates, and the format of calls that they ask for. The first one that is there counts."""


FORCED = ToolFormat(("{",), "", lambda text, functions: iter([_call(json.loads(text))]))
"""Format of one call, whose text follows `schema_of_call`."""


def schema_of_call(functions: Functions) -> str:
    """Return the JSON schema of a call of one of some functions."""
    calls, definitions = list[Any](), dict[str, Any]()
    for number, (name, parameters) in enumerate(functions.items()):
        root = f"urn:ovgpu:{number}"  # of its references, unless $schema names a draft in which $ref hides $id
        properties = {"name": {"const": name}, "arguments": {"$ref": root, "type": "object"}}
        calls.append({"type": "object", "properties": properties, "required": [*properties]})
        definitions[str(number)] = {key: x for key, x in parameters.items() if key != "$schema"} | {"$id": root}
    return json.dumps({"anyOf": calls, "$defs": definitions})


def format_of(template: str) -> ToolFormat | None:
    """Return the format that a chat template asks for, None if it is not known."""
    return next((FORMATS[name] for sign, name in SIGNS if sign in template), None)
