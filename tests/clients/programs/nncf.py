"""nncf, which names the CPU: post-training quantization that watches the accuracy, with models that it measures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .model_api import prepare

__all__ = ["REQUIREMENTS", "prepare", "run"]

REQUIREMENTS = ["nncf==3.4.0"]
NAMES = "CPU"


def run(folder: Path, device: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the metrics of the models that nncf tried, and the results of the quantized one."""
    import nncf
    import openvino as ov

    core = ov.Core()
    random = np.random.RandomState(0)
    images = [random.standard_normal((1, 3, 32, 32)).astype(np.float32) for _ in range(24)]
    reference = core.compile_model(core.read_model(folder / "model.xml"), "CPU")
    wanted = [reference(image)[0].argmax() for image in images]
    metrics: list[float] = []

    def validate(model: Any, data: Any) -> float:
        found = [model(image)[0].argmax() == label for image, label in data]
        metrics.append(float(np.mean(found)))
        return metrics[-1]

    quantized = nncf.quantize_with_accuracy_control(
        core.read_model(folder / "model.xml"),
        nncf.Dataset(images),
        nncf.Dataset(list(zip(images, wanted))),
        validation_fn=validate,
        max_drop=0.05,
        subset_size=8,
    )
    results = np.stack([core.compile_model(quantized, "CPU")(image)[0] for image in images])
    return {"metrics": np.array(metrics), "results": results}
