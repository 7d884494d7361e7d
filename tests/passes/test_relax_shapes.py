"""`Model.reshape` of models whose constants hold the batch: taken, refused and computed as by OpenVINO."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest

import ovgpu
from tests.harness import Net
from tests.harness.ir import Port, feed, take

K, N, H = 12, 5, 3
Build = Callable[[Net], Port]


def weights(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype("f4")


def reshape(net: Net, x: Port, target: list[int], special_zero: bool = False) -> Port:
    y: Port = net.layer("Reshape", "opset1", [x, net.const(np.array(target))], {"special_zero": special_zero})
    return y


def matmul(net: Net, a: Port, b: Port, transpose_a: bool = False, transpose_b: bool = False) -> Port:
    y: Port = net.layer("MatMul", "opset1", [a, b], {"transpose_a": transpose_a, "transpose_b": transpose_b})
    return y


def ints(net: Net, *rows: list[int]) -> list[Port]:
    return [net.const(np.array(row)) for row in rows]


def x_of(net: Net, *shape: int) -> Port:
    return net.parameter("f32", shape or (1, 3, 4), "x")


def products() -> Iterator[tuple[str, Build]]:
    """Yield products of an operand of one row, [1, K], by constants, converted and transposed ones, and inputs."""
    targets = {"1_K": [1, K], "rest_K": [-1, K], "1_rest": [1, -1], "0_K": [0, K], "K": [K], "2_half": [2, K // 2]}
    for i, (name, target), kind in product((0, 1), targets.items(), ("f32", "f16", "transposed", "input", "vector")):
        for flat, flip in product((False, True), (False, True)):
            if flat and (len(target) == 1 or 0 in target):
                continue

            def build(
                net: Net, i: int = i, target: list[int] = target, kind: str = kind, flat: bool = flat, flip: bool = flip
            ) -> Port:
                shape = target[::-1] if flat else target
                rows = reshape(net, x_of(net), shape, 0 in target)
                inner = K // 2 if target[0] == 2 else K
                by_rows = flip if i == 0 else not flip  # the other operand is [N, K]
                extents = (inner,) if kind == "vector" else (N, inner) if by_rows else (inner, N)
                if kind == "f16":
                    constant = net.const(weights(*extents), "f16")
                    other: Port = net.layer("Convert", "opset1", [constant], {"destination_type": "f32"})
                elif kind == "transposed":
                    constant = net.const(weights(*extents[::-1]), "f32")
                    other = net.layer("Transpose", "opset1", [constant, *ints(net, [1, 0])])
                elif kind == "input":
                    other = net.parameter("f32", extents, "w")
                else:
                    other = net.const(weights(*extents), "f32")
                if i == 0:
                    return matmul(net, rows, other, flat, flip)
                return matmul(net, other, rows, flip, not flat)

            yield f"{'ab'[i]}_{name}_{kind}_{'T' * flat}{'t' * flip}", build


def two_users(net: Net) -> Port:
    rows = reshape(net, x_of(net), [1, K])
    y = matmul(net, rows, net.const(weights(K, K), "f32"))
    z: Port = net.layer("Add", "opset1", [y, rows])
    return z


def between(*parts: str, rank: int = 3, bias: tuple[int, ...] = (N,), row: int = 1) -> Build:
    """Return [1, 3, 4] -> Reshape to [-1, 4] -> MatMul -> Add -> Reshape to [1, 3, N], with some parts left out."""

    def build(net: Net) -> Port:
        shape = (1, 3, 4) if rank == 3 else (1, 2, 3, 4)
        rows = reshape(net, x_of(net, *shape), [-1, 4])
        y = matmul(net, rows, net.const(weights(4, N), "f32"))
        if "add" in parts:
            y = net.layer("Add", "opset1", [y, net.const(weights(*bias), "f32")])
        if "relu" in parts:
            y = net.layer("Relu", "opset1", [y])
        return reshape(net, y, [row, *shape[1:-1], N])

    return build


def proposal(version: str, numbers: int, converted: bool) -> Build:
    attrs = {
        "base_size": 16, "pre_nms_topn": 20, "post_nms_topn": 5, "nms_thresh": 0.7, "feat_stride": 16, "min_size": 1,
        "ratio": "0.5,1", "scale": "2",
    }  # fmt: skip

    def build(net: Net) -> Port:
        scores, offsets = net.parameter("f32", (1, 4, 3, 3), "x"), net.parameter("f32", (1, 8, 3, 3), "y")
        image: Any = net.parameter("f16" if converted else "f32", (1, numbers), "image")
        if converted:
            image = net.layer("Convert", "opset1", [image], {"destination_type": "f32"})
        found = net.layer(
            "Proposal", version, [scores, offsets, reshape(net, image, [numbers])], attrs, 1 + (version == "opset4")
        )
        return found[0] if isinstance(found, tuple) else found

    return build


def cell(net: Net, name: str, x: Port, states: list[Port]) -> Any:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[name]
    version = {"LSTM": "opset4", "GRU": "opset3", "RNN": "opset0"}[name]
    matrices = [net.const(weights(gates * H, n), "f32") for n in (4, H)]
    bias = net.const(weights(gates * H), "f32")
    return net.layer(f"{name}Cell", version, [x, *states, *matrices, bias], {"hidden_size": H}, len(states))


def lstm(rows: int) -> Build:
    def build(net: Net) -> Port:
        states = [net.const(weights(rows, H), "f32") for _ in range(2)]
        y: Port = cell(net, "LSTM", x_of(net, rows, 4), states)[0]
        return y

    return build


def looped(axis: int) -> Build:
    """Return LSTMCell in a TensorIterator over the rows or columns of the input, with constant states."""

    def build(net: Net) -> Port:
        body = Net("body")
        xi = body.parameter("f32", (1, 1, 4), "xi")
        h, c = (body.parameter("f32", (1, H), name) for name in "hc")
        row = body.layer("Squeeze", "opset1", [xi, body.const(np.array([axis]))])
        new_h, new_c = (body.result(port) for port in cell(body, "LSTM", row, [h, c]))
        x = x_of(net, *((1, 6) if axis else (6, 1)), 4)
        states = [net.const(weights(1, H), "f32") for _ in range(2)]
        inputs = [feed(x, xi, axis=axis), *(feed(s, p) for s, p in zip(states, (h, c)))]
        y: Port = net.tensor_iterator(body, inputs, [take(new_h)], [(new_h, h), (new_c, c)])
        return y

    return build


def squeezed(
    first: str, begin: list[int], end: list[int], masks: tuple[list[int], list[int]], axis: int, axes: int = 3
) -> Build:
    """Return Squeeze -> StridedSlice or the other way round, of [1, 3, 4] or [3, 3, 4]."""
    attrs = {"begin_mask": str(masks[0])[1:-1], "end_mask": str(masks[1])[1:-1]}

    def build(net: Net) -> Port:
        y = x_of(net, 1, 3, 4)
        for op in (first, "StridedSlice" if first == "Squeeze" else "Squeeze"):
            if op == "Squeeze":
                y = net.layer("Squeeze", "opset1", [y, *ints(net, [axis])])
            else:
                y = net.layer("StridedSlice", "opset1", [y, *ints(net, begin, end, [1] * len(begin))], attrs)
        return y

    return build


def positions(values: Any, mode: str, kind: str = "i64") -> Build:
    def build(net: Net) -> Port:
        shape = net.layer(
            "ShapeOf", "opset3", [net.parameter("f32", (1, np.size(values)), "x")], {"output_type": "i64"}
        )
        y: Port = net.layer("Broadcast", "opset3", [net.const(values, kind), shape], {"mode": mode})
        return y

    return build


CASES: dict[str, Build] = {
    **dict(products()),
    "two_users": two_users,
    "no_matmul": lambda net: reshape(net, x_of(net), [1, K]),
    "vector": lambda net: reshape(net, x_of(net), [K]),
    "sink": between(),
    "sink_add": between("add"),
    "sink_add_rows": between("add", bias=(1, N)),
    "sink_add_full": between("add", bias=(3, N)),
    "sink_add_relu": between("add", "relu"),
    "sink_rank_4": between("add", rank=4),
    "proposal_1": proposal("opset1", 3, False),
    "proposal_4": proposal("opset4", 4, False),
    "proposal_4_f16": proposal("opset4", 3, True),
    "lstm": lstm(1),
    "lstm_of_two": lstm(2),
    "looped_over_columns": looped(1),
    "looped_over_rows": looped(0),
    "squeeze_slice": squeezed("Squeeze", [0, 0], [1, 1], ([0, 1], [0, 1]), 0),
    "squeeze_slice_1": squeezed("Squeeze", [1], [3], ([0], [0]), 0),
    "squeeze_slice_open": squeezed("Squeeze", [0, 1], [0, 0], ([1, 0], [1, 1]), 0),
    "slice_squeeze": squeezed("StridedSlice", [0, 0], [1, 1], ([0, 1], [0, 1]), 0),
    "slice_squeeze_open": squeezed("StridedSlice", [0], [0], ([1], [1]), 0),
    "slice_squeeze_last": squeezed("StridedSlice", [-1, 0], [0, 2], ([0, 0], [1, 0]), 0),
    "slice_squeeze_inner": squeezed("StridedSlice", [0, 1], [0, 2], ([1, 0], [1, 0]), 1),
    "range": positions(np.arange(7), "bidirectional"),
    "range_column": positions(np.arange(7)[None], "bidirectional", "i32"),
    "range_from_1": positions(np.arange(1, 8), "bidirectional"),
    "range_short": positions(np.arange(5), "bidirectional"),
    "range_numpy": positions(np.arange(7), "numpy"),
    "range_f32": positions(np.arange(7), "bidirectional", "f32"),
}
ROWS = [pytest.param(name, marks=pytest.mark.drawn(12) if name[:2] in ("a_", "b_") else ()) for name in CASES]


def net_of(name: str) -> Net:
    net = Net(name)
    net.result(CASES[name](net))
    return net


def reshaped(library: Any, name: str, batch: int) -> Any:
    """Return the model with another batch, None if the library refuses it."""
    model = library.Core().read_model(*net_of(name).build())
    axis = 1 if name == "looped_over_rows" else 0
    shapes = {}
    for port in model.inputs:
        shapes[port] = list(port.partial_shape)
        if port.any_name != "w":
            shapes[port][axis] = batch
    try:
        model.reshape(shapes)
    except RuntimeError:
        return None
    return model


def computed(library: Any, model: Any, given: list[Any], device: str = "CPU") -> list[Any] | None:
    """Return the results of a model in f32, None if it refuses these inputs."""
    try:
        compiled = library.Core().compile_model(model, device, {"INFERENCE_PRECISION_HINT": "f32"})
        return [*compiled(given).values()]
    except RuntimeError:
        return None


def inputs(model: Any) -> list[Any]:
    """Return random values of the model's inputs, with 2 for dynamic extents."""
    rng = np.random.default_rng(4)
    shapes = [[2 if d.is_dynamic else d.get_length() for d in port.partial_shape] for port in model.inputs]
    types = [port.get_element_type().to_dtype() for port in model.inputs]
    return [rng.uniform(0, 1, shape).astype(dtype) for shape, dtype in zip(shapes, types)]


