"""RapidOCR, which names the CPU, with the models that come with it: text on an image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

REQUIREMENTS = ["rapidocr==3.10.0", "onnx"]
NAMES = "CPU"

TEXTS = ("OpenVINO models on NVIDIA", "state, loops and slices 123")


def prepare(folder: Path) -> None:
    """Draw the image."""
    import cv2

    image = np.full((200, 700, 3), 255, np.uint8)
    for number, text in enumerate(TEXTS):
        cv2.putText(image, text, (20, 70 + 80 * number), cv2.FONT_HERSHEY_SIMPLEX, 1.3, (0, 0, 0), 3, cv2.LINE_AA)
    cv2.imwrite(str(folder / "text.png"), image)


def run(folder: Path, device: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the boxes of the words found, their texts and scores."""
    from rapidocr import EngineType, RapidOCR

    engine = RapidOCR(params={f"{part}.engine_type": EngineType.OPENVINO for part in ("Det", "Cls", "Rec")})
    found = engine(str(folder / "text.png"))
    return {"boxes": np.array(found.boxes), "texts": np.array(found.txts), "scores": np.array(found.scores)}
