"""Enumerations of openvino_genai."""

from __future__ import annotations

from enum import Enum


class Numbered(Enum):
    """Enumeration whose members convert to integers, but are not equal to them."""

    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__


class StopCriteria(Numbered):
    """When beam search ends: with as many texts as beams (EARLY), when better texts are unlikely (HEURISTIC, the
    default), or when they are impossible (NEVER)."""

    EARLY = 0
    HEURISTIC = 1
    NEVER = 2


class StreamingStatus(Numbered):
    """Answer of a streamer: go on (RUNNING), end the text and keep it in the chat (STOP, TOOL_CALL_STOP), or end it and
    drop the turn from the chat (CANCEL)."""

    RUNNING = 0
    STOP = 1
    CANCEL = 2
    TOOL_CALL_STOP = 3


class GenerationFinishReason(Numbered):
    """Why a text ended: by a stop token or stop string (STOP), at its limit of tokens (LENGTH), by a call of a tool
    (TOOL_CALL), or because the streamer ended it (NONE)."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    TOOL_CALL = 3


class GenerationStatus(Numbered):
    """Status of a generation: it goes on (RUNNING), ended by itself (FINISHED), failed (IGNORED), or was ended by a
    call of cancel (CANCEL) or stop (STOP)."""

    RUNNING = 0
    FINISHED = 1
    IGNORED = 2
    CANCEL = 3
    STOP = 4


class PoolingType(Numbered):
    """Embedding of a text: that of its first token (CLS), the mean of all (MEAN), or that of its last token
    (LAST_TOKEN)."""

    CLS = 0
    MEAN = 1
    LAST_TOKEN = 2
