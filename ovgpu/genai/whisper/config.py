"""Classes WhisperGenerationConfig and ASRGenerationConfig: settings of a transcription, with the fields, defaults and
rules of openvino_genai."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ovgpu.errors import Error
from ovgpu.genai.fields import Absent, Field, Flag, Integer
from ovgpu.genai.files import read_object
from ovgpu.genai.generation_config import GenerationConfig

TASKS = ("transcribe", "translate")
LISTS = ("begin_suppress_tokens", "suppress_tokens", "alignment_heads")  # fields with lists, in a file
INTEGERS = (
    "decoder_start_token_id",
    "pad_token_id",
    "no_timestamps_token_id",
    "max_initial_timestamp_index",
    "prev_sot_token_id",
)


class _Token(Integer):
    """Token, which may be negative."""

    def __init__(self, default: int) -> None:
        super().__init__(default, -(2**63), 2**63 - 1)


TOKEN = _Token(0)


class _Size(Integer):
    """Integer from 0 on, of 63 bits as a keyword."""

    def from_keyword(self, value: Any) -> int:
        if isinstance(value, int) and value >= 2**63:
            raise TypeError
        return super().from_keyword(value)


class _Text(Field[str | None]):
    what = "None or a text"

    def checked(self, value: Any) -> str | None:
        return None if value is None else self.from_json(value)

    def from_keyword(self, value: Any) -> str:
        return self.from_json(value)

    def from_json(self, value: Any) -> str:
        if not isinstance(value, (str, bytes)):
            raise TypeError
        return value.decode() if isinstance(value, bytes) else value


class _TokenList(Field[list[int]]):
    what = "a list of integers"

    def copied(self, value: Any) -> list[int]:
        return list(value)

    def checked(self, value: Any) -> tuple[int, ...]:
        return tuple(TOKEN.checked(item) for item in _items(value))

    def from_keyword(self, value: Any) -> tuple[int, ...]:
        if not isinstance(value, list):
            raise TypeError
        return self.checked(value)

    def from_json(self, value: Any) -> Any:
        return tuple(TOKEN.from_json(item) for item in value) if isinstance(value, list) else NotImplemented


class _Heads(Field[list[tuple[int, int]]]):
    what = "a list of pairs (layer, head) of integers from 0 on"

    def copied(self, value: Any) -> list[tuple[int, int]]:
        return list(value)

    def checked(self, value: Any) -> tuple[tuple[int, int], ...]:
        return tuple(self._pair(item, Integer(0).checked) for item in _items(value))

    def from_json(self, value: Any) -> Any:
        if not isinstance(value, list):
            return NotImplemented
        return tuple(self._pair(item, Integer(0).from_json) for item in value)

    @staticmethod
    def _pair(value: Any, convert: Any) -> tuple[int, int]:
        pair = tuple(convert(item) for item in _items(value))
        if len(pair) != 2:
            raise TypeError
        return pair


class _Languages(Field[dict[str, int]]):
    what = "a dict of tokens by texts"

    def copied(self, value: Any) -> dict[str, int]:
        return dict(value)

    def checked(self, value: Any) -> dict[str, int]:
        return self._converted(value, TOKEN.checked)

    def from_json(self, value: Any) -> Any:
        return self._converted(value, TOKEN.from_json) if isinstance(value, dict) else NotImplemented

    @staticmethod
    def _converted(value: Any, convert: Any) -> dict[str, int]:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise TypeError
        return {name: convert(token) for name, token in value.items()}


class SpeechConfig(GenerationConfig):
    """Fields of both configurations, which `WhisperGenerationConfig` describes."""

    __slots__ = ()

    adapters = Absent[Any](None)
    alignment_heads = _Heads([])
    apply_chat_template = Flag(False)
    begin_suppress_tokens = _TokenList([])
    decoder_start_token_id = _Token(50258)
    hotwords = _Text(None)
    initial_prompt = _Text(None)
    is_multilingual = Flag(True)
    lang_to_id = _Languages({})
    language = _Text(None)
    max_initial_timestamp_index = _Size(50)
    no_timestamps_token_id = _Token(50363)
    pad_token_id = _Token(50257)
    prev_sot_token_id = _Token(50361)
    return_timestamps = Flag(False)
    structured_output_config = Absent[Any](None)
    suppress_tokens = _TokenList([])
    task = _Text(None)
    transcribe_token_id = _Token(50359)
    translate_token_id = _Token(50358)
    word_timestamps = Flag(False)

    def language_token(self, language: str) -> int:
        """Return the token of a language, such as "en" or "<|en|>". Raises: RuntimeError for an unknown one."""
        wrapped = len(language) > 4 and language.startswith("<|") and language.endswith("|>")
        token = self.lang_to_id.get(language if wrapped else f"<|{language}|>")
        if token is None:
            known = ", ".join(sorted(self.lang_to_id))
            raise Error(f"the model does not know the language {language!r}, only {known}")
        return token

    def _faults(self) -> Iterator[tuple[bool, str]]:
        yield from super()._faults()
        yield self.num_return_sequences != 1, f"num_return_sequences must be 1, not {self.num_return_sequences}"
        yield self.is_assisting_generation(), "models of speech do not support assisted generation"

    def _read(self, path: Path) -> None:
        super()._read(path)
        data = read_object(path)
        for name in (*LISTS, *INTEGERS, "is_multilingual", "lang_to_id"):
            value = data.get(name)
            if not isinstance(value, list) or name in LISTS:
                self._set_from_file(path, name, value)
        tokens = data.get("task_to_id")
        if self.is_multilingual and isinstance(tokens, dict):
            for task in TASKS:
                self._set_from_file(path, f"{task}_token_id", tokens.get(task))


class WhisperGenerationConfig(SpeechConfig):
    """Settings of a transcription by a `WhisperPipeline`: those of a `GenerationConfig`, and these.

    ``WhisperGenerationConfig(path)`` reads a generation_config.json, ``WhisperGenerationConfig(**fields)`` sets fields.

    Wanted text: ``task`` is "transcribe", "translate" (into English) or None, which is the first; ``language`` is that
    of the speech, such as "en" or "<|en|>", or None to detect it. Only a model that ``is_multilingual`` (bool, True)
    takes them. ``return_timestamps`` (bool) gives the text in chunks with their times, ``word_timestamps`` (bool) the
    time of each word, by the attention of ``alignment_heads``, a list of pairs (layer, head). ``initial_prompt`` (None
    or a text) stands before the text of the first window, ``hotwords`` before that of each one, as if they had been
    spoken before.

    Tokens of the model: ``decoder_start_token_id``, ``pad_token_id``, ``prev_sot_token_id``, ``transcribe_token_id``,
    ``translate_token_id``, ``no_timestamps_token_id``, which the tokens of times follow, and ``lang_to_id``, a dict of
    tokens by names such as "<|en|>". ``suppress_tokens`` are never generated, nor are ``begin_suppress_tokens`` as the
    first one. The first time is ``max_initial_timestamp_index`` steps after the begin of the window, at most.

    Raises: TypeError for an assigned value of another type; RuntimeError for such a keyword, and for a file that cannot
    be read.
    """

    __slots__ = ()

    def validate(self) -> None:
        """Raise RuntimeError if fields contradict each other or are out of range."""
        super().validate()
        if self.is_multilingual and self.language is not None:
            self.language_token(self.language)

    def _faults(self) -> Iterator[tuple[bool, str]]:
        yield from super()._faults()
        task = self.task
        if self.is_multilingual:
            yield not self.lang_to_id, "lang_to_id is empty: take it from generation_config.json of the model"
            yield task is not None and task not in TASKS, f"task must be 'transcribe' or 'translate', not {task!r}"
        else:
            yield self.language is not None, "the model is not multilingual: language must be None"
            yield task is not None, "the model is not multilingual: task must be None"
        yield self.word_timestamps and not self.alignment_heads, "word_timestamps needs alignment_heads"


class ASRGenerationConfig(SpeechConfig):
    """Settings of a transcription by an `ASRPipeline`: those of a `WhisperGenerationConfig`, and ``context`` (None or a
    text), which has no effect on Whisper models. generate() checks more rules than `validate`.

    Raises: TypeError for an assigned value of another type; RuntimeError for such a keyword, and for a file that cannot
    be read.
    """

    __slots__ = ()

    context = _Text(None)

    def for_whisper(self) -> WhisperGenerationConfig:
        """Return the configuration for a `WhisperPipeline`."""
        config = WhisperGenerationConfig()
        config._values.update({name: value for name, value in self._values.items() if name in config._fields})
        return config


def _items(value: Any) -> Sequence[Any]:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise TypeError
    return value
