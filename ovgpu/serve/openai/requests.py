"""Requests for texts in OpenAI's protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ovgpu.serve.openai.errors import FieldError
from ovgpu.serve.openai.fields import Fields
from ovgpu.serve.openai.tool_formats import Functions, schema_of_call

MAX_TEXTS = 128  # of a request: prompts times n
MAX_STOPS = 16
MAX_STOP_LENGTH = 1024  # characters
MAX_LIST = 1 << 16  # messages, tools and stop tokens
MAX_TOKENS = 1 << 30
MAX_BIAS = 100.0
MAX_SEED = 1 << 63
COMPLETION_TOKENS = 16  # of a completion that sets no limit

MAX_INPUTS = 2048  # texts of embeddings and rerank

Prompt = str | list[int]


@dataclass(frozen=True)
class Chat:
    """Messages of a chat, and what else its template gets."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    variables: dict[str, Any]


@dataclass(frozen=True)
class TextRequest:
    """Request for texts: a chat, or ``prompts`` that are continued ``n`` times each.

    ``settings`` has those fields of `GenerationConfig` that the request sets. ``temperature`` is None for that of the
    model, ``max_tokens`` None for the model's limit, ``seed`` None for random ones. Texts follow ``schema``, a JSON
    schema, if there is one. With ``function``, they are the arguments of a call of this function, and ``end`` is the
    reason for the end of a whole one. With ``calls``, each is a call of one of the chat's functions. Other texts
    have at most one call without ``parallel_calls``.
    """

    model: str
    chat: Chat | None
    prompts: list[Prompt]
    n: int
    stream: bool
    include_usage: bool
    settings: dict[str, Any]
    temperature: float | None
    max_tokens: int | None
    seed: int | None
    stops: tuple[str, ...]
    include_stop: bool
    logprobs: bool
    echo: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    schema: str | None = None
    function: str | None = None
    end: str = "stop"
    calls: bool = False
    parallel_calls: bool = True


def parse_chat(document: dict[str, Any]) -> TextRequest:
    """Return the request of a chat. Raises: FieldError for a body that does not follow the protocol."""
    fields = Fields(document)
    messages = [_message(i, message) for i, message in enumerate(fields.list("messages", MAX_LIST))]
    if not messages:
        raise FieldError("messages", "'messages' is missing or empty")
    tools = [_tool(i, tool) for i, tool in enumerate(fields.list("tools", MAX_LIST))]
    choice = _tool_choice(fields, tools)
    variables = dict(fields.object("chat_template_kwargs"))
    if fields.get("reasoning_effort") is not None:
        variables["reasoning_effort"] = fields.text("reasoning_effort")
    common = _common(fields, [], None)
    if fields.integer("top_logprobs", 0, 1) is not None and not fields.flag("logprobs"):
        raise FieldError("top_logprobs", "'top_logprobs' needs 'logprobs'")
    if choice:
        if common["schema"] is not None:
            raise FieldError("tool_choice", "'tool_choice' that forces a call excludes 'response_format'")
        if len(choice) > 1:
            common["schema"], common["calls"] = schema_of_call(choice), True
        else:
            ((common["function"], parameters),) = choice.items()
            common["schema"] = json.dumps(parameters)
            common["end"] = "tool_calls" if fields.get("tool_choice") == "required" else "stop"
    common["parallel_calls"] = fields.get("parallel_tool_calls") is None or fields.flag("parallel_tool_calls")
    given = [] if fields.get("tool_choice") == "none" else tools
    return TextRequest(chat=Chat(messages, given, variables), logprobs=fields.flag("logprobs"), **common)


def parse_completion(document: dict[str, Any]) -> TextRequest:
    """Return the request of a completion. Raises: FieldError for a body that does not follow the protocol."""
    fields = Fields(document)
    prompts = _prompts(fields.get("prompt"))
    common = _common(fields, prompts, COMPLETION_TOKENS)
    logprobs, echo = fields.integer("logprobs", 0, 1) is not None, fields.flag("echo")
    if logprobs and echo:
        raise FieldError("logprobs", "'logprobs' of a prompt are not known: leave out 'echo'", "unsupported_parameter")
    return TextRequest(chat=None, logprobs=logprobs, echo=echo, **common)


