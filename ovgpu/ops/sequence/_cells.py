"""Steps of recurrent cells (LSTM, GRU, RNN) and their activations, in array code and in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, ClassVar

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.op import Array, Op
from ovgpu.ops.base.xp import Adapter

State = tuple[Array, ...]  # h, and c of an LSTM: [N, H] each
FEW_ROWS = 4  # rows up to which BLAS multiplies them by a large matrix faster one by one
LARGE_ELEMENTS = 1 << 16  # elements beyond which a matrix counts as large

# name -> (default alpha, default beta, function of (xp, x, alpha, beta))
ACTIVATIONS: dict[str, tuple[float, float, Callable[..., Any]]] = {
    "sigmoid": (0, 0, lambda xp, x, alpha, beta: 1 / (1 + xp.exp(-x))),
    "tanh": (0, 0, lambda xp, x, alpha, beta: xp.tanh(x)),
    "relu": (0, 0, lambda xp, x, alpha, beta: xp.maximum(x, 0)),
    "hardsigmoid": (0.2, 0.5, lambda xp, x, alpha, beta: xp.clip(alpha * x + beta, 0, 1)),
}


def _sigmoid(x: Any, alpha: float, beta: float) -> None:
    np.multiply(x, 0.5, x)  # as (1 + tanh(x / 2)) / 2, which needs no division
    np.tanh(x, x)
    np.multiply(x, 0.5, x)
    np.add(x, 0.5, x)


def _tanh(x: Any, alpha: float, beta: float) -> None:
    np.tanh(x, x)


def _relu(x: Any, alpha: float, beta: float) -> None:
    np.maximum(x, 0, out=x)


def _hardsigmoid(x: Any, alpha: float, beta: float) -> None:
    np.multiply(x, alpha, x)
    np.add(x, beta, x)
    np.clip(x, 0, 1, out=x)


# name -> function of (x, alpha, beta) that overwrites x
IN_PLACE: dict[str, Callable[[Any, float, float], None]] = {
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "relu": _relu,
    "hardsigmoid": _hardsigmoid,
}


def _product(h: Any, m: Any, out: Any) -> None:
    """Write ``h @ m`` to ``out``, for h [N, H] or [H] and m [H, n]."""
    if h.ndim == 1:
        np.dot(h, m, out)
    elif 1 < len(h) <= FEW_ROWS and m.size > LARGE_ELEMENTS:
        for row, result in zip(h, out):
            np.matmul(row, m, result)
    else:
        np.matmul(h, m, out)


class Recurrent(Op):
    """Base of cells and sequences: the attributes they share, and one step.

    A step takes ``xw`` [N, G H], the input's projection with its bias, the state, the recurrence weights
    r [G H, H], and ``extra``, an additional operand of some cells. G is the number of gates.
    """

    hidden_size: int = 0  # ignored where the shapes determine it
    activations: tuple[str, ...] = ()
    activations_alpha: tuple[float, ...] = ()
    activations_beta: tuple[float, ...] = ()
    clip: float = 0.0

    gates: ClassVar[int]
    states: ClassVar[int] = 1
    functions: ClassVar[int]
    """The number of activation functions."""

    def bias_rows(self) -> int:
        """Return the number of rows of the bias, in units of the hidden size."""
        return self.gates

    def split_bias(self, b: Any, hidden: int) -> tuple[Any, Any]:
        """Split the bias input, which may be None, into the bias of the input's projection and ``extra``."""
        return b, None

    def step(self, xp: Adapter, xw: Array, state: State, r: Array, extra: Array) -> State:
        """Return the state after one step."""
        raise NotImplementedError

    def stepper(self, r: Any, extra: Any, gates: Any) -> Callable[[Any, State, State], None]:
        """Return `step` as a function (xw, state, new state) that writes in place; ``gates`` [N, G H] is scratch.

        The new c may share the memory of c. If ``gates`` lacks the first axis, so do the other arrays.
        """
        raise NotImplementedError

    def activation(self, i: int) -> tuple[str, float, float]:
        """Return name, alpha and beta of the i-th activation. Raises OpError if it is missing or unknown."""
        if i >= len(self.activations):
            raise OpError(f"{i + 1} activations are needed, not {len(self.activations)}")
        name = self.activations[i].strip().lower()
        if name not in ACTIVATIONS:
            raise OpError(f"activation '{name}' is not one of {', '.join(ACTIVATIONS)}")
        alpha, beta, _ = ACTIVATIONS[name]
        return (
            name,
            self.activations_alpha[i] if i < len(self.activations_alpha) else alpha,
            self.activations_beta[i] if i < len(self.activations_beta) else beta,
        )

    def clips(self) -> bool:
        """Return whether ``clip`` bounds the inputs of activations."""
        return 0 < self.clip < inf

    def activate(self, xp: Adapter, i: int, x: Array, clip: bool = True) -> Array:
        """Apply the i-th activation to ``x``, clipped first."""
        name, alpha, beta = self.activation(i)
        if clip and self.clips():
            x = xp.clip(x, -self.clip, self.clip)
        return ACTIVATIONS[name][2](xp, x, alpha, beta)

    def activator(self, i: int, clip: bool = True) -> Callable[[Any], None]:
        """Return `activate` as a function that overwrites its argument."""
        name, alpha, beta = self.activation(i)
        apply, bound = IN_PLACE[name], self.clip if clip and self.clips() else inf

        def activate(x: Any) -> None:
            if bound < inf:
                np.clip(x, -bound, bound, out=x)
            apply(x, alpha, beta)

        return activate


