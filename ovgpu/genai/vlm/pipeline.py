"""Class VLMPipeline: texts about images."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from ovgpu.errors import Error
from ovgpu.genai.chat_history import ChatHistory
from ovgpu.genai.generation import Outcome
from ovgpu.genai.generation_config import GenerationConfig
from ovgpu.genai.generation_pipeline import GenerationPipeline
from ovgpu.genai.llm_pipeline import DEPRECATED
from ovgpu.genai.metrics import microseconds_since
from ovgpu.genai.prompts import Prompts, prompts_of_texts
from ovgpu.genai.streamers import StreamerBase, as_streamer
from ovgpu.genai.vlm.arguments import Arguments, Request
from ovgpu.genai.vlm.chat import Message, begin_of, continued, last_question
from ovgpu.genai.vlm.decoder import VLMDecoder
from ovgpu.genai.vlm.family import Family, Prompt, Vision
from ovgpu.genai.vlm.gemma3 import Gemma3
from ovgpu.genai.vlm.images import Array, images_of, videos_of
from ovgpu.genai.vlm.llava import Llava
from ovgpu.genai.vlm.llava_next import LlavaNext
from ovgpu.genai.vlm.parts import Parts
from ovgpu.genai.vlm.qwen2_vl import Qwen2_5VL, Qwen2VL
from ovgpu.genai.vlm.results import VLMDecodedResults, VLMPerfMetrics, VLMRawPerfMetrics

FAMILIES: dict[str, type[Family]] = {
    "gemma3": Gemma3,
    "llava": Llava,
    "llava_next": LlavaNext,
    "qwen2_5_vl": Qwen2_5VL,
    "qwen2_vl": Qwen2VL,
}
"""Families by the model_type of config.json."""


class VLMPipelineBase:
    """Base class of pipelines whose prompts have images."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is VLMPipelineBase:
            raise TypeError("VLMPipelineBase has no constructor: make a VLMPipeline")
        return super().__new__(cls)


