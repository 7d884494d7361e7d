"""Generated elementwise kernels: all their forms, and fused chains against the same ops one by one, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ovgpu as ov
from ovgpu.backends.cuda import CudaBackend, elementwise
from ovgpu.backends.cuda.elementwise import Form, Generated, source
from ovgpu.backends.cuda.kernels import NO_FMA_FLAGS
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.compile import devices
from ovgpu.debug import Stopped, generated_code
from ovgpu.ops.activation.activation import Gelu7, Relu
from ovgpu.ops.arithmetic.arithmetic import Add, Multiply
from ovgpu.ops.base.strided import Axes
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.comparison import Less, Select
from ovgpu.ops.convert import Convert
from ovgpu.ops.fused._elementwise import Chain, Fused, Layer, Part
from ovgpu.runtime.printing import as_text
from ovgpu.types import Type
from tests.emulator import cupy_emu as cp
from tests.emulator import nvrtc
from tests.harness.ir import Net, Port, feed, take
from tests.harness.models.transformer import Sizes, bert
from tests.kernels.forms import random

Array = np.ndarray[Any, Any]
HALF = (Type.f16, np.float16(0.5).tobytes())
F32, F16, BF16 = np.dtype("f4"), np.dtype("f2"), np.dtype(ml_dtypes.bfloat16)


def chain(inputs: int, *parts: tuple[Any, ...], literals: tuple[Any, ...] = ()) -> Fused:
    steps = tuple(Part(op, tuple(operands)) for op, *operands in parts)
    layers = tuple(Layer(part.op, part.op.name, "") for part in steps)
    return Fused(chain=Chain(inputs, literals, steps), ranks=(0,) * len(literals), layers=layers)


SUM = chain(2, (Add(), 0, 1), (Relu(), 2))
BLEND = chain(3, (Less(), 0, 1), (Select(), 3, 0, 2), (Multiply(), 4, 1))
MIXED = chain(2, (Convert(destination_type=Type.f32), 0), (Add(), 2, 1), (Convert(destination_type=Type.i32), 3))
SCALED = chain(1, (Multiply(), 0, 1), (Add(), 2, 0), literals=(HALF,))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use vectors from 8 elements on, and several vectors per thread from 4096 elements on."""
    elementwise._planned.cache_clear()
    monkeypatch.setattr(elementwise, "MIN_VECTORIZED_ELEMENTS", 8)
    monkeypatch.setattr(elementwise, "MIN_UNROLLED_ELEMENTS", 4096)
    yield
    elementwise._planned.cache_clear()


def run(
    op: Fused,
    inputs: Sequence[Array],
    views: Sequence[Callable[[Any], Any]] = (),
    target: Callable[[Any], Any] = lambda x: x,
    shape: tuple[int, ...] = (),
) -> Form:
    """Compare the kernel's result with that of the parts one by one; return the form of the kernel."""
    views = views or [lambda x: x] * len(inputs)
    (expected,) = op.evaluate(NUMPY, *(view(x) for view, x in zip(views, inputs)))
    given_ = [view(cp.asarray(x)) for view, x in zip(views, inputs)]
    output = target(cp.empty(shape or expected.shape, expected.dtype))
    launcher = Launcher(cp.cuda.Stream(non_blocking=True), None)
    op.cuda(launcher, given_, [output], ())
    for call in launcher.calls:
        call()
    same_bits(output.get(), expected)
    form: Form = launcher.calls[0].func.form  # type: ignore[attr-defined]
    return form