class LSTM(Recurrent):
    """Base of LSTM ops, with gates f, i, c, o."""

    activations: tuple[str, ...] = ("sigmoid", "tanh", "tanh")

    gates = 4
    states = 2
    functions = 3
    half_precision = "always"

    def step(self, xp: Adapter, xw: Array, state: State, r: Array, extra: Array) -> State:
        h, c = state
        f, i, g, o = _parts(xw + h @ r.T, 4)
        c = self.activate(xp, 0, f) * c + self.activate(xp, 0, i) * self.activate(xp, 1, g)
        return self.activate(xp, 0, o) * self.activate(xp, 2, c, clip=False), c

    def stepper(self, r: Any, extra: Any, gates: Any) -> Callable[[Any, State, State], None]:
        rt = r.T
        f, i, g, o = _parts(gates, 4)
        gate, candidate, output = self.activator(0), self.activator(1), self.activator(2, clip=False)
        plain = not self.clips() and [self.activation(n)[0] for n in range(3)] == ["sigmoid", "tanh", "tanh"]
        # Because sigmoid(x) = tanh(x / 2) / 2 + 1 / 2, one tanh computes all four gates.
        affine = np.array([[0.5, 0.5, 1, 0.5], [0.5, 0.5, 0, 0.5]], gates.dtype)
        scale, offset = np.repeat(affine, r.shape[1], axis=1)

        def step(xw: Any, state: State, new: State) -> None:
            _product(state[0], rt, gates)
            np.add(gates, xw, gates)
            if plain:
                np.multiply(gates, scale, gates)
                np.tanh(gates, gates)
                np.multiply(gates, scale, gates)
                np.add(gates, offset, gates)
            else:
                gate(f)
                gate(i)
                candidate(g)
                gate(o)
            h, c = new
            np.multiply(i, g, i)
            np.multiply(f, state[1], c)
            np.add(c, i, c)
            if plain:
                np.tanh(c, g)
            else:
                np.copyto(g, c)
                output(g)
            np.multiply(o, g, h)

        return step


