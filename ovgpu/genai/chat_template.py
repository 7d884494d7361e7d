"""Chat templates: where a model's folder has one, and the text that it gives."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from ovgpu._util.extras import install_command
from ovgpu.errors import Error
from ovgpu.genai.files import read_json

PROBE = "what a user says"


def find_template(folder: Path | None, rt_info: Mapping[str, Any]) -> str:
    """Return the chat template of a folder, if there is one; "" if there is no template.

    ``rt_info`` is the runtime information of openvino_tokenizer.xml, whose template comes first, as in openvino_genai.
    """
    baked = rt_info.get("chat_template")
    if isinstance(baked, dict):
        baked = baked.get("default")
    if isinstance(baked, str) and baked:
        return baked
    if folder is None:
        return ""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    for name in ("chat_template.json", "processor_config.json", "tokenizer_config.json"):
        template = read_json(folder / name).get("chat_template")
        if isinstance(template, list):
            named = {entry.get("name"): entry.get("template") for entry in template}
            template = named.get("default") or next(iter(named.values()), None)
        if isinstance(template, str) and template:
            return template
    return ""


def render(
    template: str,
    messages: Sequence[Any],
    add_generation_prompt: bool,
    tools: Sequence[Any],
    variables: Mapping[str, Any],
) -> str:
    """Return the text of a chat by a template, which jinja2's sandbox renders with the functions of transformers.

    Texts of messages become lists with a part, if the template shows such parts alone, as LLaVA's does. ``variables``
    are further ones, such as bos_token. Raises: Error if there is no template, it refuses the chat, its text is empty,
    or jinja2 is missing.
    """
    if not template:
        raise Error(
            "there is no chat template, neither in openvino_tokenizer.xml nor in chat_template.jinja or "
            "tokenizer_config.json: the model may not be made for chats"
        )
    try:
        import_module("jinja2.sandbox")
        errors: Any = import_module("jinja2").TemplateError
    except ImportError:
        raise Error(f"chat templates need the package jinja2: {install_command('genai')}") from None
    try:
        text: str = _compiled(template).render(
            messages=[_in_parts(message) for message in messages] if _needs_parts(template) else messages,
            add_generation_prompt=add_generation_prompt,
            tools=list(tools) or None,
            documents=None,
            **variables,
        )
    except (errors, TypeError) as e:  # TypeError: such as adding None to a string
        raise Error(f"the chat template fails: {e}") from None
    if not text:
        raise Error("the chat template gives an empty text")
    return text


@lru_cache(8)
def _needs_parts(template: str) -> bool:
    """Return whether a template shows no content that is a text, but one that is a list with its part."""
    errors: Any = import_module("jinja2").TemplateError

    def shows(message: Any) -> bool:
        try:
            return PROBE in _compiled(template).render(messages=[message], bos_token="", eos_token="")
        except (errors, TypeError):
            return False

    message = {"role": "user", "content": PROBE}
    return not shows(message) and shows(_in_parts(message))


def _in_parts(message: Any) -> Any:
    """Return a message whose content is no text."""
    if not isinstance(message, dict) or not isinstance(message.get("content"), str):
        return message
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


@lru_cache(8)
def _compiled(template: str) -> Any:
    sandbox: Any = import_module("jinja2.sandbox")
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    # transformers adds the statement {% generation %} to jinja2, which marks the model's own messages.
    return environment.from_string(
        re.sub(
            r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})",
            lambda match: f"{match[1]}{'endif' if match[2] else 'if true'}{match[3]}",
            template,
        )
    )


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> str:
    """Raise the error of a template that refuses the messages."""
    raise import_module("jinja2").TemplateError(message)
