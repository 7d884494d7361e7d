"""Runners: three ways to run a model for the rows of a batch of columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import numpy as np

from ovgpu.api.compiled_model import CompiledModel
from ovgpu.batching import BatchedSequence, DynamicBatcher, SequenceBatcher
from ovgpu.errors import Error
from ovgpu.integrations.ray.columns import (
    Array,
    assembled,
    column_values,
    no_rows,
    port_name,
    row_count,
    row_groups,
    stacked,
)

Values = Mapping[int, Any]
"""Values of inputs by index."""

Part = tuple[Array, Sequence[Array]]
"""Indices of rows, and the outputs of these rows: arrays whose first axis is the rows."""


class Runner(ABC):
    """Compiled model, and a way to run it for rows."""

    compiled: CompiledModel
    optional = frozenset[int]()
    """Inputs that need no values."""
    output_axes: Sequence[int | None]
    """The batch axis of each output, None where a row has the whole output."""
    has_steps = False
    """True if the elements of columns have an axis of steps in front."""

    @abstractmethod
    def parts(self, columns: Mapping[int, Array], rows: int, constants: Values) -> list[Part]:
        """Run all rows. ``columns`` are inputs by index; ``constants`` are inputs with the same value in all rows."""

    @abstractmethod
    def close(self) -> None:
        """End all threads."""

    def run(self, columns: Mapping[int, Array], constants: Values, wanted: Sequence[int]) -> dict[int, Array]:
        """Return the ``wanted`` outputs of all rows, by index."""
        rows = row_count(columns)
        if not rows:
            return {i: no_rows(self.compiled.outputs[i], self.output_axes[i], self.has_steps) for i in wanted}
        parts = self.parts(columns, rows, constants)
        return {
            i: assembled(
                [(chosen, column_values(self.compiled.outputs[i], outputs[i])) for chosen, outputs in parts],
                rows,
            )
            for i in wanted
        }


class BatchRunner(Runner):
    """Batches of rows of equal shapes, for models without states."""

    def __init__(self, batcher: DynamicBatcher) -> None:
        self._batcher, self.compiled, self.output_axes = batcher, batcher.compiled_model, batcher.output_batch_axes

    def parts(self, columns: Mapping[int, Array], rows: int, constants: Values) -> list[Part]:
        submitted = []
        for chosen, values in row_groups(columns, rows):
            for start in range(0, len(chosen), self._batcher.max_batch_size):
                part = slice(start, start + self._batcher.max_batch_size)
                inputs = {i: self._moved(i, array[part]) for i, array in values.items()}
                submitted.append(
                    (chosen[part], self._batcher.submit({**inputs, **self._repeated(constants, len(chosen[part]))}))
                )
        return [
            (
                chosen,
                [
                    np.moveaxis(output, axis, 0)
                    for output, axis in zip(future.result().to_tuple(), self._batcher.output_batch_axes)
                ],
            )
            for chosen, future in submitted
        ]

    def _repeated(self, constants: Values, rows: int) -> Values:
        """Return the values of one row, repeated for ``rows`` rows, except for inputs that all rows share."""
        shared = [i for i, axis in enumerate(self._batcher.batch_axes) if axis is None]
        return {
            i: value if i in shared else self._moved(i, np.broadcast_to(value, (rows, *np.shape(value))))
            for i, value in constants.items()
        }

    def _moved(self, input_index: int, rows: Array) -> Array:
        """Return values of an input with their first axis, the rows, moved to the input's batch axis."""
        axis = _batch_axis(self.compiled, self._batcher.batch_axes, input_index)
        return np.moveaxis(rows, 0, axis) if axis < rows.ndim else rows

    def close(self) -> None:
        self._batcher.close()


