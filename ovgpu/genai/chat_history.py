"""Class ChatHistory: messages of a chat, and what else its template gets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


class ChatHistory:
    """Messages of a chat in order, with definitions of tools and an extra context for the chat template.

    All values are JSON: dicts, lists, strings, numbers, booleans and None. They are copied on their way in and out.
    Raises: TypeError for other values.
    """

    def __init__(self, messages: Sequence[Any] = ()) -> None:
        self._tools: list[Any] = []
        self._extra_context: dict[str, Any] = {}
        self.set_messages(list(messages))

    def append(self, message: dict[str, Any]) -> None:
        """Add a message, such as ``{"role": "user", "content": "Hello"}``."""
        self._messages.append(_copied(message, dict))

    def pop(self) -> dict[str, Any]:
        """Remove the last message, and return it. Raises: IndexError if there is none."""
        if not self._messages:
            raise IndexError("the chat has no message")
        last: dict[str, Any] = self._messages.pop()
        return last

    def clear(self) -> None:
        """Remove all messages."""
        self._messages.clear()

    def get_messages(self) -> list[Any]:
        """Return a copy of the messages."""
        messages: list[Any] = _copied(self._messages, list)
        return messages

    def set_messages(self, messages: list[Any]) -> None:
        """Replace all messages."""
        self._messages: list[Any] = _copied(messages, list)

    def get_tools(self) -> list[Any]:
        """Return a copy of the definitions of tools."""
        tools: list[Any] = _copied(self._tools, list)
        return tools

    def set_tools(self, tools: list[Any]) -> None:
        """Set the definitions of tools."""
        self._tools = _copied(tools, list)

    def get_extra_context(self) -> dict[str, Any]:
        """Return a copy of the extra context."""
        context: dict[str, Any] = _copied(self._extra_context, dict)
        return context

    def set_extra_context(self, extra_context: dict[str, Any]) -> None:
        """Set further variables of the chat template."""
        self._extra_context = _copied(extra_context, dict)

    def __len__(self) -> int:
        return len(self._messages)

    def __bool__(self) -> bool:
        return bool(self._messages)


def _copied(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a {kind.__name__} is needed, not {value!r}")
    return json.loads(json.dumps(value))
