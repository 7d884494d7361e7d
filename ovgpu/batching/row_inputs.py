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
from ovgpu.request.results import OVDict
from ovgpu.tensor import Tensor, on_device

MAX_CACHED = 16  # batches whose stacked arrays are kept, by number of rows and shapes


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
        self._check(array.shape)
        return np.array(array, array.dtype if self._dtype is None else self._dtype, order="C")

    def _check_host(self, source: Any) -> None:
        if on_device(source):
            raise Error(
                f"[Parameter] the array is on a CUDA device: rows are gathered on the host "
                f"({self.port.node.source_location})"
            )


class RowInputs:
    """Converter of the inputs of rows, and the arrays into which rows are stacked."""

    def __init__(self, ports: PortList, batched: BatchedModel, unstacked: Collection[int] = ()) -> None:
        self._ports, self._batched, self._unstacked = ports, batched, unstacked
        self._converters = [_RowInput(port) for port in ports]
        self._axes = batched.inputs
        self._dims = [(key, axis) for key, axis in batched.dims if isinstance(key, int)]
        self._stacked: dict[Hashable, list[Any]] = {}

    def convert(self, inputs: Any, most: int) -> tuple[list[Any], int, Hashable]:
        """Return the inputs as arrays, their number of rows (at most ``most``), and a key.

        Inputs with the same key can be stacked in one batch.

        Raises: RuntimeError or TypeError for inputs that do not fit the model, or that are missing.
        """
        given = dict(numbered(self._ports, inputs))
        arrays: list[Any] = [None] * len(self._converters)
        rows, key = 0, list[Any]()
        for i, (converter, axis) in enumerate(zip(self._converters, self._axes)):
            if i == self._batched.beams:
                self._check_beams(given.get(i))
                continue
            if i not in given:
                raise Error(f"[Parameter] the input has no value ({converter.port.node.source_location})")
            array = arrays[i] = converter.array(given[i])
            if axis is None:
                key.append((array.shape, array.tobytes()))
                continue
            count = array.shape[axis]
            rows = rows or count
            if count != rows or not 0 < count <= most:
                span = "1" if most == 1 else f"1 to {most}"
                allowed = span if count == rows else f"{rows}, as in another input"
                raise Error(
                    f"[Parameter] the extent of batch axis {axis} is {count}, but must be {allowed} "
                    f"({converter.port.node.source_location})"
                )
            if i not in self._unstacked:
                key.append((*array.shape[:axis], *array.shape[axis + 1 :]))
        if len(self._dims) == len(self._batched.dims):  # otherwise `CacheRequest` checks, which knows states' lengths
            self._batched.check([arrays[i].shape[axis] for i, axis in self._dims])
        return arrays, rows, tuple(key)

    def _check_beams(self, value: Any) -> None:
        if value is not None and any(np.asarray(value).ravel()):
            raise Error("the beams of a sequence in a batch are 0: each sequence continues its own state")

    def stack(self, parts: Sequence[tuple[int, Sequence[Any]]], rows: int, key: Hashable) -> dict[int, Any]:
        """Return arrays of ``rows`` rows, by index of the input.

        ``parts`` are pairs (first row, arrays of all inputs). Rows that belong to no part repeat the first row of the
        first part, whose values are valid. The next call with the same ``rows`` and ``key`` overwrites the arrays.
        """
        stacked = self._stacked.get((rows, key))
        if stacked is None:
            stacked = self._stacked[rows, key] = [self._empty(i, array, rows) for i, array in enumerate(parts[0][1])]
            if len(self._stacked) > MAX_CACHED:
                del self._stacked[next(iter(self._stacked))]
        for i, (target, axis) in enumerate(zip(stacked, self._axes)):
            valid = parts[0][1][i]
            if valid is None or target is None or axis is None:
                continue
            free = np.ones(rows, bool)
            for first, arrays in parts:
                end = first + arrays[i].shape[axis]
                target[part(axis, slice(first, end))] = arrays[i]
                free[first:end] = False
            if free.any():
                target[part(axis, free)] = valid[part(axis, slice(0, 1))]
        return {
            i: parts[0][1][i] if array is None else array for i, array in enumerate(stacked) if i not in self._unstacked
        }

    def _empty(self, input_index: int, array: Any, rows: int) -> Any:
        """Return an array for ``rows`` rows of an input, or None if its arrays are not stacked."""
        axis = self._axes[input_index]
        if array is None:  # beams: every row continues its own state
            return np.arange(rows, dtype=self._ports[input_index].element_type.storage)
        if axis is None or input_index in self._unstacked:
            return None  # all rows share one value, or each row keeps its own array
        return host_memory.empty((*array.shape[:axis], rows, *array.shape[axis + 1 :]), array.dtype)


class RowOutputs:
    """Outputs of a batch, from which the outputs of single works are copied."""

    def __init__(self, ports: Sequence[ConstOutput], batched: BatchedModel) -> None:
        self._ports, self._axes = ports, batched.outputs

    def rows(self, outputs: Sequence[Any], first: int, count: int) -> OVDict:
        """Return copies of ``count`` rows of the outputs, from row ``first`` on."""
        return OVDict(
            {
                port: np.array(array[part(axis, slice(first, first + count))])
                for port, array, axis in zip(self._ports, outputs, self._axes)
            }
        )


def part(axis: int, index: Any) -> tuple[Any, ...]:
    """Return the index of a part of an array along an axis."""
    return (*(slice(None),) * axis, index)
