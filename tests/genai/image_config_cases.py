"""Cases of ImageGenerationConfig, of generators of random numbers, and of metrics, which `record_wheel.py` runs with
openvino_genai, and `test_image_config.py` here."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.genai.config_cases import changed, fields_of, shown
from tests.genai.image_cases import answer

VALUES: tuple[Any, ...] = (0, 3, -1, 2**31, 2**64 - 1, 2**64, True, None, 1.5, "x", [1])
NAMES = ("height", "num_images_per_prompt", "max_sequence_length", "guidance_scale", "negative_prompt")
ASSIGNMENTS = [
    *((name, value) for name in NAMES for value in VALUES),
    ("generator", None),
    ("generator", 3),
    ("other", 1),
]
KEYWORDS: list[dict[str, Any]] = [
    *({name: value} for name in NAMES[:4] for value in (3, 2.0, True, None, [1])),
    *({"negative_prompt": value} for value in ("x", None)),
    {"rng_seed": -1},
    {"rng_seed": 7},
    {"generator": None},
    {"generator": 3},
    {"guidance_scale": 1, "negative_prompt": "x"},
    {"guidance_scale": 1, "negative_prompt_2": "x"},
    {"guidance_scale": 1.5, "negative_prompt_3": "x"},
]


def config_outcomes(kind: Any) -> dict[str, Any]:
    """Return the fields, and the outcomes of assignments and keywords, of an ImageGenerationConfig."""

    def assigned(name: str, value: Any) -> Any:
        config = kind()
        setattr(config, name, value)
        return config

    def updated(keywords: dict[str, Any]) -> Any:
        config = kind()
        config.update_generation_config(**keywords)
        config.generator = None
        return config

    def validated(keywords: dict[str, Any]) -> Any:
        config = kind()
        for name, value in keywords.items():
            setattr(config, name, value)
        return answer(config.validate)

    return {
        "fields": fields_of(kind()),
        "assignments": {f"{n} = {shown(v)}": changed(lambda n=n, v=v: assigned(n, v), kind) for n, v in ASSIGNMENTS},
        "keywords": {shown(case): changed(lambda case=case: updated(case), kind) for case in KEYWORDS},
        "combinations": {shown(case): validated(case) for case in KEYWORDS[-3:]},
    }


def generator_outcomes(genai: Any, shape: Any) -> dict[str, Any]:
    """Return the numbers of generators, and the outcomes of seeds. ``shape`` is the class of shapes."""

    def numbers(seed: Any, *, before: int = 0, again: Any = None) -> Any:
        generator = genai.CppStdGenerator(seed)
        begun = [generator.next() for _ in range(before)]
        if again is not None:
            generator.seed(again)
        return [*begun, *generator.randn_tensor(shape([2, 3])).data.ravel().tolist(), generator.next()]

    found = {
        f"seed {seed!r}": answer(lambda s=seed: numbers(s)) for seed in (0, 42, 2**32 - 1, 2**32, -1, 1.0, True, "x")
    }
    for before in (0, 1, 2):
        for again in (5, 2**40 + 5, 2**64, -1):
            found[f"{before} numbers, seed {again}"] = answer(lambda b=before, a=again: numbers(1, before=b, again=a))
    many = genai.CppStdGenerator(3).randn_tensor(shape([20000])).data.astype(np.float64)
    return found | {"sums of 20000": [float(many.sum()), float((many**2).sum()), float((many**3).sum())]}


def scheduler_types(genai: Any) -> dict[str, Any]:
    """Return the number and the texts of each kind of scheduler, by its name."""
    kinds = genai.Scheduler.Type.__members__
    return {name: [int(kind), str(kind), repr(kind), kind.value] for name, kind in kinds.items()}


def metrics_outcomes(genai: Any) -> dict[str, Any]:
    """Return what each method of new metrics returns."""
    metrics = genai.ImageGenerationPerfMetrics()
    names = [name for name in dir(metrics) if name.startswith("get_")]
    found = {name: getattr(metrics, name)() for name in names}
    return {name: [value.mean, value.std] if hasattr(value, "mean") else value for name, value in found.items()}
