"""Predictor without a cluster: every row is computed as by a plain compiled model for that row alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
import ray

import ovgpu as ov
from ovgpu.integrations.ray.runners import SequenceRunner
from tests.batching import nets
from tests.batching.test_dynamic_batcher import REFUSED, numbers, perceptron
from tests.harness.ir import Net, Port
from tests.harness.layers import i64, relu
from tests.harness.models.drive import DATA, Expected

Array = np.ndarray[Any, Any]
Predictor = ov.ray.Predictor
WIDTH = nets.SIZE


def one_by_one(model: Any, device: str, rows: Array, name: str = "x", **others: Any) -> Array:
    """Return the first output of single requests for the rows, without their batch axis of 1."""
    request = ov.Core().compile_model(model, device).create_infer_request()
    return np.stack([np.array(request.infer({name: row[None], **others})[0][0]) for row in rows])


def unary(kind: str, port_type: str, shape: Any, attributes: Any = None, result: str | None = None) -> ov.Model:
    """Return a model of one layer of opset1, from x to y."""
    net = Net(kind)
    x = net.parameter(port_type, shape, "x")
    net.result(net.layer(kind, "opset1", [x], attributes, [result or port_type], names=["y"]))
    return nets.model(net)


def converted(kind: str) -> ov.Model:
    return unary("Convert", "f32", (1, 3), {"destination_type": kind}, kind)


def strings() -> ov.Model:
    """Strings [1, n] as they are."""
    net = Net("strings")
    x = net.parameter("string", (1, -1), "x")
    net.result(net.layer("Reshape", "opset1", [x, i64(net, [0, -1])], {"special_zero": True}, ["string"], names=["y"]))
    return nets.model(net)


def twins() -> ov.Model:
    """Inputs a and b of names that sort in another order, and outputs a + b and relu(a)."""
    net = Net("twins")
    a, b = net.parameter("f32", (1, 2), "second"), net.parameter("f32", (1, 2), "first")
    net.result(net.layer("Subtract", "opset1", [a, b], names=["difference"]))
    net.result(net.layer("Relu", "opset1", [a], names=["positive"]))
    return nets.model(net)


def ragged(*values: Any) -> Array:
    """Return a column of objects."""
    column = np.empty(len(values), object)
    for row, value in enumerate(values):
        column[row] = value
    return column


# ---- rows


@pytest.mark.parametrize("rows", [1, 5, 8, 21])
def test_rows_are_those_of_a_plain_model(rows: int, device: str) -> None:
    """Batches of fewer, as many and more rows than an inference has."""
    model, given = perceptron(), numbers(rows, rows)
    predictor = Predictor(model, device, constants={"offset": 0.5}, max_batch_size=8)
    found = predictor({"x": given, "id": np.arange(rows)})
    assert list(found) == ["id", "y"]
    np.testing.assert_array_equal(found["id"], np.arange(rows))
    np.testing.assert_allclose(found["y"], one_by_one(model, device, given, offset=np.float32(0.5)), 2e-6, 2e-6)
    predictor.close()


@pytest.mark.parametrize("requests", [1, 3])
def test_parallel_requests(requests: int) -> None:
    model, given = perceptron(-1), numbers(50)
    found = Predictor(model, "CPU", constants={"offset": 0}, max_batch_size=4, requests=requests)({"x": given})
    np.testing.assert_allclose(found["y"], one_by_one(model, "CPU", given, offset=np.float32(0)), 2e-6, 2e-6)


@pytest.mark.parametrize("name", ["mobilenet_v2", "bert"])
def test_whole_models(name: str, device: str) -> None:
    """Rows of the stored inputs give the stored outputs."""
    expected = Expected.load(DATA / name / "expected.npz")
    call = expected.calls[0]
    predictor = Predictor(DATA / name / "model.xml", device)
    found = predictor({key: np.concatenate([value, value]) for key, value in call.inputs.items()})
    for output, wanted in zip(found.values(), call.outputs, strict=True):
        scale = np.abs(wanted).max()
        np.testing.assert_allclose(output, np.concatenate([wanted, wanted]), 0, expected.tolerance * scale)


def test_ragged_rows(device: str) -> None:
    """Elements of different shapes, and lists; outputs of different shapes are ragged, too."""
    predictor = Predictor(unary("Relu", "f32", (1, -1)), device)
    given = [[1.0, -2.0], np.float32([3]), [-4, 5], np.float32([-1, 0, 1])]
    found = predictor({"x": ragged(*given)})["y"]
    assert found.dtype == object and found.shape == (4,)
    for value, row in zip(given, found, strict=True):
        np.testing.assert_array_equal(row, np.maximum(value, 0))
        assert row.dtype == np.float32
    same = predictor({"x": ragged([1.0, -1.0], [2.0, 3.0])})["y"]
    assert same.dtype == np.float32
    np.testing.assert_array_equal(same, [[1, 0], [2, 3]])


def test_ragged_inputs_with_outputs_of_one_shape() -> None:
    net = Net("sum")
    x = net.parameter("f32", (1, -1), "x")
    net.result(net.layer("ReduceSum", "opset1", [x, i64(net, [1])], {"keep_dims": False}, names=["y"]))
    found = Predictor(nets.model(net), "CPU", max_batch_size=2)({"x": ragged(*([1.0] * n for n in (3, 1, 3, 3, 2, 1)))})
    assert found["y"].dtype == np.float32
    np.testing.assert_array_equal(found["y"], [3, 1, 3, 3, 2, 1])


@pytest.mark.parametrize(
    "column",
    [np.array([["a", "bcd"], ["é", ""]]), np.array([["a", "bcd"], ["é", ""]], object), ragged(["a", "bcd"], ["é", ""])],
    ids=["unicode", "objects", "lists"],
)
def test_strings(column: Array) -> None:
    found = Predictor(strings(), "CPU")({"x": column})["y"]
    assert found.tolist() == [["a", "bcd"], ["é", ""]]


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("rows", [["a\0", "\0"], [b"a\0", b"\xff"]], ids=["text", "bytes"])
def test_bytes_stay_bytes(rows: list[Any], batching: bool) -> None:
    """Strings leave as they came; they are bytes if one of them is no text."""
    column = np.empty((1, 2), object)
    column[0] = rows
    found = Predictor(strings(), "CPU", batching=batching)({"x": column})["y"]
    assert found.reshape(-1).tolist() == rows


def test_ragged_strings() -> None:
    found = Predictor(strings(), "CPU")({"x": ragged(["a"], ["b", "long"])})["y"]
    assert [row.tolist() for row in found] == [["a"], ["b", "long"]]


def test_a_string_in_each_row() -> None:
    """A column of strings, which has objects as elements."""
    net = Net("words")
    words = net.parameter("string", (1,), "x")
    net.result(net.layer("Unsqueeze", "opset1", [words, i64(net, [1])], names=["y"]))
    found = Predictor(nets.model(net), "CPU")({"x": np.array(["one", "three"], object)})
    assert found["y"].tolist() == [["one"], ["three"]]


def test_other_batch_axes(device: str) -> None:
    """The batch is axis 1 of the input, and axis 2 of the output."""
    net = Net("axes")
    x = net.parameter("f32", (3, 1, 2), "x")
    net.result(net.layer("Transpose", "opset1", [relu(net, x), i64(net, [2, 0, 1])], names=["y"]))
    given = np.random.default_rng(0).standard_normal((5, 3, 2)).astype(np.float32)
    found = Predictor(nets.model(net), device, batch_axes={"x": 1}, max_batch_size=2)({"x": given})["y"]
    np.testing.assert_array_equal(found, np.maximum(given, 0).transpose(0, 2, 1))


# ---- types


@pytest.mark.parametrize("kind", ["bf16", "f8e4m3", "f8e5m2"])
def test_short_floats_become_f32(kind: str, device: str) -> None:
    values = np.float32([[1, -2, 0.5], [3, 448, 0.0625]])
    found = Predictor(converted(kind), device)({"x": values})["y"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.float32([[1, -2, 0.5], [3, 448, 0.0625]]))


@pytest.mark.parametrize("kind", ["f16", "boolean", "i32", "u8", "f64"])
def test_other_types_stay(kind: str, device: str) -> None:
    found = Predictor(converted(kind), device)({"x": np.float32([[1, 0, 1]])})["y"]
    assert found.dtype == getattr(ov.Type, kind).to_dtype()
    np.testing.assert_array_equal(found, [[1, 0, 1]])


@pytest.mark.parametrize("kind", ["u1", "i4", "u4", "nf4"])
def test_packed_types_are_refused(kind: str) -> None:
    with pytest.raises(ov.Error, match=rf"output 'y' has the type {kind}, .* others in 'outputs'"):
        Predictor(converted(kind), "CPU")


# ---- columns


def test_columns_have_the_names_of_ports_by_default() -> None:
    a, b = np.float32([[1, -2], [3, 4]]), np.float32([[5, 6], [7, 8]])
    found = Predictor(twins(), "CPU")({"first": b, "second": a})
    assert list(found) == ["difference", "positive"]
    np.testing.assert_array_equal(found["difference"], a - b)
    np.testing.assert_array_equal(found["positive"], np.maximum(a, 0))


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ({"second": "a", "first": "b"}, {"positive": "p", "difference": "d"}),
        ({0: "a", 1: "b"}, {1: "p", 0: "d"}),
    ],
    ids=["names", "numbers"],
)
def test_columns_by_name_and_number(inputs: Any, outputs: Any) -> None:
    a, b = np.float32([[1, -2]]), np.float32([[5, 6]])
    found = Predictor(twins(), "CPU", inputs=inputs, outputs=outputs)({"a": a, "b": b})
    assert set(found) == {"p", "d"}
    np.testing.assert_array_equal(found["d"], a - b)
    np.testing.assert_array_equal(found["p"], np.maximum(a, 0))


def test_outputs_that_are_left_out_and_one_column_for_two_inputs() -> None:
    a = np.float32([[1, -2]])
    found = Predictor(twins(), "CPU", inputs={0: "a", 1: "a"}, outputs={0: "zero"})({"a": a})
    assert list(found) == ["zero"] and not found["zero"].any()


def test_a_single_column_needs_no_name() -> None:
    model = unary("Relu", "f32", (1, 2))
    found = Predictor(model, "CPU")({"data": np.float32([[1, -1]])})
    assert list(found) == ["y"]
    with pytest.raises(ov.Error, match="no column 'x' for the input of that name; it has data, id: name the columns"):
        Predictor(model, "CPU")({"data": np.float32([[1, -1]]), "id": np.arange(1)})
    with pytest.raises(ov.Error, match="no column 'z'"):
        Predictor(model, "CPU", inputs={"x": "z"})({"data": np.float32([[1, -1]])})


def test_kept_columns() -> None:
    model = unary("Relu", "f32", (1, 2))
    batch = {"x": np.float32([[1, -1]]), "id": np.arange(1), "name": np.array(["a"])}
    assert list(Predictor(model, "CPU")(batch)) == ["id", "name", "y"]
    assert list(Predictor(model, "CPU", keep=["x", "name"])(batch)) == ["x", "name", "y"]
    assert list(Predictor(model, "CPU", keep=[])(batch)) == ["y"]
    with pytest.raises(ov.Error, match="no column 'label' to keep; it has x, id, name"):
        Predictor(model, "CPU", keep=["label"])(batch)
    for options in ({"outputs": {"y": "id"}}, {"outputs": {"y": "x"}, "keep": ["x"]}):
        with pytest.raises(ov.Error, match=r"column '\w+' would be replaced by an output"):
            Predictor(model, "CPU", **options)(batch)
    assert list(Predictor(model, "CPU", outputs={"y": "x"}, keep=[])(batch)) == ["x"]


def test_wrong_names_of_ports() -> None:
    with pytest.raises(ov.Error, match="no port 'third'; it has second, first"):
        Predictor(twins(), "CPU", inputs={"third": "x"})
    with pytest.raises(ov.Error, match="no port 2; it has difference, positive"):
        Predictor(twins(), "CPU", outputs={2: "x"})
    with pytest.raises(ov.Error, match="no port 'third'"):
        Predictor(twins(), "CPU", constants={"third": 1})
    with pytest.raises(ov.Error, match="several outputs would be column 'x'"):
        Predictor(twins(), "CPU", outputs={0: "x", 1: "x"})


def test_constants(device: str) -> None:
    model, given = perceptron(), numbers(3)
    for key in ("offset", 1):
        found = Predictor(model, device, constants={key: 2})({"x": given})
        np.testing.assert_allclose(found["y"], one_by_one(model, device, given, offset=np.float32(2)), 2e-6, 2e-6)
    with pytest.raises(ov.Error, match="no column 'offset'"):
        Predictor(model, device)({"x": given})
    with pytest.raises(ov.Error, match="input 'offset' has no batch axis: give its value in 'constants'"):
        Predictor(model, device)({"x": given, "offset": np.zeros(3, np.float32)})


@pytest.mark.parametrize("column", [np.array(["1.5", "x"]), np.array(["1.5", "x"], object), ragged(["a"], ["b", "c"])])
def test_text_for_an_input_of_numbers(column: Array) -> None:
    predictor = Predictor(perceptron(), "CPU", constants={"offset": 0}, inputs={"x": "title"})
    with pytest.raises(ov.Error, match=r"column 'title' has text, but the input 'x' is of type f32"):
        predictor({"title": column})


@pytest.mark.parametrize("column", [numbers(2), ragged([1.0], [2.0, 3.0])])
def test_numbers_for_an_input_of_text(column: Array) -> None:
    with pytest.raises(ov.Error, match=r"column 'x' has numbers, but the input 'x' is of type string"):
        Predictor(strings(), "CPU")({"x": column})


def test_values_that_do_not_fit_the_input() -> None:
    predictor = Predictor(perceptron(), "CPU", constants={"offset": 0})
    with pytest.raises(ov.Error, match=r"the tensor \(shape=\[2, 7\]\).*'x'"):
        predictor({"x": np.zeros((2, 7), np.float32)})
    assert len(predictor({"x": numbers(2)})["y"]) == 2


@pytest.mark.parametrize("batching", [True, False])
def test_zero_rows(batching: bool) -> None:
    found = Predictor(twins(), "CPU", batching=batching)(
        {"first": np.empty((0, 2), np.float32), "second": np.empty((0, 2), np.float32), "id": np.empty(0, np.int64)}
    )
    assert {name: (column.dtype, len(column)) for name, column in found.items()} == {
        "id": (np.int64, 0),
        "difference": (np.float32, 0),
        "positive": (np.float32, 0),
    }
    assert Predictor(converted("bf16"), "CPU")({"x": np.empty((0, 3), np.float32)})["y"].dtype == np.float32


def test_columns_of_different_lengths() -> None:
    with pytest.raises(ov.Error, match="the columns have 2 and 3 rows"):
        Predictor(twins(), "CPU")({"first": np.zeros((3, 2), np.float32), "second": np.zeros((2, 2), np.float32)})


def test_a_model_without_columns() -> None:
    with pytest.raises(ov.Error, match="no inputs that are columns"):
        Predictor(twins(), "CPU", constants={0: 1, 1: 1})({"id": np.arange(2)})


@pytest.mark.parametrize(
    "batch",
    [pandas.DataFrame({"x": [1.0]}), pyarrow.table({"x": [1.0]}), [{"x": 1.0}]],
    ids=["pandas", "pyarrow", "rows"],
)
def test_other_formats_of_batches(batch: Any) -> None:
    with pytest.raises(TypeError, match=r"a batch is a dict of arrays, not .*: use batch_format='numpy'"):
        Predictor(unary("Relu", "f32", (1, 1)), "CPU")(batch)


@pytest.mark.parametrize("column", [[[1.0]], np.float32(1), np.array(1.0)], ids=["list", "scalar", "no-axis"])
def test_columns_that_are_no_arrays(column: Any) -> None:
    with pytest.raises(TypeError, match="column 'x' is no array of rows"):
        Predictor(unary("Relu", "f32", (1, 1)), "CPU")({"x": column})


# ---- models that cannot be batched


@pytest.mark.parametrize("name", ["detector", "clip"])
def test_models_that_mix_rows_are_refused_with_the_layer(name: str) -> None:
    with pytest.raises(ov.OpError, match=rf"^\[{REFUSED[name]}\] .*\(layer '.*model.xml\)$"):
        Predictor(DATA / name / "model.xml", "CPU")


def test_a_detector_one_row_at_a_time(device: str) -> None:
    """A row is a batch of images here, and its outputs are returned as the model computes them."""
    expected = Expected.load(DATA / "detector" / "expected.npz")
    call = expected.calls[0]
    ((name, images),) = call.inputs.items()
    predictor = Predictor(DATA / "detector" / "model.xml", device, batching=False)
    found = predictor({name: np.stack([images, images])})
    for output, wanted in zip(found.values(), call.outputs, strict=True):
        np.testing.assert_allclose(output, np.stack([wanted, wanted]), expected.tolerance, expected.tolerance)


def test_rows_that_lack_the_batch_axis_get_it() -> None:
    given = numbers(3)
    found = Predictor(perceptron(), "CPU", batching=False, constants={"offset": 0})({"x": given})
    wanted = one_by_one(perceptron(), "CPU", given, offset=np.float32(0))
    assert found["y"].shape == (3, 1, 4)
    np.testing.assert_allclose(found["y"][:, 0], wanted, 2e-6, 2e-6)


def test_ragged_outputs_of_single_rows() -> None:
    """Positions of elements that are not zero: as many as each row has."""
    net = Net("positions")
    net.result(
        net.layer("NonZero", "opset3", [net.parameter("f32", (-1,), "x")], {"output_type": "i64"}, ["i64"], names=["y"])
    )
    model = nets.model(net)
    with pytest.raises(ov.OpError, match="NonZero"):
        Predictor(model, "CPU")
    found = Predictor(model, "CPU", batching=False)({"x": np.float32([[1, 0, 1], [0, 0, 1]])})["y"]
    assert [row.tolist() for row in found] == [[[0, 2]], [[2]]]


# ---- models with states


def sequences(*lengths: int) -> Array:
    """Return a column of sequences of different lengths."""
    return ragged(*(numbers(length, length) for length in lengths))


def request_each(model: ov.Model, device: str, rows: Any) -> list[list[Array]]:
    """Return the outputs of a request for each sequence: arrays with an axis of steps in front."""
    compiled, found = ov.Core().compile_model(model, device), []
    for row in rows:
        request = compiled.create_infer_request()
        steps = [[np.array(value) for value in request.infer([step[None]]).to_tuple()] for step in row]
        found.append([np.stack(values) for values in zip(*steps)])
    return found


@pytest.mark.parametrize("batching", [True, False])
def test_rows_of_models_with_states_are_sequences(batching: bool, device: str) -> None:
    """More rows than slots, of different lengths."""
    given = sequences(3, 1, 5, 2, 2, 4, 1)
    predictor = Predictor(nets.sums(), device, max_sequences=2, batching=batching)
    for _ in range(2):
        found = predictor({"x": given, "id": np.arange(7)})
        assert list(found) == ["id", "y", "steps"]
        for row, (y, steps) in enumerate(request_each(nets.sums(), device, given)):
            if batching:
                y = y[:, 0]  # a step of a row has no batch axis
                steps = steps[:, 0]
            np.testing.assert_allclose(found["y"][row], y, 2e-6, 2e-6)
            np.testing.assert_array_equal(found["steps"][row], steps)


def test_sequences_of_one_length_are_one_array(device: str) -> None:
    model = nets.streaming_lstm()
    given = np.random.default_rng(0).standard_normal((5, 4, 40)).astype(np.float32)
    found = Predictor(model, device, max_sequences=3)({"frame": given})
    (output,) = found.values()
    wanted = np.stack([y[:, 0] for (y,) in request_each(model, device, given)])
    assert output.shape == wanted.shape and output.dtype == np.float32
    np.testing.assert_allclose(output, wanted, 1e-5, 1e-5)


def test_other_batch_axes_of_sequences() -> None:
    given = np.random.default_rng(0).standard_normal((3, 2, 4, WIDTH)).astype(np.float32)
    found = Predictor(nets.time_major(), "CPU", batch_axes={"x": 1})({"x": given})["y"]
    compiled = ov.Core().compile_model(nets.time_major(), "CPU")
    for row, steps in enumerate(given):
        request = compiled.create_infer_request()
        wanted = [np.array(request.infer([step[:, None]])[0][0]) for step in steps]
        np.testing.assert_allclose(found[row], wanted, 1e-5, 1e-5)


def test_constants_of_all_steps() -> None:
    given = np.ones((2, 3, WIDTH), np.float32)
    found = Predictor(nets.switched(), "CPU", constants={"gain": 2})({"x": given})["y"]
    np.testing.assert_array_equal(found[..., 0], [[1, 3, 7], [1, 3, 7]])


def test_sequences_of_no_rows() -> None:
    found = Predictor(nets.sums(), "CPU")({"x": np.empty((0, 4, WIDTH), np.float32)})
    assert found["y"].shape == (0, 0, WIDTH) and found["steps"].shape == (0, 0)


def test_steps_that_do_not_fit_together() -> None:
    predictor = Predictor(nets.picky(), "CPU")
    ones = np.ones((2, 3, WIDTH), np.float32)
    with pytest.raises(ov.Error, match="the columns of row 1 have 2 and 3 steps"):
        predictor({"x": ones, "length": ragged(np.ones(3, np.int32), np.ones(2, np.int32))})
    with pytest.raises(ov.Error, match="the columns of row 0 have 0 steps"):
        predictor({"x": ones[:, :0], "length": np.ones((2, 0), np.int32)})


@pytest.mark.parametrize("fault", ["inference", "shape", "steps"])
def test_an_error_in_a_row_closes_all_sequences(fault: str) -> None:
    """The error is held, as Ray holds it while it reports it, and the predictor can be used all the same."""
    predictor = Predictor(nets.picky(), "CPU", max_sequences=2)
    counts = 2, 4, 3, 2
    good = {"x": sequences(*counts), "length": ragged(*(np.ones(count, np.int32) for count in counts))}
    bad = {name: column.copy() for name, column in good.items()}
    if fault == "inference":
        bad["length"][2] = np.int32([1, WIDTH + 1, 1])
    elif fault == "shape":
        bad["x"][2] = np.ones((3, WIDTH + 1), np.float32)
    else:
        bad["length"][2] = np.int32([1])
    wanted = predictor(good)["y"]
    message, held = {"inference": "ReverseSequence", "shape": "'x'", "steps": "row 2"}[fault], []
    for _ in range(3):
        with pytest.raises(ov.Error, match=message) as error:
            predictor(bad)
        held.append(error)
        assert isinstance(predictor._runner, SequenceRunner)
        assert len(predictor._runner._batcher) == 0
        for row, found in enumerate(predictor(good)["y"]):
            np.testing.assert_array_equal(found, wanted[row])


# ---- models in the object store


def dense() -> ov.Model:
    net = Net("dense")
    x = net.parameter("f32", (1, 256), "x")
    w: Port = nets.weights(net, 256, 512)
    y = net.layer("MatMul", "opset1", [x, w], {"transpose_a": False, "transpose_b": False})
    net.result(net.layer("Add", "opset1", [y, nets.weights(net, 1, 512, seed=1)], names=["y"]))
    return nets.model(net)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    """Return a dict in place of Ray's object store."""
    objects: dict[Any, Any] = {}

    def put(value: Any) -> int:
        objects[len(objects)] = value = np.array(value)
        value.flags.writeable = False
        return len(objects) - 1

    monkeypatch.setattr(ray, "put", put)
    monkeypatch.setattr(ray, "get", objects.__getitem__)
    return objects


