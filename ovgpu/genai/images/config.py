"""Class ImageGenerationConfig: settings of a generation of images, with the fields, defaults and rules of
openvino_genai."""

from __future__ import annotations

from typing import Any

from ovgpu.errors import Error
from ovgpu.genai.fields import Absent, Configuration, Field, Integer, OptionalText, Real
from ovgpu.genai.images.generators import SEEDS, CppStdGenerator, Generator


class _Generator(Field[Generator | None]):
    what = "a Generator"

    def checked(self, value: Any) -> Generator | None:
        if not isinstance(value, Generator | None):
            raise TypeError
        return value

    def from_keyword(self, value: Any) -> Generator | None:
        if value is None:
            raise TypeError
        return self.checked(value)


class ImageGenerationConfig(Configuration):
    """Settings of a generation of images. Numbers are rounded to f32.

    Images: ``num_images_per_prompt`` of ``height`` and ``width`` in pixels, which are multiples of the scale factor of
    the VAE; -1 is the model's own size, or that of the given image.

    Steps: ``num_inference_steps``. ``guidance_scale`` > 1 takes the difference between the text and ``negative_prompt``
    (None or a text) that many times. ``strength``, from 0 to 1, is the part of the steps that change a given image.

    Random numbers: ``generator`` (a `Generator`) goes on where it is. Without it, each generation starts a
    `CppStdGenerator` with ``rng_seed``.

    Stable Diffusion refuses ``prompt_2``, ``prompt_3``, ``negative_prompt_2`` and ``negative_prompt_3``, and has no use
    for ``max_sequence_length``. ``adapters`` and ``taylorseer_config`` are None.

    Raises: TypeError for an assigned value of another type.
    """

    __slots__ = ()

    adapters = Absent[Any](None)
    generator = _Generator(None)
    guidance_scale = Real(7.5)
    height = Integer(-1, -(2**63), 2**63 - 1)
    max_sequence_length = Integer(-1, -(2**31), 2**31 - 1)
    negative_prompt = OptionalText(None)
    negative_prompt_2 = OptionalText(None)
    negative_prompt_3 = OptionalText(None)
    num_images_per_prompt = Integer(1)
    num_inference_steps = Integer(50)
    prompt_2 = OptionalText(None)
    prompt_3 = OptionalText(None)
    rng_seed = Integer(42)
    strength = Real(1.0)
    taylorseer_config = Absent[Any](None)
    width = Integer(-1, -(2**63), 2**63 - 1)

    def __init__(self) -> None:
        super().__init__()

    def update_generation_config(self, **kwargs: Any) -> None:
        """Set all fields by ``generation_config``, then those of the other keywords.

        Without the keyword ``generator``, make a generator if there is none, and start it anew for ``rng_seed``. With
        it, ``rng_seed`` has no effect.

        Raises: RuntimeError for an unknown field, a value of another type, and settings that `validate` refuses. No
        field is set then.
        """
        base = kwargs.pop("generation_config", self)
        if not isinstance(base, ImageGenerationConfig):
            raise Error(f"generation_config must be an ImageGenerationConfig, not {base!r}")
        if "generator" in kwargs:
            kwargs.pop("rng_seed", None)
        changed = base.copy()
        changed._set(kwargs)
        changed.validate()
        if changed.generator is None:
            changed.generator = CppStdGenerator(changed.rng_seed % SEEDS)
        elif "rng_seed" in kwargs:
            changed.generator.seed(changed.rng_seed)
        self._values = changed._values

    def validate(self) -> None:
        """Raise RuntimeError for negative prompts without guidance."""
        for name in ("negative_prompt", "negative_prompt_2", "negative_prompt_3"):
            if getattr(self, name) is not None and not self.guidance_scale > 1:
                raise Error(f"{name} has no effect unless guidance_scale is above 1, and it is {self.guidance_scale:g}")
