"""Texts that a decoder continues: their tokens, the inputs of their steps, and their way to a streamer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ovgpu.genai.decoder import DecoderInputs
from ovgpu.genai.enums import GenerationFinishReason, StreamingStatus
from ovgpu.genai.generation_config import GenerationConfig
from ovgpu.genai.grammar import CompiledGrammar
from ovgpu.genai.metrics import RawPerfMetrics
from ovgpu.genai.sampling import Array, Sampler
from ovgpu.genai.stops import Stops
from ovgpu.genai.streamers import StreamerBase, write_tokens

REASONS = {
    StreamingStatus.RUNNING: GenerationFinishReason.NONE,  # a text of no tokens
    StreamingStatus.STOP: GenerationFinishReason.STOP,
    StreamingStatus.CANCEL: GenerationFinishReason.NONE,
    StreamingStatus.TOOL_CALL_STOP: GenerationFinishReason.TOOL_CALL,
}
"""Why a text ended, by what its streamer answered last."""


@dataclass
class Text:
    """Tokens that follow a prompt, the log probability of each, and why the text ended."""

    prompt: Sequence[int]
    limit: int
    tokens: list[int] = field(default_factory=list)
    logs: list[float] = field(default_factory=list)
    reason: GenerationFinishReason | None = None
    normalised: float | None = None  # score of beam search

    @property
    def score(self) -> float:
        """The sum of the log probabilities, which beam search normalises by the length."""
        return sum(self.logs, 0.0) if self.normalised is None else self.normalised

    def cut(self, count: int) -> None:
        """Remove the last tokens."""
        if count:
            del self.tokens[-count:], self.logs[-count:]


class Feed:
    """Inputs of a text's steps. The text may be fed in pieces, and again from its beginning."""

    def __init__(
        self,
        inputs: DecoderInputs,
        text: Text,
        sampler: Sampler,
        config: GenerationConfig,
        grammar: CompiledGrammar | None,
    ) -> None:
        self.text = text
        self._inputs, self._sampler = inputs, sampler
        self._grammar, self._matcher = grammar, None if grammar is None else grammar.matcher()
        self._ends, self._least = config.stop_token_ids, config.min_new_tokens
        self.fed = 0  # tokens of the prompt and the text that the decoder has got

    @property
    def left(self) -> int:
        """The number of tokens that the decoder has not got."""
        return len(self.text.prompt) + len(self.text.tokens) - self.fed

    @property
    def one_by_one(self) -> bool:
        """True if the model takes prompts whole, and then one token at a time."""
        return self._inputs.one_by_one

    def share(self, count: int) -> None:
        """Begin behind tokens that the decoder has from another text."""
        self._inputs.skip(count)
        self.fed = count

    @property
    def known(self) -> list[int]:
        """The tokens of the prompt and of the text."""
        return [*self.text.prompt, *self.text.tokens]

    def next(self, count: int) -> dict[int, Array]:
        """Return the arrays by input index for the next ``count`` tokens.

        If none are left then, the step chooses a token.
        """
        prompt, tokens = self.text.prompt, self.text.tokens
        begin = self.fed - len(prompt)
        new = tokens[begin : begin + count] if begin >= 0 else [*prompt, *tokens][self.fed : self.fed + count]
        self.fed += count
        banned = self._ends if len(tokens) < self._least else ()
        allowed = None if self._matcher is None else self._matcher.allowed()
        return self._inputs.next([new]) | self._sampler.next(tokens, banned, allowed, chooses=not self.left)

    def accept(self, token: int) -> None:
        """Append a token to the text."""
        self.text.tokens.append(token)
        if self._matcher is not None:
            self._matcher.accept(token)

    def restart(self, inputs: DecoderInputs) -> None:
        """Feed the text from its beginning, to ``inputs`` of an empty one."""
        self._inputs, self.fed = inputs, 0
        if self._grammar is not None:
            self._matcher = self._grammar.matcher()
            for token in self.text.tokens:
                self._matcher.accept(token)


class Stream:
    """Tokens on their way to a streamer, if there is one. The last ``window`` tokens wait until the text goes on."""

    def __init__(self, streamer: StreamerBase | None, text: Text, echo: bool, window: int) -> None:
        self._streamer, self._text, self._window = streamer, text, window
        self._before = list(text.prompt) if echo else []
        self._written = 0

    def write(self) -> StreamingStatus:
        """Write the tokens that will not be cut off. Return whether the generation goes on."""
        until = len(self._text.tokens) - (0 if self._text.reason else self._window)
        tokens = self._before + self._text.tokens[self._written : until] if until > self._written else []
        if self._streamer is None or not tokens:
            return StreamingStatus.RUNNING
        self._before, self._written = [], until
        return write_tokens(self._streamer, tokens)

    def end(self) -> None:
        """End the text. The prompt is written now if no token followed it."""
        if self._streamer is not None:
            if self._before:
                write_tokens(self._streamer, self._before)
            self._streamer.end()


class Generation:
    """Texts that continue a prompt, by greedy search, random draws or beam search.

    ``raw`` gets the measured times. ``streamer``, for a single text, gets its tokens, and may end it. ``logit_bias``
    has numbers that are added to the logits of tokens; beam search ignores it.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        config: GenerationConfig,
        stops: Stops,
        raw: RawPerfMetrics,
        grammar: CompiledGrammar | None = None,
        streamer: StreamerBase | None = None,
        logit_bias: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        count = 1 if config.is_beam_search() else config.num_return_sequences
        limit = config.get_max_new_tokens(len(prompt))
        self.prompt, self.config, self.stops, self.raw, self.grammar = prompt, config, stops, raw, grammar
        self._streamer, self.logit_bias = streamer, logit_bias
        self.set_texts([Text(prompt, limit) for _ in range(count)])
        self.status = StreamingStatus.RUNNING
        """The last answer of the streamer. Another one, which any thread may set, ends the texts at the next step."""
        self.error: Exception | None = None
        """The error that ended the generation, if one did."""

    @property
    def is_running(self) -> bool:
        """True until all texts have ended."""
        return any(text.reason is None for text in self.texts)

    @property
    def best_first(self) -> list[Text]:
        """The texts, the most likely one first."""
        return sorted(self.texts, key=lambda text: -text.score)

    def set_texts(self, texts: list[Text]) -> None:
        """Set the texts, of which the first one goes to the streamer."""
        self.texts, self.stream = texts, Stream(self._streamer, texts[0], self.config.echo, self.stops.window)

    def end(self) -> None:
        """End the texts that go on."""
        for text in self.texts:
            text.reason = text.reason or REASONS[self.status]

    def fail(self, error: Exception) -> None:
        """End the texts with an error."""
        self.error = error
        self.end()
