"""Class BatchRequest: a request for a batch of rows, whose variables have one state per row."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ovgpu.api.infer_request import InferRequest
from ovgpu.batching.model import BatchedModel
from ovgpu.batching.row_inputs import part
from ovgpu.compile.compilation import Compilation
from ovgpu.errors import Error
from ovgpu.ops.base.op import Array
from ovgpu.ops.fused.copy_rows import CopyRows
from ovgpu.request.device_io import backend_array, tensor_copy
from ovgpu.runtime.state import Snapshot
from ovgpu.tensor import Tensor

RowPairs = Sequence[tuple[int, int]]


class BatchRequest(InferRequest):
    """Request that runs a batch of ``rows`` rows. Rows that are not active in an inference keep their states.

    Before an inference, `resize` sets the number of rows. One thread at a time may use it.
    """

    def __init__(self, compilation: Compilation, batched: BatchedModel) -> None:
        super().__init__(compilation)
        self._batch_axes, self._decode_strings = batched.variables, batched.decode_strings
        self.rows = 0
        self._active: frozenset[int] = frozenset()
        self._starting: frozenset[int] = frozenset()
        self.unstacked: frozenset[int] = frozenset()  # numbers of inputs of which each row has its own, of any shape
        self.check_states()

    def check_states(self) -> None:
        """Raise Error unless all states have fixed sizes."""
        for name, variable in self._variables.all.items():
            shape = variable.info.shape
            if any(d.is_dynamic for axis, d in enumerate(shape) if axis != self._batch_axes[name]):
                raise Error(
                    f"variable '{name}' has shape {shape}: sequences share a batch only if their states have "
                    f"fixed sizes"
                )

    def infer_rows(
        self, inputs: Mapping[int, Any], active: Mapping[int, Sequence[Any]], begun: Collection[int]
    ) -> list[Any]:
        """Run the batch. Return the outputs as arrays that the next inference overwrites.

        States change in the rows that are ``active``, which have these inputs of their own. Rows that have ``begun``
        have a state from before; others that are active begin with the initial state. If the inference fails, all
        states stay as they were.
        """
        self._active = frozenset(active)
        self._starting = self._active.difference(begun)
        found = self.infer(inputs, not self._backend.remote, True, decode_strings=self._decode_strings)
        return list(found.to_tuple())

    def _run(self) -> Snapshot:
        if self._starting:
            with self._backend.active():
                self._start_rows()
        after = super()._run()
        idle = [row for row in range(self.rows) if row not in self._active]
        changed = [
            (name, old.array, new.array)
            for name, old, new in zip(self._variables.all, self._variables.now.values, after.values)
            if new.array is not old.array
        ]
        if idle and changed:
            with self._backend.active():
                self._copy_rows(changed, [(row, row) for row in idle])
        return after

    def _start_rows(self) -> None:
        """Set the rows that are starting to their initial states."""
        values = self._initial_values()
        rows = sorted(self._starting)
        for single in (True, False):
            copies = [
                (name, value, self._value(name))
                for name, value in values.items()
                if (value.shape[self._batch_axes[name]] == 1) == single
            ]
            if copies:
                self._copy_rows(copies, [(0 if single else row, row) for row in rows])

    def _initial_values(self) -> dict[str, Array]:
        """Return the initial values of all variables, with one row, or one for each row of the batch."""
        arrays = self._read_inputs()
        pairs = [slot.pair(array) for slot, array in zip(self._inputs, arrays)]
        hosts = [pair.host for pair in pairs] if self._backend.remote else None
        initial = self._initial.compute([pair.device for pair in pairs], hosts)
        return {name: self._with_rows(name, initial(name)) for name in self._variables.all}

    def _value(self, name: str) -> Array:
        """Return the current value of a variable, of all rows."""
        return self._variables.value(name).array

    def _with_rows(self, name: str, value: Array) -> Array:
        """Return an initial value with at least one row: a variable without an initial value has none."""
        axis = self._batch_axes[name]
        if value.shape[axis]:
            return value
        zeros: Array = self._backend.xp.zeros((*value.shape[:axis], 1, *value.shape[axis + 1 :]), value.dtype)
        return zeros

    def _copy_rows(self, copies: Sequence[tuple[str, Array, Array]], rows: RowPairs) -> None:
        """Copy rows from one array to another, for several variables."""
        op = CopyRows(axes=tuple([self._batch_axes[name] for name, _, _ in copies]), rows=tuple(rows))
        for call in self._backend.bind(op, [array for _, *pair in copies for array in pair], (), (), ()):
            call()

    def resize(self, rows: int, moves: RowPairs) -> None:
        """Change the number of rows. ``moves`` are pairs of the old and the new number of a row that is kept."""
        with self._backend.active():
            initial = self._initial.compute(None)
            new: dict[str, Array] = {}
            for name in self._variables.all:
                first = self._with_rows(name, initial(name))
                axis = self._batch_axes[name]
                shape = (*first.shape[:axis], rows, *first.shape[axis + 1 :])
                new[name] = self._backend.xp.empty(shape, first.dtype)
                for call in self._backend.copy(first[part(axis, slice(0, 1))], new[name]):
                    call()
            if moves and new:
                self._copy_rows([(name, self._value(name), array) for name, array in new.items()], moves)
            for name, array in new.items():
                self._variables.set(name, array)
            self._backend.synchronize()
        self.rows = rows

    @property
    def is_remote(self) -> bool:
        """True if the states are on a card."""
        return self._backend.remote

    def update(self) -> None:
        """Take the compilation that the model has now: another request may have left the range of f16."""
        if self._compilation.current is not self._compilation:
            self._change_to(self._compilation.current)

    def copy_states(self, source: BatchRequest, rows: RowPairs) -> None:
        """Copy states of another request: ``rows`` are pairs of the row there and the row here."""
        self.update()
        source.update()
        with self._backend.active():
            if rows and self._variables.all:
                self._copy_rows([(name, source._value(name), self._value(name)) for name in self._variables.all], rows)
                self._backend.synchronize()

    def read_row(self, row: int | None) -> dict[str, Tensor]:
        """Return a copy of one row's state by variable, or the initial state if ``row`` is None."""
        self._check_idle()
        found = {}
        with self._backend.active():
            initial = self._initial.compute(None)
            for name, variable in self._variables.all.items():
                axis = self._batch_axes[name]
                value = (
                    self._value(name)[part(axis, slice(row, row + 1))]
                    if row is not None
                    else self._with_rows(name, initial(name))
                )
                found[name] = tensor_copy(*variable.in_public_type(value), self._backend)
        return found

    def write_row(self, row: int, state: Mapping[str, Any]) -> None:
        """Set one row's state from tensors or arrays of one row, of all variables."""
        self._check_idle()
        copies = []
        with self._backend.active():
            for name, variable in self._variables.all.items():
                if name not in state:
                    raise Error(f"the state has no value of variable '{name}'")
                given = state[name]
                value = variable.accept(
                    backend_array(given if isinstance(given, Tensor) else Tensor(given), self._backend)
                )
                target, axis = self._value(name), self._batch_axes[name]
                if value.shape != (*target.shape[:axis], 1, *target.shape[axis + 1 :]):
                    raise Error(
                        f"variable '{name}' has shape {list(target.shape)} with {self.rows} rows, the new "
                        f"value of one row {list(value.shape)}"
                    )
                copies.append((name, value, target))
            self._copy_rows(copies, [(0, row)])
            self._backend.synchronize()
