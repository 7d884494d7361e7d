"""Transfers between host and emulated device at an inference: inputs and outputs are copied inside the graph."""

from __future__ import annotations

import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cuda import CudaBackend
from ovgpu.runtime.plan import Plan
from tests.api import nets
from tests.emulator import cupy_emu as cp
from tests.emulator import memory
from tests.harness.ir import Net
from tests.kernels.recorded import counted

X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)


def check_settled(counters: Any, h2d: int, d2h: int) -> None:
    """Assert one graph launch, these transfers, and one synchronization, and nothing else."""
    assert (counters.graph_launches, counters.launches, counters.allocs) == (1, 0, 0), counters
    assert (counters.h2d_bytes, counters.d2h_bytes, counters.d2d_bytes) == (h2d, d2h, 0), counters
    assert counters.synchronizations == 1, counters


def kinds(plan: Plan) -> list[str]:
    return [step.kind for step in plan.steps]


def test_constants_are_complete_on_all_streams(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products read weights before they wait for earlier launches: no copy of a constant is on its way by then."""
    events: list[str] = []
    synchronize, run = cp.cuda.Stream.synchronize, memory.MemcpyNode.run
    monkeypatch.setattr(cp.cuda.Stream, "synchronize", lambda self: events.append("wait") or synchronize(self))
    monkeypatch.setattr(memory.MemcpyNode, "run", lambda self: events.append("copy") or run(self))
    backend = CudaBackend()
    backend.constant(X)
    arrays, copy = backend.constants([X, np.arange(9)])
    copy()
    assert "".join(event[0] for event in events).replace("cc", "c") == "cwcw"
    np.testing.assert_array_equal(backend.to_host(arrays[0]), X)


def test_one_graph_holds_the_copies(compiled: Any) -> None:
    request = compiled(nets.one()).create_infer_request()
    for n in range(6):
        found, counters = counted(lambda: request.infer([n * X]))  # noqa: B023
        np.testing.assert_array_equal(found[0], np.abs(n * X))
        if n >= 2:
            check_settled(counters, X.nbytes, X.nbytes)
            assert (counters.graph_nodes, counters.graph_kernels) == (3, 1)
    plan = request.plan()
    assert kinds(plan) == ["upload", "bound", "download"]
    assert [step.bytes_moved for step in plan.steps] == [24, 48, 24]
    assert (plan.launches, plan.kernels) == (1, 1)
    assert "upload" in str(plan) and "download" in str(plan)


def test_no_copies_on_the_host(compiled: Any) -> None:
    core = ov.Core()
    request = core.compile_model(core.read_model(*nets.one()), "CPU").create_infer_request()
    request.infer([X])
    assert kinds(request.plan()) == ["bound"]


@pytest.mark.parametrize("share", [False, True])
def test_arrays_of_any_layout_and_type(share: bool, compiled: Any) -> None:
    request = compiled(nets.one()).create_infer_request()
    for n, x in enumerate([X, X, X, np.asfortranarray(X), X.astype(np.float64), X[::-1, ::-1], X.copy(), X.tolist()]):
        found, counters = counted(lambda: request.infer([x], share_inputs=share))  # noqa: B023
        np.testing.assert_array_equal(found[0], np.abs(np.asarray(x)))
        if n in (2, 5, 6, 7) or (n >= 2 and not share):  # a shared array has another address than a copied one
            check_settled(counters, 24, 24)


def test_own_tensors_have_no_copies_on_the_host(compiled: Any) -> None:
    request = compiled(nets.one()).create_infer_request()
    source, target = request.get_input_tensor(), request.get_output_tensor()
    memory = source.data
    for n in range(5):
        memory[...] = n - X
        _, counters = counted(request.infer)
        np.testing.assert_array_equal(target.data, np.abs(n - X))
        if n >= 2:
            check_settled(counters, 24, 24)
    assert request.get_input_tensor() is source and request.get_output_tensor() is target


def test_bound_tensors_on_the_host(compiled: Any) -> None:
    request = compiled(nets.one()).create_infer_request()
    source, target = X.copy(), np.zeros((2, 3), np.float32)
    own, result = request.get_input_tensor(), request.get_output_tensor()
    own.data[...] = 7
    request.infer()
    request.set_input_tensor(ov.Tensor(source, shared_memory=True))
    request.set_output_tensor(ov.Tensor(target, shared_memory=True))
    for n in range(5):
        source[...] = n * X
        _, counters = counted(request.infer)
        np.testing.assert_array_equal(target, np.abs(n * X))
        if n >= 2:
            check_settled(counters, 24, 24)
    assert (own.data == 7).all() and (result.data == 7).all()  # tensors that were bound before do not change


def test_an_inputs_tensor_as_output(compiled: Any) -> None:
    request = compiled(nets.total()).create_infer_request()
    tensor = request.get_input_tensor()
    tensor.data[...] = 1
    request.set_output_tensor(tensor)
    for n in range(6):
        _, counters = counted(request.infer)
        np.testing.assert_array_equal(tensor.data, np.full((1, 3), 2.0**n))
    check_settled(counters, 12, 12)


def test_changing_shapes(compiled: Any) -> None:
    """A recurring shape uses its graph, unless memory has grown meanwhile."""
    request = compiled(nets.one((-1, 3))).create_infer_request()
    tensor = request.get_output_tensor()
    rng = np.random.default_rng(1)
    for rows in (2, 2, 5, 5, 1, 1, 2, 5, 1, 5000, 5000, 5000, 2, 2, 2, 5000):
        x = rng.uniform(-1, 1, (rows, 3)).astype(np.float32)
        found, counters = counted(lambda: request.infer([x]))  # noqa: B023
        np.testing.assert_array_equal(found[0], np.abs(x))
        assert (counters.h2d_bytes, counters.d2h_bytes) == (x.nbytes, x.nbytes)
        assert request.get_output_tensor() is tensor
    check_settled(counters, x.nbytes, x.nbytes)
    for rows in (2, 5, 1, 2, 5, 1):
        x = rng.uniform(-1, 1, (rows, 3)).astype(np.float32)
        _, counters = counted(lambda: request.infer([x]))  # noqa: B023
    check_settled(counters, 12, 12)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0,)])
def test_no_elements(shape: tuple[int, ...], compiled: Any) -> None:
    request = compiled(nets.one((-1,) * len(shape))).create_infer_request()
    full = np.ones([n + 1 for n in shape], np.float32)
    for x in (np.zeros(shape, np.float32), full, np.zeros(shape, np.float32)):
        for _ in range(3):
            found, counters = counted(lambda: request.infer([x]))  # noqa: B023
            np.testing.assert_array_equal(found[0], x)
            assert (counters.h2d_bytes, counters.d2h_bytes) == (x.nbytes, x.nbytes)


@pytest.mark.parametrize(
    ("kind", "x"),
    [
        ("boolean", np.array([[True, False, True], [False, False, True]])),
        ("i8", np.array([[1, -2, 3], [-128, 127, 0]], np.int8)),
        ("u8", np.array([[1, 2, 3], [4, 255, 0]], np.uint8)),
        ("i64", np.array([[1, -2, 3], [2**62, 5, -(2**62)]])),
        ("f16", X.astype(np.float16)),
        ("bf16", X.astype(ml_dtypes.bfloat16)),
        ("f64", X.astype(np.float64)),
        ("u4", np.array([[1, 2, 3], [4, 15, 0]])),
        ("i4", np.array([[1, -2, 3], [7, -8, 0]])),
        ("f8e4m3", X.astype(ml_dtypes.float8_e4m3fn)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_types(kind: str, x: Any, compiled: Any) -> None:
    request = compiled(nets.same(kind=kind)).create_infer_request()
    host = ov.Core().compile_model(ov.Core().read_model(*nets.same(kind=kind)), "CPU").create_infer_request()
    for n in range(4):
        given = np.roll(x, n)
        (found,), counters = counted(lambda: request.infer([given]).to_tuple())  # noqa: B023
        (wanted,) = host.infer([given]).to_tuple()
        np.testing.assert_array_equal(found, wanted)
        assert found.dtype == wanted.dtype
    assert (counters.graph_launches, counters.launches, counters.allocs) == (1, 0, 0)


def test_strings_stay_on_the_host(compiled: Any) -> None:
    request = compiled(nets.same(kind="string")).create_infer_request()
    for texts in ([["a", "bc", ""], ["d", "é", "f"]], [["g", "h", "i"], ["j", "k", "l"]]):
        found, counters = counted(lambda: request.infer([np.array(texts)]))  # noqa: B023
        assert found[0].tolist() == texts
        assert (counters.h2d_bytes, counters.d2h_bytes) == (0, 0)


def shaped_by_values() -> Net:
    """Return a model that reshapes x to the shape in its second input."""
    net = Net("shaped")
    x, shape = net.parameter("f32", (-1, -1), "x"), net.parameter("i64", (2,), "shape")
    net.result(net.layer("Reshape", "opset1", [x, shape], {"special_zero": False}))
    return net


def test_values_that_the_host_reads_stay_there(compiled: Any) -> None:
    request = compiled(shaped_by_values().build()).create_infer_request()
    for n, shape in enumerate([(3, 2), (3, 2), (6, 1), (6, 1), (3, 2), (6, 1)]):
        found, counters = counted(lambda: request.infer([n * X, np.array(shape)]))  # noqa: B023
        np.testing.assert_array_equal(found[0], (n * X).reshape(shape))
        assert (counters.h2d_bytes, counters.d2h_bytes) == (24, 24)
    check_settled(counters, 24, 24)
    assert [step.layer for step in request.plan().steps if step.kind == "upload"] == ["x"]


def test_values_that_the_host_reads_may_be_on_the_device(compiled: Any) -> None:
    request = compiled(shaped_by_values().build()).create_infer_request()
    for n, shape in enumerate([(3, 2), (3, 2), (6, 1), (3, 2)]):
        given = cp.asarray(np.array(shape))
        found, counters = counted(lambda: request.infer([n * X, given]))  # noqa: B023
        np.testing.assert_array_equal(found[0], (n * X).reshape(shape))
        assert counters.h2d_bytes == 24


def test_two_results_of_one_value_and_an_input_as_result(compiled: Any) -> None:
    net = Net("twice")
    x = net.parameter("f32", (2, 3), "x")
    y = net.layer("Abs", "opset1", [x])
    for port in (y, y, x):
        net.result(port)
    request = compiled(net.build()).create_infer_request()
    for n in range(4):
        found, counters = counted(lambda: request.infer([n * X]))  # noqa: B023
        for i, wanted in enumerate((np.abs(n * X), np.abs(n * X), n * X)):
            np.testing.assert_array_equal(found[i], wanted)
    check_settled(counters, 24, 72)


def test_results_of_data_dependent_shape(compiled: Any) -> None:
    """Results of data-dependent shape are downloaded after the graph, and other results in it."""
    net = Net("nonzero")
    x = net.parameter("f32", (2, 3), "x")
    net.result(net.layer("NonZero", "opset3", [x], {"output_type": "i64"}))
    net.result(net.layer("Abs", "opset1", [x]))
    request = compiled(net.build()).create_infer_request()
    for given in (X, X, np.eye(2, 3, dtype=np.float32), 0 * X, X):
        found, counters = counted(lambda: request.infer([given]))  # noqa: B023
        np.testing.assert_array_equal(found[0], np.array(np.nonzero(given)))
        np.testing.assert_array_equal(found[1], np.abs(given))
        assert counters.h2d_bytes == 24


def test_new_tensors_for_every_inference(compiled: Any) -> None:
    request = compiled(nets.one()).create_infer_request()
    for n in range(5):
        source, target = ov.Tensor(n * X), ov.Tensor(np.zeros_like(X))
        request.set_input_tensor(source)
        request.set_output_tensor(target)
        _, counters = counted(request.infer)
        np.testing.assert_array_equal(target.data, np.abs(n * X))
        if n >= 2:
            check_settled(counters, 24, 24)


def test_requests_do_not_share_memory(compiled: Any) -> None:
    model = compiled(nets.one())
    first, second = (model.create_infer_request() for _ in range(2))
    for n in range(4):
        first.start_async([n * X])
        second.start_async([X - n])
        first.wait()
        second.wait()
        np.testing.assert_array_equal(first.get_output_tensor().data, np.abs(n * X))
        np.testing.assert_array_equal(second.get_output_tensor().data, np.abs(X - n))


def test_a_failed_inference_leaves_the_request_usable(compiled: Any) -> None:
    request = compiled(nets.fragile()).create_infer_request()
    x = np.array([1, 2], np.float32)
    for n in range(1, 5):
        np.testing.assert_array_equal(request.infer([x])[0], n * x)
        with pytest.raises(RuntimeError, match="negative values"):
            request.infer([-9 * x])
    (state,) = request.query_state()
    np.testing.assert_array_equal(state.state.data, 4 * x)


def test_shared_outputs_are_the_pinned_memory(compiled: Any) -> None:
    request = compiled(nets.one()).create_infer_request()
    view = request.infer([X], share_outputs=True)[0]
    copy = request.infer([2 * X])[0]
    np.testing.assert_array_equal(view, np.abs(2 * X))
    request.infer([3 * X])
    np.testing.assert_array_equal(view, np.abs(3 * X))
    np.testing.assert_array_equal(copy, np.abs(2 * X))


def test_a_plan_before_the_first_inference(compiled: Any) -> None:
    plan = compiled(nets.one((-1, 3))).plan([[4, 3]])
    assert kinds(plan) == ["upload", "bound", "download"] and plan.steps[0].bytes_moved == 48
    assert cp.counters.captured_loads == 0


def test_the_segment_before_a_data_dependent_shape_is_a_graph(compiled: Any) -> None:
    """The graph uploads its inputs, for every recurring shape."""
    net = Net("around")
    x = net.layer("Abs", "opset1", [net.parameter("f32", (-1, 3), "x")])
    net.result(net.layer("NonZero", "opset3", [x], {"output_type": "i64"}))
    net.result(net.layer("Relu", "opset1", [x]))
    request = compiled(net.build()).create_infer_request()
    for n, rows in enumerate((2, 4, 2, 4, 2, 4)):
        given = (n + 1) * np.eye(rows, 3, dtype=np.float32)
        _, counters = counted(lambda: request.infer([given]))  # noqa: B023
        assert counters.graph_launches == (0 if n < 2 else 2)


@pytest.mark.emulator
def test_memory_is_freed_with_the_request(compiled: Any) -> None:
    model = compiled(nets.one((-1, 3)))
    gc.collect()
    before = memory.used_bytes(), len(memory._pinned)
    request = model.create_infer_request()
    for rows in (2, 2, 2, 5000, 5000, 5000, 2):
        request.infer([np.ones((rows, 3), np.float32)])
    request.infer([cp.asarray(X)])
    assert memory.used_bytes() > before[0] and len(memory._pinned) > before[1]
    del request
    gc.collect()
    assert (memory.used_bytes(), len(memory._pinned)) == before