def same_bits(found: Array, expected: Array) -> None:
    """Assert equal bits, except for the payload of NaNs, which depends on the order of operands."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    unequal = np.ascontiguousarray(found).view(f"u{found.itemsize}") != expected.view(f"u{found.itemsize}")
    if found.dtype.kind not in "biu":
        unequal &= ~(np.isnan(found.astype("f8")) & np.isnan(expected.astype("f8")))
    assert not unequal.any(), f"{unequal.sum()} elements: {found[unequal][:3]} instead of {expected[unequal][:3]}"


# ---- forms


@pytest.mark.drawn(2)
@pytest.mark.parametrize(("dtype", "vector"), [("f4", 4), ("f2", 8), (BF16, 8), ("f8", 2), ("i1", 8), ("i8", 2)])
@pytest.mark.parametrize("size", [64, 67, 8, 4096, 4999])
def test_dense(dtype: Any, vector: int, size: int, emulated: str, small: None) -> None:
    """A vector has 16 bytes, or 8 elements at most; a remainder is scalar. Large arrays take several per thread."""
    form = run(SUM, [random((size,), dtype)(i) for i in (0, 1)])
    assert (form.rank, form.vector, form.unroll) == (1, vector, 2 if size >= 4096 else 1)


def test_small_arrays_have_one_element_per_thread(emulated: str) -> None:
    form = run(SUM, [random((40, 50))(i) for i in (0, 1)])
    assert form == Form(1, 1, 1, "int", (False, False))


LAYOUTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, int]] = {  # shapes, rank, vector
    "rows": ((12, 32), (32,), 2, 4),
    "columns": ((12, 32), (12, 1), 2, 4),
    "a number": ((12, 32), (), 1, 4),
    "channels": ((2, 5, 6, 8), (5, 1, 1), 3, 4),
    "the middle": ((4, 5, 8), (4, 1, 8), 3, 4),
    "rows of an odd length": ((12, 33), (33,), 2, 1),
    "rows of an even length": ((12, 34), (34,), 2, 2),
    "five axes": ((2, 3, 2, 3, 4), (1, 3, 1, 3, 1), 5, 4),
    "a number of one axis": ((1, 1, 64), (1, 1, 1), 1, 4),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("swapped", [False, True])
def test_broadcasting(name: str, swapped: bool, emulated: str, small: None) -> None:
    large, small_shape, rank, vector = LAYOUTS[name]
    shapes = (small_shape, large) if swapped else (large, small_shape)
    form = run(SUM, [random(shape)(i) for i, shape in enumerate(shapes)])
    assert (form.rank, form.vector) == (rank, vector)


def test_many_rows(emulated: str, small: None) -> None:
    form = run(SUM, [random((600, 16))(0), random((16,))(1)])
    assert (form.rank, form.vector, form.unroll) == (2, 4, 2)
    form = run(SUM, [random((600, 15))(0), random((15,))(1)])
    assert (form.rank, form.vector, form.unroll) == (2, 1, 4)


def test_other_layouts(emulated: str, small: None) -> None:
    a, b = random((24, 16))(0), random((24, 16))(1)
    transposed = run(SUM, [np.ascontiguousarray(a.T), b], [lambda x: x.T, lambda x: x])
    assert (transposed.rank, transposed.vector) == (2, 1)
    both = run(SUM, [a, b], [lambda x: x.T] * 2, lambda out: out.T, (24, 16))
    assert (both.rank, both.vector) == (1, 4), "all in the order of memory"
    assert run(SUM, [a, b], [lambda x: x[:, 4:12]] * 2).vector == 4
    assert run(SUM, [a, b], [lambda x: x[:, 1:9]] * 2).vector == 1, "not aligned"
    assert run(SUM, [a, b], [lambda x: x[:, 2:10]] * 2).vector == 2
    assert run(SUM, [a, b], [lambda x: x[::-1, ::2]] * 2).vector == 1
    part = run(SUM, [a[:, :8], b[:, :8]], [lambda x: x] * 2, lambda out: out[:, 4:12], (24, 16))
    assert (part.rank, part.vector) == (2, 4)


def test_several_types(emulated: str, small: None) -> None:
    """A vector has as many elements as fit in 16 bytes of the largest type."""
    assert run(MIXED, [random((9, 16), "f2")(0), random((16,))(1)]).vector == 4
    assert run(MIXED, [random((9, 16), "i1")(0), random((1, 1))(1)]).vector == 4
    assert run(BLEND, [random((9, 16), BF16)(i) for i in range(3)]).vector == 8


def test_literals_are_rounded_as_values_are(emulated: str) -> None:
    """0.5 x + x in f16 is rounded twice."""
    run(SCALED, [random((500,), "f2", 1000)(0)])


LITERALS = [("f32", v) for v in (0.0, -0.0, 0.1, -1e-45, 3.4e38, np.inf, -np.inf, np.nan)]
LITERALS += [("f16", 0.1), ("bf16", 0.1), ("f64", 0.1), ("i64", -(2**63)), ("i64", 2**63 - 1), ("u64", 2**64 - 1)]
LITERALS += [("i8", -128), ("u8", 255), ("boolean", True), ("boolean", False)]


@pytest.mark.drawn(2)
@pytest.mark.parametrize(("kind", "value"), LITERALS)
def test_literals(kind: str, value: Any, emulated: str) -> None:
    """A Select returns the literal where its condition holds."""
    kind_: Type = getattr(Type, kind)
    number = np.asarray(value).astype(kind_.storage)
    op = chain(2, (Select(), 0, 2, 1), literals=((kind_, number.tobytes()),))
    run(op, [np.array([True, False, True]), np.zeros(3, kind_.storage)])


def test_offsets_beyond_32_bits(emulated: str, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Axes, "index", "long long")
    assert run(SUM, [random((6, 32))(0), random((32,))(1)]).index == "long long"
    assert run(SUM, [random((67,))(0), random((67,))(1)]).index == "long long"


def test_no_elements(emulated: str) -> None:
    launcher = Launcher(cp.cuda.Stream(non_blocking=True), None)
    empty = cp.empty((0, 3), "f4")
    SUM.cuda(launcher, [empty, cp.empty((3,), "f4")], [empty], ())
    assert launcher.calls == []


def test_no_axes(emulated: str) -> None:
    run(SUM, [np.float32(2).reshape(()), np.float32(-1).reshape(())])


FORMS = [
    Form(1, 4, 2, "int", (False, False)),
    Form(2, 4, 1, "int", (False, True)),
    Form(3, 1, 4, "int", (False, False)),
    Form(2, 4, 2, "long long", (True, False)),
    Form(1, 1, 1, "int", (False, True)),
]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("architecture", nvrtc.NEWEST)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_forms_compile_for_devices(form: Form, architecture: str) -> None:
    """A bias with Gelu and a residual, and conversions, compile without register spills."""
    gelu = chain(2, (Add(), 0, 1), (Gelu7(), 2), (Add(), 3, 0))
    for op, inputs, output in (
        (gelu, (F32, F32), F32),
        (gelu, (F16, F16), F16),
        (gelu, (BF16, BF16), BF16),
        (MIXED, (F16, F32), np.dtype("i4")),
    ):
        usage = nvrtc.compile_source(
            source("kernel", op.chain, inputs, output, form), architecture, flags=NO_FMA_FLAGS
        ).usage["kernel"]
        assert usage.spill_stores == usage.spill_loads == usage.stack == 0 and usage.registers <= 128


# ---- whole models


class Apart(CudaBackend):
    """The CUDA backend without elementwise fusion."""

    fuses = False


@pytest.fixture(scope="module")
def apart(emulated: str) -> Iterator[str]:
    devices.register_backend("APART", Apart)
    yield "APART"
    devices.unregister_backend("APART")


def compiled(net: Net, device: str) -> Any:
    core = ov.Core()
    return core.compile_model(core.read_model(*net.build()), device)


FLOATS, KINDS = ("f32", "f16", "bf16"), ("f32", "f16", "bf16", "f64", "i32", "i64", "u8", "boolean")
FLOAT_OPS: dict[str, tuple[int, dict[str, Any]]] = {
    "Relu": (1, {}),
    "Abs": (1, {}),
    "Tanh": (1, {}),
    "Sigmoid": (1, {}),
    "Negative": (1, {}),
    "Floor": (1, {}),
    "Gelu": (7, {"approximation_mode": "TANH"}),
    "Clamp": (1, {"min": -1.5, "max": 2.0}),
    "HSwish": (4, {}),
    "Exp": (1, {}),
    "Sqrt": (1, {}),
}
NUMBER_OPS = ("Abs", "Negative")
BINARY = ("Add", "Subtract", "Multiply", "Maximum", "Minimum", "Divide")
COMPARISONS = ("Less", "Equal", "GreaterEqual", "NotEqual")


class Draw:
    """A random net of elementwise layers, most of which the result depends on."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.net = Net("random")
        self.base = data.draw(st.sampled_from([(2, 3, 4), (5, 8), (1, 6), (7,), (), (0, 4), (3, 1, 16)]))
        self.dynamic = data.draw(st.booleans())
        self.inputs: list[Array] = []
        self.values: list[Port] = []
        for _ in range(data.draw(st.integers(1, 3))):
            self.leaf(data.draw(st.sampled_from(KINDS[:5])))

    def pick(self, choices: Sequence[Any]) -> Any:
        return self.data.draw(st.sampled_from(list(choices)))

    def leaf(self, kind: str) -> Port:
        """Add a parameter that broadcasts to the base shape, or a constant, and return its port."""
        rank = self.data.draw(st.integers(0, len(self.base)))
        shape = tuple(1 if self.data.draw(st.booleans()) else d for d in self.base[len(self.base) - rank :])
        storage = getattr(Type, kind).storage
        seed = self.data.draw(st.integers(0, 9))
        values = np.random.default_rng(seed).uniform(0 if kind == "u8" else -3, 3, shape)
        array = (values > 0) if kind == "boolean" else values.astype(storage)
        if self.data.draw(st.integers(0, 3)) == 0 or kind == "bf16":
            self.values.append(self.net.const(array, kind))
        else:
            declared = [-1 if self.dynamic else d for d in shape]
            self.values.append(self.net.parameter(kind, declared))
            self.inputs.append(array)
        return self.values[-1]

    def operand(self, kind: str) -> Port:
        """Return a value of this type, most likely the last one, or a new leaf."""
        found = [v for v in self.values if v.type == kind]
        if not found or self.data.draw(st.integers(0, 3)) == 0:
            return self.leaf(kind)
        return found[-1] if self.data.draw(st.booleans()) else self.pick(found)

    def layer(self, type: str, inputs: list[Port], kind: str, version: int = 1, **attrs: Any) -> None:
        self.values.append(self.net.layer(type, f"opset{version}", inputs, attrs, [kind]))

    def step(self) -> None:
        last = self.values[-1]
        choice = self.pick(("unary", "binary", "binary", "compare", "convert", "select"))
        if last.type == "boolean":
            if choice == "unary":
                self.layer("LogicalNot", [last], "boolean")
            elif choice == "binary":
                self.layer(self.pick(("LogicalAnd", "LogicalOr")), [last, self.operand("boolean")], "boolean")
            else:
                kind = self.pick(KINDS[:7])
                self.layer("Select", [last, self.operand(kind), self.operand(kind)], kind)
        elif choice == "unary":
            if last.type in FLOATS:
                op = self.pick(FLOAT_OPS)
                self.layer(op, [last], last.type, FLOAT_OPS[op][0], **FLOAT_OPS[op][1])
            elif last.type != "u8":
                self.layer(self.pick(NUMBER_OPS), [last], last.type)
        elif choice == "compare":
            self.layer(self.pick(COMPARISONS), [last, self.operand(last.type)], "boolean")
        elif choice == "convert":
            kind = self.pick(KINDS)
            if last.type in (*FLOATS, "f64") and kind not in (*FLOATS, "f64"):
                self.layer("Clamp", [last], last.type, min=0.0, max=100.0)  # C++ leaves other conversions undefined
                if kind != "boolean":
                    self.layer(
                        "Select",
                        [self._finite(self.values[-1]), self.values[-1], self.net.const(np.zeros(()), last.type)],
                        last.type,
                    )
            self.layer("Convert", [self.values[-1]], kind, destination_type=kind)
        else:
            self.layer(self.pick(BINARY), [last, self.operand(last.type)], last.type)

    def _finite(self, x: Port) -> Port:
        port: Port = self.net.layer("Equal", "opset1", [x, x], {}, ["boolean"])
        return port


