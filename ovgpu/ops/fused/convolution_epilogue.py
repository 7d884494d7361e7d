"""Internal op of a convolution with an epilogue: the elementwise layers after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ovgpu.ops.base import tasks
from ovgpu.ops.base.op import Array, Arrays, Workspace, internal_op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.tasks import Worker
from ovgpu.ops.base.trace import TILE, Tape, tiles, trace
from ovgpu.ops.convolution._columns import Index
from ovgpu.ops.convolution._convolved import Epilogue
from ovgpu.ops.convolution.convolution import Convolution, ConvolutionBackpropData
from ovgpu.ops.fused._epilogue import OpWithEpilogue
from ovgpu.ops.fused.compressed_convolution import CompressedConvolution
from ovgpu.spec import Spec
from ovgpu.types import Type


@internal_op
class ConvolutionWithEpilogue(OpWithEpilogue):
    """A convolution with an epilogue. On the host, each layer takes the previous layer's result, and the worker that
    computes some channels applies the epilogue to them. On a ``device``, the kernels apply it to their elements."""

    convolution: Convolution | ConvolutionBackpropData | CompressedConvolution
    device: bool = False

    name: ClassVar[str] = "Convolution"
    half_precision = "always"

    @property
    def first(self) -> Convolution | ConvolutionBackpropData | CompressedConvolution:
        return self.convolution

    def _tapes(self, dtype: np.dtype[Any]) -> list[Tape]:
        """Return the tape of each layer of the epilogue, for the host."""
        return [trace(part.op, (dtype,) * len(part.operands), dtype) for part in self.fused.chain.parts]

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        """Return the convolution's workspace and, on the host, temporaries of the size of a tile for every worker."""
        own = self.convolution.workspace(self.split(inputs)[0], outputs)
        tapes = [] if self.device else self._tapes(outputs[0].type.storage)
        temporaries = [Type.of(dtype) for tape in tapes for dtype in tape.temporaries]
        return (*own, *((element_type, (tasks.WORKERS * TILE,)) for element_type in temporaries))

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        arrays, others = self.split(inputs)
        return self.convolution.cuda(k, arrays, outputs, workspace, Epilogue(self.fused.chain, tuple(others)))

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        (x, kernel), others = self.split(inputs)
        out, convolution = outputs[0], self.convolution
        assert not isinstance(convolution, CompressedConvolution)
        tapes = self._tapes(out.dtype)
        own = len(workspace) - sum(len(tape.temporaries) for tape in tapes)
        workspace, scratch = workspace[:own], workspace[own:]
        others = [
            a.reshape(()) if a.size == 1 else np.broadcast_to(a, out.shape) for a in (*others, *self.fused.literals)
        ]

        def epilogue(worker: Worker, index: Index) -> None:
            part, arrays = out[index], [a[index] if a.ndim else a for a in others]
            temporaries = [worker.share(memory) for memory in scratch]
            for tile in tiles(part.shape) if scratch else [...]:
                self._apply_epilogue(worker, tapes, part[tile], [a[tile] if a.ndim else a for a in arrays], temporaries)

        return convolution.with_epilogue(k, (x, kernel), out, workspace, epilogue)

    def _apply_epilogue(
        self, worker: Worker, tapes: Sequence[Tape], part: Array, others: Sequence[Array], temporaries: Sequence[Array]
    ) -> None:
        """Record the layers in place on ``part`` of the output; ``others`` are their other operands' parts."""
        free = iter([memory[: part.size].reshape(part.shape) for memory in temporaries])
        for tape, layer in zip(tapes, self.fused.chain.parts):
            arrays = [others[i - 1] if 0 < i <= len(others) else part for i in layer.operands]
            tape.record(worker, arrays, part, [next(free) for _ in tape.temporaries])
