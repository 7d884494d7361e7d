"""Images of tiny models, which `record_wheel.py` makes with openvino_genai, and `test_images.py` here."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.genai.config_cases import shown
from tests.genai.image_model import KINDS, make_folder

Array = np.ndarray[Any, Any]
SD, LCM, INPAINTING = KINDS
TEXT, IMAGE, INPAINT = "Text2ImagePipeline", "Image2ImagePipeline", "InpaintingPipeline"
FEW = {"num_inference_steps": 3}

CASES: list[tuple[str, str, dict[str, Any]]] = [
    (TEXT, SD, {}),
    *((TEXT, SD, {"num_inference_steps": steps}) for steps in (0, 1, 2, 7, 1001)),
    *((TEXT, SD, {**FEW, "prompt": prompt}) for prompt in ("", "to be or not to be, that is", "ä ☃", 3, None, ["a"])),
    *((TEXT, SD, {**FEW, "guidance_scale": scale}) for scale in (-1, 0, 1, 1.5, 7.5, 30)),
    *((TEXT, SD, {**FEW, "negative_prompt": text}) for text in ("", "dog", None)),
    (TEXT, SD, {**FEW, "negative_prompt": "dog", "guidance_scale": 1}),
    *(
        (TEXT, SD, {**FEW, "num_images_per_prompt": count, "guidance_scale": scale})
        for count in (2, 3)
        for scale in (1, 7)
    ),
    *((TEXT, SD, {**FEW, "rng_seed": seed}) for seed in (0, 1, -1, 2**32 + 42, None, 1.5)),
    *(
        (TEXT, SD, {**FEW, "height": height, "width": width})
        for height, width in ((24, 8), (2, 30), (-1, 12), (15, 16))
    ),
    *((TEXT, SD, {**FEW, name: "a"}) for name in ("prompt_2", "prompt_3", "negative_prompt_2", "negative_prompt_3")),
    *((TEXT, SD, {**FEW, "strength": strength}) for strength in (0.5, 1)),
    *((TEXT, SD, {**FEW, "generator": name}) for name in ("std", "own", "own tensor", "number", None)),
    (TEXT, SD, {**FEW, "generator": "std", "rng_seed": 3}),
    *((TEXT, SD, {"num_inference_steps": 50, "callback": name}) for name in ("stop", "1")),
    *((TEXT, SD, {**FEW, "callback": name}) for name in ("none", "number", None)),
    *((TEXT, SD, {**FEW, "scheduler": name}) for name in ("DDIM", "EulerDiscrete", "EulerAncestralDiscrete", "LCM")),
    # Consistency models
    *((TEXT, LCM, {"num_inference_steps": steps}) for steps in (1, 4)),
    *((TEXT, LCM, {"guidance_scale": scale, "num_images_per_prompt": 2}) for scale in (0.5, 3)),
    (TEXT, LCM, {"negative_prompt": "dog"}),
    *((kind, LCM, {"strength": strength}) for kind in (IMAGE, INPAINT) for strength in (0.3, 1)),
    # Images
    *((IMAGE, SD, {**FEW, "strength": strength}) for strength in (-0.1, 0, 0.3, 0.8, 1, 1.1)),
    (IMAGE, SD, FEW),
    (IMAGE, SD, {**FEW, "num_images_per_prompt": 2, "guidance_scale": 1}),
    (IMAGE, SD, {**FEW, "height": 10, "width": 22}),
    *((IMAGE, SD, {**FEW, "shape": shape}) for shape in ((1, 9, 21, 3), (16, 16, 3), (1, 16, 16, 4), (2, 16, 16, 3))),
    (IMAGE, SD, {**FEW, "type": "float32"}),
    *((IMAGE, SD, {**FEW, "scheduler": name}) for name in ("DDIM", "EulerDiscrete", "EulerAncestralDiscrete")),
    # Masks
    *((INPAINT, kind, {**FEW, "strength": strength}) for kind in (SD, INPAINTING) for strength in (0, 0.5, 1)),
    *(
        (INPAINT, kind, {**FEW, "mask": shape})
        for kind in (SD, INPAINTING)
        for shape in ((1, 16, 16, 3), (1, 20, 10, 1))
    ),
    *((INPAINT, kind, {**FEW, "num_images_per_prompt": 2}) for kind in (SD, INPAINTING)),
    *((INPAINT, SD, {**FEW, "scheduler": name}) for name in ("EulerDiscrete", "EulerAncestralDiscrete")),
    (INPAINT, INPAINTING, {**FEW, "strength": 0.5, "guidance_scale": 1}),
    (INPAINT, SD, {**FEW, "shape": (1, 20, 30, 3)}),
    (INPAINT, SD, {**FEW, "mask": (1, 16, 16, 4)}),
]
"""Pipelines, models, and keywords of generate()."""

SCHEDULERS: dict[str, dict[str, Any]] = {
    "DDIM": {"clip_sample": False, "set_alpha_to_one": False, "steps_offset": 1},
    "PNDM": {"skip_prk_steps": True, "steps_offset": 1},
    "EulerDiscrete": {},
    "EulerAncestralDiscrete": {},
    "LCM": {},
}
"""Schedulers, and the settings that they need."""
BETAS = {"beta_end": 0.012, "beta_schedule": "scaled_linear", "beta_start": 0.00085}
CHANGES: list[dict[str, Any]] = [
    {},
    *({"timestep_spacing": spacing} for spacing in ("linspace", "trailing")),
    *({"prediction_type": kind} for kind in ("sample", "v_prediction")),
    {"beta_schedule": "linear"},
    {"trained_betas": [0.0001 * (n + 1) for n in range(50)], "num_train_timesteps": 50},
]
DENOISED: list[tuple[str, dict[str, Any]]] = [
    *((kind, change) for kind in SCHEDULERS if kind != "LCM" for change in CHANGES),
    *(("LCM", change) for change in CHANGES if "prediction_type" not in change),
    *(
        (kind, {"rescale_betas_zero_snr": True, "prediction_type": "v_prediction", "timestep_spacing": "trailing"})
        for kind in ("DDIM", "EulerDiscrete", "EulerAncestralDiscrete")
    ),
    ("DDIM", {"set_alpha_to_one": True, "steps_offset": 0}),
    ("DDIM", {"clip_sample": True}),
    ("DDIM", {"thresholding": True}),
    ("PNDM", {"set_alpha_to_one": True}),
    ("PNDM", {"skip_prk_steps": False}),
    ("EulerDiscrete", {"interpolation_type": "log_linear"}),
    ("EulerDiscrete", {"final_sigmas_type": "sigma_min"}),
    ("EulerDiscrete", {"use_karras_sigmas": True}),
    ("LCM", {"clip_sample": True, "clip_sample_range": 0.5}),
    ("LCM", {"original_inference_steps": 20, "timestep_scaling": 2.0}),
]
"""Schedulers and their settings, for which latents are compared step by step."""
STEPS = 5

FILES: list[tuple[Any, str]] = [
    *(
        (values, "AUTO")
        for values in ({}, {"_class_name": ""}, {"_class_name": 3}, {"_class_name": "HeunDiscreteScheduler"})
    ),
    *(({"_class_name": f"{name}Scheduler"}, "AUTO") for name in (*SCHEDULERS, "LMSDiscrete")),
    *(({}, name) for name in ("LCM", "DDIM", "PNDM", "LMS_DISCRETE", "EULER_DISCRETE", "EULER_ANCESTRAL_DISCRETE")),
    *(
        ({name: value}, "DDIM")
        for name, value in (
            ("beta_schedule", "squaredcos_cap_v2"),
            ("beta_schedule", "x"),
            ("beta_schedule", ""),
            ("beta_schedule", 3),
            ("prediction_type", "x"),
            ("timestep_spacing", "x"),
            ("beta_start", "x"),
            ("beta_start", None),
            ("beta_start", [1]),
            ("clip_sample", "x"),
            ("clip_sample", 1),
            ("num_train_timesteps", 10.5),
            ("trained_betas", 3),
        )
    ),
    ({"timestep_type": "continuous"}, "EULER_DISCRETE"),
    ({"timestep_type": "continuous", "prediction_type": "v_prediction"}, "EULER_DISCRETE"),
    ([], "AUTO"),
    (None, "AUTO"),
    ({}, 2),
]
"""Contents of scheduler_config.json, None for a file that is not there, and the type."""


def name_of(case: tuple[Any, ...]) -> str:
    """Return a case as text."""
    return " ".join(part if isinstance(part, str) else shown(part) for part in case)


def picture(*shape: int, seed: int = 0) -> Array:
    """Return a random image or mask, with areas of about 4 pixels."""
    random = np.random.RandomState(seed)
    full = np.zeros(shape, np.uint8)
    for y in range(0, shape[-3], 4):
        for x in range(0, shape[-2], 4):
            full[..., y : y + 4, x : x + 4, :] = random.randint(0, 256, shape[-1])
    return full + random.randint(0, 20, shape).astype(np.uint8) // 2


class Asked:
    """Pipelines of a module, openvino_genai or ovgpu.genai, and the outcomes of cases."""

    def __init__(self, genai: Any, tensor: Any, folder: Path, device: str = "CPU", **properties: Any) -> None:
        self._genai, self._tensor, self._folder = genai, tensor, folder
        self._device, self._properties = device, properties
        self._pipelines: dict[tuple[str, str], Any] = {}

    def pipeline(self, pipeline: str, kind: str) -> Any:
        """Return a pipeline, which is made once."""
        key = pipeline, kind
        if key not in self._pipelines:
            path = self._folder / kind
            if not path.exists():
                make_folder(path, kind)
            self._pipelines[key] = getattr(self._genai, pipeline)(path, self._device, **self._properties)
        return self._pipelines[key]

    def scheduler(self, kind: str, **settings: Any) -> Any:
        """Return a scheduler."""
        values = {"_class_name": f"{kind}Scheduler", **BETAS, **SCHEDULERS[kind], **settings}
        path = self._folder / "scheduler_config.json"
        path.write_text(json.dumps(values))
        return self._genai.Scheduler.from_config(path)

    def outcome(self, pipeline: str, kind: str, keywords: dict[str, Any]) -> Any:
        """Return the images, or the class of the exception."""
        return answer(lambda: self._images(pipeline, kind, dict(keywords)))

    def latents(self, kind: str, settings: dict[str, Any]) -> Any:
        """Return what a callback gets with a scheduler and the linear UNet, for one place of the latents."""
        path = self._folder / "linear"
        if not path.exists():
            make_folder(path, SD, linear=True)
            self._linear = self._genai.Text2ImagePipeline(path, self._device, **self._properties)
        return answer(lambda: self._denoised(kind, settings))

    def file(self, values: Any, name: Any) -> Any:
        """Return whether a scheduler_config.json is accepted, or the class of the exception."""
        path = self._folder / "file.json"
        path.unlink(missing_ok=True)
        if values is not None:
            path.write_text(json.dumps(values))
        kind = getattr(self._genai.Scheduler.Type, name) if isinstance(name, str) else name
        return answer(lambda: self._genai.Scheduler.from_config(path, kind) is not None)

    # ----

    def _images(self, name: str, kind: str, keywords: dict[str, Any]) -> Any:
        pipeline = self.pipeline(name, kind)
        own = keywords.pop("scheduler", None)
        pipeline.set_scheduler(self._default(kind) if own is None else self.scheduler(own))
        inputs = [keywords.pop("prompt", "a cat")]
        shape, dtype = keywords.pop("shape", (1, 16, 16, 3)), keywords.pop("type", "uint8")
        mask = keywords.pop("mask", (1, 16, 16, 1))
        if name != TEXT:
            inputs.append(self._tensor(picture(*shape).astype(dtype)))
        if name == INPAINT:
            inputs.append(self._tensor(picture(*mask, seed=1)))
        for key, values in (("generator", self._generators()), ("callback", CALLBACKS)):
            if keywords.get(key) is not None:
                keywords[key] = values[keywords[key]]
        return packed(pipeline.generate(*inputs, **keywords))

    def _default(self, kind: str) -> Any:
        path = self._folder / kind / "scheduler" / "scheduler_config.json"
        return self._genai.Scheduler.from_config(path)

    def _generators(self) -> dict[str, Any]:
        tensor = self._tensor

        class Own(self._genai.Generator):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.count = 0

            def next(self) -> float:
                self.count += 1
                return (self.count % 17 - 8) / 8

            def seed(self, new_seed: int) -> None:
                self.count = new_seed

        class OwnTensor(Own):
            def randn_tensor(self, shape: Any) -> Any:
                return tensor(np.linspace(-1, 1, int(np.prod(list(shape))), dtype=np.float32).reshape(list(shape)))

        return {"std": self._genai.CppStdGenerator(7), "own": Own(), "own tensor": OwnTensor(), "number": 3}

    def _denoised(self, kind: str, settings: dict[str, Any]) -> Any:
        self._linear.set_scheduler(self.scheduler(kind, **settings))
        # NOTE: openvino_genai calls the callback on another thread, and drops steps that end before it does. The size
        # makes steps slow enough.
        size = {"height": 128, "width": 128, "guidance_scale": 1, "num_inference_steps": STEPS}
        for _ in range(50):
            found: list[Any] = []

            def keep(step: int, steps: int, latents: Any, found: list[Any] = found) -> bool:
                found.append([step, steps, latents.data[0, :, 1, 2].tolist()])
                return False

            self._linear.generate("a", **size, callback=keep)
            if found and len(found) == found[0][1]:
                return found
        raise AssertionError("the callback was not called for every step")


CALLBACKS: dict[str, Any] = {
    "stop": lambda step, steps, latents: True,
    "1": lambda step, steps, latents: 1,
    "none": lambda step, steps, latents: None,
    "number": 3,
}


def answer(ask: Callable[[], Any]) -> Any:
    """Return what a function returns, or the class of its exception."""
    try:
        return ask()
    except (RuntimeError, TypeError) as e:
        return "RuntimeError" if isinstance(e, RuntimeError) else "TypeError"


def packed(images: Any) -> dict[str, Any]:
    """Return shape and pixels for JSON; a generation that ended has no pixels."""
    shape = [*images.shape]
    return {"shape": shape, "pixels": base64.b64encode(np.array(images.data).tobytes()).decode() if shape else ""}
