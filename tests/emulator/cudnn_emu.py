"""nvidia-cudnn-frontend on the host: graphs of a convolution followed by sums and a Relu, as the backend builds and
runs them.

Argument names and order are the frontend's; arguments whose names differ between its versions are positional-only.
The heuristics list engines with intermediate rounding first, so that a caller who accepts them gets inexact results."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from .array_ops import View, device_view
from .blas_emu import round_to_tf32
from .memory import check_span
from .stream import enqueue, find_stream, refuse_while_capturing

__version__ = "1.28.0"
ALIGNMENT_BYTES = 16  # alignment of tensors that kernels read


class data_type(Enum):
    NOT_SET, FLOAT, DOUBLE, HALF, BFLOAT16 = range(5)


class heur_mode(Enum):
    A, B, FALLBACK = range(3)


class numerical_note(Enum):
    TENSOR_CORE = auto()
    DOWN_CONVERT_INPUTS = auto()
    REDUCED_PRECISION_REDUCTION = auto()
    FFT = auto()
    NONDETERMINISTIC = auto()
    WINOGRAD = auto()


class cudnnGraphNotSupportedError(Exception):
    """No engine computes the graph."""


DTYPES = {data_type.FLOAT: np.dtype(np.float32), data_type.HALF: np.dtype(np.float16),
          data_type.BFLOAT16: np.dtype(ml_dtypes.bfloat16)}  # fmt: skip


def backend_version() -> int:
    return 91200


def backend_version_string() -> str:
    return "9.12.0"


# ---- handles ---------------------------------------------------------------------------------------------
_streams: dict[int, int] = {}
_next_handle = itertools.count(0x7100_0000, 0x40)


def create_handle() -> int:
    refuse_while_capturing("cudnnCreate")
    handle = next(_next_handle)
    _streams[handle] = 0
    return handle


def set_stream(handle: int, stream: int) -> None:
    find_stream(stream)
    _streams[_checked_handle(handle)] = stream


def _checked_handle(handle: int) -> int:
    if handle not in _streams:
        raise RuntimeError(f"CUDNN_STATUS_BAD_PARAM: no handle {handle:#x}")
    return handle


# ---- graphs ----------------------------------------------------------------------------------------------
class Tensor:
    """Description of a tensor in a graph; strides count elements."""

    def __init__(self, dim: Sequence[int], stride: Sequence[int], data_type: data_type, uid: int) -> None:
        self.dim, self.stride, self.data_type, self.uid = tuple(dim), tuple(stride), data_type, uid
        self.output = False

    def set_uid(self, uid: int) -> Tensor:
        self.uid = uid
        return self

    def set_output(self, value: bool) -> Tensor:
        self.output = value
        return self

    def set_data_type(self, data_type: data_type) -> Tensor:
        self.data_type = data_type
        return self

    def set_dim(self, dim: Sequence[int]) -> Tensor:
        self.dim = tuple(dim)
        return self

    def set_stride(self, stride: Sequence[int]) -> Tensor:
        self.stride = tuple(stride)
        return self

    def view(self, ptr: int) -> View:
        kind = DTYPES[self.data_type]
        return View(ptr, self.dim, tuple(s * kind.itemsize for s in self.stride), kind)


@dataclass(frozen=True)
class Engine:
    """An engine: its numerical notes and the size of its workspace."""

    notes: frozenset[numerical_note]
    nbytes: int


@dataclass(frozen=True)
class Convolution:
    """A convolution node. The kernel slides over ``whole``; ``sparse`` has one element per position of the kernel."""

    whole: Tensor
    kernel: Tensor
    sparse: Tensor
    begin: tuple[int, ...]
    end: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.whole, self.kernel, self.sparse

    @property
    def out(self) -> Tensor:
        return self.whole if self.transposed else self.sparse

    def infer(self) -> None:
        """Infer the shape and strides of a result that has no description, as the frontend does."""
        if not self.out.dim and not self.transposed:
            self.out.dim = (self.whole.dim[0], self.kernel.dim[0], *self.positions)
            self.out.stride = tuple(prod(self.out.dim[axis + 1 :]) for axis in range(len(self.out.dim)))

    @property
    def positions(self) -> list[int]:
        """The number of positions of the kernel along each spatial axis."""
        reach = [(taps - 1) * d + 1 for taps, d in zip(self.kernel.dim[2:], self.dilation)]
        return [(n + b + e - r) // s + 1 for n, b, e, r, s in zip(
            self.whole.dim[2:], self.begin, self.end, reach, self.stride)]  # fmt: skip

    def finalize(self) -> None:
        """Check the node as the library does. Raise RuntimeError if it is invalid."""
        ranks = {len(t.dim) for t in self.tensors}
        if len(ranks) != 1 or not ranks <= {4, 5}:
            raise RuntimeError(f"CUDNN_STATUS_BAD_PARAM: tensors of {sorted(ranks)} axes")
        if any(min(t.dim) < 1 or min(t.stride) < 1 for t in self.tensors):
            raise RuntimeError("CUDNN_STATUS_BAD_PARAM: extents and strides are positive")
        axes = min(ranks) - 2
        if any(len(n) != axes for n in (self.begin, self.end, self.stride, self.dilation)) or min(
            *self.begin, *self.end
        ) < 0 or min(*self.stride, *self.dilation) < 1:  # fmt: skip
            raise RuntimeError("CUDNN_STATUS_BAD_PARAM: a convolution's numbers")
        outputs, channels = self.kernel.dim[:2]
        expected = (self.whole.dim[0], outputs, *self.positions)
        groups, rest = divmod(self.whole.dim[1], channels)
        if self.sparse.dim != expected or rest or outputs % groups:
            raise RuntimeError(f"CUDNN_STATUS_BAD_PARAM: {self.sparse.dim} is not {expected}")

    def engines(self, kind: data_type) -> list[Engine]:
        """Return the engines for an output of this type, in the order that the heuristics give."""
        notes, nbytes = numerical_note, 256 + 4 * prod(self.whole.dim)
        kinds = [{notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS}, {notes.TENSOR_CORE}, set[numerical_note]()]
        if kind != data_type.FLOAT:
            kinds = [{notes.TENSOR_CORE, notes.REDUCED_PRECISION_REDUCTION}, {notes.TENSOR_CORE}]
        kinds = [*({*kind, notes.NONDETERMINISTIC} for kind in kinds), *kinds]
        return [Engine(frozenset(kind), nbytes) for kind in kinds]


@dataclass(frozen=True)
class Pointwise:
    """A pointwise node after a convolution: the sum with a tensor that broadcasts, or a Relu if there is none."""

    given: Tensor
    other: Tensor | None
    out: Tensor

    def finalize(self) -> None:
        shape, other = self.given.dim, self.given.dim if self.other is None else self.other.dim
        if len(other) != len(shape) or any(n not in (1, m) for n, m in zip(other, shape)) or self.out.dim != shape:
            raise RuntimeError(f"CUDNN_STATUS_BAD_PARAM: {other} and {shape} do not give {self.out.dim}")


def is_conv_bias_act(epilogue: Sequence[Pointwise]) -> bool:
    """Return whether precompiled engines support the nodes after a convolution: [+ tensor] + bias [, Relu]."""
    biased = [node.other is not None and node.other.dim[0] == 1 == prod(node.other.dim[2:]) for node in epilogue]
    kinds = "".join("r" if node.other is None else "b" if bias else "z" for node, bias in zip(epilogue, biased))
    return re.fullmatch("[zb]?br?", kinds) is not None


class pygraph:
    """A graph; its methods must be called in the order that the frontend requires."""

    def __init__(
        self, name: str = "test_graph", io_data_type: data_type = data_type.NOT_SET,
        intermediate_data_type: data_type = data_type.NOT_SET, compute_data_type: data_type = data_type.NOT_SET,
        handle: int | None = None,
    ) -> None:  # fmt: skip
        self._handle = handle
        self._inner_type = intermediate_data_type
        self._tensors: list[Tensor] = []
        self._nodes: list[Convolution] = []
        self._epilogue: list[Pointwise] = []
        self._done = 0
        self._engines: list[Engine] = []

    def tensor(self, dim: Sequence[int], stride: Sequence[int], data_type: data_type = data_type.NOT_SET,
               is_virtual: bool = False, is_pass_by_value: bool = False, ragged_offset: None = None,
               reordering_type: None = None, name: str = "", uid: int = -1) -> Tensor:  # fmt: skip
        if len(dim) != len(stride):
            raise ValueError(f"Tensor '{name}' does not equal dimensionality in dim and stride.")
        self._tensors.append(Tensor(dim, stride, data_type, uid))
        return self._tensors[-1]

    def conv_fprop(self, image: Tensor, weight: Tensor, pre_padding: Sequence[int] = (),
                   post_padding: Sequence[int] = (), stride: Sequence[int] = (), dilation: Sequence[int] = (),
                   compute_data_type: data_type = data_type.NOT_SET, name: str = "") -> Tensor:  # fmt: skip
        out = Tensor((), (), data_type.NOT_SET, -1)
        return self._convolution(out, (image, weight, out), (pre_padding, post_padding, stride, dilation),
                                 compute_data_type)  # fmt: skip

    def conv_dgrad(self, loss: Tensor, filter: Tensor, pre_padding: Sequence[int] = (),
                   post_padding: Sequence[int] = (), stride: Sequence[int] = (), dilation: Sequence[int] = (),
                   compute_data_type: data_type = data_type.NOT_SET, name: str = "") -> Tensor:  # fmt: skip
        out = Tensor((), (), data_type.NOT_SET, -1)
        return self._convolution(out, (out, filter, loss), (pre_padding, post_padding, stride, dilation),
                                 compute_data_type)  # fmt: skip

    def _convolution(self, out: Tensor, tensors: Sequence[Tensor], numbers: Sequence[Sequence[int]],
                     compute: data_type) -> Tensor:  # fmt: skip
        assert compute == data_type.FLOAT, "the emulator sums in f32"
        self._tensors.append(out)
        begin, end, stride, dilation = map(tuple, numbers)
        self._nodes.append(Convolution(*tensors, begin, end, stride, dilation, out is tensors[0]))
        return out

    def add(self, a: Tensor, b: Tensor, compute_data_type: data_type = data_type.NOT_SET, name: str = "") -> Tensor:
        return self._pointwise(a, b, compute_data_type)

    def bias(self, input: Tensor, bias: Tensor, compute_data_type: data_type = data_type.NOT_SET,
             name: str = "") -> Tensor:  # fmt: skip
        return self._pointwise(input, bias, compute_data_type)

    def relu(self, input: Tensor, negative_slope: float | None = None, lower_clip: float | None = None,
             upper_clip: float | None = None, compute_data_type: data_type = data_type.NOT_SET,
             name: str = "") -> Tensor:  # fmt: skip
        assert (negative_slope, lower_clip, upper_clip) == (None, None, None), "the emulator knows plain ones"
        return self._pointwise(input, None, compute_data_type)

    def _pointwise(self, given: Tensor, other: Tensor | None, compute: data_type) -> Tensor:
        assert compute == data_type.FLOAT, "the emulator computes in f32"
        assert given is (self._epilogue or self._nodes)[-1].out, "the emulator knows chains"
        self._tensors.append(Tensor((), (), data_type.NOT_SET, -1))
        self._epilogue.append(Pointwise(given, other, self._tensors[-1]))
        return self._tensors[-1]

    @property
    def _inner(self) -> list[Tensor]:
        """The results that are not written to memory."""
        return [node.out for node in (*self._nodes, *self._epilogue)][:-1]

    def _advance(self, number: int, name: str) -> None:
        if self._done != number - 1:
            raise RuntimeError(f"{name} comes after {self._done} of the steps")
        self._done = number

    def validate(self) -> None:
        self._advance(1, "validate")
        (node,) = self._nodes
        if not all((node.begin, node.end, node.stride, node.dilation)):
            raise ValueError("Pre padding not set.")
        if node.transposed and not node.out.dim:
            raise ValueError("For dgrad node, output dimension inferencing is not possible.")
        node.infer()
        for inner in self._inner:
            assert self._inner_type == data_type.FLOAT and not inner.output, "the emulator rounds nothing in between"
        for each in self._epilogue[:-1]:
            each.out.dim = node.out.dim
        out = (self._epilogue or self._nodes)[-1].out
        if not (out.dim and out.stride and out.output):
            raise NotImplementedError("the emulator infers no results that are written")

    def build_operation_graph(self) -> None:
        self._advance(2, "build_operation_graph")
        refuse_while_capturing("building a graph")
        _checked_handle(self._handle or 0)
        for node in (*self._nodes, *self._epilogue):
            node.finalize()

    def create_execution_plans(self, heuristics: Sequence[heur_mode], /) -> None:
        self._advance(3, "create_execution_plans")
        self._engines = self._nodes[0].engines((self._epilogue or self._nodes)[-1].out.data_type)
        if self._epilogue and not is_conv_bias_act(self._epilogue):  # others are fused at run time, for tensor cores
            self._engines = [e for e in self._engines if numerical_note.TENSOR_CORE in e.notes]

    def deselect_numeric_notes(self, notes: Sequence[numerical_note], /) -> None:
        self._set_engines([e for e in self._engines if not e.notes.intersection(notes)])

    def deselect_workspace_greater_than(self, workspace_limit: int, /) -> None:
        self._set_engines([e for e in self._engines if e.nbytes <= workspace_limit])

    def _set_engines(self, engines: list[Engine]) -> None:
        if self._done != 3:
            raise RuntimeError("there are no plans, or they are built")
        self._engines = engines

    def check_support(self) -> None:
        self._advance(4, "check_support")
        if not self._engines:
            raise cudnnGraphNotSupportedError("No execution plans support the graph.")

    def build_plans(self) -> None:
        self._advance(5, "build_plans")
        refuse_while_capturing("building a plan")

    def get_workspace_size(self) -> int:
        self._require_plan()
        return self._engines[0].nbytes

    def _require_plan(self) -> None:
        if self._done != 5:
            raise RuntimeError("No plan is built.")

    def execute(self, tensor_to_device_buffer: dict[int, int], workspace: int, handle: int | None = None, /) -> None:
        self._require_plan()
        node, engine = self._nodes[0], self._engines[0]
        stream = find_stream(_streams[_checked_handle(handle or self._handle or 0)])
        if {t.uid for t in self._tensors if t not in self._inner} != set(tensor_to_device_buffer):
            raise ValueError(f"uids {sorted(tensor_to_device_buffer)} are not those of the graph's tensors")
        for address in tensor_to_device_buffer.values():
            if type(address) is not int or address % ALIGNMENT_BYTES:
                raise RuntimeError(f"CUDNN_STATUS_EXECUTION_FAILED: misaligned address {address!r}")
        if not workspace and engine.nbytes:
            raise RuntimeError("CUDNN_STATUS_BAD_PARAM: no workspace")
        out = (self._epilogue or self._nodes)[-1].out
        addresses = [tensor_to_device_buffer[(out if t is node.out else t).uid] for t in node.tensors]
        others = [tensor_to_device_buffer[p.other.uid] for p in self._epilogue if p.other is not None]
        enqueue(Node(node, engine, *addresses, workspace, (*self._epilogue,), (*others,)), stream, count=True)


# ---- what a plan computes --------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Node:
    """An execution as a captured graph records it."""

    convolution: Convolution
    engine: Engine
    whole: int
    kernel: int
    sparse: int
    workspace: int
    epilogue: tuple[Pointwise, ...] = ()
    others: tuple[int, ...] = ()

    def accesses(self) -> tuple[list[int], list[int]]:
        x, y = (self.sparse, self.whole) if self.convolution.transposed else (self.whole, self.sparse)
        return [x, self.kernel, *self.others], [y, self.workspace]

    def run(self) -> None:
        c = self.convolution
        check_span(self.workspace, self.engine.nbytes, "cuDNN workspace")
        out = self.epilogue[-1].out if self.epilogue else c.out
        views = [(out if t is c.out else t).view(ptr)
                 for t, ptr in zip(c.tensors, (self.whole, self.kernel, self.sparse))]  # fmt: skip
        whole, kernel, sparse = map(device_view, views)
        groups = c.whole.dim[1] // c.kernel.dim[1]
        frame = np.zeros((*c.whole.dim[:2], *np.add(c.whole.dim[2:], c.begin) + c.end), np.float32)
        inside = frame[(..., *(slice(b, b + n) for b, n in zip(c.begin, c.whole.dim[2:])))]
        frame_of_groups = frame.reshape(len(frame), groups, -1, *frame.shape[2:])
        weights = self.rounded(kernel).reshape(groups, -1, *kernel.shape[1:])
        positions = sparse.shape[2:]
        if c.transposed:
            columns = self.rounded(sparse).reshape(len(sparse), groups, -1, prod(positions))
        else:
            inside[...] = self.rounded(whole)
            columns = np.zeros((len(sparse), groups, weights.shape[1], prod(positions)), np.float32)
        with np.errstate(all="ignore"):
            for tap in np.ndindex(*kernel.shape[2:]):
                reads = frame_of_groups[
                    (
                        ...,
                        *(
                            slice(t * d, t * d + (n - 1) * s + 1, s)
                            for t, d, n, s in zip(tap, c.dilation, positions, c.stride)
                        ),
                    )
                ]
                matrices = weights[(..., *tap)]
                if c.transposed:
                    reads += self.summed(matrices.swapaxes(1, 2) @ columns).reshape(reads.shape)
                else:
                    columns += self.summed(matrices @ reads.reshape(*reads.shape[:3], -1))
            if c.transposed:
                whole[...] = self.with_epilogue(inside).astype(whole.dtype)
            else:
                sparse[...] = self.with_epilogue(columns.reshape(sparse.shape)).astype(sparse.dtype)

    def with_epilogue(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return `x` after the epilogue, in f32."""
        others = iter(self.others)
        for node in self.epilogue:
            if node.other is None:
                x = np.fmax(x, np.float32(0))  # the library's default: NaN becomes 0
            else:
                x = x + device_view(node.other.view(next(others))).astype(np.float32)
        return x

    def rounded(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return factors as the engine's units read them."""
        tf32 = x.dtype == np.float32 and numerical_note.TENSOR_CORE in self.engine.notes
        return round_to_tf32(x) if tf32 else x.astype(np.float32)

    def summed(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return products as the engine accumulates them."""
        coarse = numerical_note.REDUCED_PRECISION_REDUCTION in self.engine.notes
        return x.astype(ml_dtypes.bfloat16).astype(np.float32) if coarse else x
