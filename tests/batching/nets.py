"""Small models for one sequence at a time: batch 1, or dynamic."""

from __future__ import annotations

from typing import Any

import numpy as np

import ovgpu as ov
from tests.harness.ir import Net, Port, feed, take
from tests.harness.layers import add, i64, matmul, mul, relu, reshape, tanh, transpose
from tests.harness.models.recurrent import lstm_state

SIZE = 8


def model(net: Net) -> ov.Model:
    return ov.Core().read_model(*net.build())


def weights(net: Net, *shape: int, seed: int = 0) -> Port:
    return net.const(np.random.default_rng(seed).uniform(-0.3, 0.3, shape).astype(np.float32))


def streaming_lstm() -> ov.Model:
    """Three LSTM cells with states, of different initial values."""
    return ov.Core().read_model(*lstm_state(3))


def sums(initial: float = 0.5) -> ov.Model:
    """State s += x, with an initial value; and a count of the steps in i64. Both are results."""
    net = Net("sums")
    x = net.parameter("f32", (1, SIZE), "x")
    s = net.read_value("s", "f32", (1, SIZE), net.const(np.full((1, SIZE), initial, np.float32)))
    n = net.read_value("n", "i64", (1,), net.const(np.zeros(1, np.int64)))
    total, count = add(net, s, x), add(net, n, net.const(np.ones(1, np.int64)))
    net.assign("s", total)
    net.assign("n", count)
    net.result(net.layer("Tanh", "opset1", [total], names=["y"]))
    net.result(net.layer("Add", "opset1", [count, net.const(np.zeros(1, np.int64))], names=["steps"]))
    return model(net)


def first_frame() -> ov.Model:
    """State whose initial value is the first input; it then decays towards the later ones."""
    net = Net("first_frame")
    x = net.parameter("f32", (1, SIZE), "x")
    s = net.read_value("s", "f32", (1, SIZE), relu(net, x))
    new = mul(net, add(net, s, x), net.const(np.full((1, 1), 0.5, np.float32)))
    net.assign("s", new)
    net.result(net.layer("Relu", "opset1", [new], names=["y"]))
    return model(net)


def time_major() -> ov.Model:
    """A GRU over a chunk [T, 1, SIZE] with a state [1, 1, SIZE], in the layout of PyTorch: the batch is axis 1.

    The constant shapes, and the initial state of the second layer, are for batch 1.
    """
    net = Net("time_major")
    x = net.parameter("f32", (4, 1, SIZE), "x")
    state = net.read_value("h", "f32", (1, 1, SIZE))
    hidden: Any = state
    for layer in range(2):
        rows = transpose(net, x, [1, 0, 2])
        first = reshape(net, hidden, [1, 1, SIZE])
        w, r, b = (
            weights(net, 1, 3 * SIZE, *size, seed=10 * layer + i) for i, size in enumerate(((SIZE,), (SIZE,), ()))
        )
        y, last = net.layer(
            "GRUSequence",
            "opset5",
            [rows, first, i64(net, [4]), w, r, b],
            {
                "hidden_size": SIZE,
                "direction": "forward",
                "activations": ["sigmoid", "tanh"],
                "linear_before_reset": False,
            },
            outputs=2,
        )
        if not layer:
            net.assign("h", reshape(net, last, [1, 1, SIZE]))
        x = transpose(net, reshape(net, y, [1, 4, SIZE]), [1, 0, 2])
        hidden = net.const(np.full((1, 1, SIZE), 0.2, np.float32))
    flat = reshape(net, transpose(net, x, [1, 0, 2]), [1, 4 * SIZE])
    net.result(net.layer("Tanh", "opset1", [flat], names=["y"]))
    return model(net)


def iterated() -> ov.Model:
    """State that a TensorIterator updates for each frame of a chunk [1, 3, SIZE]."""
    body = Net("body")
    frame, h = body.parameter("f32", (1, 1, SIZE), "frame"), body.parameter("f32", (1, SIZE), "h")
    new = tanh(body, add(body, reshape(body, frame, [1, SIZE]), h))
    out, back = body.result(reshape(body, new, [1, 1, SIZE])), body.result(new)
    net = Net("iterated")
    x = net.parameter("f32", (1, 3, SIZE), "x")
    s = net.read_value("s", "f32", (1, SIZE))
    y, last = net.tensor_iterator(
        body, [feed(x, frame, axis=1), feed(s, h)], [take(out, axis=1), take(back)], [(back, h)]
    )
    net.assign("s", last)
    net.result(net.layer("Relu", "opset1", [y], names=["y"]))
    return model(net)


def switched() -> ov.Model:
    """A scalar input that all rows share: it is multiplied with the state."""
    net = Net("switched")
    x, gain = net.parameter("f32", (1, SIZE), "x"), net.parameter("f32", (), "gain")
    s = net.read_value("s", "f32", (1, SIZE))
    new = add(net, mul(net, s, gain), x)
    net.assign("s", new)
    net.result(net.layer("Relu", "opset1", [new], names=["y"]))
    return model(net)


def picky() -> ov.Model:
    """State s += x with the first ``length`` elements reversed: a length of more than SIZE is an error on the CPU."""
    net = Net("picky")
    x, length = net.parameter("f32", (1, SIZE), "x"), net.parameter("i32", (1,), "length")
    s = net.read_value("s", "f32", (1, SIZE))
    moved = net.layer("ReverseSequence", "opset1", [x, length], {"batch_axis": 0, "seq_axis": 1}, name="reverse")
    new = add(net, s, moved)
    net.assign("s", new)
    net.result(net.layer("Relu", "opset1", [new], names=["y"]))
    return model(net)


def decoder(masked: bool = True, ranked: bool = False) -> ov.Model:
    """Attention of frames [1, S, SIZE] to all frames so far, with a mask [1, past + S] of 0 and 1, as decoders have it.

    The mask and positions are added to the scores; a frame also attends to those after it in the same step. If
    ``ranked``, the result has the k largest values of each frame, for an input k.
    """
    net = Net("decoder")
    x, mask = net.parameter("f32", (1, -1, SIZE), "x"), net.parameter("f32", (1, -1), "mask")
    frames = net.layer("Unsqueeze", "opset1", [x, i64(net, [1])])
    whole = []
    for name in ("keys", "values"):
        past = net.read_value(name, "f32", (1, 1, -1, SIZE))
        new = matmul(net, frames, weights(net, SIZE, SIZE, seed=len(whole)))
        whole.append(net.layer("Concat", "opset1", [past, new], {"axis": 2}))
        net.assign(name, whole[-1])
    hidden = mul(net, add(net, mask, net.const(np.float32(-1))), net.const(np.float32(1e9)))
    bias = net.layer("Unsqueeze", "opset1", [hidden, i64(net, [1, 2])])
    given = [bias] if masked else []
    y = net.layer("ScaledDotProductAttention", "opset13", [frames, *whole, *given], {"causal": False}, name="attend")
    if ranked:
        k = net.parameter("i32", (), "k")
        y = net.layer("TopK", "opset11", [y, k], {"axis": -1, "mode": "max", "sort": "value"}, outputs=2)[0]
    net.result(net.layer("Squeeze", "opset1", [y, i64(net, [1])], names=["y"]))
    return model(net)
