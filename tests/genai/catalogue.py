"""Make tiny decoders of all architectures that optimum-intel exports and transformers has, with random weights.

    python -m tests.genai.catalogue DIR [NAME ...]        # DIR/NAME, DIR/NAME_int8 and DIR/NAME_int4
    python -m tests.genai.compare_wheel DIR/NAME ...
    python -m tests.genai.catalogue --store               # the models in tests/genai/data, with transformers 5.0.0

It needs the extra `models`. Each release of transformers exports a part of them: 5.5.4 most, 5.0.0 Gemma, GLM, Mamba
and LFM2, 5.2.0 Qwen3.5, 4.57.6 Zamba2, Qwen3-Next and DBRX. Prints why a model is not exported.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests.genai.make_tokenizer import FOLDER
from tests.harness.models.build._convert import perturbed
from tests.models.make import save

Sizes = dict[str, Any]

WEIGHTS: dict[str, dict[str, Any]] = {
    "_int8": {"mode": "INT8_ASYM"},
    "_int4": {"mode": "INT4_ASYM", "group_size": 16, "ratio": 1.0, "all_layers": True},
}
"""Forms of compressed weights: the end of the folder's name, and arguments of nncf.compress_weights."""

_plain: Sizes = dict(
    vocab_size=211, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    max_position_embeddings=256, initializer_range=0.15, bos_token_id=1, eos_token_id=2, pad_token_id=0,
)  # fmt: skip
_grouped = _plain | dict(num_key_value_heads=2)
_heads = _grouped | dict(head_dim=16)
_experts = dict(num_local_experts=4, num_experts_per_tok=2)
_gpt = dict(
    vocab_size=211, n_positions=256, n_embd=64, n_layer=2, n_head=4, initializer_range=0.2, bos_token_id=1,
    eos_token_id=2,
)  # fmt: skip
_seq2seq = dict(
    vocab_size=211, d_model=64, encoder_layers=1, decoder_layers=2, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=72, decoder_ffn_dim=72, init_std=0.2, max_position_embeddings=256,
    bos_token_id=1, eos_token_id=2, pad_token_id=0, is_decoder=True,
)  # fmt: skip
_mamba = dict(
    vocab_size=211, hidden_size=32, state_size=16, num_hidden_layers=2, conv_kernel=4, expand=2, time_step_rank=16,
    initializer_range=0.3, bos_token_id=1, eos_token_id=2, pad_token_id=0,
)  # fmt: skip
_linear = dict(
    linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16,
    linear_conv_kernel_dim=4, full_attention_interval=2, layer_types=["linear_attention", "full_attention"],
)  # fmt: skip

