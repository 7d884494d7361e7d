"""Arrays, sizes and strides that CUDA kernels of attention take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod, sqrt
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.strided import Axes, reciprocal, strides_of
from ovgpu.ops.fused.kv_cache import table_tokens
from ovgpu.ops.fused.stored_tokens import U8
from ovgpu.ops.quantization import Codes

MARGIN = 64  # the most rows behind the last row of q to which kernels compute indices
Strides = tuple[int, ...]


@dataclass(frozen=True)
class NewToken:
    """Key and value of a decode step's token, which the kernel appends to the caches before it computes attention:
    ``key`` [..., 1, E], ``value`` [..., 1, Ev]. The kernel first rotates key and queries by the factors ``cos`` and
    ``sin`` [..., 1, E or E / 2]; each element of the first half is paired with one of the second half."""

    key: Array
    value: Array
    cos: Array
    sin: Array

    @property
    def arrays(self) -> tuple[Array, ...]:
        return self.key, self.value, self.cos, self.sin

    def fit(self, queries: int, others: Sequence[Array]) -> bool:
        """Return whether the kernel takes these arrays and ``others``, which are q, k and v, with ``queries`` queries
        per head."""
        arrays, depth = (*self.arrays, *others), self.key.shape[-1]
        types = {x.dtype for x in arrays}
        return (
            queries == self.key.shape[-2] == 1
            and depth % 64 == 0
            and all(map(has_unit_stride, arrays))
            and (types == {self.key.dtype} or types == {self.key.dtype, U8})
            and _vector_elements(self.arrays[2:], (), [strides_of(x) for x in self.arrays[2:]]) > 1
        )


@dataclass(frozen=True)
class Operands:
    """Operands of a kernel. ``batch`` has the extents of the axes of batches and heads.

    ``strides`` has the strides in elements (*batch, row, column) of q, k, v, mask, sink and out, then those of the
    arrays of ``new_token``, or of the factor of ``codes``, then those of ``table``. They are 0 where an array is
    broadcast or absent. ``rows`` is the number of rows of q per index of the batch: the ``queries`` of one head, or of
    several heads that share their keys. ``apart`` has the strides between these heads in q, mask, sink and out.
    ``length`` [1], on the device, is the number of keys that are attended to; None stands for all keys. With ``table``,
    a table of pages (`ovgpu.ops.fused.kv_cache`), ``key`` and ``value`` are pools. ``keys`` is the most keys that a row
    of q attends to.
    """

    q: Array
    key: Array
    value: Array
    mask: Array | None
    scale: Array | None
    sink: Array | None
    out: Array
    causal: bool
    length: Array | None
    new_token: NewToken | None
    codes: Codes | None
    table: Array | None
    batch: tuple[int, ...]
    strides: tuple[Strides, ...]
    queries: int
    rows: int
    keys: int
    apart: Strides = (0,) * 4

    @staticmethod
    def of(
        inputs: Sequence[Any],
        out: Array,
        causal: bool,
        length: Array | None,
        new_token: NewToken | None,
        codes: Codes | None,
        table: Array | None,
    ) -> Operands:
        q, key, value, mask, scale, sink = inputs
        batch, queries = out.shape[:-2], out.shape[-2]
        keys = key.shape[-2] if table is None else table_tokens(table.shape)
        shapes: list[tuple[Array | None, Sequence[int]]] = [
            (q, (queries, q.shape[-1])),
            (_page(key, table), key.shape[-2:]),
            (_page(value, table), value.shape[-2:]),
            (mask, (queries, keys)),
            (sink, (queries, 1)),
            (out, out.shape[-2:]),
            *((x, x.shape[-2:]) for x in (new_token.arrays if new_token else ())),
        ]
        if codes is not None:
            shapes.append((codes.factor, (1, out.shape[-1])))
        strides = tuple(
            (0,) * (len(batch) + 2) if x is None else strides_of(x, (*batch, *matrix)) for x, matrix in shapes
        )
        if table is not None:
            strides = (*strides, (strides_of(table)[0], *(0,) * (len(batch) + 1)))
        return Operands(
            q,
            key,
            value,
            mask,
            scale,
            sink,
            out,
            causal,
            length,
            new_token,
            codes,
            table,
            batch,
            strides,
            queries,
            queries,
            keys,
        )

    @property
    def sharing(self) -> int:
        """The number of neighbouring heads that share their keys, and the factor of the codes if there is one."""
        if not self.batch or self.causal or any(s[-3] for s in (*self.strides[1:3], *self.strides[6:])):
            return 1
        return self.batch[-1]

    def with_heads_as_queries(self) -> Operands:
        """Return operands in which the heads, with one query each, are queries of one head (multi-query attention)."""
        strides = tuple((*s[:-3], 0, s[-3], s[-1]) if i in (0, 3, 4, 5) else s for i, s in enumerate(self.strides))
        return replace(self, batch=(*self.batch[:-1], 1), strides=strides, queries=self.sharing, rows=self.sharing)

    def grouped(self, tile: int) -> Operands:
        """Return operands in which the rows of heads that share their keys are rows of one head, or these operands
        unless that takes fewer tiles of ``tile`` rows, and indices of 32 bits suffice."""
        rows = self.sharing * self.queries
        if -(-rows // tile) >= self.sharing * -(-self.queries // tile):
            return self
        merged = replace(
            self, batch=(*self.batch[:-1], 1), rows=rows, apart=tuple(self.strides[i][-3] for i in (0, 3, 4, 5))
        )
        return merged if merged.axes.rank and merged.axes.index == "int" else self

    @cached_property
    def axes(self) -> Axes:
        """The batch axes, with their strides in all operands."""
        reach = max(abs(s[-2]) * max(self.keys, self.queries + MARGIN) + abs(s[-1]) * self.keys for s in self.strides)
        return Axes.collapse(
            self.batch,
            *(s[:-2] for s in self.strides),
            reach=reach + self.rows // self.queries * max(map(abs, self.apart)),
        )

    @property
    def depth(self) -> int:
        """The number of elements of a query, and of a key."""
        return int(self.q.shape[-1])

    @property
    def width(self) -> int:
        """The number of elements of a value, and of a row of out."""
        return int(self.out.shape[-1])

    @property
    def is_stored(self) -> bool:
        """True if keys and values are stored in another type than that of q (`ovgpu.ops.fused.stored_tokens`)."""
        return bool(self.key.dtype != self.q.dtype)

    @cached_property
    def vector(self) -> int:
        """The number of elements per access to q, k and v: 16 bytes of q if sizes and addresses allow it, else 1."""
        extents = (self.depth, self.width, *self._page_strides)
        return _vector_elements((self.q, self.key, self.value), extents, self.strides[:3])

    @property
    def _page_strides(self) -> Strides:
        """The strides in elements between pages of keys, and between those of values."""
        return (0, 0) if self.table is None else (strides_of(self.key)[0], strides_of(self.value)[0])

    def template(self, k: KernelRecorder, *arguments: Any) -> str:
        """Return the last template arguments of a kernel: ``arguments``, PAGED and the type in which keys and values
        are stored; those that have their defaults are left out."""
        paged, stored = self.table is not None, self.is_stored
        texts = [*map(str, arguments), *[str(paged).lower()] * (paged or stored)]
        return ", ".join([*texts, *[k.c_type(self.key.dtype)] * stored])

    @property
    def writes_pairs(self) -> bool:
        """True if each pair of neighbouring elements of a row of out is aligned to the size of a pair."""
        return not any(n % 2 for n in self.strides[5][:-1]) and not self.out.data.ptr % (2 * self.out.dtype.itemsize)

    @property
    def mask_rows(self) -> int:
        """The number of rows of the mask per index of the batch: none, one that all rows of q share, or one for
        each."""
        if self.mask is None or self.causal:
            return 0
        return self.rows if self.strides[3][-2] or self.apart[1] else 1

    def heads(self) -> np.ndarray[Any, Any]:
        """Return the struct Heads of the kernels on tensor cores."""
        return np.array([self.queries, *reciprocal(self.queries), *self.apart], np.int64).astype(np.int32)

    def kernel(self, k: KernelRecorder) -> str:
        """Return the first template arguments of all kernels: the element type, and the kind of mask."""
        mask = "NONE" if self.mask is None else "BOOLEAN" if self.mask.dtype == bool else "ADDED"
        return f"{k.c_type(self.q.dtype)}, {'CAUSAL' if self.causal else mask}"

    def question(self) -> str:
        """Return what distinguishes this attention for `KernelRecorder.choose`: element type, sizes and mask. Numbers
        of keys are rounded up to a power of two, so that all up to it share an answer."""
        mask = "causal" if self.causal else "no mask" if self.mask is None else f"mask of {self.mask.dtype}"
        keys = 1 << (self.keys - 1).bit_length()
        return (
            f"attention {self.q.dtype}: {prod(self.batch) // self.sharing} x {self.sharing} x {self.queries} "
            f"queries, {keys} keys, {self.depth} and {self.width} wide, {mask}"
        )

    def arguments(self) -> tuple[Any, ...]:
        """Return the first arguments of all kernels."""
        numbers = self.axes.numbers(self.rows, self.keys, self.depth, self.width)
        rows = [s[-2] for s in self.strides[:6]]
        strides = np.array([*rows, self.strides[3][-1], *self._page_strides], numbers[0].dtype)
        scalar = np.float64 if self.q.dtype == np.float64 else np.float32
        return (
            self.q,
            self.key,
            self.value,
            self.mask,
            self.scale,
            self.sink,
            self.out,
            self.axes.packed(),
            strides,
            *numbers,
            scalar(1 / sqrt(max(self.depth, 1))),
            self.length if self.table is None else self.table,
        )

    def code_arguments(self) -> tuple[Any, Any]:
        return (None, np.zeros(4, np.int32)) if self.codes is None else self.codes.arguments()


def _page(x: Array, table: Array | None) -> Array:
    """Return keys or values: those of one page for all sequences, if they lie in pages."""
    return x if table is None else x[:1]


def has_unit_stride(x: Array) -> bool:
    """Return whether rows have a unit stride."""
    return bool(x.shape[-1] == 1 or x.strides[-1] == x.dtype.itemsize)


def _vector_elements(arrays: Sequence[Array], extents: Sequence[int], strides: Sequence[Strides]) -> int:
    vector = 16 // arrays[0].dtype.itemsize
    counts = (*extents, *(n for s in strides for n in s[:-1]))
    misaligned = any(x.data.ptr % (vector * x.dtype.itemsize) for x in arrays)
    return 1 if misaligned or any(n % vector for n in counts) else vector
