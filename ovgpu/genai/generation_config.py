"""Class GenerationConfig: settings of a generation, with the fields, defaults and rules of openvino_genai."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ovgpu.errors import Error
from ovgpu.genai.adapters import AdapterConfig
from ovgpu.genai.enums import StopCriteria
from ovgpu.genai.fields import (
    UNLIMITED,
    Configuration,
    Field,
    Flag,
    Integer,
    Member,
    OptionalInteger,
    Real,
    TextSet,
    TokenSet,
)
from ovgpu.genai.files import read_object
from ovgpu.genai.parsers import Parser
from ovgpu.genai.structured_output import StructuredOutputConfig


class _Form(Field[StructuredOutputConfig | None]):
    what = "None or a StructuredOutputConfig"

    def checked(self, value: Any) -> StructuredOutputConfig | None:
        if not isinstance(value, StructuredOutputConfig | None):
            raise TypeError
        return value

    def from_keyword(self, value: Any) -> StructuredOutputConfig | None:
        if value is None:
            raise TypeError
        return self.checked(value)


class _Adapters(Field[AdapterConfig | None]):
    what = "None or an AdapterConfig"

    def copied(self, value: AdapterConfig | None) -> AdapterConfig | None:
        return None if value is None else value.copy()

    def checked(self, value: Any) -> AdapterConfig | None:
        if not isinstance(value, AdapterConfig | None):
            raise TypeError
        return self.copied(value)

    def from_keyword(self, value: Any) -> AdapterConfig | None:
        if value is None:
            raise TypeError
        return self.checked(value)


class _Parsers(Field[list[Parser]]):
    what = "a list of Parsers"

    def copied(self, value: list[Parser]) -> list[Parser]:
        return value[:]

    def checked(self, value: Any) -> list[Parser]:
        if isinstance(value, str) or not all(isinstance(parser, Parser) for parser in value):
            raise TypeError
        return list(value)


class GenerationConfig(Configuration):
    """Settings of a generation.

    ``GenerationConfig(path)`` reads a generation_config.json, ``GenerationConfig(**fields)`` sets fields. Unless said
    otherwise, fields are integers from 0 on, and numbers are rounded to f32. `validate`, which generate() calls, checks
    the combination.

    Length: ``max_new_tokens`` limits the generated tokens, or else ``max_length`` the prompt and the generated tokens
    together; both are unlimited by default. Before ``min_new_tokens``, no stop token is generated.

    End: tokens ``stop_token_ids`` (a set), of which ``eos_token_id`` is one unless it is -1, and ``stop_strings`` (a
    set). ``ignore_eos`` (bool) goes on after stop tokens. ``include_stop_str_in_output`` (bool) keeps the stop string.

    Result: ``num_return_sequences`` texts per prompt; ``echo`` (bool) puts the prompt before the text; with
    ``logprobs`` > 0, scores are log probabilities of the model. ``apply_chat_template`` (bool, True) writes a prompt
    into the tokenizer's chat template.

    Greedy search is the default. ``do_sample`` (bool) draws tokens at random: ``top_k`` most likely ones, logits
    divided by ``temperature``, at least ``min_p`` times as likely as the most likely one, ``top_p`` in sum, in this
    order. ``rng_seed`` is the seed. ``repetition_penalty``, ``presence_penalty`` and ``frequency_penalty`` act on both.

    Beam search: ``num_beams`` > 1, in ``num_beam_groups`` with ``diversity_penalty`` between them, ``length_penalty``
    (power of the length that divides a score), ``no_repeat_ngram_size``, ``stop_criteria`` (`StopCriteria`).

    Form of the text: ``structured_output_config`` (None or a `StructuredOutputConfig`). ``parsers`` (a list of
    `Parser`) read each text, one after the other.

    Model: ``adapters`` (None or an `AdapterConfig`), by default those of the pipeline.

    Assisted generation: ``num_assistant_tokens`` (None or an integer), ``assistant_confidence_threshold``,
    ``max_ngram_size``; ``branching_factor`` and ``tree_depth`` of a tree search.

    Raises: TypeError for an assigned value of another type; RuntimeError for such a keyword, and for a file that cannot
    be read.
    """

    __slots__ = ()

    adapters = _Adapters(None)
    apply_chat_template = Flag(True)
    assistant_confidence_threshold = Real(0.0)
    branching_factor = Integer(1)
    diversity_penalty = Real(0.0)
    do_sample = Flag(False)
    echo = Flag(False)
    eos_token_id = Integer(-1, -(2**63), 2**63 - 1)
    frequency_penalty = Real(0.0)
    ignore_eos = Flag(False)
    include_stop_str_in_output = Flag(False)
    length_penalty = Real(1.0)
    logprobs = Integer(0)
    max_length = Integer(UNLIMITED)
    max_new_tokens = Integer(UNLIMITED)
    max_ngram_size = Integer(0)
    min_new_tokens = Integer(0)
    min_p = Real(0.0)
    no_repeat_ngram_size = Integer(UNLIMITED)
    num_assistant_tokens = OptionalInteger(None)
    num_beam_groups = Integer(1)
    num_beams = Integer(1)
    num_return_sequences = Integer(1)
    parsers = _Parsers([])
    presence_penalty = Real(0.0)
    pruning_ratio = Integer(0)
    relevance_weight = Real(0.5)
    repetition_penalty = Real(1.0)
    return_omni_outputs = Flag(False)
    rng_seed = Integer(0)
    stop_criteria = Member(StopCriteria.HEURISTIC)
    stop_strings = TextSet(set())
    stop_token_ids = TokenSet(set())
    structured_output_config = _Form(None)
    temperature = Real(1.0)
    top_k = Integer(UNLIMITED)
    top_p = Real(1.0)
    tree_depth = Integer(0)

    def __init__(self, json_path: str | os.PathLike[str] | bytes | None = None, **kwargs: Any) -> None:
        super().__init__()
        if json_path is None:
            self.update_generation_config(**kwargs)
        elif kwargs or not isinstance(json_path, (str, os.PathLike, bytes)):
            raise TypeError(
                f"{type(self).__name__} takes either the path of a generation_config.json, or fields as keywords"
            )
        else:
            self._read(Path(os.fsdecode(json_path)))

    def update_generation_config(self, **kwargs: Any) -> None:
        """Set fields. An ``eos_token_id`` other than -1 is added to the stop tokens.

        Raises: RuntimeError for an unknown field and for a value of another type. No field is set then.
        """
        self._set(kwargs)
        self._add_eos()

    def set_eos_token_id(self, tokenizer_eos_token_id: int) -> None:
        """Set ``eos_token_id``, and add it to the stop tokens."""
        self.eos_token_id = tokenizer_eos_token_id
        self.stop_token_ids = self.stop_token_ids | {self.eos_token_id}

    def is_greedy_decoding(self) -> bool:
        """Return whether the most likely token is taken at each step."""
        return not (self.do_sample or self.is_beam_search() or self.is_tree_search())

    def is_beam_search(self) -> bool:
        """Return whether there is more than one beam."""
        return self.num_beams > 1

    def is_multinomial(self) -> bool:
        """Return whether tokens are drawn at random."""
        return self.do_sample

    def is_tree_search(self) -> bool:
        """Return whether a draft model proposes a tree of tokens."""
        return self.tree_depth > 0

    def is_assisting_generation(self) -> bool:
        """Return whether a draft model or the prompt proposes tokens."""
        return self.assistant_confidence_threshold > 0 or bool(self.num_assistant_tokens)

    def is_prompt_lookup(self) -> bool:
        """Return whether the prompt proposes tokens."""
        return self.max_ngram_size > 0 and bool(self.num_assistant_tokens)

    def validate(self) -> None:
        """Raise RuntimeError if fields contradict each other or are out of range."""
        for broken, message in self._faults():
            if broken:
                raise Error(message)
        if self.structured_output_config is not None:
            self.structured_output_config.validate()

    def get_max_new_tokens(self, prompt_length: int) -> int:
        """Return the most tokens that may follow a prompt. Raises: RuntimeError if ``max_length`` allows none."""
        if self.max_new_tokens != UNLIMITED:
            return self.max_new_tokens
        if self.max_length <= prompt_length:
            raise Error(f"max_length is {self.max_length}, and the prompt already has {prompt_length} tokens")
        return self.max_length - prompt_length

    def _add_eos(self) -> None:
        if self.eos_token_id != -1:
            self.set_eos_token_id(self.eos_token_id)

    def _read(self, path: Path) -> None:
        """Set the fields that a generation_config.json has."""
        data = read_object(path)
        ends = data.get("eos_token_id")
        if isinstance(ends, list):
            self.stop_token_ids = set(ends)
            data = data | {"eos_token_id": ends[0] if ends else None}
        stop = {"never": StopCriteria.NEVER, True: StopCriteria.EARLY, False: StopCriteria.HEURISTIC}
        early = data.get("early_stopping")
        if isinstance(early, (bool, str)) and early in stop:
            self.stop_criteria = stop[early]
        for name in IN_FILES:
            if not isinstance(data.get(name), list) or name == "stop_strings":
                self._set_from_file(path, name, data.get(name))
        self._add_eos()

    def _set_from_file(self, path: Path, name: str, value: Any) -> None:
        """Set a field to its value in a file, None if that has none."""
        field = self._fields[name]
        if value is None:
            return
        try:
            found = field.from_json(value)
        except TypeError:
            raise Error(f"{path}: {name} must be {field.what}, not {value!r}") from None
        if found is not NotImplemented:
            self._values[name] = found

    def _faults(self) -> Iterator[tuple[bool, str]]:
        """Yield rules in the order of openvino_genai: whether one is broken, and the message for that."""
        ends = self.stop_token_ids
        limited = self.max_new_tokens != UNLIMITED or self.max_length != UNLIMITED
        texts, beams = self.num_return_sequences, self.is_beam_search()
        yield texts == 0, "num_return_sequences must be greater than 0"
        yield (
            self.eos_token_id != -1 and self.eos_token_id not in ends,
            f"stop_token_ids must contain eos_token_id, {self.eos_token_id}: call set_eos_token_id",
        )
        yield any(token < 0 for token in ends), f"stop_token_ids must not be negative: {sorted(ends)}"
        yield self.ignore_eos and not limited, "ignore_eos needs max_new_tokens or max_length"
        yield (
            not (self.eos_token_id != -1 or ends or self.stop_strings or limited),
            "nothing would end the text: set eos_token_id, stop_token_ids, stop_strings, max_new_tokens or max_length",
        )
        yield self.max_new_tokens == 0 and not self.echo, "max_new_tokens must be greater than 0, unless echo is set"
        yield (
            self.min_new_tokens > self.max_new_tokens,
            f"min_new_tokens, {self.min_new_tokens}, is greater than max_new_tokens, {self.max_new_tokens}",
        )
        yield (
            texts > 1 and not (self.do_sample or beams),
            f"num_return_sequences is {texts}, which needs do_sample or num_beams > 1",
        )
        for name in ("frequency_penalty", "presence_penalty"):
            value = getattr(self, name)
            if beams:
                yield value != 0, f"beam search does not support {name}: it must be 0, not {value:g}"
            else:
                yield not -2 <= value <= 2, f"{name} must be from -2 to 2, not {value:g}"
        repetition = self.repetition_penalty
        if beams:
            yield repetition != 1, f"beam search does not support repetition_penalty: it must be 1, not {repetition:g}"
        else:
            yield not repetition > 0, f"repetition_penalty must be greater than 0, not {repetition:g}"
        if self.do_sample:
            yield not 0 < self.top_p <= 1, f"top_p must be greater than 0 and at most 1, not {self.top_p:g}"
            yield not self.temperature > 0, f"temperature must be greater than 0, not {self.temperature:g}"
            yield not 0 <= self.min_p < 1, f"min_p must be from 0 to below 1, not {self.min_p:g}"
        if beams:
            yield from self._beam_faults()
        yield from self._assistant_faults()

    def _beam_faults(self) -> Iterator[tuple[bool, str]]:
        beams, groups = self.num_beams, self.num_beam_groups
        yield groups == 0 or beams % groups != 0, f"num_beams, {beams}, must be a multiple of num_beam_groups, {groups}"
        yield (
            beams < self.num_return_sequences,
            f"num_beams, {beams}, is less than num_return_sequences, {self.num_return_sequences}",
        )
        yield self.do_sample, "beam search does not draw tokens: set do_sample=False or num_beams=1"
        yield self.no_repeat_ngram_size == 0, "no_repeat_ngram_size must be greater than 0"
        if groups > 1:
            yield self.diversity_penalty == 0, "num_beam_groups > 1 needs a diversity_penalty other than 0"
        else:
            yield self.diversity_penalty != 0, "diversity_penalty needs num_beam_groups > 1"

    def _assistant_faults(self) -> Iterator[tuple[bool, str]]:
        tokens = self.num_assistant_tokens or 0
        if self.is_tree_search():
            yield self.do_sample, "tree search does not draw tokens: set do_sample=False or tree_depth=0"
            yield self.num_beams != 1, "tree search has no beams: set num_beams=1 or tree_depth=0"
            yield self.branching_factor == 0, "tree search needs a branching_factor greater than 0"
            yield tokens == 0, "tree search needs num_assistant_tokens greater than 0"
            yield (
                tokens < self.tree_depth,
                f"num_assistant_tokens, {tokens}, is less than tree_depth, {self.tree_depth}",
            )
        if self.is_assisting_generation():
            yield (
                self.is_beam_search() or self.num_return_sequences > 1,
                "assisted generation has one text: set num_beams=1 and num_return_sequences=1",
            )
            yield (
                self.assistant_confidence_threshold != 0 and tokens != 0,
                "assistant_confidence_threshold and num_assistant_tokens exclude each other",
            )
        yield tokens == 0 and self.max_ngram_size != 0, "max_ngram_size needs num_assistant_tokens greater than 0"


FIELDS = GenerationConfig._fields
IN_FILES = (
    "eos_token_id max_new_tokens max_length ignore_eos min_new_tokens stop_strings include_stop_str_in_output echo "
    "logprobs repetition_penalty frequency_penalty presence_penalty num_beam_groups num_beams diversity_penalty "
    "length_penalty num_return_sequences no_repeat_ngram_size do_sample temperature top_p top_k min_p "
    "assistant_confidence_threshold num_assistant_tokens max_ngram_size branching_factor tree_depth"
).split()
"""Fields that are read from a generation_config.json."""
