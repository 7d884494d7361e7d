"""Recurrent cells and sequences: LSTM, GRU, RNN. `_cells` computes a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import merge_types
from ovgpu.ops.base.op import Array, Arrays, Workspace, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import check_count, check_integers
from ovgpu.ops.base.storage import is_plain
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.normalization.normalization import check_real
from ovgpu.ops.reduction import is_float
from ovgpu.ops.sequence import _recurrence
from ovgpu.ops.sequence._cells import AUGRU, GRU, LSTM, RNN, Recurrent, State
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, product, same, unknown
from ovgpu.types import Type

SIZES = "hidden sizes {0} and {1} differ"


def _dim(spec: Spec | None, axis: int) -> Int | None:
    return None if spec is None or spec.shape is None else spec.shape[axis]


def _merge(dims: Sequence[Int | None], message: str) -> Int | None:
    """Return the common value of the extents that are known, or None. Raises OpError if they differ."""
    known: Int | None = None
    for dim in dims:
        known = dim if known is None else known if dim is None else same(known, dim, message)
    return known


def _check_ranks(rank: int, **inputs: Spec | None) -> None:
    for name, spec in inputs.items():
        if spec is not None and spec.rank not in (None, rank):
            raise OpError(f"{name} must have rank {rank}, not {spec.rank}")


class _Layer(Recurrent):
    """Base of cells and sequences: checks of types and hidden sizes."""

    layout = "blas"
    strided_outputs = True

    def element_type(self, inputs: Sequence[Spec | None]) -> Type:
        """Return the real type that all inputs share, after checking the activations."""
        for i in range(self.functions):
            self.activation(i)
        dtype = merge_types([s for s in inputs if s is not None])
        check_real(dtype)
        return dtype

    def hidden(self, states: Sequence[Spec], w: Spec, r: Spec, b: Spec | None) -> Int:
        """Return the hidden size, after checking that weights and bias have rows for all gates."""
        hidden = _merge([_dim(s, -1) for s in (*states, r)], SIZES)
        if hidden is None and (rows := _dim(w, -2)) is not None:
            hidden = rows // self.gates
        if hidden is None:
            return self.hidden_size or unknown()
        for name, spec, axis, factor in (
            ("W", w, -2, self.gates),
            ("R", r, -2, self.gates),
            ("B", b, -1, self.bias_rows()),
        ):
            if (rows := _dim(spec, axis)) is not None:
                same(rows, factor * hidden, name + " has {0} rows of gates instead of {1}")
        return hidden


class Cell(_Layer):
    """Base: ``x [N, D], states [N, H] each, W [G H, D], R [G H, H], B [rows H] or none -> states``.

    All have the same real type.
    """

    def infer_specs(self, x: Spec, *others: Any) -> tuple[Spec, ...]:
        check_count(1 + len(others), self.states + 3, self.states + 5)
        states, (w, r, b, *_) = others[: self.states], (*others[self.states :], None)
        dtype = self.element_type((x, *others))
        _check_ranks(2, X=x, H=states[0], C=states[-1], W=w, R=r)
        _check_ranks(1, B=b)
        _merge([_dim(x, 1), _dim(w, 1)], "X has {0} features, W takes {1}")
        batch = _merge([_dim(s, 0) for s in (x, *states)], "batch sizes {0} and {1} differ")
        shape = (unknown() if batch is None else batch, self.hidden(states, w, r, b))
        return tuple(Spec(dtype, shape) for _ in states)

    def evaluate(self, xp: Adapter, x: Array, *others: Array) -> tuple[Array, ...]:
        states, (w, r, b, *_) = others[: self.states], (*others[self.states :], None)
        bias, extra = self.split_bias(b, r.shape[1])
        xw = x @ w.T
        return self.step(xp, xw if bias is None else xw + bias, states, r, extra)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        assert outputs[0].shape is not None
        gates = (outputs[0].shape[0], self.gates * outputs[0].shape[1])
        return (outputs[0].type, gates), (outputs[0].type, gates)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, states, (w, r, b, *_) = inputs[0], inputs[1 : 1 + self.states], (*inputs[1 + self.states :], None)
        if not is_float(x.dtype):
            return NotImplemented
        xw, gates = (s.reshape(len(x), -1) for s in workspace)
        bias, extra = self.split_bias(b, r.shape[1])
        k(np.matmul, x, w.T, xw)
        if bias is not None:
            k(np.add, xw, bias, xw)
        k(self.stepper(r, extra, gates), xw, states, outputs)
        return None

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, states, (w, r, b, *_) = inputs[0], inputs[1 : 1 + self.states], (*inputs[1 + self.states :], None)
        return _recurrence.record(
            k,
            self,
            x[:, None],
            w[None],
            r[None],
            None if b is None else b[None],
            [s[:, None] for s in states],
            None,
            [False],
            None,
            [s[:, None] for s in outputs],
        )


@op("LSTMCell", "opset4", "sequence/lstm-cell-1")
class LSTMCell(LSTM, Cell):
    """LSTMCell-4: ``x, h, c, W, R, B -> h, c`` with gates in the order f, i, c, o.

    >>> lstm_cell([[1.0]], [[0.0]], [[2.0]], [[0.0], [0], [0], [0]], [[0.0], [0], [0], [0]],
    ...           [100.0, -100, 0, 100], hidden_size=1)
    ([[0.964]], [[2.0]])
    """

    half_precision = "always"


@op("LSTMCell", "opset1", "sequence/lstm-cell-1")
class LSTMCell1(LSTM, Cell):
    """LSTMCell-1, like LSTMCell-4. The oldest form has five inputs, ``x, h, c, [W R], B``, one matrix [4 H, D + H].

    OpenVINO writes ``weights_format``, ``input_forget`` and peepholes P [3 H], which are not in the specification,
    and ignores them: files with gates in the order f, i, c, o declare the default ``ifco``.
    """

    weights_format: Literal["fico", "icof", "ifco", "ifoc", "iofc"] = "ifco"
    input_forget: bool = False

    mixed_reals = (6,)
    half_precision = "always"

    def infer_specs(self, x: Spec, *others: Any) -> tuple[Spec, ...]:
        check_count(1 + len(others), 5, 7)
        h, c, w, r, *rest = others
        if r.rank == 1 and not rest:
            _check_ranks(2, X=x, WR=w)
            parts = None if x.shape is None or w.shape is None else (x.shape[1], w.shape[1] - x.shape[1])
            wr = [Spec(w.type, None if parts is None else (w.shape[0], parts[i])) for i in (0, 1)]
            others = (h, c, *wr, r)
        outputs = super().infer_specs(x, *others)
        peepholes = others[5] if len(others) > 5 else None
        _check_ranks(1, P=peepholes)
        if (rows := _dim(peepholes, 0)) is not None and outputs[0].shape is not None:
            same(rows, 3 * outputs[0].shape[1], "P has {0} elements instead of {1}")
        return outputs

    def evaluate(self, xp: Adapter, x: Array, *others: Array) -> tuple[Array, ...]:
        return super().evaluate(xp, x, *_split_weights(x, *others))

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        return super().numpy(k, [inputs[0], *_split_weights(*inputs)], outputs, workspace)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        return super().cuda(k, [inputs[0], *_split_weights(*inputs)], outputs, workspace)


def _split_weights(x: Any, h: Any, c: Any, w: Any, r: Any, *rest: Any) -> tuple[Any, ...]:
    """Return the inputs after x, without peepholes. With five inputs, W and R become views of the one matrix."""
    if r.ndim == 1:
        return h, c, w[:, : x.shape[1]], w[:, x.shape[1] :], r
    return h, c, w, r, *rest[:1]


@op("GRUCell", "opset3", "sequence/gru-cell-3")
class GRUCell(GRU, Cell):
    """GRUCell-3: ``x, h, W, R, B -> h`` with gates in the order z, r, h.

    With ``linear_before_reset``, the bias has a fourth row, for the recurrent part of h.

    >>> gru_cell([[1.0]], [[2.0]], [[0.0], [0], [100]], [[0.0], [0], [0]], [0.0, 0, 0], hidden_size=1)
    [[1.5]]
    """

    mixed_reals = (2,)
    half_precision = "always"


@op("RNNCell", "opset0", "sequence/rnn-cell-3")
class RNNCell(RNN, Cell):
    """RNNCell-3: ``x, h, W, R, B -> h``. IR files may declare it in any opset.

    >>> rnn_cell([[1.0]], [[2.0]], [[10.0]], [[100.0]], [0.5], hidden_size=1,
    ...          activations=["relu"], activations_alpha=[], activations_beta=[])
    [[210.5]]
    """

    half_precision = "always"


def _check_attention(op: AUGRU, attention: Spec, dims: Sequence[Int | None]) -> None:
    """Raise OpError unless the attention has one value per step and OpenVINO allows the attributes."""
    if op.clips() or op.linear_before_reset or [op.activation(i)[0] for i in (0, 1)] != ["sigmoid", "tanh"]:
        raise OpError("clip, linear_before_reset and other activations than sigmoid, tanh are not allowed")
    _check_ranks(len(dims) + 1, A=attention)
    for axis, dim in enumerate(dims):
        _merge([dim, _dim(attention, axis)], "X has {0} rows or steps, A has {1}")
    _merge([1, _dim(attention, -1)], "A has {1} columns instead of {0}")


@op("AUGRUCell", "ie_internal_opset", "internal/augru-cell")
class AUGRUCell(AUGRU, Cell):
    """``x, h, W, R, B, A [N, 1] -> h``: GRUCell-3 whose update gate is scaled by ``1 - A``."""

    numpy = None  # type: ignore[assignment]

    def infer_specs(self, x: Spec, *others: Any) -> tuple[Spec, ...]:
        *rest, attention = others
        outputs = super().infer_specs(x, *rest)
        merge_types((x, attention))
        _check_attention(self, attention, [_dim(x, 0)])
        return outputs

    def evaluate(self, xp: Adapter, x: Array, *others: Array) -> tuple[Array, ...]:
        h, w, r, b, attention = others
        return self.step(xp, xp.concatenate([x @ w.T + b, attention], axis=1), (h,), r, None)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, h, w, r, b, attention = inputs
        return _recurrence.record(
            k,
            self,
            x[:, None],
            w[None],
            r[None],
            b[None],
            [h[:, None]],
            None,
            [False],
            None,
            [outputs[0][:, None]],
            attention=attention,
        )


class SequenceOfCells(_Layer):
    """Base: ``x [N, T, D], states [N, P, H] each, lengths [N] or none, W [P, G H, D], R [P, G H, H], B [P, rows H]
    or none -> y [N, P, T, H], states``. P is 2 if bidirectional, else 1.

    The first ``lengths`` steps of each sequence count, and the reverse direction begins with the last of them. y is
    zero at other steps. The final states are those after the last step that counts, or zero for length 0. Without
    lengths, all steps count; if there are none, the final states are the initial states.
    """

    direction: Literal["forward", "reverse", "bidirectional"] = "forward"

    def reverses(self) -> list[bool]:
        """Return for each direction whether it runs backwards."""
        return {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[self.direction]

    def infer_specs(self, x: Spec, *others: Any) -> tuple[Spec, ...]:
        check_count(1 + len(others), self.states + 5)
        states, (lengths, w, r, b) = others[: self.states], others[self.states :]
        dtype = self.element_type((x, *states, w, r, b))
        if lengths is not None:
            check_integers(lengths, "sequence lengths")
        _check_ranks(3, X=x, H=states[0], C=states[-1], W=w, R=r)
        _check_ranks(2, B=b)
        _merge([_dim(x, 2), _dim(w, 2)], "X has {0} features, W takes {1}")
        batch = _merge([_dim(s, 0) for s in (x, *states, lengths)], "batch sizes {0} and {1} differ")
        directions = len(self.reverses())
        _merge(
            [directions, *(_dim(s, 1) for s in states), *(_dim(s, 0) for s in (w, r, b))],
            "numbers of directions {0} and {1} differ",
        )
        steps, hidden = _dim(x, 1), self.hidden(states, w, r, b)
        batch, steps = (unknown() if d is None else d for d in (batch, steps))
        final = Spec(dtype, (batch, directions, hidden))
        return (Spec(dtype, (batch, directions, steps, hidden)), *(final for _ in states))

    def evaluate(self, xp: Adapter, x: Array, *others: Array) -> tuple[Array, ...]:
        states, (lengths, w, r, b, *rest) = others[: self.states], others[self.states :]
        ys, finals = [], []
        for d, reverse in enumerate(self.reverses()):
            bias, extra = self.split_bias(None if b is None else b[d], r.shape[2])
            xw = x @ w[d].T
            if bias is not None:
                xw = xw + bias
            xw = xp.concatenate([xw, *rest], axis=2) if rest else xw
            state: State = tuple(s[:, d] for s in states)
            y = xp.zeros((*x.shape[:2], r.shape[2]), x.dtype)
            for t in reversed(range(x.shape[1])) if reverse else range(x.shape[1]):
                new = self.step(xp, xw[:, t], state, r[d], extra)
                if lengths is None:
                    state, y[:, t] = new, new[0]
                    continue
                active = (lengths > t)[:, None]
                state = tuple(xp.where(active, after, before) for after, before in zip(new, state))
                y[:, t] = xp.where(active, new[0], 0)
            ys.append(y)
            finals.append(state if lengths is None else [xp.where((lengths > 0)[:, None], s, 0) for s in state])
        return (xp.stack(ys, axis=1), *(xp.stack(final, axis=1) for final in zip(*finals)))

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        dtype, shape = outputs[0].type, outputs[0].shape
        assert shape is not None
        batch, directions, steps, hidden = shape
        width = self.gates * hidden
        projected = Type.f64 if dtype == Type.f64 else Type.f32  # in 16 bits it would be rounded twice
        return (
            (projected, (product((directions, batch, steps, width)),)),
            (dtype, (batch, width)),
            (Type.boolean, (batch, 1)),
            *((dtype, (batch, hidden)) for _ in range(self.states)),
        )

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, states, (lengths, w, r, b) = inputs[0], inputs[1 : 1 + self.states], inputs[1 + self.states :]
        if not is_float(x.dtype) or outputs[0].size == 0 or not (lengths is None or is_plain(lengths.dtype)):
            return NotImplemented
        n, steps, features = x.shape
        hidden = r.shape[2]
        flat = workspace[0][: n * steps * self.gates * hidden].reshape(n * steps, -1)
        # The projection has the memory order of x: steps or sequences first.
        steps_first = not x.flags.c_contiguous and x.swapaxes(0, 1).flags.c_contiguous
        frames = x.swapaxes(0, 1) if steps_first else x
        xw = flat.reshape(*frames.shape[:2], -1)

        def squeeze(array: Any) -> Any:
            """Drop the first axis of a single sequence, because NumPy's calls are then faster."""
            return array[0] if n == 1 else array

        gates, active, *new = (squeeze(s.reshape(n, -1)) for s in workspace[1:])
        by_step = list(squeeze(xw) if n == 1 or steps_first else xw.swapaxes(0, 1))
        limits = lengths if lengths is None or n == 1 else lengths[:, None]
        for d, reverse in enumerate(self.reverses()):
            bias, extra = self.split_bias(None if b is None else b[d], hidden)
            if frames.flags.c_contiguous:  # all steps of all sequences as one product
                k(np.matmul, frames.reshape(-1, features), w[d].T, flat)
            else:
                k(np.matmul, frames, w[d].T, xw)
            if bias is not None:
                k(np.add, xw, bias, xw)
            y = outputs[0][:, d]
            k(
                run_sequence,
                self.stepper(r[d], extra, gates),
                by_step,
                [squeeze(s[:, d]) for s in states],
                limits,
                reverse,
                list(y[0] if n == 1 else y.swapaxes(0, 1)),
                [squeeze(s[:, d]) for s in outputs[1:]],
                active,
                tuple(new),
            )
        return None

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, states, (lengths, w, r, b, *rest) = inputs[0], inputs[1 : 1 + self.states], inputs[1 + self.states :]
        n, steps, features = x.shape
        if steps == 0 and lengths is None:
            for final, first in zip(outputs[1:], states):
                k.copy(first, final)
            return None
        if outputs[0].size == 0 or features == 0 or not (lengths is None or is_plain(lengths.dtype)):
            return NotImplemented
        # One product for all steps and sequences. The projection has the memory order of x: steps or sequences first.
        flat = workspace[0][: len(w) * n * steps * self.gates * r.shape[2]]
        steps_first = n > 1 and x.strides[1] > x.strides[0]
        xw = flat.reshape(len(w), *((steps, n) if steps_first else (n, steps)), -1)
        frames = x.swapaxes(0, 1) if steps_first else x
        if not k.gemm(frames, w.swapaxes(1, 2)[:, None] if len(w) > 1 else w[0].T, xw if len(w) > 1 else xw[0]):
            return NotImplemented
        xw = xw.swapaxes(1, 2) if steps_first else xw
        return _recurrence.record(
            k,
            self,
            xw,
            None,
            r,
            b,
            states,
            lengths,
            self.reverses(),
            outputs[0],
            outputs[1:],
            attention=rest[0] if rest else None,
        )


