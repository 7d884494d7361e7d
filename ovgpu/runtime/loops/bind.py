"""Binding of TensorIterator, Loop and If whose bodies are static: no shape changes from iteration to iteration.

The trip count follows from shapes and host values. All iterations are bound ahead (`unrolled`), or, for a long loop, a
few that are repeated (`repeated`). Iterations of a long loop that cannot be repeated are bound one by one while it
runs. `dynamic` runs bodies that are not static.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ovgpu.lowering.program import Step
from ovgpu.ops.base.op import Array
from ovgpu.ops.base.shapes import first
from ovgpu.ops.infrastructure.control_flow import If, Loop, TensorIterator
from ovgpu.runtime.backend import Call, HostCall
from ovgpu.runtime.loops import repeated
from ovgpu.runtime.loops.unrolled import Iterations, Maps

if TYPE_CHECKING:
    from ovgpu.runtime.executor import Executor

MAX_UNROLLED_CALLS = 2000  # a loop with more calls is not unrolled


def bind(
    executor: Executor, step: Step, inputs: Sequence[Array | None], outputs: Sequence[Array], count: Any
) -> Sequence[Call]:
    """Return the calls of a control step whose bodies are static. ``count`` is a loop's trip count, as an array.

    If the backend captures graphs, only the first few trip counts of a loop are unrolled, since each one needs graphs
    of its own.
    """
    op, backend = step.op, executor.backend
    if isinstance(op, If):
        taken = first(inputs[0], "the condition")
        maps = Maps(op.then_inputs, op.then_outputs) if taken else Maps(op.else_inputs, op.else_outputs)
        return Iterations(_child(executor, step, 0 if taken else 1), maps).calls(inputs, outputs, 1) or ()
    assert isinstance(op, (TensorIterator, Loop))
    maps = Maps(
        op.inputs, op.outputs, [(b.result, b.parameter) for b in op.back_edges], getattr(op, "current_iteration", None)
    )
    loop, n = Iterations(_child(executor, step, 0), maps), int(count.reshape(-1)[0])
    calls: Sequence[Call] | None = None
    if backend.captures_graphs:
        unrolled = executor.loops.setdefault(id(step), repeated.LoopCache()).unrolled
        if n in unrolled or len(unrolled) < repeated.CACHED_CYCLES:
            calls = loop.calls(inputs, outputs, n, MAX_UNROLLED_CALLS)
        if calls is not None:
            unrolled.add(n)
        else:
            calls = repeated.calls(executor, step, maps, inputs, outputs, n)
    elif n * max(1, len(loop.child.program.steps)) <= MAX_UNROLLED_CALLS:
        calls = loop.calls(inputs, outputs, n)
    return [HostCall(loop.run, list(inputs), list(outputs), n)] if calls is None else calls


def _child(executor: Executor, step: Step, branch: int) -> Executor:
    program = step.bodies[branch].program
    assert program is not None
    return executor.child((id(step), branch), program)
