"""LSTM models as IR text, made without openvino: one long sequence, and cells with state."""

from __future__ import annotations

import numpy as np

from .irtext import Graph, Value


def lstm_sequence(
    seed: int, *, steps: int = 100, features: int = 512, hidden: int = 512
) -> tuple[str, bytes]:
    """One forward LSTMSequence-5, batch 1: inputs x [1,steps,features], h and c [1,1,hidden] -> y, h, c."""
    random = np.random.RandomState(seed)
    scale = 1 / np.sqrt(hidden)
    shapes = (1, 4 * hidden, features), (1, 4 * hidden, hidden), (1, 4 * hidden)
    graph = Graph("lstm_sequence")
    x = graph.parameter("float32", (1, steps, features), "x")
    h, c = (graph.parameter("float32", (1, 1, hidden), name) for name in "hc")
    lengths = graph.constant(np.array([steps], np.int64))
    weights = [graph.constant(random.uniform(-scale, scale, s).astype(np.float32)) for s in shapes]
    state = ("float32", (1, 1, hidden))
    outputs = graph.add(
        "LSTMSequence", [x, h, c, lengths, *weights], [("float32", (1, 1, steps, hidden)), state, state],
        names=["y", "h_out", "c_out"], version="opset5", hidden_size=hidden, direction="forward",
        activations="sigmoid,tanh,tanh",
    )  # fmt: skip
    for value in outputs:
        graph.result(value)
    return graph.xml(), bytes(graph.weights)


def lstm_state(seed: int, *, features: int = 40, hidden: int = 48, outputs: int = 11) -> tuple[str, bytes]:
    """Three LSTM cells with state, one frame [1,features] per inference, as speech models run.

    The layers differ in how their states begin: from a constant zero, without an initial value (ReadValue-6
    makes that zeros as well), and from a constant that is not zero.
    """
    random = np.random.RandomState(seed)
    state = ("float32", (1, hidden))
    graph = Graph("lstm_state")
    x = graph.parameter("float32", (1, features), "frame")

    def weights(*shape: int) -> Value:
        return graph.constant(random.uniform(-0.3, 0.3, shape).astype(np.float32))

    for k, start in enumerate((0.0, None, 0.1)):
        names = f"h{k}", f"c{k}"
        init = [] if start is None else [graph.constant(np.full((1, hidden), start, np.float32))]
        read = [
            graph.add(
                "ReadValue", init, [state], version="opset6",
                variable_id=name, variable_type="f32", variable_shape=f"1,{hidden}",
            )[0]
            for name in names
        ]  # fmt: skip
        matrices = weights(4 * hidden, x.shape[1]), weights(4 * hidden, hidden), weights(4 * hidden)
        cell = graph.add("LSTMCell", [x, *read, *matrices], [state] * 2, version="opset4", hidden_size=hidden)
        for name, value in zip(names, cell):
            graph.add("Assign", [value], [state], version="opset6", variable_id=name)
        x = cell[0]
    y = graph.add(
        "MatMul", [x, weights(hidden, outputs)], [("float32", (1, outputs))], names=["y"],
        transpose_a="false", transpose_b="false",
    )[0]  # fmt: skip
    graph.result(y)
    return graph.xml(), bytes(graph.weights)
