"""Arrays of other libraries on the device as inputs, outputs and states; tensors on the device."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cuda import interop
from tests.api import nets
from tests.emulator import cupy_emu as cp
from tests.harness.interruption import Interruption
from tests.harness.ir import Net
from tests.kernels.recorded import counted

X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)


class ByDlpack:
    """An array of a library with DLPack; ``streams`` are the consumers' streams, which it was asked to synchronize."""

    def __init__(self, values: Any) -> None:
        self.memory = cp.asarray(values)
        self.streams: list[int] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.memory.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        self.streams.append(stream or 0)
        return self.memory.__dlpack__(stream=stream)


class ByInterface:
    """An array of a library with only the CUDA array interface, and a stream of its own."""

    def __init__(self, values: Any) -> None:
        self.memory = cp.asarray(values)
        self.stream = cp.cuda.Stream()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**self.memory.__cuda_array_interface__, "stream": self.stream.ptr}


def cupys(values: Any) -> Any:
    """Return a CuPy array: CuPy's own on a GPU, else the emulator's."""
    return cp.asarray(values)


PRODUCERS: list[Any] = [cupys, ByDlpack, ByInterface]


def memory_of(array: Any) -> Any:
    return array if isinstance(array, cp.ndarray) else array.memory


@pytest.mark.parametrize("producer", PRODUCERS, ids=["cupy", "dlpack", "interface"])
@pytest.mark.parametrize("share", [False, True])
def test_given_to_infer(producer: Any, share: bool, compiled: Any) -> None:
    """A shared array is read in place from its second inference on; other arrays are copied on the device first."""
    request = compiled(nets.one()).create_infer_request()
    arrays = [producer(n * X) for n in range(2)]
    for n in range(10):
        found, counters = counted(lambda: request.infer([arrays[n % 2]], share_inputs=share))  # noqa: B023
        np.testing.assert_array_equal(found[0], np.abs(n % 2 * X))
        assert counters.h2d_bytes == 0 and counters.d2h_bytes == 24
        if n >= 6:
            assert (counters.graph_launches, counters.launches, counters.allocs) == (1, 0 if share else 1, 0)
    assert len([s for s in request.plan().steps if s.calls]) == 2  # no upload


@pytest.mark.emulator
def test_shared_arrays_are_not_retained(compiled: Any) -> None:
    """Shared arrays at new addresses do not accumulate: their memory is freed."""
    request = compiled(nets.one()).create_infer_request()
    for n in range(12):
        request.infer([cp.asarray(n * X)], share_inputs=True)
    used = cp.cuda.memory.used_bytes()
    for n in range(12):
        found = request.infer([cp.asarray(n * X)], share_inputs=True)
        np.testing.assert_array_equal(found[0], np.abs(n * X))
    assert cp.cuda.memory.used_bytes() == used


@pytest.mark.parametrize("producer", PRODUCERS, ids=["cupy", "dlpack", "interface"])
def test_bound_as_input(producer: Any, compiled: Any) -> None:
    """A bound array is read in place from the first inference on, with its owner's later writes."""
    request = compiled(nets.one()).create_infer_request()
    array = producer(X)
    tensor = ov.Tensor(array, shared_memory=True)
    assert isinstance(tensor, ov.RemoteTensor) and tensor.remote
    request.set_input_tensor(tensor)
    for n in range(5):
        memory_of(array)[...] = cp.asarray(n * X)
        found, counters = counted(request.infer)
        np.testing.assert_array_equal(found[0], np.abs(n * X))
        assert (counters.h2d_bytes, counters.d2h_bytes) == (0, 24)
        if n >= 2:
            assert (counters.graph_launches, counters.launches) == (1, 0)
    assert request.get_input_tensor() is tensor


def test_the_requests_stream_waits_for_the_producers(compiled: Any) -> None:
    request = compiled(nets.one()).create_infer_request()
    array, out = ByDlpack(X), ByDlpack(0 * X)
    stream = request._session.backend.stream.ptr
    request.set_input_tensor(ov.Tensor(array, shared_memory=True))
    request.set_output_tensor(ov.Tensor(out, shared_memory=True))
    array.streams.clear()
    out.streams.clear()
    request.infer()
    request.start_async()
    request.wait()
    assert array.streams == [stream, stream] and out.streams == [stream, stream]
    request.infer([array], share_inputs=True)
    assert array.streams[-1] == stream