@pytest.mark.parametrize("source", ["model", "IR", "ONNX", "openvino"])
def test_shared_models(source: str, store: dict[Any, Any], tmp_path: Any) -> None:
    model: Any = dense()
    if source == "IR":
        ov.save_model(model, tmp_path / "model.xml", compress_to_fp16=False)
        model = tmp_path / "model.xml"
    elif source == "ONNX":
        model = onnx_file(tmp_path / "model.onnx")
    elif source == "openvino":
        import openvino

        ov.save_model(model, tmp_path / "model.xml", compress_to_fp16=False)
        model = openvino.Core().read_model(tmp_path / "model.xml")
    shared = ov.ray.share(model)
    assert len(ray.cloudpickle.dumps(shared)) < 10_000 < store[0].nbytes
    constants = [node.data for node in shared.read().get_ops() if node.get_type_name() == "Constant"]
    weights = [data for data in constants if data.size > 10]
    assert weights
    for data in weights:
        assert np.shares_memory(data, store[0]) and not data.flags.writeable
    given = np.random.default_rng(0).standard_normal((3, 256)).astype(np.float32)
    found = Predictor(shared, "CPU")({"x": given})["y"]
    np.testing.assert_allclose(found, one_by_one(dense(), "CPU", given), 1e-5, 1e-5)


def onnx_file(path: Any) -> Any:
    """Write `dense` as an ONNX file."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    w, b = (node.data for node in dense().get_ops() if node.get_type_name() == "Constant" and node.data.size > 10)
    if w.shape[0] == 1:
        w, b = b, w
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])],
        "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 512])],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_a_shared_model_without_weights(store: dict[Any, Any], tmp_path: Any) -> None:
    found = Predictor(ov.ray.share(unary("Relu", "f32", (1, 2))), "CPU")({"x": np.float32([[1, -1]])})
    np.testing.assert_array_equal(found["y"], [[1, 0]])


def test_malformed_models_are_not_shared(store: dict[Any, Any], tmp_path: Any) -> None:
    (tmp_path / "model.xml").write_text("<net")
    with pytest.raises(ov.Error, match=r"model\.xml"):
        ov.ray.share(tmp_path / "model.xml")
    assert not store
