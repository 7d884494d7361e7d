"""Class StructuredOutputConfig: the form that a generated text must have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ovgpu.errors import Error

Part = Any
"""A `Grammar`, or a str with the JSON of one, see `lark.from_json`."""


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
        _check_text(self, self.value)

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
    """Any text. In a `Tag`, it ends where the end of that occurs first."""

    def __repr__(self) -> str:
        return "AnyText()"


@dataclass
class QwenXMLParametersFormat(Grammar):
    """Parameters of a function, as models of Qwen write them: ``<parameter=NAME>VALUE</parameter>``.

    ``json_schema`` describes an object, whose properties are the parameters. Strings have no quotes.
    """

    json_schema: str

    def __post_init__(self) -> None:
        _check_text(self, self.json_schema)

    def __repr__(self) -> str:
        return f"QwenXMLParametersFormat(json_schema={self.json_schema})"


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
        _check_text(self, self.begin)
        _check(self.content)
        _check_text(self, self.end)

    def __repr__(self) -> str:
        return f'Tag(begin="{self.begin}", content={self.content}, end="{self.end}")'


@dataclass
class TriggeredTags(Grammar):
    """Any text with tags in it: after one of the texts ``triggers``, it goes on with a tag that begins so.

    With ``at_least_one``, it begins with a tag. With ``stop_after_first``, it ends after the first tag.
    """

    triggers: Sequence[str]
    tags: Sequence[Tag]
    at_least_one: bool = False
    stop_after_first: bool = False

    def __post_init__(self) -> None:
        _check_list(self, "triggers", self.triggers, str)
        _check_list(self, "tags", self.tags, Tag)

    def __repr__(self) -> str:
        triggers = ", ".join(f'"{trigger}"' for trigger in self.triggers)
        return (
            f"TriggeredTags(triggers=[{triggers}], tags=[{', '.join(map(repr, self.tags))}], "
            f"at_least_one={self.at_least_one}, stop_after_first={self.stop_after_first})"
        )


@dataclass
class TagsWithSeparator(Grammar):
    """Tags with a text between them, none or more, or with ``at_least_one`` one or more.

    With ``stop_after_first``, there is at most one.
    """

    tags: Sequence[Tag]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False

    def __post_init__(self) -> None:
        _check_list(self, "tags", self.tags, Tag)
        _check_text(self, self.separator)

    def __repr__(self) -> str:
        return (
            f'TagsWithSeparator(separator="{self.separator}", tags=[{", ".join(map(repr, self.tags))}], '
            f"at_least_one={str(self.at_least_one).lower()}, stop_after_first={str(self.stop_after_first).lower()})"
        )


@dataclass(kw_only=True)
class StructuralTagItem:
    """JSON that the JSON schema ``schema`` describes, between two texts."""

    begin: str = ""
    schema: str = ""
    end: str = ""

    def __post_init__(self) -> None:
        for text in (self.begin, self.schema, self.end):
            _check_text(self, text)


@dataclass(kw_only=True)
class StructuralTagsConfig:
    """Any text with tags in it, like `TriggeredTags`."""

    structural_tags: list[StructuralTagItem] = field(default_factory=list)
    triggers: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        _check_list(self, "structural_tags", self.structural_tags, StructuralTagItem)
        _check_list(self, "triggers", self.triggers, str)

    def as_grammar(self) -> TriggeredTags:
        """Return the grammar of the text."""
        tags = [Tag(item.begin, JSONSchema(item.schema), item.end) for item in self.structural_tags]
        return TriggeredTags(self.triggers, tags)


def _parts(kind: type[_Parts], part: Part) -> list[Part]:
    return list(part.elements) if isinstance(part, kind) else [part]


def _check(part: Part) -> None:
    if not isinstance(part, (Grammar, str)):
        raise TypeError(f"an element is a grammar or a str, not {part!r}")


def _check_text(part: Any, value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{type(part).__name__} needs a str, not {value!r}")


def _check_list(part: Any, name: str, values: Any, kind: type) -> None:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} of {type(part).__name__} is a list, not {values!r}")
    for value in values:
        if not isinstance(value, kind):
            raise TypeError(f"{name} of {type(part).__name__} has {value!r}, which is no {kind.__name__}")


FIELDS = ("json_schema", "regex", "grammar", "structural_tags_config", "compound_grammar")


class StructuredOutputConfig:
    """Form of a generated text.

    Exactly one field is set: ``json_schema`` (a JSON schema as str), ``regex``, ``grammar`` (EBNF), or
    ``structural_tags_config``, which is made of the classes here, a str with the JSON of these as xgrammar reads it, or
    a `StructuralTagsConfig`. ``compound_grammar`` is its former name.

    The package llguidance restricts the tokens. Raises: RuntimeError if not exactly one field is set, and for an
    unknown field.
    """

    AnyText: ClassVar = AnyText
    Concat: ClassVar = Concat
    ConstString: ClassVar = ConstString
    EBNF: ClassVar = EBNF
    JSONSchema: ClassVar = JSONSchema
    Regex: ClassVar = Regex
    Tag: ClassVar = Tag
    Union: ClassVar = Union
    QwenXMLParametersFormat: ClassVar = QwenXMLParametersFormat
    TagsWithSeparator: ClassVar = TagsWithSeparator
    TriggeredTags: ClassVar = TriggeredTags

    def __init__(self, **kwargs: Any) -> None:
        self.json_schema: str | None = None
        self.regex: str | None = None
        self.grammar: str | None = None
        self.structural_tags_config: Part | StructuralTagsConfig | None = None
        self.compound_grammar: Part | None = None
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
        kinds: dict[str, tuple[type, ...]] = {
            "structural_tags_config": (Grammar, str, StructuralTagsConfig),
            "compound_grammar": (Grammar, str),
        }
        allowed, value = kinds.get(given[0], (str,)), getattr(self, given[0])
        if not isinstance(value, allowed):
            raise Error(f"{given[0]} must be a {' or a '.join(kind.__name__ for kind in allowed)}, not {value!r}")

    def parts(self) -> Part | None:
        """Return the grammar that is made of parts, if that is the form."""
        if isinstance(self.structural_tags_config, StructuralTagsConfig):
            return self.structural_tags_config.as_grammar()
        return self.compound_grammar if self.structural_tags_config is None else self.structural_tags_config

    def __repr__(self) -> str:
        shown = ((name, getattr(self, name)) for name in FIELDS)
        return f"StructuredOutputConfig({', '.join(f'{name}={value!r}' for name, value in shown)})"
