"""Class ContinuousBatchingPipeline: many texts by a language model, which come and go while others are generated."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ovgpu.api.core import Core
from ovgpu.errors import Error
from ovgpu.genai.chat_history import ChatHistory
from ovgpu.genai.decoder import Decoder
from ovgpu.genai.engine import Engine
from ovgpu.genai.enums import StreamingStatus
from ovgpu.genai.generation import Outcome
from ovgpu.genai.generation_config import GenerationConfig
from ovgpu.genai.generation_pipeline import GenerationPipeline, tokens_of
from ovgpu.genai.handle import EncodedGenerationResult, GenerationHandle, GenerationResult, status_of
from ovgpu.genai.metrics import PerfMetrics, RawPerfMetrics
from ovgpu.genai.pipeline_arguments import Arguments
from ovgpu.genai.pipeline_metrics import Meter, PipelineMetrics
from ovgpu.genai.prompts import is_texts, prompts_of_texts, prompts_of_tokens
from ovgpu.genai.scheduler_config import SchedulerConfig
from ovgpu.genai.stops import Stops
from ovgpu.genai.streamers import StreamerBase, as_streamer
from ovgpu.genai.texts import Generation
from ovgpu.genai.tokenizer import Tokenizer


class ContinuousBatchingPipeline(GenerationPipeline):
    """Language model that continues many texts side by side, with the interface of openvino_genai.

    - ``ContinuousBatchingPipeline(models_path, scheduler_config, device, properties)``
    - ``ContinuousBatchingPipeline(models_path, tokenizer, scheduler_config, device, **properties)``

    Either `generate` continues some prompts to their end, or `add_request` adds a prompt at any time, and the program
    calls `step` while `has_non_finished_requests`. A text does not depend on those that run beside it. Threads may
    share a pipeline: its steps run one after the other.

    Raises: RuntimeError if a file is missing, or the model is no decoder with a state; TypeError for other arguments.
    """

    def __init__(self, models_path: Any, *args: Any, **kwargs: Any) -> None:
        start = time.perf_counter()
        given = _arguments(models_path, args, kwargs)
        if given.draft is not None or given.prompt_lookup:
            raise Error("ContinuousBatchingPipeline has no assisted generation: LLMPipeline has")
        assert given.scheduler is not None
        decoder = Decoder(Core().read_model(*given.model), given.device, given.properties)
        super().__init__(given.tokenizer, given.config, decoder)
        self._limits = given.scheduler.limits(decoder)
        self._engine: Engine = Engine(decoder, self._limits)
        self._meter = Meter(self._limits.blocks, decoder.bytes_per_token)
        self._requests: dict[int, Generation] = {}  # that had not ended at the last step, by number
        self._chat: ChatHistory | None = None
        self._load_time = 1e3 * (time.perf_counter() - start)

    def generate(self, prompts: Any, generation_config: Any = None, streamer: Any = None) -> list[Any]:
        """Continue some prompts, and return their results in order.

        ``prompts`` is a str with a `GenerationConfig`, or a list with one for each: of str, of `ChatHistory`, or of
        tensors of tokens [1, length], i64. Texts are written into the chat template, as by `LLMPipeline`. ``streamer``
        is for a single text.

        Returns: a `GenerationResult` of each prompt, an `EncodedGenerationResult` of each tensor. Raises: RuntimeError
        while requests run, for a configuration that is not valid, and for an empty prompt; TypeError for other inputs.
        """
        single = isinstance(prompts, str)
        inputs, configs = ([prompts], [generation_config]) if single else (prompts, generation_config)
        if not isinstance(inputs, Sequence) or not isinstance(configs, Sequence):
            raise TypeError("generate takes a str with a GenerationConfig, or lists of prompts and of configurations")
        if len(configs) != len(inputs):
            raise Error(f"there are {len(inputs)} prompts, and {len(configs)} configurations")
        writer = as_streamer(streamer, self._tokenizer)
        with self._turns.turn():
            if self.has_non_finished_requests():
                raise Error("generate() cannot run while requests do: call step() until they have ended")
            history = None if self._chat is None else [*self._chat.get_messages(), {"role": "user", "content": prompts}]
            if single and history is not None:
                inputs = [ChatHistory(history)]
            begun = [_Begun(self, *pair, writer) for pair in zip(inputs, configs)]
            texts = [text for one in begun for text in one.generation.texts]
            if writer is not None and (len(texts) != 1 or begun[0].generation.config.is_beam_search()):
                raise Error("a streamer takes a single text, and not of beam search: leave it out")
            try:
                self._engine.add([one.generation for one in begun])
                while any(one.generation.is_running for one in begun):
                    self._meter.add(self._engine.step())
            finally:
                self._engine.close()
            results = [one.result(number) for number, one in enumerate(begun)]
            if single and history is not None and begun[0].generation.status != StreamingStatus.CANCEL:
                self._chat = ChatHistory([*history, {"role": "assistant", "content": results[0].m_generation_ids[0]}])
            return results

    def add_request(self, request_id: int, prompt: Any, generation_config: GenerationConfig) -> GenerationHandle:
        """Add a prompt: a str, which is not written into the chat template, or a tensor of tokens [1, length], i64.

        Raises: RuntimeError for the number of a request that runs, a configuration that is not valid, and a prompt that
        is empty or longer than the limits allow; TypeError for other prompts.
        """
        running = self._requests.get(request_id)
        if running is not None and running.is_running:
            raise Error(f"request {request_id} has not ended: take another number")
        begun = _Begun(self, prompt, generation_config, None, template=False)
        self._engine.add([begun.generation])
        self._requests[request_id] = begun.generation
        return GenerationHandle(begun.generation, begun.metrics)

    def step(self) -> None:
        """Add a token to each text, or read a piece of its prompt."""
        with self._turns.turn():
            self._meter.add(self._engine.step())
        self._requests = {number: one for number, one in self._requests.copy().items() if one.is_running}

    def has_non_finished_requests(self) -> bool:
        """Return whether a request has not ended."""
        return self._engine.is_busy

    def get_metrics(self) -> PipelineMetrics:
        """Return what the last step took."""
        return self._meter.metrics

    def get_config(self) -> GenerationConfig:
        """Return a copy of the configuration from the folder."""
        return self.get_generation_config()

    def start_chat(self, system_message: str = "") -> None:
        """Begin a chat: generate() with a str then continues it."""
        self._chat = ChatHistory([{"role": "system", "content": system_message}] if system_message else [])

    def finish_chat(self) -> None:
        """End the chat."""
        self._chat = None


class _Begun:
    """A generation of a pipeline, and when it began."""

    def __init__(
        self,
        pipeline: ContinuousBatchingPipeline,
        prompt: Any,
        config: GenerationConfig | None,
        streamer: StreamerBase | None,
        template: bool = True,
    ) -> None:
        self.start, self._pipeline = time.perf_counter(), pipeline
        config = pipeline._resolved(config, {})
        if not template:
            config.apply_chat_template = False
        self._is_text = is_texts(prompt)
        prompts = prompts_of_texts(prompt, config, pipeline._tokenizer) if self._is_text else prompts_of_tokens(prompt)
        if len(prompts.rows) != 1 or not prompts.rows[0]:
            raise Error(
                f"the prompt has {len(prompts.rows)} rows, not 1" if prompts.rows[1:] else "the prompt is empty"
            )
        self._raw = RawPerfMetrics(
            chat_template_durations=prompts.templates,
            tokenization_durations=prompts.tokenizations,
            inference_durations=[0.0],
        )
        self.generation = Generation(
            prompts.rows[0],
            config,
            Stops(config, pipeline._tokenizer),
            self._raw,
            pipeline._grammar(config, self._raw),
            streamer,
        )

    def metrics(self) -> PerfMetrics:
        """Return the times of the generation, which has ended."""
        raw, pipeline = self._raw, self._pipeline
        if not raw.generate_durations:
            raw.m_times_to_first_token += [1e3 * time - 1e6 * self.start for time in raw.m_new_token_times[:1]]
            end = raw.m_new_token_times[-1] if raw.m_new_token_times else 1e3 * self.start
            raw.generate_durations.append(1e3 * end - 1e6 * self.start)
        return PerfMetrics(raw, pipeline._load_time, len(self.generation.prompt), pipeline._compiler_times)

    def result(self, number: int) -> GenerationResult | EncodedGenerationResult:
        """Return the texts, or their tokens. Raises: the error of the generation."""
        generation = self.generation
        if generation.error is not None:
            raise generation.error
        outcome, config = Outcome(generation.best_first), generation.config
        if not self._is_text:
            tokens = tokens_of(outcome, config)
            return EncodedGenerationResult(number, tokens, outcome.scores, outcome.reasons, self.metrics())
        texts = self._pipeline._texts(outcome, config, self._raw)
        return GenerationResult(number, texts, outcome.scores, status_of(generation), self.metrics())


def _arguments(first: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """Return the arguments of a pipeline."""
    rest, properties = list(args), dict(kwargs)
    tokenizer = [rest.pop(0)] if rest and isinstance(rest[0], Tokenizer) else []
    scheduler = rest.pop(0) if rest else properties.pop("scheduler_config", None)
    if not isinstance(scheduler, SchedulerConfig):
        raise TypeError(f"scheduler_config is a SchedulerConfig, not {scheduler!r}")
    device = [rest.pop(0)] if rest else []
    for name in ("properties", "tokenizer_properties", "vision_encoder_properties"):
        given = rest.pop(0) if rest else properties.pop(name, None)
        if not isinstance(given, Mapping | None):
            raise TypeError(f"{name} are a dict, not {given!r}")
        if name == "properties":  # the others are for openvino's tokenizers, and for images
            properties.update(given or {})
    if rest:
        raise TypeError("ContinuousBatchingPipeline takes (models_path, [tokenizer,] scheduler_config, device)")
    return Arguments.of(first, [*tokenizer, *device], {**properties, "scheduler_config": scheduler})
