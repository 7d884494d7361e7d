"""Cells and sequences: LSTM, GRU, RNN."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, const, given, sweep
from tests.harness.cases import Array

N, T, D, H = 3, 5, 4, 7
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DEFAULTS = {"LSTM": "sigmoid,tanh,tanh", "GRU": "sigmoid,tanh", "RNN": "tanh"}
LENGTHS = np.array([2, T, 0])
ALL = np.array([T, T, T])


def uniform(*shape: int, kind: str = "f32", const: bool = False) -> In:
    return In(shape, kind, const=const, low=-1.0, high=1.0)


def weights(
    kind: str,
    lead: tuple[int, ...] = (),
    *,
    n: int = N,
    linear: bool = False,
    dtype: str = "f32",
    constant: bool = False,
) -> list[In]:
    """Return W, R and B of a cell, or of a sequence with a leading axis."""
    rows = GATES[kind] * H
    bias = rows + H if linear else rows
    return [uniform(*lead, *shape, kind=dtype, const=constant) for shape in ((rows, D), (rows, H), (bias,))]


# ---- cells


def cell(
    kind: str,
    version: str,
    id: str,
    *,
    attrs: dict[str, Any] | None = None,
    n: int = N,
    dtype: str = "f32",
    bias: bool = True,
    constant: bool = False,
    extra: Sequence[In] = (),
    **how: Any,
) -> Case:
    attrs = {"hidden_size": H} | (attrs or {})
    states = [uniform(n, H, kind=dtype) for _ in range(2 if kind == "LSTM" else 1)]
    matrices = weights(kind, linear=bool(attrs.get("linear_before_reset")), dtype=dtype, constant=constant)
    inputs = [uniform(n, D, kind=dtype), *states, *matrices[: 3 if bias else 2], *extra]
    return Case(f"{kind}Cell", version, inputs, attrs, len(states), id=id, **how)


def cells(kind: str, version: str) -> Iterator[Case]:
    count = len(DEFAULTS[kind].split(","))
    yield cell(kind, version, "plain", rankless=True)
    yield cell(kind, version, "one_row", n=1)
    yield cell(kind, version, "constant_weights", constant=True)
    yield cell(kind, version, "f16", dtype="f16")
    yield cell(kind, version, "bf16", dtype="bf16")
    yield cell(kind, version, "clip", attrs={"clip": 0.25})
    yield cell(kind, version, "all_defaults_spelled", attrs={"activations": DEFAULTS[kind], "clip": 0.0})
    yield cell(kind, version, "capitals", attrs={"activations": DEFAULTS[kind].title()})
    yield cell(
        kind, version, "spaces", attrs={"activations": DEFAULTS[kind].replace(",", " , ")}, expect=reference(kind, {})
    )
    for name in ("relu", "sigmoid", "tanh"):
        alike = {"activations": ",".join([name] * count)}
        yield cell(kind, version, f"all_{name}", attrs=alike)
        yield cell(kind, version, f"all_{name}_clip", attrs=alike | {"clip": 0.3})
    hard = {"activations": ",".join(["hardsigmoid"] * count)}
    yield cell(kind, version, "hard_sigmoid", attrs=hard, expect=reference(kind, hard))
    harder = hard | {"activations_alpha": [0.3] * count, "activations_beta": [0.4] * count}
    yield cell(kind, version, "hard_sigmoid_parameters", attrs=harder, expect=reference(kind, harder))
    yield cell(kind, version, "f64", dtype="f64", expect=reference(kind, {}))
    yield cell(
        kind,
        version,
        "unknown",
        attrs={"activations": ",".join(["softsign"] * count)},
        error="'softsign' is not one of sigmoid, tanh",
    )
    if count > 1:
        yield cell(kind, version, "too_few", attrs={"activations": "tanh"}, error="2 activations are needed")


def reference(kind: str, attrs: dict[str, Any]) -> Callable[..., Any]:
    """Return a cell by the specification's formulas in f64, for cases that OpenVINO does not support."""

    def expect(x: Array, *others: Array) -> list[Array]:
        count = 2 if kind == "LSTM" else 1
        w, r, b, *_ = *others[count:], np.zeros(GATES[kind] * H)
        new = step(kind, attrs, *(m.astype(np.float64) for m in (x, w, r, b)), *others[:count])
        return [a.astype(x.dtype) for a in new]

    return expect


