"""Class LLMPipeline: texts by a language model."""

from __future__ import annotations

import time
import warnings
from typing import Any

from ovgpu.api.core import Core
from ovgpu.errors import Error
from ovgpu.genai.adapted_decoders import AdaptedDecoders
from ovgpu.genai.assisted_metrics import assisted_metrics
from ovgpu.genai.chat_history import ChatHistory
from ovgpu.genai.decoder import Decoder
from ovgpu.genai.engine import Limits
from ovgpu.genai.generation_config import GenerationConfig
from ovgpu.genai.generation_pipeline import GenerationPipeline, tokens_of
from ovgpu.genai.metrics import PerfMetrics, RawPerfMetrics, microseconds_since
from ovgpu.genai.pipeline_arguments import Arguments
from ovgpu.genai.prompts import Prompts, is_texts, prompts_of_texts, prompts_of_tokens
from ovgpu.genai.results import DecodedResults, EncodedResults
from ovgpu.genai.streamers import TextParserStreamer, as_streamer

DEPRECATED = "start_chat() and finish_chat() are deprecated: call generate() with a ChatHistory"


class LLMPipeline(GenerationPipeline):
    """Language model that continues texts, with the interface of openvino_genai.

    - ``LLMPipeline(models_path, device, **properties)``: a folder with openvino_model.xml and a tokenizer
    - ``LLMPipeline(models_path, tokenizer, device, **properties)``: with a `Tokenizer` of one's own
    - ``LLMPipeline(model, weights, tokenizer, device, generation_config, **properties)``: the text of the XML, and a
      tensor with the contents of the .bin

    Properties are those of `Core.compile_model`, and ``prompt_lookup=True`` or ``draft_model=draft_model(...)`` for
    assisted generation, which gives the same texts in fewer inferences of the model. ``scheduler_config`` (a
    `SchedulerConfig`) has limits for many texts. Without it, texts that begin like those of the last call, as those of
    a chat do, are continued from there. ``adapters`` (an `AdapterConfig`) are applied unless generate() gets
    other ones; for each of the last four sets of these, a compiled model is kept. Threads may share a pipeline: it runs
    one generation at a time.

    Raises: RuntimeError if a file is missing, or the model is no decoder with a state; TypeError for other arguments.
    """

    def __init__(self, models_path: Any = None, *args: Any, **kwargs: Any) -> None:
        start = time.perf_counter()
        given = Arguments.of(models_path, args, kwargs)
        model = Core().read_model(*given.model)
        self._decoders = AdaptedDecoders(model, given.device, given.properties, given.config.adapters)
        decoder, draft = self._decoders.own, None
        if given.draft is not None:
            properties = {**given.properties, **given.draft.properties}
            draft = Decoder(Core().read_model(given.draft.path), given.draft.device or given.device, properties)
            draft.check_several_tokens()
        super().__init__(given.tokenizer, given.config, decoder, given.prompt_lookup, draft)
        self._limits = Limits(prefixes=True) if given.scheduler is None else given.scheduler.limits(decoder)
        self._chat: ChatHistory | None = None
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
        if isinstance(writer, TextParserStreamer):
            writer.reset()
        start = time.perf_counter()
        with self._turns.turn():
            if is_texts(inputs):
                results = self._generate_texts(inputs, config, writer, start)
                return results.texts[0] if isinstance(inputs, str) and config.num_return_sequences == 1 else results
            prompts = prompts_of_tokens(inputs)
            outcome, raw = self._run(prompts, config, writer, start)
            tokens = tokens_of(outcome, config)
            metrics = self._metrics(raw, prompts)
            return EncodedResults(
                tokens, outcome.scores, outcome.reasons, metrics, assisted_metrics(metrics, outcome.record)
            )

    __call__ = generate

    def start_chat(self, system_message: str = "") -> None:
        """Begin a chat: generate() with a str then continues it. Deprecated, like `finish_chat`."""
        warnings.warn(DEPRECATED, DeprecationWarning, stacklevel=2)
        self._chat = ChatHistory([{"role": "system", "content": system_message}] if system_message else [])

    def finish_chat(self) -> None:
        """End the chat, and forget its tokens."""
        warnings.warn(DEPRECATED, DeprecationWarning, stacklevel=2)
        self._chat = self._engine = None

    # ----

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
        outcome, raw = self._run(prompts, config, writer, start)
        texts = self._texts(outcome, config, raw)
        parsed = self._parsed(config, texts, writer)
        raw.generate_durations[:] = [microseconds_since(start)]
        if chat is not None and not outcome.cancelled:
            self._chat = asked
            asked.append({"role": "assistant", "content": texts[0]})
        metrics = self._metrics(raw, prompts)
        extended = assisted_metrics(metrics, outcome.record)
        return DecodedResults(texts, outcome.scores, outcome.reasons, metrics, extended, parsed)

    def _decoder_of(self, config: GenerationConfig) -> Decoder:
        """Return the decoder with the adapters of a generation. Raises: Error if these do not fit the model."""
        return self._decoders.of(config.adapters)

    def _metrics(self, raw: RawPerfMetrics, prompts: Prompts) -> PerfMetrics:
        return PerfMetrics(raw, self._load_time, len(prompts.rows[0]), self._compiler_times)
