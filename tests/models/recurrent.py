"""LSTM models as IR, made without openvino: one long sequence, and cells with state."""

from __future__ import annotations

import numpy as np

from tests.harness.ir import Net, Port


def lstm_sequence(
    seed: int, *, steps: int = 100, features: int = 512, hidden: int = 512
) -> tuple[bytes, bytes]:
    """One forward LSTMSequence-5, batch 1: inputs x [1,steps,features], h and c [1,1,hidden] -> y, h, c."""
    random = np.random.RandomState(seed)
    scale = 1 / np.sqrt(hidden)
    shapes = (1, 4 * hidden, features), (1, 4 * hidden, hidden), (1, 4 * hidden)
    net = Net("lstm_sequence")
    x = net.parameter("f32", (1, steps, features), "x")
    h, c = (net.parameter("f32", (1, 1, hidden), name) for name in "hc")
    lengths = net.const(np.array([steps], np.int64))
    weights = [net.const(random.uniform(-scale, scale, shape).astype(np.float32)) for shape in shapes]
    # OpenVINO takes activations that are not written for none at all.
    attrs = {"hidden_size": hidden, "direction": "forward", "activations": ["sigmoid", "tanh", "tanh"]}
    for value in net.layer("LSTMSequence", "opset5", [x, h, c, lengths, *weights], attrs, outputs=3):
        net.result(value)
    return net.build()


def lstm_state(seed: int, *, features: int = 40, hidden: int = 48, outputs: int = 11) -> tuple[bytes, bytes]:
    """Three LSTM cells with state, one frame [1,features] per inference, as speech models run.

    The layers differ in how their states begin: from a constant zero, without an initial value (ReadValue-6
    makes that zeros as well), and from a constant that is not zero.
    """
    random = np.random.RandomState(seed)
    net = Net("lstm_state")

    def weights(*shape: int) -> Port:
        return net.const(random.uniform(-0.3, 0.3, shape).astype(np.float32))

    x, size = net.parameter("f32", (1, features), "frame"), features
    for k, start in enumerate((0.0, None, 0.1)):
        names = f"h{k}", f"c{k}"
        init = None if start is None else net.const(np.full((1, hidden), start, np.float32))
        state = [net.read_value(name, "f32", (1, hidden), init) for name in names]
        matrices = weights(4 * hidden, size), weights(4 * hidden, hidden), weights(4 * hidden)
        cell = net.layer("LSTMCell", "opset4", [x, *state, *matrices], {"hidden_size": hidden}, outputs=2)
        for name, value in zip(names, cell):
            net.assign(name, value)
        x, size = cell[0], hidden
    attrs = {"transpose_a": False, "transpose_b": False}
    net.result(net.layer("MatMul", "opset1", [x, weights(hidden, outputs)], attrs, names=["y"]))
    return net.build()
