"""A Llama decoder with the shapes of Llama-3.2-1B as IR, with random weights stored as nncf stores them.

Random numbers are repeated at different offsets of one array, which serves as the .bin of the model: every constant
is a view of it, so that 1.24 G parameters are made in about a second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tests.harness.ir import Net, Port
from tests.harness.models.transformer import Sizes, _Writer, write_llama

Array = NDArray[Any]
Variant = Literal["f16", "int8", "int4", "int4_asym"]
Kind = Literal["f16", "u8", "i4", "u4"]

LLAMA_1B = Sizes(16, 2048, 32, 8192, 128256, 131072, shared=4)
TINY = Sizes(2, 256, 4, 384, 320, 4096, shared=2)
GROUP = 128  # 4-bit codes to a scale
STORED: dict[str, Kind] = {"f16": "f16", "int8": "u8", "int4": "i4", "int4_asym": "u4"}
HEADER_BYTES = 2 << 20  # for the constants that are not in a pool
CHUNK = 4_194_301  # random elements before they repeat; prime, so that no two rows of a matrix are equal
SLACK = 1 << 20  # elements: matrices begin at different offsets below it
ALIGNMENT = 64  # elements
SPREAD = {"u8": 40.0, "i4": 2.5, "u4": 2.5}  # standard deviation of codes
CENTRE = {"u8": 128, "i4": 0, "u4": 8}
RANGE = {"u8": (0, 255), "i4": (-8, 7), "u4": (0, 15)}


@dataclass(frozen=True)
class Stored:
    """A matrix [out, in] as the model stores it. Codes of 4 bits are bytes, the first code in the low bits.

    ``scale`` [out, groups] is f16; ``zero`` [out, groups] is of the kind of the codes.
    """

    kind: Kind
    shape: tuple[int, int]
    codes: Array
    scale: Array | None = None
    zero: Array | None = None

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.codes, self.scale, self.zero) if part is not None)


@dataclass(frozen=True, eq=False)
class Llama:
    """A model: its IR, its matrices [out, in] and the weights of its norms by torch's names."""

    variant: Variant
    sizes: Sizes
    ir: tuple[bytes, Array]
    matrices: dict[str, Stored]
    norms: dict[str, Array]

    @property
    def nbytes(self) -> int:
        """Bytes of weights that one token reads: the embedding is read once, as the head."""
        return sum(m.nbytes for m in self.matrices.values()) + sum(2 * n.size for n in self.norms.values())

    def cache_bytes(self, length: float) -> float:
        """Return the bytes of the keys and values of ``length`` tokens in f16."""
        sizes = self.sizes
        return 2 * 2 * sizes.layers * sizes.heads // sizes.shared * sizes.head * length

    def flops(self, tokens: int) -> float:
        """Return the operations of a prefill: products of all tokens, but of one in the head, and attention."""
        sizes = self.sizes
        products = sum(
            math.prod(m.shape) * (1 if name == "words.weight" else tokens) for name, m in self.matrices.items()
        )
        return 2.0 * products + 2.0 * sizes.layers * sizes.width * tokens * tokens