@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_random_chains(data: st.DataObject, emulated: str, apart: str) -> None:
    drawn = Draw(data)
    for _ in range(data.draw(st.integers(2, 9))):
        drawn.step()
    drawn.net.result(drawn.values[-1])
    if not drawn.inputs:
        return
    together, one_by_one = (compiled(drawn.net, device) for device in (emulated, apart))
    given_ = [x for x, p in zip(drawn.inputs, drawn.net.parameters.values())]
    used = {p.any_name for p in together.inputs}
    inputs = {name: x for name, x in zip(drawn.net.parameters, given_) if name in used}
    for _ in range(3):  # run, captured, replayed
        found, expected = (np.asarray(model(inputs)[0]) for model in (together, one_by_one))
        same_bits(found, expected)


def residual(width: int = 8, dynamic: bool = True) -> Net:
    net = Net("residual")
    x, y = (net.parameter("f32", (-1, width) if dynamic else (4, width), name) for name in "xy")
    a = net.layer("Add", "opset1", [x, net.const(np.arange(width, dtype="f4"))], name="bias")
    g = net.layer("Gelu", "opset7", [a], {"approximation_mode": "ERF"}, name="gelu")
    net.result(net.layer("Add", "opset1", [g, y], name="sum"))
    return net


def test_shapes_share_a_kernel(emulated: str) -> None:
    """One kernel serves changing extents, which are its arguments."""
    model = compiled(residual(), emulated)
    reference = compiled(residual(), "CPU")
    for rows in (3, 5, 5, 5, 1, 0, 40):
        x, y = random((rows, 8))(0), random((rows, 8))(1)
        np.testing.assert_allclose(model([x, y])[0], reference([x, y])[0], 1e-6, 1e-6)
    found = [name for name in generated_code(model._request()._session.last) if name.startswith("kernel")]
    assert found == ["kernel ovgpu_add_gelu"]


