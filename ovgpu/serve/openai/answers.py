"""Answers of OpenAI's protocol: texts and their parts as JSON."""

from __future__ import annotations

import secrets
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from ovgpu.serve.openai.requests import RetrievalRequest, TextRequest
from ovgpu.serve.openai.tool_formats import ToolCall

if TYPE_CHECKING:  # it imports ovgpu.genai, which servers of other models do not need
    from ovgpu.serve.openai.choices import Choice


@dataclass
class Piece:
    """Part of a text, its tokens, and the log probability of each. ``reason`` says why the text ends with it.

    A text may have ``reasoning`` before it, and ``calls`` of tools.
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logs: list[float] = field(default_factory=list)
    reason: str | None = None
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)


def joined(pieces: Sequence[Piece]) -> Piece:
    """Return all pieces of a text as one."""
    tokens = [token for piece in pieces for token in piece.tokens]
    logs = [log for piece in pieces for log in piece.logs]
    calls = [call for piece in pieces for call in piece.calls]
    text, reasoning = ("".join([getattr(piece, name) for piece in pieces]) for name in ("text", "reasoning"))
    return Piece(text, tokens, logs, pieces[-1].reason, reasoning, calls)


class Answer:
    """Form of the answer to a request."""

    def __init__(self, request: TextRequest, bytes_of: Callable[[int], bytes]) -> None:
        """``bytes_of`` returns the bytes of a token."""
        self._request, self._bytes_of, self._chat = request, bytes_of, request.chat is not None
        self._head = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{secrets.token_hex(12)}",
            "created": int(time.time()),
        }
        self._begun = set[int]()  # choices whose first part was written
        self._lengths = dict[int, int]()  # characters of choices
        self._calls = dict[int, int]()  # calls of tools that choices have made

    def whole(self, choices: Sequence[Choice], texts: Sequence[Piece]) -> dict[str, Any]:
        """Return the answer with all texts."""
        form = self._message if self._chat else self._completion
        kind = "chat.completion" if self._chat else "text_completion"
        found = [form(choice, text) for choice, text in zip(choices, texts)]
        return {**self._document(kind), "choices": found, "usage": self._usage(choices)}

    def part(self, choice: Choice, piece: Piece) -> dict[str, Any] | None:
        """Return an event with a part of a text, None if it would tell nothing."""
        is_first = choice.index not in self._begun
        self._begun.add(choice.index)
        told = piece.text or piece.reasoning or piece.calls or piece.reason
        if not (is_first or told or self._request.logprobs):
            return None
        entry = self._delta(choice, piece, is_first) if self._chat else self._completion(choice, piece)
        document = {**self._document(self._stream_kind), "choices": [entry]}
        return {**document, "usage": None} if self._request.include_usage else document

    def end(self, choices: Sequence[Choice]) -> dict[str, Any] | None:
        """Return the last event, None if the request does not ask for one."""
        if not self._request.include_usage:
            return None
        return {**self._document(self._stream_kind), "choices": [], "usage": self._usage(choices)}

    @property
    def _stream_kind(self) -> str:
        return "chat.completion.chunk" if self._chat else "text_completion"

    def _document(self, kind: str) -> dict[str, Any]:
        return {**self._head, "object": kind, "model": self._request.model}

    def _usage(self, choices: Sequence[Choice]) -> dict[str, int]:
        prompt = sum(len(choice.generation.prompt) for choice in choices[:: self._request.n])
        completion = sum(choice.tokens for choice in choices)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def _message(self, choice: Choice, text: Piece) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text.text, "refusal": None}
        if text.reasoning:
            message["reasoning_content"] = text.reasoning
        if self._request.function is not None:
            message |= {"content": None, "tool_calls": [_call(self._request.function, text.text)]}
        elif text.calls:
            message |= {"content": text.text or None, "tool_calls": self._made(choice, text)}
        return self._entry(choice, {"message": message}, text)

    def _delta(self, choice: Choice, piece: Piece, is_first: bool) -> dict[str, Any]:
        delta: dict[str, Any] = {"role": "assistant"} if is_first else {}
        if self._request.function is not None:
            if is_first or piece.text:
                call = _call(self._request.function, piece.text)
                further = {"function": {"arguments": piece.text}}
                delta |= {"tool_calls": [{"index": 0, **(call if is_first else further)}]}
                delta |= {"content": None} if is_first else {}
            return self._entry(choice, {"delta": delta}, piece)
        if is_first or piece.text:
            delta["content"] = piece.text
        if piece.reasoning:
            delta["reasoning_content"] = piece.reasoning
        if piece.calls:
            begin = self._calls.get(choice.index, 0)
            made = self._made(choice, piece)
            delta["tool_calls"] = [{"index": begin + number, **call} for number, call in enumerate(made)]
        return self._entry(choice, {"delta": delta}, piece)

    def _made(self, choice: Choice, piece: Piece) -> list[dict[str, Any]]:
        """Return the calls of tools in a part of a text, and count them."""
        self._calls[choice.index] = self._calls.get(choice.index, 0) + len(piece.calls)
        return [_call(call.name, call.arguments) for call in piece.calls]

    def _completion(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        entry = self._entry(choice, {"text": piece.text}, piece)
        self._lengths[choice.index] = self._lengths.get(choice.index, 0) + len(piece.text)
        return entry

    def _entry(self, choice: Choice, fields: dict[str, Any], piece: Piece) -> dict[str, Any]:
        logprobs = None
        if self._request.logprobs:
            logprobs = self._chat_logs(piece) if self._chat else self._completion_logs(choice, piece)
        end = "tool_calls" if self._calls.get(choice.index) else self._request.end
        reason = end if piece.reason == "stop" else piece.reason
        return {"index": choice.index, **fields, "logprobs": logprobs, "finish_reason": reason}

    def _chat_logs(self, piece: Piece) -> dict[str, Any]:
        entries: list[dict[str, Any]] = []
        for token, log in zip(piece.tokens, piece.logs):
            code = self._bytes_of(token)
            entry = {"token": code.decode(errors="replace"), "logprob": log, "bytes": [*code]}
            entries.append({**entry, "top_logprobs": [entry]})
        return {"content": entries, "refusal": None}

    def _completion_logs(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        texts = [self._bytes_of(token).decode(errors="replace") for token in piece.tokens]
        offsets, length = list[int](), self._lengths.get(choice.index, 0)
        for text in texts:
            offsets.append(length)
            length += len(text)
        tops = [{text: log} for text, log in zip(texts, piece.logs)]
        return {"tokens": texts, "token_logprobs": piece.logs, "top_logprobs": tops, "text_offset": offsets}


def _call(name: str, arguments: str) -> dict[str, Any]:
    """Return a call of a tool. ``arguments`` may be the begin of a JSON text."""
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def embeddings(request: RetrievalRequest, vectors: Sequence[Any], tokens: int) -> bytes:
    """Return the JSON of vectors, each an array of f32."""
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": b64encode(vector.tobytes()).decode() if request.base64 else vector,
        }
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    document = {"object": "list", "data": data, "model": request.model, "usage": usage}
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def reranking(request: RetrievalRequest, scores: Sequence[float], tokens: int) -> bytes:
    """Return the JSON of the best texts, the best first, in the form of Cohere and Jina."""
    best = sorted(enumerate(scores), key=lambda result: -result[1])[: request.top_n]
    results = [
        {"index": index, "relevance_score": score}
        | ({"document": {"text": request.texts[index]}} if request.documents else {})
        for index, score in best
    ]
    return orjson.dumps({"model": request.model, "results": results, "usage": {"total_tokens": tokens}})