class GRU(Recurrent):
    """Base of GRU ops, with gates z, r, h. ``extra`` is the recurrent bias of h [H], if ``linear_before_reset``."""

    activations: tuple[str, ...] = ("sigmoid", "tanh")
    linear_before_reset: bool = False

    gates = 3
    functions = 2

    def bias_rows(self) -> int:
        return 4 if self.linear_before_reset else 3

    def split_bias(self, b: Any, hidden: int) -> tuple[Any, Any]:
        return (b, None) if b is None or not self.linear_before_reset else (b[: 3 * hidden], b[3 * hidden :])

    def step(self, xp: Adapter, xw: Array, state: State, r: Array, extra: Array) -> State:
        return self.scaled_step(xp, xw, state, r, extra)

    def scaled_step(self, xp: Adapter, xw: Array, state: State, r: Array, extra: Array, scale: Array = 1) -> State:
        """Compute `step` with the update gate multiplied by ``scale``."""
        (h,) = state
        hidden = h.shape[1]
        z, reset = _parts(xw[:, : 2 * hidden] + h @ r[: 2 * hidden].T, 2)
        z, reset = self.activate(xp, 0, z) * scale, self.activate(xp, 0, reset)
        if self.linear_before_reset:
            recurrent = h @ r[2 * hidden :].T
            recurrent = reset * (recurrent if extra is None else recurrent + extra)
        else:
            recurrent = (reset * h) @ r[2 * hidden :].T
        new = self.activate(xp, 1, xw[:, 2 * hidden :] + recurrent)
        return ((1 - z) * new + z * h,)

    def stepper(self, r: Any, extra: Any, gates: Any) -> Callable[[Any, State, State], None]:
        hidden = r.shape[1]
        linear, rt = self.linear_before_reset, r.T
        zr, n = gates[..., : 2 * hidden], gates[..., 2 * hidden :]
        rt_zr, rt_n = rt[:, : 2 * hidden], rt[:, 2 * hidden :]
        z, reset = _parts(zr, 2)
        gate, candidate = self.activator(0), self.activator(1)

        def step(xw: Any, state: State, new: State) -> None:
            h, out = state[0], new[0]
            if linear:
                _product(h, rt, gates)
            else:
                _product(h, rt_zr, zr)
            np.add(zr, xw[..., : 2 * hidden], zr)
            gate(zr)
            if linear:
                if extra is not None:
                    np.add(n, extra, n)
                np.multiply(n, reset, n)
            else:
                np.multiply(reset, h, reset)
                _product(reset, rt_n, n)
            np.add(n, xw[..., 2 * hidden :], n)
            candidate(n)
            np.subtract(h, n, out)
            np.multiply(out, z, out)
            np.add(out, n, out)

        return step


class AUGRU(GRU):
    """Base of AUGRU ops: GRU whose update gate is scaled by ``1 - A``; A is the last column of ``xw`` [N, 3 H + 1]."""

    def step(self, xp: Adapter, xw: Array, state: State, r: Array, extra: Array) -> State:
        return self.scaled_step(xp, xw[:, :-1], state, r, extra, 1 - xw[:, -1:])


class RNN(Recurrent):
    """Base of RNN ops, with one gate."""

    activations: tuple[str, ...] = ("tanh",)

    gates = 1
    functions = 1
    half_precision = "always"

    def step(self, xp: Adapter, xw: Array, state: State, r: Array, extra: Array) -> State:
        return (self.activate(xp, 0, xw + state[0] @ r.T),)

    def stepper(self, r: Any, extra: Any, gates: Any) -> Callable[[Any, State, State], None]:
        rt, activate = r.T, self.activator(0)

        def step(xw: Any, state: State, new: State) -> None:
            _product(state[0], rt, gates)
            np.add(gates, xw, gates)
            activate(gates)
            np.copyto(new[0], gates)

        return step


def _parts(x: Any, count: int) -> Sequence[Any]:
    """Return views of ``x`` in equal parts along its last axis."""
    size = x.shape[-1] // count
    return [x[..., i * size : (i + 1) * size] for i in range(count)]
