"""LSTM models as IR, built without openvino: one long sequence, and cells with state; and their torch equivalents."""

from __future__ import annotations

from typing import Any

import numpy as np
from lxml import etree
from numpy.typing import NDArray

from tests.harness.ir import Net, Port

Array = NDArray[Any]


def lstm_sequence(seed: int, *, steps: int = 100, features: int = 512, hidden: int = 512) -> tuple[bytes, bytes]:
    """Build one forward LSTMSequence-5, batch 1: inputs x [1,steps,features], h and c [1,1,hidden] -> y, h, c."""
    random = np.random.RandomState(seed)
    scale = 1 / np.sqrt(hidden)
    shapes = (1, 4 * hidden, features), (1, 4 * hidden, hidden), (1, 4 * hidden)
    net = Net("lstm_sequence")
    x = net.parameter("f32", (1, steps, features), "x")
    h, c = (net.parameter("f32", (1, 1, hidden), name) for name in "hc")
    lengths = net.const(np.array([steps], np.int64))
    weights = [net.const(random.uniform(-scale, scale, shape).astype(np.float32)) for shape in shapes]
    # OpenVINO takes missing activations for none at all.
    attrs = {"hidden_size": hidden, "direction": "forward", "activations": ["sigmoid", "tanh", "tanh"]}
    for value in net.layer("LSTMSequence", "opset5", [x, h, c, lengths, *weights], attrs, outputs=3):
        net.result(value)
    return net.build()


def lstm_state(seed: int, *, features: int = 40, hidden: int = 48, outputs: int = 11) -> tuple[bytes, bytes]:
    """Build three LSTM cells with state, which take one frame [1,features] per inference, as speech models do.

    The initial states of the layers differ: a constant zero, no initial value (ReadValue-6 makes it zeros as
    well), and a constant that is not zero.
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


def weights_of(ir: tuple[bytes, bytes]) -> tuple[Array, Array, Array]:
    """Return the input weights, recurrent weights and bias of the one unidirectional recurrent layer."""
    w, r, b = (
        np.frombuffer(ir[1], np.float32, int(data.get("size")) // 4, int(data.get("offset"))).reshape(
            [int(n) for n in data.get("shape").split(",")]
        )
        for data in etree.fromstring(ir[0]).iter("data")
        if data.get("element_type") == "f32" and data.get("offset") is not None
    )
    return w.reshape(w.shape[-2:]), r.reshape(r.shape[-2:]), b.reshape(-1)


def torch_lstm(w: Array, r: Array, bias: Array, *, every_state: bool) -> Any:
    """Build `torch.nn.LSTM` (cuDNN's on a GPU): x [1,T,I], h and c [1,H] or [1,1,H] -> y, or y, h, c."""
    import torch

    hidden = r.shape[1]
    order = np.concatenate([np.arange(hidden) + k * hidden for k in (1, 0, 2, 3)])  # gates f i c o -> i f g o

    class Lstm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(w.shape[1], hidden, batch_first=True)
            for name, value in (
                ("weight_ih_l0", w[order]),
                ("weight_hh_l0", r[order]),
                ("bias_ih_l0", bias[order]),
                ("bias_hh_l0", np.zeros_like(bias)),
            ):
                getattr(self.lstm, name).data = torch.from_numpy(value)

        def forward(self, x: Any, h: Any, c: Any) -> Any:
            y, (h, c) = self.lstm(x, (h.reshape(1, 1, hidden), c.reshape(1, 1, hidden)))
            return (y.unsqueeze(1), h, c) if every_state else y

    return Lstm()
