"""Convolutions through an emulated cuDNN: supported cases, results, memory, and failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cuda import CudaBackend, cudnn, device, handles, rt
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.activation.activation import Relu, Sigmoid
from ovgpu.ops.arithmetic.arithmetic import Add
from ovgpu.ops.base.op import Op, evaluate
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.convolution.convolution import (
    Convolution,
    ConvolutionBackpropData,
    GroupConvolution,
    GroupConvolutionBackpropData,
)
from ovgpu.runtime.backend import RoundingCall
from ovgpu.types import Type
from tests.emulator import blas_emu, cudnn_emu, cupy_emu
from tests.harness import Case, Net
from tests.harness.replay import EMULATED
from tests.ops.convolution import test_convolution as judged

from .recorded import replay
from .test_convolution_epilogue import with_epilogue

Array = np.ndarray[Any, Any]
Pick = Callable[[Any], Any]
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
BF16 = np.dtype(ml_dtypes.bfloat16)
pytestmark = pytest.mark.emulator


@pytest.fixture(autouse=True)
def installed(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rt, "_cudnn", cudnn_emu)


FLOATS = [
    case
    for table in (judged.CASES, judged.GROUPED, judged.TRANSPOSED, judged.TRANSPOSED_GROUPS)
    for case in table
    if case.error is None and {i.dtype for i in case.inputs} & {"f32", "f16", "bf16"}
]


@pytest.mark.drawn(6)
@pytest.mark.parametrize("case", FLOATS, ids=lambda case: case.name)
def test_judged(case: Case) -> None:
    case.run("dynamic" if case.rankless else "static", EMULATED)


def whole(x: Any) -> Any:
    return x


def convolve(
    backend: CudaBackend,
    op: Op,
    x: tuple[int, ...],
    kernel: tuple[int, ...],
    kind: Any = np.float32,
    pick: Pick = whole,
    into: Pick = whole,
    others: Sequence[tuple[int, ...]] = (),
) -> list[str]:
    """Check the CUDA form with cuDNN against `evaluate`; return "cuDNN" or "other" for each call.

    ``pick`` selects the data from an array of shape x, and ``into`` the output from a larger array. ``others`` are
    the shapes of further inputs.
    """
    kind = np.dtype(kind)
    draws = [
        [np.random.default_rng([i, n]).standard_normal(shape).astype(kind) for i in range(3)]
        for n, shape in enumerate((x, kernel, *others))
    ]

    def wanted(draw: int) -> list[Array]:
        given, *rest = (values[draw].astype(np.float64) for values in draws)
        (found,) = evaluate(op, NUMPY, [pick(given), *rest], [Type.f64])
        return [found.astype(kind)]

    shape = wanted(0)[0].shape
    data, *rest = arrays = [cupy_emu.empty(shape, kind) for shape in (x, kernel, *others)]
    out = into(cupy_emu.empty(shape if into is whole else tuple(4 * n for n in shape), kind))
    out = out[tuple(slice(n) for n in shape)]
    launcher = Launcher(backend.stream, backend.blas, backend.dnn)
    sums = np.float32 if isinstance(op, ConvolutionBackpropData) else kind
    op.cuda(launcher, [pick(data), *rest], [out], [cupy_emu.empty((1 << 15,), sums)])  # type: ignore[misc]
    replay(backend, lambda: launcher.calls, list(zip(arrays, draws)), [out], wanted, TOLERANCE[kind.name])
    return ["cuDNN" if isinstance(call.func, cudnn.CudnnPlan) else "other" for call in launcher.calls]


# ---- supported convolutions


@pytest.mark.parametrize("kind", [np.float32, np.float16, BF16])
@pytest.mark.parametrize(("op", "x", "kernel"), [
    (Convolution(strides=(2,), pads_begin=(3,), pads_end=(1,)), (2, 16, 25), (8, 16, 4)),
    (Convolution(strides=(2, 2), pads_begin=(3, 3), pads_end=(3, 3)), (1, 3, 24, 20), (8, 3, 7, 7)),
    (Convolution(strides=(2, 1), dilations=(1, 3), pads_end=(0, 2)), (2, 9, 11, 16), (8, 9, 3, 2)),
    (Convolution(auto_pad="same_lower"), (1, 5, 4, 6, 8), (8, 5, 2, 3, 2)),
    (GroupConvolution(auto_pad="same_upper"), (2, 27, 4, 8), (3, 10, 9, 2, 3)),
    (ConvolutionBackpropData(strides=(2, 3), pads_begin=(1, 0), pads_end=(0, 1)), (2, 9, 5, 8), (9, 8, 3, 4)),
    (ConvolutionBackpropData(strides=(3,), output_padding=(2,)), (1, 9, 8), (9, 8, 2)),
    (GroupConvolutionBackpropData(dilations=(1, 2)), (1, 18, 4, 4), (2, 9, 10, 2, 3)),
])  # fmt: skip
def test_supported(op: Op, x: tuple[int, ...], kernel: tuple[int, ...], kind: Any, backend: CudaBackend) -> None:
    assert convolve(backend, op, x, kernel, kind) == ["cuDNN"]


@pytest.mark.parametrize(("pick", "taken"), [
    (lambda a: a[:, 4:13], True), (lambda a: a[:, 8:17, ::2], True), (lambda a: a[:, :9].swapaxes(2, 3), True),
    (lambda a: a[:, ::-2], False), (lambda a: a[:, :9, :, 1:], False),
])  # fmt: skip
def test_parts_of_tensors(pick: Pick, taken: bool, backend: CudaBackend) -> None:
    """cuDNN takes parts that begin at a multiple of 16 bytes and are not reversed."""
    calls = convolve(backend, Convolution(pads_begin=(1, 1)), (2, 17, 8, 12), (4, 9, 2, 3), pick=pick)
    assert ("cuDNN" in calls) == taken


def test_parts_of_results(backend: CudaBackend) -> None:
    for op in (Convolution(), ConvolutionBackpropData()):
        assert convolve(backend, op, (2, 9, 5, 8), (9, 9, 2, 3), into=lambda a: a[:, 4:, 2:]) == ["cuDNN"]
        assert "cuDNN" not in convolve(backend, op, (2, 9, 5, 8), (9, 9, 2, 3), into=lambda a: a[:, 4:, 2:, 1:])


@pytest.mark.parametrize(("op", "x", "kernel"), [
    (Convolution(), (2, 9, 4, 8), (8, 9, 1, 1)),
    (GroupConvolution(), (2, 12, 5, 8), (12, 1, 1, 3, 3)),
    (ConvolutionBackpropData(output_padding=(2, 0), strides=(2, 1)), (2, 9, 5, 8), (9, 8, 2, 2)),
])  # fmt: skip
def test_unsupported(op: Op, x: tuple[int, ...], kernel: tuple[int, ...], backend: CudaBackend) -> None:
    """cuDNN does not take matrix products, few channels per group, and output padding beyond the gradient."""
    assert "cuDNN" not in convolve(backend, op, x, kernel)


def test_symmetric_padding(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[cudnn.Problem] = []
    monkeypatch.setattr(cudnn, "build", lambda problem, handle: seen.append(problem))
    convolve(backend, Convolution(strides=(2, 2), pads_begin=(3, 3), pads_end=(3, 2)), (1, 3, 28, 32), (8, 3, 7, 7))
    assert [(p.begin, p.end) for p in seen] == [((3, 3), (3, 3))]


# ---- layers after a convolution

CONV, X, KERNEL, OUT, BIAS = Convolution(), (2, 9, 5, 8), (8, 9, 2, 1), (2, 8, 4, 8), (8, 1, 1)


@pytest.mark.parametrize(("layers", "others"), [
    ([Add()], [BIAS]), ([Add(), Relu()], [(1, *BIAS)]), ([Add(), Add()], [BIAS, OUT]), ([Add(), Add()], [OUT, BIAS]),
    ([Add(), Add(), Relu()], [BIAS, OUT]),
])  # fmt: skip
def test_epilogues(layers: Any, others: Any, backend: CudaBackend) -> None:
    """cuDNN fuses a bias and the sum with a tensor, in either order, and Relu."""
    assert convolve(backend, with_epilogue(CONV, len(others), *layers), X, KERNEL, others=others) == ["cuDNN"]


@pytest.mark.parametrize(("x", "kernel", "out"), [
    ((2, 9, 8), (8, 9, 1), (2, 8, 8)), ((1, 9, 4, 8), (4, 9, 1, 1), (1, 4, 4, 8)), ((1, 9, 4), (4, 9, 4), (1, 4, 1)),
    ((1, 2, 3, 3, 8), (4, 2, 2, 2, 1), (1, 4, 2, 2, 8)),
])  # fmt: skip
def test_epilogues_of_any_convolution(x: Any, kernel: Any, out: Any, backend: CudaBackend) -> None:
    """cuBLAS computes products of pixels in f32 without rounding to TF32, and another kernel their epilogue."""
    layers, others = with_epilogue(CONV, 2, Add(), Add(), Relu()), [(out[1], *(1 for _ in out[2:])), out]
    pointwise = all(n == 1 for n in kernel[2:])
    assert convolve(backend, layers, x, kernel, others=others) == (["other", "other"] if pointwise else ["cuDNN"])


@pytest.mark.parametrize(("layers", "others"), [
    ([Relu()], []), ([Add()], [OUT]), ([Add(), Sigmoid()], [BIAS]), ([Add(), Relu(), Add()], [BIAS, OUT]),
    ([Add(), Add()], [BIAS, BIAS]), ([Add(), Add(), Add()], [BIAS, OUT, OUT]), ([Add()], [(8,)]),
    ([Add(), Add()], [BIAS, (2, 8, 1, 8)]),
])  # fmt: skip
def test_unsupported_epilogues(layers: Any, others: Any, backend: CudaBackend) -> None:
    assert convolve(backend, with_epilogue(CONV, len(others), *layers), X, KERNEL, others=others) == ["cuDNN", "other"]


def test_rounds_16_bits_between_layers(backend: CudaBackend) -> None:
    layers = with_epilogue(CONV, 1, Add(), Relu())
    assert convolve(backend, layers, X, KERNEL, np.float16, others=[BIAS]) == ["cuDNN", "other"]


def test_epilogues_without_an_engine(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an engine for the epilogue, a kernel of this project runs it after cuDNN."""
    layers = with_epilogue(CONV, 2, Add(), Add(), Relu())
    wrong = refuses(RuntimeError("CUDNN_STATUS_BAD_PARAM"))
    for name, value in (("is_conv_bias_act", lambda _: False), ("Pointwise.finalize", wrong)):
        monkeypatch.setattr(backend, "dnn", cudnn.Dnn(backend.stream))
        with monkeypatch.context() as patch:
            patch.setattr(f"tests.emulator.cudnn_emu.{name}", value)
            assert convolve(backend, layers, X, KERNEL, others=[BIAS, OUT]) == ["cuDNN", "other"]