def check(name: str, batch: int, device: str) -> None:
    """Compare shapes and results of the model with another batch, or that both libraries refuse it."""
    theirs, ours = reshaped(openvino, name, batch), reshaped(ovgpu, name, batch)
    assert (theirs is None) == (ours is None), batch
    if theirs is not None:
        assert [str(p.partial_shape) for p in ours.outputs] == [str(p.partial_shape) for p in theirs.outputs], batch
        given = inputs(theirs)
        wanted, found = computed(openvino, theirs, given), computed(ovgpu, ours, given, device)
        assert (wanted is None) == (found is None) or batch == -1, batch
        for a, b in zip(found or (), wanted or ()):
            np.testing.assert_allclose(a, b, 1e-5, 1e-5)


@pytest.mark.parametrize("name", ROWS)
def test_batches(name: str) -> None:
    for batch in (1, 2, 3, -1):
        check(name, batch, "CPU")


@pytest.mark.parametrize("name", ["a_1_K_f32_", "a_1_K_input_t", "lstm", "looped_over_columns", "range"])
def test_devices(name: str, device: str) -> None:
    check(name, 3, device)


@pytest.mark.parametrize("name", ["GRU", "RNN"])
def test_other_cells(name: str) -> None:
    """Constant states of all cells have as many rows as their input; OpenVINO refuses those that are no LSTMCell."""
    net = Net()
    x = x_of(net, 1, 4)
    net.result(cell(net, name, x, [net.const(weights(1, H), "f32")]))
    model = ovgpu.Core().read_model(*net.build())
    model.reshape([3, 4])
    rows = weights(3, 4)
    single = ovgpu.Core().compile_model(ovgpu.Core().read_model(*net.build()), "CPU")
    found = ovgpu.Core().compile_model(model, "CPU")([rows])[0]
    np.testing.assert_allclose(found, np.concatenate([single([row[None]])[0] for row in rows]), 1e-6)


def test_saved(tmp_path: Path) -> None:
    """A reshaped model is saved with the new layers, which openvino reads."""
    ours = reshaped(ovgpu, "a_1_K_input_t", 3)
    ovgpu.save_model(ours, tmp_path / "m.xml")
    theirs = openvino.Core().read_model(tmp_path / "m.xml")
    given = inputs(theirs)
    np.testing.assert_allclose(computed(openvino, theirs, given), computed(ovgpu, ours, given), 1e-5)
    theirs.reshape({0: [5, 3, 4], 1: theirs.input(1).partial_shape})
    assert str(theirs.output().partial_shape) == "[5,5]"


def test_same_shapes_change_nothing() -> None:
    model = ovgpu.Core().read_model(*net_of("a_1_K_input_t").build())
    before = [node.op.name for node in model.ops]
    model.reshape({port: port.partial_shape for port in model.inputs})
    assert [node.op.name for node in model.ops] == before
