"""Ways in which the rows of a batch of columns run through a model."""

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
"""Values of inputs by number."""

Part = tuple[Array, Sequence[Array]]
"""Numbers of rows, and the outputs of these rows: arrays whose first axis is the rows."""


class Runner(ABC):
    """Compiled model, and the way in which it runs rows."""

    compiled: CompiledModel
    optional = frozenset[int]()
    """Inputs that need no values."""
    output_axes: Sequence[int | None]
    """The batch axis of each output, None where a row has the whole output."""
    has_steps = False
    """True if the elements of columns have an axis of steps in front."""

    @abstractmethod
    def parts(self, columns: Mapping[int, Array], rows: int, constants: Values) -> list[Part]:
        """Run all rows. ``columns`` has the values of inputs, by number; ``constants`` has those of every row."""

    @abstractmethod
    def close(self) -> None:
        """End all threads."""

    def run(self, columns: Mapping[int, Array], constants: Values, wanted: Sequence[int]) -> dict[int, Array]:
        """Return the ``wanted`` outputs, by number, of all rows."""
        rows = row_count(columns)
        if not rows:
            return {
                number: no_rows(self.compiled.outputs[number], self.output_axes[number], self.has_steps)
                for number in wanted
            }
        parts = self.parts(columns, rows, constants)
        return {
            number: assembled(
                [(chosen, column_values(self.compiled.outputs[number], outputs[number])) for chosen, outputs in parts],
                rows,
            )
            for number in wanted
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
                inputs = {number: self._moved(number, array[part]) for number, array in values.items()}
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
        """Return the values of a row as those of so many, except inputs that all rows of a batch share."""
        shared = [number for number, axis in enumerate(self._batcher.batch_axes) if axis is None]
        return {
            number: value if number in shared else self._moved(number, np.broadcast_to(value, (rows, *np.shape(value))))
            for number, value in constants.items()
        }

    def _moved(self, number: int, rows: Array) -> Array:
        """Return rows of an input with the rows on its batch axis."""
        axis = _batch_axis(self.compiled, self._batcher.batch_axes, number)
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
        found: list[Part] = []
        running: dict[Future[Any], tuple[int, BatchedSequence, list[Future[Any]]]] = {}  # by the last step
        try:
            for row in range(rows):
                while len(running) == self._batcher.max_sequences:
                    found += self._ended(running)
                sequence, futures = self._begun(steps_of(columns, row), constants)
                running[futures[-1]] = row, sequence, futures
            while running:
                found += self._ended(running)
            return found
        finally:
            for _, sequence, _ in running.values():
                sequence.close()

    def _begun(self, steps: Sequence[Values], constants: Values) -> tuple[BatchedSequence, list[Future[Any]]]:
        """Return a new sequence, and the futures of its steps."""
        axes = self._batcher.batch_axes
        fixed = {
            number: value if axes[number] is None else self._with_batch(number, np.asarray(value))
            for number, value in constants.items()
        }
        sequence = self._batcher.open()
        try:
            return sequence, [
                sequence.submit(
                    {**fixed, **{number: self._with_batch(number, value) for number, value in step.items()}}
                )
                for step in steps
            ]
        except BaseException:
            sequence.close()
            raise

    def _with_batch(self, number: int, value: Array) -> Array:
        """Return a row's value of an input with a batch axis of 1."""
        axis = _batch_axis(self.compiled, self._batcher.batch_axes, number)
        return np.expand_dims(value, axis) if axis <= value.ndim else value

    def _ended(self, running: dict[Future[Any], tuple[int, BatchedSequence, list[Future[Any]]]]) -> list[Part]:
        """Wait until sequences have ended. Return their outputs, and remove them from those that run."""
        found = []
        for last in wait(running, return_when=FIRST_COMPLETED).done:
            row, sequence, futures = running[last]
            steps = [
                [np.take(output, 0, axis) for output, axis in zip(future.result().to_tuple(), self.output_axes)]
                for future in futures
            ]
            sequence.close()
            del running[last]
            found.append(_row(row, [stacked(values) for values in zip(*steps)]))
        return found

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
            return self._infer({number: np.asarray(column[row]) for number, column in columns.items()}, constants)
        self._request.reset_state()
        return [stacked(values) for values in zip(*(self._infer(step, constants) for step in steps_of(columns, row)))]

    def _infer(self, values: Mapping[int, Array], constants: Values) -> list[Array]:
        inputs = {}
        for number, value in {**values, **constants}.items():
            shape = self.compiled.inputs[number].partial_shape
            lacks_batch = not shape.rank.is_dynamic and len(shape) == np.ndim(value) + 1
            inputs[number] = np.asarray(value)[None] if lacks_batch else value
        return list(self._request.infer(inputs, decode_strings=None).to_tuple())

    def close(self) -> None:
        pass


def steps_of(columns: Mapping[int, Array], row: int) -> list[dict[int, Array]]:
    """Return the inputs of each step of a row, whose values have an axis of steps in front.

    Raises: Error if there are no steps, or the columns have different numbers of them.
    """
    values = {number: np.asarray(column[row]) for number, column in columns.items()}
    counts = {value.shape[0] if value.ndim else 0 for value in values.values()}
    if len(counts) != 1 or not all(counts):
        raise Error(f"the columns of row {row} have {' and '.join(map(str, sorted(counts)))} steps")
    return [{number: value[step] for number, value in values.items()} for step in range(counts.pop())]


def _batch_axis(compiled: CompiledModel, axes: Sequence[int | None], number: int) -> int:
    axis = axes[number]
    if axis is None:
        raise Error(
            f"input '{port_name(compiled.inputs[number])}' has no batch axis: give its value in 'constants', "
            f"or its axis in 'batch_axes'"
        )
    return axis


def _row(row: int, outputs: Sequence[Array]) -> Part:
    return np.array([row]), [output[None] for output in outputs]
