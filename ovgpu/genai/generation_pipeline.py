"""Class GenerationPipeline: what pipelines with a decoder have in common."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ovgpu.errors import Error
from ovgpu.genai.assisted import Assistant, DraftModel, PromptLookup, generate_assisted
from ovgpu.genai.assisted_metrics import AssistedRecord
from ovgpu.genai.decoder import Decoder
from ovgpu.genai.engine import DEFAULT, Engine
from ovgpu.genai.generation import Outcome, generate
from ovgpu.genai.generation_config import GenerationConfig
from ovgpu.genai.grammar import CompiledGrammar, Compiler
from ovgpu.genai.metrics import RawPerfMetrics, microseconds_since
from ovgpu.genai.parsers import parse_texts
from ovgpu.genai.prompts import Prompts
from ovgpu.genai.stops import Stops
from ovgpu.genai.streamers import TextParserStreamer
from ovgpu.genai.tokenizer import Tokenizer
from ovgpu.genai.turns import Turns

DRAFTED = 5  # tokens that a draft model proposes by default


class GenerationPipeline:
    """Decoder with a tokenizer and a configuration. ``draft`` or ``prompt_lookup`` assist its generations."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        config: GenerationConfig,
        decoder: Decoder,
        prompt_lookup: bool = False,
        draft: Decoder | None = None,
    ) -> None:
        self._tokenizer, self._config, self._decoder = tokenizer, config, decoder
        if config.eos_token_id == -1 and tokenizer.get_eos_token_id() != -1:
            config.set_eos_token_id(tokenizer.get_eos_token_id())
        self._looks_up, self._draft = prompt_lookup, draft
        if prompt_lookup or draft is not None:
            decoder.verifier()
        self._limits = DEFAULT
        self._engine: Engine | None = None
        self._compiler: Compiler | None = None
        self._compiler_times: dict[str, float] = {}
        self._turns = Turns()

    def get_tokenizer(self) -> Tokenizer:
        """Return the tokenizer."""
        return self._tokenizer

    def get_generation_config(self) -> GenerationConfig:
        """Return a copy of the configuration, which generate() takes unless it gets another one."""
        return self._config.copy()

    def set_generation_config(self, config: GenerationConfig) -> None:
        """Set the configuration. Without an eos_token_id, it keeps that of the former one.

        Raises: RuntimeError if it is not valid.
        """
        config = config.copy()
        if config.eos_token_id == -1 and self._config.eos_token_id != -1:
            config.set_eos_token_id(self._config.eos_token_id)
        config.validate()
        self._config = config

    # ----

    def _resolved(self, config: GenerationConfig | None, keywords: Mapping[str, Any]) -> GenerationConfig:
        """Return the configuration of a generation."""
        if config is not None and not isinstance(config, GenerationConfig):
            raise TypeError(f"generation_config is a GenerationConfig, not {config!r}")
        resolved = (self._config if config is None else config).copy()
        resolved.update_generation_config(**keywords)
        if resolved.eos_token_id == -1 and self._config.eos_token_id != -1:
            resolved.set_eos_token_id(self._config.eos_token_id)
        resolved.validate()
        if resolved.is_tree_search():
            raise Error("ovgpu.genai does not support tree_depth: it has no tree search")
        if resolved.return_omni_outputs:
            raise Error(
                "return_omni_outputs needs a model that generates speech, too, which ovgpu.genai does not support"
            )
        if self._looks_up and not resolved.is_prompt_lookup():
            raise Error("a pipeline with prompt_lookup needs num_assistant_tokens and max_ngram_size in each call")
        if self._draft is not None:
            if not resolved.is_assisting_generation():
                resolved.num_assistant_tokens = DRAFTED
            resolved.validate()
        return resolved

    def _run(
        self, prompts: Prompts, config: GenerationConfig, writer: Any, start: float
    ) -> tuple[Outcome, RawPerfMetrics]:
        """Continue the prompts, and measure it."""
        if not prompts.rows:
            raise Error("there is no prompt")
        if any(not row for row in prompts.rows):
            raise Error("the prompt has no tokens")
        beams = config.is_beam_search()
        if writer is not None and (len(prompts.rows) > 1 or config.num_return_sequences > 1 or beams):
            raise Error("a streamer takes a single text, and not of beam search: leave it out, or generate one text")
        raw = RawPerfMetrics(chat_template_durations=prompts.templates, tokenization_durations=prompts.tokenizations)
        stops = Stops(config, self._tokenizer)
        decoder = self._decoder_of(config)
        grammar, record = self._grammar(config, raw), AssistedRecord()
        if not beams and (self._looks_up or self._draft is not None):
            outcome = Outcome([], record=None if self._draft is None else record)
            for row in prompts.rows:
                if self._draft is None:
                    assistant: Assistant = PromptLookup(config.max_ngram_size)
                else:
                    assistant = DraftModel(self._draft, config.assistant_confidence_threshold, record)
                found = generate_assisted(decoder, assistant, row, config, stops, writer, raw, grammar, record)
                outcome.texts, outcome.status = outcome.texts + found.texts, found.status
            raw.inference_durations[:] = [sum(raw.inference_durations)]
        else:
            engine, self._engine = self._engine_of(decoder), None  # nothing is kept of a call that was interrupted
            outcome = generate(engine, prompts.rows, config, stops, writer, raw, grammar)
            self._engine = engine
        raw.m_times_to_first_token += [1e3 * time - 1e6 * start for time in raw.m_new_token_times[:1]]
        raw.generate_durations.append(microseconds_since(start))
        return outcome, raw

    def _decoder_of(self, config: GenerationConfig) -> Decoder:
        """Return the decoder for a generation. Raises: Error for adapters."""
        if config.adapters is not None and config.adapters.get_adapters():
            raise Error(f"{type(self).__name__} applies no adapters")
        return self._decoder

    def _engine_of(self, decoder: Decoder) -> Engine:
        """Return the engine of a decoder, which may have blocks of earlier texts if the same decoder ran them."""
        engine = self._engine
        return Engine(decoder, self._limits) if engine is None or engine.decoder is not decoder else engine

    def _grammar(self, config: GenerationConfig, raw: RawPerfMetrics) -> CompiledGrammar | None:
        """Return the grammar that texts follow, if there is one."""
        form = config.structured_output_config
        if form is None:
            return None
        if config.is_beam_search():
            raise Error("beam search does not follow a structured_output_config: leave out one of them")
        if self._compiler is None:
            begin = time.perf_counter()
            self._compiler = Compiler(self._tokenizer, self._decoder.vocabulary)
            self._compiler_times = {"llguidance": microseconds_since(begin) / 1e3}
        begin = time.perf_counter()
        grammar = self._compiler.compile(form, config.stop_token_ids)
        raw.grammar_compile_times.append(microseconds_since(begin))
        return grammar

    def _parsed(self, config: GenerationConfig, texts: list[str], writer: Any) -> list[Any]:
        """Return the messages that the parsers of a generation find in its texts."""
        messages = [writer.get_parsed_message()] if isinstance(writer, TextParserStreamer) else []
        return parse_texts(config.parsers, texts, messages)

    def _texts(self, outcome: Outcome, config: GenerationConfig, raw: RawPerfMetrics) -> list[str]:
        """Return the texts of their tokens."""
        texts = []
        for tokens in tokens_of(outcome, config):
            begin = time.perf_counter()
            texts.append(self._tokenizer.decode(tokens))
            raw.detokenization_durations.append(microseconds_since(begin))
        return texts


def tokens_of(outcome: Outcome, config: GenerationConfig) -> list[list[int]]:
    """Return the tokens of texts, with ``echo`` also those of their prompts."""
    return [[*(text.prompt if config.echo else ()), *text.tokens] for text in outcome.texts]
