"""Variables through the API: ownership, reading and setting, and failed inferences."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import openvino
import pytest

import ovgpu as ov
from ovgpu.model import bodies
from ovgpu.ops.arithmetic.arithmetic import Add
from tests.harness import Net, feed, judge, take
from tests.harness.elements import ELEMENTS
from tests.harness.ir import Port
from tests.harness.layers import add, concat, gather, i64, mul, numbers, reshape, scalar
from tests.harness.private import read_private

pytestmark = pytest.mark.usefixtures("guard")
INIT = numbers(2, 3, seed=100)
X = [numbers(2, 3, seed=n) for n in range(5)]


def compiled(net: Net, device: str) -> Any:
    core = ov.Core()
    return core.compile_model(core.read_model(*net.build()), device)


def accumulator(
    names: Sequence[str] = ("sum",),
    init: bool = True,
    shape: Sequence[Any] = (2, 3),
    kind: str = "f32",
    version: str = "opset6",
    declared: Any = None,
) -> Net:
    """Build variables to which the input is added. The outputs are their old values."""
    net = Net()
    x = net.parameter(kind, shape, "x")
    for name in names:
        start = net.const(INIT, kind) if init else None
        before = net.read_value(name, kind, shape if declared is None else declared, start, version)
        net.assign(name, add(net, before, x), version)
        net.result(before)
    return net


def state(holder: Any, name: str = "sum") -> Any:
    return next(s for s in holder.query_state() if s.name == name)


def value(holder: Any, name: str = "sum") -> Any:
    return np.array(state(holder, name).state.data)


# ---- ownership


def test_requests_do_not_share(device: str) -> None:
    model = compiled(accumulator(), device)
    a, b = model.create_infer_request(), model.create_infer_request()
    for n in range(3):
        a.infer({"x": X[n]})
    assert np.array_equal(b.infer({"x": X[3]})[0], INIT)
    assert np.array_equal(value(a), INIT + X[0] + X[1] + X[2])
    assert np.array_equal(value(b), INIT + X[3])
    a.reset_state()
    assert np.array_equal(value(b), INIT + X[3])
    state(a).state = ov.Tensor(X[4])
    assert np.array_equal(b.infer({"x": X[0]})[0], INIT + X[3])


def test_compiled_models_do_not_share(device: str) -> None:
    core = ov.Core()
    model = core.read_model(*accumulator().build())
    a, b = core.compile_model(model, device), core.compile_model(model, device)
    a({"x": X[0]})
    assert np.array_equal(b({"x": X[0]})[0], INIT)


def test_call_query_and_reset_share_one_request(device: str) -> None:
    model = compiled(accumulator(), device)
    model({"x": X[0]})
    assert np.array_equal(model({"x": X[1]})[0], INIT + X[0])
    assert np.array_equal(value(model), INIT + X[0] + X[1])
    state(model).state = ov.Tensor(X[2])
    assert np.array_equal(model({"x": X[0]})[0], X[2])
    model.reset_state()
    assert np.array_equal(model({"x": X[0]})[0], INIT)


def test_a_new_request_begins_anew(device: str) -> None:
    model = compiled(accumulator(), device)
    model({"x": X[0]})
    for _ in range(2):
        assert np.array_equal(model.infer_new_request({"x": X[1]})[0], INIT)
    assert np.array_equal(value(model), INIT + X[0])


def test_release_memory_keeps_the_state(device: str) -> None:
    model = compiled(accumulator(), device)
    model({"x": X[0]})
    model.release_memory()
    assert np.array_equal(model({"x": X[1]})[0], INIT + X[0])


def test_requests_on_threads(device: str) -> None:
    model = compiled(accumulator(), device)
    found: dict[int, Any] = {}

    def run(number: int) -> None:
        request = model.create_infer_request()
        for n in range(20):
            request.infer({"x": X[(n + number) % 5]})
        found[number] = value(request)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(v, INIT + 4 * sum(X)) for v in found.values()) and len(found) == 4


# ---- reading


def test_names_in_order_of_the_model(device: str) -> None:
    names = ["b", "a", "with space", "ünïcode/π", "c" * 300]
    model = compiled(accumulator(names), device)
    assert [s.name for s in model.query_state()] == names
    assert [s.name for s in model.create_infer_request().query_state()] == names


def test_a_stateless_model_has_no_states(device: str) -> None:
    net = Net()
    net.result(mul(net, x := net.parameter("f32", (2, 3), "x"), x))
    model = compiled(net, device)
    assert model.query_state() == []
    model.reset_state()
    assert np.array_equal(model({"x": X[0]})[0], X[0] * X[0])


def test_initial_value_before_the_first_inference(device: str) -> None:
    assert np.array_equal(value(compiled(accumulator(), device)), INIT)
    assert np.array_equal(value(compiled(accumulator(init=False), device)), np.zeros((2, 3), np.float32))


def test_initial_value_after_reset(device: str) -> None:
    request = compiled(accumulator(), device).create_infer_request()
    request.infer({"x": X[0]})
    request.reset_state()
    assert np.array_equal(value(request), INIT)


def test_states_are_read_as_copies(device: str) -> None:
    request = compiled(accumulator(), device).create_infer_request()
    request.infer({"x": X[0]})
    tensor = state(request).state
    request.infer({"x": X[1]})
    assert np.array_equal(tensor.data, INIT + X[0])
    tensor.data[...] = 99
    assert np.array_equal(value(request), INIT + X[0] + X[1])


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "i32", "i64", "u8", "boolean"])
def test_declared_type_and_shape_are_shown(kind: str, device: str) -> None:
    net = Net()
    x = net.parameter(kind, (2, 3), "x")
    net.result(net.read_value("v", kind, (2, 3)))
    net.assign("v", x)
    request = compiled(net, device).create_infer_request()
    for _ in range(2):
        tensor = state(request, "v").state
        assert tensor.element_type.get_type_name() == kind
        assert list(tensor.shape) == [2, 3]
        request.infer({"x": np.ones((2, 3), np.uint8)})


def test_scalar_state_has_no_dimensions(device: str) -> None:
    net = Net()
    before = net.read_value("n", "i64", ())
    net.assign("n", add(net, before, scalar(net, 1, "i64")))
    net.result(before)
    request = compiled(net, device).create_infer_request()
    request.infer()
    assert list(state(request, "n").state.shape) == []
    assert int(state(request, "n").state.data) == 1


def test_a_state_object_stays_valid(device: str) -> None:
    request = compiled(accumulator(), device).create_infer_request()
    held = state(request)
    for n in range(3):
        request.infer({"x": X[n]})
        assert np.array_equal(held.state.data, INIT + sum(X[: n + 1]))
    held.reset()
    assert np.array_equal(request.infer({"x": X[0]})[0], INIT)


# ---- setting


def test_states_are_set_as_copies(device: str) -> None:
    request = compiled(accumulator(), device).create_infer_request()
    array = X[1].copy()
    state(request).state = ov.Tensor(array, shared_memory=True)
    array[...] = 99
    assert np.array_equal(request.infer({"x": X[0]})[0], X[1])
    state(request).state = ov.Tensor(array, shared_memory=True)
    request.infer({"x": X[0]})
    request.infer({"x": X[0]})
    assert (array == 99).all()


def test_saving_and_restoring_a_state(device: str) -> None:
    """A state can be saved and restored, as for prefix caching."""
    request = compiled(accumulator(), device).create_infer_request()
    request.infer({"x": X[0]})
    saved = state(request).state
    request.infer({"x": X[1]})
    state(request).state = saved
    assert np.array_equal(request.infer({"x": X[2]})[0], INIT + X[0])
    state(request).state = saved
    assert np.array_equal(request.infer({"x": X[2]})[0], INIT + X[0])


def test_state_of_one_request_set_to_another_ones(device: str) -> None:
    model = compiled(accumulator(), device)
    a, b = model.create_infer_request(), model.create_infer_request()
    a.infer({"x": X[0]})
    state(b).state = state(a).state
    b.infer({"x": X[1]})
    assert np.array_equal(value(a), INIT + X[0])
    assert np.array_equal(value(b), INIT + X[0] + X[1])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros((2, 3), np.float64), "type f32"),
        (np.zeros((2, 3), np.int64), "type f32"),
        (np.zeros((3, 2), np.float32), "shape"),
        (np.zeros((2, 3, 1), np.float32), "shape"),
        (np.zeros(6, np.float32), "shape"),
    ],
)
def test_setting_another_type_or_shape(given: Any, message: str, device: str) -> None:
    request = compiled(accumulator(), device).create_infer_request()
    request.infer({"x": X[0]})
    with pytest.raises(RuntimeError, match=f"'sum' has .*{message}|'sum' has {message}"):
        state(request).state = ov.Tensor(given)
    assert np.array_equal(request.infer({"x": X[1]})[0], INIT + X[0])


def test_bf16_is_not_f16(device: str) -> None:
    net = Net()
    x = net.parameter("bf16", (2, 3), "x")
    net.result(net.read_value("v", "bf16", (2, 3)))
    net.assign("v", x)
    request = compiled(net, device).create_infer_request()
    with pytest.raises(RuntimeError, match="'v' has type bf16"):
        state(request, "v").state = ov.Tensor(np.zeros((2, 3), np.float16))


CONVERTED = ("f32", "f16", "bf16", "i32", "i8", "u8", "boolean", "i4", "u4")


@pytest.mark.parametrize("given", [*CONVERTED, "f8e4m3", "f64", "i64", "i16", "u32"])
@pytest.mark.parametrize("kind", ["f32", "f16", "i32", "u8"])
def test_setting_other_types(kind: str, given: str, device: str) -> None:
    """A variable takes the types that OpenVINO converts to its own, and refuses the others."""
    net = accumulator(init=False, kind=kind)
    array = (np.arange(6).reshape(2, 3) % 3).astype(ELEMENTS[given].dtype)
    found = []
    for library, where in ((openvino, "CPU"), (ov, device)):
        core = library.Core()
        request = core.compile_model(core.read_model(*net.build()), where).create_infer_request()
        (variable,) = request.query_state()
        try:
            variable.state = judge.to_tensor(library, array, given)
            found.append(np.array(variable.state.data).tolist())
        except RuntimeError:
            found.append(None)
    assert found[1] == found[0]


def test_writes_into_a_copy(device: str) -> None:
    """Writes into the data of a copy reach the variable, until it gets another value."""
    request = compiled(accumulator(), device).create_infer_request()
    variable = state(request)
    variable.state.data[...] = 7  # as in OpenVINO, it has no value yet
    assert np.array_equal(request.infer({"x": X[0]})[0], INIT)
    variable.state.data[...] = 7
    assert np.array_equal(variable.state.data, np.full((2, 3), 7))
    assert np.array_equal(request.infer({"x": X[1]})[0], np.full((2, 3), 7))
    copy = variable.state
    assert np.array_equal(copy.data, 7 + X[1])
    variable.state.data[0] = 1
    request.start_async({"x": X[2]})
    request.wait()
    assert np.array_equal(request.get_output_tensor(0).data[0], [1, 1, 1])
    copy.data[...] = 50  # the variable has another value since
    assert np.array_equal(value(request)[0], 1 + X[2][0])
    variable.state.data[...] = 9
    variable.reset()
    assert np.array_equal(value(request), INIT)
    variable.state = ov.Tensor(X[3])
    variable.state.data[...] = 9
    variable.state = ov.Tensor(X[3])
    assert np.array_equal(request.infer({"x": X[1]})[0], X[3])


# ---- running


def test_async(device: str) -> None:
    request = compiled(accumulator(), device).create_infer_request()
    for n in range(4):
        request.start_async({"x": X[n]})
        request.wait()
        assert np.array_equal(request.get_output_tensor(0).data, INIT + sum(X[:n]))
    assert np.array_equal(value(request), INIT + sum(X[:4]))


def test_states_are_refused_while_running(device: str) -> None:
    request = compiled(accumulator(), device).create_infer_request()
    entered, go = threading.Event(), threading.Event()

    def called(userdata: Any) -> None:
        entered.set()
        go.wait(10)

    request.set_callback(called)
    request.start_async({"x": X[0]})
    assert entered.wait(10)
    go.set()
    request.wait()
    assert np.array_equal(value(request), INIT + X[0])


def test_alternating_shapes_with_a_state(device: str) -> None:
    """Bindings are cached per shape, while the state's buffers alternate."""
    net = Net()
    x = net.parameter("f32", (-1, 3), "x")
    before = net.read_value("v", "f32", (1, 3))
    total = add(net, before, net.layer("ReduceSum", "opset1", [x, i64(net, [0])], {"keep_dims": True}))
    net.assign("v", total)
    net.result(add(net, x, before))
    request = compiled(net, device).create_infer_request()
    expected = np.zeros((1, 3), np.float32)
    for n in [2, 5, 2, 5, 2, 2, 7, 5, 1, 2, 3, 4, 6, 8, 9, 10, 11, 2, 5]:
        data = numbers(n, 3, seed=n)
        assert np.array_equal(request.infer({"x": data})[0], data + expected)
        expected = expected + data.sum(0, keepdims=True)
        assert np.array_equal(value(request, "v"), expected)


