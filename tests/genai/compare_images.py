"""Compare images of exported pipelines with those of openvino_genai.

Run it in an environment with openvino_genai, in the folder of the project, with folders as optimum-intel writes them:

    python -m tests.genai.compare_images FOLDER ...

Prints the cases that differ, and at last the number of values that do. The exit code is 1 if a value differs by more
than one level of 256.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.genai.image_cases import BETAS, IMAGE, INPAINT, SCHEDULERS, TEXT, picture

STEPS = {"num_inference_steps": 5}
CASES: list[tuple[str, dict[str, Any]]] = [
    *((TEXT, {**STEPS, "guidance_scale": scale, "rng_seed": seed}) for scale in (1, 7.5) for seed in (1, 2)),
    (TEXT, {"num_inference_steps": 20}),
    (TEXT, {**STEPS, "negative_prompt": "a dog", "num_images_per_prompt": 2}),
    (TEXT, {**STEPS, "height": 48, "width": 80}),
    *((kind, {**STEPS, "strength": strength}) for kind in (IMAGE, INPAINT) for strength in (0.6, 1)),
    *((kind, {**STEPS, "scheduler": name}) for kind in (TEXT, IMAGE, INPAINT) for name in SCHEDULERS),
]
"""Pipelines and keywords of generate(); a value of ``scheduler`` is set before."""


def images(genai: Any, tensor: Any, pipeline: Any, kind: str, keywords: dict[str, Any]) -> Any:
    """Return images [images, height, width, 3], or the message of the exception."""
    keywords = dict(keywords)
    name = keywords.pop("scheduler", None)
    try:
        if name is not None:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "scheduler_config.json"
                path.write_text(json.dumps({"_class_name": f"{name}Scheduler", **BETAS, **SCHEDULERS[name]}))
                pipeline.set_scheduler(genai.Scheduler.from_config(path))
        inputs = {TEXT: [], IMAGE: [(64, 64, 3)], INPAINT: [(64, 64, 3), (64, 64, 1)]}[kind]
        given = [tensor(picture(1, *shape, seed=n)) for n, shape in enumerate(inputs)]
        return np.array(pipeline.generate("a cat on a mat", *given, **keywords).data).astype(int)
    except RuntimeError as e:
        return str(e)


def compare(folder: Path) -> tuple[int, int, int]:
    """Return the number of compared values, how many differ, and the greatest difference."""
    import openvino
    import openvino_genai

    import ovgpu
    import ovgpu.genai

    total = differing = greatest = 0
    for kind in (TEXT, IMAGE, INPAINT):
        try:
            theirs = getattr(openvino_genai, kind)(folder, "CPU", INFERENCE_PRECISION_HINT="f32")
        except RuntimeError:
            continue  # such a pipeline cannot be made of the model
        ours = getattr(ovgpu.genai, kind)(folder, "CPU")
        for case, keywords in CASES:
            if case != kind:
                continue
            found = images(ovgpu.genai, ovgpu.Tensor, ours, kind, keywords)
            expected = images(openvino_genai, openvino.Tensor, theirs, kind, keywords)
            if isinstance(found, str) or isinstance(expected, str):
                difference = 0 if isinstance(found, str) and isinstance(expected, str) else 256
                count = size = 1 if difference else 0
            else:
                size = expected.size
                count, difference = np.sum(found != expected), np.abs(found - expected).max()
            if difference:
                print(f"{folder.name}: {kind} {keywords}: {count} of {size} values, by up to {difference}", flush=True)
            total, differing, greatest = total + size, differing + int(count), max(greatest, int(difference))
    return total, differing, greatest


def main() -> None:
    """Compare the pipelines of the command line."""
    results = [compare(Path(name)) for name in sys.argv[1:]]
    total, differing, greatest = (sum(r[0] for r in results), sum(r[1] for r in results), max(r[2] for r in results))
    print(f"{differing} of {total} values differ, by up to {greatest} of 256 levels")
    sys.exit(greatest > 1)


if __name__ == "__main__":
    main()