def run_sequence(
    step: Callable[[Any, State, State], None],
    xw: Sequence[Any],
    initial: Sequence[Any],
    lengths: Any,
    reverse: bool,
    y: Sequence[Any],
    final: Sequence[Any],
    active: Any,
    new: State,
) -> None:
    """Run one direction: write y [N, H] of each step and the final states [N, H], given xw [N, G H] of each step, the
    initial states [N, H] and the lengths [N, 1].

    Scratch: active [N, 1] booleans, new [N, H] each. With a single sequence, arrays lack the first axis.
    """
    if lengths is None or lengths.min() >= len(xw):
        state = tuple(initial)
        for given, h in zip(reversed(xw), reversed(y)) if reverse else zip(xw, y):  # c is updated in place
            after = (h, *final[1:])
            step(given, state, after)
            state = after
        np.copyto(final[0], state[0])
        return
    for target, first in zip(final, initial):
        np.copyto(target, first)
    for h in y:
        h.fill(0)
    for t in range(len(xw) - 1, -1, -1) if reverse else range(len(xw)):
        np.greater(lengths, t, active)
        step(xw[t], tuple(final), new)
        for target, after in zip(final, new):
            np.copyto(target, after, where=active)
        np.copyto(y[t], new[0], where=active)
    np.less_equal(lengths, 0, active)
    for target in final:
        np.copyto(target, 0, where=active)


