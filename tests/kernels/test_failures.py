"""Failures on the device: each raises one clear error, and the request stays usable."""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cuda import driver_launch, elementwise, kernels
from ovgpu.request.session import Session
from tests.api import nets
from tests.emulator import blas_emu, cupy_emu, driver_emu, kernel
from tests.emulator.device import memory_limit
from tests.harness.ir import Net

X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)


def compiled(emulated: str, ir: tuple[bytes, bytes]) -> Any:
    core = ov.Core()
    return core.compile_model(core.read_model(*ir), emulated)


def softmax() -> tuple[bytes, bytes]:
    net = Net("softmax")
    x = net.parameter("f32", (2, 3), "x")
    net.result(net.layer("Softmax", "opset8", [x], {"axis": 1}, name="sm"))
    return net.build()


# ---- memory


def counting() -> tuple[bytes, bytes]:
    """Return a model with y = n + v for x of ones [1, 64] tiled n times, and v = v + 1 after each inference."""
    net = Net("counting")
    x, n = net.parameter("f32", (1, 64), "x"), net.parameter("i64", (2,), "n")
    v = net.read_value("v", "f32", (1, 64))
    net.assign("v", net.layer("Add", "opset1", [v, net.const(np.ones((1, 64), "f4"))]))
    tiled = net.layer("Tile", "opset1", [x, n], name="tiled")
    total = net.layer("CumSum", "opset3", [tiled, net.const(np.array(0))], {"exclusive": False, "reverse": False})
    top = net.layer("ReduceMax", "opset1", [total, net.const(np.array([0]))], {"keep_dims": True}, name="top")
    net.result(net.layer("Add", "opset1", [top, v]))
    return net.build()


ONES = np.ones((1, 64), np.float32)


@contextmanager
def little_memory(nbytes: int) -> Iterator[None]:
    """Leave ``nbytes`` of free device memory within the block."""
    gc.collect()  # garbage must not be freed within the block
    with memory_limit(cupy_emu.get_default_memory_pool().used_bytes() + nbytes):
        yield


def test_no_memory_for_a_result(emulated: str) -> None:
    """The error names layer and bytes; the request stays usable, and its state is unchanged."""
    request = compiled(emulated, counting()).create_infer_request()
    for n in range(3):
        assert (request.infer([ONES, [2, 1]])[0] == n + 2).all()
    for _ in range(2):
        with little_memory(1 << 20), pytest.raises(ov.OpError) as raised:
            request.infer([ONES, [200_000, 1]])
        assert re.match(
            r"\[\w+\] out of memory: a result of shape \[200000, 64\] takes 51,200,000 bytes, the plan "
            r"needs [\d,]+; [\d,]+ bytes were asked for, [\d,]+ of the device's [\d,]+ are free, [\d,]+ "
            r"are held by this process \(layer '",
            str(raised.value),
        )
    for n in range(3, 6):
        assert (request.infer([ONES, [2, 1]])[0] == n + 2).all()
    assert (request.infer([ONES, [3000, 1]])[0] == 6 + 3000).all()
    (state,) = request.query_state()
    assert (state.state.data == 7).all()


