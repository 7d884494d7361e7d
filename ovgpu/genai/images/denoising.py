"""Rules of schedulers: how a prediction of the UNet changes the latents of images, step by step.

The arithmetic has the order and the types of openvino_genai: f32, and f64 in some places.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ovgpu.errors import Error
from ovgpu.genai.fields import Flag, Integer, Real
from ovgpu.genai.images.generators import Generator, draw
from ovgpu.genai.images.settings import ONE, Choice, Rescaled, Settings, linspace

Array = np.ndarray[Any, Any]
SIGMA = 0.5  # of the data, for consistency models


class Denoising:
    """State of a generation.

    ``timesteps`` are the training steps that the UNet gets, from the noisiest on. ``init_noise_sigma`` is the standard
    deviation of the first latents. Raises: Error for a number of steps or a strength that leaves none.
    """

    init_noise_sigma = ONE

    def __init__(self, settings: Any, steps: int, strength: float) -> None:
        if not 1 <= steps <= settings.num_train_timesteps:
            raise Error(f"num_inference_steps must be from 1 to {settings.num_train_timesteps}, not {steps}")
        self._settings, self._steps = settings, steps
        self._alphas = settings.alphas()
        self._all = self._schedule(steps, strength)
        self._begin = self._first(steps, strength)
        self.timesteps = self._all[self._begin :]
        if not self.timesteps:
            raise Error(f"a strength of {strength:g} leaves no step of {steps}")

    def scale(self, latents: Array, index: int) -> Array:
        """Return the input of the UNet in a step."""
        return latents

    def step(self, prediction: Array, latents: Array, index: int, generator: Generator) -> tuple[Array, Array | None]:
        """Return the latents after a step, and the expected latents without noise if the rule computes them."""
        raise NotImplementedError

    def add_noise(self, latents: Array, noise: Array, timestep: int) -> Array:
        """Return latents of images with the noise of a training step."""
        alpha = self._alphas[timestep]
        noisy: Array = np.sqrt(alpha) * latents + np.float32(np.sqrt(1 - np.float64(alpha))) * noise
        return noisy

    # ----

    def _first(self, steps: int, strength: float) -> int:
        """Return the index of the first training step that a strength leaves."""
        return max(steps - int(np.float32(steps) * np.float32(strength)), 0)

    def _schedule(self, steps: int, strength: float) -> list[int]:
        """Return the training steps of a generation of full strength, the noisiest first."""
        settings, count = self._settings, self._settings.num_train_timesteps
        if settings.timestep_spacing == "linspace":
            return [_rounded(step) for step in linspace(0, count - 1, steps, endpoint=True)[::-1]]
        if settings.timestep_spacing == "leading":
            return [step * (count // steps) + settings.steps_offset for step in reversed(range(steps))]
        # NOTE: openvino_genai counts down while the number is above 0, where rounding may give one step more.
        difference, found = np.float32(count) / np.float32(steps), [np.float32(count)]
        while len(found) < steps:
            found.append(found[-1] - difference)
        return [_rounded(step) - 1 for step in found]

    def _check_range(self) -> None:
        """Raise Error for timesteps that are no training steps."""
        count = self._settings.num_train_timesteps
        if self._all[0] >= count:
            raise Error(f"steps_offset {self._settings.steps_offset} goes beyond the last of {count} training steps")

    def _refuse_prediction(self) -> Error:
        return Error(f"the scheduler does not support the prediction_type {self._settings.prediction_type}")


def _rounded(number: np.float32) -> int:
    """Return a number from 0 on, rounded half up."""
    return int(np.float64(number) + 0.5)


class DDIM(Denoising):
    """Denoising diffusion implicit models: https://arxiv.org/abs/2010.02502, formula (12) without random noise."""

    def __init__(self, settings: Any, steps: int, strength: float) -> None:
        super().__init__(settings, steps, strength)
        self._check_range()
        for name in ("thresholding", "clip_sample"):
            if getattr(settings, name):
                raise Error(f"the scheduler DDIM does not support {name}: it must be false in scheduler_config.json")
        self._final = ONE if settings.set_alpha_to_one else self._alphas[0]

    def step(self, prediction: Array, latents: Array, index: int, generator: Generator) -> tuple[Array, Array | None]:
        timestep = self.timesteps[index]
        before = timestep - self._settings.num_train_timesteps // self._steps
        alpha, alpha_before = self._alphas[timestep], self._alphas[before] if before >= 0 else self._final
        image, noise = np.sqrt(alpha), np.sqrt(ONE - alpha)
        if self._settings.prediction_type == "epsilon":
            original, epsilon = (latents - noise * prediction) / image, prediction
        elif self._settings.prediction_type == "sample":
            original, epsilon = prediction, (latents - image * prediction) / noise
        else:
            original, epsilon = image * latents - noise * prediction, image * prediction + noise * latents
        result: Array = np.sqrt(alpha_before) * original + np.sqrt(ONE - alpha_before) * epsilon
        return result, None


