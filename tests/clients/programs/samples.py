"""OpenVINO's Python samples: classification, reshaping of a detector, model creation, devices and benchmarks.

They are in no package: ``--samples`` names a copy of samples/python of OpenVINO's repository.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

REQUIREMENTS = ["opencv-python-headless"]
CLASS = re.compile(r"(\d+) +(\d+\.\d+)( +\w+)?$")  # class, probability, label


def prepare(folder: Path) -> None:
    """Draw an image, and write a classifier and a detector, which finds two boxes."""
    import cv2
    import openvino
    from openvino import opset13 as ops

    random = np.random.default_rng(0)
    picture = cv2.resize(random.integers(0, 256, (6, 8, 3), np.uint8), (64, 48), interpolation=cv2.INTER_CUBIC)
    cv2.imwrite(str(folder / "image.png"), picture)
    x = ops.parameter([1, 3, 32, 32], np.float32, name="image")
    weights = ops.constant(random.standard_normal((16, 3, 5, 5)).astype(np.float32) / 500)
    y = ops.relu(ops.convolution(x, weights, [2, 2], [2, 2], [2, 2], [1, 1]))
    probabilities = ops.softmax(ops.reduce_mean(y, ops.constant(np.array([2, 3])), keep_dims=False), 1)
    boxes = np.array([[0, 1, 0.9, 0.1, 0.2, 0.5, 0.6], [0, 3, 0.7, 0.5, 0.5, 1, 1], [0, 2, 0.1, 0, 0, 1, 1]], "f4")
    bright = ops.reduce_mean(x, ops.constant(np.array([0, 1, 2, 3])), keep_dims=False)
    detections = ops.add(ops.multiply(bright, ops.constant(np.float32(1e-6))), ops.constant(boxes[None, None]))
    for name, result in ("classifier", probabilities), ("detector", detections):
        model = openvino.Model([ops.result(result)], [x], name)
        model.input().get_tensor().set_names({"image"})
        openvino.save_model(model, folder / f"{name}.xml", compress_to_fp16=False)


def run(folder: Path, device: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the classes and probabilities that the samples print, the boxes, and the lines of their reports."""
    image, classifier = str(folder / "image.png"), str(folder / "classifier.xml")
    printed = {
        "hello": sample("hello_classification", classifier, image, device),
        "async": sample("classification_sample_async", "-m", classifier, "-i", image, image, "-d", device),
        "creation": sample("model_creation_sample", str(directory("model_creation_sample") / "lenet.bin"), device),
    }
    results: dict[str, np.ndarray[Any, Any]] = {}
    for name, lines in printed.items():
        found = [match for line in lines if (match := CLASS.match(line))]
        results[f"{name}/classes"] = np.array([int(match[1]) for match in found])
        results[f"{name}/probabilities"] = np.array([float(match[2]) for match in found], np.float32)
    with contextlib.chdir(folder):  # it writes an image
        lines = sample("hello_reshape_ssd", str(folder / "detector.xml"), image, device)
    results["ssd/boxes"] = np.array([line for line in lines if line.startswith("Found:")])
    for name, *more in ("sync_benchmark",), ("throughput_benchmark", device, "--seconds-to-run", "1"):
        lines = sample(f"benchmark/{name}", classifier, *more)
        results[f"{name}/lines"] = np.array([line.partition(":")[0].strip() for line in lines if ":" in line])
    assert any(line.startswith(device) for line in sample("hello_query_device"))
    return results


def directory(name: str) -> Path:
    """Return a folder of samples. Raises FileNotFoundError if no copy of samples/python has it."""
    copies = [Path(copy).resolve() for copy in os.environ.get("OVGPU_SAMPLES", "samples").split(os.pathsep)]
    found = next((copy / name for copy in copies if (copy / name).is_dir()), None)
    if found is None:
        raise FileNotFoundError(f"{name}: name a copy of samples/python of its repository with --samples")
    return found


def sample(name: str, *arguments: str) -> list[str]:
    """Run a sample unmodified; return the lines that it logs."""
    script = directory(name) / f"{name.rpartition('/')[2]}.py"
    logging.getLogger().handlers.clear()  # each sample logs to the stdout of its time
    output = io.StringIO()
    with (
        mock.patch.object(sys, "argv", [str(script), *arguments]),
        mock.patch.object(sys, "path", [str(script.parent), *sys.path]),
        contextlib.redirect_stdout(output),
        contextlib.suppress(SystemExit),
    ):
        runpy.run_path(str(script), run_name="__main__")
    return [line.removeprefix("[ INFO ] ") for line in output.getvalue().splitlines()]
