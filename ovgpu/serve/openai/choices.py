"""Choices: texts of a request, while they are generated."""

from __future__ import annotations

from ovgpu.genai.enums import GenerationFinishReason, StreamingStatus
from ovgpu.genai.texts import Generation
from ovgpu.genai.tokenizer import Tokenizer
from ovgpu.serve.openai.answers import Piece
from ovgpu.serve.openai.message_parser import MessageParser
from ovgpu.serve.openai.pieces import Pieces, StopStrings

REASONS = {
    GenerationFinishReason.STOP: "stop",
    GenerationFinishReason.LENGTH: "length",
    GenerationFinishReason.TOOL_CALL: "tool_calls",
    GenerationFinishReason.NONE: "abort",  # the server is stopping
}


class Choice:
    """A text of a request. Its tokens are read while a thread generates them."""

    def __init__(
        self,
        index: int,
        generation: Generation,
        tokenizer: Tokenizer,
        before: str,
        stops: StopStrings,
        parser: MessageParser | None = None,
    ) -> None:
        """``before`` is written before the text, and ``parser`` finds the parts of a message in it."""
        self.index, self.generation, self.reason = index, generation, ""
        self.tokens = 0  # that were read
        self._pieces, self._stops, self._before, self._parser = Pieces(tokenizer), stops, before, parser

    def read(self) -> Piece | None:
        """Return what was not read, None if there is nothing. Raises: the error of a generation that failed."""
        generation = self.generation
        if self.reason:
            return None
        ended = not generation.is_running  # before the error and the tokens are read, of which there may be more then
        if generation.error is not None:
            raise generation.error
        (text,) = generation.texts
        logs = text.logs[self.tokens :]
        piece, self._before = Piece(self._before), ""
        for token, log in zip(text.tokens[self.tokens : self.tokens + len(logs)], logs):
            piece.tokens.append(token)
            piece.logs.append(log)
            piece.text += self._stops.add(self._pieces.add([token]))
            if self._stops.found:
                break
        self.tokens += len(piece.tokens)
        if ended and not self._stops.found:
            piece.text += self._stops.add(self._pieces.end())
            piece.text += "" if self._stops.found else self._stops.end()
        if self._stops.found:
            self.cancel()
            self.reason = "stop"
        elif ended:
            self.reason = REASONS[text.reason or GenerationFinishReason.NONE]
        piece.reason = self.reason or None
        if self._parser is not None:
            self._parse(piece, self._parser)
        return piece if piece.text or piece.tokens or piece.reason else None

    def _parse(self, piece: Piece, parser: MessageParser) -> None:
        """Split the text of a piece into parts of a message."""
        parts = [parser.add(piece.text), *([parser.end()] if piece.reason else ())]
        piece.text = "".join([part.text for part in parts])
        piece.reasoning = "".join([part.reasoning for part in parts])
        piece.calls = [call for part in parts for call in part.calls]

    def cancel(self) -> None:
        """End the generation at the next step."""
        if self.generation.is_running:
            self.generation.status = StreamingStatus.CANCEL