class DDIMSettings(Rescaled):
    """Settings of `DDIM`."""

    __slots__ = ()
    rule = DDIM

    beta_schedule = Choice("scaled_linear", "linear", "squaredcos_cap_v2")
    clip_sample = Flag(True)
    set_alpha_to_one = Flag(True)
    thresholding = Flag(False)


class PNDM(Denoising):
    """Pseudo numerical methods, linear multistep: https://arxiv.org/abs/2202.09778, without Runge-Kutta steps."""

    def __init__(self, settings: Any, steps: int, strength: float) -> None:
        super().__init__(settings, steps, strength)
        self._check_range()
        if not settings.skip_prk_steps:
            raise Error("the scheduler PNDM does not support Runge-Kutta steps: set skip_prk_steps in its file")
        self._final = ONE if settings.set_alpha_to_one else self._alphas[0]
        self._predictions: list[Array] = []
        self._start: Array | None = None  # latents before the first step

    def step(self, prediction: Array, latents: Array, index: int, generator: Generator) -> tuple[Array, Array | None]:
        timestep, distance = self.timesteps[index], self._settings.num_train_timesteps // self._steps
        before = timestep - distance
        if index != 1:
            self._predictions = [*self._predictions[-3:], prediction]
        else:
            before, timestep = timestep, timestep + distance
        past = self._predictions[::-1]
        if index == 0:
            self._start = latents
        elif index == 1:
            assert self._start is not None
            prediction, latents = (prediction + past[0]) / np.float32(2), self._start
        elif len(past) == 2:
            prediction = (np.float32(3) * past[0] - past[1]) / np.float32(2)
        elif len(past) == 3:
            a, b, c = (np.float32(factor) * old for factor, old in zip((23, 16, 5), past))
            prediction = (a - b + c) / np.float32(12)
        else:
            a, b, c, d = (np.float32(factor) * old for factor, old in zip((55, 59, 37, 9), past))
            prediction = ONE / np.float32(24) * (a - b + c - d)
        result = self._previous(prediction, latents, timestep, before)
        return result, None

    def _schedule(self, steps: int, strength: float) -> list[int]:
        """Return the training steps, the second one twice."""
        found = super()._schedule(steps, strength)
        return [*found[:2], *found[1:]]

    def _previous(self, prediction: Array, latents: Array, timestep: int, before: int) -> Array:
        """Return the latents at the training step ``before``: formula (9) of the paper."""
        alpha, alpha_before = self._alphas[timestep], self._alphas[before] if before >= 0 else self._final
        beta, beta_before = ONE - alpha, ONE - alpha_before
        if self._settings.prediction_type == "v_prediction":
            prediction = np.sqrt(alpha) * prediction + np.sqrt(beta) * latents
        elif self._settings.prediction_type != "epsilon":
            raise self._refuse_prediction()
        divisor = alpha * np.sqrt(beta_before) + np.sqrt(alpha * beta * alpha_before)
        result: Array = np.sqrt(alpha_before / alpha) * latents - (alpha_before - alpha) * prediction / divisor
        return result


class PNDMSettings(Settings):
    """Settings of `PNDM`."""

    __slots__ = ()
    rule = PNDM

    set_alpha_to_one = Flag(False)
    skip_prk_steps = Flag(False)


