"""Class BatchRequest: a request for a batch of rows, whose variables have one state per row."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ovgpu.batching.model import BatchedModel
from ovgpu.batching.row_inputs import part
from ovgpu.compile.compilation import Compilation
from ovgpu.errors import Error
from ovgpu.ops.base.op import Array
from ovgpu.ops.fused.copy_rows import CopyRows
from ovgpu.request.device_io import backend_array, tensor_copy
from ovgpu.request.results import OutputKeys, OVDict
from ovgpu.request.session import Session
from ovgpu.runtime.backend import Call
from ovgpu.runtime.state import Snapshot
from ovgpu.tensor import Tensor

CACHED_COPIES = 4  # states alternate between two buffers
RowPairs = Sequence[tuple[int, int]]
Copies = Sequence[tuple[str, Array, Array]]


class BatchRequest:
    """Request that runs a batch of ``rows`` rows. Rows that are not active in an inference keep their states.

    Before an inference, `resize` sets the number of rows. One thread at a time may use it.
    """

    def __init__(self, compilation: Compilation, batched: BatchedModel) -> None:
        self.session = Session(compilation)
        self.batched = batched
        self.rows = 0
        self._keys = OutputKeys(compilation.outputs)
        self._bound_copies: deque[_BoundCopies] = deque(maxlen=CACHED_COPIES)
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
        self, inputs: Sequence[Any], rows: Sequence[int], arrays: Sequence[Sequence[Any]], begin: Collection[int]
    ) -> Sequence[Any]:
        """Run the batch. Return the outputs as arrays that no later inference overwrites.

        ``inputs`` are stacked, by index; an input that is None has no value of all rows. ``arrays`` are the own inputs
        of ``rows``, the rows whose states change. Those in ``begin`` begin with the initial state, the others continue
        theirs. If the inference fails, all states stay as they were.
        """
        session = self.session
        share = not session.backend.remote
        if begin:
            session.set_inputs(inputs, share)
            with session.backend.active():
                self._start_rows(begin)
            after = session.infer(None, share)
        else:
            after = session.infer(inputs, share)
        if len(rows) < self.rows and self.session.variables.all:
            self._keep_idle(after, rows)
        results = session.answer(False, self.batched.decode_strings, False)
        session.state = after
        return results.to_tuple()

    def places(self, rows: Sequence[int]) -> tuple[int, Sequence[int]]:
        """Return the number of rows of the arrays into which inputs of a step of ``rows`` are stacked, and the places
        of these rows in them. They are also those in the outputs."""
        return self.rows, rows

    def infer_alone(self, inputs: Sequence[Any]) -> OVDict:
        """Run a batch of one row, which continues its state, in any thread. ``inputs`` are by index.

        After an exception, also of a signal handler, the state is as before.
        """
        session = self.session
        after = session.infer(inputs, False)
        results = session.answer(False, self.batched.decode_strings, False)
        session.state = after
        return results

    def free_rows(self, rows: Collection[int]) -> None:
        """Note that no sequence has these rows, or that theirs begin anew."""

    def _keep_idle(self, after: Snapshot, rows: Sequence[int]) -> None:
        """Copy the states of all rows but ``rows`` back: the inference has changed them as well."""
        changed = [
            (name, old.array, new.array)
            for name, old, new in zip(self.session.variables.all, self.session.state.values, after.values)
            if new.array is not old.array
        ]
        if changed:
            with self.session.backend.active():
                self._copy_rows(changed, [(row, row) for row in sorted(set(range(self.rows)).difference(rows))])

    def _start_rows(self, rows: Collection[int]) -> None:
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

    def _copy_rows(self, copies: Copies, rows: RowPairs) -> None:
        """Copy rows between arrays.

        ``copies`` are triples (id of a variable, source, target), ``rows`` pairs (row of a source, row of its target).
        """
        # Idle rows are often those of an earlier step.
        calls = next((bound.calls for bound in self._bound_copies if bound.has(copies, rows)), None)
        if calls is None:
            op = CopyRows(axes=tuple([self.batched.variables[name] for name, _, _ in copies]), rows=tuple(rows))
            calls = self.session.backend.bind(op, [array for _, *pair in copies for array in pair], (), (), ())
            self._bound_copies.append(_BoundCopies(copies, rows, calls))
        for call in calls:
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
        self._bound_copies.clear()  # they hold the memory of the old states

    @property
    def is_remote(self) -> bool:
        """True if the states are on a card."""
        return self.session.backend.remote

    def copy_states(self, source: BatchRequest, rows: RowPairs, tokens: int | None = None) -> None:
        """Copy states of another request. ``rows`` are pairs (row of ``source``, row of this request).

        Raises: Error if ``tokens`` limits the tokens of KV caches, and there are other states.
        """
        if tokens is not None:
            raise Error("the states of the sequence are no KV caches, whose first tokens could be copied")
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


class _BoundCopies(NamedTuple):
    """Copies of rows, and the calls that make them."""

    copies: Copies
    rows: RowPairs
    calls: Sequence[Call]

    def has(self, copies: Copies, rows: RowPairs) -> bool:
        """Return whether copies have the same rows and arrays."""
        if self.rows != rows or len(self.copies) != len(copies):
            return False
        return all([a is c and b is d for (_, a, b), (_, c, d) in zip(self.copies, copies)])
