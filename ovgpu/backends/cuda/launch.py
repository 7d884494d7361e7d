"""Launcher, with which an op's `cuda` method records kernel launches and calls of CUDA's libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ovgpu.backends.cuda import copy, driver_launch, elementwise, kernels, rt
from ovgpu.backends.cuda.choices import Choices
from ovgpu.backends.cuda.cufft import Fft
from ovgpu.backends.cuda.driver_launch import NO_CLUSTERS, Clusters, DriverLaunch
from ovgpu.backends.cuda.elementwise import c_type
from ovgpu.backends.cuda.kernels import Kernel
from ovgpu.ops.base.elementwise import Elementwise
from ovgpu.ops.base.op import Array
from ovgpu.ops.base.recorder import KernelRecorder, T
from ovgpu.ops.convert import Convert
from ovgpu.ops.convolution._convolved import Convolved
from ovgpu.ops.fused._elementwise import Chain
from ovgpu.runtime.backend import Call, RoundingCall
from ovgpu.types import Type

CARVEOUTS = {"the most": True, "the driver's": False}  # of early kernels: shared memory that they prefer


class Launcher(KernelRecorder):
    """Recorder of the calls of one step on one stream, in the list ``calls``."""

    c_type = staticmethod(c_type)
    functor = staticmethod(elementwise.functor)
    has_clusters = True  # whether launches may have clusters

    def __init__(
        self, stream: Any, blas: Any, dnn: Any = None, ffts: Fft | None = None, choices: Choices | None = None
    ) -> None:
        self.stream, self.blas, self.dnn, self.ffts = stream, blas, dnn, ffts or Fft()
        self.choices = choices or Choices()
        self.calls: list[Call] = []

    def choose(self, question: str, answers: Mapping[str, T]) -> T:
        return self.choices.choose(question, answers)

    def kernel(
        self,
        file: str,
        expression: str,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[Any],
        shared: int = 0,
        cooperative: bool = False,
        prelude: str = "",
        tf32: bool = False,
        early: bool = False,
        cluster: int = 1,
        otherwise: Callable[[KernelRecorder], object] | None = None,
    ) -> None:
        kernel = kernels.of_file(file, expression, cooperative, prelude)
        clusters = NO_CLUSTERS
        if cluster > 1:
            assert otherwise is not None, f"{expression}: a launch in clusters needs another form"
            fit = partial(kernel.fits_cluster, block, shared, cluster)
            instead = partial(self._instead, kernel, block, shared, cluster, otherwise)
            kernel.prepare(shared)
            if kernel.is_ready() and not fit():  # a kernel that is being compiled is asked for at the first launch
                self.calls.extend(instead())
                return
            clusters = Clusters(cluster, fit, instead)
        self._launch(kernel, grid, block, args, shared, tf32, early, clusters)

    def _instead(
        self,
        kernel: Kernel,
        block: tuple[int, ...],
        shared: int,
        cluster: int,
        record: Callable[[KernelRecorder], object],
    ) -> Sequence[Call]:
        """Return the calls that take the place of a launch in clusters that do not fit."""
        kernel.refuse_cluster(block, shared, cluster)
        launcher = Launcher(self.stream, self.blas, self.dnn, self.ffts, self.choices)
        launcher.has_clusters = False
        record(launcher)
        return launcher.calls

    def fits(
        self,
        file: str,
        expression: str,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        shared: int = 0,
        prelude: str = "",
    ) -> bool:
        return prod(grid) <= kernels.of_file(file, expression, True, prelude).resident(prod(block), shared)

    def _launch(
        self,
        kernel: Kernel,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: Sequence[Any],
        shared: int = 0,
        tf32: bool = False,
        early: bool = False,
        clusters: Clusters = NO_CLUSTERS,
    ) -> None:
        arguments = tuple([_struct(x) if isinstance(x, np.ndarray) else x for x in args])
        kernel.prepare(shared)
        record = RoundingCall if tf32 else partial
        early = early and driver_launch.begins_early(self.capability)
        carveout = early and self.choose(f"shared memory of {kernel.label} in {grid}", CARVEOUTS)
        options = {"driver": DriverLaunch(early, clusters, carveout)} if early or clusters.blocks > 1 else {}
        self.calls.append(record(kernel, grid, block, arguments, shared_mem=shared, stream=self.stream, **options))

    @property
    def multiprocessors(self) -> int:
        return int(rt.cupy().cuda.Device().attributes["MultiProcessorCount"])

    @property
    def shared_limit(self) -> int:
        return int(rt.cupy().cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"])

    @property
    def capability(self) -> int:
        return int(rt.cupy().cuda.Device().compute_capability)

    @property
    def max_cluster(self) -> int:
        has_clusters = self.has_clusters and driver_launch.forms_clusters(self.capability)
        return kernels.largest_cluster() if has_clusters else 1

    @property
    def tf32(self) -> bool:
        return bool(self.blas.tf32)

    def elementwise(self, maths: Elementwise | Chain, inputs: Sequence[Array], output: Array) -> None:
        if output.size:
            chain = maths if isinstance(maths, Chain) else Chain.of(maths, len(inputs))
            self._launch(*elementwise.launch(chain, inputs, output), early=True)

    def copy(self, source: Array, target: Array) -> None:
        if not target.size:
            return
        if isinstance(source, np.ndarray) and target.size > copy.MAX_NUMBERS:
            source = self.table(np.ascontiguousarray(source))
        launches = copy.launches(source, target)
        if launches is None:  # more axes than copy.cu is compiled for: a generated kernel copies the bits
            bits = Type.of(np.dtype(f"u{target.dtype.itemsize}"))
            self.elementwise(Convert(destination_type=bits), [source.view(bits.storage)], target.view(bits.storage))
            return
        for launch in launches:
            self.kernel("copy.cu", *launch, early=True)

    def scratch(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return rt.cupy().empty(shape, dtype)

    def table(self, values: np.ndarray[Any, Any]) -> Array:
        array = self.scratch(values.shape, values.dtype)
        array.set(values, stream=self.stream)
        self.stream.synchronize()  # the copy may read the host's memory until then
        return array

    def gemm(self, a: Array, b: Array, out: Array, exact: bool = False) -> bool:
        calls = self.blas.matmul(a, b, out, exact)
        self.calls.extend(calls or ())
        return calls is not None

    def gemm_with_epilogue(
        self,
        a: Array,
        b: Array,
        out: Array,
        bias: Array | None,
        residual: Array | None,
        activation: str,
        exact: bool = False,
    ) -> bool:
        call = self.blas.lt.matmul(a, b, out, bias, residual, activation, self.tf32 and not exact)
        self.calls.extend([] if call is None else [call])
        return call is not None

    def convolve(self, c: Convolved) -> bool:
        calls = None if self.dnn is None else self.dnn.convolve(c)
        self.calls.extend(calls or ())
        return calls is not None

    def fft(self, source: Array, target: Array, axes: int, inverse: bool) -> bool:
        calls = self.ffts.transform(source, target, axes, inverse)
        self.calls.extend(calls or ())
        return calls is not None


def _struct(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the numbers as one element: CuPy passes only arrays of one element by value."""
    return np.ascontiguousarray(numbers).reshape(-1).view(np.dtype((np.void, numbers.nbytes)))
