"""Class Sample: an inference that runs before a model is served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ovgpu.errors import Error
from ovgpu.serve.engines import Engine, Port
from ovgpu.serve.tensors import from_bytes
from ovgpu.types import Type

SEED = 0  # of random values, so that each start is the same


@dataclass(frozen=True)
class Sample:
    """Inference with zeros, random values, or the contents of files.

    ``inputs`` has (shape, contents) by name: contents are "zeros", "random", or a file with the bytes of the values. A
    shape that lacks the batch axis has ``rows`` on it.
    """

    name: str
    inputs: Mapping[str, tuple[tuple[int, ...], str | Path]]
    rows: int = 1
    count: int = 1

    def run(self, engine: Engine) -> None:
        """Run the inference ``count`` times, in a sequence of its own. Raise Error if that is impossible."""
        try:
            inputs = {index: self._value(engine, index) for index in self._indices(engine)}
            sequence = engine.open() if engine.stateful else None
            try:
                for _ in range(self.count):
                    (engine.submit(inputs) if sequence is None else sequence.submit(inputs)).result()
            finally:
                if sequence is not None:
                    sequence.close()
        except (Error, OSError) as error:
            raise Error(f"the inference '{self.name}' of the warm-up has failed: {error}") from None

    def _indices(self, engine: Engine) -> list[int]:
        unknown = next((name for name in self.inputs if not any(name in port.names for port in engine.inputs)), None)
        if unknown is not None:
            raise Error(f"the model has no input '{unknown}'")
        return [i for i, port in enumerate(engine.inputs) if self._given(port)]

    def _given(self, port: Port) -> tuple[tuple[int, ...], str | Path] | None:
        return next((self.inputs[name] for name in sorted(port.names) if name in self.inputs), None)

    def _value(self, engine: Engine, index: int) -> Any:
        port = engine.inputs[index]
        found = self._given(port)
        assert found is not None
        shape, contents = found
        axis = engine.batch_axes[index] if engine.batch_axes else None
        if axis is not None and port.shape is not None and len(shape) == len(port.shape) - 1:
            shape = (*shape[:axis], 1 if engine.stateful else self.rows, *shape[axis:])
        if isinstance(contents, Path):
            return from_bytes(port.name, port.dtype, shape, contents.read_bytes())
        if port.dtype is Type.string:
            return np.full(shape, b"", object)
        if contents == "zeros":
            return np.zeros(shape, port.dtype.storage)
        generator = np.random.default_rng(SEED)
        values = generator.integers(0, 2, shape) if port.dtype.integral else generator.random(shape)
        return values.astype(port.dtype.storage)