@op("LSTMSequence", "opset5", "sequence/lstm-sequence-5")
class LSTMSequence(LSTM, SequenceOfCells):
    """LSTMSequence-5: ``x, h, c, lengths, W, R, B -> y, h, c``; gates as in LSTMCell-4.

    >>> lstm_sequence([[[1.0], [1]]], [[[0.0]]], [[[4.0]]], [1], [[[0.0], [0], [0], [0]]], [[[0.0], [0], [0], [0]]],
    ...               [[0.0, 0, 0, 0]], hidden_size=1, direction="forward")
    ([[[[0.482], [0.0]]]], [[[0.482]]], [[[2.0]]])
    """

    half_precision = "always"


@op("LSTMSequence", "opset1", "sequence/lstm-sequence-1")
class LSTMSequence1(LSTMSequence):
    """LSTMSequence-1, equal to LSTMSequence-5."""


@op("GRUSequence", "opset5", "sequence/gru-sequence-5")
class GRUSequence(GRU, SequenceOfCells):
    """GRUSequence-5: ``x, h, lengths, W, R, B -> y, h``; gates as in GRUCell-3.

    >>> gru_sequence([[[1.0], [1]]], [[[3.0]]], [2], [[[0.0], [0], [100]]], [[[0.0], [0], [0]]], [[0.0, 0, 0]],
    ...              hidden_size=1, direction="forward")
    ([[[[2.0], [1.5]]]], [[[1.5]]])
    """

    half_precision = "always"


