"""vinowhisper, which names the CPU: captions of speech by openvino_genai's WhisperPipeline, streamed from a thread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from .genai_samples import printed, write_speech

REQUIREMENTS = ["vinowhisper", "openvino-genai", "transformers", "tokenizers"]


def prepare(folder: Path) -> None:
    """Write a Whisper and its sound."""
    write_speech(folder)


def run(folder: Path, device: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the pieces of each caption."""
    script = Path(__file__).parent / "scripts" / "captions.py"
    *_, line = printed(script, str(folder / "whisper"), str(folder / "sound.wav"), device=device)
    return {name: np.array(pieces) for name, pieces in json.loads(line).items()}
