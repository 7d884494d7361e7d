"""Recorders, with which the fast forms of an op record the calls of its step; see `ovgpu.ops.base.op.Op`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

if TYPE_CHECKING:
    from ovgpu.ops.base.elementwise import Elementwise
    from ovgpu.ops.base.op import Array
    from ovgpu.ops.convolution._convolved import Convolved
    from ovgpu.ops.fused._elementwise import Chain


PORTABLE_CLUSTER = 8  # the most blocks of a cluster on every whole device; some allow more, parts of devices fewer
T = TypeVar("T")


class HostRecorder(Protocol):
    """Recorder of an op's `numpy` form: ``k(np.add, a, b, out)`` records the call ``np.add(a, b, out)``."""

    def __call__(self, function: Callable[..., Any], /, *operands: Any, **named: Any) -> Any: ...


class KernelRecorder(Protocol):
    """Recorder of an op's `cuda` form: it records kernel launches and calls of CUDA's libraries on one stream.

    `gemm`, `gemm_with_epilogue`, `convolve` and `fft` return False, and record nothing, if the library does not support
    the arrays or is not installed.
    """

    stream: Any

    @property
    def multiprocessors(self) -> int:
        """The device's number of multiprocessors: at least as many blocks run at the same time."""

    @property
    def shared_limit(self) -> int:
        """The most bytes of shared memory that a block can have."""

    @property
    def capability(self) -> int:
        """The device's compute capability, 80 for 8.0."""

    @property
    def max_cluster(self) -> int:
        """The most blocks that may form a cluster, in which they store to each other's shared memory; 1 if there are no
        clusters. Blocks with much shared memory may not fit, see `kernel`."""

    @property
    def tf32(self) -> bool:
        """True if products of f32 may round their operands to TF32; never below compute capability 8.0."""

    def choose(self, question: str, answers: Mapping[str, T]) -> T:
        """Return one of the ``answers``, all of which give right results: the one that was fastest on this card when
        `ovgpu tune` measured them, or the first one if they were not measured. The keys are their names. ``question``
        names the kind and the sizes of the work."""

    @staticmethod
    def c_type(dtype: np.dtype[Any]) -> str:
        """Return the CUDA C++ type of a dtype's elements. Raises NoKernelError if kernels do not compute with them."""

    @staticmethod
    def functor(
        name: str,
        chain: Chain,
        inputs: tuple[np.dtype[Any], ...],
        max_arrays: int,
        header: str = "elementwise.cuh",
        result: np.dtype[Any] | None = None,
        numbers: int = 0,
    ) -> str:
        """Return the source of a struct whose `of` computes the chain, for the ``prelude`` of `kernel`. ``result`` is
        the chain's type, by default that of its first input. The first ``numbers`` literals of f32 are arguments of
        the kernel."""

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
        """Launch ``expression``, an instance such as ``softmax<float, 4>``, of ``cuda_kernels/file``.

        Scalars in ``args`` have NumPy types, and host arrays are structs passed by value. ``shared``: bytes of dynamic
        shared memory. All blocks of a cooperative launch run at the same time, see `fits`. ``prelude`` is generated
        source that is put before the file's. ``tf32``: whether the kernel rounds f32 operands to TF32. ``early``:
        whether it may begin before the launches before it have ended; it must wait for them (`cuda_kernels/ptx.cuh`)
        before it reads memory that another launch of the inference writes, or writes memory that another one accesses.
        ``cluster``: how many consecutive blocks form a cluster, at most `max_cluster`. Where such a cluster does not
        fit on the device, ``otherwise`` records other launches in its place, with a recorder that has no clusters.
        """

    def fits(
        self,
        file: str,
        expression: str,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        shared: int = 0,
        prelude: str = "",
    ) -> bool:
        """Return whether all blocks of a cooperative launch can run at the same time."""

    def elementwise(self, maths: Elementwise | Chain, inputs: Sequence[Array], output: Array) -> None:
        """Compute an op, or a chain of them, over inputs that broadcast to the output."""

    def copy(self, source: Array, target: Array) -> None:
        """Copy ``source``, broadcast, into ``target`` of its dtype; both may have any strides.

        A source on the host is recorded by value, or uploaded now for a target of more than 1,600 elements.
        """

    def scratch(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return device memory of this step alone, for small results that one launch leaves to the next."""

    def table(self, values: np.ndarray[Any, Any]) -> Array:
        """Upload a table for the step's launches now, and return it on the device."""

    def gemm(self, a: Array, b: Array, out: Array, exact: bool = False) -> bool:
        """Compute ``out [..., M, N] = a [..., M, K] @ b [..., K, N]`` through cuBLAS; if ``exact``, never in TF32."""

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
        """Compute ``out = activation(a @ b + bias + residual)`` in one call of cuBLASLt; see `gemm`."""

    def convolve(self, c: Convolved) -> bool:
        """Compute a convolution through cuDNN."""

    def fft(self, source: Array, target: Array, axes: int, inverse: bool) -> bool:
        """Transform the last axes through cuFFT."""


def first_of(k: KernelRecorder, question: str, attempts: Mapping[str, Callable[[], bool]]) -> bool:
    """Call functions until one records its kernels and returns True; return False if none does. The chosen one
    comes first, see `KernelRecorder.choose`, then the others in their order."""
    chosen = k.choose(question, attempts) if len(attempts) > 1 else None
    return any(attempt() for attempt in sorted(attempts.values(), key=lambda attempt: attempt is not chosen))
