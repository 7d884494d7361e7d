"""Class LLMPipeline: texts by a language model."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from typing import Any

from ovgpu.api.core import Core
from ovgpu.errors import Error
from ovgpu.genai.assisted import Assistant, DraftModel, PromptLookup, generate_assisted
from ovgpu.genai.chat_history import ChatHistory
from ovgpu.genai.decoder import Decoder
from ovgpu.genai.generation import Outcome, generate, search
from ovgpu.genai.generation_config import GenerationConfig
from ovgpu.genai.grammar import CompiledGrammar, Compiler
from ovgpu.genai.metrics import PerfMetrics, RawPerfMetrics, microseconds_since
from ovgpu.genai.pipeline_arguments import Arguments
from ovgpu.genai.prompts import Prompts, is_texts, prompts_of_texts, prompts_of_tokens
from ovgpu.genai.results import DecodedResults, EncodedResults
from ovgpu.genai.stops import Stops
from ovgpu.genai.streamers import as_streamer
from ovgpu.genai.tokenizer import Tokenizer
from ovgpu.genai.turns import Turns

DRAFTED = 5  # tokens that a draft model proposes by default
DEPRECATED = "start_chat() and finish_chat() are deprecated: call generate() with a ChatHistory"


class LLMPipeline:
    """Language model that continues texts, with the interface of openvino_genai.

    - ``LLMPipeline(models_path, device, **properties)``: a folder with openvino_model.xml and a tokenizer
    - ``LLMPipeline(models_path, tokenizer, device, **properties)``: with a `Tokenizer` of one's own
    - ``LLMPipeline(model, weights, tokenizer, device, generation_config, **properties)``: the text of the XML, and a
      tensor with the contents of the .bin

    Properties are those of `Core.compile_model`, and ``prompt_lookup=True`` or ``draft_model=draft_model(...)`` for
    assisted generation, which gives the same texts in fewer inferences of the model. Threads may share a pipeline: it
    runs one generation at a time.

    Raises: RuntimeError if a file is missing, or the model is no decoder with a state; TypeError for other arguments.
    """

    def __init__(self, models_path: Any = None, *args: Any, **kwargs: Any) -> None:
        start = time.perf_counter()
        given = Arguments.of(models_path, args, kwargs)
        self._tokenizer = given.tokenizer
        self._config = given.config
        if self._config.eos_token_id == -1 and self._tokenizer.get_eos_token_id() != -1:
            self._config.set_eos_token_id(self._tokenizer.get_eos_token_id())
        model = Core().read_model(*given.model)
        self._decoder = Decoder(model, given.device, given.properties)
        self._looks_up, self._draft = given.prompt_lookup, None
        if given.draft is not None:
            properties = {**given.properties, **given.draft.properties}
            self._draft = Decoder(Core().read_model(given.draft.path), given.draft.device or given.device, properties)
            self._draft.check_several_tokens()
        if given.draft is not None or given.prompt_lookup:
            self._decoder.verifier()
        self._chat: ChatHistory | None = None
        self._compiler: Compiler | None = None
        self._compiler_times: dict[str, float] = {}
        self._turns = Turns()
        self._load_time = 1e3 * (time.perf_counter() - start)

    def generate(
        self, inputs: Any, generation_config: GenerationConfig | None = None, streamer: Any = None, **kwargs: Any
    ) -> Any:
        """Continue a text, or several.

        ``inputs`` is a str, a list of them, a `ChatHistory`, a tensor of tokens [batch, length], i64, or
        `TokenizedInputs`. Texts are written into the chat template, unless ``apply_chat_template=False`` or there is
        none. ``kwargs`` are fields of a `GenerationConfig`, which change ``generation_config``, or else that of the
        pipeline. ``streamer``, for a single text, is a function or a `StreamerBase`, which gets it while it is
        generated, and may end it. If it raises an exception, the generation ends with that.

        Returns: str for a str, unless ``num_return_sequences`` > 1; `DecodedResults` for other texts, `EncodedResults`
        for tokens. Raises: RuntimeError for a configuration that is not valid or not supported, an empty prompt, or a
        streamer of several texts; TypeError for inputs of another type.
        """
        config = self._resolved(generation_config, kwargs)
        writer = as_streamer(streamer, self._tokenizer)
        start = time.perf_counter()
        with self._turns.turn():
            if is_texts(inputs):
                results = self._generate_texts(inputs, config, writer, start)
                return results.texts[0] if isinstance(inputs, str) and config.num_return_sequences == 1 else results
            outcome, metrics = self._run(prompts_of_tokens(inputs), config, writer, start)
            return EncodedResults(*_columns(outcome, config), metrics)

    __call__ = generate

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

    def start_chat(self, system_message: str = "") -> None:
        """Begin a chat: generate() with a str then continues it. Deprecated, like `finish_chat`."""
        warnings.warn(DEPRECATED, DeprecationWarning, stacklevel=2)
        self._chat = ChatHistory([{"role": "system", "content": system_message}] if system_message else [])

    def finish_chat(self) -> None:
        """End the chat."""
        warnings.warn(DEPRECATED, DeprecationWarning, stacklevel=2)
        self._chat = None

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
        if self._looks_up and not resolved.is_prompt_lookup():
            raise Error("a pipeline with prompt_lookup needs num_assistant_tokens and max_ngram_size in each call")
        if self._draft is not None:
            if not resolved.is_assisting_generation():
                resolved.num_assistant_tokens = DRAFTED
            resolved.validate()
        return resolved

    def _generate_texts(self, inputs: Any, config: GenerationConfig, writer: Any, start: float) -> DecodedResults:
        """Continue texts or a chat, and keep the answer if a chat was begun."""
        chat = self._chat if not isinstance(inputs, ChatHistory) else None
        if chat is None:
            prompts = prompts_of_texts(inputs, config, self._tokenizer)
        else:
            if not isinstance(inputs, str):
                if len(inputs) != 1:
                    raise Error(f"a chat has one prompt at a time, not {len(inputs)}")
                (inputs,) = inputs
            asked = ChatHistory([*chat.get_messages(), {"role": "user", "content": inputs}])
            config = config.copy()
            config.apply_chat_template = True  # as in openvino_genai, a chat is always written into it
            prompts = prompts_of_texts(asked, config, self._tokenizer)
        outcome, metrics = self._run(prompts, config, writer, start)
        tokens, scores, reasons = _columns(outcome, config)
        texts = []
        for row in tokens:
            begin = time.perf_counter()
            texts.append(self._tokenizer.decode(row))
            metrics.raw_metrics.detokenization_durations.append(microseconds_since(begin))
        metrics.raw_metrics.generate_durations[:] = [microseconds_since(start)]
        if chat is not None and not outcome.cancelled:
            self._chat = asked
            asked.append({"role": "assistant", "content": texts[0]})
        return DecodedResults(texts, scores, reasons, metrics)

    def _run(
        self, prompts: Prompts, config: GenerationConfig, writer: Any, start: float
    ) -> tuple[Outcome, PerfMetrics]:
        """Continue the prompts."""
        if not prompts.rows:
            raise Error("there is no prompt")
        if any(not row for row in prompts.rows):
            raise Error("the prompt has no tokens")
        beams = config.is_beam_search()
        if writer is not None and (len(prompts.rows) > 1 or config.num_return_sequences > 1 or beams):
            raise Error("a streamer takes a single text, and not of beam search: leave it out, or generate one text")
        raw = RawPerfMetrics(chat_template_durations=prompts.templates, tokenization_durations=prompts.tokenizations)
        stops = Stops(config, self._tokenizer)
        grammar = self._grammar(config, raw)
        if beams:
            outcome = search(self._decoder, prompts.rows, config, stops, raw)
        elif self._looks_up or self._draft is not None:
            outcome = Outcome([])
            for row in prompts.rows:
                if self._draft is None:
                    assistant: Assistant = PromptLookup(config.max_ngram_size)
                else:
                    assistant = DraftModel(self._draft, config.assistant_confidence_threshold)
                found = generate_assisted(self._decoder, assistant, row, config, stops, writer, raw, grammar)
                outcome = Outcome(outcome.texts + found.texts, found.status)
            raw.inference_durations[:] = [sum(raw.inference_durations)]
        else:
            outcome = generate(self._decoder, prompts.rows, config, stops, writer, raw, grammar)
        raw.m_times_to_first_token += [1e3 * time - 1e6 * start for time in raw.m_new_token_times[:1]]
        raw.generate_durations.append(microseconds_since(start))
        return outcome, PerfMetrics(raw, self._load_time, len(prompts.rows[0]), self._compiler_times)

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


def _columns(outcome: Outcome, config: GenerationConfig) -> tuple[Any, Any, Any]:
    """Return tokens, scores and reasons of the texts."""
    tokens = [[*(text.prompt if config.echo else ()), *text.tokens] for text in outcome.texts]
    return tokens, [text.score for text in outcome.texts], [text.reason for text in outcome.texts]
