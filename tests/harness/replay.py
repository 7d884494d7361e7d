"""Checks of replays on the emulated device: nothing but graphs is launched, and they hold all kernels of the plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

EMULATED = "EMULATED"
DEVICES = ("CPU", EMULATED)
LIST = Path(__file__).parents[1] / "kernels" / "eager.json"
Result = TypeVar("Result")


@cache
def eager() -> dict[str, Any]:
    """Return the cases that need more than graphs: by op version, or under "scenarios", a list of names, or "all"."""
    found: dict[str, Any] = json.loads(LIST.read_text())
    return found


def listed(group: str, name: str, variant: str) -> bool:
    """Return whether a case is in the list `eager`; some are in one variant only: "name (dynamic)"."""
    names = eager().get(group, ())
    return names == "all" or name in names or f"{name} ({variant})" in names


class Watch:
    """Watch over inferences that should only launch graphs; `seen` lists the other work that they needed."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def infer(self, request: Any, infer: Callable[[], Result], *, settled: bool = True) -> Result:
        """Run an inference. Unless it needs other work, check that it launches the kernels of the plan, all in graphs.

        Right after a change of the state (not ``settled``), copies and graphs of initial values are allowed too."""
        from tests.emulator.state import counters

        counters.reset()
        before = len(self.seen)
        with poisoned(self.seen):
            try:
                result = infer()
            except Exception:
                if len(self.seen) == before:
                    raise
        if len(self.seen) > before:
            return infer()
        plan = request.plan()
        found, planned = (counters.graph_launches, counters.graph_kernels), (plan.launches, plan.kernels)
        assert found == planned or (not settled and all(map(int.__ge__, found, planned))), counters
        assert not settled or (counters.launches, counters.allocs) == (0, 0), f"beside the graphs: {counters}"
        return result

    def close(self, group: str, name: str, variant: str) -> None:
        """Check that the list agrees with the work seen."""
        if listed(group, name, variant):
            assert self.seen, f"{LIST.name} lists {name} ({variant}) of {group}, which launches graphs alone"
        else:
            assert not self.seen, f"{LIST.name} does not list {name} ({variant}) of {group}: it needs {self.seen[0]}"


@contextmanager
def poisoned(seen: list[str]) -> Iterator[None]:
    """Make every binding and evaluation raise within the block, and add it to ``seen``."""
    from ovgpu.backends.cuda import CudaBackend
    from ovgpu.lowering.program import Step
    from ovgpu.runtime.binding import Recorded
    from ovgpu.runtime.executor import Executor
    from ovgpu.runtime.loops import bind, dynamic

    def run(executor: Executor, steps: Sequence[Step], recording: Recorded) -> None:
        if recording.flat:
            seen.append(f"to run {steps[0].op.name}")
            raise AssertionError(seen[-1])

    def poison(what: str, op_of: Callable[..., Any]) -> Callable[..., Any]:
        def fail(*args: Any, **named: Any) -> Any:
            op = op_of(*args)
            seen.append(f"{what} {op.name} {op.version}")
            raise AssertionError(seen[-1])

        return fail

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CudaBackend, "bind", poison("to bind", lambda _, op, *rest: op))
        patch.setattr(CudaBackend, "evaluate", poison("to evaluate", lambda _, op, *rest: op))
        patch.setattr(Executor, "_bind_step", poison("to bind", lambda _, segment, step, *rest: step.op))
        patch.setattr(Executor, "_compute", poison("to evaluate", lambda _, step, *rest: step.op))
        patch.setattr(Executor, "run_flat", run)
        patch.setattr(bind, "bind", poison("to bind", lambda _, step, *rest: step.op))
        patch.setattr(dynamic, "run", poison("to evaluate", lambda _, step, *rest: step.op))
        yield