class _Euler(Denoising):
    """Steps from one standard deviation of the noise ("sigma") to the next. Latents are the image plus the noise."""

    def __init__(self, settings: Any, steps: int, strength: float) -> None:
        super().__init__(settings, steps, strength)
        alphas = self._alphas.copy()
        if settings.rescale_betas_zero_snr:
            alphas[-1] = 2.0**-24
        roots = np.sqrt(((ONE - alphas) / alphas).astype(np.float64)).astype(np.float32)
        self._sigmas = np.append(self._interpolated(roots), self._last_sigma(roots))
        self.init_noise_sigma = self._sigmas.max()
        if settings.timestep_spacing == "leading":
            self.init_noise_sigma = self._with_image(self.init_noise_sigma)

    def scale(self, latents: Array, index: int) -> Array:
        scaled: Array = (latents / np.sqrt(self._variance(index))).astype(np.float32)
        return scaled

    def add_noise(self, latents: Array, noise: Array, timestep: int) -> Array:
        noisy: Array = latents + self._sigmas[self._all.index(timestep)] * noise
        return noisy

    # ----

    def _sigma(self, index: int) -> np.float32:
        """Return the standard deviation of the noise before a step."""
        sigma: np.float32 = self._sigmas[self._begin + index]
        return sigma

    def _variance(self, index: int) -> np.float64:
        """Return the variance of the latents of a step, f64, for images of variance 1."""
        return np.float64(self._sigma(index)) ** 2 + 1

    def _original(self, prediction: Array, latents: Array, index: int) -> Array:
        """Return the expected latents without noise."""
        sigma, kind = self._sigma(index), self._settings.prediction_type
        if kind == "epsilon":
            return latents - sigma * prediction
        if kind == "sample":
            return prediction
        variance = self._variance(index)
        original: Array = (prediction * (-sigma / np.sqrt(variance)) + latents / variance).astype(np.float32)
        return original

    def _interpolated(self, roots: Array) -> Array:
        """Return the standard deviation before each step, from those of the training steps, ``roots``."""
        # NOTE: the sum has the rounding of openvino_genai, which interpolates between two training steps.
        last = len(roots) - 1
        inner = np.clip(self._all, 1, last)
        between = roots[inner] - roots[inner - 1] + roots[inner - 1]
        found: Array = np.where(np.less_equal(self._all, 0), roots[0], between)
        return np.where(np.greater_equal(self._all, last), roots[last], found)

    def _last_sigma(self, roots: Array) -> Any:
        """Return the standard deviation after the last step."""
        return np.float32(0)

    def _with_image(self, sigma: Any) -> Any:
        """Return the standard deviation of noise plus an image of variance 1."""
        return np.float32(np.sqrt(np.float64(sigma) ** 2 + 1))


class EulerDiscrete(_Euler):
    """Euler's method: https://arxiv.org/abs/2206.00364, algorithm 2 without added noise."""

    def __init__(self, settings: Any, steps: int, strength: float) -> None:
        for name in ("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas"):
            if getattr(settings, name):
                raise Error(f"the scheduler EulerDiscrete does not support {name}: set it to false in its file")
        super().__init__(settings, steps, strength)

    def step(self, prediction: Array, latents: Array, index: int, generator: Generator) -> tuple[Array, Array | None]:
        sigma, original = self._sigma(index), self._original(prediction, latents, index)
        return (latents - original) / sigma * (self._sigma(index + 1) - sigma) + latents, original

    def _interpolated(self, roots: Array) -> Array:
        if self._settings.interpolation_type == "linear":
            return super()._interpolated(roots)
        first, last = np.log(roots[[-1, 0]].astype(np.float64))
        levels = linspace(first, last, self._steps + 1, endpoint=True)
        return np.exp(levels.astype(np.float64)).astype(np.float32)

    def _last_sigma(self, roots: Array) -> Any:
        return roots[0] if self._settings.final_sigmas_type == "sigma_min" else super()._last_sigma(roots)

    def _with_image(self, sigma: Any) -> Any:
        return np.sqrt(sigma * sigma + ONE)


class EulerSettings(Rescaled):
    """Settings of `EulerDiscrete`."""

    __slots__ = ()
    rule = EulerDiscrete

    beta_schedule = Choice("scaled_linear", "linear", "squaredcos_cap_v2")
    final_sigmas_type = Choice("zero", "sigma_min")
    interpolation_type = Choice("linear", "log_linear")
    timestep_type = Choice("discrete", "continuous")
    use_beta_sigmas = Flag(False)
    use_exponential_sigmas = Flag(False)
    use_karras_sigmas = Flag(False)

    def check(self) -> None:
        super().check()
        if self.timestep_type == "continuous" and self.prediction_type == "v_prediction":
            raise Error("the scheduler EulerDiscrete does not support continuous timesteps with v_prediction")


