"""Random JSON schemas, each with a function that checks a value, and generations that follow them.

    python -m tests.genai.schemas [COUNT]

has the decoder of the tests write JSON for 200 schemas, and checks each text, also by jsonschema if that is installed.
The exit code is 1 if a text is wrong.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from tests.genai.generation_cases import make_folder
from tests.genai.make_tokenizer import VOCABULARY

Check = Callable[[Any], bool]
Schema = tuple[dict[str, Any], Check]
PATTERNS = ("^[a-c]{2,4}$", "^(ab|cd){1,3}x?$", "^[A-Z][a-z]{0,3}$", r"^\d{4}-\d{2}$", "^[^a-z]{1,3}$")
VALUES = (None, True, False, 0, -3, 2.5, "a", 'x"y', [], [1, "b"], {"k": 1})
NAMES = ("a", "name", "Two;words", "x_1", "-")
MOST_TOKENS = 400


def random_schema(random: Random, depth: int = 2, definitions: dict[str, Check] | None = None) -> Schema:
    """Return a schema whose values are short, and a function that tells whether a value has that form."""
    definitions = {} if definitions is None else definitions
    kinds: list[Callable[[], Schema]] = [
        lambda: ({"type": "null"}, lambda x: x is None),
        lambda: ({"type": "boolean"}, lambda x: isinstance(x, bool)),
        lambda: _integer(random),
        lambda: _number(random),
        lambda: _text(random),
        lambda: _enum(random),
    ]
    if definitions:
        kinds.append(lambda: _reference(random, definitions))
    if depth:
        of = [random_schema(random, depth - 1, definitions) for _ in range(3)]
        kinds += [lambda: _array(random, of[0]), lambda: _object(random, of), lambda: _any_of(of[:2])] * 2
    return random.choice(kinds)()


def document(seed: int) -> Schema:
    """Return a schema with a definition that it may refer to."""
    random = Random(seed)
    defined, check = random_schema(random, 1)
    schema, holds = random_schema(random, 3, {"part": check})
    return {**schema, "$defs": {"part": defined}}, holds


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def _integer(random: Random) -> Schema:
    low = random.randint(-300, 300)
    high = low + random.randint(0, 400)
    schema = {"type": "integer", "minimum": low, "maximum": high}
    return schema, lambda x: _is_number(x) and x == int(x) and low <= x <= high


def _number(random: Random) -> Schema:
    low = random.randint(-50, 50) / 4
    high = low + random.randint(1, 80) / 8
    if random.random() < 0.5:
        schema = {"type": "number", "minimum": low, "maximum": high}
        return schema, lambda x: _is_number(x) and low <= x <= high
    schema = {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
    return schema, lambda x: _is_number(x) and low < x < high


def _text(random: Random) -> Schema:
    if random.random() < 0.5:
        pattern = random.choice(PATTERNS)
        return {"type": "string", "pattern": pattern}, lambda x: isinstance(x, str) and bool(re.search(pattern, x))
    low = random.randint(0, 4)
    high = low + random.randint(0, 6)
    schema = {"type": "string", "minLength": low, "maxLength": high}
    return schema, lambda x: isinstance(x, str) and low <= len(x) <= high


def _same(x: Any, y: Any) -> bool:
    """Return whether two values are equal in JSON, where true is not 1."""
    return json.dumps(x) == json.dumps(y) or (_is_number(x) and _is_number(y) and x == y)


def _enum(random: Random) -> Schema:
    values = random.sample(VALUES, random.randint(1, 4))
    schema = {"const": values[0]} if len(values) == 1 else {"enum": values}
    return schema, lambda x: any(_same(x, value) for value in values)


def _reference(random: Random, definitions: dict[str, Check]) -> Schema:
    name = random.choice([*definitions])
    return {"$ref": f"#/$defs/{name}"}, definitions[name]


def _array(random: Random, of: Schema) -> Schema:
    low = random.randint(0, 2)
    high = low + random.randint(0, 2)
    schema = {"type": "array", "items": of[0], "minItems": low, "maxItems": high}
    return schema, lambda x: isinstance(x, list) and low <= len(x) <= high and all(map(of[1], x))


def _object(random: Random, of: list[Schema]) -> Schema:
    properties = dict(zip(random.sample(NAMES, len(of)), of))
    required = [name for name in properties if random.random() < 0.6]
    schema = {
        "type": "object",
        "properties": {name: part for name, (part, _) in properties.items()},
        "required": required,
        "additionalProperties": False,
    }

    def holds(x: Any) -> bool:
        return (
            isinstance(x, dict)
            and {*required} <= {*x} <= {*properties}
            and all(properties[name][1](value) for name, value in x.items())
        )

    return schema, holds


def _any_of(of: list[Schema]) -> Schema:
    return {"anyOf": [part for part, _ in of]}, lambda x: any(holds(x) for _, holds in of)


def json_folder(folder: Path) -> Path:
    """Write the folder of a decoder whose tokens are those of JSON without blanks, and return it."""
    import tokenizers

    make_folder("llama", folder)
    merges = [('"', ":"), ('"', ","), ("{", '"'), ("}", ","), ("1", "2"), ("a", "b")]
    words = ["<pad>", "<s>", "</s>", *map(chr, range(33, 127)), *map("".join, merges)]
    words += [f"<unused{n}>" for n in range(len(words), VOCABULARY)]
    made: Any = tokenizers.Tokenizer(tokenizers.models.BPE({word: n for n, word in enumerate(words)}, merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens([*words[:3], *words[-(VOCABULARY - 3 - 94 - len(merges)) :]])
    for path in folder.glob("openvino_*tokenizer.*"):
        path.unlink()
    made.save(str(folder / "tokenizer.json"))
    return folder


def written(pipeline: Any, schema: dict[str, Any], seed: int) -> str | None:
    """Return the text that the pipeline writes for a schema; None if it is too long."""
    import ovgpu.genai

    result = pipeline.generate(
        ["a"],
        max_new_tokens=MOST_TOKENS,
        structured_output_config=ovgpu.genai.StructuredOutputConfig(json_schema=json.dumps(schema)),
        do_sample=True,
        rng_seed=seed,
        apply_chat_template=False,
    )
    stopped = result.finish_reasons[0] == ovgpu.genai.GenerationFinishReason.STOP
    return str(result.texts[0]) if stopped else None


def main() -> None:
    """Check the texts of as many schemas as the command line says."""
    import ovgpu.genai

    validator = find_spec("jsonschema") and import_module("jsonschema").Draft202012Validator
    count, wrong, long = int(sys.argv[1]) if sys.argv[1:] else 200, 0, 0
    with tempfile.TemporaryDirectory() as name:
        pipeline = ovgpu.genai.LLMPipeline(json_folder(Path(name)), "CPU")
        for seed in range(count):
            schema, holds = document(seed)
            text = written(pipeline, schema, seed)
            long += text is None
            if text is None:
                continue
            valid = holds(json.loads(text))
            if validator:
                assert valid == validator(schema).is_valid(json.loads(text))
            if not valid:
                wrong += 1
                print(f"{json.dumps(schema)}\n  {text}")
    print(f"{count - wrong - long} of {count} texts are valid, {long} are too long")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