def step(
    kind: str, attrs: dict[str, Any], x: Array, w: Array, r: Array, b: Array, h: Array, c: Array | None = None
) -> list[Array]:
    names = attrs.get("activations", DEFAULTS[kind]).split(",")
    clip = attrs.get("clip") or np.inf
    size = h.shape[-1]

    def function(i: int, v: Array) -> Array:
        alpha = attrs.get("activations_alpha", [0.2] * 9)[i]
        beta = attrs.get("activations_beta", [0.5] * 9)[i]
        return {
            "sigmoid": sigmoid(v),
            "tanh": np.tanh(v),
            "relu": np.maximum(v, 0),
            "hardsigmoid": np.clip(alpha * v + beta, 0, 1),
        }[names[i]]

    def gate(i: int, number: int, recurrent: Array) -> Array:
        rows = slice(number * size, number * size + size)
        return activated(i, x @ w[rows].T + recurrent @ r[rows].T + b[rows])

    def activated(i: int, v: Array) -> Array:
        return function(i, np.clip(v, -clip, clip))

    if kind == "RNN":
        return [gate(0, 0, h)]
    if kind == "GRU":
        z, reset = gate(0, 0, h), gate(0, 1, h)
        if attrs.get("linear_before_reset"):
            ours, recurrent = x @ w[2 * size :].T + b[2 * size : 3 * size], h @ r[2 * size :].T + b[3 * size :]
            return [(1 - z) * activated(1, ours + reset * recurrent) + z * h]
        return [(1 - z) * gate(1, 2, reset * h) + z * h]
    assert c is not None
    c = gate(0, 0, h) * c + gate(0, 1, h) * gate(1, 2, h)
    return [gate(0, 3, h) * function(2, c), c]


LINEAR = {"linear_before_reset": True}
CELLS = [
    *cells("LSTM", "opset4"),
    *cells("LSTM", "opset1"),
    *cells("GRU", "opset3"),
    *cells("RNN", "opset1"),
    # OpenVINO rejects these for a missing input
    cell("LSTM", "opset4", "no_bias", bias=False, expect=reference("LSTM", {})),
    cell("GRU", "opset3", "no_bias", bias=False, expect=reference("GRU", {})),
    cell("LSTM", "opset1", "no_bias", bias=False),
    cell("GRU", "opset3", "linear", attrs=LINEAR, rankless=True),
    cell("GRU", "opset3", "linear_one_row", attrs=LINEAR, n=1),
    cell("GRU", "opset3", "linear_clip", attrs=LINEAR | {"clip": 0.2}),
    cell("GRU", "opset3", "linear_relu", attrs=LINEAR | {"activations": "relu,relu"}),
    cell("GRU", "opset3", "linear_f16", attrs=LINEAR, dtype="f16"),
    cell("RNN", "opset3", "later_opset"),
]
test_cells = check(CELLS)


def large(kind: str, version: str, n: int, linear: bool = False) -> Case:
    """Return a cell whose weights exceed the core's cache, for a few rows."""
    size, rows = 192, GATES[kind] * 192
    shapes = [*[(n, size)] * (3 if kind == "LSTM" else 2), *[(rows, size)] * 2, (rows + size * linear,)]
    attrs = {"hidden_size": size} | (LINEAR if linear else {})
    return Case(
        f"{kind}Cell",
        version,
        [In(s, low=-0.2, high=0.2) for s in shapes],
        attrs,
        2 if kind == "LSTM" else 1,
        id=f"large_{n}{'_linear' if linear else ''}",
    )


test_large_cells = check(
    [large("LSTM", "opset4", 2), large("LSTM", "opset4", 5), large("GRU", "opset3", 3), large("GRU", "opset3", 4, True)]
)


def one_matrix(x: Array, h: Array, c: Array, wr: Array, b: Array) -> list[Array]:
    """Return LSTMCell-1 with W and R in one matrix, which OpenVINO no longer reads."""
    f, i, g, o = np.split(np.concatenate([x, h], 1) @ wr.T + b, 4, 1)
    new = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return [a.astype(np.float32) for a in (sigmoid(o) * np.tanh(new), new)]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


LSTM_1 = [
    *(
        cell("LSTM", "opset1", f"weights_{order}", attrs={"weights_format": order})
        for order in ("fico", "icof", "ifco", "ifoc", "iofc")
    ),
    cell("LSTM", "opset1", "input_forget", attrs={"input_forget": True}),
    cell("LSTM", "opset1", "peepholes", extra=[uniform(3 * H)]),
    Case(
        "LSTMCell",
        "opset1",
        [uniform(*s) for s in ((N, D), (N, H), (N, H), (4 * H, D + H), (4 * H,))],
        {"hidden_size": H},
        2,
        id="one_matrix",
        expect=one_matrix,
    ),
    cell("LSTM", "opset1", "constant_peepholes", extra=[const(np.ones(3 * H), "f32")]),
    cell("LSTM", "opset1", "peepholes_too_short", extra=[uniform(H)], error="P has 7 elements instead of 21"),
    cell("LSTM", "opset1", "no_such_format", attrs={"weights_format": "cofi"}, error="'cofi'"),
]
test_lstm_1 = check(LSTM_1)


# ---- sequences


