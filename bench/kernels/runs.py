"""Runs of models and workloads on a dry device, for their plans and launches."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ovgpu
from bench.gpu_engines import engine
from bench.kernels.cards import Card
from bench.kernels.dry_device import dry_device
from bench.kernels.launches import StepLaunches, steps_of
from bench.workloads import IN_TF32, workload
from bench.workloads import WORKLOADS as PLAIN
from ovgpu.backends.cuda.kernels import Kernel
from ovgpu.cli._feed import Feed
from ovgpu.cli._inputs import fill, is_decoder
from ovgpu.cli._ports import parse_shapes, static_shapes
from ovgpu.runtime.executor import Executor
from ovgpu.runtime.plan import Plan

WARM_UP = 2  # inferences after a prompt: states of decoders alternate between two plans
WORKLOADS = (*(name for name in PLAIN if "sequences" not in name), *IN_TF32)
Launched = tuple[Plan, list[StepLaunches]]


def of_workload(name: str, card: Card, cudnn: bool = False) -> Launched:
    """Return the plan and the launches of a workload of `bench.workloads`."""
    with dry_device(card, cudnn) as device:
        found = steps_of(_executor(name, device))
    gc.collect()
    return found


def kernels_of(name: str, card: Card, cudnn: bool = False) -> list[Kernel]:
    """Return the kernels that a workload launches, from its first inference on, in the order of their first use."""
    with dry_device(card, cudnn) as device:
        backend: Any = _executor(name, device).backend
        found = list(backend.kernels.used)
    gc.collect()
    return found


def _executor(name: str, device: str) -> Executor:
    """Return the executor of a workload's last inference."""
    executor: Executor = engine(workload(name), device).resident._session.last
    return executor


def of_model(
    path: Path,
    card: Card,
    *,
    shapes: Sequence[str] = (),
    config: Mapping[str, Any] | None = None,
    prompt: int = 0,
    cudnn: bool = False,
) -> Launched:
    """Return the plan and the launches of an inference of a model.

    ``shapes`` are ``NAME=[1,3]`` for dynamic inputs. A language model with state gets one token, after ``prompt``
    tokens if that is not 0. Raises ValueError for shapes that are missing or wrong.
    """
    with dry_device(card, cudnn) as device:
        core = ovgpu.Core()
        compiled = core.compile_model(core.read_model(path), device, dict(config or {}))
        request = compiled.create_infer_request()
        ports, stateful = compiled.inputs, bool(request.query_state())
        static = static_shapes(ports, parse_shapes(shapes, ports), "--shape", is_decoder(ports, stateful))
        random = np.random.default_rng(0)
        feed = Feed(
            ports,
            {number: fill(port, shape, None, random) for number, (port, shape) in enumerate(zip(ports, static))},
            stateful,
            prompt,
        )
        for _ in range(1 + WARM_UP):
            request.infer(feed.next())
        return steps_of(request._session.last)
