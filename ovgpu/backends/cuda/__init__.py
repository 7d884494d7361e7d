"""The CUDA backend: device memory, kernels recorded per step, and captured graphs of whole segments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from typing import Any

import numpy as np

from ovgpu.backends.cuda import current, errors, kernel_cache, rt
from ovgpu.backends.cuda.blas import Blas
from ovgpu.backends.cuda.choices import Choices, measured
from ovgpu.backends.cuda.completion import EventCompletion
from ovgpu.backends.cuda.constants import slab
from ovgpu.backends.cuda.cudnn import Dnn, Plans
from ovgpu.backends.cuda.cufft import Fft
from ovgpu.backends.cuda.elementwise import NoKernelError
from ovgpu.backends.cuda.graphs import NODE_BYTES, Graphs
from ovgpu.backends.cuda.handles import stream_for
from ovgpu.backends.cuda.interop import StreamWaiter
from ovgpu.backends.cuda.kernel_cache import Binary, KernelStore
from ovgpu.backends.cuda.kernels import Kernel
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.backends.cuda.profile import EventClock
from ovgpu.backends.cuda.slicing import MAX_PARTS, Slicing
from ovgpu.backends.cuda.transfer import PinnedCopy, fetch, fetch_pinned, pinned, send
from ovgpu.backends.cuda.xp import CupyAdapter
from ovgpu.errors import explain
from ovgpu.ops.base.op import Array, Op, evaluate
from ovgpu.ops.base.storage import is_plain
from ovgpu.ops.base.xp import NUMPY, Adapter
from ovgpu.ops.convolution._implicit_gemm import CAPABILITY
from ovgpu.runtime.backend import Call, Clock, HostCall, Recording
from ovgpu.types import Type


class CudaBackend:
    """`ovgpu.runtime.backend.Backend` of one request on the GPU ``number``.

    Each request has its own stream, cuBLAS and cuDNN handles, and cuFFT plans. The requests of a compiled model share
    the store of its ``kernels`` and the cuDNN ``plans``. ``tf32``: products, convolutions and attention may round f32
    to TF32. ``choices`` among kernels are by default those that `ovgpu tune` measured on the card.
    """

    name = "NVIDIA"
    remote = True
    fuses = True
    captures_graphs = True

    def __init__(
        self,
        number: int = 0,
        kernels: KernelStore | None = None,
        plans: Plans | None = None,
        tf32: bool = False,
        choices: Choices | None = None,
    ) -> None:
        self.cupy, self.number, self.kernels = rt.cupy(), number, kernels or KernelStore()
        self.xp: Adapter = CupyAdapter(self.cupy)
        self.device, runtime = self.cupy.cuda.Device(number), self.cupy.cuda.runtime
        self._current_device, self._has_others = runtime.getDevice, runtime.getDeviceCount() > 1
        with errors.translated(), self.device:
            self.stream = stream_for(self)
        self.blas, self.dnn, self.ffts = Blas(self.stream, tf32), Dnn(self.stream, plans, tf32), Fft()
        self.graphs = Graphs(self.stream)
        self.choices = measured(self.kernels, number) if choices is None else choices
        self.waiter = StreamWaiter(self.stream, number)

    def channels_last(self) -> Sequence[Type]:
        return self.dnn.channels_last(int(self.device.compute_capability))

    def multiplies_i8(self) -> bool:
        return int(self.device.compute_capability) >= CAPABILITY

    def active(self) -> AbstractContextManager[Any]:
        return errors.Active(self.number, self.stream, self.kernels)

    def nesting(self) -> tuple[int, int]:
        return current.depth(), kernel_cache.entered()

    def restore(self, nesting: tuple[int, int]) -> None:
        kernel_cache.leave(nesting[1])
        with suppress(Exception):  # the first error has been reported already
            current.restore(nesting[0])

    def for_request(self) -> CudaBackend:
        return CudaBackend(self.number, self.kernels, self.dnn.plans, self.blas.tf32, self.choices)

    def allocate(self, nbytes: int) -> Any:
        with self.active():
            return self.cupy.cuda.alloc(max(nbytes, 1))

    def require(self, nbytes: int) -> None:
        with self.active():
            free = self.cupy.cuda.runtime.memGetInfo()[0] + self.cupy.get_default_memory_pool().free_bytes()
            if nbytes > free:
                raise errors.OutOfMemory(errors.out_of_memory(f"{nbytes:,} bytes were asked for"))

    def make_array(
        self, block: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Type
    ) -> Array:
        return self.cupy.ndarray(shape, dtype.storage, memptr=block + offset, strides=strides)

    def dense(self, block: Any, shape: tuple[int, ...], dtype: Type) -> Array:
        return self.cupy.ndarray(shape, dtype.storage, memptr=block)

    def view(self, array: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
        if array.shape == shape and array.strides == strides and not offset:
            return array
        if isinstance(array, np.ndarray):  # strings stay on the host
            begin = array.reshape(-1)[offset // array.itemsize :]
            return np.lib.stride_tricks.as_strided(begin, shape, strides)
        return self.cupy.ndarray(shape, array.dtype, memptr=array.data + offset, strides=strides)

    def constant(self, value: Any) -> Array:
        if value.dtype == object:
            return value
        with self.active():
            array = self.xp.empty(value.shape, value.dtype)
            array.set(np.asarray(value, order="C"), stream=self.stream)
            self.stream.synchronize()  # requests on other streams share the constant
            return array

    def constants(self, values: Sequence[Any]) -> tuple[Sequence[Array], Callable[[], None]]:
        def copy() -> None:
            with self.active():
                upload()

        with self.active():
            arrays, upload = slab([value for value in values if value.dtype != object], self.stream, self._compute)
        on_device = iter(arrays)
        return [value if value.dtype == object else next(on_device) for value in values], copy

    def _compute(self, op: Op, source: Array, result: Array) -> None:
        for call in self.bind(op, [source], [result], (), [Type.of(result.dtype)]):
            call()

    def to_host(self, array: Array) -> Any:
        if isinstance(array, np.ndarray):
            return array
        with self.active():
            return array.get(stream=self.stream)

    def pinned(self, nbytes: int) -> Any:
        with self.active():
            try:
                return pinned(nbytes)
            except self.cupy.cuda.runtime.CUDARuntimeError as e:
                raise errors.OutOfMemory(f"out of memory: no {nbytes:,} bytes of pinned memory on the host") from e

    def send(self, source: Any, target: Array) -> None:
        """Copy a contiguous host array, pinned or not, to the device through small staging buffers, and wait."""
        with self.active():
            send(source, target, self.stream)

    def fetch(self, source: Array, target: Any) -> None:
        """Copy a contiguous device array to the host through small staging buffers, and wait.

        The work that writes ``source`` must be done. Any thread may call this, even while the request captures a graph
        on its own stream.
        """
        with self.active():
            fetch(source, target, self._reader)

    def fetch_pinned(self, source: Array) -> Array | None:
        """Return a contiguous device array in pinned memory, or None, if that is short; see `fetch`."""
        with self.active():
            return fetch_pinned(source, self._reader)

    @cached_property
    def _reader(self) -> Any:
        return stream_for(self)

    def upload(self, source: Any, target: Array) -> Sequence[Call]:
        return [PinnedCopy(source, target, True, self.stream)] if target.nbytes else ()

    def download(self, source: Array, target: Any) -> Sequence[Call]:
        return [PinnedCopy(target, source, False, self.stream)] if source.nbytes else ()

    def bind(
        self,
        op: Op,
        inputs: Sequence[Array | None],
        outputs: Sequence[Array],
        workspace: Sequence[Array],
        types: Sequence[Type],
    ) -> Sequence[Call]:
        calls = self.record(op, inputs, outputs, workspace, self.choices)
        return [HostCall(self._evaluate_into, op, inputs, outputs, types)] if calls is None else calls

    def record(
        self,
        op: Op,
        inputs: Sequence[Array | None],
        outputs: Sequence[Array],
        workspace: Sequence[Array],
        choices: Choices,
    ) -> Sequence[Call] | None:
        """Return the calls of a step's kernels, or None if the step has no kernels."""
        launcher = Launcher(self.stream, self.blas, self.dnn, self.ffts, choices)
        with suppress(NoKernelError):
            if op.cuda is not None and op.cuda(launcher, inputs, outputs, workspace) is not NotImplemented:
                return launcher.calls
        return None

    def copy(self, source: Array, target: Array) -> Sequence[Call]:
        launcher = Launcher(self.stream, self.blas, choices=self.choices)
        launcher.copy(source, target)
        return launcher.calls

    def convert(self, source: Array, target: Array) -> None:
        """Copy a device array of any layout and element type into another one of the same shape."""
        with self.active():
            if source.dtype != target.dtype:
                self.cupy.copyto(target, source, casting="unsafe")
                return
            for call in self.copy(source, target):
                call()

    def evaluate(self, op: Op, inputs: Sequence[Array | None], types: Sequence[Type]) -> Sequence[Array]:
        dtypes = [x.dtype for x in inputs if x is not None] + [t.storage for t in types if not t.is_dynamic()]
        if not all(map(is_plain, dtypes)):  # CuPy does not support these dtypes
            given = [None if x is None else self.to_host(x) for x in inputs]
            return [self.constant(x) for x in evaluate(op, NUMPY, given, types)]
        with current.Using(self.stream):
            return evaluate(op, self.xp, inputs, types)

    def _evaluate_into(
        self, op: Op, inputs: Sequence[Array | None], outputs: Sequence[Array], types: Sequence[Type]
    ) -> None:
        for out, result in zip(outputs, self.evaluate(op, inputs, types)):
            for call in self.copy(result, out):
                call()

    def explain(self, error: Exception) -> str:
        return errors.explained(error) or explain(error)

    def slicing(self, incoming: int, outgoing: int) -> Slicing | None:
        return Slicing(self.cupy, self.stream, incoming, outgoing) if incoming + outgoing <= MAX_PARTS else None

    def launch(self, recording: Recording) -> bool:
        return self.graphs.launch(recording)

    def launch_whole(self, recording: Recording) -> bool:
        if self._has_others and self._current_device() != self.number:
            return False
        return self.graphs.launch_whole(recording)

    def ready(self, calls: Sequence[Call]) -> bool:
        kernels = (getattr(call, "func", None) for call in calls)
        return all(kernel.is_ready() for kernel in kernels if isinstance(kernel, Kernel))

    def finish_compiling(self) -> None:
        with self.active():
            for kernel in list(self.kernels.used):
                kernel.finish()

    def export_kernels(self) -> dict[str, bytes]:
        with self.active():
            return {kernel.key(): kernel.binary().payload() for kernel in list(self.kernels.used)}

    def import_kernels(self, files: Mapping[str, bytes]) -> None:
        self.kernels.imported = {key: Binary.parse(payload) for key, payload in files.items()}

    def memory_held(self) -> int:
        with self.active():
            return int(self.cupy.get_default_memory_pool().total_bytes())

    def memory_of_request(self) -> dict[str, int]:
        return {
            "workspaces": self.blas.workspace_bytes + self.dnn.workspace_bytes,
            "graphs": self.graphs.nodes * NODE_BYTES,
        }

    def clock(self) -> Clock:
        return EventClock(self.stream)

    def completion(self) -> EventCompletion:
        with self.active():
            return EventCompletion(self.stream)

    def order(self, owners: Sequence[Any]) -> None:
        self.waiter.order(owners)

    def synchronize(self) -> None:
        self.stream.synchronize()

    def abandon(self) -> None:
        with suppress(Exception):  # the first error has been reported already
            self.stream.synchronize()
