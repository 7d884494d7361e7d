"""optimum-intel and diffusers: a Stable Diffusion pipeline with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from .optimum import REQUIREMENTS, UNWANTED

__all__ = ["REQUIREMENTS", "UNWANTED", "prepare", "run"]


def prepare(folder: Path) -> None:
    """Write the pipeline, as optimum-intel exports it."""
    import torch
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from optimum.intel import OVStableDiffusionPipeline
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    torch.manual_seed(0)
    characters = [chr(code) for code in range(33, 127)]
    tokens = [*characters, *(f"{c}</w>" for c in characters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    unet = UNet2DConditionModel(
        block_out_channels=(32, 64),
        layers_per_block=1,
        sample_size=16,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        norm_num_groups=8,
    )
    vae = AutoencoderKL(
        block_out_channels=[32, 64],
        in_channels=3,
        out_channels=3,
        down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2,
        latent_channels=4,
        norm_num_groups=8,
    )
    text = CLIPTextModel(
        CLIPTextConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            vocab_size=1000,
            projection_dim=32,
        )
    )
    pipeline = StableDiffusionPipeline(
        vae=vae,
        text_encoder=text,
        unet=unet,
        scheduler=DDIMScheduler(),
        safety_checker=None,
        feature_extractor=None,
        tokenizer=CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=16),
        requires_safety_checker=False,
    )
    pipeline.save_pretrained(folder / "torch")
    OVStableDiffusionPipeline.from_pretrained(folder / "torch", export=True, compile=False).save_pretrained(
        folder / "pipeline"
    )


def run(folder: Path, device: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return images of two sizes."""
    import torch
    from optimum.intel import OVStableDiffusionPipeline

    pipeline = OVStableDiffusionPipeline.from_pretrained(folder / "pipeline", device=device)
    return {
        f"image of {size}": pipeline(
            "a cat",
            num_inference_steps=3,
            height=size,
            width=size,
            output_type="np",
            generator=torch.Generator().manual_seed(0),
        ).images
        for size in (32, 64)
    }
