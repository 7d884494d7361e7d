"""Requests to write speech down, in OpenAI's protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ovgpu.serve.openai.errors import FieldError
from ovgpu.serve.openai.fields import Fields
from ovgpu.serve.openai.forms import FILE, Form

JSON, VERBOSE = "json", "verbose_json"
TIMED = ("srt", "vtt")
FORMATS = (JSON, "text", *TIMED, VERBOSE)
GRANULARITIES = "timestamp_granularities[]"
INCLUDE = "include[]"
KINDS = ("segment", "word")
FLAGS = {"true": True, "false": False}


@dataclass(frozen=True)
class SpeechRequest:
    """Request to write the speech in an audio ``file`` down, or with ``translates``, in English.

    ``language`` is None to detect it. ``segments`` and ``words`` are wanted with their times. ``format`` is one of
    `FORMATS`.
    """

    model: str
    file: bytes
    translates: bool
    language: str | None
    prompt: str | None
    format: str
    temperature: float
    segments: bool
    words: bool
    stream: bool


def parse_speech(form: Form, translates: bool) -> SpeechRequest:
    """Return the request of a form. Raises: FieldError for one that does not follow the protocol."""
    if form.file is None:
        raise FieldError(FILE, f"'{FILE}' is no file" if FILE in form.fields else f"'{FILE}' is missing")
    given = {name: values for name, values in form.fields.items() if values != [""]}
    kinds = [*given.pop(GRANULARITIES, []), *given.pop(GRANULARITIES.removesuffix("[]"), [])]
    if given.get(INCLUDE):
        raise FieldError(INCLUDE, f"'{INCLUDE}' is not supported", "unsupported_parameter")
    for name, values in given.items():
        if len(values) > 1:
            raise FieldError(name, f"the form has '{name}' twice")
    fields = Fields({name: _value(name, value) for name, (value,) in given.items()})
    shape = fields.text("response_format") if "response_format" in given else JSON
    stream = fields.flag("stream")
    if shape not in FORMATS:
        raise FieldError("response_format", f"'response_format' is not one of {', '.join(FORMATS)}")
    if stream and shape != JSON:
        raise FieldError("response_format", "a stream has events of text: its 'response_format' is json")
    if any(kind not in KINDS for kind in kinds):
        raise FieldError(GRANULARITIES, f"'{GRANULARITIES}' are not among {', '.join(KINDS)}")
    if kinds and shape != VERBOSE:
        raise FieldError(GRANULARITIES, f"'{GRANULARITIES}' need 'response_format' {VERBOSE}")
    return SpeechRequest(
        model=fields.text("model"),
        file=form.file,
        translates=translates,
        language=fields.text("language").lower() if "language" in given else None,
        prompt=fields.text("prompt") if "prompt" in given else None,
        format=shape,
        temperature=fields.number("temperature", 0, 1) or 0.0,
        segments=shape in TIMED or (shape == VERBOSE and (not kinds or "segment" in kinds)),
        words="word" in kinds,
        stream=stream,
    )


def _value(name: str, text: str) -> Any:
    """Return the value of a field's text, itself where it is none of the field's type."""
    if name == "stream":
        return FLAGS.get(text.lower(), text)
    if name == "temperature":
        try:
            return float(text)
        except ValueError:
            return text
    return text
