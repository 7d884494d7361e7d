"""Faulty kernels: they never end or hang the process that emulates them, nor change its memory."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import numpy as np
import pytest

from . import cupy_emu as cp
from .isolation import SECONDS, Outcome, call, isolated
from .state import CUDARuntimeError
from .test_kernels import CODE, kernel, matmul_error, module

GRID = '#include "common.cuh"\nextern "C" __global__ void kernel(unsigned* arrived, int* y, int bad) {'


def raises(what: str) -> pytest.RaisesExc[CUDARuntimeError]:
    return pytest.raises(CUDARuntimeError, match=what)


def works() -> None:
    """Check that another launch gives the right result."""
    assert matmul_error(CODE) < 1e-4


ENDLESS = {
    "alone": "while (true) y[0] = 1;",
    "one thread": "if (threadIdx.x == 7) while (y[0] < 1000) y[1] ^= 1;",
    "barriers": "while (true) __syncthreads();",
    "collectives": "while (true) y[threadIdx.x] = __shfl_sync(0xffffffffu, y[threadIdx.x], 1);",
}


@pytest.mark.parametrize("what", ENDLESS)
@isolated
def test_endless_kernel(what: str) -> None:
    code = f'extern "C" __global__ void kernel(volatile int* y) {{ {ENDLESS[what]} }}'
    run = kernel(code)
    began = time.monotonic()
    with cp.time_limit(0.2), raises("still runs after 0.2 seconds: an endless loop?"):
        run((2,), (64,), (cp.zeros(64, np.int32),))
    assert time.monotonic() - began < 60
    works()


@isolated
def test_time_is_a_launchs_own() -> None:
    with cp.time_limit(0.05):
        for _ in range(200):
            matmul_error(CODE)


@pytest.mark.parametrize("cooperative", [False, True])
@isolated
def test_polling_for_what_never_comes(cooperative: bool) -> None:
    code = GRID + "while (*static_cast<volatile unsigned*>(arrived) < 5) __nanosleep(20); }"
    run = module(code, enable_cooperative_groups=cooperative).get_function("kernel")
    what = "what no thread of the grid does" if cooperative else "another block in a launch that is not cooperative"
    with raises(f"waits for {what}"):
        run((3,), (32,), (cp.zeros(1, np.uint32), cp.zeros(1, np.int32), np.int32(0)))
    works()


@isolated
def test_threads_of_a_block_may_poll() -> None:
    code = (
        GRID
        + """
      if (threadIdx.x == 0) while (*static_cast<volatile unsigned*>(arrived) < 63) __nanosleep(20);
      else atomicAdd(arrived, 1u);
      __syncthreads();
      if (threadIdx.x == 0) y[0] = *arrived;
    }"""
    )
    y = cp.zeros(1, np.int32)
    kernel(code)((1,), (64,), (cp.zeros(1, np.uint32), y, np.int32(0)))
    assert y.get().tolist() == [63]


@isolated
def test_grid_barriers_that_a_block_misses() -> None:
    code = GRID + "if (blockIdx.x != bad) ovgpu_grid_barrier(arrived, 0); y[blockIdx.x] = *arrived; }"
    run = module(code, enable_cooperative_groups=True).get_function("kernel")
    y, arrived = cp.zeros(4, np.int32), cp.zeros(1, np.uint32)
    run((4,), (32,), (arrived, y, np.int32(-1)))
    assert y.get().tolist() == [4] * 4
    arrived.fill(0)
    with raises("waits for what no thread of the grid does"):
        run((4,), (32,), (arrived, y, np.int32(2)))
    code = code.replace("ovgpu_grid_barrier(arrived, 0)", "cooperative_groups::this_grid().sync()")
    run = module("#include <cooperative_groups.h>\n" + code, enable_cooperative_groups=True).get_function("kernel")
    with raises(r"a barrier of the grid is not reached by every block \(block \(2, 0, 0\)"):
        run((4,), (32,), (arrived, y, np.int32(2)))
    with raises("grid barrier in a launch that is not cooperative"):
        module("#include <cooperative_groups.h>\n" + code).get_function("kernel")(
            (4,), (32,), (arrived, y, np.int32(-1))
        )
    works()


@isolated
def test_a_missing_grid_barrier_shows_in_the_order_of_blocks() -> None:
    code = GRID + "y[blockIdx.x] = 1; y[4 + blockIdx.x] = y[(blockIdx.x + 1) % 4]; }"
    run = module(code, enable_cooperative_groups=True).get_function("kernel")
    y = cp.zeros(8, np.int32)
    run((4,), (32,), (cp.zeros(1, np.uint32), y, np.int32(0)))
    assert y.get()[4:].tolist() == [0, 0, 0, 1]


@isolated
def test_as_many_threads_as_a_device_runs_at_once() -> None:
    code = GRID + "for (int i = 0; i < 3; i++) ovgpu_grid_barrier(arrived, i); y[blockIdx.x] = *arrived; }"
    run = module(code, enable_cooperative_groups=True).get_function("kernel")
    y = cp.zeros(132, np.int32)
    run((132,), (256,), (cp.zeros(1, np.uint32), y, np.int32(0)))
    assert set(y.get().tolist()) == {3 * 132}
    with raises("more than 65536 threads at the same time"):
        run((132,), (1024,), (cp.zeros(1, np.uint32), y, np.int32(0)))
    works()


@isolated
def test_stack_overflow_of_one_thread_of_many() -> None:
    code = """#include "common.cuh"
    __device__ __noinline__ int deep(volatile int* y, int n) {
      volatile int frame[64];
      for (int i = 0; i < 64; i++) frame[i] = n;
      return n ? deep(y, n - 1) + frame[n % 64] : y[0];
    }
    extern "C" __global__ void kernel(unsigned* arrived, int* y, int bad) {
      ovgpu_grid_barrier(arrived, 0);
      if (blockIdx.x == bad && threadIdx.x == 9) y[0] = deep(y, 300);
      ovgpu_grid_barrier(arrived, 1);
    }"""
    run = module(code, enable_cooperative_groups=True).get_function("kernel")
    y, arrived = cp.zeros(1, np.int32), cp.zeros(1, np.uint32)
    for bad in (0, 1, 63, 64, 99, 100):  # with a guard page and without
        arrived.fill(0)
        with raises(rf"stack overflow of a thread \(block \({bad}, 0, 0\), thread \(9, 0, 0\)"):
            run((101,), (128,), (arrived, y, np.int32(bad)))
    works()


STRAYS = {
    "far past an array": ("y[(1ll << 33) + i] = 1", "illegal memory access"),
    "far before an array": ("y[i - (1ll << 31)] = 1", "illegal memory access"),
    "32 bits wrapped around": ("y[0xffffffffu - i] = 1", "illegal memory access"),
    "wild pointer": ("*reinterpret_cast<int*>(0xfbfbfbfbfbfbfbfbull) = i", "illegal memory access"),
    "null pointer": ("*reinterpret_cast<volatile int*>(4ll * i) = i", "illegal memory access"),
    "far past dynamic shared memory": ("d[(1 << 30) + i] = 1", "illegal access of shared memory"),
    "far before dynamic shared memory": ("d[-(1 << 30) - i] = 1", "illegal access of shared memory"),
    "far past a shared array": ("(&s[0])[(1 << 30) + i] = 1", "illegal access of shared memory"),
    "far before a shared array": ("(&s[0])[-(1 << 30) - i] = 1", "illegal access of shared memory"),
    "far past a local array": ("(&l[0])[(1 << 29) + i] = 1", "illegal access of a thread's own memory"),
    "far before a local array": ("(&l[0])[-(1 << 29) - i] = 1", "illegal access of"),
}


@pytest.mark.parametrize("what", STRAYS)
@isolated
def test_stray_access(what: str) -> None:
    access, message = STRAYS[what]
    code = f"""#include "common.cuh"
    extern "C" __global__ void kernel(int* y, int i) {{
      OVGPU_SHARED(int, s, [8]);
      OVGPU_DYN_SHARED(int, d);
      volatile int l[8];
      if (threadIdx.x == 3) {{ {access}; }}
      y[threadIdx.x] = l[i] + s[i] + d[i];
    }}"""
    run = kernel(code)
    for _ in range(3):
        with raises(rf"{message}.*thread \(3, 0, 0\)"):
            run((2,), (8,), (cp.zeros(8, np.int32), np.int32(1)), shared_mem=64)
    works()


@isolated
def test_signals_while_a_kernel_runs() -> None:
    """Python's handlers run once the launch is over; the kernel does not notice them."""
    seen: list[int] = []
    signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    code = """extern "C" __global__ void kernel(int* y) {
      for (int i = 0; i < 100000; i++) { y[threadIdx.x] += 1; if (i % 100 == 0) __syncthreads(); }
    }"""
    y = cp.zeros(64, np.int32)
    kernel(code)((1,), (64,), (y,))
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert seen and set(y.get().tolist()) == {100000}