# ---- numbers


def test_f32_is_not_rounded(backend: CudaBackend) -> None:
    x, kernel = (cupy_emu.asarray(np.full(shape, 1 + 2**-11, np.float32)) for shape in ((1, 1, 3, 4), (1, 1, 1, 1)))
    out = cupy_emu.empty((1, 1, 2, 4), np.float32)
    launcher = Launcher(backend.stream, backend.blas, backend.dnn)
    Convolution(strides=(2, 1)).cuda(launcher, [x, kernel], [out], ())
    (call,) = launcher.calls
    call()
    np.testing.assert_array_equal(out.get(), np.full((1, 1, 2, 4), (1 + 2**-11) ** 2, np.float32))


@pytest.mark.emulator  # the libraries need not use tensor cores
def test_f32_in_tf32(tf32_backend: CudaBackend) -> None:
    """Engines that round f32 to TF32 are used if they are allowed."""
    x, kernel, out = (cupy_emu.empty(shape, np.float32) for shape in ((1, 3, 4, 8), (5, 3, 1, 3), (1, 5, 4, 6)))
    x[...], kernel[...] = 1 + 2**-10 + 2**-12, 1
    (call,) = tf32_backend.dnn.convolve(Convolution().convolved(x, kernel, out, (0, 0))) or ()
    assert isinstance(call, RoundingCall)
    call()
    np.testing.assert_array_equal(out.get(), np.full(out.shape, 9 * (1 + 2**-10), np.float32))


