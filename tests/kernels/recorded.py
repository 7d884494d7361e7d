"""Checks of recorded kernels: run eagerly, then captured and replayed with other inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ovgpu.backends.cuda import CudaBackend, rt
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.base.op import Op, evaluate
from ovgpu.ops.base.xp import NUMPY
from ovgpu.spec import Spec
from ovgpu.types import Type
from tests.emulator import cupy_emu

Array = np.ndarray[Any, Any]
POISON = 0xFB


def settle() -> None:
    """Wait for all streams: tests write and read arrays on another stream than the kernels run on."""
    rt.cupy().cuda.runtime.deviceSynchronize()


def run_calls(calls: Sequence[Callable[[], Any]]) -> None:
    """Run the calls once all arrays are there, and wait for the results."""
    settle()
    for call in calls:
        call()
    settle()


def replay(
    backend: CudaBackend,
    record: Callable[[], Sequence[Callable[[], Any]]],
    inputs: Sequence[tuple[Any, Sequence[Array]]],
    outputs: Sequence[Any],
    wanted: Callable[[int], Sequence[Array]],
    tolerance: float = 0,
) -> int:
    """Check ``wanted(draw)`` eagerly for draw 0, then for replays of one graph with draws 1 and 2.

    Each input is a device array with its values in every draw. The tolerance is absolute and relative; 0 compares
    all bits. Returns the number of launches in the graph.
    """
    calls = record()
    for draw in range(3):
        for array, values in inputs:
            array[...] = cupy_emu.asarray(values[draw])
        for out in outputs:
            out[...] = cupy_emu.asarray(np.full(out.nbytes, POISON, np.uint8).view(out.dtype).reshape(out.shape))
        settle()
        if draw == 0:
            for call in calls:
                call()
        else:
            if draw == 1:
                backend.stream.begin_capture()
                for call in calls:
                    call()
                graph = backend.stream.end_capture()
            graph.launch(backend.stream)
        settle()
        for out, want in zip(outputs, wanted(draw), strict=True):
            if tolerance:
                got, want = out.get().astype(np.float64), want.astype(np.float64)
                np.testing.assert_allclose(got, want, tolerance, tolerance, err_msg=f"draw {draw}")
            else:
                np.testing.assert_array_equal(out.get(), want, err_msg=f"draw {draw}")
    return len(calls)


def run_op(backend: CudaBackend, op: Op, inputs: Sequence[Any], pick: Callable[[Any], Any] = lambda x: x) -> list[str]:
    """Check the CUDA form of an op against its `evaluate` by `replay`. Returns the names of its kernels.

    Each input is a list of three draws, which become device arrays, or one array for an input on the host. ``pick``
    selects the part of a device array that the op reads.
    """
    draws = [list(x) if isinstance(x, list) else [x] * 3 for x in inputs]
    device = [cupy_emu.empty(d[0].shape, d[0].dtype) if i not in op.host_inputs else d[0] for i, d in enumerate(draws)]
    given = [x if i in op.host_inputs else pick(x) for i, x in enumerate(device)]

    def wanted(draw: int) -> Sequence[Array]:
        values = [d[draw] if i in op.host_inputs else pick(d[draw]) for i, d in enumerate(draws)]
        return evaluate(op, NUMPY, values, types)

    types = [s.type for s in op.infer_specs(*(spec(x, i in op.host_inputs) for i, x in enumerate(given)))]
    outputs = [cupy_emu.empty(w.shape, w.dtype) for w in wanted(0)]
    launcher = Launcher(backend.stream, backend.blas)
    assert op.cuda is not None and op.cuda(launcher, given, outputs, ()) is not NotImplemented
    replay(
        backend,
        lambda: launcher.calls,
        [(x, d) for i, (x, d) in enumerate(zip(device, draws)) if i not in op.host_inputs],
        outputs,
        wanted,
    )
    return [kernel_name(call) for call in launcher.calls]


def kernel_name(call: Any) -> str:
    """Return the name of the kernel that a call launches; "" for other calls."""
    return str(getattr(call.func, "name", ""))


def spec(x: Any, host: bool) -> Spec:
    return Spec(Type.of(x.dtype), tuple(x.shape), x if host else None)


def draws(shape: tuple[int, ...], kind: Any, low: int = 0, high: int = 100) -> list[Array]:
    """Return three arrays of integers from ``low`` to ``high``, exclusive, of any type."""
    return [np.random.default_rng(i).integers(low, high, shape).astype(kind) for i in range(3)]


def axis(value: int) -> Array:
    return np.array(value)


def counted(run: Callable[[], Any]) -> tuple[Any, Any]:
    """Return the result of a call, and the device counters for it."""
    cupy_emu.counters.reset()
    found = run()
    return found, replace(cupy_emu.counters)
