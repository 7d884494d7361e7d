"""Conversion and stacking of the inputs of a batch's rows, and copies of their outputs."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any

import numpy as np

from ovgpu._util import host_memory
from ovgpu.batching.model import BatchedModel
from ovgpu.compile.ports import ConstOutput, PortList
from ovgpu.errors import Error
from ovgpu.request.inputs import RequestInput, numbered
from ovgpu.request.results import OutputKeys, OVDict
from ovgpu.tensor import Tensor, on_device
from ovgpu.types import Type

MAX_CACHED = 16  # batches whose stacked arrays are kept, by number of rows and shapes
MAX_CHECKED = 4096  # shapes of all inputs that are known to fit the model

Extents = tuple[int, ...]
Shapes = list[Extents]


class _RowInput(RequestInput):
    """Converter of the values of one input."""

    def array(self, value: Any) -> np.ndarray[Any, Any]:
        """Return a copy of a value as an array of the input's type. Raises errors as `RequestInput.set` does."""
        if isinstance(value, Tensor):
            if self._element_type is not None and value.element_type is not self._element_type:
                raise Error(
                    f"[Parameter] the tensor has type {value.element_type.get_type_name()}, the input "
                    f"{self._element_type.get_type_name()} ({self.port.node.source_location})"
                )
            self._check_host(value)
            array = value.array
        else:
            array = self._converted(value)
        self.check(array.shape)
        return np.array(array, array.dtype if self._dtype is None else self._dtype, order="C")

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise Error for a shape that the input cannot have."""
        self._check(shape)

    @property
    def plain_type(self) -> np.dtype[Any] | None:
        """The type of arrays that need no conversion, None if there is none."""
        element_type = self._element_type
        plain = element_type is not None and not element_type.packed and element_type is not Type.string
        return self._dtype if plain else None

    def _check_host(self, source: Any) -> None:
        if on_device(source):
            raise Error(
                f"[Parameter] the array is on a CUDA device: rows are gathered on the host "
                f"({self.port.node.source_location})"
            )


class RowInputs:
    """Converter of the inputs of rows, and the arrays into which rows are stacked.

    Works have at most ``most`` rows. Arrays of inputs in ``unstacked`` stay apart, one for each row.

    NOTE: `convert` runs once for each row, so that its usual case is short: arrays of the right types, and of shapes
    that were checked before.
    """

    def __init__(self, ports: PortList, batched: BatchedModel, most: int, unstacked: Collection[int] = ()) -> None:
        self._ports, self._batched, self._most, self._unstacked = ports, batched, most, unstacked
        self._converters = [_RowInput(port) for port in ports]
        self._types = [converter.plain_type for converter in self._converters]
        self._indices: dict[Any, int] = {index: index for index in range(len(ports))}
        for index, port in enumerate(ports):
            self._indices.update(dict.fromkeys(port.get_names(), index))
        self._axes, self._shared = batched.inputs, [i for i, axis in enumerate(batched.inputs) if axis is None]
        self._beams = batched.beams
        self._own_beam = None if self._beams is None else np.zeros(1, ports[self._beams].element_type.storage)
        self._dims = [(key, axis) for key, axis in batched.dims if isinstance(key, int)]
        # The number of rows and the key, by the shapes of the inputs; and the last shapes with these.
        self._checked: dict[tuple[Extents, ...], tuple[int, Hashable]] = {}
        self._last: tuple[Shapes | None, tuple[int, Hashable]] = None, (0, None)
        self._stacked: dict[Hashable, list[Any]] = {}

    def convert(self, inputs: Any) -> tuple[list[Any], int, Hashable]:
        """Return copies of the inputs as arrays, their number of rows, and a key.

        Inputs with the same key can be stacked in one batch.

        Raises: RuntimeError or TypeError for inputs that do not fit the model, or that are missing.
        """
        plain = self.plain(inputs, True)
        if plain is None:
            arrays = self._converted(inputs)
            shapes = [array.shape for array in arrays]
        else:
            arrays, shapes = plain
        known, found = self._last
        rows, key = found if known == shapes else self.check(shapes)
        if self._shared:
            key = (key, *[arrays[i].tobytes() for i in self._shared])
        return arrays, rows, key

    def plain(self, inputs: Any, copy: bool) -> tuple[list[Any], Shapes] | None:
        """Return the inputs by index, or copies of them, and their shapes, if all are arrays of the inputs' types.

        Return None for any other inputs, which `convert` converts or refuses.
        """
        beams = self._beams
        if inputs.__class__ is dict:
            values: list[Any] = [None] * len(self._types)
            indices = self._indices
            for name, value in inputs.items():
                index = indices.get(name) if name.__class__ is str or name.__class__ is int else None
                if index is None:
                    return None
                values[index] = value
        else:
            values = list(inputs) if inputs.__class__ is list or inputs.__class__ is tuple else [inputs]
            if len(values) != len(self._types):
                return None
        if beams is not None:
            if values[beams] is not None:
                self._check_beams(values[beams])
            values[beams] = self._own_beam
        shapes: Shapes = []
        for index, dtype in enumerate(self._types):
            value = values[index]
            if value.__class__ is not np.ndarray or not value.ndim:
                return None
            if value.dtype is not dtype and (dtype is None or value.dtype != dtype):  # pickled arrays have equal types
                return None
            shapes.append(value.shape)
            if copy and index != beams:
                values[index] = value.copy()
        return values, shapes

    def check(self, shapes: Shapes) -> tuple[int, Hashable]:
        """Return the number of rows of inputs of these shapes, and a key without the values that rows share.

        Raises: RuntimeError for shapes that do not fit the model.
        """
        known, found = self._last
        if known == shapes:
            return found
        found = self._checked.get(tuple(shapes)) or self._check(shapes)
        self._last = shapes, found
        return found

    def _check(self, shapes: Shapes) -> tuple[int, Hashable]:
        rows, key = 0, list[Any]()
        for i, (converter, axis, shape) in enumerate(zip(self._converters, self._axes, shapes)):
            if i == self._beams:
                continue
            converter.check(shape)
            if axis is None:
                key.append(shape)
                continue
            count = shape[axis]
            rows = rows or count
            if count != rows or not 0 < count <= self._most:
                span = "1" if self._most == 1 else f"1 to {self._most}"
                allowed = span if count == rows else f"{rows}, as in another input"
                raise Error(
                    f"[Parameter] the extent of batch axis {axis} is {count}, but must be {allowed} "
                    f"({converter.port.node.source_location})"
                )
            if i not in self._unstacked:
                key.append((*shape[:axis], *shape[axis + 1 :]))
        if len(self._dims) == len(self._batched.dims):  # otherwise `PagedRequest` checks, which knows states' lengths
            self._batched.check([shapes[i][axis] for i, axis in self._dims])
        if len(self._checked) >= MAX_CHECKED:
            self._checked.clear()
        self._checked[tuple(shapes)] = rows, tuple(key)
        return rows, tuple(key)

    def _converted(self, inputs: Any) -> list[Any]:
        """Return copies of the inputs, converted to the inputs' types, by index."""
        given = dict(numbered(self._ports, inputs))
        arrays: list[Any] = [None] * len(self._converters)
        for i, converter in enumerate(self._converters):
            if i == self._beams:
                if given.get(i) is not None:
                    self._check_beams(given[i])
                arrays[i] = self._own_beam
            elif i not in given:
                raise Error(f"[Parameter] the input has no value ({converter.port.node.source_location})")
            else:
                arrays[i] = converter.array(given[i])
        return arrays

    def _check_beams(self, value: Any) -> None:
        if value.item() if value.__class__ is np.ndarray and value.size == 1 else np.asarray(value).any():
            raise Error("the beams of a sequence in a batch are 0: each sequence continues its own state")

    def stack(
        self, parts: Sequence[Sequence[Any]], rows: int, key: Hashable, places: Sequence[int] | None = None
    ) -> list[Any]:
        """Return arrays of ``rows`` rows, by index of the input; None for inputs that are not stacked.

        ``parts`` are arrays of all inputs. Their rows lie one behind the other, or, if each has one, at ``places``. The
        remaining rows repeat the first row of the first part, whose values are valid. The next call with the same
        ``rows`` and ``key`` overwrites the arrays.
        """
        stacked = self._stacked.get((rows, key))
        if stacked is None:
            stacked = self._stacked[rows, key] = [self._empty(i, array, rows) for i, array in enumerate(parts[0])]
            if len(self._stacked) > MAX_CACHED:
                del self._stacked[next(iter(self._stacked))]
        if places is not None and places == list(range(len(places))):
            places = None
        found = stacked.copy()
        for i, (target, axis) in enumerate(zip(stacked, self._axes)):
            if target is None:
                found[i] = None if i in self._unstacked else parts[0][i]
            elif i != self._beams:
                assert axis is not None
                _fill(target, axis, [arrays[i] for arrays in parts], places)
        return found

    def _empty(self, input_index: int, array: Any, rows: int) -> Any:
        """Return an array for ``rows`` rows of an input, or None if its arrays are not stacked."""
        axis = self._axes[input_index]
        if input_index == self._beams:  # every row continues its own state
            return np.arange(rows, dtype=self._ports[input_index].element_type.storage)
        if axis is None or input_index in self._unstacked:
            return None  # all rows share one value, or each row keeps its own array
        return host_memory.empty((*array.shape[:axis], rows, *array.shape[axis + 1 :]), array.dtype)