def test_layers_share_kernels(emulated: str) -> None:
    """A model of three layers compiles as many kernels as a model of one layer."""
    kernels: list[set[int]] = []
    for count in (1, 3):
        core = ov.Core()
        sizes = Sizes(count, 24, 2, 48, 61, 20)
        model = core.compile_model(core.read_model(*bert(1, sizes, (2, 9)).ir), emulated)
        model([np.zeros((2, 9), np.int64), np.ones((2, 9), np.int64), np.zeros((2, 9), np.int64)])
        calls = [call for cached in model._request()._session.last.bindings for b in cached.values() for call in b.flat]
        kernels.append({id(c.func) for c in calls if isinstance(getattr(c, "func", None), Generated)})
    assert kernels[0] and len(kernels[1]) == len(kernels[0])


def test_the_plan_names_the_layers(emulated: str) -> None:
    model = compiled(residual(dynamic=False), emulated)
    (step,) = [s for s in model.plan().steps if s.kind == "bound"]
    assert (step.op, step.layer, step.fused) == ("Fused", "sum", ("bias", "gelu", "sum"))
    assert "fused: bias, gelu, sum" in as_text(model.plan(), 120)


def test_errors_name_the_layer(emulated: str) -> None:
    """An error about mismatched extents names the layer; the request stays usable."""
    request = compiled(residual(), emulated).create_infer_request()
    x = random((4, 8))(0)
    first = np.array(request.infer([x, x])[0])
    with pytest.raises(RuntimeError, match=r"^\[Add\] .*4.*3.* \(layer 'sum'"):
        request.infer([x, x[:3]])
    np.testing.assert_array_equal(request.infer([x, x])[0], first)