@dataclass(frozen=True)
class RetrievalRequest:
    """Request for the vectors of texts, or with a ``query`` for their order.

    ``base64`` writes vectors as bytes of f32. The ``top_n`` best texts are returned, with ``documents`` as text, too.
    """

    model: str
    texts: list[str]
    query: str | None = None
    base64: bool = False
    top_n: int | None = None
    documents: bool = False


def parse_embeddings(document: dict[str, Any]) -> RetrievalRequest:
    """Return the request of embeddings. Raises: FieldError for a body that does not follow the protocol."""
    fields = Fields(document)
    given = fields.get("input")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not 0 < len(texts) <= MAX_INPUTS or not all(isinstance(x, str) for x in texts):
        raise FieldError("input", f"'input' is no text, and no list of 1 to {MAX_INPUTS} texts")
    form = "float" if fields.get("encoding_format") is None else fields.text("encoding_format")
    if form not in ("float", "base64"):
        raise FieldError("encoding_format", "'encoding_format' is neither float nor base64")
    if fields.get("dimensions") is not None:
        raise FieldError("dimensions", "'dimensions' is not supported", "unsupported_parameter")
    return RetrievalRequest(fields.text("model"), texts, base64=form == "base64")


def parse_rerank(document: dict[str, Any]) -> RetrievalRequest:
    """Return the request of rerank. Raises: FieldError for a body that does not follow the protocol."""
    fields = Fields(document)
    given = fields.list("documents", MAX_INPUTS)
    texts: list[Any] = [text.get("text") if isinstance(text, dict) else text for text in given]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise FieldError("documents", "'documents' is missing, empty, or has values that are no texts")
    top_n = fields.integer("top_n", 1, MAX_TOKENS)
    documents = fields.flag("return_documents")
    return RetrievalRequest(fields.text("model"), texts, fields.text("query"), top_n=top_n, documents=documents)


def _common(fields: Fields, prompts: list[Prompt], max_tokens: int | None) -> dict[str, Any]:
    """Return the fields of both endpoints. ``max_tokens`` is the default."""
    n = fields.integer("n", 1, MAX_TEXTS) or 1
    if n * len(prompts) > MAX_TEXTS:
        raise FieldError("n", f"'n' times the number of prompts is {n * len(prompts)}, of at most {MAX_TEXTS}")
    settings: dict[str, Any] = {}
    for name, least, most in (
        ("top_p", 0.0, 1.0),
        ("min_p", 0.0, 1.0),
        ("presence_penalty", -2.0, 2.0),
        ("frequency_penalty", -2.0, 2.0),
        ("repetition_penalty", 0.0, 100.0),
    ):
        number = fields.number(name, least, most)
        if number is not None:
            settings[name] = number
    top_k = fields.integer("top_k", -1, MAX_TOKENS)
    if top_k is not None:
        settings["top_k"] = top_k if top_k > 0 else MAX_SEED
    min_tokens = fields.integer("min_tokens", 0, MAX_TOKENS)
    if min_tokens is not None:
        settings["min_new_tokens"] = min_tokens
    ends = fields.list("stop_token_ids", MAX_LIST)
    if not all(_is_token(end) for end in ends):
        raise FieldError("stop_token_ids", "'stop_token_ids' are no tokens")
    if ends:
        settings["stop_token_ids"] = set(ends)
    if fields.flag("ignore_eos"):
        settings["ignore_eos"] = True
    limits = [fields.integer(name, 1, MAX_TOKENS) for name in ("max_completion_tokens", "max_tokens")]
    options = fields.object("stream_options")
    return {
        "model": fields.text("model"),
        "prompts": prompts,
        "n": n,
        "stream": fields.flag("stream"),
        "include_usage": Fields(options).flag("include_usage"),
        "settings": settings,
        "temperature": fields.number("temperature", 0, 100),
        "max_tokens": next((limit for limit in limits if limit is not None), max_tokens),
        "seed": fields.integer("seed", -MAX_SEED, MAX_SEED - 1),
        "stops": _stops(fields.get("stop")),
        "include_stop": fields.flag("include_stop_str_in_output"),
        "logit_bias": _biases(fields.object("logit_bias")),
        "schema": _schema(fields.object("response_format")),
    }