def overflow_with_alarms() -> None:
    """Run ever deeper recursions while alarms fire. Handlers need their own stack: a full one holds no signal frame."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    code = """__device__ __noinline__ int deep(volatile int* y, int n) {
      volatile char frame[512];
      frame[n % 512] = 1;
      if (n) return deep(y, n - 1) + frame[n % 512];
      for (int i = 0; i < 200000; i++) y[0] = i;
      return y[0];
    }
    extern "C" __global__ void kernel(int* y, int n) { y[1] = deep(y, n); }"""
    run, y = kernel(code), cp.zeros(2, np.int32)
    depth = 0
    while depth < 1000:  # up to the depth that overflows
        try:
            run((1,), (1,), (y, np.int32(depth)))
        except CUDARuntimeError as error:
            assert "stack overflow" in str(error)
            break
        depth += 10 if depth < 90 else 1
    assert 90 < depth < 1000


def test_signals_on_a_full_stack() -> None:
    call(overflow_with_alarms).result()


def fault_in_python(twice: bool) -> None:
    import ctypes
    import faulthandler

    if twice:
        faulthandler.enable()
    matmul_error(CODE)
    faulthandler.enable()
    matmul_error(CODE)
    ctypes.string_at(8)


@pytest.mark.parametrize("twice", [False, True])
def test_faults_of_python_itself_end_it(twice: bool) -> None:
    outcome = call(fault_in_python, twice)
    assert outcome.kind == "died" and "SIGSEGV" in outcome.value and "Segmentation fault" in outcome.value


def die_of(name: str) -> None:
    import os

    matmul_error(CODE)
    os.kill(os.getpid(), getattr(signal, name))
    time.sleep(10)


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGFPE", "SIGTERM"])
def test_signals_that_others_send(name: str) -> None:
    outcome = call(die_of, name)
    assert outcome.kind == "died" and outcome.value.startswith(name)


def overslept() -> None:
    time.sleep(60)


def unpicklable() -> Callable[[], None]:
    return lambda: None


def test_outcomes() -> None:
    assert SECONDS > 1
    assert call(max, 3, 4) == Outcome("returned", 4)
    assert call(overslept, seconds=0.1).kind == "timed out"
    failed = call(unpicklable)
    assert failed.kind == "raised" and "pickle" in failed.value
    with pytest.raises(AssertionError, match="timed out"):
        call(overslept, seconds=0.1).result()
