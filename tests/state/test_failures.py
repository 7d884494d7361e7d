"""Inferences that fail at any point, with KV caches: the state is unchanged, and later inferences are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cpu import CpuBackend
from ovgpu.backends.cuda import CudaBackend
from tests.emulator import cupy_emu, driver_emu, kernel
from tests.harness import Net
from tests.harness.layers import add, numbers, reshape

from .test_interruption import fed, same, states
from .test_kv_decode import attending
from .test_requests import guarded

INIT = numbers(2, 3, seed=9)


def decoder(fails: bool) -> Net:
    """Build attention to caches and a sum of all inputs; if ``fails``, with layers that fail for some of them."""
    net = attending()
    x, shape = net.parameter("f32", (2, 3), "x"), net.parameter("i64", (2,), "shape")
    total = net.read_value("total", "f32", (2, 3), net.const(INIT))
    net.assign("total", add(net, total, x))
    if fails:
        net.result(reshape(net, guarded(net, x), shape))
    else:
        net.result(add(net, total, x))
        net.result(shape)
    return net


class Failing:
    """Wrapper of a function that works a number of times, and fails from then on."""

    def __init__(self, function: Callable[..., Any], times: int, error: Callable[[], BaseException]) -> None:
        self.function, self.left, self.error = function, times, error
        self.failed = False

    def __call__(self, *args: Any, **named: Any) -> Any:
        if not self.left:
            self.failed = True
            raise self.error()
        self.left -= 1
        return self.function(*args, **named)

    def of_driver(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of the driver, which returns a status, that counts and fails together with this one."""

        def call(*args: Any) -> Any:
            if self.left:
                self.left -= 1
                return function(*args)
            self.failed = True
            return (driver_emu.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,)

        return call

    def __get__(self, owner: Any, kind: Any) -> Any:
        return lambda *args, **named: self(owner, *args, **named)


@contextmanager
def fault(kind: str, times: int, device: str, inputs: dict[str, Any]) -> Iterator[Any]:
    """Make inferences with these inputs fail within the block, unless they need no failing function."""
    with pytest.MonkeyPatch.context() as patch:
        if kind == "op":
            inputs["x"] = inputs["x"] + 9
            yield None
        elif kind == "shape":
            inputs["shape"] = np.array([4, 2])
            yield None
        elif kind == "memory":
            backend = CpuBackend if device == "CPU" else CudaBackend
            failing = Failing(backend.allocate, times, lambda: MemoryError("no memory"))
            patch.setattr(backend, "allocate", failing)
            yield failing
            failing.left = -1  # bound references to it must not fail any more
        else:
            owner, name = (kernel, "launch") if kind == "launch" else (kernel.KernelNode, "run")
            failing = Failing(
                getattr(owner, name),
                times,
                lambda: cupy_emu.cuda.runtime.CUDARuntimeError(
                    9, "cudaErrorInvalidConfiguration: invalid configuration argument"
                ),
            )
            patch.setattr(owner, name, failing)
            if kind == "launch":
                patch.setattr(driver_emu, "cuLaunchKernelEx", failing.of_driver(driver_emu.cuLaunchKernelEx))
            yield failing


@pytest.mark.drawn(2)
@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.usefixtures("guard")
@pytest.mark.filterwarnings("ignore:runs call by call")
def test_faults_in_turn(fails: bool, device: str) -> None:
    net, random = decoder(fails), np.random.default_rng(fails)
    found, expected = (
        ov.Core().compile_model(ov.read_model(*net.build()), name).create_infer_request() for name in (device, "CPU")
    )
    kinds = ["memory"] + ["op", "shape"] * fails + ["launch", "node"] * (device != "CPU")
    failures, had = dict.fromkeys(kinds, 0), 0
    for step in range(120):
        rows = int(random.choice([1, 1, 1, 2, 5, 20]))
        inputs = {**fed(rows, had), "x": np.clip(numbers(2, 3, seed=step), -5, 5) / 2, "shape": np.array([3, 2])}
        kind = kinds[step % len(kinds)]
        before, broken = states(found), dict(inputs)
        if kind == "memory" and random.integers(2):
            found._release_memory()
        with fault(kind, int(random.integers(4 if kind == "memory" else 12)), device, broken) as failing:
            try:
                found.infer(broken)
            except (ov.Error, MemoryError):
                failures[kind] += 1
                failed = True
            else:
                assert failing is not None and not failing.failed
                failed = False
        if failed:
            assert same(states(found), before), f"step {step}: {kind}"
            results = found.infer(inputs)
        else:
            results = found.results
        assert same(results.to_tuple(), expected.infer(inputs).to_tuple()), f"step {step}: {kind}"
        assert same(states(found), states(expected)), f"step {step}: {kind}"
        had += rows
        if had > 150:
            had = 0
            found.reset_state()
            expected.reset_state()
    assert min(failures.values()) > 3, failures
