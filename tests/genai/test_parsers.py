"""Parsers of texts, compared with what was recorded from openvino_genai, and their wrong uses."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ovgpu
import ovgpu.genai as ov_genai
from tests.genai import parser_cases
from tests.genai.generation_cases import make_folder
from tests.genai.make_tokenizer import FOLDER
from tests.genai.record_wheel import PATH

pytest.importorskip("tokenizers")
RECORD = json.loads(PATH.read_text())


def test_texts() -> None:
    found = parser_cases.parsed(ov_genai)
    assert found == RECORD["parsed"] and sum("tool_calls" in message for message in found["pythonic"]) >= 6


def test_pieces() -> None:
    found = parser_cases.streamed(ov_genai)
    assert json.loads(json.dumps(found)) == RECORD["parsed_pieces"]


def test_streams() -> None:
    """Pieces with their tokens, also of texts whose characters are not complete."""
    found = parser_cases.streams(ov_genai, ov_genai.Tokenizer(FOLDER))
    assert json.loads(json.dumps(found)) == RECORD["parsed_streams"]


def test_generations(tmp_path: Path) -> None:
    pipeline = ov_genai.LLMPipeline(make_folder("llama", tmp_path), "CPU", INFERENCE_PRECISION_HINT="f32")
    assert parser_cases.generated(ov_genai, pipeline) == RECORD["parsed_generations"]
    config = ov_genai.GenerationConfig(max_new_tokens=4, parsers=[ov_genai.Phi4ReasoningParser()])
    pipeline.set_generation_config(config)
    (message,) = pipeline.generate(["a"]).parsed
    assert [*message] == ["content", "reasoning_content"]
    assert len(pipeline.get_generation_config().parsers) == 1
    config.parsers.append(ov_genai.Phi4ReasoningParser())  # a copy
    assert len(config.parsers) == 1
    faulty = type("Faulty", (ov_genai.Parser,), {"parse": lambda self, message: message["absent"]})
    with pytest.warns(DeprecationWarning):
        pipeline.start_chat()
    with pytest.raises(KeyError, match="absent"):
        pipeline.generate("a", max_new_tokens=4, parsers=[faulty()])
    assert pipeline._chat.get_messages() == []


def test_parsers_of_vllm() -> None:
    """Objects with the methods of vLLM's parsers."""
    call = '{"tools_called": true, "content": "c", "nested": {"a": "x"}}'
    tools = SimpleNamespace(extract_tool_calls=lambda text, request: SimpleNamespace(model_dump_json=lambda: call))
    message = {"content": "text"}
    ov_genai.VLLMParserWrapper(tools).parse(message)
    assert message == {"tools_called": True, "content": "c", "nested": {"a": "x"}}
    both = SimpleNamespace(**vars(tools), extract_reasoning=lambda text, request: ("why", f"{text} and more"))
    message = {"content": "text"}
    ov_genai.VLLMParserWrapper(both).parse(message)
    assert message["content"] == "ctext and more" and message["reasoning"] == "why"


def test_wrong_uses() -> None:
    tokenizer, reasoning = ov_genai.Tokenizer(FOLDER), ov_genai.ReasoningIncrementalParser()
    wrapped: Any = ov_genai.VLLMParserWrapper
    triple = SimpleNamespace(extract_reasoning=lambda text, request: (1, 2))
    number = type("Own", (ov_genai.IncrementalParser,), {"parse": lambda *_: 3})()
    mixed = type(
        "Own", (ov_genai.IncrementalParser,), {"parse": lambda self, message, text, _: message.update(n=3) or text}
    )()
    for wrong, kind, message in (
        (lambda: ov_genai.Parser().parse({}), ovgpu.Error, "Parser has no method parse"),
        (lambda: ov_genai.IncrementalParser().parse({}, ""), ovgpu.Error, "IncrementalParser has no method parse"),
        (lambda: ov_genai.IncrementalParser().reset(), ovgpu.Error, "IncrementalParser has no method reset"),
        (lambda: reasoning.set_status("STOP"), TypeError, "the status is a StreamingStatus, not 'STOP'"),
        (lambda: ov_genai.ReasoningParser().parse({"content": 3}), ovgpu.Error, "has its text as content, not 3"),
        (lambda: ov_genai.Llama3JsonToolParser().parse({"content": "{NaN}"}), ovgpu.Error, "the text has no JSON: "),
        (lambda: wrapped(3), ovgpu.Error, "3 has neither a method extract_tool_calls nor extract_reasoning"),
        (lambda: wrapped(triple).parse({"content": ""}), ovgpu.Error, "no tuple of reasoning and content"),
        (lambda: ov_genai.TextParserStreamer(tokenizer, [3]), TypeError, r"are IncrementalParsers, not \[3\]"),
        (lambda: ov_genai.TextParserStreamer(3), TypeError, "needs a Tokenizer"),
        (lambda: ov_genai.TextParserStreamer(tokenizer)._write("a"), ovgpu.Error, "has no method write"),
        (lambda: ov_genai.TextParserStreamer(tokenizer, [number])._write("a"), ovgpu.Error, "returns a str, not 3"),
        (lambda: ov_genai.GenerationConfig(parsers=3), ovgpu.Error, "parsers must be a list of Parsers, not 3"),
        (lambda: ov_genai.GenerationConfig(parsers=[reasoning]), ovgpu.Error, "parsers must be a list of Parsers"),
    ):
        with pytest.raises(kind, match=message):
            wrong()  # type: ignore[no-untyped-call]

    class Streamer(ov_genai.TextParserStreamer):
        def write(self, message: Any) -> ov_genai.StreamingStatus:
            return ov_genai.StreamingStatus.RUNNING

    streamer = Streamer(tokenizer, [mixed])
    streamer._write("a")
    with pytest.raises(ovgpu.Error, match="n of a message is a text or an object that grows, not 3 and then 3"):
        streamer._write("b")