@op("AUGRUSequence", "ie_internal_opset", "internal/augru-sequence")
class AUGRUSequence(AUGRU, SequenceOfCells):
    """``x, h, lengths, W, R, B, A [N, T, 1] -> y, h``: a forward sequence of AUGRUCell; see `SequenceOfCells`."""

    numpy = None  # type: ignore[assignment]

    def infer_specs(self, x: Spec, *others: Any) -> tuple[Spec, ...]:
        *rest, attention = others
        outputs = super().infer_specs(x, *rest)
        merge_types((x, attention))
        if self.direction != "forward":
            raise OpError(f"direction is {self.direction}, not forward")
        _check_attention(self, attention, [_dim(x, 0), _dim(x, 1)])
        return outputs


@op("RNNSequence", "opset5", "sequence/rnn-sequence-5")
class RNNSequence(RNN, SequenceOfCells):
    """RNNSequence-5: ``x, h, lengths, W, R, B -> y, h``.

    >>> rnn_sequence([[[1.0], [2], [3]]], [[[0.0]]], [3], [[[1.0]]], [[[1.0]]], [[0.0]], hidden_size=1,
    ...              direction="reverse", activations=["relu"])
    ([[[[6.0], [5.0], [3.0]]]], [[[6.0]]])
    """

    half_precision = "always"
