"""Detection of activations that leave the range of f16, in the first run of a program.

A model that is computed in f16 to be fast may have such activations, as T5 and Gemma have. The request then compiles it
once more, in bf16, and runs the inference again. It also watches a run whose results are not finite.
"""

from __future__ import annotations

from collections.abc import Sequence

from ovgpu.errors import Error
from ovgpu.lowering.program import Step
from ovgpu.ops.base.op import Array
from ovgpu.ops.convert import LARGEST
from ovgpu.ops.fused.add_norm import AddNorm
from ovgpu.ops.fused.norm_codes import NormWithCodes
from ovgpu.runtime.backend import Call
from ovgpu.runtime.executor import Executor, Observe
from ovgpu.types import Type


class Overflow(Error):
    """Error for a tensor in f16 with an infinite element, or the largest number, to which larger ones are clamped."""


class OverflowWatch:
    """Observer of a run: it runs the calls of each step, and raises `Overflow` if the results leave the range of f16.

    Products and sums may overflow either way. Other layers also make masks, which have -inf or the lowest number on
    purpose, so only large positive elements of their results count. The run waits for the device after each f16 step.
    """

    def __init__(self, executor: Executor, observe: Observe | None = None) -> None:
        self.executor, self.observe = executor, observe
        self._steps = _steps(executor)

    def __call__(self, step: Step, calls: Sequence[Call]) -> None:
        if self.observe is not None:
            self.observe(step, calls)
        else:
            for call in calls:
                call()
        if id(step) not in self._steps:  # steps after a result of unknown rank are a separate program
            self.executor = self.executor.children["deferred"]
            self._steps = _steps(self.executor)
        values, arrays = self.executor.program.values, self.executor.arrays
        for i in step.outputs if step.kind == "bound" else ():
            if values[i].type == Type.f16 and self._overflows(step, arrays[i]):
                raise Overflow(f"the results of layer '{step.name}' leave the range of f16")

    def _overflows(self, step: Step, x: Array) -> bool:
        xp = self.executor.backend.xp
        if step.op.half_precision == "always" or isinstance(step.op, (AddNorm, NormWithCodes)):
            x = xp.abs(x)
        return bool(xp.asnumpy((x >= LARGEST[Type.f16]).any()))


def _steps(executor: Executor) -> set[int]:
    return {id(step) for segment in executor.program.segments for step in segment.steps}
