"""Compare texts about images with those of openvino_genai, case by case, by tiny models that optimum-intel exports.

Run it in an environment with openvino_genai, optimum-intel 2.2 and PyTorch for the CPU, and with what ovgpu needs, in
the folder of the project:

    python -m tests.genai.compare_vlm [FAMILY ...]

The models are made of a configuration with a seed. Prints each outcome that differs, and at last the number of those
that agree. The exit code is 1 if one differs.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.genai import vlm_cases
from tests.genai.compare_wheel import EXACT, agree
from tests.genai.make_tokenizer import VOCABULARY, byte_tokenizer
from tests.genai.vlm_model import FAMILIES, GRIDS, PATCH, SIDE, SPECIAL, TAGS, add_tokenizer_models, make_folder

TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
QWEN_TEXT = {**TEXT, "rope_theta": 1e4, "rope_scaling": {"type": "mrope", "mrope_section": [2, 2, 2]}}
QWEN_VISION = {
    "depth": 2,
    "num_heads": 4,
    "patch_size": PATCH,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}


def model_of(family: str) -> Any:
    """Return a model of transformers with random weights."""
    import torch
    import transformers

    torch.manual_seed(3)
    token = byte_tokenizer(*SPECIAL[family]).token_to_id
    if "llava" in family:
        vision: Any = transformers.CLIPVisionConfig(
            hidden_size=32,
            intermediate_size=48,
            projection_dim=16,
            num_hidden_layers=3,
            num_attention_heads=4,
            image_size=SIDE,
            patch_size=PATCH,
        )
        settings = {"image_token_index": token("<image>"), "image_seq_length": 16}
        settings |= {"vision_config": vision, "text_config": transformers.LlamaConfig(**TEXT)}
        if family == "llava":
            model = transformers.LlavaForConditionalGeneration(transformers.LlavaConfig(**settings))
        else:
            grids = [[SIDE * height, SIDE * width] for width, height in GRIDS]
            config = transformers.LlavaNextConfig(**settings, image_grid_pinpoints=grids)
            model = transformers.LlavaNextForConditionalGeneration(config)
    elif family == "gemma3":
        vision = transformers.SiglipVisionConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            image_size=SIDE,
            patch_size=PATCH,
            vision_use_head=False,
        )
        text = transformers.Gemma3TextConfig(
            **TEXT,
            head_dim=12,
            query_pre_attn_scalar=12,
            sliding_window=16,
            layer_types=["sliding_attention", "full_attention"],
            tie_word_embeddings=False,
        )
        config = transformers.Gemma3Config(
            vision_config=vision,
            text_config=text,
            mm_tokens_per_image=4,
            tie_word_embeddings=False,
            boi_token_index=token("<start_of_image>"),
            eoi_token_index=token("<end_of_image>"),
            image_token_index=token("<image_soft_token>"),
        )
        model = transformers.Gemma3ForConditionalGeneration(config)
    else:
        tokens = {
            "vision_start_token_id": token("<|vision_start|>"),
            "vision_end_token_id": token("<|vision_end|>"),
            "image_token_id": token("<|image_pad|>"),
            "video_token_id": token("<|video_pad|>"),
        }
        if family == "qwen2_vl":
            vision = {**QWEN_VISION, "embed_dim": 32, "hidden_size": 48, "mlp_ratio": 2}
            model = transformers.Qwen2VLForConditionalGeneration(
                transformers.Qwen2VLConfig(text_config=QWEN_TEXT, vision_config=vision, **tokens)
            )
        else:
            vision = {**QWEN_VISION, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 48}
            vision |= {"window_size": 4 * PATCH, "fullatt_block_indexes": [1], "tokens_per_second": 2}
            model = transformers.Qwen2_5_VLForConditionalGeneration(
                transformers.Qwen2_5_VLConfig(text_config=QWEN_TEXT, vision_config=vision, **tokens)
            )
    with torch.no_grad():  # so that images and positions matter to the tokens
        for name, weights in model.named_parameters():
            if not weights.any():
                weights.normal_(0, 0.3)
            if weights.dim() > 1:
                weights.mul_(4.0 if any(part in name for part in ("embed_tokens", "lm_head", "proj")) else 1.5)
    return model.eval()


def export(family: str, folder: Path) -> None:
    """Write the files of a model that optimum-intel exports."""
    from optimum.exporters.openvino import export_from_model, model_configs

    for name in ("Qwen2VLOpenVINOConfig", "Qwen2_5_VLOpenVINOConfig"):  # transformers 5.5 works, too
        getattr(model_configs, name).MAX_TRANSFORMERS_VERSION = "6"
    make_folder(family, folder)  # for its tokenizer and its settings of images
    for path in folder.glob("openvino_*"):
        path.unlink()
    export_from_model(model_of(family), output=folder, task="image-text-to-text", stateful=True)
    add_tokenizer_models(family, folder)
    (folder / "tokenizer.json").unlink()  # both use openvino_tokenizers: bytes that are no UTF-8 differ elsewhere


def compare(family: str) -> tuple[int, int]:
    """Return the number of cases, and of those that differ, which are printed."""
    import openvino
    import openvino_genai

    import ovgpu
    import ovgpu.genai as ours

    with tempfile.TemporaryDirectory() as name:
        export(family, Path(name))
        found, expected = (
            {
                **vlm_cases.outcomes(genai, tensor, pipeline, TAGS[family]),
                **vlm_cases.chats(genai, tensor, pipeline, TAGS[family]),
            }
            for genai, tensor, pipeline in (
                (ours, ovgpu.Tensor, ours.VLMPipeline(name, "CPU", INFERENCE_PRECISION_HINT="f32")),
                (openvino_genai, openvino.Tensor, openvino_genai.VLMPipeline(name, "CPU", **EXACT)),
            )
        )
    differing = 0
    for case, outcome in expected.items():
        if not agree(json.loads(json.dumps(found[case])), json.loads(json.dumps(outcome))):
            differing += 1
            print(f"{family}: {case}\n  openvino_genai {outcome}\n  ovgpu.genai    {found[case]}")
    return len(expected), differing


def main() -> None:
    """Compare the families of the command line, or all."""
    total = wrong = 0
    for family in sys.argv[1:] or FAMILIES:
        cases, differing = compare(family)
        print(f"{family}: {cases - differing} of {cases} agree", flush=True)
        total, wrong = total + cases, wrong + differing
    print(f"{total - wrong} of {total} agree")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
