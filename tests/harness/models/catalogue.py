"""Architectures of the test models: their builders, their small sizes in `data/`, and larger sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .build import audio, compressed, decoders, decomposed, recurrent, text, vision, yolo
from .build._convert import Built

Sizes = dict[str, Any]


@dataclass(frozen=True)
class Architecture:
    """Builder of an architecture, the sizes of its small model, and sizes of larger models by name.

    `stored` small models are checked in, in `data/`.
    """

    build: Callable[..., Built]
    small: Sizes
    large: dict[str, Sizes] = field(default_factory=dict)
    stored: bool = True


_IMAGES = (2, 3, 32, 44), (1, 3, 41, 37)
_SQUARES = (2, 3, 32, 32), (1, 3, 32, 32)
_PICTURE = ((1, 3, 224, 224),)

_encoder = dict(vocab_size=211, hidden_size=60, num_hidden_layers=2, num_attention_heads=5, intermediate_size=112)
_decoder = dict(
    vocab_size=211, hidden_size=48, intermediate_size=112, num_hidden_layers=2, num_attention_heads=6,
    num_key_value_heads=2, max_position_embeddings=96, initializer_range=0.15,
)  # fmt: skip
_seq2seq = dict(
    vocab_size=211, d_model=40, encoder_layers=2, decoder_layers=2, encoder_attention_heads=5,
    decoder_attention_heads=5, encoder_ffn_dim=72, decoder_ffn_dim=72, init_std=0.2,
)  # fmt: skip
_t5 = dict(vocab_size=211, d_model=40, d_kv=8, d_ff=72, num_layers=2, num_heads=5, initializer_factor=3.0)
_bart = _seq2seq | dict(max_position_embeddings=64)
_whisper = _seq2seq | dict(
    num_mel_bins=20, max_source_positions=30, max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    decoder_start_token_id=1, suppress_tokens=[], begin_suppress_tokens=[],
)  # fmt: skip
_vit = dict(
    hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=112, patch_size=8,
    initializer_range=0.15,
)  # fmt: skip

_bert = Architecture(text.bert, _encoder | dict(max_position_embeddings=40), {"bert_base_128": dict(shape=(1, 128))})
_resnet = Architecture(
    partial(vision.classifier, "resnet", 54),
    dict(shapes=_IMAGES, embedding_size=16, hidden_sizes=[16, 24, 32, 40], depths=[1, 1, 2, 1], num_labels=11),
    {"resnet50": dict(shapes=_PICTURE, fixed=True)},
)
_llama = Architecture(
    partial(decoders.causal, "llama", 7),
    _decoder,
    {
        "llama_125m": dict(
            vocab_size=32000, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12
        )
    },
)
_small_llama, _small_bert, _small_resnet = (partial(a.build, **a.small) for a in (_llama, _bert, _resnet))
_large_llama = partial(_llama.build, **_llama.large["llama_125m"])

ARCHITECTURES: dict[str, Architecture] = {
    # recurrent
    "lstm_state": Architecture(recurrent.lstm_state, {}),
    "spec_tensor_iterator": Architecture(recurrent.spec_tensor_iterator, {}, {"tensor_iterator_lstm": {}}),
    "lstm_sequence": Architecture(recurrent.lstm_sequence, dict(steps=13, features=20, hidden=24), {
        "lstm_sequence_100x512": {}}, stored=False),
    "bilstm": Architecture(recurrent.bilstm, {}, {"bilstm_100x256": dict(
        vocabulary=1000, features=256, hidden=256, layers=2, shape=(4, 100))}),
    "gru": Architecture(recurrent.gru, {}, {"gru_100x512": dict(features=512, hidden=512, layers=2, shape=(1, 100))}),
    # text
    "bert": _bert,
    "distilbert": Architecture(text.distilbert, dict(
        vocab_size=211, dim=60, n_layers=2, n_heads=5, hidden_dim=112, max_position_embeddings=40,
        initializer_range=0.15), stored=False),
    "roberta": Architecture(
        text.roberta, _encoder | dict(max_position_embeddings=42, initializer_range=0.15), stored=False),
    "deberta": Architecture(text.deberta, _encoder | dict(
        max_position_embeddings=40, position_buckets=8, initializer_range=0.15)),
    "t5_encoder": Architecture(text.t5, dict(half="encoder") | _t5),
    "t5_decoder": Architecture(text.t5, dict(half="decoder") | _t5),
    "bart_encoder": Architecture(text.bart, dict(half="encoder") | _bart, stored=False),
    "bart_decoder": Architecture(text.bart, dict(half="decoder") | _bart, stored=False),
    "decomposed_encoder": Architecture(decomposed.encoder, dict(vocabulary=61, width=40, heads=5, layers=1, hidden=64)),
    # vision
    "vit": Architecture(
        partial(vision.classifier, "vit", 51), _vit | dict(shapes=_SQUARES, image_size=32, num_labels=11),
        {"vit_base": dict(shapes=_PICTURE, fixed=True)}),
    "swin": Architecture(partial(vision.classifier, "swin", 52), dict(
        shapes=_SQUARES, image_size=32, patch_size=2, embed_dim=18, depths=[1, 2], num_heads=[2, 3], window_size=4,
        num_labels=11, initializer_range=0.15)),
    "convnext": Architecture(partial(vision.classifier, "convnext", 53), dict(
        shapes=_IMAGES, hidden_sizes=[16, 24, 32, 40], depths=[1, 1, 2, 1], num_labels=11, initializer_range=0.15)),
    "resnet": _resnet,
    "mobilenet_v2": Architecture(
        vision.mobilenet,
        dict(shapes=((2, 3, 48, 60), (1, 3, 48, 60)), dynamic=(-1, 3, 48, 60), depth_multiplier=0.1, min_depth=4,
             depth_divisible_by=4, finegrained_output=False, num_labels=11),
        {"mobilenet_v2_224": dict(shapes=_PICTURE, dynamic=(1, 3, 224, 224))}),
    "efficientnet": Architecture(vision.efficientnet, dict(
        shapes=_IMAGES, width_coefficient=0.1, depth_coefficient=0.2, depth_divisor=4, hidden_dim=128, num_labels=11,
        initializer_range=0.3)),
    "segformer": Architecture(vision.segformer, dict(
        shapes=((2, 3, 64, 64), (1, 3, 64, 96)), hidden_sizes=[12, 16, 24, 30], depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 3, 5], decoder_hidden_size=28, num_labels=7, initializer_range=0.15)),
    "yolos": Architecture(vision.yolos, _vit | dict(
        shapes=((2, 3, 32, 48), (1, 3, 40, 32)), image_size=[32, 48], num_detection_tokens=7, num_labels=5)),
    "clip": Architecture(vision.clip, dict(
        text=dict(vocab_size=211, hidden_size=36, intermediate_size=60, num_hidden_layers=2, num_attention_heads=4,
                  max_position_embeddings=20, eos_token_id=210),
        vision=dict(hidden_size=40, intermediate_size=72, num_hidden_layers=2, num_attention_heads=5, image_size=32,
                    patch_size=8),
        projection=36)),
    "unet": Architecture(vision.unet, {}, {"unet_64": dict(
        widths=(64, 128, 256), groups=8, shape=(1, 3, 64, 64), size=(1, 3, 64, 64))}),
    "decomposed_group_norms": Architecture(decomposed.group_norms, dict(width=4, groups=2)),
    "detector": Architecture(vision.detector, {}),
    "yolo": Architecture(yolo.detector, {}),
    "preprocessed": Architecture(vision.preprocessed, {}),
    # audio
    "whisper_encoder": Architecture(
        audio.whisper, dict(half="encoder") | _whisper,
        {"whisper_tiny_encoder": dict(half="encoder", d_model=384, encoder_layers=4, encoder_attention_heads=6)}),
    "whisper_decoder": Architecture(audio.whisper, dict(half="decoder") | _whisper),
    "wav2vec2": Architecture(audio.wav2vec2, dict(
        shapes=((2, 400), (1, 567)), vocab_size=32, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=112, conv_dim=(16, 16, 24), conv_kernel=(10, 3, 2), conv_stride=(5, 2, 2),
        num_feat_extract_layers=3, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4,
        initializer_range=0.15)),
    # decoders
    "gpt2": Architecture(
        partial(decoders.causal, "gpt2", 8, bos_token_id=1, eos_token_id=2),
        dict(vocab_size=211, n_positions=96, n_embd=48, n_layer=2, n_head=4, initializer_range=0.25),
        {"gpt2_12x256": dict(n_embd=256, n_layer=12, n_head=8)}),
    "llama": _llama,
    "qwen2": Architecture(partial(decoders.causal, "qwen2", 41), _decoder, stored=False),
    "qwen3": Architecture(partial(decoders.causal, "qwen3", 42), _decoder | dict(head_dim=8)),
    "phi3": Architecture(partial(decoders.causal, "phi3", 43), _decoder | dict(pad_token_id=0), stored=False),
    "gemma2": Architecture(partial(decoders.causal, "gemma2", 44), _decoder | dict(
        head_dim=8, sliding_window=8, tie_word_embeddings=False)),
    "mistral": Architecture(partial(decoders.causal, "mistral", 45), _decoder | dict(sliding_window=8)),
    "mixtral": Architecture(partial(decoders.causal, "mixtral", 46), _decoder | dict(
        num_local_experts=3, intermediate_size=72)),
    # compressed
    "bert_int8": Architecture(compressed.quantized, dict(build=_small_bert, transformer=True)),
    "resnet_int8": Architecture(compressed.quantized, dict(build=_small_resnet)),
    "yolo_int8": Architecture(compressed.quantized, dict(build=yolo.detector)),
    "llama_int8": Architecture(compressed.weights, dict(build=_small_llama, mode="INT8_ASYM"), {
        "llama_125m_int8": dict(build=_large_llama, mode="INT8_ASYM")}),
    "llama_int4_sym": Architecture(compressed.weights, dict(build=_small_llama, mode="INT4_SYM", group=16), {
        "llama_125m_int4": dict(build=_large_llama, mode="INT4_SYM", group=128, all_layers=False)}),
    "llama_int4_asym": Architecture(compressed.weights, dict(build=_small_llama, mode="INT4_ASYM", group=16)),
    "llama_nf4": Architecture(compressed.weights, dict(build=_small_llama, mode="NF4", group=16)),
}  # fmt: skip

SMALL = {name: partial(a.build, **a.small) for name, a in ARCHITECTURES.items()}
LARGE = {name: partial(a.build, **sizes) for a in ARCHITECTURES.values() for name, sizes in a.large.items()}
STORED = [name for name, a in ARCHITECTURES.items() if a.stored]