def test_spare_capacity_is_given_up_for_a_result(emulated: str) -> None:
    request = compiled(emulated, counting()).create_infer_request()
    for _ in range(3):
        request.infer([ONES, [2, 1]])
    arena = 2 * 4000 * 64 * 4
    with little_memory(arena + arena // 8):
        assert (request.infer([ONES, [4000, 1]])[0] == 3 + 4000).all()


def test_earlier_bindings_are_released(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of other shapes is released once, and the state stays correct."""
    request = compiled(emulated, counting()).create_infer_request()
    forgotten = []
    forget = Session.forget
    monkeypatch.setattr(Session, "forget", lambda self: (forgotten.append(True), forget(self)))
    for _ in range(3):
        request.infer([ONES, [4000, 1]])
    held = 2 * 4000 * 64 * 4
    with little_memory(held // 2):
        assert (request.infer([ONES, [4400, 1]])[0] == 3 + 4400).all()
    assert forgotten == [True]
    assert (request.infer([ONES, [2, 1]])[0] == 4 + 2).all()


def test_no_memory_for_an_input(emulated: str) -> None:
    request = compiled(emulated, nets.one((-1, 64))).create_infer_request()
    request.infer(-ONES)
    for _ in range(2):
        with (
            little_memory(1 << 20),
            pytest.raises(
                ov.OpError,
                match=(r"\[Parameter\] out of memory: 10,240,000 bytes were asked for, .* this process \(layer 'x'"),
            ),
        ):
            request.infer(np.ones((40_000, 64), np.float32))
        np.testing.assert_array_equal(request.infer(-ONES)[0], ONES)


def test_no_memory_for_constants(emulated: str) -> None:
    with little_memory(1 << 10), pytest.raises(ov.DeviceError, match=r"out of memory: [\d,]+ bytes were asked for"):
        compiled(emulated, nets.slow())
    compiled(emulated, nets.slow())


def test_no_memory_for_a_state(emulated: str) -> None:
    request = compiled(emulated, nets.total((-1, 64))).create_infer_request()
    (state,) = request.query_state()
    state.state = ov.Tensor(ONES)
    with little_memory(1 << 20), pytest.raises(ov.DeviceError, match="out of memory"):
        state.state = ov.Tensor(np.ones((40_000, 64), np.float32))
    np.testing.assert_array_equal(request.infer(ONES)[0], 2 * ONES)


def test_no_pinned_memory(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request = compiled(emulated, nets.one((-1, 64))).create_infer_request()

    def refuse(nbytes: int) -> Any:
        raise cupy_emu.cuda.runtime.CUDARuntimeError(2, "cudaErrorMemoryAllocation: out of memory")

    monkeypatch.setattr(cupy_emu.cuda, "alloc_pinned_memory", refuse)
    with pytest.raises(ov.OpError, match=r"\[Parameter\] out of memory: no [\d,]+ bytes of pinned memory on the host"):
        request.infer(ONES)
    monkeypatch.undo()
    np.testing.assert_array_equal(request.infer(-ONES)[0], ONES)


# ---- launches


class Faulty:
    """A replacement for a function that fails from its next call on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, status: int, text: str) -> None:
        self.error = cupy_emu.cuda.runtime.CUDARuntimeError(status, text)
        monkeypatch.setattr(owner, name, self)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise self.error


INVALID = (9, "cudaErrorInvalidConfiguration: invalid configuration argument")
ILLEGAL = (700, "cudaErrorIllegalAddress: an illegal memory access was encountered")
REFUSED = r"CUDA refused: cudaErrorInvalidConfiguration: invalid configuration argument"
STICKY = (
    r"the device failed: cudaErrorIllegalAddress: an illegal memory access was encountered\. This process cannot "
    r"use CUDA any more, it has to be started anew; with CUDA_LAUNCH_BLOCKING=1 and OVGPU_DEBUG=2"
)


@pytest.mark.parametrize(("before", "what"), [(0, "run"), (1, "launch"), (1, "run"), (4, "run")])
def test_a_launch_that_is_refused(before: int, what: str, emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch fails at the first inference, during capture, or at a graph launch; the state does not change."""
    monkeypatch.setenv(driver_launch.SWITCH, "0")  # CuPy launches all kernels
    request = compiled(emulated, nets.total((1, 64))).create_infer_request()
    for n in range(before):
        np.testing.assert_array_equal(request.infer(ONES)[0], (n + 1) * ONES)
    Faulty(monkeypatch, kernel if what == "launch" else kernel.KernelNode, what, *INVALID)
    with warnings.catch_warnings(), pytest.raises(ov.Error) as raised:
        warnings.simplefilter("ignore")  # the failed capture warns
        request.infer(ONES)
    # no step writes the variable's initial value
    assert re.match(rf"\[(Add|Upload)\] {REFUSED} \(layer '" if before else f"{REFUSED}$", str(raised.value))
    monkeypatch.undo()
    for n in range(before, before + 4):
        np.testing.assert_array_equal(request.infer(ONES)[0], (n + 1) * ONES)


def test_an_illegal_address(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error appears only when the stream is synchronized: it names no step, and the state does not change."""
    request = compiled(emulated, nets.total((1, 64))).create_infer_request()
    request.infer(ONES)
    Faulty(monkeypatch, cupy_emu.cuda.Stream, "synchronize", *ILLEGAL)
    with pytest.raises(ov.DeviceError, match="^" + STICKY):
        request.infer(ONES)
    with pytest.raises(ov.DeviceError, match="^" + STICKY):
        compiled(emulated, nets.slow())
    monkeypatch.undo()
    np.testing.assert_array_equal(request.infer(ONES)[0], 2 * ONES)


@pytest.mark.parametrize(("early", "error"), [("0", "cudaErrorIllegalAddress"), ("1", "CUresult 700")])
def test_an_illegal_address_in_a_step(early: str, error: str, emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy launches the kernel, or the driver does."""
    monkeypatch.setenv(driver_launch.SWITCH, early)
    request = compiled(emulated, nets.one((1, 64))).create_infer_request()
    Faulty(monkeypatch, kernel, "launch", *ILLEGAL)
    monkeypatch.setattr(driver_emu, "cuLaunchKernelEx", lambda *launch: ILLEGAL[:1])
    with pytest.raises(ov.OpError, match=rf"^\[Abs\] the device failed: {error}.* \(layer '"):
        request.infer(ONES)
    Faulty(monkeypatch, cupy_emu.cuda.runtime, "getDevice", *ILLEGAL)
    with pytest.raises(ov.DeviceError, match="^" + STICKY):
        request.infer(ONES)


def test_a_product_that_is_refused(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request = compiled(emulated, nets.slow(8)).create_infer_request()

    def refuse(*_: Any) -> None:
        raise blas_emu.cuBLASError(blas_emu.Status.EXECUTION_FAILED)

    monkeypatch.setattr(blas_emu, "gemm_ex", refuse)
    with pytest.raises(ov.OpError, match=r"^\[MatMul\] cuBLAS refused: .*EXECUTION_FAILED.* \(layer '"):
        request.infer(np.ones((3, 8), np.float32))
    monkeypatch.undo()
    np.testing.assert_array_equal(request.infer(np.ones((3, 8), np.float32))[0], np.ones((3, 8)))


# ---- kernels that do not compile


def broken(log: str) -> Any:
    """Return a compiler that fails with this log."""

    def compile(*_: Any, **__: Any) -> Any:
        raise cupy_emu.cuda.compiler.CompileException(log)

    return compile


LOG = "\n\n".join(f"softmax.cu({n}): error: no" for n in range(20))


def test_a_kernel_that_does_not_compile(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request = compiled(emulated, softmax()).create_infer_request()
    kernels.of_file.cache_clear()
    monkeypatch.setattr(cupy_emu.cuda.compiler, "compile_using_nvrtc", broken(LOG))
    with pytest.raises(ov.OpError) as raised:
        request.infer(X)
    first, *lines = str(raised.value).splitlines()
    assert first.startswith("[Softmax] cuda_kernels/softmax.cu, softmax_rows<") and first.endswith("does not compile:")
    assert lines[0] == "softmax.cu(0): error: no" and lines[11] == "softmax.cu(11): error: no"
    assert lines[12].startswith("... and 8 lines more (layer 'sm'") and len(lines) == 13
    monkeypatch.undo()
    np.testing.assert_allclose(request.infer(X)[0].sum(1), 1, rtol=1e-6)


def test_a_generated_kernel_that_does_not_compile(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request = compiled(emulated, nets.one((-1, 3))).create_infer_request()
    elementwise._planned.cache_clear()
    elementwise._kernel.cache_clear()
    log = 'kernel.cu(1): cannot open source file "cuda_fp16.h"'
    monkeypatch.setattr(cupy_emu.cuda.compiler, "compile_using_nvrtc", broken(log))
    with pytest.raises(
        ov.OpError,
        match=r"^\[Abs\] the generated kernel \w+ does not compile:\nkernel.cu\(1\): .*\n"
        r'If it is one of CUDA\'s headers: pip install "\.\[cuda13\]" .* \(layer',
    ):
        request.infer(X)
    monkeypatch.undo()
    np.testing.assert_array_equal(request.infer(X)[0], np.abs(X))