def _message(i: int, message: Any) -> dict[str, Any]:
    """Return a message as chat templates take it: with a content of text, and arguments of calls as objects."""
    where = f"messages[{i}]"
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise FieldError("messages", f"{where} is no object with a 'role'")
    found = dict(message)
    content = message.get("content")
    if isinstance(content, list):
        found["content"] = "\n".join([_part(where, part) for part in content])
    elif content is not None and not isinstance(content, str):
        raise FieldError("messages", f"the content of {where} is neither a string nor a list of parts")
    calls = message.get("tool_calls")
    if calls is None:
        found.pop("tool_calls", None)
        if content is None:
            found["content"] = ""
    elif not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise FieldError("messages", f"the tool_calls of {where} are no list of objects")
    else:
        found["tool_calls"] = [_call(call) for call in calls]
    return found


def _part(where: str, part: Any) -> str:
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise FieldError("messages", f"the content of {where} has a part that is no text", "unsupported_value")
    text: str = part["text"]
    return text


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call of a tool, whose arguments are an object if they can be read."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


def _tool(i: int, tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise FieldError("tools", f"tools[{i}] is no function with a name")
    if not isinstance(function.get("parameters", {}), dict):
        raise FieldError("tools", f"the parameters of tools[{i}] are no JSON schema")
    found: dict[str, Any] = tool
    return found


def functions_of(tools: list[dict[str, Any]]) -> Functions:
    """Return the JSON schemas of the parameters of tools by name. Without a type, they are those of objects."""
    functions = [tool["function"] for tool in tools]
    return {function["name"]: {"type": "object", **function.get("parameters", {})} for function in functions}


def _tool_choice(fields: Fields, tools: list[dict[str, Any]]) -> Functions:
    """Return the functions of which one is to be called; none if the model chooses."""
    choice = fields.get("tool_choice")
    if choice in (None, "auto", "none"):
        return {}
    functions = functions_of(tools)
    if choice == "required":
        if not functions:
            raise FieldError("tool_choice", "'required' needs 'tools'")
        return functions
    named = choice.get("function") if isinstance(choice, dict) else None
    name = named.get("name") if isinstance(named, dict) else None
    if not isinstance(name, str) or name not in functions:
        raise FieldError("tool_choice", "'tool_choice' names no function of 'tools'")
    return {name: functions[name]}


def _prompts(prompt: Any) -> list[Prompt]:
    """Return the prompts of a completion: of a text, texts, tokens or lists of tokens."""
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if all(_is_token(item) for item in prompt):
            return [prompt]
        if all(isinstance(item, str) or _is_tokens(item) for item in prompt):
            return prompt
    raise FieldError("prompt", "'prompt' is no text, no tokens, and no list of these that is not empty")


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_token(item) for item in value)


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_TOKENS


def _stops(stop: Any) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(stops, list) or len(stops) > MAX_STOPS:
        raise FieldError("stop", f"'stop' is no string, and no list of at most {MAX_STOPS} strings")
    if not all(isinstance(item, str) and 0 < len(item) <= MAX_STOP_LENGTH for item in stops):
        raise FieldError("stop", f"'stop' has a value that is no string of 1 to {MAX_STOP_LENGTH} characters")
    return tuple(stops)


def _biases(given: dict[str, Any]) -> dict[int, float]:
    biases = {}
    for token, bias in given.items():
        is_number = isinstance(bias, (int, float)) and not isinstance(bias, bool) and -MAX_BIAS <= bias <= MAX_BIAS
        if not (token.isascii() and token.isdecimal() and len(token) < 10 and is_number):
            raise FieldError("logit_bias", f"'logit_bias' maps no tokens to numbers from {-MAX_BIAS:g} to {MAX_BIAS:g}")
        biases[int(token)] = float(bias)
    return biases


def _schema(form: dict[str, Any]) -> str | None:
    """Return the JSON schema of a response format; None if it is any text."""
    kind = form.get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return json.dumps({"type": "object"})
    if kind == "json_schema":
        described = form.get("json_schema")
        schema = described.get("schema") if isinstance(described, dict) else None
        if isinstance(schema, dict):
            return json.dumps(schema)
        raise FieldError("response_format", "'response_format' has no object 'json_schema' with a 'schema'")
    raise FieldError("response_format", "'response_format' is neither text, json_object nor json_schema")