@pytest.mark.parametrize("kind", [np.float32, np.float16, BF16])
def test_sums_are_the_same_every_time(kind: Any, backend: CudaBackend) -> None:
    x, kernel, out = (cupy_emu.empty(shape, kind) for shape in ((1, 3, 4, 8), (5, 3, 1, 3), (1, 5, 4, 6)))
    (call,) = backend.dnn.convolve(Convolution().convolved(x, kernel, out, (0, 0))) or ()
    (engine, *_) = call.func.graph._engines
    assert cudnn_emu.numerical_note.NONDETERMINISTIC not in engine.notes


# ---- plans and memory


def network(*channels: int) -> tuple[bytes, bytes]:
    """Return 3 x 3 convolutions with these channel counts before, between and after them, and dynamic image sizes."""
    net = Net("convolutions")
    x = net.parameter("f32", (1, channels[0], -1, -1), "x")
    for number, (given, outputs) in enumerate(pairwise(channels)):
        kernel = np.random.default_rng(number).integers(-2, 3, (outputs, given, 3, 3)).astype(np.float32)
        attrs = {"strides": "1,1", "dilations": "1,1", "pads_begin": "1,1", "pads_end": "1,1"}
        x = net.layer("Convolution", "opset1", [x, net.const(kernel)], attrs, name=f"conv{number}")
    net.result(x)
    return net.build()


