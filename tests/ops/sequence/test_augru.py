"""AUGRUCell and AUGRUSequence, which OpenVINO makes from other layers, but does not read from files."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, given, sweep
from tests.harness.cases import Array

N, T, D, H = 3, 5, 4, 7
LENGTHS = np.array([2, T, 0])


def uniform(*shape: int, kind: str = "f32", low: float = -1) -> In:
    return In(shape, kind, low=low, high=1)


def step(x: Array, h: Array, w: Array, r: Array, b: Array, a: Array) -> Array:
    """Return the next state by the formulas of the reference implementation, in f64."""
    x, h, w, r, b, a = (m.astype(np.float64) for m in (x, h, w, r, b, a))

    def gate(number: int, recurrent: Array) -> Array:
        rows = slice(number * H, number * H + H)
        found: Array = x @ w[rows].T + recurrent @ r[rows].T + b[rows]
        return found

    z, reset = (1 / (1 + np.exp(-gate(i, h))) for i in (0, 1))
    z = (1 - a) * z
    after: Array = (1 - z) * np.tanh(gate(2, reset * h)) + z * h
    return after


def by_step(x: Array, *others: Array) -> Array:
    return step(x, *others).astype(x.dtype)


def by_steps(x: Array, h: Array, lengths: Array, w: Array, r: Array, b: Array, a: Array) -> list[Array]:
    state, y = h[:, 0].astype(np.float64), np.zeros((len(x), 1, x.shape[1], H))
    for t in range(x.shape[1]):
        active = (lengths > t)[:, None]
        state = np.where(active, step(x[:, t], state, w[0], r[0], b[0], a[:, t]), state)
        y[:, 0, t] = np.where(active, state, 0)
    state = np.where((lengths > 0)[:, None], state, 0)
    return [y.astype(x.dtype), state[:, None].astype(x.dtype)]


def cell(id: str, n: int = N, kind: str = "f32", attention: In | None = None, **more: Any) -> Case:
    inputs = [uniform(*shape, kind=kind) for shape in ((n, D), (n, H), (3 * H, D), (3 * H, H), (3 * H,))]
    attrs = {"hidden_size": H} | more.pop("attrs", {})
    more.setdefault("expect", by_step)
    return Case(
        "AUGRUCell",
        "ie_internal_opset",
        [*inputs, attention or uniform(n, 1, kind=kind, low=0)],
        attrs,
        [kind],
        id=id,
        **more,
    )


def sequence(
    id: str,
    n: int = N,
    kind: str = "f32",
    lengths: Any = LENGTHS,
    steps: int = T,
    attention: In | None = None,
    **more: Any,
) -> Case:
    shapes = (n, steps, D), (n, 1, H), (1, 3 * H, D), (1, 3 * H, H), (1, 3 * H)
    x, h, *weights = (uniform(*shape, kind=kind) for shape in shapes)
    attrs = {"hidden_size": H, "direction": "forward"} | more.pop("attrs", {})
    inputs = [x, h, given(lengths), *weights, attention or uniform(n, steps, 1, kind=kind, low=0)]
    more.setdefault("expect", by_steps)
    return Case("AUGRUSequence", "ie_internal_opset", inputs, attrs, [kind, kind], id=id, **more)


CELLS = [
    cell("plain", rankless=True),
    cell("one_row", 1),
    cell("many_rows", 13),
    cell("two_rows", 2),
    cell("spelled", attrs={"activations": "sigmoid,tanh", "clip": 0.0, "linear_before_reset": False}),
    cell("no_attention", attention=given(np.zeros((N, 1), np.float32))),
    cell("all_attention", attention=given(np.ones((N, 1), np.float32))),
    cell("attention_beyond_1", attention=In((N, 1), low=-2, high=3)),
    *(cell(kind, kind=kind) for kind in ("f16", "bf16", "f64")),
    cell("half_attention", kind="f64", attention=given(np.full((N, 1), 0.5))),
    cell("clip", attrs={"clip": 0.5}, error="clip, linear_before_reset and other activations"),
    cell("linear", attrs={"linear_before_reset": True}, error="3 H|linear_before_reset|rows"),
    cell("relu", attrs={"activations": "relu,tanh"}, error="other activations than sigmoid, tanh"),
    cell("rank", attention=uniform(N), error="A must have rank 2, not 1"),
    cell("rows", attention=uniform(N + 1, 1), error="X has 3 rows or steps, A has 4", dynamic=False),
    cell("columns", attention=uniform(N, 2), error="A has 2 columns instead of 1"),
    cell("type", attention=uniform(N, 1, kind="f16"), error="element types differ"),
]
SEQUENCES = [
    sequence("plain", rankless=True),
    sequence("one_sequence", 1, lengths=np.array([T])),
    sequence("all_steps", lengths=np.array([T, T, T])),
    sequence("lengths_i32", lengths=LENGTHS.astype(np.int32)),
    sequence("one_step", lengths=np.array([1, 1, 0]), steps=1),
    sequence("nothing", lengths=np.zeros(N, np.int64)),
    sequence("no_attention", attention=given(np.zeros((N, T, 1), np.float32))),
    sequence("attention_beyond_1", attention=In((N, T, 1), low=-2, high=3)),
    sequence("many", 9, lengths=np.arange(9) % (T + 1)),
    *(sequence(kind, kind=kind) for kind in ("f16", "bf16", "f64")),
    sequence("reverse", attrs={"direction": "reverse"}, error="direction is reverse, not forward"),
    sequence("clip", attrs={"clip": 0.5}, error="clip, linear_before_reset and other activations"),
    sequence("steps", attention=uniform(N, T + 1, 1), error="X has 5 rows or steps, A has 6"),
    sequence("rank", attention=uniform(N, T), error="A must have rank 3, not 2"),
]
test_cases = check([*CELLS, *SEQUENCES])


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    n, steps, kind = draw(st.integers(1, 9)), draw(st.integers(1, 9)), draw(st.sampled_from(("f32", "f16", "f64")))
    name = f"random_{n}_{steps}_{kind}"
    if draw(st.booleans()):
        return cell(name, n, kind)
    lengths = [draw(st.integers(0, steps)) for _ in range(n)]
    return sequence(f"{name}_{lengths}", n, kind, np.array(lengths, draw(st.sampled_from((np.int32, np.int64)))), steps)


test_random = sweep(drawn(), 100)
