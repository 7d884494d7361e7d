"""anomalib: a student-teacher model that finds anomalies in images, by its inferencer's default, AUTO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

REQUIREMENTS = ["torch==2.14.1", "torchvision==0.29.1", "anomalib[openvino]==2.7.0"]
DEFAULT = "AUTO"


def prepare(folder: Path) -> None:
    """Export the model with random weights, as anomalib does."""
    import timm
    import torch
    from anomalib.deploy import ExportType
    from anomalib.engine import Engine
    from anomalib.models import Stfpm

    original = timm.create_model
    timm.create_model = lambda *args, **kwargs: original(*args, **{**kwargs, "pretrained": False})
    torch.manual_seed(0)
    Engine(default_root_dir=folder).export(Stfpm(backbone="resnet18"), ExportType.OPENVINO, export_root=folder)


def run(folder: Path, device: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the anomaly map and the score of an image."""
    from anomalib.deploy import OpenVINOInferencer

    (path,) = folder.rglob("model.xml")
    named = {} if device == "AUTO" else {"device": device}
    inferencer = OpenVINOInferencer(path, **named)
    image = np.random.RandomState(0).random_sample((96, 128, 3)).astype(np.float32)
    found = inferencer.predict(image)
    return {"map": np.asarray(found.anomaly_map), "score": np.asarray(found.pred_score)}