def request(emulated: str, *channels: int) -> Any:
    core = ov.Core()
    return core.compile_model(core.read_model(*network(*channels)), emulated).create_infer_request()


def ones(rows: int) -> Array:
    return np.ones((1, 4, rows, 8), np.float32)


def test_plans_are_cached(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of the same shape share a plan; only another image size, with other memory, needs a new one."""
    seen: list[cudnn.Problem] = []
    build = cudnn.build
    monkeypatch.setattr(cudnn, "build", lambda problem, handle: seen.append(problem) or build(problem, handle))
    infer = request(emulated, 4, 4, 4).infer
    first = infer(ones(4))[0].copy()
    assert len(seen) == 1
    for _ in range(2):  # captured, and replayed
        np.testing.assert_array_equal(infer(ones(4))[0], first)
    infer(ones(64))
    assert [p.x for p in seen] == [(1, 4, 4, 8), (1, 4, 64, 8)]
    np.testing.assert_array_equal(infer(ones(4))[0], first)
    np.testing.assert_array_equal(infer(ones(4))[0], first)
    assert len(seen) == 2


def test_requests_share_plans(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that run at the same time build each plan once, and each runs it on its own stream."""
    seen: list[cudnn.Problem] = []
    build = cudnn.build
    monkeypatch.setattr(cudnn, "build", lambda problem, handle: seen.append(problem) or build(problem, handle))
    core = ov.Core()
    compiled = core.compile_model(core.read_model(*network(4, 4, 5)), emulated)
    requests = [compiled.create_infer_request() for _ in range(4)]
    expected = requests[0].infer(ones(4))[0].copy()
    for number in range(3):
        for each in requests:
            each.start_async((number + 1) * ones(4 + 4 * (number == 2)))
        for each in requests:
            each.wait()
            if number < 2:
                np.testing.assert_array_equal(each.results[0], (number + 1) * expected)
    assert [p.x[1:3] for p in seen] == [(4, 4), (4, 4), (4, 8), (4, 8)]
    assert len({id(r._session.backend.dnn.handle) for r in requests}) == 4


def test_cache_capacity(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn, "MAX_PLANS", 1)
    dnn = cudnn.Dnn(backend.stream)
    monkeypatch.setattr(backend, "dnn", dnn)
    for width in (8, 12, 8):
        assert convolve(backend, Convolution(), (1, 3, 5, width), (4, 3, 2, 3)) == ["cuDNN"]
        assert [p.x for p in dnn.plans._plans] == [(1, 3, 5, width)]


def test_handles_are_reused(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    dnn = cudnn.Dnn(backend.stream)
    handle = dnn.handle
    del dnn
    monkeypatch.delattr(cudnn_emu, "create_handle")
    assert cudnn.Dnn(backend.stream).handle == handle


# ---- failures


def refuses(error: Exception) -> Callable[..., Any]:
    def refuse(*_: Any) -> Any:
        raise error

    return refuse


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("check_support", cudnn_emu.cudnnGraphNotSupportedError("No execution plans support the graph.")),
        ("build_operation_graph", RuntimeError("CUDNN_BACKEND_OPERATION: CUDNN_STATUS_NOT_SUPPORTED_PADDING")),
    ],
)
def test_unsupported_graphs(step: str, error: Exception, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "dnn", cudnn.Dnn(backend.stream))
    monkeypatch.setattr(cudnn_emu.pygraph, step, refuses(error))
    assert "cuDNN" not in convolve(backend, Convolution(), (1, 3, 5, 8), (4, 3, 2, 3))


