"""Grammars of structured output in the variant of Lark that llguidance reads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ovgpu.errors import Error
from ovgpu.genai.json_schema import closed
from ovgpu.genai.structured_output import (
    EBNF,
    AnyText,
    Concat,
    ConstString,
    Grammar,
    JSONSchema,
    Part,
    QwenXMLParametersFormat,
    Regex,
    Tag,
    TagsWithSeparator,
    TriggeredTags,
    Union,
)

TEXT = "/(.|\\n)*/"
END_OF_PARAMETER = "</parameter>"
BLANKS = "/[ \\n\\t]*/"
IN_REGEX = re.compile(r"\\.|/|\n", re.DOTALL)


def as_lark(grammar: Part) -> str:
    """Return a grammar as Lark. Raises: Error for a faulty one."""
    rules = _Rules()
    return "\n".join([f"start: {rules.expression(grammar)}", *rules.lines])


class _Rules:
    """Rules of a grammar, which parts add."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def expression(self, part: Part, end: str = "") -> str:
        """Return an expression for a part and the text ``end`` behind it, and add the rules that it needs.

        Where any text is allowed, the first ``end`` in it ends the part.
        """
        if isinstance(part, str):
            part = from_json(part)
        if isinstance(part, AnyText):
            return self._text_until(end)
        if isinstance(part, Concat):
            for element in part.elements[:-1]:
                if is_unlimited(element):
                    raise Error(f"only the last part of a Concat can be any text, and {element} is another one")
            *first, last = part.elements
            return f"({' '.join([*map(self.expression, first), self.expression(last, end)])})"
        if isinstance(part, Union):
            return f"({' | '.join(self.expression(element, end) for element in part.elements)})"
        if isinstance(part, TriggeredTags):
            return self._triggered(part, end)
        return f"{self._limited(part)} {json.dumps(end)}" if end else self._limited(part)

    def _limited(self, part: Grammar) -> str:
        """Return an expression for a part that knows where it ends."""
        if isinstance(part, ConstString):
            return json.dumps(part.value)
        if isinstance(part, Regex):
            return "/" + IN_REGEX.sub(_escaped, part.value) + "/"
        if isinstance(part, Tag):
            return f"{json.dumps(part.begin)} {self.expression(part.content, part.end)}"
        if isinstance(part, TagsWithSeparator):
            return self._separated(part)
        if isinstance(part, QwenXMLParametersFormat):
            return self._parameters(_read_json(part.json_schema))
        if isinstance(part, JSONSchema):
            return self._rule(f"%json {closed(part.value)}")
        assert isinstance(part, EBNF)
        return self._rule(f"%lark {{\n{from_ebnf(part.value)}\n}}")

    def _rule(self, body: str, attributes: str = "") -> str:
        """Add a rule, and return its name."""
        name = f"part_{len(self.lines)}"
        self.lines.append(f"{name}{attributes}: {body}")
        return name

    def _text_until(self, end: str) -> str:
        """Return an expression for any text that ends at the first ``end``, or nowhere if that is empty."""
        return self._rule(f"{TEXT} {json.dumps(end)}", "[lazy]") if end else TEXT

    def _triggered(self, part: TriggeredTags, end: str) -> str:
        groups: dict[str, list[str]] = {trigger: [] for trigger in part.triggers}
        for tag in part.tags:
            found = [trigger for trigger in groups if tag.begin.startswith(trigger)]
            if len(found) != 1 or not found[0]:
                raise Error(f"a tag begins with one of the triggers {[*groups]}, and {tag} with {found or 'none'}")
            rest = json.dumps(tag.begin[len(found[0]) :])
            groups[found[0]].append(f"{rest} {self.expression(tag.content, tag.end)}")
        first = self._one_of(part.tags)
        behind = f" {json.dumps(end)}" if end else ""
        if part.at_least_one and part.stop_after_first:
            return first + behind
        calls = [f"{self._text_until(trigger)} ({' | '.join(rests)})" for trigger, rests in groups.items() if rests]
        if part.stop_after_first:
            return f"(({' | '.join(calls)}){behind} | {self._text_until(end)})"
        text = f"({' | '.join(calls)})* {self._text_until(end)}"
        return f"{first} {text}" if part.at_least_one else f"({text})"

    def _separated(self, part: TagsWithSeparator) -> str:
        tag = self._rule(self._one_of(part.tags))
        text = tag if part.stop_after_first else f"{tag} ({json.dumps(part.separator)} {tag})*"
        return f"({text})" if part.at_least_one else f"({text})?"

    def _one_of(self, tags: Sequence[Tag]) -> str:
        if not tags:
            raise Error("there are no tags")
        return f"({' | '.join(map(self.expression, tags))})"

    def _parameters(self, schema: Any) -> str:
        """Return an expression for the properties of an object, as models of Qwen write them."""
        properties = schema.get("properties", {}) if isinstance(schema, Mapping) else None
        if not isinstance(properties, Mapping) or schema.get("type", "object") != "object":
            raise Error(f"QwenXMLParametersFormat needs the JSON schema of an object, not {schema!r}")
        if not properties:
            return f'("<parameter=" /[a-zA-Z_][a-zA-Z0-9_]*/ ">" {self._text_until(END_OF_PARAMETER)} {BLANKS})*'
        found, definitions = [], {name: schema[name] for name in ("$defs", "definitions") if name in schema}
        for name, value in properties.items():
            text = f"{json.dumps(f'<parameter={name}>')} {self._value(value, definitions)} {BLANKS}"
            found.append(text if name in schema.get("required", ()) else f"({text})?")
        return f"({' '.join(found)})"

    def _value(self, schema: Any, definitions: Mapping[str, Any]) -> str:
        """Return an expression for a value and the end of its parameter. Strings have no quotes."""
        end = json.dumps(END_OF_PARAMETER)
        if isinstance(schema, Mapping):
            texts, pattern = schema.get("enum", []), schema.get("pattern", "")
            if not isinstance(texts, list) or not isinstance(pattern, str):
                raise Error(f"the JSON schema {schema!r} has an enum that is no list, or a pattern that is no text")
            texts = [schema["const"]] if "const" in schema else texts
            if texts:
                words = (json.dumps(text if isinstance(text, str) else json.dumps(text)) for text in texts)
                return f"{BLANKS} ({' | '.join(words)}) {BLANKS} {end}"
            if schema.get("type") == "string":
                if pattern:
                    return self.expression(Regex(pattern.removeprefix("^").removesuffix("$")), END_OF_PARAMETER)
                return self._text_until(END_OF_PARAMETER)
            schema = {**schema, **definitions}
        return f"{BLANKS} {self._limited(JSONSchema(json.dumps(schema)))} {BLANKS} {end}"