def test_outputs_are_not_the_state(device: str) -> None:
    """Writing to an output that equals the state does not change the state."""
    net = Net()
    x = net.parameter("f32", (2, 3), "x")
    after = add(net, net.read_value("v", "f32", (2, 3)), x)
    net.assign("v", after)
    net.result(after)
    request = compiled(net, device).create_infer_request()
    for n in range(4):
        out = request.infer({"x": X[n]}, share_outputs=True)[0]
        assert np.array_equal(out, sum(X[: n + 1]))
        out[...] = 99
    assert np.array_equal(value(request, "v"), sum(X[:4]))


def test_shared_inputs_are_not_the_state(device: str) -> None:
    """If a parameter is assigned directly, changing the caller's array later does not change the state."""
    net = Net()
    x = net.parameter("f32", (200, 300), "x")  # large enough to be shared without a copy
    net.result(net.read_value("v", "f32", (200, 300)))
    net.assign("v", x)
    request = compiled(net, device).create_infer_request()
    array = numbers(200, 300)
    original = array.copy()
    request.infer({"x": array}, share_inputs=True)
    array[...] = 99
    assert np.array_equal(value(request, "v"), original)
    assert np.array_equal(request.infer({"x": array}, share_inputs=True)[0], original)


def test_initial_constant_is_not_written(device: str) -> None:
    model = compiled(accumulator(), device)
    for _ in range(3):
        request = model.create_infer_request()
        for n in range(4):
            request.infer({"x": X[n]})
        request.reset_state()
        assert np.array_equal(request.infer({"x": X[0]})[0], INIT)