class RowOutputs:
    """Outputs of a batch as the outputs of single works.

    They are views of the batch's arrays if its rows lie on the first axis, else copies. A view keeps the whole array.
    """

    def __init__(self, ports: Sequence[ConstOutput], batched: BatchedModel) -> None:
        self._keys, self._axes = OutputKeys(ports), batched.outputs

    def of(self, outputs: Sequence[Any], starts: Sequence[int], counts: Sequence[int]) -> list[OVDict]:
        """Return ``counts`` rows of the outputs from row ``starts`` on, for each work."""
        slices = [slice(start, start + count) for start, count in zip(starts, counts)]
        columns = [
            [array[part(axis, rows)].copy() for rows in slices] if axis else [array[rows] for rows in slices]
            for array, axis in zip(outputs, self._axes)
        ]
        return [OVDict(self._keys, values) for values in (zip(*columns) if columns else [()] * len(slices))]

    def single(self, outputs: Sequence[Any], rows: Sequence[int]) -> list[OVDict]:
        """Return one row of the outputs for each work."""
        if any(self._axes):
            return self.of(outputs, rows, [1] * len(rows))
        # Unlike np.newaxis, a reshape gives the axis of extent 1 the stride that consumers of DLPack expect.
        columns = [array.reshape(len(array), 1, *array.shape[1:]) for array in outputs]
        each = list(zip(*columns)) or [()] * (max(rows) + 1)
        return [OVDict(self._keys, each[row]) for row in rows]


def _fill(target: Any, axis: int, arrays: Sequence[Any], places: Sequence[int] | None) -> None:
    """Copy rows to ``target``, one behind the other or at ``places``. The other rows repeat the first row."""
    rows = target.shape[axis]
    if places is None:
        count = len(arrays) if len(arrays) == rows else sum([array.shape[axis] for array in arrays])
        np.concatenate(arrays, axis, out=target if count == rows else target[part(axis, slice(count))])
        free: Any = slice(count, None)
    else:
        target[part(axis, places)] = np.concatenate(arrays, axis)
        count, free = len(places), np.ones(rows, bool)
        free[places] = False
    if count < rows:
        target[part(axis, free)] = arrays[0][part(axis, slice(0, 1))]


def part(axis: int, index: Any) -> tuple[Any, ...]:
    """Return the index of a part of an array along an axis."""
    return (*(slice(None),) * axis, index)
