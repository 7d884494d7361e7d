"""DynamicBatcher: the rows of every caller are those that the model computes for them alone."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.batching.model import batched
from tests.batching import nets
from tests.harness.ir import Net, Port
from tests.harness.layers import add, convert, extent, gather, i64, matmul, mul, relu, reshape
from tests.harness.models.drive import DATA, Expected

Array = np.ndarray[Any, Any]

# Whole models: the layer at fault where the rows of a batch are not independent.
REFUSED = {
    "bilstm": "TopK",  # sorts the batch by length
    "clip": "Reshape",  # compares every text with every image
    "detector": "NonMaxSuppression",
    "mixtral": "Slice",  # gathers the tokens of an expert
    "swin": "Reshape",  # with unknown extents of the image
}
STATELESS = sorted(
    file.parent.name
    for file in DATA.glob("*/model.xml")
    if "ReadValue" not in file.read_text(encoding="utf-8") and file.parent.name not in REFUSED
)


def perceptron(rows: Any = 1) -> ov.Model:
    """relu(x w) + offset, where the offset is a scalar input; x has [rows, SIZE]."""
    net = Net("perceptron")
    x, offset = net.parameter("f32", (rows, nets.SIZE), "x"), net.parameter("f32", (), "offset")
    hidden = relu(net, matmul(net, x, nets.weights(net, nets.SIZE, 4)))
    net.result(net.layer("Add", "opset1", [hidden, offset], names=["y"]))
    return nets.model(net)


def others(inputs: dict[str, Array]) -> dict[str, Array]:
    """Return inputs of the same shapes with other valid values."""
    return {name: x / 2 if x.dtype.kind == "f" else np.roll(x, 1, -1) for name, x in inputs.items()}


def numbers(rows: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((rows, nets.SIZE)).astype(np.float32)


@pytest.mark.drawn(12)
@pytest.mark.parametrize("name", STATELESS)
def test_whole_models(name: str, device: str) -> None:
    """Callers with the stored inputs of a model get the stored results, beside one with other inputs."""
    expected = Expected.load(DATA / name / "expected.npz")
    call = expected.calls[0]
    compiled = ov.Core().compile_model(DATA / name / "model.xml", device)
    with ov.DynamicBatcher(compiled, 3, max_wait_ms=200) as batcher:
        first, _, third = (batcher.submit(x) for x in (call.inputs, others(call.inputs), call.inputs))
        for future in (first, third):
            for found, wanted in zip(future.result().to_tuple(), call.outputs, strict=True):
                assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
                scale = np.abs(wanted.astype(np.float64)).max() or 1
                assert np.abs(found.astype(np.float64) - wanted).max() <= expected.tolerance * scale


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_mix_rows_are_refused_with_the_layer(name: str) -> None:
    with pytest.raises(ov.OpError, match=rf"^\[{REFUSED[name]}\] .*\(layer '.*model.xml\)$"):
        ov.DynamicBatcher(DATA / name / "model.xml", device="CPU")


@pytest.mark.parametrize("name", ["gpt2", next(iter(REFUSED))])
def test_failed_proofs_leave_no_garbage(name: str) -> None:
    """An error that the frame that raised it refers to would keep the model. A second proof of gpt2 succeeds."""
    model = ov.Core().read_model(DATA / name / "model.xml")
    gc.collect()
    gc.disable()
    try:
        with suppress(ov.OpError):
            batched(model)
        assert not [found for found in gc.get_objects() if isinstance(found, ov.OpError)]
    finally:
        gc.enable()


def test_many_threads(device: str) -> None:
    compiled = ov.Core().compile_model(perceptron(), device)
    found: dict[int, Array] = {}

    def run(i: int) -> None:
        found[i] = batcher.infer({"x": numbers(1 + i % 3, i), "offset": np.float32(i % 2)})["y"]

    with ov.DynamicBatcher(compiled, 8, requests=2, max_wait_ms=2) as batcher:
        threads = [threading.Thread(target=run, args=(i,)) for i in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for i, rows in found.items():
        request = compiled.create_infer_request()
        wanted = [request.infer({"x": x[None], "offset": np.float32(i % 2)})["y"] for x in numbers(1 + i % 3, i)]
        np.testing.assert_allclose(rows, np.concatenate(wanted), 2e-6, 2e-6)


def test_batches_have_the_sizes_given(monkeypatch: pytest.MonkeyPatch) -> None:
    from ovgpu.batching.request import BatchRequest

    sizes: list[int] = []
    infer = BatchRequest.infer_rows

    def watched(self: Any, inputs: Any, *others: Any) -> Any:
        sizes.append(len(inputs[0]))
        return infer(self, inputs, *others)

    monkeypatch.setattr(BatchRequest, "infer_rows", watched)
    with ov.DynamicBatcher(perceptron(-1), 10, "CPU", batch_sizes=[4, 6], max_wait_ms=0) as batcher:
        for rows in (1, 4, 5, 7, 10):
            assert len(batcher.infer([numbers(rows), 0])["y"]) == rows
        assert sizes == [4, 4, 6, 10, 10] and batcher.max_batch_size == 10
        with pytest.raises(ov.Error, match="extent of batch axis 0 is 11, but must be 1 to 10"):
            batcher.infer([numbers(11), 0])
    with ov.DynamicBatcher(perceptron(), 8, "CPU", max_wait_ms=2000) as batcher:
        futures = [batcher.submit([numbers(3, i), 0]) for i in range(4)]  # 3 + 3 fit into 8 rows, 3 + 3 + 3 do not
        batcher.close()
        assert sizes[5:] == [8, 8] and [len(f.result()["y"]) for f in futures] == [3] * 4


def test_inferences_submitted_together_share_a_batch() -> None:
    runs: list[Any] = []
    with ov.DynamicBatcher(perceptron(), 8, "CPU", max_wait_ms=0, observer=runs.append) as batcher:
        for _ in range(20):
            with batcher.together():
                futures = [batcher.submit([numbers(1, i), 0]) for i in range(5)]
            for future in futures:
                future.result()
    assert [run.rows for run in runs] == [5] * 20


def test_inputs_that_differ_in_shape_or_in_shared_values_are_batched_apart() -> None:
    net = Net()
    x, factor = net.parameter("f32", (1, -1), "x"), net.parameter("f32", (), "factor")
    net.result(net.layer("Multiply", "opset1", [x, factor], names=["y"]))
    with ov.DynamicBatcher(nets.model(net), 8, "CPU", max_wait_ms=50) as batcher:
        given = [(np.full((1, 1 + i % 3), i, np.float32), np.float32(i % 2)) for i in range(12)]
        futures = [batcher.submit(pair) for pair in given]
        for (value, scale), future in zip(given, futures):
            np.testing.assert_array_equal(future.result()["y"], value * scale)


def test_only_the_caller_at_fault_gets_an_error() -> None:
    net = Net()
    x, length = net.parameter("f32", (1, nets.SIZE), "x"), net.parameter("i32", (1,), "length")
    moved = net.layer("ReverseSequence", "opset1", [x, length], {"batch_axis": 0, "seq_axis": 1})
    net.result(add(net, moved, x))
    with ov.DynamicBatcher(nets.model(net), 3, "CPU", max_wait_ms=2000) as batcher:
        x1 = numbers(1)
        good, bad, other = (batcher.submit([x1, np.array([n], np.int32)]) for n in (1, nets.SIZE + 1, 1))
        with pytest.raises(ov.OpError, match="ReverseSequence"):
            bad.result()
        np.testing.assert_array_equal(good.result()[0], 2 * x1)
        np.testing.assert_array_equal(other.result()[0], 2 * x1)


def test_closing_and_cancelling() -> None:
    batcher = ov.DynamicBatcher(perceptron(), 8, "CPU", max_wait_ms=60_000)
    kept, lost = (batcher.submit([numbers(1), 0]) for _ in range(2))
    assert lost.cancel()
    batcher.close()
    assert kept.result()["y"].shape == (1, 4)
    with pytest.raises(CancelledError):
        lost.result()
    with pytest.raises(ov.Error, match="closed"):
        batcher.infer([numbers(1), 0])


@pytest.mark.parametrize("arguments", [{"max_batch_size": 0}, {"requests": 0}, {"batch_sizes": [0, 4]}])
def test_wrong_arguments(arguments: Any) -> None:
    with pytest.raises(ValueError, match="positive"):
        ov.DynamicBatcher(perceptron(), device="CPU", **arguments)


def test_models_with_states_need_sequences() -> None:
    with pytest.raises(ov.Error, match=r"'s'.*SequenceBatcher"):
        ov.DynamicBatcher(nets.sums(), device="CPU")


def test_a_model_without_a_batch_axis() -> None:
    net = Net()
    net.result(relu(net, net.parameter("f32", (3, 4), "x")))
    with pytest.raises(ov.Error, match="no input of the model has an axis for a batch"):
        ov.DynamicBatcher(nets.model(net), device="CPU")
    with pytest.raises(ov.Error, match=r"'x' of shape \[3,4\] has no axis 1"):
        ov.DynamicBatcher(nets.model(net), device="CPU", batch_axes={"x": 1})


def row_numbers(net: Net, x: Port) -> Port:
    """Return 0, 1, ... for the rows of x."""
    rows: Port = net.layer(
        "Range", "opset4", [i64(net, 0), reshape(net, extent(net, x, 0), []), i64(net, 1)], {"output_type": "i64"}
    )
    return rows


@pytest.mark.parametrize(
    ("build", "layer"),
    [
        (lambda net, x: net.layer("ReduceMean", "opset1", [x, net.const([0])], {"keep_dims": True}), "ReduceMean"),
        (lambda net, x: net.layer("Softmax", "opset8", [x], {"axis": 0}), "Softmax"),
        (lambda net, x: matmul(net, x, x, tb=True), "MatMul"),
        (lambda net, x: reshape(net, x, [4, -1]), "Reshape"),
        (lambda net, x: mul(net, x, net.layer("ShapeOf", "opset3", [x], {"output_type": "i64"}, ["i64"])), "Multiply"),
        (
            lambda net, x: net.layer(
                "RandomUniform",
                "opset8",
                [
                    net.layer("ShapeOf", "opset3", [x], {"output_type": "i64"}, ["i64"]),
                    net.const(np.float32(0)),
                    net.const(np.float32(1)),
                ],
                {"output_type": "f32", "global_seed": 1, "op_seed": 1},
                ["f32"],
            ),
            "RandomUniform",
        ),
        (lambda net, x: net.layer("NonZero", "opset3", [x], {"output_type": "i64"}, ["i64"]), "NonZero"),
        (
            lambda net, x: add(
                net, gather(net, net.const(np.ones((9, nets.SIZE), np.float32)), row_numbers(net, x)), x
            ),
            "Gather",
        ),
        (lambda net, x: mul(net, x, reshape(net, convert(net, row_numbers(net, x), "f32"), [-1, 1])), "Multiply"),
    ],
    ids=["reduce", "softmax", "matmul", "reshape", "count", "random", "unknown", "position", "row-number"],
)
def test_layers_that_mix_rows(build: Any, layer: str) -> None:
    net = Net()
    x = net.parameter("i64" if layer == "Multiply" else "f32", (1, 2) if layer == "Multiply" else (1, nets.SIZE), "x")
    net.result(build(net, x))
    with pytest.raises(ov.OpError, match=rf"^\[{layer}\] "):
        ov.DynamicBatcher(nets.model(net), device="CPU")


def slice_assigned(shift: int) -> ov.Model:
    """Return a model that replaces all elements of x by y, as PyTorch's ``x[:] = y`` does: by the indices of all
    elements, here plus ``shift``."""
    net = Net()
    x, y = (net.parameter("f32", (-1, nets.SIZE), name) for name in ("x", "y"))
    shape = net.layer("ShapeOf", "opset3", [x], {"output_type": "i64"}, ["i64"])
    count = net.layer("ReduceProd", "opset1", [shape, i64(net, 0)], {"keep_dims": False})
    indices = net.layer("Range", "opset4", [i64(net, 0), count, i64(net, 1)], {"output_type": "i64"})
    if shift:
        indices = add(net, indices, i64(net, shift))
    spread = reshape(net, reshape(net, indices, shape), [-1, 1])
    scattered = net.layer("ScatterNDUpdate", "opset4", [reshape(net, x, [-1]), spread, reshape(net, y, [-1])])
    net.result(reshape(net, scattered, shape))
    return nets.model(net)


def test_elements_written_by_their_indices() -> None:
    """Each row's elements are written by indices of that row alone; by others, they would reach the next row."""
    with ov.DynamicBatcher(slice_assigned(0), 4, "CPU", max_wait_ms=50) as batcher:
        futures = [batcher.submit([numbers(1, i), numbers(1, 9 + i)]) for i in range(4)]
        for i, future in enumerate(futures):
            np.testing.assert_array_equal(future.result()[0], numbers(1, 9 + i))
    with pytest.raises(ov.OpError, match=r"^\[ScatterNDUpdate\] the layer writes rows of the batch by index"):
        ov.DynamicBatcher(slice_assigned(1), device="CPU")


def test_inputs_whose_shapes_do_not_fit_each_other() -> None:
    """BERT indexes its mask by row * keys + key: a mask that is shorter than the tokens would give keys of the next
    row. Rows of equal shapes are accepted at once; other shapes are proven again, or refused."""
    with ov.DynamicBatcher(DATA / "bert" / "model.xml", 4, "CPU", max_wait_ms=0) as batcher:
        names = [port.any_name for port in batcher.compiled_model.inputs]
        ones = {name: np.ones((1, 6), np.int64) for name in names}
        assert batcher.infer(ones)[0].shape[:2] == (1, 6)
        for length in (4, 8):
            with pytest.raises(RuntimeError):
                batcher.infer({**ones, "attention_mask": np.ones((1, length), np.int64)})
        assert batcher.infer({name: np.ones((3, 1), np.int64) for name in names})[0].shape[:2] == (3, 1)
