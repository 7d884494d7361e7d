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

    ``inputs`` and ``outputs`` map ports, by name or index, to columns. Inputs in ``constants`` have no columns. Inputs
    in ``optional``, by index, have columns only if ``inputs`` maps them. ``keep`` lists the columns that results have
    besides the outputs, by default those that are no inputs.

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
        self.constants = {_port_index(compiled.inputs, key): value for key, value in constants.items()}
        named = {_port_index(compiled.inputs, key): column for key, column in (inputs or {}).items()}
        self._inputs = {
            i: (named.get(i), port)
            for i, port in enumerate(compiled.inputs)
            if i not in self.constants and (i in named or i not in optional)
        }
        self.outputs = (
            {i: port_name(port) for i, port in enumerate(ports)}
            if outputs is None
            else {_port_index(ports, key): column for key, column in outputs.items()}
        )
        doubled = {name for name in self.outputs.values() if list(self.outputs.values()).count(name) > 1}
        if doubled:
            raise Error(f"several outputs would be column '{min(doubled)}'")
        for i in self.outputs:
            dtype: Type = getattr(Type, ports[i].element_type.get_type_name())
            if dtype.packed:
                raise Error(
                    f"output '{port_name(ports[i])}' has the type {dtype.get_type_name()}, of which no "
                    f"column can be: name others in 'outputs'"
                )
        self._keep = keep

    def inputs(self, batch: Mapping[str, Array]) -> tuple[dict[int, Array], Batch]:
        """Return the columns of the inputs by index, and the columns that are kept.

        Raises: Error if a column is missing, if it has text for an input of numbers or numbers for an input of text, or
        if a kept column has the name of an output.
        """
        if not isinstance(batch, Mapping):
            raise TypeError(f"a batch is a dict of arrays, not {type(batch).__name__}: use batch_format='numpy'")
        for name, column in batch.items():
            if not isinstance(column, np.ndarray) or not column.ndim:
                raise TypeError(f"column '{name}' is no array of rows, but {type(column).__name__}")
        names = {i: self._column(given, port, batch) for i, (given, port) in self._inputs.items()}
        for i, name in names.items():
            _check_kind(name, batch[name], self._inputs[i][1])
        kept = [name for name in batch if name not in names.values()] if self._keep is None else self._keep
        for name in kept:
            if name not in batch:
                raise Error(f"the batch has no column '{name}' to keep; it has {', '.join(batch)}")
            if name in self.outputs.values():
                raise Error(
                    f"column '{name}' would be replaced by an output: leave it out of 'keep', or give the "
                    f"output another column in 'outputs'"
                )
        return {i: batch[name] for i, name in names.items()}, {name: batch[name] for name in kept}

    def _column(self, given: str | None, port: ConstOutput, batch: Mapping[str, Array]) -> str:
        """Return the name of an input's column: the one ``given``, or one of the port's names, or the only column."""
        candidates = [given] if given is not None else [port_name(port), *sorted(port.get_names())]
        name = next((name for name in candidates if name in batch), None)
        if name is None and given is None and len(self._inputs) == 1 and len(batch) == 1:
            return next(iter(batch))
        if name is None:
            raise Error(
                f"the batch has no column '{candidates[0]}' for the input of that name; it has "
                f"{', '.join(batch) or 'none'}: name the columns in 'inputs'"
            )
        return name


def _check_kind(name: str, column: Array, port: ConstOutput) -> None:
    """Raise Error for a column of text and an input of numbers, or the other way round."""
    if not column.size:
        return
    first = np.asarray(column[0])
    is_text = first.dtype.kind in "US" or (first.dtype == object and isinstance(next(first.flat, None), (str, bytes)))
    dtype = port.element_type.get_type_name()
    if is_text != (dtype == "string"):
        raise Error(
            f"column '{name}' has {'text' if is_text else 'numbers'}, but the input '{port_name(port)}' is of "
            f"type {dtype}"
        )


def column_values(port: ConstOutput, array: Array) -> Array:
    """Return an output in a type that Arrow has. Floats of 8 bits and bf16 become f32. Strings become text, or stay
    bytes if one of them is no UTF-8."""
    dtype: Type = getattr(Type, port.element_type.get_type_name())
    if dtype is Type.string:
        return _texts(array)
    if dtype in ARROW_TYPES:
        return array
    return array.view(dtype.storage).astype(np.float32)  # results show the bits of bf16 as float16


def _texts(array: Array) -> Array:
    try:
        decoded = [element.decode() for element in array.flat]
    except UnicodeDecodeError:
        return array
    texts = np.empty(len(decoded), object)
    texts[:] = decoded
    return texts.reshape(array.shape)


def no_rows(port: ConstOutput, batch_axis: int | None, has_steps: bool) -> Array:
    """Return an output with zero rows. Dynamic extents are 0, and so is the number of steps, the extent of axis 1."""
    shape = [] if port.partial_shape.rank.is_dynamic else list(port.partial_shape)
    extents = [d.get_length() if d.is_static else 0 for axis, d in enumerate(shape) if axis != batch_axis]
    dtype: Type = getattr(Type, port.element_type.get_type_name())
    return column_values(port, np.empty((0, *[0] * has_steps, *extents), dtype.storage))


def row_groups(columns: Mapping[int, Array], rows: int) -> Iterator[tuple[Array, dict[int, Array]]]:
    """Yield (indices of rows, stacked values of these rows) for each group of rows whose values have equal shapes.

    Columns of lists, and of tensors of different shapes, are arrays of objects.
    """
    ragged = {i: [np.asarray(value) for value in column] for i, column in columns.items() if column.dtype == object}
    groups: dict[Any, list[int]] = {}
    for row in range(rows):
        groups.setdefault(tuple(values[row].shape for values in ragged.values()), []).append(row)
    for members in groups.values():
        chosen = np.array(members)
        yield (
            chosen,
            {
                i: np.stack([ragged[i][row] for row in members])
                if i in ragged
                else column
                if len(members) == rows
                else column[chosen]
                for i, column in columns.items()
            },
        )


def assembled(parts: Sequence[tuple[Array, Array]], rows: int) -> Array:
    """Return a column made of parts (indices of rows, their values). It has objects as elements if shapes differ."""
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
    """Return an array with these arrays as elements. It is an array of objects if their shapes differ."""
    return assembled([(np.array([i]), value[None]) for i, value in enumerate(values)], len(values))


def row_count(columns: Mapping[int, Array]) -> int:
    """Return the number of rows of columns. Raise Error if it differs between them, or if there are no columns."""
    counts = {len(column) for column in columns.values()}
    if len(counts) != 1:
        raise Error(
            "the model has no inputs that are columns"
            if not counts
            else f"the columns have {' and '.join(map(str, sorted(counts)))} rows"
        )
    return counts.pop()


def port_name(port: ConstOutput) -> str:
    """Return the name of a port: the alphabetically first name of its tensor, or the name of its node."""
    return min(port.get_names(), default=port.node.friendly_name)


def _port_index(ports: Sequence[ConstOutput], key: Any) -> int:
    for i, port in enumerate(ports):
        if key in (i, port.node.friendly_name) or key in port.get_names():
            return i
    raise Error(f"the model has no port {key!r}; it has {', '.join(map(port_name, ports))}")
