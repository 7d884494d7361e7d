"""The launches of a model's steps: kernels with grid, block and arguments, and calls of libraries."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

from bench.kernels.dry_device import IdleFunction
from bench.kernels.machine_code import MachineCode
from ovgpu.backends.cuda.blas import Blas
from ovgpu.backends.cuda.blaslt import Lt
from ovgpu.backends.cuda.driver_launch import DriverLaunch
from ovgpu.backends.cuda.kernels import Kernel
from ovgpu.runtime.backend import Call, HostCall, Transfer
from ovgpu.runtime.executor import Executor
from ovgpu.runtime.loops.repeated import Repeat
from ovgpu.runtime.plan import Plan, PlanStep, distinct, plan_of

FILE = re.compile(r"cuda_kernels/([^,]+),")


@dataclass(frozen=True)
class Launch:
    """A launch of one of ovgpu's kernels. ``file`` is empty for generated kernels; ``shared`` is dynamic, in bytes;
    ``nbytes`` are those of its array arguments, each element once; ``early``: whether it begins before the launch
    before it has ended."""

    name: str
    file: str
    code: MachineCode
    grid: tuple[int, ...]
    threads: int
    shared: int
    nbytes: int
    early: bool = False

    @property
    def blocks(self) -> int:
        return prod(self.grid)


@dataclass(frozen=True)
class LibraryCall:
    """A call of cuBLAS or cuDNN, a copy to or from the host, or work whose launches are not known, such as CuPy's."""

    name: str


@dataclass(frozen=True)
class StepLaunches:
    """A step of a plan, and its launches in order."""

    step: PlanStep
    launches: tuple[Launch | LibraryCall, ...]


def steps_of(executor: Executor | None) -> tuple[Plan, list[StepLaunches]]:
    """Return the plan of an executor's last run on a dry device, and the launches of its steps on the device."""
    if executor is None:
        raise ValueError("nothing has run yet")
    plan, found = plan_of(executor), []
    rows = [step for step in plan.steps if step.kind not in ("view", "host")]
    for number, segment in enumerate(executor.program.segments):
        binding = next(reversed(executor.bindings[number].values()), None)
        for position, step in enumerate(row for row in rows if row.segment == number):
            calls = binding.calls[position] if binding is not None and position < len(segment.steps) else ()
            found.append(StepLaunches(step, tuple(launches_of(calls))))
    return plan, list(overlapping(found))


def overlapping(steps: Sequence[StepLaunches]) -> Iterator[StepLaunches]:
    """Yield consecutive steps with ``early`` only where the launch before lets the next one start."""
    before: Launch | LibraryCall | None = None
    for step in steps:
        launches = []
        for launch in step.launches:
            if isinstance(launch, Launch) and launch.early:
                launch = replace(launch, early=isinstance(before, Launch) and before.code.starts_next)
            launches.append(before := launch)
        yield StepLaunches(step.step, tuple(launches))


def launches_of(calls: Sequence[Call]) -> Iterator[Launch | LibraryCall]:
    """Yield the launches of calls."""
    for call in calls:
        if isinstance(call, Repeat):
            cycle, times = call.args
            for _ in range(times):
                yield from launches_of(cycle.flat)
        elif isinstance(call, HostCall):
            yield LibraryCall("CuPy")
        elif isinstance(call, Transfer):
            yield LibraryCall("transfer")
        elif isinstance(call, partial) and isinstance(call.func, Kernel):
            grid, block, arguments = call.args
            options = call.keywords
            yield _launch(call.func, grid, block, arguments, options["shared_mem"], options.get("driver"))
        else:
            owner = getattr(getattr(call, "func", call), "__self__", None)
            yield LibraryCall({Blas: "cuBLAS", Lt: "cuBLASLt"}.get(type(owner), "library"))


def _launch(
    kernel: Kernel,
    grid: Sequence[int],
    block: Sequence[int],
    arguments: Sequence[Any],
    shared: int,
    driver: DriverLaunch | None,
) -> Launch:
    function = kernel.function()
    assert isinstance(function, IdleFunction)
    file = FILE.match(kernel.where)
    return Launch(
        kernel.name,
        file[1] if file else "",
        function.code,
        tuple(map(int, grid)),
        prod(block),
        shared,
        sum(
            distinct(x.shape, x.strides) * x.itemsize
            for x in arguments
            if hasattr(x, "strides") and hasattr(x, "data") and hasattr(x.data, "ptr")
        ),
        driver is not None and driver.early,
    )