def sequence(
    kind: str,
    id: str,
    direction: str = "forward",
    lengths: Any = ALL,
    *,
    version: str = "opset5",
    attrs: dict[str, Any] | None = None,
    n: int = N,
    steps: int = T,
    dtype: str = "f32",
    constant: bool = True,
    **how: Any,
) -> Case:
    directions = 2 if direction == "bidirectional" else 1
    attrs = {"hidden_size": H, "direction": direction, "activations": DEFAULTS[kind]} | (attrs or {})
    states = [uniform(n, directions, H, kind=dtype) for _ in range(2 if kind == "LSTM" else 1)]
    linear = bool(attrs.get("linear_before_reset"))
    matrices = weights(kind, (directions,), linear=linear, dtype=dtype, constant=constant)
    lengths = lengths if isinstance(lengths, In) else const(lengths)
    inputs = [uniform(n, steps, D, kind=dtype), *states, lengths, *matrices]
    return Case(f"{kind}Sequence", version, inputs, attrs, 1 + len(states), id=id, **how)


def unrolled(kind: str, direction: str, attrs: dict[str, Any] | None = None) -> Callable[..., Any]:
    """Return a sequence op by the specification's loop over sequences and steps."""

    def expect(x: Array, *others: Array) -> list[Array]:
        count = 2 if kind == "LSTM" else 1
        states, (lengths, w, r, b) = others[:count], others[count:]
        reverses = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
        y = np.zeros((len(x), len(reverses), x.shape[1], r.shape[-1]), x.dtype)
        finals = [np.zeros((len(x), len(reverses), r.shape[-1]), x.dtype) for _ in states]
        for row, length in enumerate(lengths):
            for d, reverse in enumerate(reverses):
                state = [s[row : row + 1, d] for s in states]
                for t in range(length)[::-1] if reverse else range(length):
                    state = step(kind, attrs or {}, x[row : row + 1, t], w[d], r[d], b[d], *state)
                    y[row, d, t] = state[0][0]
                if length:
                    for final, s in zip(finals, state):
                        final[row, d] = s[0]
        return [y, *finals]

    return expect


def sequences(kind: str) -> Iterator[Case]:
    for direction in ("forward", "reverse", "bidirectional"):
        yield sequence(kind, direction, direction)
        yield sequence(kind, f"{direction}_one_row", direction, ALL[:1], n=1)
        # the plugin ignores lengths with dynamic shapes, but judges with static shapes
        yield sequence(kind, f"{direction}_lengths", direction, LENGTHS)
        yield sequence(kind, f"{direction}_clip", direction, LENGTHS, attrs={"clip": 0.3})
        yield sequence(
            kind, f"{direction}_lengths_at_run_time", direction, given(LENGTHS), expect=unrolled(kind, direction)
        )
        yield sequence(
            kind,
            f"{direction}_everything_at_run_time",
            direction,
            given(LENGTHS),
            constant=False,
            expect=unrolled(kind, direction),
        )
    yield sequence(kind, "one_step", "bidirectional", np.array([1, 1, 1]), steps=1)
    yield sequence(kind, "lengths_i32", lengths=In((N,), "i32", LENGTHS, const=True))
    yield sequence(kind, "no_length", lengths=np.zeros(N, np.int64), expect=unrolled(kind, "forward"))
    yield sequence(kind, "f16", "bidirectional", LENGTHS, dtype="f16")
    yield sequence(kind, "f64", "reverse", LENGTHS, dtype="f64", expect=unrolled(kind, "reverse"))
    relu = {"activations": ",".join(["relu"] * len(DEFAULTS[kind].split(",")))}
    yield sequence(kind, "relu", lengths=np.full(N, 3), steps=3, attrs=relu)  # longer sequences grow without bounds
    yield sequence(kind, "default_activations", attrs={"activations": DEFAULTS[kind]}, rankless=True)
    yield sequence(kind, "no_such_direction", attrs={"direction": "sideways"}, error="'sideways'")
    yield sequence(
        kind, "directions_differ", attrs={"direction": "bidirectional"}, error="numbers of directions 2 and 1 differ"
    )
    yield sequence(kind, "lengths_too_few", lengths=np.array([1, 2]), error="batch sizes 3 and 2 differ")
    yield sequence(kind, "lengths_real", lengths=const([1.0, 2.0], "f32"), error="lengths must be integers")


SEQUENCES = [
    *sequences("LSTM"),
    *sequences("GRU"),
    *sequences("RNN"),
    *(
        sequence("GRU", f"linear_{direction}", direction, LENGTHS, attrs=LINEAR)
        for direction in ("forward", "reverse", "bidirectional")
    ),
    sequence("GRU", "linear_full", "bidirectional", ALL, attrs=LINEAR),
    # OpenVINO does not support LSTMSequence-1
    *(
        sequence(
            "LSTM", f"{direction}_{text}", direction, lengths, version="opset1", expect=unrolled("LSTM", direction)
        )
        for direction in ("forward", "reverse", "bidirectional")
        for text, lengths in {"all": ALL, "some": LENGTHS, "no": 0 * ALL, "run_time": given(LENGTHS)}.items()
    ),
]
test_sequences = check(SEQUENCES)