CONFIGS: dict[str, Sizes] = {
    "afmoe": _heads | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48, num_dense_layers=1,
                           sliding_window=8, layer_types=["sliding_attention", "full_attention"]),
    "arcee": _heads,
    "bart": _seq2seq,
    "bigbird_pegasus": _seq2seq | dict(attention_type="original_full"),
    "biogpt": _plain,
    "blenderbot": _seq2seq,
    "blenderbot-small": _seq2seq,
    "bloom": dict(vocab_size=211, hidden_size=64, n_layer=2, n_head=4, initializer_range=0.2, bos_token_id=1,
                  eos_token_id=2, pad_token_id=0),
    "codegen": _gpt | dict(rotary_dim=8),
    "cohere": _grouped,
    "cohere2": _heads | dict(sliding_window=8, layer_types=["sliding_attention", "full_attention"]),
    "dbrx": dict(vocab_size=211, d_model=64, n_heads=4, n_layers=2, max_seq_len=256,
                 attn_config=dict(kv_n_heads=2, clip_qkv=8), initializer_range=0.15,
                 ffn_config=dict(ffn_hidden_size=64, moe_num_experts=4, moe_top_k=2)),
    "falcon": dict(vocab_size=211, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, initializer_range=0.2,
                   bos_token_id=1, eos_token_id=2),
    "falcon_alibi": dict(model_type="falcon", vocab_size=211, hidden_size=64, num_hidden_layers=2,
                         num_attention_heads=4, alibi=True, initializer_range=0.2, bos_token_id=1, eos_token_id=2),
    "falcon_mamba": _mamba,
    "gemma": _heads,
    "gemma2": _heads | dict(sliding_window=8, tie_word_embeddings=False),
    "gemma3_text": _heads | dict(sliding_window=8, layer_types=["sliding_attention", "full_attention"]),
    "gemma3n_text": _heads | dict(sliding_window=8, num_hidden_layers=4, num_kv_shared_layers=2, laurel_rank=8,
                                  hidden_size_per_layer_input=16, vocab_size_per_layer_input=211,
                                  layer_types=["sliding_attention", "full_attention"] * 2, intermediate_size=96,
                                  activation_sparsity_pattern=[0.0] * 4, altup_num_inputs=2),
    "glm": _heads | dict(partial_rotary_factor=0.5),
    "glm4": _heads | dict(partial_rotary_factor=0.5),
    "gpt2": _gpt,
    "gpt_bigcode": _gpt,
    "gpt_neo": dict(vocab_size=211, hidden_size=64, num_layers=2, num_heads=4, max_position_embeddings=256,
                    attention_types=[[["global", "local"], 1]], window_size=8, initializer_range=0.2, bos_token_id=1,
                    eos_token_id=2),
    "gpt_neox": _plain,
    "gpt_neox_japanese": _plain,
    "gpt_oss": _heads | _experts | dict(sliding_window=8, layer_types=["sliding_attention", "full_attention"]),
    "gptj": _gpt | dict(rotary_dim=8),
    "granite": _grouped,
    "granitemoe": _grouped | _experts,
    "granitemoehybrid": _grouped | _experts | dict(
        layer_types=["mamba", "attention"], mamba_n_heads=8, mamba_d_head=16, mamba_d_state=8, mamba_n_groups=1,
        mamba_d_conv=4, mamba_expand=2, shared_intermediate_size=48, position_embedding_type="rope"),
    "granitemoehybrid_nope": _grouped | dict(
        model_type="granitemoehybrid", layer_types=["mamba", "attention"], mamba_n_heads=8, mamba_d_head=16,
        mamba_d_state=8, mamba_n_groups=1, mamba_d_conv=4, mamba_expand=2, shared_intermediate_size=48,
        num_local_experts=0),
    "hunyuan_v1_dense": _heads,
    "lfm2": _grouped | dict(hidden_size=32, intermediate_size=48, block_multiple_of=16, conv_L_cache=3,
                            layer_types=["conv", "full_attention"]),
    "lfm2_moe": _grouped | dict(layer_types=["conv", "full_attention"], conv_L_cache=3, num_experts=4,
                                num_experts_per_tok=2, moe_intermediate_size=48, num_dense_layers=1),
    "llama": _heads,
    "llama4_text": _heads | _experts | dict(intermediate_size_mlp=96, attention_chunk_size=8),
    "mamba": _mamba,
    "marian": _seq2seq | dict(decoder_start_token_id=1),
    "mbart": _seq2seq,
    "mistral": _heads | dict(sliding_window=None),
    "mistral_window": _heads | dict(model_type="mistral", sliding_window=8),
    "mixtral": _heads | _experts,
    "mpt": dict(vocab_size=211, d_model=64, n_heads=4, n_layers=2, max_seq_len=256, initializer_range=0.2),
    "olmo": _grouped,
    "olmo2": _grouped,
    "opt": dict(vocab_size=211, hidden_size=64, ffn_dim=96, num_hidden_layers=2, num_attention_heads=4,
                max_position_embeddings=256, word_embed_proj_dim=64, init_std=0.2, bos_token_id=1, eos_token_id=2,
                pad_token_id=0),
    "pegasus": _seq2seq,
    "persimmon": _plain,
    "phi": _plain,
    "phi3": _grouped,
    "phi3_window": _grouped | dict(model_type="phi3", sliding_window=8),
    "phimoe": _grouped | _experts,
    "qwen2": _grouped,
    "qwen2_moe": _grouped | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48,
                                 shared_expert_intermediate_size=48),
    "qwen3": _heads,
    "qwen3_moe": _heads | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48),
    "qwen3_5_text": _heads | _linear,
    "qwen3_5_moe_text": _heads | _linear | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48,
                                                shared_expert_intermediate_size=48),
    "qwen3_next": _heads | _linear | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=48,
                                          shared_expert_intermediate_size=48),
    "smollm3": _grouped,
    "stablelm": _grouped,
    "starcoder2": _grouped | dict(sliding_window=None),
    "xglm": dict(vocab_size=211, d_model=64, ffn_dim=96, num_layers=2, attention_heads=4, init_std=0.2,
                 max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0),
    "zamba2": _plain | dict(
        hybrid_layer_ids=[1], layers_block_type=["mamba", "hybrid"], mamba_d_state=8,
        mamba_d_conv=4, mamba_expand=2, mamba_ngroups=1, n_mamba_heads=8, num_mem_blocks=1, adapter_rank=8,
        mamba_headdim=16, use_mem_rope=True, attention_head_dim=32, attention_hidden_size=128),
}  # fmt: skip
"""Configurations by name, which is that of the architecture unless they have a model_type."""


STORED = ("lfm2", "mamba")


def export(name: str, folder: Path) -> None:
    """Write the decoder ``name`` into ``folder``, and its forms with compressed weights beside it."""
    import nncf
    import openvino
    import torch
    from optimum.exporters.openvino import main_export
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(sum(map(ord, name)))
    module = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{"model_type": name, **CONFIGS[name]}))
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as source:
        perturbed(module).save_pretrained(source)
        main_export(source, folder, task="text-generation-with-past", library_name="transformers")
    shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    for end, options in WEIGHTS.items():
        target = folder.with_name(folder.name + end)
        shutil.copytree(folder, target, dirs_exist_ok=True)
        model = openvino.Core().read_model(folder / "openvino_model.xml")
        mode = nncf.CompressWeightsMode[options["mode"]]
        rest = nncf.AdvancedCompressionParameters(group_size_fallback_mode=nncf.GroupSizeFallbackMode.IGNORE)
        model = nncf.compress_weights(model, **{**options, "mode": mode}, advanced_parameters=rest)
        openvino.save_model(model, target / "openvino_model.xml", compress_to_fp16=False)


def store(name: str) -> None:
    """Write the decoder ``name`` into the data of the tests."""
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        export(name, Path(folder) / name)
        model = openvino.Core().read_model(Path(folder) / name / "openvino_model.xml").clone()
    save(model, FOLDER.with_name(name))


def main() -> None:
    """Export the models of the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CONFIGS))
    parser.add_argument("--store", action="store_true", help=f"write {', '.join(STORED)} into the data of the tests")
    options = parser.parse_args()
    if options.store:
        for name in STORED:
            store(name)
        return
    if options.folder is None:
        parser.error("give a folder, or --store")
    for name in options.names or CONFIGS:
        try:
            export(name, options.folder / name)
            print(f"{name}: exported", flush=True)
        except Exception as e:  # of any of the packages
            print(f"{name}: {type(e).__name__}: {str(e).splitlines()[0]}", flush=True)


if __name__ == "__main__":
    main()
