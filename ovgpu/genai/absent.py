"""Names of openvino_genai that `ovgpu.genai` does not have: programs can import them, and get an error when they use
them."""

from __future__ import annotations

from typing import Any, NoReturn

from ovgpu.errors import Error

REASONS = {
    "images and videos are not generated": """
        AutoencoderKL AutoencoderKLLTXVideo CLIPTextModel CLIPTextModelWithProjection CppStdGenerator
        Flux2Transformer2DModel FluxTransformer2DModel Generator Image2ImagePipeline ImageGenerationConfig
        ImageGenerationPerfMetrics InpaintingPipeline LTXVideoTransformer3DModel Qwen2_5_VLForConditionalGeneration
        Qwen3TextEncoder QwenImageTransformer2DModel RawImageGenerationPerfMetrics SD3Transformer2DModel Scheduler
        T5EncoderModel TaylorSeerCacheConfig Text2ImagePipeline Text2VideoPipeline TorchGenerator UNet2DConditionModel
        VideoGenerationConfig VideoGenerationPerfMetrics VideoGenerationResult ZImageTransformer2DModel""",
    "speech is not generated": """
        OmniDecodedResults OmniPipeline OmniSpeechStreamerBase OmniTalkerSpeechConfig SpeechGenerationConfig
        SpeechGenerationPerfMetrics Talker TalkerBase TalkerPerfMetrics TalkerResults Text2SpeechDecodedResults
        Text2SpeechPipeline""",
    "models with images as inputs are not supported": "VLMDecodedResults VLMPipeline VLMPipelineBase VideoMetadata",
    "embeddings of texts are results of TextEmbeddingPipeline": "EmbedResult EmbeddingPipeline",
    "requests join a batch in `ovgpu.SequenceBatcher`": """
        AggregationMode CacheEvictionConfig ContinuousBatchingPipeline GenerationResult GenerationStatus
        KVCrushAnchorPointMode KVCrushConfig SparseAttentionConfig SparseAttentionMode""",
    "grammars are a JSON schema, a regular expression, EBNF, or made of such parts": """
        StructuralTagItem StructuralTagsConfig""",
    "results are not parsed": """
        DeepSeekR1ReasoningIncrementalParser DeepSeekR1ReasoningParser IncrementalParser Llama3JsonToolParser
        Llama3PythonicToolParser Parser Phi4ReasoningIncrementalParser Phi4ReasoningParser ReasoningIncrementalParser
        ReasoningParser TextParserStreamer VLLMParserWrapper""",
    "LoRA adapters are not applied": "Adapter AdapterConfig",
}
"""Names by the reason why they are not there."""

ABSENT = {name: reason for reason, names in REASONS.items() for name in names.split()}


class _Refusing(type):
    """Class of the classes that stand for absent ones: each use of them raises an error."""

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        cls._refuse()

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        cls._refuse()

    def _refuse(cls) -> NoReturn:
        named = next(base for base in cls.__mro__ if "_reason" in vars(base))  # programs derive classes from it
        reason = vars(named)["_reason"]
        pipelines = "LLMPipeline, TextEmbeddingPipeline, TextRerankPipeline, WhisperPipeline and ASRPipeline"
        raise Error(f"ovgpu.genai has no {named.__name__}: {reason}; it has {pipelines}")


def absent(name: str, reason: str = "") -> type:
    """Return a class that stands for an absent one. A call of it, or the use of an attribute, raises Error."""
    reason = reason or ABSENT[name]
    return _Refusing(name, (), {"__doc__": f"Absent: {reason}.", "__module__": "ovgpu.genai", "_reason": reason})
