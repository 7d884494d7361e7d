"""Columns of Ray Data's batches as inputs of a model, and its outputs as columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ovgpu.compile.ports import ConstOutput
from ovgpu.errors import Error
from ovgpu.types import Type

Array = np.ndarray[Any, Any]
Batch = dict[str, Array]

ARROW_TYPES = {
    Type.f16,
    Type.f32,
    Type.f64,
    Type.boolean,
    Type.string,
    Type.i8,
    Type.i16,
    Type.i32,
    Type.i64,
    Type.u8,
    Type.u16,
    Type.u32,
    Type.u64,
}


class Columns:
    """Columns of the inputs and outputs of a model.

    ``inputs`` and ``outputs`` have columns by name or number of a port. Inputs in ``constants`` have none, and those
    in ``optional``, by number, only if ``inputs`` names it. ``keep`` has the columns that results have besides the
    outputs, by default those that are no inputs.

    Raises: RuntimeError for a port that the model does not have, or an output of a type that no column can have.
    """

    def __init__(
        self,
        compiled: Any,
        inputs: Mapping[Any, str] | None,
        outputs: Mapping[Any, str] | None,
        constants: Mapping[Any, Any],
        optional: Collection[int],
        keep: Sequence[str] | None,
    ) -> None:
        ports: list[ConstOutput] = compiled.outputs
        self.constants = {_number(compiled.inputs, key): value for key, value in constants.items()}
        named = {_number(compiled.inputs, key): column for key, column in (inputs or {}).items()}
        self._inputs = {
            number: (named.get(number), port)
            for number, port in enumerate(compiled.inputs)
            if number not in self.constants and (number in named or number not in optional)
        }
        self.outputs = (
            {number: port_name(port) for number, port in enumerate(ports)}
            if outputs is None
            else {_number(ports, key): column for key, column in outputs.items()}
        )
        doubled = {name for name in self.outputs.values() if list(self.outputs.values()).count(name) > 1}
        if doubled:
            raise Error(f"several outputs would be column '{min(doubled)}'")
        for number in self.outputs:
            kind: Type = getattr(Type, ports[number].element_type.get_type_name())
            if kind.packed:
                raise Error(
                    f"output '{port_name(ports[number])}' has the type {kind.get_type_name()}, of which no "
                    f"column can be: name others in 'outputs'"
                )
        self._keep = keep

    def inputs(self, batch: Mapping[str, Array]) -> tuple[dict[int, Array], Batch]:
        """Return the columns of the inputs by number, and those that are kept.

        Raises: Error if a column is missing, has text for an input of numbers or numbers for one of text, or would be
        kept under the name of an output.
        """
        if not isinstance(batch, Mapping):
            raise TypeError(f"a batch is a dict of arrays, not {type(batch).__name__}: use batch_format='numpy'")
        for name, column in batch.items():
            if not isinstance(column, np.ndarray) or not column.ndim:
                raise TypeError(f"column '{name}' is no array of rows, but {type(column).__name__}")
        names = {number: self._column(given, port, batch) for number, (given, port) in self._inputs.items()}
        for number, name in names.items():
            _check_kind(name, batch[name], self._inputs[number][1])
        kept = [name for name in batch if name not in names.values()] if self._keep is None else self._keep
        for name in kept:
            if name not in batch:
                raise Error(f"the batch has no column '{name}' to keep; it has {', '.join(batch)}")
            if name in self.outputs.values():
                raise Error(
                    f"column '{name}' would be replaced by an output: leave it out of 'keep', or give the "
                    f"output another column in 'outputs'"
                )
        return {number: batch[name] for number, name in names.items()}, {name: batch[name] for name in kept}

    def _column(self, given: str | None, port: ConstOutput, batch: Mapping[str, Array]) -> str:
        candidates = [given] if given is not None else [port_name(port), *sorted(port.get_names())]
        found = next((name for name in candidates if name in batch), None)
        if found is None and given is None and len(self._inputs) == 1 and len(batch) == 1:
            return next(iter(batch))
        if found is None:
            raise Error(
                f"the batch has no column '{candidates[0]}' for the input of that name; it has "
                f"{', '.join(batch) or 'none'}: name the columns in 'inputs'"
            )
        return found


def _check_kind(name: str, column: Array, port: ConstOutput) -> None:
    """Raise Error for a column of text and an input of numbers, or the other way round."""
    if not column.size:
        return
    first = np.asarray(column[0])
    is_text = first.dtype.kind in "US" or (first.dtype == object and isinstance(next(first.flat, None), (str, bytes)))
    kind = port.element_type.get_type_name()
    if is_text != (kind == "string"):
        raise Error(
            f"column '{name}' has {'text' if is_text else 'numbers'}, but the input '{port_name(port)}' is of "
            f"type {kind}"
        )


def column_values(port: ConstOutput, array: Array) -> Array:
    """Return an output in a type that Arrow has: floats of 8 bits and bf16 become f32; strings are text, or bytes if
    one of them is no UTF-8."""
    kind: Type = getattr(Type, port.element_type.get_type_name())
    if kind is Type.string:
        return _texts(array)
    if kind in ARROW_TYPES:
        return array
    return array.view(kind.storage).astype(np.float32)  # results show the bits of bf16 as float16


def _texts(array: Array) -> Array:
    try:
        texts = [element.decode() for element in array.flat]
    except UnicodeDecodeError:
        return array
    found = np.empty(len(texts), object)
    found[:] = texts
    return found.reshape(array.shape)


def no_rows(port: ConstOutput, batch_axis: int | None, has_steps: bool) -> Array:
    """Return an output of no rows. Dynamic extents are 0, and so is the number of steps, whose axis is in front."""
    shape = [] if port.partial_shape.rank.is_dynamic else list(port.partial_shape)
    extents = [d.get_length() if d.is_static else 0 for axis, d in enumerate(shape) if axis != batch_axis]
    kind: Type = getattr(Type, port.element_type.get_type_name())
    return column_values(port, np.empty((0, *[0] * has_steps, *extents), kind.storage))


def row_groups(columns: Mapping[int, Array], rows: int) -> Iterator[tuple[Array, dict[int, Array]]]:
    """Yield (row numbers, stacked values of these rows) of the rows whose values have equal shapes.

    Columns of lists and of tensors of different shapes have objects as elements.
    """
    ragged = {
        number: [np.asarray(value) for value in column] for number, column in columns.items() if column.dtype == object
    }
    groups: dict[Any, list[int]] = {}
    for row in range(rows):
        groups.setdefault(tuple(values[row].shape for values in ragged.values()), []).append(row)
    for members in groups.values():
        chosen = np.array(members)
        yield (
            chosen,
            {
                number: np.stack([ragged[number][row] for row in members])
                if number in ragged
                else column
                if len(members) == rows
                else column[chosen]
                for number, column in columns.items()
            },
        )


def assembled(parts: Sequence[tuple[Array, Array]], rows: int) -> Array:
    """Return a column of parts (numbers of rows, their values): an array, or objects if the shapes differ."""
    if len({values.shape[1:] for _, values in parts}) == 1:
        column = np.empty((rows, *parts[0][1].shape[1:]), np.result_type(*{values.dtype for _, values in parts}))
        for chosen, values in parts:
            column[chosen] = values
        return column
    column = np.empty(rows, object)
    for chosen, values in parts:
        for row, value in zip(chosen, values):
            column[row] = value
    return column


def stacked(values: Sequence[Array]) -> Array:
    """Return arrays as elements of one array: of objects if their shapes differ."""
    return assembled([(np.array([i]), value[None]) for i, value in enumerate(values)], len(values))


def row_count(columns: Mapping[int, Array]) -> int:
    """Return the number of rows. Raise Error for columns that are no arrays of equally many rows."""
    counts = {len(column) for column in columns.values()}
    if len(counts) != 1:
        raise Error(
            "the model has no inputs that are columns"
            if not counts
            else f"the columns have {' and '.join(map(str, sorted(counts)))} rows"
        )
    return counts.pop()


def port_name(port: ConstOutput) -> str:
    """Return the name of a port: the first of its tensor's names, or that of its node."""
    return min(port.get_names(), default=port.node.friendly_name)


def _number(ports: Sequence[ConstOutput], key: Any) -> int:
    for number, port in enumerate(ports):
        if key in (number, port.node.friendly_name) or key in port.get_names():
            return number
    raise Error(f"the model has no port {key!r}; it has {', '.join(map(port_name, ports))}")
