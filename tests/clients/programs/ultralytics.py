"""ultralytics: YOLO models with random weights that detect, segment, find poses and classify."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

REQUIREMENTS = ["torch==2.14.1", "torchvision==0.29.1", "ultralytics"]

DEFAULT = "AUTO"
TASKS = {
    "detect": "yolo11n.yaml",
    "segment": "yolo11n-seg.yaml",
    "pose": "yolo11n-pose.yaml",
    "classify": "yolo11n-cls.yaml",
}
SIZE = 160


def prepare(folder: Path) -> None:
    """Write the models, as ultralytics exports them, and an image."""
    import cv2
    import torch
    from ultralytics import YOLO

    torch.manual_seed(0)
    for task, config in TASKS.items():
        YOLO(config, task=task).save(folder / f"{task}.pt")
        YOLO(folder / f"{task}.pt", task=task).export(format="openvino", imgsz=SIZE)
    image = np.random.RandomState(0).randint(0, 256, (40, 60, 3)).astype(np.uint8)
    cv2.imwrite(str(folder / "image.png"), cv2.resize(image, (300, 200)))


def run(folder: Path, device: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return boxes, masks, keypoints and probabilities, with a threshold that lets the best of noise pass."""
    from ultralytics import YOLO

    results = {}
    for task in TASKS:
        model = YOLO(folder / f"{task}_openvino_model", task=task)
        named = {} if device == "AUTO" else {"device": f"intel:{device.lower()}"}
        options: dict[str, Any] = {"imgsz": SIZE, "conf": 1e-5, "max_det": 20, "verbose": False}
        found = model.predict(folder / "image.png", **options, **named)[0].cpu().numpy()
        for name, value in {
            "boxes": found.boxes and found.boxes.data,
            "masks": found.masks and found.masks.data,
            "keypoints": found.keypoints and found.keypoints.data,
            "probabilities": found.probs and found.probs.data,
        }.items():
            if value is not None:
                results[f"{task}/{name}"] = np.asarray(value)
    return results
