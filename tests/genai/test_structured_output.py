"""Structured output: texts as recorded from openvino_genai, grammars that are made of parts, and errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

import ovgpu
import ovgpu.genai as ov_genai
from ovgpu.genai.grammar import CompiledGrammar, Compiler
from ovgpu.genai.json_schema import closed
from ovgpu.genai.structured_output import as_lark
from tests.genai.generation_cases import GRAMMARS, PROMPT, make_folder, outcomes
from tests.genai.make_tokenizer import FOLDER, VOCABULARY
from tests.genai.record_wheel import PATH
from tests.genai.test_llm_pipeline import assert_close

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
    assert accepts(Form(regex=regex), text) and accepts(Form(compound_grammar=Form.Regex(regex) + "c"), text + "c")
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
    parts = Form.ConstString('a"') + (Form.Regex("[x/y]") | "b" | Form.AnyText()) + Form.Tag("<", Form.Regex("."), ">")
    assert (
        repr(parts)
        == 'Concat(ConstString("a""), Union(Regex("[x/y]"), b, AnyText()), Tag(begin="<", content=Regex("."), end=">"))'
    )
    assert as_lark(parts) == 'start: ("a\\"" (/[x\\/y]/ | "b" | /(.|\\n)*/) "<" /./ ">")'
    assert (
        as_lark(Form.JSONSchema("{}") | Form.JSONSchema("true"))
        == "start: (part_0 | part_1)\npart_0: %json {}\npart_1: %json true"
    )
    assert as_lark(Form.JSONSchema(json.dumps(A))).endswith(f"%json {json.dumps({**A, 'additionalProperties': False})}")
    assert Form.Concat(["a", "b"]).elements == ["a", "b"]
    assert repr(Form(regex="a")).startswith("StructuredOutputConfig(json_schema=None, regex='a', grammar=None")


def test_wrong_uses() -> None:
    for wrong, kind, message in (
        (lambda: Form.Concat("a"), ValueError, "Concat needs at least two elements"),
        (lambda: Form.Regex("a") + 3, TypeError, "an element is a grammar or a str, not 3"),
        (lambda: Form.Tag("a", None, "b"), TypeError, "an element is a grammar or a str, not None"),
        (lambda: Form.EBNF(3), TypeError, "EBNF needs a str, not 3"),
        (lambda: Form(regex="a", grammar="b"), ovgpu.Error, "exactly one field .* must be set, not regex, grammar"),
        (lambda: Form(schema="{}"), ovgpu.Error, "StructuredOutputConfig has no field schema, only json_schema"),
        (lambda: Form(json_schema={}), ovgpu.Error, "json_schema must be a str, not {}"),
        (lambda: Form(compound_grammar="a"), ovgpu.Error, "compound_grammar must be a Grammar, not 'a'"),
        (lambda: Form(structural_tags_config="a"), ovgpu.Error, "structural_tags_config must be a Grammar, not 'a'"),
        (lambda: Form(structural_tags_config=1), ovgpu.Error, "structural_tags_config must be a Grammar, not 1"),
        (lambda: Form.TriggeredTags(["a"], []), ovgpu.Error, "has no TriggeredTags: triggers of tags"),
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
