"""Class BatchRequest: a request for a batch of rows, whose variables have one state per row."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ovgpu.batching.model import BatchedModel
from ovgpu.batching.row_inputs import part
from ovgpu.compile.compilation import Compilation
from ovgpu.errors import Error
from ovgpu.ops.base.op import Array
from ovgpu.ops.fused.copy_rows import CopyRows
from ovgpu.request.device_io import backend_array, tensor_copy
from ovgpu.request.session import Session
from ovgpu.tensor import Tensor

RowPairs = Sequence[tuple[int, int]]


class BatchRequest:
    """Request that runs a batch of ``rows`` rows. Rows that are not active in an inference keep their states.

    Before an inference, `resize` sets the number of rows. One thread at a time may use it.
    """

    def __init__(self, compilation: Compilation, batched: BatchedModel) -> None:
        self.session = Session(compilation)
        self.batched = batched
        self.rows = 0
        self.unstacked: frozenset[int] = frozenset()  # inputs (by index) whose arrays stay apart, one for each row
        self.check_states()

    def check_states(self) -> None:
        """Raise Error unless all states have fixed sizes."""
        for name, variable in self.session.variables.all.items():
            shape = variable.info.shape
            if any(d.is_dynamic for axis, d in enumerate(shape) if axis != self.batched.variables[name]):
                raise Error(
                    f"variable '{name}' has shape {shape}: sequences share a batch only if their states have "
                    f"fixed sizes"
                )

    def infer_rows(
        self, inputs: Mapping[int, Any], active: Mapping[int, Sequence[Any]], begun: Collection[int]
    ) -> list[Any]:
        """Run the batch. Return the outputs as arrays that the next inference overwrites.

        ``inputs`` are stacked. ``active`` has, by row, the own inputs of the rows whose states change. Active rows in
        ``begun`` continue their states, the others begin with the initial state. If the inference fails, all states
        stay as they were.
        """
        session = self.session
        session.set_inputs(inputs, not session.backend.remote)
        session.wait_for_producers()
        starting = sorted(set(active).difference(begun))
        if starting:
            with session.backend.active():
                self._start_rows(starting)
        after = session.run()
        idle = [row for row in range(self.rows) if row not in active]
        changed = [
            (name, old.array, new.array)
            for name, old, new in zip(session.variables.all, session.state.values, after.values)
            if new.array is not old.array
        ]
        if idle and changed:  # the inference has changed the states of idle rows as well: copy the old ones back
            with session.backend.active():
                self._copy_rows(changed, [(row, row) for row in idle])
        results = session.results(True, self.batched.decode_strings)
        session.state = after
        return list(results.to_tuple())

    def _start_rows(self, rows: Sequence[int]) -> None:
        """Set rows to their initial states. An initial value has one row, or as many rows as the batch."""
        initial = self.session.initial_values()
        values = {name: self._with_rows(name, initial(name)) for name in self.session.variables.all}
        for single in (True, False):
            copies = [
                (name, value, self._value(name))
                for name, value in values.items()
                if (value.shape[self.batched.variables[name]] == 1) == single
            ]
            if copies:
                self._copy_rows(copies, [(0 if single else row, row) for row in rows])

    def _value(self, name: str) -> Array:
        """Return the current value of a variable, of all rows."""
        return self.session.variables.value(name).array

    def _with_rows(self, name: str, value: Array) -> Array:
        """Return an initial value with at least one row. That of a variable without an initial value has no rows, and
        becomes zeros."""
        axis = self.batched.variables[name]
        if value.shape[axis]:
            return value
        zeros: Array = self.session.backend.xp.zeros((*value.shape[:axis], 1, *value.shape[axis + 1 :]), value.dtype)
        return zeros

    def _copy_rows(self, copies: Sequence[tuple[str, Array, Array]], rows: RowPairs) -> None:
        """Copy rows between arrays.

        ``copies`` are triples (id of a variable, source, target), ``rows`` pairs (row of a source, row of its target).
        """
        op = CopyRows(axes=tuple([self.batched.variables[name] for name, _, _ in copies]), rows=tuple(rows))
        for call in self.session.backend.bind(op, [array for _, *pair in copies for array in pair], (), (), ()):
            call()

    def resize(self, rows: int, moves: RowPairs) -> None:
        """Change the number of rows. ``moves`` are pairs (old row, new row) for the rows whose states are kept."""
        with self.session.backend.active():
            initial = self.session.initial.compute(None)
            new: dict[str, Array] = {}
            for name in self.session.variables.all:
                first = self._with_rows(name, initial(name))
                axis = self.batched.variables[name]
                shape = (*first.shape[:axis], rows, *first.shape[axis + 1 :])
                new[name] = self.session.backend.xp.empty(shape, first.dtype)
                for call in self.session.backend.copy(first[part(axis, slice(0, 1))], new[name]):
                    call()
            if moves and new:
                self._copy_rows([(name, self._value(name), array) for name, array in new.items()], moves)
            for name, array in new.items():
                self.session.variables.set(name, array)
            self.session.backend.synchronize()
        self.rows = rows

    @property
    def is_remote(self) -> bool:
        """True if the states are on a card."""
        return self.session.backend.remote

    def copy_states(self, source: BatchRequest, rows: RowPairs) -> None:
        """Copy states of another request. ``rows`` are pairs (row of ``source``, row of this request)."""
        self.session.update()
        source.session.update()
        with self.session.backend.active():
            if rows and self.session.variables.all:
                self._copy_rows(
                    [(name, source._value(name), self._value(name)) for name in self.session.variables.all], rows
                )
                self.session.backend.synchronize()

    def read_row(self, row: int | None) -> dict[str, Tensor]:
        """Return a copy of one row's state by variable, or the initial state if ``row`` is None."""
        state = {}
        with self.session.backend.active():
            initial = self.session.initial.compute(None)
            for name, variable in self.session.variables.all.items():
                axis = self.batched.variables[name]
                value = (
                    self._value(name)[part(axis, slice(row, row + 1))]
                    if row is not None
                    else self._with_rows(name, initial(name))
                )
                state[name] = tensor_copy(*variable.in_public_type(value), self.session.backend)
        return state

    def write_row(self, row: int, state: Mapping[str, Any]) -> None:
        """Set one row's state. ``state`` maps all variables to tensors or arrays with one row."""
        copies = []
        with self.session.backend.active():
            for name, variable in self.session.variables.all.items():
                if name not in state:
                    raise Error(f"the state has no value of variable '{name}'")
                given = state[name]
                value = variable.accept(
                    backend_array(given if isinstance(given, Tensor) else Tensor(given), self.session.backend)
                )
                target, axis = self._value(name), self.batched.variables[name]
                if value.shape != (*target.shape[:axis], 1, *target.shape[axis + 1 :]):
                    raise Error(
                        f"variable '{name}' has shape {list(target.shape)} with {self.rows} rows, the new "
                        f"value of one row {list(value.shape)}"
                    )
                copies.append((name, value, target))
            self._copy_rows(copies, [(0, row)])
            self.session.backend.synchronize()
