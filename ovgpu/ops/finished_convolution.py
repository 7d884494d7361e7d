"""Convolutions along with the elementwise layers after them, as the host runs them; what passes make of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops import _lanes
from ovgpu.ops._columns import Index
from ovgpu.ops._fused import Layer
from ovgpu.ops._lanes import Lane
from ovgpu.ops._op import Array, Op, Workspace
from ovgpu.ops._trace import TILE, Tape, tiles, trace
from ovgpu.ops.convolution import Convolution, ConvolutionBackpropData
from ovgpu.symbolic import Spec
from ovgpu.types import Type

RESULT = -1  # as an operand: what the layers before have made


@dataclass(frozen=True, eq=False, kw_only=True)
class FinishedConvolution(Op):
    """``convolution`` of the first two inputs, of ``kind``, and ``layers`` that keep its type and shape.

    ``operands`` of every layer are inputs, or the `RESULT`. Who computes some of its channels finishes them.
    """

    convolution: Convolution | ConvolutionBackpropData
    kind: Type
    layers: tuple[Layer, ...]
    operands: tuple[tuple[int, ...], ...]

    name: ClassVar[str] = "Convolution"
    version: ClassVar[str] = "ovgpu"
    aliases: ClassVar[tuple[str, ...]] = ()
    layout = "blas"
    strided_outputs = True

    def attributes(self) -> dict[str, Any]:
        return self.convolution.attributes() | {"layers": tuple(layer.name for layer in self.layers)}

    def infer(self, *inputs: Any) -> tuple[Spec, ...]:
        (result,) = self.convolution.infer(*inputs[:2])
        for layer, operands in zip(self.layers, self.operands):
            try:
                (result,) = layer.op.infer(*(result if i == RESULT else inputs[i] for i in operands))
            except OpError as e:
                raise e.at(layer.op.name, layer.place) from None
        return (result,)

    def evaluate(self, xp: Any, *inputs: Any) -> tuple[Array, ...]:
        (result,) = self.convolution.evaluate(xp, *inputs[:2])
        for layer, operands in zip(self.layers, self.operands):
            (result,) = layer.op.evaluate(xp, *(result if i == RESULT else inputs[i] for i in operands))
        return (result,)

    @cached_property
    def tapes(self) -> list[Tape]:
        """What every layer computes."""
        dtype = self.kind.storage
        return [trace(layer.op, (dtype,) * len(operands), dtype) for layer, operands in zip(self.layers, self.operands)]

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        """The convolution's, and for every lane the temporaries of a tile."""
        temporaries = [Type.of(dtype) for tape in self.tapes for dtype in tape.temporaries]
        return (*self.convolution.workspace(inputs[:2], outputs),
                *((kind, (_lanes.LANES * TILE,)) for kind in temporaries))

    def numpy(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        out = outputs[0]
        own = len(workspace) - sum(len(tape.temporaries) for tape in self.tapes)
        workspace, scratch = workspace[:own], workspace[own:]
        others = [x.reshape(()) if x.size == 1 else np.broadcast_to(x, out.shape) for x in inputs[2:]]

        def finish(lane: Lane, index: Index) -> None:
            part, given = out[index], [x[index] if x.ndim else x for x in others]
            temporaries = [lane.share(memory) for memory in scratch]
            for cut in tiles(part.shape) if scratch else [...]:
                self._finish(lane, part[cut], [x[cut] if x.ndim else x for x in given], temporaries)

        return self.convolution.finished(k, inputs[:2], out, workspace, finish)

    def _finish(self, lane: Lane, part: Array, others: Sequence[Array], temporaries: Sequence[Array]) -> None:
        free = iter([memory[: part.size].reshape(part.shape) for memory in temporaries])
        for tape, operands in zip(self.tapes, self.operands):
            given = [part if i == RESULT else others[i - 2] for i in operands]
            tape.record(lane, given, part, [next(free) for _ in tape.temporaries])