def test_little_workspace(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "dnn", cudnn.Dnn(backend.stream))
    monkeypatch.setattr(cudnn, "MAX_WORKSPACE_BYTES", 100)
    assert "cuDNN" not in convolve(backend, Convolution(), (1, 3, 5, 8), (4, 3, 2, 3))


def test_errors_of_a_plan_that_runs(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = request(emulated, 4, 4)
    with monkeypatch.context() as patch:
        patch.setattr(cudnn_emu.pygraph, "execute", refuses(RuntimeError("CUDNN_STATUS_INTERNAL_ERROR")))
        with pytest.raises(ov.OpError, match=r"^\[Convolution\] cuDNN refused: CUDNN_STATUS_INTERNAL_ERROR \(layer '"):
            ready.infer(ones(4))
    assert ready.infer(ones(4))[0].shape == (1, 4, 4, 8)


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("build_plans", RuntimeError("CUDNN_STATUS_INTERNAL_ERROR")),
        ("validate", ValueError("a bad tensor")),
        ("check_support", NotImplementedError("not by this version")),
        ("create_execution_plans", AttributeError("no such mode")),
    ],
)
def test_a_plan_that_cannot_be_built(
    step: str, error: Exception, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If cuDNN fails to build a plan, ovgpu's own kernel computes the convolution, and one warning says so. The errors
    are those of several versions of cuDNN's frontend."""
    monkeypatch.setattr(backend, "dnn", cudnn.Dnn(backend.stream))
    monkeypatch.setattr(cudnn_emu.pygraph, step, refuses(error))
    with pytest.warns(RuntimeWarning, match=f"cuDNN builds no plan .*: {type(error).__name__}: {error}") as warned:
        assert "cuDNN" not in convolve(backend, Convolution(), (1, 3, 5, 8), (4, 3, 2, 3))
        assert "cuDNN" not in convolve(backend, Convolution(), (1, 3, 5, 8), (4, 3, 2, 3))
    assert len(warned) == 1


def test_no_handle(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = request(emulated, 4, 4)
    monkeypatch.setattr(handles, "_idle", {})
    monkeypatch.setattr(cudnn_emu, "create_handle", refuses(RuntimeError("CUDNN_STATUS_NOT_INITIALIZED")))
    with pytest.warns(RuntimeWarning, match="cuDNN builds no plan .*CUDNN_STATUS_NOT_INITIALIZED"):
        assert ready.infer(ones(4))[0].shape == (1, 4, 4, 8)


def test_another_thread_takes_the_last_handle(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    class Taken(list[Any]):
        def __bool__(self) -> bool:
            return True  # the list had a handle when it was checked

    key = id(rt.cudnn()), rt.cupy().cuda.Device().id
    monkeypatch.setattr(handles, "_idle", {key: Taken()})
    assert cudnn.Dnn(backend.stream).handle


# ---- where it is not installed


def imports(error: Exception) -> Callable[[str], Any]:
    def load(module: str) -> Any:
        if module == "cudnn":
            raise error
        return cupy_emu if module == "cupy" else blas_emu

    return load


def test_not_installed(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rt, "_cudnn", None)
    monkeypatch.setattr(rt, "import_module", imports(ModuleNotFoundError("No module named 'cudnn'", name="cudnn")))
    assert "cuDNN" not in convolve(backend, Convolution(), (1, 3, 5, 8), (4, 3, 2, 3))
    assert "cuDNN" not in device.libraries()


@pytest.mark.parametrize("error", [ModuleNotFoundError("No module named 'x'", name="x"), RuntimeError("no library")])
def test_broken(error: Exception, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rt, "_cudnn", None)
    monkeypatch.setattr(rt, "import_module", imports(error))
    with pytest.warns(RuntimeWarning, match=f"^cuDNN's bindings .* cannot be used: {type(error).__name__}: {error}"):
        assert "cuDNN" not in convolve(backend, Convolution(), (1, 3, 5, 8), (4, 3, 2, 3))
    assert "cuDNN" not in device.libraries()  # and no other warning


def test_the_version_is_reported() -> None:
    assert device.libraries().endswith(", cuDNN 9.12.0")