class Pools:
    """Random numbers of each kind of storage, in one array that serves as the .bin of a model."""

    def __init__(self, counts: dict[str, int], spread: float) -> None:
        """``counts``: elements of the largest constant of each pool; ``spread``: standard deviation of weights."""
        random = np.random.default_rng(11)
        self.begins: dict[str, int] = {}
        nbytes, chunks = HEADER_BYTES, dict[str, Array]()
        for name, count in counts.items():
            chunks[name] = chunk = _chunk(name, random, min(CHUNK, count + SLACK), spread)
            self.begins[name] = nbytes
            nbytes += -(-(count + SLACK) * chunk.itemsize // 4096) * 4096
        self.data = np.empty(nbytes, np.uint8)
        self.data[:HEADER_BYTES] = 0
        ends = [*list(self.begins.values())[1:], nbytes]
        for (name, begin), end in zip(self.begins.items(), ends):
            source, target = chunks[name].view(np.uint8), self.data[begin:end]
            for start in range(0, target.size, source.size):
                part = target[start : start + source.size]
                part[:] = source[: part.size]
        self.kinds = {name: chunk.dtype for name, chunk in chunks.items()}
        self.constants = 0

    def take(self, name: str, count: int) -> tuple[int, Array]:
        """Return the offset in bytes of a constant of ``count`` elements of a pool, and a view of it."""
        self.constants += 1
        start = self.constants * 40_503 % (SLACK // ALIGNMENT) * ALIGNMENT
        kind = self.kinds[name]
        begin = self.begins[name] + start * kind.itemsize
        return begin, self.data[begin : begin + count * kind.itemsize].view(kind)


def _chunk(name: str, random: np.random.Generator, count: int, spread: float) -> Array:
    """Return the numbers of a pool before they repeat; ``count`` is in bytes for a pool of 4-bit codes."""
    if name == "f16":
        return (random.standard_normal(count, np.float32) * np.float32(spread)).astype(np.float16)
    kind, _, part = name.partition(" ")
    if part == "scale":
        scale = np.float32(spread / SPREAD[kind])
        return (random.uniform(0.7, 1.3, count).astype(np.float32) * scale).astype(np.float16)
    codes = 2 * count if kind[1] == "4" else count
    width = SPREAD[kind] if part == "" else SPREAD[kind] / 10
    values = np.rint(random.standard_normal(codes, np.float32) * np.float32(width)) + CENTRE[kind]
    found: Array = np.clip(values, *RANGE[kind]).astype(np.int16).astype(np.uint8)
    return found if kind == "u8" else found[::2] & 15 | (found[1::2] & 15) << 4


class _Compressing(_Writer):
    """A writer whose matrices come from pools, compressed as nncf does."""

    def __init__(self, variant: Variant, sizes: Sizes) -> None:
        super().__init__(Net("llama"), np.random.default_rng(12))
        self.variant, self.matrices = variant, dict[str, Stored]()
        kind, table = STORED[variant], sizes.vocabulary * sizes.width
        large = max(sizes.inner * sizes.width, sizes.width * sizes.width)
        counts = (
            {"f16": table}
            if kind == "f16"
            else {"u8": table, "u8 scale": sizes.vocabulary, "u8 zero": sizes.vocabulary}
        )
        if kind[1] == "4":
            counts |= {kind: large // 2, f"{kind} scale": large // GROUP}
        if kind == "u4":
            counts |= {"u4 zero": large // GROUP // 2}
        self.pools = Pools(counts, sizes.width**-0.5)

    def weight(self, name: str, *shape: int, mean: float = 0.0, like: tuple[int, ...] = ()) -> Port:
        """Add a constant, decompressed to f32 if it is a matrix."""
        if len(shape) != 2:
            return super().weight(name, *shape, mean=mean, like=like)
        kind = STORED[self.variant]
        if kind != "f16" and name == "words.weight":
            kind = "u8"
        out, of = shape
        if kind == "f16":
            port, codes = self._constant("f16", "f16", shape, out * of)
            self.matrices[name] = Stored(kind, (out, of), codes)
            return self._converted(port, "f32")
        packed, groups = kind[1] == "4", of // GROUP if kind[1] == "4" else 1
        extents: tuple[int, ...] = (out, groups, GROUP) if packed else (out, of)
        terms = (*extents[:-1], 1)
        port, codes = self._constant(kind, kind, extents, out * of // (1 + packed))
        port, zero = self._converted(port, "f16"), None
        if kind[0] == "u":
            term, zero = self._constant(f"{kind} zero", kind, terms, out * groups // (1 + packed))
            port = self("Subtract", [port, self._converted(term, "f16")], auto_broadcast="numpy")
        term, scale = self._constant(f"{kind} scale", "f16", terms, out * groups)
        port = self("Multiply", [port, term], auto_broadcast="numpy")
        if packed:
            port = self.reshape(port, self.i64(out, of), False)
        self.matrices[name] = Stored(kind, (out, of), codes, scale, zero)
        return self._converted(port, "f32")

    def _constant(self, pool: str, kind: str, shape: tuple[int, ...], count: int) -> tuple[Port, Array]:
        offset, view = self.pools.take(pool, count)
        attrs = {"element_type": kind, "shape": ",".join(map(str, shape)), "offset": offset, "size": view.nbytes}
        port: Port = self.net.layer("Const", "opset1", [], attrs, [kind])
        return port, view

    def _converted(self, port: Port, kind: str) -> Port:
        return self("Convert", [port], kind=kind, destination_type=kind)


def build(variant: Variant, sizes: Sizes = LLAMA_1B) -> Llama:
    """Return a stateful Llama decoder like `transformer.llama` of the tests, with logits of the last token only."""
    w = _Compressing(variant, sizes)
    write_llama(w, sizes, tied=True)
    xml, header = w.net.build()
    if len(header) > HEADER_BYTES:
        raise ValueError(f"{len(header)} bytes of constants do not fit {HEADER_BYTES}")
    w.pools.data[: len(header)] = np.frombuffer(header, np.uint8)
    return Llama(variant, sizes, (xml, w.pools.data), w.matrices, w.weights)


def llama_ir(variant: Variant, sizes: Sizes = LLAMA_1B) -> tuple[bytes, Array]:
    """Return the XML and the weights for `ovgpu.Core.read_model`, which reads the array in place."""
    return build(variant, sizes).ir


class Caches:
    """Random keys and values, of standard deviation 1, that f16 holds exactly."""

    def __init__(self, sizes: Sizes, longest: int) -> None:
        self.sizes = sizes
        random = np.random.default_rng(13)
        count = sizes.heads // sizes.shared * longest * sizes.head
        self.numbers = np.resize(
            random.standard_normal(min(count, CHUNK), np.float32).astype(np.float16), count + SLACK
        )

    def of(self, layer: int, part: str, length: int) -> Array:
        """Return keys or values [1, heads, length, head] of a layer in f16."""
        shape = 1, self.sizes.heads // self.sizes.shared, length, self.sizes.head
        start = (2 * layer + (part == "value")) * 9973 % SLACK
        return self.numbers[start : start + math.prod(shape)].reshape(shape)