@pytest.mark.emulator
def test_the_requests_stream_waits_for_the_stream_of_an_interface(
    compiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = compiled(nets.one()).create_infer_request()
    array, waited = ByInterface(X), []
    monkeypatch.setattr(array.stream, "record", lambda: "its event")
    monkeypatch.setattr(request._session.backend.stream, "wait_event", waited.append)
    request.infer([array])
    assert waited == ["its event"]


@pytest.mark.parametrize(
    "view",
    [lambda x: x[::-1], lambda x: x.T.copy().T, lambda x: x.astype(np.float64), lambda x: x.astype(np.int32)],
    ids=["reversed", "transposed", "f64", "i32"],
)
def test_other_layouts_and_types_are_converted_on_the_device(view: Any, compiled: Any) -> None:
    request = compiled(nets.one()).create_infer_request()
    for n in range(4):
        given = view(cp.asarray(n * X))
        found, counters = counted(lambda: request.infer([given], share_inputs=True))  # noqa: B023
        np.testing.assert_array_equal(found[0], np.abs(given.get()))
        assert counters.h2d_bytes == 0
    assert counters.graph_launches == 1


def test_changing_sources_and_shapes(compiled: Any) -> None:
    request = compiled(nets.one((-1, 3))).create_infer_request()
    rng = np.random.default_rng(2)
    for n in range(24):
        x = rng.uniform(-1, 1, (1 + n % 3, 3)).astype(np.float32)
        given = cp.asarray(x) if n % 2 else x
        found, counters = counted(lambda: request.infer([given], share_inputs=n % 5 == 0))  # noqa: B023
        np.testing.assert_array_equal(found[0], np.abs(x))
        assert counters.h2d_bytes == (0 if n % 2 else x.nbytes)


@pytest.mark.parametrize("kind", ["boolean", "i8", "i64", "f16", "bf16", "f64", "u4", "f8e4m3"])
def test_types(kind: str, compiled: Any) -> None:
    dtype = getattr(ov.Type, kind).storage
    values = (np.arange(6).reshape(2, 3) % 2).astype(dtype) if kind == "boolean" else np.abs(X).astype(dtype)
    request = compiled(nets.same(kind=kind)).create_infer_request()
    wanted = request.infer([values])[0].copy()
    array = cp.ndarray(values.shape, dtype, memptr=cp.cuda.alloc(values.nbytes))
    array.set(values)
    for share in (False, True, True, True):
        np.testing.assert_array_equal(request.infer([array], share_inputs=share)[0], wanted)


def test_bf16_by_dlpack(compiled: Any) -> None:
    request = compiled(nets.same(kind="bf16")).create_infer_request()
    array = ByDlpack(X.astype(ml_dtypes.bfloat16))
    request.set_input_tensor(ov.Tensor(array, shared_memory=True))
    np.testing.assert_array_equal(request.infer()[0].view(ml_dtypes.bfloat16), X.astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("producer", PRODUCERS, ids=["cupy", "dlpack", "interface"])
def test_bound_as_output(producer: Any, compiled: Any) -> None:
    """A bound output array is written in place, never downloaded, and returned as the result."""
    request = compiled(nets.one()).create_infer_request()
    array = producer(0 * X)
    request.set_output_tensor(ov.Tensor(array, shared_memory=True))
    for n in range(5):
        found, counters = counted(lambda: request.infer([n * X]))  # noqa: B023
        assert isinstance(found[0], cp.ndarray) and found[0].data.ptr == memory_of(array).data.ptr
        np.testing.assert_array_equal(memory_of(array).get(), np.abs(n * X))
        assert (counters.h2d_bytes, counters.d2h_bytes) == (24, 0)
        if n >= 2:
            assert (counters.graph_launches, counters.launches, counters.allocs) == (1, 0, 0)
    assert [s.kind for s in request.plan().steps if s.calls] == ["upload", "bound"]


def test_from_device_to_device(compiled: Any) -> None:
    request = compiled(nets.total()).create_infer_request()
    source, target = cp.asarray(np.ones((1, 3), np.float32)), cp.zeros((1, 3), np.float32)
    request.set_input_tensor(ov.Tensor(source, shared_memory=True))
    request.set_output_tensor(ov.Tensor(target, shared_memory=True))
    for n in range(1, 8):
        _, counters = counted(request.infer)
        np.testing.assert_array_equal(target.get(), np.full((1, 3), n))
    assert (counters.h2d_bytes, counters.d2h_bytes, counters.launches, counters.graph_launches) == (0, 0, 0, 1)


def test_one_array_as_input_and_output(compiled: Any) -> None:
    """Steps read the original input even after the output has been partly written."""
    net = Net("reversed")
    x = net.parameter("f32", (2, 3), "x")
    y = net.layer("Transpose", "opset1", [x, net.const(np.array([1, 0]))])
    net.result(net.layer("Reshape", "opset1", [y, net.const(np.array([2, 3]))], {"special_zero": False}))
    request = compiled(net.build()).create_infer_request()
    array, wanted = cp.asarray(X), X
    request.set_input_tensor(ov.Tensor(array, shared_memory=True))
    request.set_output_tensor(ov.Tensor(array, shared_memory=True))
    for _ in range(4):
        request.infer()
        wanted = wanted.T.reshape(2, 3)
        np.testing.assert_array_equal(array.get(), wanted)


def test_regions(compiled: Any) -> None:
    """Non-contiguous memory is copied within the device."""
    request = compiled(nets.one()).create_infer_request()
    source, target = cp.zeros((4, 6), np.float32), cp.zeros((4, 6), np.float32)
    request.set_input_tensor(ov.Tensor(ov.Tensor(source, True), [1, 2], [3, 5]))
    request.set_output_tensor(ov.Tensor(ov.Tensor(target, True), [2, 3], [4, 6]))
    for n in range(4):
        source[1:3, 2:5] = cp.asarray(n * X)
        _, counters = counted(request.infer)
        wanted = np.zeros((4, 6), np.float32)
        wanted[2:, 3:] = np.abs(n * X)
        np.testing.assert_array_equal(target.get(), wanted)
        assert (counters.h2d_bytes, counters.d2h_bytes) == (0, 0)


def test_results_stay_on_the_device(emulated: str) -> None:
    """A tensor of the context takes the shape of the result, and is downloaded only when its data is read."""
    core = ov.Core()
    context = core.get_default_context(emulated)
    request = core.compile_model(core.read_model(*nets.one((-1, 3))), emulated).create_infer_request()
    tensor = context.create_tensor(ov.Type.f32, [0, 3])
    request.set_output_tensor(tensor)
    for rows in (2, 1, 7, 2):
        x = np.full((rows, 3), -rows, np.float32)
        _, counters = counted(lambda: request.infer([x]))  # noqa: B023
        assert counters.d2h_bytes == 0 and list(tensor.shape) == [rows, 3]
        data, counters = counted(lambda: tensor.data)
        assert counters.d2h_bytes == x.nbytes
        np.testing.assert_array_equal(data, -x)
    with pytest.raises(ValueError, match="read-only"):
        data[0] = 1


def test_results_that_do_not_fit(compiled: Any) -> None:
    request = compiled(nets.one((-1, 3))).create_infer_request()
    request.set_output_tensor(ov.Tensor(cp.zeros((1, 3), np.float32), shared_memory=True))
    with pytest.raises(RuntimeError, match="cannot take the result"):
        request.infer([X])
    np.testing.assert_array_equal(request.infer([X[:1]])[0].get(), np.abs(X[:1]))


def test_results_of_data_dependent_shape(compiled: Any, emulated: str) -> None:
    net = Net("nonzero")
    net.result(net.layer("NonZero", "opset3", [net.parameter("f32", (2, 3), "x")], {"output_type": "i64"}))
    request = compiled(net.build()).create_infer_request()
    tensor = ov.Core().get_default_context(emulated).create_tensor("i64", [2, 0])
    request.set_output_tensor(tensor)
    for x in (X, np.eye(2, 3, dtype=np.float32), X):
        request.infer([x])
        np.testing.assert_array_equal(tensor.data, np.array(np.nonzero(x)))


def test_one_requests_output_is_anothers_input(emulated: str) -> None:
    core = ov.Core()
    model = core.compile_model(core.read_model(*nets.one()), emulated)
    first, second = model.create_infer_request(), model.create_infer_request()
    between = core.get_default_context(emulated).create_tensor("f32", [2, 3])
    first.set_output_tensor(between)
    second.set_input_tensor(between)
    for n in range(4):
        first.infer([n * X])
        found, counters = counted(second.infer)
        np.testing.assert_array_equal(found[0], np.abs(n * X))
    assert counters.h2d_bytes == 0


def test_states_stay_on_the_device(compiled: Any) -> None:
    model = compiled(nets.total())
    x = np.ones((1, 3), np.float32)
    first, second = model.create_infer_request(), model.create_infer_request()
    for _ in range(5):
        first.infer([x])
    (source,), (target,) = first.query_state(), second.query_state()
    (tensor, counters) = counted(lambda: source.state)
    assert counters.d2h_bytes == 0 and tensor.remote
    first.infer([x])
    _, counters = counted(lambda: setattr(target, "state", tensor))
    assert (counters.h2d_bytes, counters.d2h_bytes) == (0, 0)
    np.testing.assert_array_equal(second.infer([x])[0], np.full((1, 3), 6))
    tensor.data[...] = 20  # downloads a copy of the state
    assert not tensor.remote
    target.state = tensor
    np.testing.assert_array_equal(second.infer([x])[0], np.full((1, 3), 21))
    array = ByDlpack(np.full((1, 3), 30, np.float32))
    target.state = array
    np.testing.assert_array_equal(second.infer([x])[0], np.full((1, 3), 31))
    with pytest.raises(RuntimeError, match="type f32"):
        target.state = cp.zeros((1, 3), np.int64)
    np.testing.assert_array_equal(target.state.data, np.full((1, 3), 31))


# ---- tensors without a request


def test_a_tensor_in_shared_memory() -> None:
    array = cp.asarray(X)
    tensor = ov.Tensor(array, shared_memory=True)
    assert tensor.device_array is array and list(tensor.shape) == [2, 3] and tensor.element_type == ov.Type.f32
    assert (tensor.byte_size, tensor.size, tensor.is_continuous()) == (24, 6, True)
    array[0, 0] = 9
    assert tensor.data[0, 0] == 9
    assert cp.from_dlpack(tensor).data.ptr == array.data.ptr and tensor.__dlpack_device__() == (2, 0)
    assert tensor.__cuda_array_interface__["data"][0] == array.data.ptr
    assert tensor.get_device_name() == "NVIDIA.0" and tensor.get_params() == {"MEM_HANDLE": array.data.ptr}
    assert repr(tensor) == "<RemoteTensor: shape[2,3] type: f32>"
    tensor.shape = [3]
    np.testing.assert_array_equal(tensor.data, [9, -2, 3])
    with pytest.raises(RuntimeError, match="exceeds the shared memory"):
        tensor.shape = [7]
    with pytest.raises(RuntimeError, match="C-contiguous"):
        ov.Tensor(array.T, shared_memory=True)


def test_copies_and_regions() -> None:
    array = cp.asarray(X)
    copied, shared = ov.Tensor(array), ov.Tensor(array, True)
    region, again, deep = ov.Tensor(shared, [0, 1], [2, 3]), ov.Tensor(shared), deepcopy(shared)
    array[...] = 0
    np.testing.assert_array_equal(copied.data, X)
    np.testing.assert_array_equal(deep.data, X)
    assert not again.data.any() and not region.data.any() and list(region.shape) == [2, 2]
    assert all(isinstance(t, ov.RemoteTensor) for t in (copied, shared, region, again, deep))
    np.testing.assert_array_equal(ov.Tensor(array.T).data, 0 * X.T)


def test_copying_between_host_and_device(emulated: str) -> None:
    context = ov.Core().get_default_context(emulated)
    remote, host = context.create_tensor(ov.Type.f32, [2, 3]), ov.Tensor("f32", [2, 3])
    assert not remote.data.any()
    remote.copy_from(X)
    remote.copy_to(host)
    np.testing.assert_array_equal(host.data, X)
    host.data[...] = 5
    host.copy_to(remote)
    np.testing.assert_array_equal(remote.data, host.data)
    other = context.create_tensor(ov.Type.f32, [1])
    other.copy_from(remote)
    np.testing.assert_array_equal(other.data, host.data)
    with pytest.raises(RuntimeError, match="not equal"):
        remote.copy_from(X.astype(np.float64))


@pytest.mark.emulator
def test_context(emulated: str) -> None:
    core = ov.Core()
    context = core.get_default_context(emulated)
    assert context.get_device_name() == emulated and context.get_params() == {}
    pinned = context.create_host_tensor(ov.Type.f32, [2, 3])
    assert not pinned.remote and not pinned.data.any()
    assert cp.cuda.memory.is_pinned(pinned.data.ctypes.data, 24)
    assert context.create_host_tensor(ov.Type.u4, [3]).byte_size == 2
    for kind in (ov.Type.u4, ov.Type.string):
        with pytest.raises(RuntimeError, match="cannot be on a device"):
            context.create_tensor(kind, [2])
    with pytest.raises(RuntimeError, match="no remote context"):
        core.get_default_context("CPU")
    with pytest.raises(RuntimeError, match="no parameters"):
        core.create_context(emulated, {"OCL_CONTEXT": 1})


# ---- errors


@pytest.mark.parametrize("producer", PRODUCERS, ids=["cupy", "dlpack", "interface"])
def test_the_cpu_rejects_them(producer: Any, emulated: str) -> None:
    core = ov.Core()
    request = core.compile_model(core.read_model(*nets.one()), "CPU").create_infer_request()
    array = producer(X)
    for use in (
        lambda: request.infer([array]),
        lambda: request.set_input_tensor(ov.Tensor(array, True)),
        lambda: request.infer(ov.Tensor(array, True)),
    ):
        with pytest.raises(RuntimeError, match=r"\[Parameter\] the array is on a CUDA device, the model on the CPU"):
            use()
    with pytest.raises(RuntimeError, match=r"\[Result\] the tensor is on a CUDA device, the model on the CPU"):
        request.set_output_tensor(ov.Tensor(array, True))
    np.testing.assert_array_equal(request.infer([X])[0], np.abs(X))


def test_arrays_that_do_not_fit(compiled: Any) -> None:
    request = compiled(nets.one()).create_infer_request()
    with pytest.raises(RuntimeError, match="are incompatible"):
        request.infer([cp.zeros((3, 2), np.float32)])
    with pytest.raises(RuntimeError, match="precision: f64"):
        request.set_input_tensor(ov.Tensor(cp.zeros((2, 3), np.float64), True))
    with pytest.raises(RuntimeError, match="precision: i32"):
        request.set_output_tensor(ov.Tensor(cp.zeros((2, 3), np.int32), True))
    np.testing.assert_array_equal(request.infer([X])[0], np.abs(X))


def test_a_failing_export(compiled: Any) -> None:
    class Failing(ByDlpack):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("it requires gradients")

    with pytest.raises(RuntimeError, match="Failing cannot be used: it requires gradients"):
        compiled(nets.one()).create_infer_request().infer([Failing(X)])


@pytest.mark.emulator
def test_arrays_of_several_devices(emulated: str) -> None:
    """Each array is adopted on its own device, since a stream of one device cannot wait on another's."""
    with cp.devices(2):
        for device in (0, 1, 0, 1):
            with cp.cuda.Device(device):
                array = ByDlpack(device + X)
            adopted = interop.adopt(array)
            assert adopted.data.device_id == device
            with cp.cuda.Device(device):
                np.testing.assert_array_equal(adopted.get(), device + X)


@pytest.mark.emulator
def test_another_device(compiled: Any) -> None:
    request = compiled(nets.one()).create_infer_request()
    with cp.devices(2):
        with cp.cuda.Device(1):
            array = cp.asarray(X)
        for use in (
            lambda: request.infer([array]),
            lambda: request.set_input_tensor(ov.Tensor(array, True)),
            lambda: request.set_output_tensor(ov.Tensor(array, True)),
        ):
            with pytest.raises(RuntimeError, match="is on CUDA device 1, the model on 0"):
                use()


def test_current_streams(emulated: str) -> None:
    """A stream that a program has made current stays current, in a block or without one."""
    core, stream, inner = ov.Core(), cp.cuda.Stream(non_blocking=True), cp.cuda.Stream(non_blocking=True)
    outer = cp.cuda.get_current_stream()
    request = core.compile_model(core.read_model(*nets.one()), emulated).create_infer_request()
    try:
        stream.use()
        for value in (X, X, X, cp.asarray(X), ov.Tensor(X), X):
            request.infer([value])
            assert cp.cuda.get_current_stream() == stream
        with inner:
            request.infer([X])
            assert cp.cuda.get_current_stream() == inner
    finally:
        outer.use()


def test_an_interruption_keeps_the_current_stream(emulated: str) -> None:
    """Every third line of an inference is interrupted."""
    core = ov.Core()
    request = core.compile_model(core.read_model(*nets.one()), emulated).create_infer_request()
    request.infer([X])
    outer, device = cp.cuda.get_current_stream(), cp.asarray(X)
    for at in range(1, 400, 3):
        with suppress(KeyboardInterrupt), Interruption(at):
            request.infer([device])
        assert cp.cuda.get_current_stream() == outer, at
    np.testing.assert_array_equal(request.infer([X])[0], np.abs(X))
