"""Texts for parsers, which `record_wheel.py` parses with openvino_genai, and `test_parsers.py` here."""

from __future__ import annotations

import json
from random import Random
from typing import Any

PIECES = (
    *(
        "<think>",
        "</think>",
        "<th",
        "ink>",
        "</",
        "think>",
        "<t>",
        "</t>",
        "a",
        "Some text. ",
        "\n",
        "caf\xe9 ",
        "[",
        "]",
    ),
    *('f(x="1", yy = "a b")', "g()", "(", ")", '"', "=", "{", "}", '{"name": "f", "arguments": {"n": [1, 2.5, null]}}'),
    *('k="v"', '{"a": 1}', "\r", "\u4e2d"),
)
PARSERS: dict[str, Any] = {
    "reasoning": lambda genai: genai.ReasoningParser(),
    "removed": lambda genai: genai.ReasoningParser(keep_original_content=False),
    "without open tag": lambda genai: genai.ReasoningParser(False, False),
    "other tags": lambda genai: genai.ReasoningParser(True, False, "<t>", "</t>"),
    "deepseek": lambda genai: genai.DeepSeekR1ReasoningParser(),
    "phi": lambda genai: genai.Phi4ReasoningParser(),
    "json": lambda genai: genai.Llama3JsonToolParser(),
    "pythonic": lambda genai: genai.Llama3PythonicToolParser(),
}
STREAMED: dict[str, Any] = {
    "reasoning": lambda genai: [genai.ReasoningIncrementalParser()],
    "removed": lambda genai: [genai.ReasoningIncrementalParser(keep_original_content=False)],
    "without open tag": lambda genai: [genai.ReasoningIncrementalParser(False, False)],
    "other tags": lambda genai: [genai.ReasoningIncrementalParser(True, True, "<t>", "</t>")],
    "deepseek": lambda genai: [genai.DeepSeekR1ReasoningIncrementalParser()],
    "phi": lambda genai: [genai.Phi4ReasoningIncrementalParser()],
    "two": lambda genai: [
        genai.ReasoningIncrementalParser(keep_original_content=False),
        genai.ReasoningIncrementalParser(True, False, "<t>", "</t>"),
    ],
    "own": lambda genai: [own_parser(genai, 5)],
    "own, which stops": lambda genai: [own_parser(genai, 3), genai.Phi4ReasoningIncrementalParser()],
    "none": lambda genai: [],
}


def texts(count: int = 40) -> list[str]:
    """Return random texts with parts of tags and calls."""
    random = Random(5)
    return ["", *("".join(random.choices(PIECES, k=random.randint(1, 9))) for _ in range(count))]


def own_parser(genai: Any, most: int) -> Any:
    """Return a parser that notes the pieces and tokens it gets, and stops after some."""

    class Own(genai.IncrementalParser):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def parse(self, delta_message: Any, delta_text: str, delta_tokens: Any = None) -> str:
            self.count += 1
            delta_message["seen"] = f"{delta_text!r} {list(delta_tokens)} "
            delta_message["in"] = {"side": "x"}
            if self.count == most:
                self.set_status(genai.StreamingStatus.STOP)
            return delta_text.upper()

        def reset(self) -> None:
            self.count = 0
            self.set_status(genai.StreamingStatus.RUNNING)

    return Own()


def parsed(genai: Any) -> dict[str, Any]:
    """Return the message of each text and parser, or the exception, as JSON."""
    found = {}
    for name, make in PARSERS.items():
        messages = []
        for text in texts():
            message = {"content": text}
            try:
                make(genai).parse(message)
                messages.append(json.dumps(message))
            except RuntimeError:
                messages.append("RuntimeError")
        found[name] = messages
    return found


def streamed(genai: Any) -> dict[str, Any]:
    """Return what parsers leave of random pieces, and the message of each."""
    random, found = Random(6), {}
    for name, make in STREAMED.items():
        pieces = []
        for _ in range(12):
            parsers = make(genai)
            for parser in parsers:
                parser.reset()
            for piece in random.choices(PIECES, k=8):
                message: dict[str, Any] = {}
                for parser in parsers:
                    piece = parser.parse(message, piece, [1, 2])
                pieces.append([piece, json.dumps(message)])
        found[name] = pieces
    return found


def streams(genai: Any, tokenizer: Any) -> dict[str, Any]:
    """Return the messages that streamers write for random tokens, their answers, and the whole message."""
    from tests.genai.streamer_cases import chunks

    found: dict[str, Any] = {}
    for name, make in STREAMED.items():
        for number, stream in enumerate(chunks()[1::7]):
            messages: list[str] = []

            class Streamer(genai.TextParserStreamer):  # type: ignore[misc]
                def write(self, message: Any, messages: list[str] = messages) -> Any:
                    messages.append(json.dumps(message))
                    return genai.StreamingStatus.RUNNING

            streamer = Streamer(tokenizer, make(genai))
            answers = [streamer._write(chunk).name for chunk in stream]
            streamer.end()
            found[f"{name} {number}"] = [messages, answers, json.dumps(streamer.get_parsed_message())]
            streamer.reset()
            assert streamer.get_parsed_message() == {"content": ""}
    return found


def generated(genai: Any, pipeline: Any) -> dict[str, Any]:
    """Return results of generations with parsers, and with streamers that parse."""

    class Own(genai.Parser):  # type: ignore[misc]
        def parse(self, message: dict[str, Any]) -> None:
            message["length"] = len(message["content"])
            message["content"] = message["content"].replace("n", "N")

    class Streamer(genai.TextParserStreamer):  # type: ignore[misc]
        def write(self, message: Any) -> Any:
            return genai.StreamingStatus.RUNNING

    tokenizer = pipeline.get_tokenizer()
    plain = {"max_new_tokens": 9, "ignore_eos": True, "apply_chat_template": False, "echo": True}
    found: dict[str, Any] = {}
    for name, inputs, more in (
        ("text", "a no b", {"parsers": [Own()]}),
        ("texts", ["a no b", "n"], {"parsers": [Own(), genai.ReasoningParser(False)]}),
        ("several", ["a no b"], {"parsers": [Own()], "num_beams": 2, "num_return_sequences": 2}),
        ("streamed", "a no b", {"streamer": Streamer(tokenizer, [own_parser(genai, 9)])}),
        ("stopped", ["a no b"], {"streamer": Streamer(tokenizer, [own_parser(genai, 2)])}),
        ("both", ["a no b"], {"streamer": Streamer(tokenizer, [own_parser(genai, 9)]), "parsers": [Own()]}),
        ("tokens", tokenizer.encode("a no b"), {"parsers": [Own()]}),
        ("none", ["a no b"], {}),
        ("faulty", ["a no b"], {"parsers": [genai.Llama3PythonicToolParser(), 3]}),
    ):
        try:
            result = pipeline.generate(inputs, **plain, **more)
        except RuntimeError:
            found[name] = "RuntimeError"
            continue
        messages = json.dumps(getattr(result, "parsed", None))
        found[name] = [
            type(result).__name__,
            [reason.name for reason in getattr(result, "finish_reasons", [])],
            messages,
        ]
    return found
