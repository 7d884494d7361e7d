"""optimum-intel: Llama, Qwen2, GPT-2, Mamba, T5, Whisper, BERT and ViT with random weights, greedy and with beams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

REQUIREMENTS = ["torch==2.13.0", "optimum-intel==2.2.0", "transformers==5.3.0", "diffusers"]
UNWANTED = ["torchvision"]  # the one for this torch needs CUDA

Array = np.ndarray[Any, Any]
PROMPT = [[3, 14, 15, 92, 6], [5, 35, 89, 79, 3]]
TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
DECODERS = {
    "llama": ("Llama", {**TEXT, "num_key_value_heads": 2}),
    "qwen2": ("Qwen2", {**TEXT, "num_key_value_heads": 2}),
    "gpt2": ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 128}),
}
ENCODERS = {"bert": ("Bert", TEXT)}
SEARCHES = {"greedy": {"do_sample": False}, "beams": {"num_beams": 3}}


def prepare(folder: Path) -> None:
    """Write the models, as optimum-intel exports them."""
    import torch
    import transformers
    from optimum.intel import (
        OVModelForCausalLM,
        OVModelForFeatureExtraction,
        OVModelForImageClassification,
        OVModelForSeq2SeqLM,
        OVModelForSpeechSeq2Seq,
    )

    def export(name: str, module: Any, kind: Any, **options: Any) -> None:
        torch.manual_seed(0)
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        module.save_pretrained(folder / f"{name}-torch")
        kind.from_pretrained(folder / f"{name}-torch", export=True, compile=False, **options).save_pretrained(
            folder / name
        )

    def built(name: str, config: dict[str, Any], suffix: str) -> Any:
        made = getattr(transformers, f"{name}Config")(**config, bos_token_id=1, eos_token_id=None, pad_token_id=0)
        return getattr(transformers, f"{name}{suffix}")(made)

    for name, (kind, config) in DECODERS.items():
        head = "LMHeadModel" if kind == "GPT2" else "ForCausalLM"
        export(name, built(kind, config, head), OVModelForCausalLM, stateful=True)
    mamba = transformers.MambaConfig(hidden_size=32, state_size=8, num_hidden_layers=2, vocab_size=100)
    export("mamba", transformers.MambaForCausalLM(mamba), OVModelForCausalLM, stateful=True)
    for name, (kind, config) in ENCODERS.items():
        export(name, built(kind, config, "Model"), OVModelForFeatureExtraction)
    sizes = {"d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4, "vocab_size": 100}
    t5 = transformers.T5Config(**sizes, decoder_start_token_id=0, eos_token_id=None, pad_token_id=0)
    export("t5", transformers.T5ForConditionalGeneration(t5), OVModelForSeq2SeqLM)
    whisper = transformers.WhisperConfig(
        vocab_size=100,
        num_mel_bins=80,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        d_model=32,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        max_source_positions=1500,
        max_target_positions=64,
        decoder_start_token_id=1,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        begin_suppress_tokens=None,
        suppress_tokens=None,
    )
    export("whisper", transformers.WhisperForConditionalGeneration(whisper), OVModelForSpeechSeq2Seq)
    vit = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8
    )
    export("vit", transformers.ViTForImageClassification(vit), OVModelForImageClassification)


def run(folder: Path, device: str) -> dict[str, Array]:
    """Generate tokens by greedy search and by beams, and compute the outputs of encoders."""
    import torch
    from optimum.intel import (
        OVModelForCausalLM,
        OVModelForFeatureExtraction,
        OVModelForImageClassification,
        OVModelForSeq2SeqLM,
        OVModelForSpeechSeq2Seq,
    )

    prompt = torch.tensor(PROMPT)
    ones = torch.ones_like(prompt)
    results: dict[str, Array] = {}
    for name in DECODERS:
        model = OVModelForCausalLM.from_pretrained(folder / name, device=device)
        for label, options in SEARCHES.items():
            found = model.generate(prompt, attention_mask=ones, max_new_tokens=12, **options)
            results[f"{name}/{label}"] = found.numpy()
        results[f"{name}/logits"] = model(input_ids=prompt, attention_mask=ones).logits.numpy()
    mamba = OVModelForCausalLM.from_pretrained(folder / "mamba", device=device)
    results["mamba/greedy"] = mamba.generate(prompt, max_new_tokens=12, do_sample=False).numpy()
    for name in ENCODERS:
        model = OVModelForFeatureExtraction.from_pretrained(folder / name, device=device)
        results[name] = model(input_ids=prompt, attention_mask=ones).last_hidden_state.numpy()
    t5 = OVModelForSeq2SeqLM.from_pretrained(folder / "t5", device=device)
    for label, options in SEARCHES.items():
        results[f"t5/{label}"] = t5.generate(prompt, attention_mask=ones, max_new_tokens=10, **options).numpy()
    whisper = OVModelForSpeechSeq2Seq.from_pretrained(folder / "whisper", device=device)
    sound = torch.from_numpy(np.random.RandomState(0).standard_normal((1, 80, 3000)).astype(np.float32))
    results["whisper/tokens"] = whisper.generate(sound, max_new_tokens=10, do_sample=False).numpy()
    vit = OVModelForImageClassification.from_pretrained(folder / "vit", device=device)
    pixels = np.random.RandomState(0).standard_normal((2, 3, 32, 32)).astype(np.float32)
    results["vit/logits"] = vit(pixel_values=torch.from_numpy(pixels)).logits.numpy()
    return results