# ---- errors of shapes and types


def broken(error: str, **changes: In) -> Case:
    inputs = {
        "x": uniform(N, D),
        "h": uniform(N, H),
        "c": uniform(N, H),
        "w": uniform(4 * H, D),
        "r": uniform(4 * H, H),
        "b": uniform(4 * H),
    } | changes
    return Case("LSTMCell", "opset4", list(inputs.values()), {"hidden_size": H}, 2, error=error)


ERRORS = [
    broken("batch sizes 3 and 2 differ", h=uniform(2, H)),
    broken("hidden sizes 7 and 6 differ", c=uniform(N, 6)),
    broken("X has 4 features, W takes 5", w=uniform(4 * H, 5)),
    broken("W has 21 rows of gates instead of 28", w=uniform(3 * H, D)),
    broken("R has 21 rows of gates instead of 28", r=uniform(3 * H, H)),
    broken("B has 7 rows of gates instead of 28", b=uniform(H)),
    broken("X must have rank 2, not 3", x=uniform(1, N, D)),
    broken("B must have rank 1, not 2", b=uniform(1, 4 * H)),
    broken("element types differ", h=uniform(N, H, kind="f16")),
    Case(
        "GRUCell",
        "opset3",
        [uniform(N, D), uniform(N, H), *weights("GRU")],
        {"hidden_size": H} | LINEAR,
        error="B has 21 rows of gates instead of 28",
    ),
]
test_errors = check(ERRORS)


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    """Draw a cell or sequence. The formulas judge hard sigmoids, lengths from parameters and LSTMSequence-1, which
    OpenVINO does not support."""
    kind, form = draw(st.sampled_from(tuple(GATES))), draw(st.sampled_from(("Cell", "Sequence")))
    n, steps, features, size = (draw(st.integers(1, most)) for most in (5, 6, 9, 9))
    functions = [draw(st.sampled_from(("sigmoid", "tanh", "relu", "hardsigmoid"))) for _ in DEFAULTS[kind].split(",")]
    attrs: dict[str, Any] = {"hidden_size": size, "activations": ",".join(functions)}
    if draw(st.booleans()):
        attrs["activations"] = DEFAULTS[kind]
    hard = "hardsigmoid" in attrs["activations"]
    if hard and draw(st.booleans()):
        attrs |= {
            name: [draw(st.integers(1, 9)) / 10 for _ in functions]
            for name in ("activations_alpha", "activations_beta")
        }
    if draw(st.booleans()):
        attrs["clip"] = draw(st.integers(1, 9)) / 10
    if linear := kind == "GRU" and draw(st.booleans()):
        attrs["linear_before_reset"] = True
    lead: tuple[int, ...] = ()
    lengths, fed = [], False
    if form == "Sequence":
        attrs["direction"] = draw(st.sampled_from(("forward", "reverse", "bidirectional")))
        lead = (2 if attrs["direction"] == "bidirectional" else 1,)
        fed, counts = draw(st.booleans()), np.array([draw(st.integers(1, steps)) for _ in range(n)])
        lengths = [given(counts) if fed else const(counts)]
    rows = GATES[kind] * size
    x, h, *matrices = [
        (n, steps, features) if lead else (n, features),
        (n, *lead, size),
        (*lead, rows, features),
        (*lead, rows, size),
        (*lead, rows + size * linear),
    ]
    dtype, states = draw(st.sampled_from(("f32", "f32", "f16"))), 2 if kind == "LSTM" else 1
    inputs = [uniform(*shape, kind=dtype) for shape in (x, *[h] * states)]
    constant = draw(st.booleans())
    matrices = [In(shape, dtype, const=constant, low=-0.5, high=0.5) for shape in matrices]
    formulas = unrolled(kind, attrs["direction"], attrs) if lead else reference(kind, attrs)
    versions = {
        "LSTMSequence": ("opset1", "opset5"),
        "LSTMCell": ("opset1", "opset4"),
        "GRUCell": ("opset3",),
        "RNNCell": ("opset1",),
    }.get(kind + form, ("opset5",))
    version = draw(st.sampled_from(versions))
    unjudged = hard or fed or (kind + form, version) == ("LSTMSequence", "opset1")
    return Case(
        f"{kind}{form}",
        version,
        [*inputs, *lengths, *matrices],
        attrs,
        states + bool(lead),
        expect=formulas if unjudged else None,
    )


test_random = sweep(drawn(), 100)
