"""Classes Generator, CppStdGenerator and TorchGenerator: random numbers of a generation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from ovgpu.errors import Error
from ovgpu.tensor import Tensor

Array = np.ndarray[Any, Any]
SEEDS = 2**32  # of std::mt19937, which takes a larger one modulo this; its numbers have the same range
BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))
BLOCK = 4096  # least count of numbers that are drawn at once


class Generator:
    """Base of generators of normally distributed numbers.

    An own one defines ``next()``, which returns a number, and ``seed(new_seed)``. It may define
    ``randn_tensor(shape)``, which returns a Tensor of f32.
    """

    def next(self) -> float:
        """Return the next number."""
        raise Error(f"the generator {type(self).__name__} has no method next()")

    def seed(self, new_seed: int) -> None:
        """Start the numbers of a seed."""
        raise Error(f"the generator {type(self).__name__} has no method seed(new_seed)")

    def randn_tensor(self, shape: Sequence[int]) -> Tensor:
        """Return the next numbers, as a tensor of f32."""
        numbers = [self.next() for _ in range(math.prod(shape))]
        return Tensor(np.array(numbers, np.float32).reshape(tuple(shape)))


class CppStdGenerator(Generator):
    """Numbers of C++'s std::mt19937 with std::normal_distribution<float>, as GCC's library computes them.

    1 in 300 differs in its last bit from openvino_genai's, because the C library does not round each logarithm to the
    nearest number. Raises: TypeError for a ``seed`` that is no integer from 0 to 2^32 - 1.
    """

    def __init__(self, seed: int) -> None:
        self._random = np.random.RandomState(_integer(seed, SEEDS))
        self._numbers = np.zeros(0, np.float32)  # drawn in advance

    def seed(self, new_seed: int) -> None:
        """Start the numbers of a seed.

        Numbers are made in pairs. The second one of a pair that has begun is still the next, as in C++. Raises:
        TypeError for a seed that is no integer from 0 to 2^64 - 1.
        """
        self._random = np.random.RandomState(_integer(new_seed, 2**64) % SEEDS)
        self._numbers = self._numbers[: len(self._numbers) % 2]

    def next(self) -> float:
        """Return the next number."""
        return float(self._take(1)[0])

    def randn_tensor(self, shape: Sequence[int]) -> Tensor:
        """Return the next numbers, as a tensor of f32."""
        return Tensor(self._take(math.prod(shape)).reshape(tuple(shape)))

    def _take(self, count: int) -> Array:
        while len(self._numbers) < count:
            self._numbers = np.concatenate([self._numbers, self._pairs(max(count, BLOCK))])
        taken, self._numbers = np.split(self._numbers, [count])
        return taken

    def _pairs(self, count: int) -> Array:
        """Return new numbers by Marsaglia's polar method, from ``count`` points of which about 3 in 4 are in the disc.

        All steps are in f32 as in C++, but for a difference that C++ takes in f64.
        """
        integers = self._random.randint(0, SEEDS, (count, 2), np.uint32)
        uniform = np.minimum(integers.astype(np.float32) / np.float32(SEEDS), BELOW_ONE)
        points = (np.float64(2) * uniform - 1).astype(np.float32)
        squares = points[:, 0] ** 2 + points[:, 1] ** 2
        inside = (squares <= 1) & (squares != 0)
        points, squares = points[inside], squares[inside]
        logarithms = np.log(squares.astype(np.float64)).astype(np.float32)
        factors = np.sqrt(np.float32(-2) * logarithms / squares)
        numbers: Array = (points[:, ::-1] * factors[:, None]).ravel()
        return numbers


class TorchGenerator(CppStdGenerator):
    """Numbers of torch.Generator on the CPU, which needs the package torch.

    Raises: TypeError for a ``seed`` that is no integer from 0 to 2^32 - 1; RuntimeError without torch.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        try:
            self._torch: Any = import_module("torch")
        except ModuleNotFoundError:
            raise Error("TorchGenerator needs the package torch: `pip install torch`, or use rng_seed") from None
        self._generator = self._torch.Generator(device="cpu").manual_seed(int(seed))

    def seed(self, new_seed: int) -> None:
        """Start the numbers of a seed. Raises: TypeError for a seed that is no integer from 0 to 2^64 - 1."""
        self._generator.manual_seed(_integer(new_seed, 2**64))

    def _take(self, count: int) -> Array:
        numbers: Array = self._torch.randn(count, generator=self._generator, dtype=self._torch.float32).numpy()
        return numbers


def draw(generator: Generator, shape: tuple[int, ...]) -> Array:
    """Return normally distributed numbers, f32. Raises: Error for a generator that returns another shape or type."""
    tensor = generator.randn_tensor(shape)
    numbers = np.asarray(getattr(tensor, "data", tensor))
    if numbers.shape != shape or numbers.dtype != np.float32:
        raise Error(f"randn_tensor returned {numbers.dtype} {list(numbers.shape)}, not float32 {list(shape)}")
    return numbers


def _integer(seed: Any, end: int) -> int:
    if not hasattr(seed, "__index__") or not 0 <= int(seed) < end:
        raise TypeError(f"a seed is an integer from 0 to {end - 1}, not {seed!r}")
    return int(seed)
