"""Texts, speech and images, with the interface of openvino_genai: ``import ovgpu.genai as ov_genai``."""

from typing import Any

from ovgpu.genai.absent import ABSENT, absent
from ovgpu.genai.adapters import Adapter, AdapterConfig
from ovgpu.genai.chat_history import ChatHistory
from ovgpu.genai.continuous_batching_pipeline import ContinuousBatchingPipeline
from ovgpu.genai.enums import GenerationFinishReason, GenerationStatus, StopCriteria, StreamingStatus
from ovgpu.genai.generation_config import GenerationConfig
from ovgpu.genai.handle import GenerationResult
from ovgpu.genai.images.autoencoder import AutoencoderKL
from ovgpu.genai.images.clip_text_model import CLIPTextModel
from ovgpu.genai.images.config import ImageGenerationConfig
from ovgpu.genai.images.generators import CppStdGenerator, Generator, TorchGenerator
from ovgpu.genai.images.metrics import ImageGenerationPerfMetrics, RawImageGenerationPerfMetrics
from ovgpu.genai.images.pipelines import Image2ImagePipeline, InpaintingPipeline, Text2ImagePipeline
from ovgpu.genai.images.scheduler import Scheduler
from ovgpu.genai.images.unet import UNet2DConditionModel
from ovgpu.genai.incremental_parsers import (
    DeepSeekR1ReasoningIncrementalParser,
    IncrementalParser,
    Phi4ReasoningIncrementalParser,
    ReasoningIncrementalParser,
)
from ovgpu.genai.llm_pipeline import LLMPipeline
from ovgpu.genai.metrics import PerfMetrics, RawPerfMetrics
from ovgpu.genai.parsers import (
    DeepSeekR1ReasoningParser,
    Llama3JsonToolParser,
    Llama3PythonicToolParser,
    Parser,
    Phi4ReasoningParser,
    ReasoningParser,
    VLLMParserWrapper,
)
from ovgpu.genai.pipeline_arguments import draft_model
from ovgpu.genai.results import DecodedResults, EncodedResults
from ovgpu.genai.scheduler_config import SchedulerConfig
from ovgpu.genai.streamers import StreamerBase, TextParserStreamer, TextStreamer
from ovgpu.genai.structured_output import StructuralTagItem, StructuralTagsConfig, StructuredOutputConfig
from ovgpu.genai.text_embedding_pipeline import TextEmbeddingPipeline
from ovgpu.genai.text_rerank_pipeline import TextRerankPipeline
from ovgpu.genai.tokenizer import TokenizedInputs, Tokenizer
from ovgpu.genai.vlm.pipeline import VLMPipeline, VLMPipelineBase
from ovgpu.genai.vlm.results import VideoMetadata, VLMDecodedResults
from ovgpu.genai.whisper.asr import (
    ASRDecodedResultChunk,
    ASRDecodedResults,
    ASRPerfMetrics,
    ASRPipeline,
    ASRRawPerfMetrics,
)
from ovgpu.genai.whisper.config import ASRGenerationConfig, WhisperGenerationConfig
from ovgpu.genai.whisper.pipeline import WhisperPipeline
from ovgpu.genai.whisper.results import WhisperPerfMetrics, WhisperRawPerfMetrics, WhisperWordTiming
from ovgpu.version import __version__

__all__ = [
    "ASRDecodedResultChunk",
    "ASRDecodedResults",
    "ASRGenerationConfig",
    "ASRPerfMetrics",
    "ASRPipeline",
    "ASRRawPerfMetrics",
    "Adapter",
    "AdapterConfig",
    "AutoencoderKL",
    "CLIPTextModel",
    "ChatHistory",
    "ContinuousBatchingPipeline",
    "CppStdGenerator",
    "DecodedResults",
    "DeepSeekR1ReasoningIncrementalParser",
    "DeepSeekR1ReasoningParser",
    "EncodedResults",
    "GenerationConfig",
    "GenerationFinishReason",
    "GenerationResult",
    "GenerationStatus",
    "Generator",
    "Image2ImagePipeline",
    "ImageGenerationConfig",
    "ImageGenerationPerfMetrics",
    "IncrementalParser",
    "InpaintingPipeline",
    "LLMPipeline",
    "Llama3JsonToolParser",
    "Llama3PythonicToolParser",
    "Parser",
    "PerfMetrics",
    "Phi4ReasoningIncrementalParser",
    "Phi4ReasoningParser",
    "RawImageGenerationPerfMetrics",
    "RawPerfMetrics",
    "ReasoningIncrementalParser",
    "ReasoningParser",
    "Scheduler",
    "SchedulerConfig",
    "StopCriteria",
    "StreamerBase",
    "StreamingStatus",
    "StructuralTagItem",
    "StructuralTagsConfig",
    "StructuredOutputConfig",
    "Text2ImagePipeline",
    "TextEmbeddingPipeline",
    "TextParserStreamer",
    "TextRerankPipeline",
    "TextStreamer",
    "TokenizedInputs",
    "Tokenizer",
    "TorchGenerator",
    "UNet2DConditionModel",
    "VLLMParserWrapper",
    "VLMDecodedResults",
    "VLMPipeline",
    "VLMPipelineBase",
    "VideoMetadata",
    "WhisperGenerationConfig",
    "WhisperPerfMetrics",
    "WhisperPipeline",
    "WhisperRawPerfMetrics",
    "WhisperWordTiming",
    "draft_model",
    "get_version",
]


def get_version() -> str:
    """Return the version of ovgpu."""
    return __version__


def __getattr__(name: str) -> Any:
    """Return a class that stands for one of openvino_genai that is not there, see `absent`."""
    if name in ABSENT:
        return absent(name)
    raise AttributeError(f"module 'ovgpu.genai' has no attribute {name!r}")
