"""Classes FileSettings and Settings: settings in JSON files of models and schedulers, and the schedule of noise."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from ovgpu.errors import Error
from ovgpu.genai.fields import Configuration, Field, Flag, Integer, Real
from ovgpu.genai.files import read_object
from ovgpu.genai.images.overloads import PATH

Array = np.ndarray[Any, Any]
ONE = np.float32(1)


class Choice(Field[str]):
    """Text out of several. Other values of a file, and an empty text, have no effect."""

    def __init__(self, default: str, *others: str) -> None:
        super().__init__(default)
        self.choices = (default, *others)
        self.what = f"one of {', '.join(self.choices)}"

    def from_keyword(self, value: Any) -> str:
        if not isinstance(value, str) or not value:
            return self.default
        if value not in self.choices:
            raise TypeError
        return value


class Items(Field[list[Any]]):
    """List of values of a field."""

    def __init__(self, default: list[Any], item: Field[Any], what: str) -> None:
        super().__init__(default)
        self._item, self.what = item, what

    def copied(self, value: Any) -> list[Any]:
        return list(value)

    def checked(self, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
            raise TypeError
        return tuple(map(self._item.checked, value))

    def from_keyword(self, value: Any) -> tuple[Any, ...]:
        return tuple(map(self._item.from_keyword, value))


class FileSettings(Configuration):
    """Settings that are read from a JSON file.

    Unknown fields, null, and lists in place of other values have no effect, as in openvino_genai.

    Raises: RuntimeError for a file that cannot be read, and for a value of another type.
    """

    __slots__ = ()

    def __init__(self, config_path: str | bytes | os.PathLike[str]) -> None:
        if not isinstance(config_path, PATH):
            raise TypeError(f"config_path is the path of a file, not {config_path!r}")
        super().__init__()
        path = Path(os.fsdecode(config_path))
        found = {name: value for name, value in read_object(path).items() if self._takes(name, value)}
        try:
            self._set(found)
        except Error as e:
            raise Error(f"{path}: {e}") from None

    def copy(self) -> Self:
        """Return an independent copy."""
        copy = type(self).__new__(type(self))
        copy._values = dict(self._values)
        return copy

    def _takes(self, name: str, value: Any) -> bool:
        field = self._fields.get(name)
        return field is not None and value is not None and isinstance(field, Items) == isinstance(value, list)


class Settings(FileSettings):
    """Settings in scheduler_config.json that all schedulers have."""

    __slots__ = ()

    beta_end = Real(0.02)
    beta_schedule = Choice("linear", "scaled_linear", "squaredcos_cap_v2")
    beta_start = Real(0.0001)
    num_train_timesteps = Integer(1000, 1, 10**6)
    prediction_type = Choice("epsilon", "sample", "v_prediction")
    steps_offset = Integer(0)
    timestep_spacing = Choice("leading", "linspace", "trailing")
    trained_betas = Items([], Real(0.0), "a list of numbers")

    inclusive: ClassVar[bool] = False  # whether `betas` end at beta_end, or one step before
    rule: ClassVar[Any]  # a `Denoising`

    def betas(self) -> Array:
        """Return the variance of the noise that each training step adds, f32.

        Raises: RuntimeError for another beta_schedule, and for the wrong number of trained_betas.
        """
        count = self.num_train_timesteps
        if self.trained_betas:
            if len(self.trained_betas) != count:
                raise Error(f"there are {len(self.trained_betas)} trained_betas for {count} training steps")
            return np.array(self.trained_betas, np.float32)
        start, end = np.float32(self.beta_start), np.float32(self.beta_end)
        if self.beta_schedule == "linear":
            return self._line(start, end, count)
        if self.beta_schedule == "scaled_linear":
            betas: Array = linspace(np.sqrt(start), np.sqrt(end), count, self.inclusive) ** 2
            return betas
        raise Error(f"beta_schedule must be linear or scaled_linear, not {self.beta_schedule}")

    def _line(self, start: np.float32, end: np.float32, count: int) -> Array:
        """Return variances that increase by the same difference."""
        return linspace(start, end, count)

    def check(self) -> None:
        """Raise RuntimeError for settings that the rule does not support."""
        self.betas()

    def alphas(self) -> Array:
        """Return the part of the variance that is not noise after each training step, f32."""
        alphas: Array = np.cumprod(ONE - self.betas(), dtype=np.float32)
        return alphas


class Rescaled(Settings):
    """Settings that may rescale the variances so that the last training step leaves nothing of the image."""

    __slots__ = ()

    rescale_betas_zero_snr = Flag(False)

    def betas(self) -> Array:
        """Return the variances, see `Settings.betas`. Rescaling: https://arxiv.org/abs/2305.08891, algorithm 1."""
        betas = super().betas()
        if not self.rescale_betas_zero_snr:
            return betas
        roots = np.sqrt(np.cumprod(ONE - betas, dtype=np.float32))
        first, last = roots[0], roots[-1]
        squares = ((roots - last) * (first / (first - last))).astype(np.float64) ** 2
        products = squares.astype(np.float32)
        rescaled: Array = ONE - np.concatenate([products[:1], products[1:] / products[:-1]])
        return rescaled


def linspace(start: Any, end: Any, count: int, endpoint: bool = False) -> Array:
    """Return ``count`` numbers from ``start`` to ``end``, of f32 as in openvino_genai."""
    start, end = np.float32(start), np.float32(end)
    intervals = count - endpoint if count > 1 else 1
    numbers: Array = start + (end - start) / np.float32(intervals) * np.arange(count, dtype=np.float32)
    if endpoint and count > 1:
        numbers[-1] = end
    return numbers
