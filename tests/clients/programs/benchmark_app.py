"""benchmark_app, which comes with openvino: it runs, and its report has the same keys."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

REQUIREMENTS: list[str] = []
MODULES = ["openvino"]

RUNS = {
    "latency": ["-hint", "latency"],
    "throughput": ["-hint", "throughput"],
    "synchronous": ["-api", "sync", "-hint", "none"],
    "counters": ["-report_type", "detailed_counters", "-pc"],
}


def prepare(folder: Path) -> None:
    """Write a convolutional network."""
    import openvino
    from openvino import opset13 as ops

    random = np.random.default_rng(0)
    x = ops.parameter([1, 3, 16, 16], np.float32, name="image")
    weights = ops.constant(random.standard_normal((8, 3, 3, 3)).astype(np.float32))
    y = ops.relu(ops.convolution(x, weights, [1, 1], [1, 1], [1, 1], [1, 1]))
    pooled = ops.reduce_mean(y, ops.constant(np.array([2, 3])), keep_dims=False)
    model = openvino.Model([ops.result(pooled)], [x], "network")
    model.input().get_tensor().set_names({"image"})
    openvino.save_model(model, folder / "model.xml", compress_to_fp16=False)


def run(folder: Path, device: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the keys and the file names of the reports."""
    from openvino.tools.benchmark import main as benchmark

    results = {}
    for name, flags in RUNS.items():
        out = folder / f"{name}-{device}"
        shutil.rmtree(out, ignore_errors=True)  # a report of an earlier run must not count
        out.mkdir()
        arguments = [
            "-m",
            str(folder / "model.xml"),
            "-d",
            device,
            "-niter",
            "20",
            "-nireq",
            "2",
            "-json_stats",
            "-report_type",
            "no_counters",
            *flags,
            "-report_folder",
            str(out),
        ]
        with mock.patch.object(sys, "argv", ["benchmark_app", *arguments]):
            benchmark.main()
        report = json.loads(next(out.glob("benchmark_report.json")).read_text())
        found = [
            f"{section}/{key}"
            for section in ("configuration_setup", "execution_results")
            for key in report.get(section, {})
        ]
        results[f"{name}/keys"] = np.array(sorted(found))
        results[f"{name}/files"] = np.array(sorted(path.name for path in out.iterdir()))
    return results
