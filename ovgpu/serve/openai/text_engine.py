"""Class TextEngine: a model that generates the texts of many clients."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from ovgpu.batching.gathering import BatchRun, Observer
from ovgpu.errors import Error
from ovgpu.genai.chat_history import ChatHistory
from ovgpu.genai.decoder import Decoder
from ovgpu.genai.engine import Engine as GenerationEngine
from ovgpu.genai.engine import Usage
from ovgpu.genai.engine_thread import EngineThread
from ovgpu.genai.fields import UNLIMITED
from ovgpu.genai.files import read_json
from ovgpu.genai.generation_config import GenerationConfig
from ovgpu.genai.generation_pipeline import GenerationPipeline
from ovgpu.genai.metrics import RawPerfMetrics
from ovgpu.genai.sampling import sampling_of
from ovgpu.genai.scheduler_config import SchedulerConfig
from ovgpu.genai.stops import Stops
from ovgpu.genai.structured_output import StructuredOutputConfig
from ovgpu.genai.texts import Generation
from ovgpu.genai.tokenizer import Tokenizer
from ovgpu.serve.engines import Engine, EngineOptions, devices_of, memory_of
from ovgpu.serve.errors import invalid
from ovgpu.serve.openai.choices import Choice
from ovgpu.serve.openai.errors import FieldError
from ovgpu.serve.openai.files import GENERATION
from ovgpu.serve.openai.measurements import TextMeasurements
from ovgpu.serve.openai.message_parser import CLOSE, OPEN, MessageParser
from ovgpu.serve.openai.pieces import StopStrings
from ovgpu.serve.openai.requests import Chat, Prompt, TextRequest, functions_of
from ovgpu.serve.openai.tool_formats import FORCED, FORMATS, ToolFormat, format_of

MAX_WAITING = 1024  # texts
DEFAULT_TOKENS, MOST_TOKENS = 4096, 1 << 17  # of a text, for a model whose config.json has no limit
CONTEXTS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
"""Names in config.json of the number of tokens that a model takes."""

SINGLE: dict[str, Any] = {
    "num_beams": 1,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "num_return_sequences": 1,
    "num_assistant_tokens": 0,
    "assistant_confidence_threshold": 0.0,
    "max_ngram_size": 0,
    "tree_depth": 0,
    "echo": False,
    "stop_strings": set(),  # `StopStrings` finds them
}
"""Fields of generation_config.json that do not count here: each choice is one text without an assistant."""

NO_PARSER = "none"
PARSERS: dict[str, Collection[Any]] = {"tool_parser": FORMATS, "reasoning_parser": ("qwen3",)}
"""Settings of messages, and their values beside `NO_PARSER`."""


class TextEngine(Engine):
    """Model of a folder with its tokenizer, whose texts run side by side."""

    task = GENERATION
    inputs = outputs = ()

    def __init__(self, model: Any, folder: Path, options: EngineOptions, observer: Observer) -> None:
        path = folder / "generation_config.json"
        config = GenerationConfig(path) if path.is_file() else GenerationConfig()
        self._decoder = Decoder(model, options.device, options.properties)
        self._pipeline = _Pipeline(Tokenizer(folder), config, self._decoder)
        self.tokenizer = self._pipeline.get_tokenizer()
        self.context = _context(folder)
        self._reasons, self._tools = _message_formats(options.pipeline, self.tokenizer.chat_template)
        limits = _scheduler(options).limits(self._decoder)
        self._engine = GenerationEngine(self._decoder, limits)
        self._compiled = self._decoder.chooser(penalties=False).compiled
        self._bytes: dict[int, bytes] | None = None
        self.measured = TextMeasurements()
        self.max_batch_size = limits.texts
        self.description = f"texts: up to {limits.texts} side by side on {devices_of(self._compiled)}"
        self._thread = EngineThread(self._engine, limits.texts + MAX_WAITING, partial(_observe, observer))

    # ---- texts

    def choices(self, request: TextRequest) -> list[Choice]:
        """Return the texts of a request, for `start`. Takes the time of the chat template, the tokenizer and a grammar.

        Raises: FieldError or Error for what the model does not allow.
        """
        config = self._config(request)
        if request.logprobs:
            self.bytes_of(0)  # read here, as it takes long
        stops = (*request.stops, *self._pipeline.get_generation_config().stop_strings)
        chat = None if request.chat is None else self._chat(request.chat)
        prompts = (
            [self._tokens(prompt) for prompt in request.prompts]
            if chat is None
            else [self._encoded(chat, add_special_tokens=False)]
        )
        seeds = count(secrets.randbits(32) if request.seed is None else request.seed)
        found: list[Choice] = []
        for i, prompt in enumerate(prompts):
            before = self._text(request.prompts[i]) if request.echo else ""
            limited = self._limited(config, prompt, request.max_tokens)
            for _ in range(request.n):
                limited.rng_seed = next(seeds) & 0xFFFFFFFF
                generation = self._pipeline.generation(prompt, limited.copy(), request.logit_bias)
                own = StopStrings(stops, request.include_stop)
                parser = None if chat is None else self._parser(request, chat)
                found.append(Choice(len(found), generation, self.tokenizer, before, own, parser))
        return found

    def start(self, choices: Sequence[Choice], on_change: Callable[[], None]) -> None:
        """Generate texts. ``on_change`` is called on another thread when there is something to read.

        Raises: BatchFullError if too many wait.
        """
        self._thread.submit([choice.generation for choice in choices], on_change)

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes of a token, which may be a part of a character."""
        if self._bytes is None:
            self._bytes = {token: text for text, token in self.tokenizer.get_vocab().items()}
        return self._bytes.get(token, b"")

    def _config(self, request: TextRequest) -> GenerationConfig:
        config = self._pipeline.get_generation_config()
        temperature = config.temperature if request.temperature is None else request.temperature
        sampled = {"do_sample": True, "temperature": temperature} if temperature > 0 else {"do_sample": False}
        settings = dict(request.settings)
        settings["stop_token_ids"] = config.stop_token_ids | settings.get("stop_token_ids", set())
        form = None if request.schema is None else StructuredOutputConfig(json_schema=request.schema)
        config.update_generation_config(**SINGLE, **sampled, **settings, logprobs=int(request.logprobs))
        config.structured_output_config = form
        for token in request.logit_bias:
            self._check_token("logit_bias", token)
        return config

    def _limited(self, config: GenerationConfig, prompt: list[int], max_tokens: int | None) -> GenerationConfig:
        """Return the configuration of a prompt, whose text fits into the model's context."""
        limited = config.copy()
        if not prompt:
            raise invalid("the prompt is empty")
        if self.context is not None and len(prompt) >= self.context:
            text = f"the prompt has {len(prompt)} tokens, and the model's context {self.context}"
            raise FieldError("prompt", text, "context_length_exceeded")
        own = None if config.max_new_tokens == UNLIMITED else config.max_new_tokens
        wanted = max_tokens if max_tokens is not None else own
        if self.context is None:
            limited.max_new_tokens = DEFAULT_TOKENS if wanted is None else min(wanted, MOST_TOKENS)
        else:
            left = self.context - len(prompt)
            limited.max_new_tokens = left if wanted is None else min(wanted, left)
        limited.min_new_tokens = min(limited.min_new_tokens, limited.max_new_tokens)
        limited.validate()
        return limited

    def _chat(self, chat: Chat) -> str:
        """Return the prompt of a chat."""
        history = ChatHistory(chat.messages)
        text: str = self.tokenizer.apply_chat_template(
            history, add_generation_prompt=True, tools=chat.tools, extra_context=chat.variables
        )
        return text

    def _parser(self, request: TextRequest, prompt: str) -> MessageParser | None:
        """Return the parser of a message; None for one that follows a schema, and thus has no other parts."""
        assert request.chat is not None
        functions = functions_of(request.chat.tools)
        if request.calls:
            return MessageParser(FORCED, functions, reasons=False)
        if request.schema is not None:
            return None
        begun = self._reasons and prompt.rstrip().endswith(OPEN)
        return MessageParser(self._tools, functions, self._reasons, begun, None if request.parallel_calls else 1)

    def _tokens(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self._encoded(prompt, add_special_tokens=True)
        for token in prompt:
            self._check_token("prompt", token)
        return prompt

    def _text(self, prompt: Prompt) -> str:
        text: str = prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt)
        return text

    def _encoded(self, text: str, add_special_tokens: bool) -> list[int]:
        ids = self.tokenizer.encode(text, add_special_tokens=add_special_tokens).input_ids
        tokens: list[int] = ids.data[0].tolist()
        return tokens

    def _check_token(self, name: str, token: int) -> None:
        if token >= self._decoder.vocabulary:
            raise FieldError(name, f"'{name}' has the token {token}, and the model {self._decoder.vocabulary} tokens")

    # ---- measurements

    @property
    def cache_usage(self) -> float | None:
        """The part of the blocks of KV caches that texts which run have; None without a limit."""
        blocks = self._engine.limits.blocks
        return self._engine.used_blocks / blocks if blocks else None

    @property
    def preemptions(self) -> int:
        """The number of times that a text was taken back, to be computed again, because blocks ran out."""
        return self._engine.preemptions

    @property
    def waiting(self) -> int:
        """The number of texts that do not run yet."""
        return min(self._engine.waiting, len(self._thread))

    @property
    def running(self) -> int:
        """The number of texts that run."""
        return max(len(self._thread) - self._engine.waiting, 0)

    def note(self, seconds: float) -> str:
        return f", {self.measured.rate(seconds):,.1f} tokens per second"

    # ---- Engine

    def memory(self) -> dict[str, int]:
        return memory_of(self._compiled)

    def warm_up(self) -> None:
        ended = threading.Event()

        def check() -> None:
            if not generation.is_running:
                ended.set()

        config = self._pipeline.get_generation_config()
        config.update_generation_config(**SINGLE, do_sample=False, max_new_tokens=2, min_new_tokens=0, ignore_eos=True)
        generation = self._pipeline.generation([0], config, {})
        self._thread.submit([generation], check)
        ended.wait()
        if generation.error is not None:
            raise generation.error

    def close(self) -> None:
        self._thread.close()


