"""Class LLMPipeline: texts by a language model."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ovgpu.api.core import Core
from ovgpu.errors import Error
from ovgpu.genai.assisted import Assistant, DraftModel, PromptLookup, generate_assisted
from ovgpu.genai.chat_history import ChatHistory
from ovgpu.genai.decoder import Decoder
from ovgpu.genai.files import read_json
from ovgpu.genai.generation import Outcome, generate, search
from ovgpu.genai.generation_config import GenerationConfig
from ovgpu.genai.metrics import PerfMetrics, RawPerfMetrics
from ovgpu.genai.results import DecodedResults, EncodedResults
from ovgpu.genai.stops import Stops
from ovgpu.genai.streamers import as_streamer
from ovgpu.genai.tokenizer import TokenizedInputs, Tokenizer

MODEL = "openvino_model.xml"
WITHOUT_EFFECT = ("ATTENTION_BACKEND", "scheduler_config")
"""Properties of openvino_genai that choose among its backends: here all give the same results."""
UNSUPPORTED = ("adapters", "MAX_PROMPT_LEN", "MIN_RESPONSE_LEN")
DRAFTED = 5  # tokens that a draft model proposes by default
DEPRECATED = "start_chat() and finish_chat() are deprecated: call generate() with a ChatHistory"


@dataclass
class _Prompts:
    """Tokens of the prompts, and what the tokenizer and the chat template took, in microseconds."""

    rows: list[list[int]] = field(default_factory=list)
    templates: list[float] = field(default_factory=list)
    tokenizations: list[float] = field(default_factory=list)


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
        given = _Arguments.of(models_path, args, kwargs)
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
        if given.draft is not None or given.prompt_lookup:
            self._decoder.verifier()
        self._chat: ChatHistory | None = None
        self._running = threading.Lock()
        self._thread = 0  # that generates
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
        with self._alone():
            if isinstance(inputs, (str, ChatHistory)) or _is_texts(inputs):
                results = self._generate_texts(inputs, config, writer, start)
                return results.texts[0] if isinstance(inputs, str) and config.num_return_sequences == 1 else results
            rows = _rows_of(inputs)
            outcome, metrics = self._run(_Prompts(rows), config, writer, start)
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

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Return a context in which no other thread generates. Raises: Error in a streamer of the pipeline."""
        if self._thread == threading.get_ident():
            raise Error("a streamer cannot call generate() of the pipeline that calls it")
        with self._running:
            self._thread = threading.get_ident()
            try:
                yield
            finally:
                self._thread = 0

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
            prompts = self._prompts(inputs, config)
        else:
            if not isinstance(inputs, str):
                if len(inputs) != 1:
                    raise Error(f"a chat has one prompt at a time, not {len(inputs)}")
                (inputs,) = inputs
            asked = ChatHistory([*chat.get_messages(), {"role": "user", "content": inputs}])
            prompts = self._prompts(asked, config)
        outcome, metrics = self._run(prompts, config, writer, start)
        tokens, scores, reasons = _columns(outcome, config)
        texts = []
        for row in tokens:
            begin = time.perf_counter()
            texts.append(self._tokenizer.decode(row))
            metrics.raw_metrics.detokenization_durations.append(_since(begin))
        metrics.raw_metrics.generate_durations[:] = [_since(start)]
        if chat is not None and not outcome.cancelled:
            self._chat = asked
            asked.append({"role": "assistant", "content": texts[0]})
        return DecodedResults(texts, scores, reasons, metrics)

    def _prompts(self, inputs: Any, config: GenerationConfig) -> _Prompts:
        """Return the tokens of texts or of a chat."""
        prompts, tokenizer = _Prompts(), self._tokenizer
        if isinstance(inputs, ChatHistory):
            if not inputs:
                raise Error("the ChatHistory has no message")
            if not config.apply_chat_template:
                raise Error("a ChatHistory needs apply_chat_template=True")
            chats: list[Any] = [inputs]
        else:
            texts = [inputs] if isinstance(inputs, str) else inputs
            plain = not (config.apply_chat_template and tokenizer.chat_template)
            chats = [text if plain else ChatHistory([{"role": "user", "content": text}]) for text in texts]
        for chat in chats:
            begin, is_chat = time.perf_counter(), isinstance(chat, ChatHistory)
            if is_chat:
                chat = tokenizer.apply_chat_template(chat, add_generation_prompt=True)
                prompts.templates.append(_since(begin))
                begin = time.perf_counter()
            ids = tokenizer.encode(chat, add_special_tokens=not is_chat).input_ids  # the template has special tokens
            prompts.rows.append(ids.data[0].tolist())
            prompts.tokenizations.append(_since(begin))
        return prompts

    def _run(
        self, prompts: _Prompts, config: GenerationConfig, writer: Any, start: float
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
        if beams:
            outcome = search(self._decoder, prompts.rows, config, stops, raw)
        elif self._looks_up or self._draft is not None:
            outcome = Outcome([])
            for row in prompts.rows:
                if self._draft is None:
                    assistant: Assistant = PromptLookup(config.max_ngram_size)
                else:
                    assistant = DraftModel(self._draft, config.assistant_confidence_threshold)
                found = generate_assisted(self._decoder, assistant, row, config, stops, writer, raw)
                outcome = Outcome(outcome.texts + found.texts, found.cancelled)
            raw.inference_durations[:] = [sum(raw.inference_durations)]
        else:
            outcome = generate(self._decoder, prompts.rows, config, stops, writer, raw)
        raw.m_times_to_first_token += [1e3 * time - 1e6 * start for time in raw.m_new_token_times[:1]]
        raw.generate_durations.append(_since(start))
        return outcome, PerfMetrics(raw, self._load_time, len(prompts.rows[0]))


@dataclass(frozen=True)
class _Draft:
    """A smaller model that proposes tokens, see `draft_model`."""

    path: str
    device: str
    properties: dict[str, Any]


def draft_model(models_path: str | os.PathLike[str] | bytes, device: str = "", **kwargs: Any) -> Any:
    """Return a value for the property ``draft_model`` of an `LLMPipeline`: a smaller model with the same tokens.

    By default, its device and its properties, ``kwargs``, are those of the pipeline. Raises: RuntimeError if the folder
    has no model.
    """
    return _Draft(_model_path(Path(os.fsdecode(models_path))), device, kwargs)


def _model_path(folder: Path) -> str:
    """Return the path of a folder's model. Raises: Error if there is none."""
    if not (folder / MODEL).is_file():
        raise Error(f"{folder} has no {MODEL}: `optimum-cli export openvino --model NAME {folder}` makes one")
    return str(folder / MODEL)


def _check_window(folder: Path) -> None:
    """Raise Error for a model with sliding windows: tokens that were taken back would count in them."""
    config = read_json(folder / "config.json")
    text = config.get("text_config", config)
    if text.get("sliding_window") and text.get("use_sliding_window", True):
        raise Error(f"assisted generation needs a model without sliding windows, and {folder} has one")


@dataclass
class _Arguments:
    """Arguments of an `LLMPipeline`: what `Core.read_model` takes, and the rest."""

    model: tuple[Any, ...]
    tokenizer: Tokenizer
    device: str
    config: GenerationConfig
    properties: dict[str, Any]
    prompt_lookup: bool
    draft: _Draft | None

    @staticmethod
    def of(first: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Arguments:
        """Sort the arguments of one of the three forms by their types."""
        rest, properties = list(args), dict(kwargs)
        first = properties.pop("model", properties.pop("models_path", first) if first is None else first)
        weights = properties.pop("weights", None)
        if weights is None and rest and not isinstance(rest[0], (str, Tokenizer)):
            weights = rest.pop(0)
        tokenizer = properties.pop("tokenizer", None)
        if tokenizer is None and rest and isinstance(rest[0], Tokenizer):
            tokenizer = rest.pop(0)
        device = rest.pop(0) if rest else properties.pop("device", None)
        config = properties.pop("generation_config", None)
        if rest and (rest[0] is None or isinstance(rest[0], GenerationConfig)):
            config = rest.pop(0)
        properties = {**(rest.pop(0) if rest else properties.pop("config", None) or {}), **properties}
        if rest or not isinstance(device, str) or not isinstance(first, (str, bytes, os.PathLike)):
            raise TypeError(
                "LLMPipeline takes (models_path, [tokenizer,] device), or (model, weights, tokenizer, device)"
            )
        lookup, draft = bool(properties.pop("prompt_lookup", False)), properties.pop("draft_model", None)
        if draft is not None and not isinstance(draft, _Draft):
            raise TypeError(f"draft_model is what the function draft_model returns, not {draft!r}")
        for name in UNSUPPORTED:
            if properties.get(name):
                raise Error(f"ovgpu.genai does not support {name}")
        properties = {name: value for name, value in properties.items() if name not in (*WITHOUT_EFFECT, *UNSUPPORTED)}
        if weights is not None:
            if not isinstance(tokenizer, Tokenizer):
                raise TypeError("a model with its weights needs a Tokenizer")
            config = GenerationConfig() if config is None else config.copy()
            return _Arguments((first, weights), tokenizer, device, config, properties, lookup, draft)
        folder = Path(os.fsdecode(first))
        model = _model_path(folder)
        for path in [folder] * (lookup or draft is not None) + ([Path(draft.path).parent] if draft else []):
            _check_window(path)
        path = folder / "generation_config.json"
        own = GenerationConfig(path) if path.is_file() else GenerationConfig()
        return _Arguments((model,), tokenizer or Tokenizer(folder), device, own, properties, lookup, draft)


def _is_texts(inputs: Any) -> bool:
    return isinstance(inputs, (list, tuple)) and all(isinstance(text, str) for text in inputs)


def _rows_of(inputs: Any) -> list[list[int]]:
    """Return the tokens of each row of a tensor [batch, length], i64, or of TokenizedInputs, without padding."""
    mask = None
    tokens = inputs
    if isinstance(inputs, TokenizedInputs):
        tokens, mask = inputs.input_ids, np.asarray(inputs.attention_mask.data)
    if not hasattr(tokens, "get_element_type"):
        raise TypeError(f"generate takes texts, a ChatHistory, a Tensor or TokenizedInputs, not {inputs!r}")
    ids = np.asarray(tokens.data)
    if ids.dtype != np.int64 or ids.ndim != 2:
        raise Error(f"tokens must be i64 [batch, length], not {ids.dtype} {list(ids.shape)}")
    if mask is None:
        mask = np.ones_like(ids)
    if mask.shape != ids.shape:
        raise Error(f"attention_mask has the shape {list(mask.shape)}, not {list(ids.shape)}")
    return [row[kept == 1].tolist() for row, kept in zip(ids, mask)]


def _columns(outcome: Outcome, config: GenerationConfig) -> tuple[Any, Any, Any]:
    """Return tokens, scores and reasons of the texts."""
    tokens = [[*(text.prompt if config.echo else ()), *text.tokens] for text in outcome.texts]
    return tokens, [text.score for text in outcome.texts], [text.reason for text in outcome.texts]


def _since(start: float) -> float:
    """Return the time since ``start``, in microseconds."""
    return 1e6 * (time.perf_counter() - start)
