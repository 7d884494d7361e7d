"""Model API: a classifier, with the preprocessing that it adds to the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

REQUIREMENTS = ["openvino-model-api==0.4.7"]
MODULES = ["openvino", "model_api"]

LABELS = ("cat", "dog", "bird", "fish", "horse")


def prepare(folder: Path) -> None:
    """Write a convolutional classifier of RGB images."""
    import openvino as ov
    from openvino import opset13 as ops

    random = np.random.default_rng(0)
    x = ops.parameter([1, 3, 32, 32], np.float32, name="image")
    y = x
    for channels_in, channels_out in ((3, 16), (16, 32)):
        weights = random.standard_normal((channels_out, channels_in, 3, 3)) / (3 * channels_in**0.5)
        y = ops.relu(ops.convolution(y, ops.constant(weights.astype(np.float32)), [2, 2], [1, 1], [1, 1], [1, 1]))
    y = ops.reduce_mean(y, ops.constant(np.array([2, 3])), keep_dims=False)
    weights = random.standard_normal((32, len(LABELS))).astype(np.float32)
    model = ov.Model([ops.matmul(y, ops.constant(weights), False, False)], [x], "classifier")
    model.input().get_tensor().set_names({"image"})
    model.output().get_tensor().set_names({"logits"})
    model.set_rt_info("Classification", ["model_info", "model_type"])
    model.set_rt_info(" ".join(LABELS), ["model_info", "labels"])
    model.set_rt_info("standard", ["model_info", "resize_type"])
    ov.save_model(model, folder / "model.xml", compress_to_fp16=False)


def run(folder: Path, device: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the raw scores and the best labels of images of several sizes, synchronously and not."""
    from model_api.models import Model

    model = Model.create_model(str(folder / "model.xml"), device=device, configuration={"output_raw_scores": True})
    random = np.random.RandomState(0)
    images = [random.randint(0, 256, (*size, 3)).astype(np.uint8) for size in ((32, 32), (50, 70), (240, 320))]
    results = {}
    for number, image in enumerate(images):
        found = model(image)
        results[f"{number}/scores"] = np.asarray(found.raw_scores)
        results[f"{number}/labels"] = np.array([str(label.name) for label in found.top_labels])
    many = model.infer_batch(images)
    results["batch"] = np.stack([np.asarray(found.raw_scores) for found in many])
    return results
