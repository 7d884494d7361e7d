"""Structured output: texts as recorded from openvino_genai, grammars that are made of parts, and errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import ovgpu
import ovgpu.genai as ov_genai
from ovgpu.genai.grammar import CompiledGrammar, Compiler
from ovgpu.genai.json_schema import closed
from ovgpu.genai.lark import as_lark, from_json
from tests.genai import schemas
from tests.genai.close import assert_close
from tests.genai.generation_cases import GRAMMARS, PROMPT, make_folder, outcomes
from tests.genai.make_tokenizer import FOLDER, VOCABULARY
from tests.genai.record_wheel import PATH

pytest.importorskip("tokenizers")

Form = ov_genai.StructuredOutputConfig
EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
Pipelines = Callable[..., ov_genai.LLMPipeline]


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Pipelines:
    """Return a function that makes the pipeline of a model on a device, once."""
    pytest.importorskip("llguidance")
    folder = make_folder("llama", tmp_path_factory.mktemp("llama"))
    return cache(lambda device="CPU", **properties: ov_genai.LLMPipeline(folder, device, **properties, **EXACT))


def accepts(form: ov_genai.StructuredOutputConfig, text: str) -> bool:
    """Return whether a text has a form."""
    llguidance = pytest.importorskip("llguidance")
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), Compiler.source(form))
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def test_generations(pipelines: Pipelines) -> None:
    found = outcomes(ov_genai, ovgpu.Tensor, pipelines(), GRAMMARS)
    expected = json.loads(PATH.read_text())["grammars"]
    assert list(found) == list(expected)
    for name, outcome in found.items():
        assert_close(json.loads(json.dumps(outcome)), expected[name])


def test_on_a_card(pipelines: Pipelines, emulated: str) -> None:
    """A step with a mask of all tokens, for one text and for several."""
    options = {"max_new_tokens": 8, "structured_output_config": Form(regex="[a-c]{3}D"), "apply_chat_template": False}
    found = pipelines(emulated).generate([PROMPT, "a"], **options)
    assert found.texts == pipelines().generate([PROMPT, "a"], **options).texts
    assert pipelines(emulated).generate(PROMPT, **options) == found.texts[0]


def test_random_schemas(tmp_path: Path) -> None:
    """Types, enums, constants, bounds, patterns, optional properties, alternatives and references."""
    pytest.importorskip("llguidance")
    pipeline = ov_genai.LLMPipeline(schemas.json_folder(tmp_path), "CPU")
    for seed in range(40):
        schema, holds = schemas.document(seed)
        text = schemas.written(pipeline, schema, seed)
        assert text is not None and holds(json.loads(text)), f"{json.dumps(schema)}: {text}"


def test_several_texts(pipelines: Pipelines) -> None:
    """Each text follows the grammar for itself, also with an assistant. In openvino_genai, several texts do not."""
    form = Form(regex="[a-c]{3}D")
    options = {"max_new_tokens": 8, "structured_output_config": form, "do_sample": True, "temperature": 3.0}
    found = pipelines().generate([PROMPT], num_return_sequences=6, **options)
    assert len({*found.texts}) > 2 and all(len(text) == 4 and {*text[:3]} <= {*"abc"} for text in found.texts)
    assisted = pipelines(prompt_lookup=True)
    looked_up = assisted.generate([PROMPT], num_assistant_tokens=3, max_ngram_size=2, **options)
    assert looked_up.texts == pipelines().generate([PROMPT], **options).texts


def test_metrics(pipelines: Pipelines) -> None:
    pipeline = pipelines()
    result = pipeline.generate([PROMPT], max_new_tokens=8, structured_output_config=Form(regex="[a-c]{3}"))
    metrics = result.perf_metrics
    assert list(metrics.get_grammar_compiler_init_times()) == ["llguidance"]
    assert len(metrics.raw_metrics.grammar_compile_times) == 1 and metrics.get_grammar_compile_time().mean > 0
    assert list((metrics + metrics).get_grammar_compiler_init_times()) == ["llguidance"]


BOOLEAN = {"type": "boolean"}
A = {"type": "object", "properties": {"a": BOOLEAN}, "required": ["a"]}


@pytest.mark.parametrize(
    "schema, right, wrong",
    [
        (A, ['{"a": true}', '{"a":false}'], ['{"a":true,"b":1}', "{}", "[]"]),
        ({**A, "additionalProperties": True}, ['{"a":true,"b":1}'], []),
        ({**A, "unevaluatedProperties": True}, ['{"a":true,"b":1}'], []),
        ({"properties": {"a": A}}, ["{}", '{"a":{"a":true}}'], ["1", '{"a":{"a":true,"b":1}}', '{"b":1}']),
        ({"type": "object", "patternProperties": {"^x$": BOOLEAN}}, ['{"x":true}'], ['{"y":true}']),
        ({"properties": {"properties": A}}, ['{"properties":{"a":true}}'], ['{"properties":{"a":true,"b":1}}']),
        ({"type": ["object", "null"], "properties": {}}, ["null", "{}"], ['{"a":1}', "1"]),
        ({"type": "object"}, ['{"a":1}'], []),
        ({"const": {"properties": {}}}, ['{"properties":{}}'], ["{}"]),
        ({"properties": {"a": BOOLEAN}, "enum": [1]}, ["1"], ["2"]),
        ({"items": A}, ["[]", '[{"a":true}]'], ["1", '[{"a":true,"b":1}]']),
        ({"prefixItems": [BOOLEAN, BOOLEAN]}, ["[true,false]"], ["[]", "[true]", "[true,true,1]", "1"]),
        ({"prefixItems": [BOOLEAN], "items": BOOLEAN, "minItems": 2}, ["[true,true]"], ["[true]", "[true,1]"]),
        ({"$ref": "#/$defs/A", "$defs": {"A": A}}, ['{"a":true}'], ['{"a":true,"b":1}']),
        ({"anyOf": [A, {"type": "null"}]}, ["null", '{"a":true}'], ['{"a":true,"b":1}']),
        ({"allOf": [A]}, ['{"a":true}'], ['{"a":true,"b":1}']),
        ({"allOf": [A, {"properties": {"b": BOOLEAN}, "required": ["b"]}]}, ['{"a":true,"b":true}'], ['{"a":true}']),
        ({**A, "anyOf": [{"required": ["a"]}]}, ['{"a":true}'], ["{}"]),
        (True, ["1"], []),
    ],
)
def test_schemas_are_closed(schema: Any, right: list[str], wrong: list[str]) -> None:
    """Objects and arrays have what the schema names, as in openvino_genai."""
    form = Form(json_schema=json.dumps(schema))
    assert [accepts(form, text) for text in (*right, *wrong)] == [True] * len(right) + [False] * len(wrong)


def test_faulty_schemas() -> None:
    for text in ("{", "", "[" * 100_000, '{}\nother: "a"'):
        with pytest.raises(ovgpu.Error, match="the JSON schema is no JSON"):
            closed(text)
    odd = {"items": 3, "minItems": "x", "properties": 1, "allOf": 2}
    assert closed(json.dumps(odd)) == json.dumps(odd)  # llguidance finds the faults


@pytest.mark.parametrize(
    "regex, text",
    [("a/b", "a/b"), (r"a\/b", "a/b"), ("a\nb", "a\nb"), (r"\\/", "\\/"), ("a\\\nb", "a\nb"), ("[/]", "/")],
)
def test_slashes_and_lines_in_regular_expressions(regex: str, text: str) -> None:
    assert accepts(Form(regex=regex), text) and accepts(
        Form(compound_grammar=Form.Regex(regex) + Form.ConstString("c")), text + "c"
    )
    assert not accepts(Form(regex=regex), text + "b")


def test_structural_tags_may_be_a_grammar_of_parts() -> None:
    form = Form(structural_tags_config=Form.ConstString("yes") | Form.ConstString("no"))
    assert accepts(form, "no") and not accepts(form, "maybe")
    form.structural_tags_config = Form.ConstString("q") + Form.JSONSchema(json.dumps(A))
    assert accepts(form, 'q{"a":true}') and not accepts(form, 'q{"a":true,"b":1}')


def test_any_tokens_may_write_a_forced_text() -> None:
    """As in openvino_genai, also tokens that the tokenizer would not make of it."""
    llguidance = pytest.importorskip("llguidance")
    words: Any = type("Words", (), {"eos_token_id": 0, "bos_token_id": None, "special_token_ids": [0]})()
    words.tokens = [b"", b"a", b"b", b"ab"]
    type(words).__call__ = lambda self, text: [3] * text.count(b"ab" if isinstance(text, bytes) else "ab")
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(words))
    matcher = llguidance.LLMatcher(tokenizer, Compiler.source(Form(regex="ab")))
    assert CompiledGrammar(matcher, 4).matcher().allowed().tolist() == [False, True, False, True]


def test_grammars_of_parts() -> None:
    b = Form.ConstString("b")
    parts = Form.ConstString('a"') + Form.Tag("<", Form.Regex("."), ">") + (Form.Regex("[x/y]") | b | Form.AnyText())
    assert repr(parts) == (
        'Concat(ConstString("a""), Tag(begin="<", content=Regex("."), end=">"), '
        'Union(Regex("[x/y]"), ConstString("b"), AnyText()))'
    )
    assert as_lark(parts) == 'start: ("a\\"" "<" /./ ">" (/[x\\/y]/ | "b" | /(.|\\n)*/))'
    assert (
        as_lark(Form.JSONSchema("{}") | Form.JSONSchema("true"))
        == "start: (part_0 | part_1)\npart_0: %json {}\npart_1: %json true"
    )
    assert as_lark(Form.JSONSchema(json.dumps(A))).endswith(f"%json {json.dumps({**A, 'additionalProperties': False})}")
    assert Form.Concat(["a", "b"]).elements == ["a", "b"]
    item = ov_genai.StructuralTagItem(begin="AB", schema="true", end="Z")
    tags = ov_genai.StructuralTagsConfig(structural_tags=[item], triggers=["A"])
    assert repr(Form(structural_tags_config=tags).parts()) == (
        'TriggeredTags(triggers=["A"], tags=[Tag(begin="AB", content=JSONSchema("true"), end="Z")], '
        "at_least_one=False, stop_after_first=False)"
    )
    text = '{"type": "sequence", "elements": [{"type": "any_text"}, {"type": "grammar", "grammar": "x"}]}'
    assert repr(from_json(text)) == 'Concat(AnyText(), EBNF("x"))'
    content = {"type": "qwen_xml_parameter", "json_schema": {}}
    tag = {"type": "tag", "begin": "a", "content": content, "end": "b"}
    text = json.dumps({"type": "tags_with_separator", "tags": [tag], "separator": ","})
    assert repr(from_json(text)) == (
        'TagsWithSeparator(separator=",", tags=[Tag(begin="a", '
        'content=QwenXMLParametersFormat(json_schema={}), end="b")], at_least_one=false, stop_after_first=false)'
    )
    assert repr(Form(regex="a")).startswith("StructuredOutputConfig(json_schema=None, regex='a', grammar=None")


FUNCTION = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "n": {"$ref": "#/$defs/n"},
            "kind": {"enum": ["a", "b", 3]},
            "code": {"type": "string", "pattern": "^[x-z]{2}$"},
        },
        "required": ["name", "n"],
        "$defs": {"n": {"type": "integer"}},
    }
)
TAGS = [Form.Tag("<AB", Form.Regex("[xy]{2}"), "Z"), Form.Tag("<AC", Form.ConstString("q"), "Y")]


@pytest.mark.parametrize(
    "form, complete, refused",
    [
        (
            Form.TriggeredTags(["<A"], TAGS),
            ["", "abc<", "a<ABxxZ", "a<ABxxZ b<ACqY<", "a<b<ACqY"],
            {"a<AD": "a<A", "<ABz": "<AB"},
        ),
        (
            Form.TriggeredTags(["<A"], TAGS, stop_after_first=True),
            ["", "a", "a<ABxxZ"],
            {"<ABxxZa": "<ABxxZ", "<AD": "<A"},
        ),
        (Form.TriggeredTags(["<A"], TAGS, at_least_one=True), ["<ABxxZ a<ACqY<"], {"a": "", "<ACqY<AD": "<ACqY<A"}),
        (Form.TriggeredTags(["<A"], TAGS, True, True), ["<ABxyZ"], {"<ACqYa": "<ACqY"}),
        (Form.TagsWithSeparator(TAGS, ", "), ["", "<ABxxZ", "<ABxxZ, <ACqY"], {"<ABxxZ,<": "<ABxxZ,"}),
        (Form.TagsWithSeparator(TAGS, ", ", stop_after_first=True), ["", "<ACqY"], {"<ACqY,": "<ACqY"}),
        (Form.TagsWithSeparator(TAGS, "", at_least_one=True), ["<ABxxZ<ACqY"], {"<ACqY ": "<ACqY"}),
        (
            Form.Tag("<t>", Form.AnyText(), "</t>") + Form.ConstString("E"),
            ["<t>a</E</t>E", "<t></t>E"],
            {"<t>a</t></t>": "<t>a</t>"},
        ),
        (Form.Tag("<t>", Form.TriggeredTags(["<A"], TAGS), "</t>"), ["<t>a<ABxxZ</t>"], {"<t>a<AD": "<t>a<A"}),
        (
            Form.QwenXMLParametersFormat(FUNCTION),
            [
                "<parameter=name>Bob <x></parameter><parameter=n>\n12\n</parameter>",
                "<parameter=name>B</parameter>\n<parameter=n>1</parameter>\n<parameter=kind>b</parameter>",
                "<parameter=name></parameter><parameter=n>1</parameter><parameter=code>xz</parameter>",
            ],
            {"<parameter=n>": "<parameter=n", "<parameter=name>B</parameter></": "<parameter=name>B</parameter><"},
        ),
        (
            Form.QwenXMLParametersFormat('{"type": "object"}'),
            ["", "<parameter=a>b</parameter>"],
            {"<parameter=1": None},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_tags(form: Any, complete: list[str], refused: dict[str, str | None]) -> None:
    """Texts that a grammar describes, and those that leave it, with the part until then."""
    llguidance = pytest.importorskip("llguidance")
    tokenizer = llguidance.LLTokenizer("byte")
    grammar = llguidance.LLMatcher.grammar_from_lark(as_lark(form))
    for text, until in {**{text: text for text in complete}, **refused}.items():
        matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
        assert not matcher.is_error()
        taken = ""
        for character in text:
            if not matcher.consume_token(*tokenizer.tokenize_str(character)):
                break
            taken += character
        assert taken == (text[:-1] if until is None else until)
        assert text in refused or matcher.is_accepting()


def test_wrong_uses() -> None:
    for wrong, kind, message in (
        (lambda: Form.Concat("a"), ValueError, "Concat needs at least two elements"),
        (lambda: Form.Regex("a") + 3, TypeError, "an element is a grammar or a str, not 3"),
        (lambda: Form.Tag("a", None, "b"), TypeError, "an element is a grammar or a str, not None"),
        (lambda: Form.EBNF(3), TypeError, "EBNF needs a str, not 3"),
        (lambda: Form(regex="a", grammar="b"), ovgpu.Error, "exactly one field .* must be set, not regex, grammar"),
        (lambda: Form(schema="{}"), ovgpu.Error, "StructuredOutputConfig has no field schema, only json_schema"),
        (lambda: Form(json_schema={}), ovgpu.Error, "json_schema must be a str, not {}"),
        (lambda: Form(compound_grammar=1), ovgpu.Error, "compound_grammar must be a Grammar or a str, not 1"),
        (lambda: Form(structural_tags_config=1), ovgpu.Error, "must be a Grammar or a str or a StructuralTagsConfig"),
        (lambda: Form.TriggeredTags("a", []), TypeError, "triggers of TriggeredTags is a list, not 'a'"),
        (lambda: Form.TriggeredTags(["a"], ["b"]), TypeError, "tags of TriggeredTags has 'b', which is no Tag"),
        (lambda: Form.TagsWithSeparator([], 3), TypeError, "TagsWithSeparator needs a str, not 3"),
        (lambda: Form.Tag("a", Form.Regex("b"), None), TypeError, "Tag needs a str, not None"),
        (lambda: Form.QwenXMLParametersFormat(None), TypeError, "QwenXMLParametersFormat needs a str, not None"),
        (lambda: ov_genai.StructuralTagItem(begin=3), TypeError, "StructuralTagItem needs a str, not 3"),
        (lambda: ov_genai.StructuralTagsConfig(triggers="a"), TypeError, "triggers of Struct.* is a list, not 'a'"),
        (
            lambda: ov_genai.GenerationConfig(structured_output_config="a"),
            ovgpu.Error,
            "None or a StructuredOutputConfig",
        ),
        (lambda: ov_genai.GenerationConfig(structured_output_config=None), ovgpu.Error, "None or a StructuredOutput"),
    ):
        with pytest.raises(kind, match=message):
            wrong()  # type: ignore[no-untyped-call]


def test_errors_of_generations(pipelines: Pipelines) -> None:
    options = {"max_new_tokens": 4, "apply_chat_template": False}
    for form, more, message in (
        (Form(regex="["), {}, "the grammar cannot be used: .*invalid regex"),
        (Form(json_schema="{"), {}, "the grammar cannot be read: the JSON schema is no JSON"),
        (Form(grammar="root ::= ("), {}, "the grammar cannot be read: "),
        (Form(json_schema='{"type": "object"}'), {}, "the text cannot follow the grammar: no token"),
        (Form(structural_tags_config='{"type": ["a"]}'), {}, "the structural tag .* cannot be read: "),
        (Form(structural_tags_config="[" * 9999), {}, r"'\[.* is no JSON: "),
        (
            Form(structural_tags_config=Form.QwenXMLParametersFormat("[]")),
            {},
            r"the JSON schema of an object, not \[\]",
        ),
        (
            Form(structural_tags_config=Form.QwenXMLParametersFormat('{"properties": {"a": {"enum": 3}}}')),
            {},
            "an enum that is no list, or a pattern that is no text",
        ),
        (Form(), {}, "exactly one field of StructuredOutputConfig must be set, not none"),
        (Form(regex="a"), {"num_beams": 2}, "beam search does not follow a structured_output_config"),
    ):
        with pytest.raises(ovgpu.Error, match=message):
            pipelines().generate(PROMPT, structured_output_config=form, **options, **more)
    assert pipelines().generate(PROMPT, structured_output_config=Form(regex="ab"), **options) == "ab"


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(
        ovgpu.Error, match=r'structured output needs the package llguidance: pip install "\.\[grammar\]"'
    ):
        Compiler(ov_genai.Tokenizer(FOLDER), VOCABULARY)
