"""Audio models."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..drive import Array, Call
from ._convert import Built, exported, normal, perturbed
from .decoders import stateful


def whisper(half: str, **config: Any) -> Built:
    """Build half of a Whisper: the "encoder" of input_features [batch, mels, frames], or its "decoder"."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(72)
    module = perturbed(WhisperForConditionalGeneration(WhisperConfig(**config)))
    mels, frames = module.config.num_mel_bins, 2 * module.config.max_source_positions
    task, part = "automatic-speech-recognition-with-past", f"{half}_model"
    make = partial(exported, module, task, part, feature_size=mels, nb_max_frames=frames)

    def context(random: np.random.RandomState, batch: int) -> dict[str, Array]:
        return {"encoder_hidden_states": normal(random, batch, frames // 2, module.config.d_model)}

    if half == "decoder":
        return stateful(module, make, context)
    calls = lambda random: [Call({"input_features": normal(random, n, mels, frames)}) for n in (1, 3)]
    return Built(make, calls, module.model.encoder)


def wav2vec2(shapes: tuple[tuple[int, int], ...], **config: Any) -> Built:
    """Build a speech recognizer: input_values [batch, samples] -> logits."""
    import torch
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    torch.manual_seed(71)
    module = perturbed(Wav2Vec2ForCTC(Wav2Vec2Config(**config)))
    make = partial(exported, module, "automatic-speech-recognition")
    return Built(make, lambda random: [Call({"input_values": normal(random, *shape)}) for shape in shapes])