class VLMPipeline(GenerationPipeline, VLMPipelineBase):
    """Language model that continues texts about images, with the interface of openvino_genai.

    - ``VLMPipeline(models_path, device, **properties)``: a folder with openvino_language_model.xml,
      openvino_text_embeddings_model.xml, the models of images, a tokenizer, and the JSON files of the model
    - ``VLMPipeline(models, tokenizer, config_dir_path, device, generation_config, **properties)``: a dict of models by
      name, such as "language" and "vision_embeddings", each the text of the XML and a tensor with the contents of the
      .bin, a `Tokenizer`, and the folder of the JSON files

    The model_type in config.json is one of `FAMILIES`. Properties are those of `Core.compile_model`,
    ``MODEL_PROPERTIES``, a dict of more by model, and ``prompt_lookup=True``, as in `LLMPipeline`. Threads may share a
    pipeline: it runs one generation at a time.

    Raises: RuntimeError if a file is missing, or the model is of another family; TypeError for other arguments.
    """

    _decoder: VLMDecoder

    def __init__(self, models_path: Any = None, *args: Any, **kwargs: Any) -> None:
        start = time.perf_counter()
        given = Arguments.of(models_path, args, kwargs)
        parts = given.parts
        self._family = _family(parts)
        decoder = VLMDecoder(
            parts.read("language"), parts.read("text_embeddings"), parts.device, parts.properties_of("language")
        )
        super().__init__(parts.tokenizer, given.config, decoder, given.prompt_lookup)
        self._chat: tuple[ChatHistory, list[Message]] | None = None
        self._known: WeakKeyDictionary[ChatHistory, list[Message]] = WeakKeyDictionary()
        self._load_time = 1e3 * (time.perf_counter() - start)

    def generate(self, prompt: str | ChatHistory | None = None, *args: Any, **kwargs: Any) -> VLMDecodedResults:
        """Continue a text or a chat about images. A chat may be named ``history``.

        After the prompt come ``images``, ``videos``, ``generation_config`` and ``streamer``, those that there are, in
        this order or by name. ``images`` is a tensor u8, [height, width, channels] or [n, height, width, channels], or
        a list of them; ``image`` is another name for it. ``videos`` is a list of tensors [frames, height, width,
        channels], of which ``videos_metadata``, a list of `VideoMetadata`, may choose frames. Tags in the prompt say
        where images stand, see `place_tags`; else they go ahead of it. Images of a `ChatHistory` are those of its last
        message of the user. They are kept as long as the ChatHistory is there, so that later calls give only those of
        new messages.

        Other keywords are fields of a `GenerationConfig`, which change ``generation_config``, or else that of the
        pipeline. ``streamer`` is a function or a `StreamerBase`, which gets the text while it is generated, and may
        end it. If it raises an exception, the generation ends with that.

        Raises: RuntimeError for a configuration that is not valid or not supported, tags without images, images of
        another type or size, a model without videos, and a streamer of several texts; TypeError for arguments of
        another type.
        """
        prompt = kwargs.pop("history", None) if prompt is None else prompt
        if not isinstance(prompt, (str, ChatHistory)):
            raise TypeError(f"a prompt is a text or a ChatHistory, not {prompt!r}")
        start = time.perf_counter()
        request = Request.of(args, kwargs)
        config = self._resolved(request.config, request.fields)
        if config.pruning_ratio:
            raise Error("ovgpu.genai does not support pruning_ratio: all embeddings of an image count")
        writer = as_streamer(request.streamer, self._tokenizer)
        images, videos = images_of(request.images), videos_of(request.videos, request.videos_metadata)
        call = _Call(images, videos, config, writer, start)
        with self._turns.turn():
            if isinstance(prompt, ChatHistory):
                if not config.apply_chat_template:
                    raise Error("a ChatHistory needs apply_chat_template=True")
                results, self._known[prompt], _ = self._answer(prompt, self._known.get(prompt, []), call)
                return results
            if self._chat is not None:
                return self._ask(*self._chat, prompt, call)
            begin = time.perf_counter()
            shown = self._family.prompt(prompt, *self._encode(call), (0, 0))
            return self._continue([shown], prompts_of_texts(shown.text, config, self._tokenizer), call, begin)[0]

    def start_chat(self, system_message: str = "") -> None:
        """Begin a chat: generate() with a str then continues it. Deprecated, like `finish_chat`."""
        warnings.warn(DEPRECATED, DeprecationWarning, stacklevel=2)
        self._chat = ChatHistory([{"role": "system", "content": system_message}] if system_message else []), []

    def finish_chat(self) -> None:
        """End the chat."""
        warnings.warn(DEPRECATED, DeprecationWarning, stacklevel=2)
        self._chat = None

    def set_chat_template(self, chat_template: str) -> None:
        """Replace the chat template of the tokenizer. Raises: RuntimeError in a chat that was begun."""
        if self._chat is not None:
            raise Error("the chat template cannot change in a chat: call finish_chat() before")
        self._tokenizer.set_chat_template(chat_template)

    # ----

    def _encode(self, call: _Call) -> tuple[list[Vision], list[Vision]]:
        """Return the embeddings of images and of videos."""
        begin = time.perf_counter()
        found = [self._family.image(one) for one in call.images], [self._family.video(one) for one in call.videos]
        call.raw.vision_encoding_durations.append(microseconds_since(begin))
        call.raw.per_image_slice_counts += [1] * len(call.images)
        return found

    def _ask(self, history: ChatHistory, known: list[Message], prompt: str, call: _Call) -> VLMDecodedResults:
        """Continue the chat that was begun, and keep the answer."""
        call.config.apply_chat_template = True  # as in openvino_genai, a chat is always written into it
        asked = ChatHistory([*history.get_messages(), {"role": "user", "content": prompt}])
        results, messages, cancelled = self._answer(asked, known, call)
        if not cancelled:
            asked.append({"role": "assistant", "content": results.texts[0]})
            self._chat = asked, messages
        return results

    def _answer(
        self, history: ChatHistory, known: Sequence[Message], call: _Call
    ) -> tuple[VLMDecodedResults, list[Message], bool]:
        """Continue a chat. Return the results, the messages that are known now, and whether it was cancelled."""
        begin = time.perf_counter()
        before = begin_of(known, history)
        if len(before) > last_question(history):  # its images are known
            call.images, call.videos = [], []
        messages = continued(before, history, self._family, *self._encode(call))
        written = ChatHistory([message.written() for message in messages])
        written.set_tools(history.get_tools())
        written.set_extra_context(history.get_extra_context())
        prompts = prompts_of_texts(written, call.config, self._tokenizer, add_special_tokens=True)
        shown = [message.prompt for message in messages if message.prompt is not None]
        results, outcome = self._continue(shown, prompts, call, begin)
        return results, before if outcome.cancelled else messages, outcome.cancelled

    def _continue(
        self, shown: Sequence[Prompt], prompts: Prompts, call: _Call, begin: float
    ) -> tuple[VLMDecodedResults, Outcome]:
        """Continue a prompt with the images of its parts, whose preparation began at a time."""
        images = [vision for prompt in shown for vision in prompt.images]
        videos = [vision for prompt in shown for vision in prompt.videos]
        self._decoder.begin(self._family.embed(prompts.rows[0], images, videos))
        call.raw.text_embedding_durations.append(0.0)
        call.raw.prepare_embeddings_durations.append(microseconds_since(begin))
        outcome, raw = self._run(prompts, call.config, call.writer, call.start)
        texts = self._texts(outcome, call.config, raw)
        raw.generate_durations[:] = [microseconds_since(call.start)]
        metrics = VLMPerfMetrics(raw, self._load_time, len(prompts.rows[0]), self._compiler_times, call.raw)
        parsed = self._parsed(call.config, texts, call.writer)
        return VLMDecodedResults(texts, outcome.scores, outcome.reasons, metrics, parsed=parsed), outcome


@dataclass
class _Call:
    """Arguments of generate() after its prompt, when it began, and what is measured."""

    images: Sequence[Array]
    videos: Sequence[Array]
    config: GenerationConfig
    writer: StreamerBase | None
    start: float
    raw: VLMRawPerfMetrics = field(default_factory=VLMRawPerfMetrics)


def _family(parts: Parts) -> Family:
    """Return the family of a model. Raises: Error for another one than `FAMILIES`."""
    kind = parts.config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise Error(
            f"{parts.folder / 'config.json'} has the model_type {kind!r}: a VLMPipeline supports {', '.join(FAMILIES)}"
        )
    return FAMILIES[kind](parts)