def test_stopping_at_a_layer(emulated: str) -> None:
    """With STOP_AT set at compilation, layers are not fused; otherwise, the error says to set it before compilation."""
    x = random((4, 8))(0)
    with ov.STOP_AT("gelu"), pytest.raises(Stopped, match="stopped at layer 'gelu'"):
        compiled(residual(), emulated)([x, x])
    model = compiled(residual(), emulated)
    with ov.STOP_AT("gelu"), pytest.raises(RuntimeError, match=r"'gelu': it is one step with 'sum'.*before"):
        model([x, x])


def chained(net: Net, x: Port, bias: Port) -> Port:
    """Add layers for tanh(x + bias) * 0.5 + x, and return the port."""
    y = net.layer("Tanh", "opset1", [net.layer("Add", "opset1", [x, bias], name="plus")])
    y = net.layer("Multiply", "opset1", [y, net.const(np.float32(0.5))])
    port: Port = net.layer("Add", "opset1", [y, x], name="sum")
    return port


def agree(net: Net, emulated: str, *draws: Sequence[Array]) -> Any:
    """Check that eager and captured runs on the device match the CPU; return the model on the device."""
    model, reference = compiled(net, emulated), compiled(net, "CPU")
    for inputs in draws:
        for found, expected in zip(model(inputs).to_tuple(), reference(inputs).to_tuple(), strict=True):
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, 1e-5, 1e-6)
    return model