class SequenceRunner(Runner):
    """Sequences side by side, one for each row, for models with states."""

    has_steps = True

    def __init__(self, batcher: SequenceBatcher) -> None:
        self._batcher, self.compiled, self.optional = batcher, batcher.compiled_model, batcher.optional_inputs
        self.output_axes = batcher.output_batch_axes

    def parts(self, columns: Mapping[int, Array], rows: int, constants: Values) -> list[Part]:
        parts: list[Part] = []
        running: dict[Future[Any], tuple[int, BatchedSequence, list[Future[Any]]]] = {}  # by the last step's future
        try:
            for row in range(rows):
                while len(running) == self._batcher.max_sequences:
                    parts += self._ended(running)
                sequence, futures = self._begun(steps_of(columns, row), constants)
                running[futures[-1]] = row, sequence, futures
            while running:
                parts += self._ended(running)
            return parts
        finally:
            for _, sequence, _ in running.values():
                sequence.close()

    def _begun(self, steps: Sequence[Values], constants: Values) -> tuple[BatchedSequence, list[Future[Any]]]:
        """Return a new sequence, and the futures of its steps."""
        axes = self._batcher.batch_axes
        fixed = {
            i: value if axes[i] is None else self._with_batch(i, np.asarray(value)) for i, value in constants.items()
        }
        sequence = self._batcher.open()
        try:
            return sequence, [
                sequence.submit({**fixed, **{i: self._with_batch(i, value) for i, value in step.items()}})
                for step in steps
            ]
        except BaseException:
            sequence.close()
            raise

    def _with_batch(self, input_index: int, value: Array) -> Array:
        """Return the value of an input for one row, with a batch axis of 1."""
        axis = _batch_axis(self.compiled, self._batcher.batch_axes, input_index)
        return np.expand_dims(value, axis) if axis <= value.ndim else value

    def _ended(self, running: dict[Future[Any], tuple[int, BatchedSequence, list[Future[Any]]]]) -> list[Part]:
        """Wait until a sequence has ended. Close all that have ended, remove them from ``running``, and return their
        outputs."""
        parts = []
        for last in wait(running, return_when=FIRST_COMPLETED).done:
            row, sequence, futures = running[last]
            steps = [
                [np.take(output, 0, axis) for output, axis in zip(future.result().to_tuple(), self.output_axes)]
                for future in futures
            ]
            sequence.close()
            del running[last]
            parts.append(_row(row, [stacked(values) for values in zip(*steps)]))
        return parts

    def close(self) -> None:
        self._batcher.close()


class SingleRunner(Runner):
    """One inference for each row, or for each step of a row, for any model."""

    def __init__(self, compiled: CompiledModel, stateful: bool) -> None:
        self.compiled, self.has_steps = compiled, stateful
        self._request = compiled.create_infer_request()
        self.output_axes = [None] * len(compiled.outputs)

    def parts(self, columns: Mapping[int, Array], rows: int, constants: Values) -> list[Part]:
        return [_row(row, self._outputs(columns, row, constants)) for row in range(rows)]

    def _outputs(self, columns: Mapping[int, Array], row: int, constants: Values) -> list[Array]:
        """Return the outputs of a row."""
        if not self.has_steps:
            return self._infer({i: np.asarray(column[row]) for i, column in columns.items()}, constants)
        self._request.reset_state()
        return [stacked(values) for values in zip(*(self._infer(step, constants) for step in steps_of(columns, row)))]

    def _infer(self, values: Mapping[int, Array], constants: Values) -> list[Array]:
        inputs = {}
        for i, value in {**values, **constants}.items():
            shape = self.compiled.inputs[i].partial_shape
            lacks_batch = not shape.rank.is_dynamic and len(shape) == np.ndim(value) + 1
            inputs[i] = np.asarray(value)[None] if lacks_batch else value
        return list(self._request.infer(inputs, decode_strings=None).to_tuple())

    def close(self) -> None:
        pass


def steps_of(columns: Mapping[int, Array], row: int) -> list[dict[int, Array]]:
    """Return the inputs of each step of a row. The first axis of a row's values is its steps.

    Raises: Error if there are no steps, or if the columns have different numbers of steps.
    """
    values = {i: np.asarray(column[row]) for i, column in columns.items()}
    counts = {value.shape[0] if value.ndim else 0 for value in values.values()}
    if len(counts) != 1 or not all(counts):
        raise Error(f"the columns of row {row} have {' and '.join(map(str, sorted(counts)))} steps")
    return [{i: value[step] for i, value in values.items()} for step in range(counts.pop())]


def _batch_axis(compiled: CompiledModel, axes: Sequence[int | None], input_index: int) -> int:
    axis = axes[input_index]
    if axis is None:
        raise Error(
            f"input '{port_name(compiled.inputs[input_index])}' has no batch axis: give its value in 'constants', "
            f"or its axis in 'batch_axes'"
        )
    return axis


def _row(row: int, outputs: Sequence[Array]) -> Part:
    return np.array([row]), [output[None] for output in outputs]
