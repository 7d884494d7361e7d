"""Generations by tiny decoders, which `record_wheel.py` runs with openvino_genai, and `test_llm_pipeline.py` here."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tests.genai.make_tokenizer import FOLDER

DATA = Path(__file__).parents[1] / "models" / "data"
MODELS = ("llama", "gpt2")
PROMPT = "To be, or not"
OTHERS = ["a", "Hello, World! ", PROMPT]
PLAIN = {"max_new_tokens": 12, "ignore_eos": True, "apply_chat_template": False}
STREAMED = {**PLAIN, "max_new_tokens": 25}

CASES: list[tuple[Any, dict[str, Any]]] = [
    (PROMPT, PLAIN),
    (PROMPT, {**PLAIN, "apply_chat_template": True}),
    (OTHERS, PLAIN),
    (OTHERS, {"max_new_tokens": 5, "ignore_eos": True}),
    ([PROMPT], {**PLAIN, "echo": True}),
    ([PROMPT], {"max_new_tokens": 0, "echo": True, "apply_chat_template": False}),
    ("", PLAIN),
    ("", {"max_new_tokens": 3, "ignore_eos": True}),
    ({"ids": [PROMPT]}, PLAIN),
    ({"ids": [PROMPT]}, {**PLAIN, "logprobs": 1}),
    ({"ids": [PROMPT]}, {**PLAIN, "logprobs": 3, "echo": True}),
    ({"ids": [PROMPT]}, {**PLAIN, "do_sample": True, "top_k": 1}),
    ({"ids": [PROMPT]}, {**PLAIN, "do_sample": True, "top_p": 1e-6, "logprobs": 1}),
    ({"ids": [PROMPT]}, {**PLAIN, "do_sample": True, "temperature": 1e-4, "rng_seed": 2**40}),
    ({"ids": [PROMPT]}, {**PLAIN, "do_sample": True, "top_k": 1, "num_return_sequences": 3}),
    ({"ids": [PROMPT]}, {**PLAIN, "max_length": 20}),
    ({"ids": [PROMPT]}, {"max_length": 20, "ignore_eos": True}),
    ({"ids": OTHERS}, PLAIN),
    ({"ids": OTHERS, "padding_side": "left"}, {**PLAIN, "logprobs": 1}),
    *(
        ({"ids": [PROMPT]}, {**PLAIN, **penalties, "logprobs": 1})
        for penalties in (
            {"repetition_penalty": 1.5},
            {"repetition_penalty": 0.5},
            {"presence_penalty": 1.5},
            {"frequency_penalty": 1.0},
            {"frequency_penalty": -1.5},
            {"repetition_penalty": 1.25, "presence_penalty": 0.5, "frequency_penalty": 0.25},
        )
    ),
    ({"ids": OTHERS}, {**PLAIN, "repetition_penalty": 1.5, "frequency_penalty": 0.5}),
    *(({"ids": [PROMPT], "stop": n}, {"max_new_tokens": 12}) for n in (0, 3, 7)),
    ({"ids": [PROMPT], "stop": 3}, {"max_new_tokens": 12, "ignore_eos": True}),
    ({"ids": [PROMPT], "stop": 3}, {"max_new_tokens": 12, "min_new_tokens": 3, "logprobs": 1}),
    ({"ids": [PROMPT], "stop": 3}, {"max_new_tokens": 12, "min_new_tokens": 6, "logprobs": 1}),
    *(
        ({"ids": [PROMPT], "stop_text": [begin, end]}, {**PLAIN, "include_stop_str_in_output": include, "logprobs": 1})
        for begin, end in ((2, 3), (2, 5), (0, 2), (7, 8))
        for include in (False, True)
    ),
    ({"chat": [{"role": "user", "content": "hi"}]}, {"max_new_tokens": 6, "ignore_eos": True}),
    ({"chat": [{"role": "system", "content": "x"}, {"role": "user", "content": "hi"}]}, {"max_new_tokens": 6}),
    ({"chat": []}, {"max_new_tokens": 6}),
    ({"chat": [{"role": "user", "content": "hi"}]}, PLAIN),
    *((PROMPT, {**PLAIN, "streamer": kind}) for kind in ("function", "object")),
    ([PROMPT], {**STREAMED, "streamer": "function"}),
    ({"ids": [PROMPT]}, {**STREAMED, "streamer": "function", "echo": True}),
    ({"ids": [PROMPT]}, {**PLAIN, "streamer": "object", "echo": True}),
    ({"ids": [PROMPT], "stop_text": [7, 9]}, {**PLAIN, "streamer": "object"}),
    ({"ids": [PROMPT], "stop_text": [7, 9]}, {**PLAIN, "streamer": "function"}),
    *(
        ({"ids": [PROMPT], **({"stop": 1} if n % 2 else {})}, {"max_new_tokens": 10, "num_beams": 4, **beams})
        for n, beams in enumerate(
            [
                {},
                {},
                {"num_return_sequences": 4},
                {"num_return_sequences": 4},
                {"num_return_sequences": 4, "length_penalty": 2.0},
                {"num_return_sequences": 4, "length_penalty": -1.0},
                {"num_beam_groups": 2, "diversity_penalty": 0.75, "num_return_sequences": 4},
                {"num_beam_groups": 2, "diversity_penalty": 0.75, "num_return_sequences": 4},
                {"num_beam_groups": 4, "diversity_penalty": 1.5, "num_return_sequences": 4},
                {"stop_criteria": "EARLY", "num_return_sequences": 4},
                {"no_repeat_ngram_size": 2, "num_return_sequences": 4},
                {"stop_criteria": "NEVER", "num_return_sequences": 4},
                {"no_repeat_ngram_size": 1, "num_return_sequences": 2, "echo": True},
                {"stop_criteria": "NEVER", "length_penalty": 0.5, "num_beams": 6, "num_return_sequences": 6},
                {"logprobs": 1, "num_beams": 2},
                {"ignore_eos": True, "num_return_sequences": 2},
                {"min_new_tokens": 5, "num_return_sequences": 2},
                {"min_new_tokens": 5, "num_return_sequences": 2},
            ]
        )
    ),
    (OTHERS, {**PLAIN, "num_beams": 3, "num_return_sequences": 2}),
    (PROMPT, {**PLAIN, "num_beams": 3}),
    # Errors
    ({"ids": [PROMPT]}, {**PLAIN, "streamer": "function", "num_beams": 2}),
    (OTHERS, {**PLAIN, "streamer": "function"}),
    ({"ids": [PROMPT]}, {**PLAIN, "streamer": "function", "do_sample": True, "num_return_sequences": 2}),
    (3, PLAIN),
    ({"array": [[1, 2]], "dtype": "int32"}, PLAIN),
    ({"array": [1, 2], "dtype": "int64"}, PLAIN),
    ({"array": [[]], "dtype": "int64"}, PLAIN),
    (PROMPT, {"max_new_tokens": 0}),
    (PROMPT, {**PLAIN, "do_sample": True, "temperature": -1}),
    (PROMPT, {"max_length": 3, "apply_chat_template": False}),
    (PROMPT, {"max_length": 14, "apply_chat_template": False}),
    (PROMPT, {**PLAIN, "streamer": "number"}),
    (PROMPT, {**PLAIN, "top_k": None}),
]
"""Inputs and keywords of generate(). ``stop`` is the number of the greedy token that ends the text, ``stop_text`` those
whose text does. ``streamer`` is the kind of streamer."""


SAMPLED = {**PLAIN, "do_sample": True}
ENDS = [5, 9, 11, 17, *range(40, 46)]
DRAWS: list[tuple[Any, dict[str, Any]]] = [
    *(({"ids": [PROMPT]}, {**SAMPLED, "rng_seed": seed}) for seed in (0, 7, 2**32 + 7, 2**40 + 1)),
    *(
        ({"ids": [PROMPT]}, {**SAMPLED, "rng_seed": 1, **rules})
        for rules in (
            {"top_k": 7},
            {"top_k": 60, "temperature": 1.7},
            {"top_p": 0.9},
            {"min_p": 0.05},
            {"top_k": 40, "min_p": 0.02},
            {"top_k": 40, "top_p": 0.8},
            {"top_k": 40, "min_p": 0.02, "top_p": 0.9, "logprobs": 1},
            {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.25, "top_k": 30},
            {"num_return_sequences": 3},
        )
    ),
    ({"ids": OTHERS}, {**SAMPLED, "top_p": 0.9}),
    ({"ids": OTHERS}, {**SAMPLED, "num_return_sequences": 2, "temperature": 0.8}),
    *(
        ({"ids": [PROMPT]}, {"max_new_tokens": 12, "do_sample": True, "stop_token_ids": ENDS, **rules})
        for rules in ({"num_return_sequences": 4}, {"num_return_sequences": 3, "min_new_tokens": 4, "top_k": 50})
    ),
]
"""Generations with random draws."""

FORMS: dict[str, Any] = {
    "regex": lambda form: form(regex="[a-c]{3}D"),
    "long": lambda form: form(regex="[a-c]{20,40}D"),
    "json": lambda form: form(json_schema=json.dumps({"type": "boolean"})),
    "ebnf": lambda form: form(grammar='root ::= "ab" [x-z]+ more\nmore ::= "Q" | "R"'),
    "compound": lambda form: form(
        compound_grammar=form.ConstString("ab") + (form.Regex("[xy]") | form.ConstString("Q"))
    ),
    "tag": lambda form: form(
        compound_grammar=form.Tag("To", form.EBNF('root ::= " be" | " do"') + form.ConstString("!"), ".")
    ),
    "triggered": lambda form: form(structural_tags_config=form.TriggeredTags(["A"], _tags(form), True, True)),
    **{
        f"separated {least} {stop}": lambda form, least=least, stop=stop: form(
            structural_tags_config=form.TagsWithSeparator(_tags(form), ", ", least, stop)
        )
        for least in (False, True)
        for stop in (False, True)
    },
    "tag text": lambda form: form(
        structural_tags_config=json.dumps(
            {
                "type": "structural_tag",
                "format": {
                    "type": "tag",
                    "begin": "To",
                    "content": {"type": "regex", "pattern": "[x-z]{3}"},
                    "end": "Q",
                },
            }
        )
    ),
    "text of a part": lambda form: form(
        compound_grammar=form.ConstString("a") + '{"type": "const_string", "value": "bc"}'
    ),
    "faulty part": lambda form: form(compound_grammar=form.ConstString("a") + "bc"),
    "faulty tag text": lambda form: form(structural_tags_config='{"type": "x"}'),
    "no trigger": lambda form: form(structural_tags_config=form.TriggeredTags([], [])),
    "another trigger": lambda form: form(structural_tags_config=form.TriggeredTags(["Q"], _tags(form))),
    "text behind any text": lambda form: form(structural_tags_config=form.AnyText() + form.ConstString("a")),
    "faulty regex": lambda form: form(regex="["),
    "faulty json": lambda form: form(json_schema="{"),
    "faulty ebnf": lambda form: form(grammar="root ::= ("),
    "two": lambda form: form(regex="a", grammar="b"),
    "none": lambda form: form(),
}
"""Structured outputs, each by a function of the class StructuredOutputConfig."""


def _tags(form: Any) -> list[Any]:
    return [form.Tag("AB", form.Regex("[xy]{2}"), "Z"), form.Tag("AC", form.ConstString("q"), "Y")]


GRAMMARS: list[tuple[Any, dict[str, Any]]] = [
    *(({"ids": [PROMPT]}, {"max_new_tokens": 30, "form": form, "logprobs": 1}) for form in FORMS),
    ({"ids": OTHERS}, {"max_new_tokens": 30, "form": "regex"}),
    ({"ids": [PROMPT]}, {"max_new_tokens": 30, "form": "compound", "repetition_penalty": 2.0}),
    ({"ids": [PROMPT]}, {"max_new_tokens": 30, "form": "regex", "do_sample": True, "top_k": 1}),
    ({"ids": [PROMPT]}, {"max_new_tokens": 8, "form": "regex", "ignore_eos": True}),
    ({"ids": [PROMPT]}, {"max_new_tokens": 2, "form": "regex"}),
    (PROMPT, {"max_new_tokens": 30, "form": "ebnf", "streamer": "function"}),
]
"""Inputs and keywords of generations that follow one of `FORMS`."""


TURNS = ["hi", "To be, or not to be?", "Hello, World! "]
REPEATED = "To be, or not to be, or not"
ASSISTED: list[tuple[Any, dict[str, Any]]] = [
    ({"ids": [REPEATED]}, {**PLAIN, "max_new_tokens": 24}),
    ({"ids": [REPEATED]}, {**PLAIN, "repetition_penalty": 1.5}),
    ({"ids": [REPEATED]}, {**PLAIN, "presence_penalty": 0.5, "frequency_penalty": 0.25}),
    ({"ids": [REPEATED], "stop": 7}, {"max_new_tokens": 12}),
    ([REPEATED, *OTHERS], PLAIN),
]
"""Inputs and keywords of generations with an assistant."""
LOOKUP = {"num_assistant_tokens": 3, "max_ngram_size": 2}
LOOKUPS = [(inputs, {**options, **LOOKUP}) for inputs, options in ASSISTED]
OF_TOKENS, LOOKUPS_OF_TOKENS = (
    [case for case in cases if isinstance(case[0], dict) and "ids" in case[0] and "stop_text" not in case[0]]
    for cases in (CASES[::5], LOOKUPS)
)
"""Some of the cases above, whose outcomes are tokens that do not depend on texts."""


def model_path(model: str) -> Path:
    """Return the file of a stored decoder. Those that only these tests use are in their own data."""
    return next(path for folder in (DATA, FOLDER.parent) if (path := folder / model / "model.xml").is_file())


def make_folder(model: str, folder: Path) -> Path:
    """Write the folder of a decoder, with the tokenizer of the tests, and return it."""
    shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
    for suffix in ("xml", "bin"):
        shutil.copy(model_path(model).with_suffix(f".{suffix}"), folder / f"openvino_model.{suffix}")
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 256, "eos_token_id": 2}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    return folder


def name_of(case: tuple[Any, dict[str, Any]]) -> str:
    """Return a case as text."""
    inputs, keywords = case
    return f"{json.dumps(inputs)}, {', '.join(f'{key}={value!r}' for key, value in keywords.items())}"


def outcomes(genai: Any, tensor: Any, pipeline: Any, cases: Any = CASES, assistant: Any = None) -> dict[str, Any]:
    """Return the outcome of each case: texts or tokens, scores, reasons, and what a streamer got; or the exception.

    ``genai`` is the module, ``tensor`` the class of its tensors, ``assistant`` keywords that the pipeline needs.
    """
    tokenizer = pipeline.get_tokenizer()
    ids = tokenizer.encode(PROMPT).input_ids
    greedy = pipeline.generate(ids, max_new_tokens=12, ignore_eos=True, **(assistant or {})).tokens[0]
    return {name_of(case): _outcome(genai, tensor, pipeline, greedy, *case) for case in cases}


def chats(genai: Any, pipeline: Any) -> dict[str, Any]:
    """Return the answers in a chat of three turns, by histories and by start_chat()."""
    options = {"max_new_tokens": 8, "ignore_eos": True}
    history, answers = genai.ChatHistory(), []
    for turn in TURNS:
        history.append({"role": "user", "content": turn})
        found = pipeline.generate(history, **options)
        answers.append([found.texts[0], found.perf_metrics.get_num_input_tokens()])
        history.append({"role": "assistant", "content": found.texts[0]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pipeline.start_chat("be brief")
        begun = [pipeline.generate(turn, **options) for turn in TURNS]
        pipeline.finish_chat()
    return {"chat by histories": answers, "chat by start_chat": begun}


def _outcome(genai: Any, tensor: Any, pipeline: Any, greedy: list[int], inputs: Any, keywords: dict[str, Any]) -> Any:
    tokenizer, keywords, log = pipeline.get_tokenizer(), dict(keywords), []
    if isinstance(inputs, dict):
        if "chat" in inputs:
            inputs = genai.ChatHistory(inputs["chat"])
        elif "array" in inputs:
            inputs = tensor(np.array(inputs["array"], inputs["dtype"]))
        else:
            if "stop" in inputs:
                keywords["stop_token_ids"] = {greedy[inputs["stop"]]}
            if "stop_text" in inputs:
                begin, end = inputs["stop_text"]
                keywords["stop_strings"] = {tokenizer.decode(greedy[begin:end])}
            side = inputs.get("padding_side")
            inputs = tokenizer.encode(inputs["ids"], padding_side=side)

    class Streamer(genai.StreamerBase):  # type: ignore[misc]
        def write(self, tokens: Any) -> Any:
            log.append(list(tokens))
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    if isinstance(keywords.get("stop_token_ids"), list):
        keywords["stop_token_ids"] = {*keywords["stop_token_ids"]}
    if "stop_criteria" in keywords:
        keywords["stop_criteria"] = getattr(genai.StopCriteria, keywords["stop_criteria"])
    streamers = {"function": log.append, "object": Streamer(), "number": 3}
    if "streamer" in keywords:
        keywords["streamer"] = streamers[keywords["streamer"]]
    try:
        if "form" in keywords:
            keywords["structured_output_config"] = FORMS[keywords.pop("form")](genai.StructuredOutputConfig)
        result = pipeline.generate(inputs, **keywords)
    except (RuntimeError, TypeError) as e:
        return "RuntimeError" if isinstance(e, RuntimeError) else "TypeError"
    if isinstance(result, str):
        return [result, log]
    answers = result.texts if hasattr(result, "texts") else result.tokens
    scores = [round(score, 3) for score in result.scores]
    metrics = result.perf_metrics
    counts = [metrics.get_num_input_tokens(), metrics.get_num_generated_tokens()]
    if keywords.get("num_return_sequences", 1) > 1 or keywords.get("num_beams", 1) > 1:
        del counts[1]  # openvino_genai counts the first token of all texts once
    return [answers, scores, [reason.name for reason in result.finish_reasons], counts, log]