def test_in_the_body_of_a_loop(emulated: str) -> None:
    body = Net("body")
    xi, h = body.parameter("f32", (1, 8), "xi"), body.parameter("f32", (1, 8), "h")
    r = body.result(chained(body, body.layer("Multiply", "opset1", [xi, h]), body.const(random((8,))(3))))
    net = Net("loop")
    x, h0 = net.parameter("f32", (-1, 8), "x"), net.parameter("f32", (1, 8), "h0")
    every, last = net.tensor_iterator(body, [feed(x, xi, axis=0), feed(h0, h)], [take(r, axis=0), take(r)], [(r, h)])
    net.result(every)
    net.result(last)
    model = agree(net, emulated, *[[random((n, 8))(i), random((1, 8))(9)] for i, n in enumerate((5, 5, 5, 3, 1))])
    fused = [step.fused for step in model.plan().all_steps() if step.fused]
    assert fused and all(layers[-1] == "sum" and len(layers) == 5 for layers in fused)


def test_after_a_result_of_unknown_length(emulated: str) -> None:
    net = Net("picked")
    x = net.parameter("f32", (-1,), "x")
    where = net.layer("NonZero", "opset3", [x], {"output_type": "i64"}, ["i64"])
    picked = net.layer("Gather", "opset8", [x, where, net.const(np.int64(0))], {"batch_dims": 0})
    net.result(chained(net, picked, net.const(np.float32(1))))
    draws = [np.maximum(random((40,))(i), 0) for i in range(4)]
    model = agree(net, emulated, *[[x] for x in (*draws, np.zeros(40, np.float32), draws[0])])
    assert [step.fused[-1] for step in model.plan().all_steps() if step.fused] == ["sum"]


def test_in_a_branch(emulated: str) -> None:
    then, otherwise = Net("then"), Net("otherwise")
    a, b = then.parameter("f32", (4, 8), "a"), otherwise.parameter("f32", (4, 8), "b")
    first = then.result(chained(then, a, then.const(random((8,))(1))))
    second = otherwise.result(otherwise.layer("Relu", "opset1", [b]))
    net = Net("branch")
    x, which = net.parameter("f32", (4, 8), "x"), net.parameter("boolean", (), "which")
    net.result(net.if_(which, then, otherwise, [(x, a, b)], [(first, second)]))
    agree(net, emulated, *[[random((4, 8))(i), np.array(i % 2 == 0)] for i in range(6)])
