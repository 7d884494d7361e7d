"""Class StructuredOutputConfig: the form that a generated text must have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from ovgpu.errors import Error
from ovgpu.genai.absent import absent
from ovgpu.genai.json_schema import closed

Part = Any
"""A `Grammar`, or a str, which stands for itself."""


class Grammar:
    """Form of a text, or of a part of it. ``a + b`` is a followed by b, ``a | b`` one of both."""

    def __add__(self, other: Part) -> Concat:
        return Concat(*_parts(Concat, self), *_parts(Concat, other))

    def __or__(self, other: Part) -> Union:
        return Union(*_parts(Union, self), *_parts(Union, other))


@dataclass
class _Text(Grammar):
    value: str

    def __post_init__(self) -> None:
        if not isinstance(self.value, str):
            raise TypeError(f"{type(self).__name__} needs a str, not {self.value!r}")

    def __repr__(self) -> str:
        return f'{type(self).__name__}("{self.value}")'


class ConstString(_Text):
    """This text."""


class Regex(_Text):
    """Text that a regular expression describes."""


class JSONSchema(_Text):
    """JSON that a JSON schema describes."""


class EBNF(_Text):
    """Text that a grammar in EBNF describes, whose first rule is ``root``."""


class AnyText(Grammar):
    """Any text."""

    def __repr__(self) -> str:
        return "AnyText()"


class _Parts(Grammar):
    def __init__(self, *args: Any) -> None:
        elements = list(args[0]) if len(args) == 1 and isinstance(args[0], Iterable) else list(args)
        if len(elements) < 2:
            raise ValueError(f"{type(self).__name__} needs at least two elements")
        for element in elements:
            _check(element)
        self.elements: list[Part] = elements

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(str, self.elements))})"


class Concat(_Parts):
    """Elements that follow each other."""


class Union(_Parts):
    """One of the elements."""


@dataclass
class Tag(Grammar):
    """Content between two texts."""

    begin: str
    content: Part
    end: str

    def __post_init__(self) -> None:
        _check(self.content)

    def __repr__(self) -> str:
        return f'Tag(begin="{self.begin}", content={self.content}, end="{self.end}")'


def _parts(kind: type[_Parts], part: Part) -> list[Part]:
    return list(part.elements) if isinstance(part, kind) else [part]


def _check(part: Part) -> None:
    if not isinstance(part, (Grammar, str)):
        raise TypeError(f"an element is a grammar or a str, not {part!r}")


IN_REGEX = re.compile(r"\\.|/|\n", re.DOTALL)
FIELDS = ("json_schema", "regex", "grammar", "structural_tags_config", "compound_grammar")


class StructuredOutputConfig:
    """Form of a generated text.

    Exactly one field is set: ``json_schema`` (a JSON schema as str), ``regex``, ``grammar`` (EBNF), or
    ``compound_grammar``, which is made of the classes here. ``structural_tags_config`` is another name of the last one.

    The package llguidance restricts the tokens. Raises: RuntimeError if not exactly one field is set, for a value of
    another type, such as a StructuralTagsConfig, and for an unknown field.
    """

    AnyText: ClassVar = AnyText
    Concat: ClassVar = Concat
    ConstString: ClassVar = ConstString
    EBNF: ClassVar = EBNF
    JSONSchema: ClassVar = JSONSchema
    Regex: ClassVar = Regex
    Tag: ClassVar = Tag
    Union: ClassVar = Union
    QwenXMLParametersFormat: ClassVar = absent("QwenXMLParametersFormat", "tags of Qwen are not supported")
    TagsWithSeparator: ClassVar = absent("TagsWithSeparator", "lists of tags are not supported")
    TriggeredTags: ClassVar = absent("TriggeredTags", "triggers of tags are not supported")

    def __init__(self, **kwargs: Any) -> None:
        self.json_schema: str | None = None
        self.regex: str | None = None
        self.grammar: str | None = None
        self.structural_tags_config: Grammar | None = None
        self.compound_grammar: Grammar | None = None
        for name, value in kwargs.items():
            if name not in FIELDS:
                raise Error(f"StructuredOutputConfig has no field {name}, only {', '.join(FIELDS)}")
            setattr(self, name, value)
        if kwargs:
            self.validate()

    def validate(self) -> None:
        """Raise RuntimeError unless exactly one field is set, to a value of its type."""
        given = [name for name in FIELDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise Error(f"exactly one field of StructuredOutputConfig must be set, not {', '.join(given) or 'none'}")
        kind = Grammar if given[0] in ("compound_grammar", "structural_tags_config") else str
        if not isinstance(getattr(self, given[0]), kind):
            raise Error(f"{given[0]} must be a {kind.__name__}, not {getattr(self, given[0])!r}")

    def __repr__(self) -> str:
        shown = ((name, getattr(self, name)) for name in FIELDS)
        return f"StructuredOutputConfig({', '.join(f'{name}={value!r}' for name, value in shown)})"


def as_lark(grammar: Grammar) -> str:
    """Return a grammar in the variant of Lark that llguidance reads."""
    rules: list[str] = []
    rules.insert(0, f"start: {_lark(grammar, rules)}")
    return "\n".join(rules)


def _lark(part: Part, rules: list[str]) -> str:
    """Return an expression for a part, and add the rules that it needs."""
    if isinstance(part, (str, ConstString)):
        return json.dumps(part if isinstance(part, str) else part.value)
    if isinstance(part, Regex):
        return "/" + IN_REGEX.sub(_escaped, part.value) + "/"
    if isinstance(part, AnyText):
        return "/(.|\\n)*/"
    if isinstance(part, Tag):
        return " ".join((json.dumps(part.begin), _lark(part.content, rules), json.dumps(part.end)))
    if isinstance(part, _Parts):
        separator = " " if isinstance(part, Concat) else " | "
        return f"({separator.join(_lark(element, rules) for element in part.elements)})"
    assert isinstance(part, (JSONSchema, EBNF))
    name = f"part_{len(rules)}"
    rules.append("")
    body = f"%json {closed(part.value)}" if isinstance(part, JSONSchema) else f"%lark {{\n{from_ebnf(part.value)}\n}}"
    rules[-1] = f"{name}: {body}"
    return name


def _escaped(match: re.Match[str]) -> str:
    """Return a character, or one behind a backslash, as it stands between the slashes of a regular expression."""
    text = match[0]
    return "\\n" if text.endswith("\n") else "\\/" if text == "/" else text


def from_ebnf(text: str) -> str:
    """Return a grammar in EBNF as Lark. Raises: Error for a faulty one."""
    from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

    try:
        lark: str = gbnf_to_lark(text)
    except GbnfToLarkError as e:
        raise Error(f"the grammar cannot be read: {e}") from None
    return lark