def is_unlimited(part: Part) -> bool:
    """Return whether a part may go on with any text."""
    if isinstance(part, str):
        part = from_json(part)
    if isinstance(part, Concat):
        return is_unlimited(part.elements[-1])
    if isinstance(part, Union):
        return any(map(is_unlimited, part.elements))
    if isinstance(part, TriggeredTags):
        return not (part.at_least_one and part.stop_after_first)
    return isinstance(part, AnyText)


def from_json(text: str) -> Grammar:
    """Return the grammar of a structural tag of xgrammar, or of the format in it. Raises: Error for a faulty one."""
    data = _read_json(text)
    if isinstance(data, Mapping) and data.get("type") == "structural_tag":
        data = data.get("format")
    return _from_format(data)


def _from_format(data: Any) -> Grammar:
    kind = data.get("type") if isinstance(data, Mapping) else None
    flags = {name: data.get(name, False) for name in ("at_least_one", "stop_after_first")} if kind else {}
    try:
        if kind in _TEXTS:
            make, name = _TEXTS[kind]
            return make(data[name])
        if kind in _SCHEMAS:
            return _SCHEMAS[kind](json.dumps(data["json_schema"]))
        if kind in ("sequence", "or"):
            elements = [_from_format(element) for element in data["elements"]]
            return elements[0] if len(elements) == 1 else (Concat if kind == "sequence" else Union)(elements)
        if kind == "any_text":
            return AnyText()
        if kind == "tag":
            return Tag(data["begin"], _from_format(data["content"]), data["end"])
        if kind == "triggered_tags":
            return TriggeredTags(data["triggers"], [_from_format(tag) for tag in data["tags"]], **flags)  # type: ignore[misc]
        if kind == "tags_with_separator":
            return TagsWithSeparator([_from_format(tag) for tag in data["tags"]], data["separator"], **flags)  # type: ignore[misc]
    except (KeyError, TypeError, ValueError) as e:
        raise Error(f"the structural tag {data!r} cannot be read: {e!r}") from None
    raise Error(f"a structural tag has a type such as const_string, and {data!r} has none that is supported")


_TEXTS: dict[Any, tuple[Callable[[str], Grammar], str]] = {
    "const_string": (ConstString, "value"),
    "grammar": (EBNF, "grammar"),
    "regex": (Regex, "pattern"),
}
_SCHEMAS: dict[Any, Callable[[str], Grammar]] = {
    "json_schema": JSONSchema,
    "qwen_xml_parameter": QwenXMLParametersFormat,
}


def _escaped(match: re.Match[str]) -> str:
    """Return a character, or one behind a backslash, as it stands between the slashes of a regular expression."""
    text = match[0]
    return "\\n" if text.endswith("\n") else "\\/" if text == "/" else text


def _read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        raise Error(f"{text[:200]!r} is no JSON: {e}") from None


def from_ebnf(text: str) -> str:
    """Return a grammar in EBNF as Lark. Raises: Error for a faulty one."""
    from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

    try:
        lark: str = gbnf_to_lark(text)
    except GbnfToLarkError as e:
        raise Error(f"the grammar cannot be read: {e}") from None
    return lark
