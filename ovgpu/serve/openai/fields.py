"""Fields of requests in OpenAI's protocol: their names, and how their values are read."""

from __future__ import annotations

from typing import Any

from ovgpu.serve.openai.errors import FieldError

BOTH = {
    "model": "",
    "stream": "",
    "stream_options": "`include_usage`",
    "n": "prompts times `n` are at most 128",
    "stop": "up to 16 strings; the text ends right before one",
    "include_stop_str_in_output": "the text ends behind the stop string",
    "stop_token_ids": "tokens that end the text",
    "max_tokens": "by default up to the model's context, and 16 in completions; cut to the context",
    "min_tokens": "before so many tokens, no stop token is generated",
    "ignore_eos": "",
    "seed": "without, each text has a random one; choice i has `seed` + i",
    "temperature": "1 by default, or that of generation_config.json; 0 is greedy search",
    "top_p": "",
    "top_k": "-1 and 0 allow all tokens",
    "min_p": "",
    "presence_penalty": "",
    "frequency_penalty": "",
    "repetition_penalty": "",
    "logit_bias": "",
    "response_format": "`text`, `json_object`, `json_schema`; needs llguidance",
}
"""Fields of both endpoints, and what is to know about them."""

CHAT = {
    "messages": "text, and parts of text, which are joined by newlines; each model's template has its own roles",
    "max_completion_tokens": "another name of `max_tokens`",
    "logprobs": "of the chosen tokens",
    "top_logprobs": "0 or 1: only the chosen token is known",
    "tools": "for the chat template; calls in an answer are found in the format of the template, see below",
    "tool_choice": "`none`, `auto`, `required`, or a function; a forced call needs llguidance",
    "parallel_tool_calls": "with `false`, only the first call of an answer stays",
    "chat_template_kwargs": "further variables of the chat template",
    "reasoning_effort": "a variable of the chat template",
}
"""Fields of chats."""

COMPLETIONS = {
    "prompt": "a text or tokens, or a list of these",
    "echo": "without `logprobs`",
    "logprobs": "0 or 1: only the chosen token is known",
}
"""Fields of completions."""

SPEECH = {
    "file": "WAV, FLAC, Ogg, MP3 and others that libsndfile reads, of up to an hour; any sampling rate",
    "model": "",
    "language": "by default, the model detects it",
    "prompt": "",
    "temperature": "from 0 (the default) to 1",
    "response_format": "`json`, `text`, `srt`, `vtt`, `verbose_json`, whose segments have texts and times",
    "timestamp_granularities[]": "`segment`, `word`; with `verbose_json`",
    "stream": "events `transcript.text.delta` and `transcript.text.done`; with `json`",
}
"""Fields of forms with speech. Others are ignored, but for ``include[]``, which is an error."""

IGNORED = (
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
    "verbosity",
)
"""Fields without effect, like those that are not known."""

REFUSED: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "chat_template": (),
    "function_call": ("none",),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "modalities": (["text"],),
    "prediction": (),
    "prompt_logprobs": (),
    "structured_outputs": (),
    "suffix": ("",),
    "use_beam_search": (False,),
    "web_search_options": (),
}
"""Fields that are an error, except with these values, which change nothing."""


class Fields:
    """Fields of a request. A field that is null counts as missing. Raises: FieldError for a value of another type."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._values = {name: value for name, value in document.items() if value is not None}
        for name, neutral in REFUSED.items():
            value = self._values.get(name)
            if value is not None and value not in neutral:
                raise FieldError(name, f"'{name}' is not supported", "unsupported_parameter")

    def get(self, name: str) -> Any:
        """Return a value, None if it is missing."""
        return self._values.get(name)

    def text(self, name: str) -> str:
        """Return a string. Raise FieldError if it is missing."""
        value = self.get(name)
        if not isinstance(value, str):
            raise FieldError(name, f"'{name}' is no string" if name in self._values else f"'{name}' is missing")
        return value

    def flag(self, name: str) -> bool:
        """Return a boolean, by default False."""
        value = self._values.get(name, False)
        if not isinstance(value, bool):
            raise FieldError(name, f"'{name}' is no boolean")
        return value

    def integer(self, name: str, least: int, most: int) -> int | None:
        """Return an integer, None if it is missing."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise FieldError(name, f"'{name}' is no integer from {least} to {most}")
        return value

    def number(self, name: str, least: float, most: float) -> float | None:
        """Return a number, None if it is missing."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
            raise FieldError(name, f"'{name}' is no number from {least:g} to {most:g}")
        return float(value)

    def object(self, name: str) -> dict[str, Any]:
        """Return an object, by default an empty one."""
        value = self._values.get(name, {})
        if not isinstance(value, dict):
            raise FieldError(name, f"'{name}' is no object")
        return value

    def list(self, name: str, most: int) -> list[Any]:
        """Return a list of at most so many values, by default an empty one."""
        value = self._values.get(name, [])
        if not isinstance(value, list) or len(value) > most:
            raise FieldError(name, f"'{name}' is no list of at most {most} values")
        return value