class EulerAncestralDiscrete(_Euler):
    """Euler's method with new noise: a step removes more noise than it has to, and adds the difference.

    Paper: https://arxiv.org/abs/2206.00364, section 4.
    """

    def step(self, prediction: Array, latents: Array, index: int, generator: Generator) -> tuple[Array, Array | None]:
        if self._settings.prediction_type == "sample":
            raise self._refuse_prediction()
        sigma, original = self._sigma(index), self._original(prediction, latents, index)
        before, after = np.float64(sigma) ** 2, np.float64(self._sigma(index + 1)) ** 2
        up = np.float32(np.sqrt(after * (before - after) / before))
        down = np.float32(np.sqrt(after - np.float64(up) ** 2))
        noise = draw(generator, latents.shape)
        result = latents + (latents - original) / sigma * (down - sigma) + noise * up
        return result, original


class EulerAncestralSettings(Rescaled):
    """Settings of `EulerAncestralDiscrete`."""

    __slots__ = ()
    rule = EulerAncestralDiscrete


class LCM(Denoising):
    """Latent consistency models: https://arxiv.org/abs/2310.04378, algorithm 3."""

    def __init__(self, settings: Any, steps: int, strength: float) -> None:
        super().__init__(settings, steps, strength)
        if settings.thresholding:
            raise Error("the scheduler LCM does not support thresholding: it must be false in scheduler_config.json")
        if settings.prediction_type != "epsilon":
            raise self._refuse_prediction()

    def step(self, prediction: Array, latents: Array, index: int, generator: Generator) -> tuple[Array, Array | None]:
        settings, timestep = self._settings, self.timesteps[index]
        alpha = self._alphas[timestep]
        original = (latents - np.sqrt(ONE - alpha) * prediction) / np.sqrt(alpha)
        if settings.clip_sample:
            limit = np.float32(settings.clip_sample_range)
            original = np.clip(original, -limit, limit)
        scaled = np.float32(timestep) * np.float32(settings.timestep_scaling)
        divisor = np.float64(scaled) ** 2 + SIGMA**2
        kept, changed = np.float32(SIGMA**2 / divisor), np.float32(scaled / np.sqrt(divisor))
        denoised: Array = changed * original + kept * latents
        if index == self._steps - 1:
            return denoised, denoised
        after = self._alphas[self.timesteps[min(index + 1, len(self.timesteps) - 1)]]
        return np.sqrt(after) * denoised + np.sqrt(ONE - after) * draw(generator, latents.shape), denoised

    def add_noise(self, latents: Array, noise: Array, timestep: int) -> Array:
        alpha = self._alphas[timestep]
        noisy: Array = np.sqrt(alpha) * latents + np.sqrt(ONE - alpha) * noise
        return noisy

    def _schedule(self, steps: int, strength: float) -> list[int]:
        """Return training steps at even distances among those of ``original_inference_steps``."""
        settings = self._settings
        distance = settings.num_train_timesteps // settings.original_inference_steps
        count = int(np.float32(settings.original_inference_steps) * np.float32(strength))
        if count < 1 or distance < 1:
            return []
        return [(count - int(place)) * distance - 1 for place in linspace(0, count, steps)]

    def _first(self, steps: int, strength: float) -> int:
        return 0  # strength is part of the schedule


class LCMSettings(Settings):
    """Settings of `LCM`."""

    __slots__ = ()
    rule = LCM

    beta_end = Real(0.012)
    beta_schedule = Choice("scaled_linear", "linear", "squaredcos_cap_v2")
    beta_start = Real(0.00085)
    clip_sample = Flag(False)
    clip_sample_range = Real(1.0)
    original_inference_steps = Integer(50, 1)
    thresholding = Flag(False)
    timestep_scaling = Real(10.0)

    inclusive = True

    def _line(self, start: np.float32, end: np.float32, count: int) -> Array:
        steps = np.arange(count, dtype=np.float32)
        return start + (end - start) * steps / np.float32(max(count - 1, 1))
