"""Chats about images: what each message shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ovgpu.errors import Error
from ovgpu.genai.chat_history import ChatHistory
from ovgpu.genai.vlm.family import Family, Prompt, Vision

TAGS = {"image": "<ov_genai_image_{}>", "video": "<ov_genai_video_{}>"}


@dataclass(frozen=True)
class Message:
    """Message of a chat as it was given, its text for the model, and how many images and videos came with it."""

    given: Any
    prompt: Prompt | None = None
    counts: tuple[int, int] = (0, 0)

    def written(self) -> Any:
        """Return the message for the chat template."""
        return self.given if self.prompt is None else {**self.given, "content": self.prompt.text}


def begin_of(known: Sequence[Message], history: ChatHistory) -> list[Message]:
    """Return the messages with which a chat begins, as far as they are known."""
    count = 0
    for message, given in zip(known, history.get_messages()):
        if message.given != given:
            break
        count += 1
    return list(known[:count])


def last_question(history: ChatHistory) -> int:
    """Return the number of the last message of the user. Raises: Error if there is none."""
    messages = history.get_messages()
    for number in reversed(range(len(messages))):
        if isinstance(messages[number], dict) and messages[number].get("role") == "user":
            return number
    raise Error("the chat has no message of the user")


def continued(
    messages: Sequence[Message],
    history: ChatHistory,
    family: Family,
    images: Sequence[Vision],
    videos: Sequence[Vision],
) -> list[Message]:
    """Return the messages of a chat that begins with ``messages``. Images and videos are those of its last question.

    Raises: Error for tags without an image, and for contents that are neither a text nor a list of parts.
    """
    messages = list(messages)
    last = last_question(history)
    for number, given in enumerate(history.get_messages()[len(messages) :], len(messages)):
        if not isinstance(given, dict) or given.get("role") != "user":
            messages.append(Message(given))
            continue
        shown: tuple[Sequence[Vision], Sequence[Vision]] = (images, videos) if number == last else ((), ())
        first = sum(message.counts[0] for message in messages), sum(message.counts[1] for message in messages)
        prompt = family.prompt(_text(given.get("content"), first), *shown, first)
        messages.append(Message(given, prompt, (len(shown[0]), len(shown[1]))))
    return messages


def _text(content: Any, first: tuple[int, int]) -> str:
    """Return the text of a message. Its parts of images and videos become tags."""
    if isinstance(content, str):
        return content
    numbers = dict(zip(TAGS, first))
    texts = []
    for part in content if isinstance(content, list) else [content]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind in TAGS:
            texts.append(TAGS[kind].format(numbers[kind]))
            numbers[kind] += 1
        else:
            raise Error(
                "the content of a message is a text, or a list of parts {'type': 'text', 'text': ...}, "
                f"{{'type': 'image'}} and {{'type': 'video'}}, not {part!r}"
            )
    return "".join(texts)