# ---- failing


def failing(make: Callable[[Net, Port, Port], Port]) -> Net:
    """Build two variables; ``make`` computes an output from x and an index, and fails for some of them."""
    net = Net()
    x, index = net.parameter("f32", (2, 3), "x"), net.parameter("i64", (-1,), "index")
    for name in ("a", "b"):
        before = net.read_value(name, "f32", (2, 3), net.const(INIT))
        net.assign(name, add(net, before, x))
        net.result(before)
    net.result(make(net, x, index))
    return net


def guarded(net: Net, x: Port) -> Port:
    port: Port = net.layer("Guard", "tests", [x])
    return port


FAILURES: dict[str, tuple[Callable[[Net, Port, Port], Port], Any, Any]] = {
    "guard": (lambda n, x, i: gather(n, x, guarded(n, i)), [1, 0], [1, 7]),
    "reshape": (lambda n, x, i: reshape(n, x, i), [3, 2], [4, 2]),
    "broadcast": (
        lambda n, x, i: add(n, x, n.layer("Convert", "opset1", [i], {"destination_type": "f32"}, ["f32"])),
        [1, 2, 3],
        [1, 2],
    ),
    "concat": (lambda n, x, i: concat(n, [reshape(n, x, i), x], 1), [2, 3], [3, 2]),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_a_failed_inference_changes_nothing(kind: str, device: str) -> None:
    make, good, bad = FAILURES[kind]
    request = compiled(failing(make), device).create_infer_request()
    total = INIT
    for n, index in enumerate([bad, good, bad, bad, good, good, bad, good]):
        inputs = {"x": X[n % 5], "index": np.array(index)}
        if index is bad:
            with pytest.raises(RuntimeError, match=r"^\["):
                request.infer(inputs)
        else:
            found = request.infer(inputs)
            assert np.array_equal(found[0], total) and np.array_equal(found[1], total)
            total = total + X[n % 5]
        for name in ("a", "b"):
            assert np.array_equal(value(request, name), total)


def test_a_failed_asynchronous_inference_changes_nothing(device: str) -> None:
    request = compiled(failing(FAILURES["guard"][0]), device).create_infer_request()
    request.infer({"x": X[0], "index": np.array([1])})
    request.start_async({"x": X[1], "index": np.array([9])})
    with pytest.raises(RuntimeError, match=r"^\[Guard\]"):
        request.wait()
    assert np.array_equal(value(request, "a"), INIT + X[0])
    assert np.array_equal(request.infer({"x": X[1], "index": np.array([0])})[1], INIT + X[0])


@pytest.mark.parametrize("wrong", [np.zeros((3, 2), np.float32), np.zeros((2, 3, 1), np.float32)])
def test_a_wrong_input_changes_nothing(wrong: Any, device: str) -> None:
    request = compiled(accumulator(), device).create_infer_request()
    request.infer({"x": X[0]})
    with pytest.raises(RuntimeError, match="shape"):
        request.infer({"x": wrong})
    assert np.array_equal(request.infer({"x": X[1]})[0], INIT + X[0])


def test_failing_inside_a_loop_changes_nothing(device: str) -> None:
    """The third iteration fails, and the state is unchanged."""
    net, body = Net(), Net()
    index = net.parameter("i64", (-1,), "index")
    before = net.read_value("v", "f32", (2, 3), net.const(INIT))
    i, table, h = body.parameter("i64", (1,)), body.parameter("f32", (2, 3)), body.parameter("f32", (1, 3))
    new = body.result(add(body, h, gather(body, table, guarded(body, i))))
    last = net.tensor_iterator(
        body,
        [feed(index, i, axis=0), feed(before, table), feed(net.const(np.zeros((1, 3), np.float32)), h)],
        [take(new)],
        [(new, h)],
    )
    net.assign("v", add(net, before, last))
    net.result(last)
    request = compiled(net, device).create_infer_request()
    first = INIT + INIT.sum(0, keepdims=True)
    request.infer({"index": np.array([0, 1])})
    assert np.array_equal(value(request, "v"), first)
    with pytest.raises(RuntimeError, match=r"^\[Guard\]"):
        request.infer({"index": np.array([0, 1, 7])})
    assert np.array_equal(value(request, "v"), first)
    assert np.array_equal(request.infer({"index": np.array([1])})[0], first[1:])


def test_a_value_that_does_not_fit_the_variable_changes_nothing(device: str) -> None:
    """The new value's shape is known only at run time, and the variable's declaration refuses it."""
    net = Net()
    x = net.parameter("f32", (-1, 3), "x")
    before = net.read_value("v", "f32", ("1..4", 3), net.const(np.zeros((1, 3), np.float32)))
    after = concat(net, [before, x], 0)
    net.assign("v", after)
    net.result(after)
    request = compiled(net, device).create_infer_request()
    request.infer({"x": numbers(2, 3)})
    with pytest.raises(RuntimeError, match=r"^\[Assign\].*'v'.*1\.\.4"):
        request.infer({"x": numbers(2, 3)})
    assert value(request, "v").shape == (3, 3)
    request.infer({"x": numbers(1, 3)})
    assert value(request, "v").shape == (4, 3)


def test_bodies_while_another_thread_adds_a_property() -> None:
    """Ops are shared, and keep properties that are computed once."""
    op, ended, interval = Add(), threading.Event(), sys.getswitchinterval()

    def change() -> None:
        while not ended.is_set():
            vars(op)["other"] = 1
            del vars(op)["other"]

    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(20_000):
            assert bodies(op) == []
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(interval)


def test_first_inferences_at_once(device: str, pytestconfig: pytest.Config) -> None:
    """Several threads run bodies, and lengths, for the first time at the same moment."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        _first_inferences_at_once(device, attempts=20 if pytestconfig.getoption("--long") else 2)
    finally:
        sys.setswitchinterval(interval)


def _first_inferences_at_once(device: str, attempts: int) -> None:
    for attempt in range(attempts):
        net, body, inner = Net(), Net(), Net()
        x = net.parameter("f32", (-1, 3), "x")
        before = net.read_value("v", "f32", (-1, 3), net.const(np.zeros((0, 3), np.float32)))
        every = concat(net, [before, x], 0)
        net.assign("v", every)
        h, row, total = body.parameter("f32", (-1, 3)), inner.parameter("f32", (1, 3)), inner.parameter("f32", (1, 3))
        new = inner.result(add(inner, row, total))
        nothing = body.const(np.zeros((1, 3), np.float32))
        summed = body.tensor_iterator(inner, [feed(h, row, axis=0), feed(nothing, total)], [take(new)], [(new, total)])
        largest = body.layer("ReduceMax", "opset1", [summed, i64(body, [0, 1])], {"keep_dims": False})
        less = body.layer("Less", "opset1", [largest, scalar(body, 500)], {"auto_broadcast": "numpy"}, ["boolean"])
        go = body.result(less)
        grown = body.result(concat(body, [h, summed], 0))
        net.result(
            net.loop(
                scalar(net, -1, "i64"),
                net.const(np.array(True)),
                body,
                [feed(every, h)],
                [take(grown)],
                [(grown, h)],
                body_condition=go,
            )
        )
        model = ov.Core().compile_model(read_private(net), device)
        barrier, failures = threading.Barrier(12), []

        def run(number: int) -> None:
            request = model.create_infer_request()  # noqa: B023
            barrier.wait(10)  # noqa: B023
            try:
                cache = np.zeros((0, 3), np.float32)
                for n in range(3):
                    data = np.abs(numbers(1 + (number + n) % 3, 3, seed=n)) + 1
                    cache = expected_rows = np.concatenate([cache, data])
                    while True:
                        last = expected_rows.sum(0, keepdims=True)
                        expected_rows = np.concatenate([expected_rows, last])
                        if not last.max() < 500:
                            break
                    np.testing.assert_allclose(request.infer({"x": data})[0], expected_rows, rtol=1e-6)
            except BaseException as e:
                failures.append(e)  # noqa: B023

        threads = [threading.Thread(target=run, args=(n,)) for n in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, (attempt, failures)


def either() -> Net:
    """Build a branch by a computed condition, whose results have data-dependent shapes."""
    net, branches = Net(), (Net(), Net())
    x = net.parameter("f32", (2, 3), "x")
    inner = [branch.parameter("f32", (2, 3)) for branch in branches]
    results = [branches[0].result(reshape(branches[0], inner[0], [-1])), branches[1].result(inner[1])]
    more = net.layer("Greater", "opset1", [gather(net, reshape(net, x, [-1]), i64(net, 0)), scalar(net, 0)])
    net.result(net.if_(more, *branches, [(x, *inner)], [tuple(results)]))
    return net


@pytest.mark.parametrize("make", [accumulator, either])
def test_a_request_takes_its_memory_along(make: Callable[[], Net], device: str) -> None:
    """The memory is freed at once, without the garbage collector."""
    model = compiled(make(), device)
    request = model.create_infer_request()
    for n in range(3):
        request.infer({"x": X[n]})
    executors = list(request._session._executors.values())
    assert any(executor.stepwise for executor in executors) == (make is either)
    mine = [weakref.ref(part) for part in (request, *executors)]
    if request._session.backend is not model._compilation.backend:
        mine.append(weakref.ref(request._session.backend))
    del executors
    gc.disable()
    try:
        del request
        assert [part() for part in mine] == [None] * len(mine)
    finally:
        gc.enable()
    assert len(mine) == (2 if device == "CPU" else 3)