class _Pipeline(GenerationPipeline):
    """Pipeline that makes generations for an engine that another thread steps."""

    def generation(self, prompt: list[int], config: GenerationConfig, bias: Mapping[int, float]) -> Generation:
        """Return a generation of one text. Raises: Error for a configuration that is not valid."""
        config = self._resolved(config, {})
        raw = RawPerfMetrics(inference_durations=[0.0])
        grammar = self._grammar(config, raw)
        generation = Generation(prompt, config, Stops(config, None), raw, grammar, None, bias)
        if sampling_of(config).penalises:
            self._decoder.chooser(penalties=True)  # compiled here, so that no other text waits for it
        return generation


def _observe(observer: Observer, usage: Usage, seconds: float) -> None:
    """Report a step. No method: it would keep a model that is replaced until the garbage is collected."""
    if usage.advanced:
        observer(BatchRun(usage.advanced, usage.advanced, (), seconds))


def _message_formats(settings: Mapping[str, Any], template: str) -> tuple[bool, ToolFormat | None]:
    """Return whether texts may have reasoning, and the format of calls of tools in them; see README.md.

    Raises: Error for settings that are not valid.
    """
    for name, value in settings.items():
        if name not in PARSERS:
            raise Error(f"pipeline has no setting {name}, only {', '.join(PARSERS)}")
        if value not in (NO_PARSER, *PARSERS[name]):
            raise Error(f"{name} is {value!r}, not one of {', '.join(PARSERS[name])} and {NO_PARSER}")
    reasons = settings.get("reasoning_parser", "qwen3" if CLOSE in template else NO_PARSER) != NO_PARSER
    tools = settings.get("tool_parser")
    return reasons, format_of(template) if tools is None else FORMATS.get(tools)


def _scheduler(options: EngineOptions) -> SchedulerConfig:
    """Return the limits of texts that run side by side. Raises: Error for settings that are not valid."""
    config = SchedulerConfig()
    config.max_num_seqs, config.enable_prefix_caching = options.max_sequences, True  # each turn of a chat repeats it
    for name, value in options.scheduler.items():
        if name.startswith("_") or name not in SchedulerConfig._fields:
            raise Error(f"scheduler has no setting {name}, only {', '.join(SchedulerConfig._fields)}")
        try:
            setattr(config, name, value)
        except TypeError as error:
            raise Error(f"scheduler: {error}") from None
    return config


def _context(folder: Path) -> int | None:
    """Return the number of tokens that a model takes; None if config.json does not say it."""
    config = read_json(folder / "config.json")
    inner = config.get("text_config")
    for source in (config, inner if isinstance(inner, dict) else {}):
        for name in CONTEXTS:
            value = source.get(name)
            if isinstance(value, int) and value > 0:
                return value
    return None
