"""BERT, GPT-2 and Llama with random weights, op for op as optimum-intel exports them, but built without it.

They serve machines without openvino and torch, and sizes that are not worth storing on disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.harness.ir import Net, Port

Array = NDArray[Any]
Weights = dict[str, Array]


@dataclass(frozen=True)
class Sizes:
    layers: int
    width: int
    heads: int
    inner: int
    vocabulary: int
    positions: int
    shared: int = 1  # query heads per key-value head

    @property
    def head(self) -> int:
        return self.width // self.heads


BERT_BASE = Sizes(12, 768, 12, 3072, 30522, 512)
GPT2_SMALL = Sizes(12, 768, 12, 3072, 50257, 1024)


@dataclass(frozen=True)
class Transformer:
    """IR (XML and weights), and its weights by torch's names, with matrices as [out, in]."""

    ir: tuple[bytes, bytes]
    weights: Weights
    sizes: Sizes


@dataclass
class _Writer:
    """Net in progress, and the random weights of its constants."""

    net: Net
    random: np.random.Generator
    weights: Weights = field(default_factory=dict)

    def __call__(self, type: str, inputs: list[Port], version: int = 1, kind: str | None = None, **attrs: Any) -> Port:
        port: Port = self.net.layer(type, f"opset{version}", inputs, attrs, [kind or inputs[0].type])
        return port

    def weight(self, name: str, *shape: int, mean: float = 0.0, like: tuple[int, ...] = ()) -> Port:
        """Add a constant of random numbers, reshaped to ``like`` in the net."""
        scale = shape[-1] ** -0.5 if len(shape) > 1 else 0.1
        array = self.random.standard_normal(shape, np.float32) * np.float32(scale) + np.float32(mean)
        self.weights[name] = array
        return self.net.const(array.reshape(like or shape))

    def i64(self, *values: int) -> Port:
        return self.net.const(np.array(values, np.int64))

    def number(self, value: int, kind: str = "i64") -> Port:
        return self.net.const(value, kind)

    def embedding(self, name: str, rows: int, width: int, indices: Port) -> tuple[Port, Port]:
        """Look up rows of a table. Returns the rows and the table."""
        table = self.weight(f"{name}.weight", rows, width)
        picked = self("Convert", [indices], kind="i32", destination_type="i32")
        return self("Gather", [table, picked, self.number(0, "i32")], 8, batch_dims=0), table

    def norm(self, name: str, x: Port, width: int, eps: float) -> Port:
        attrs = {"eps": eps, "normalize_variance": True, "eps_mode": "INSIDE_SQRT"}
        y = self("MVN", [x, self.net.const(np.array([-1], np.int32))], 6, **attrs)
        y = self.add(y, self.weight(f"{name}.weight", width, mean=1.0, like=(1, 1, width)), "Multiply")
        return self.add(y, self.weight(f"{name}.bias", width, like=(1, 1, width)))

    def rms(self, name: str, x: Port, width: int) -> Port:
        one, two, eps = (self.net.const(np.full((1, 1, 1), v, np.float32)) for v in (1, 2, 1e-6))
        mean = self("ReduceMean", [self.add(x, two, "Power"), self.i64(-1)], keep_dims=True)
        root = self("Sqrt", [self.add(mean, eps)])
        y = self.add(x, self("Divide", [one, root], auto_broadcast="numpy", m_pythondiv=True), "Multiply")
        return self.add(self.weight(f"{name}.weight", width, mean=1.0, like=(1, 1, width)), y, "Multiply")

    def add(self, a: Port, b: Port, op: str = "Add", version: int = 1) -> Port:
        return self(op, [a, b], version, auto_broadcast="numpy")

    def matmul(self, a: Port, b: Port) -> Port:
        return self("MatMul", [a, b], transpose_a=False, transpose_b=True)

    def reshape(self, x: Port, shape: Port, special_zero: bool) -> Port:
        return self("Reshape", [x, shape], special_zero=special_zero)

    def swapped_axes(self, x: Port) -> Port:
        return self("Transpose", [x, self.net.const(np.array([0, 2, 1, 3], np.int32))])

    def split_heads(self, x: Port, sizes: Sizes) -> Port:
        return self.swapped_axes(self.reshape(x, self.i64(0, 0, sizes.heads, sizes.head), True))

    def attention(self, query: Port, key: Port, value: Port, mask: Port, sizes: Sizes) -> Port:
        """Add attention, with a result [batch, queries, width]."""
        scale = self.net.const(np.float32(sizes.head**-0.5))
        y = self("ScaledDotProductAttention", [query, key, value, mask, scale], 13, causal=False)
        return self.reshape(self.swapped_axes(y), self.i64(0, 0, sizes.width), True)

    # ---- parts of the exported attention masks

    def shape_of(self, x: Port, kind: str = "i64") -> Port:
        return self("ShapeOf", [x], 3, kind, output_type=kind)

    def item(self, x: Port, index: int) -> Port:
        """Return an element of a vector, as a vector."""
        return self("Gather", [x, self.i64(index), self.number(0)], 8, batch_dims=0)

    def scalar(self, x: Port, index: int) -> Port:
        """Return an element of a vector, as a scalar."""
        return self("Gather", [x, self.number(index), self.number(0)], 8, batch_dims=0)

    def range(self, start: Port, stop: Port) -> Port:
        return self("Range", [start, stop, self.number(1, "i32")], 4, "i64", output_type="i64")

    def unsqueezed(self, x: Port, *axes: int) -> Port:
        for axis in axes:
            x = self("Unsqueeze", [x, self.number(axis)])
        return x

    def rows(self, count: Port, first: Port, last: Port) -> Port:
        """Return the positions of the queries, [1, 1, queries, 1]."""
        along = self.range(self.number(0, "i32"), self("Squeeze", [count, self.number(0, "i32")]))
        along = self.add(along, self.scalar(self.range(first, last), 0))
        return self.unsqueezed(along, 0, 1, 3)

    def unmasked(self, mask: Port, shape: Port, columns: Port, batch: Port) -> Port:
        """Expand a mask of 0 and 1, [batch, keys], to booleans [batch, 1, 1, keys], by flat indices."""
        count = self("ReduceProd", [shape, self.number(0, "i32")], keep_dims=True)
        flat = self("Concat", [count, self.net.const(np.array([-1], np.int32))], axis=0)
        flat = self.reshape(mask, flat, True)
        columns = self("Convert", [columns], kind="i32", destination_type="i32")
        batches = self.unsqueezed(self.range(self.number(0, "i32"), batch), 1, 2, 3)
        batches = self("Convert", [batches], kind="i32", destination_type="i32")
        width = self.net.layer("Split", "opset1", [shape, self.number(0, "i32")], {"num_splits": 2}, 2)[1]
        index = self.add(columns, self.add(batches, width, "Multiply"))
        picked = self("Gather", [flat, index, self.number(0, "i32")], 8, batch_dims=0)
        return self.reshape(self.reshape(picked, self.i64(-1), False), self.shape_of(index, "i32"), False)


def bert(
    seed: int,
    sizes: Sizes = BERT_BASE,
    shape: tuple[int, int] = (-1, -1),
    *,
    labels: int = 0,
    causal: bool = False,
) -> Transformer:
    """Build a BERT encoder: input_ids, attention_mask, token_type_ids [batch, time] -> last_hidden_state.

    With ``labels``, it classifies texts: its result is logits [batch, labels]. With ``causal``, tokens see only those
    before them, as in a decoder, and there are no token_type_ids.
    """
    w = _Writer(Net("bert"), np.random.default_rng(seed))
    net, width = w.net, sizes.width
    ids, mask = (net.parameter("i64", shape, name) for name in ("input_ids", "attention_mask"))
    x = w.embedding("words", sizes.vocabulary, width, ids)[0]
    if not causal:
        x = w.add(x, w.embedding("types", 2, width, net.parameter("i64", shape, "token_type_ids"))[0])
    dims = w.shape_of(ids)
    length = w.item(dims, 1)
    table = net.const(np.arange(sizes.positions)[None])
    where = w("Slice", [table, w.i64(0), length, w.i64(1), w.i64(1)], 8)
    x = w.norm("norm", w.add(x, w.embedding("positions", sizes.positions, width, where)[0]), width, 1e-12)
    if causal:
        flags, batch = w("Convert", [mask], kind="boolean", destination_type="boolean"), w.item(dims, 0)
        count = w("Squeeze", [length])
        allowed = _causal(w, flags, batch, w("Squeeze", [batch]), w.number(0), count, length)
    else:
        allowed = _bert_mask(w, mask, dims, length, x)

    def dense(name: str, x: Port, out: int, of: int, rank: int = 3) -> Port:
        y = w.matmul(x, w.weight(f"{name}.weight", out, of))
        return w.add(y, w.weight(f"{name}.bias", out, like=(1,) * (rank - 1) + (out,)))

    for k in range(sizes.layers):
        q, key, value = (
            w.split_heads(dense(f"{k}.{part}", x, width, width), sizes) for part in ("query", "key", "value")
        )
        y = w.attention(q, key, value, allowed, sizes)
        x = w.norm(f"{k}.norm_1", w.add(dense(f"{k}.attended", y, width, width), x), width, 1e-12)
        y = w("Gelu", [dense(f"{k}.inner", x, sizes.inner, width)], 7, approximation_mode="ERF")
        x = w.norm(f"{k}.norm_2", w.add(dense(f"{k}.outer", y, width, sizes.inner), x), width, 1e-12)
    if labels:
        first = w("Gather", [x, w.number(0), w.number(1)], 8, batch_dims=0)
        x = dense("classifier", w("Tanh", [dense("pooler", first, width, width, 2)]), labels, width, 2)
    net.nodes[x.layer].names.append("logits" if labels else "last_hidden_state")
    net.result(x)
    return Transformer(net.build(), w.weights, sizes)


def _bert_mask(w: _Writer, mask: Port, dims: Port, length: Port, x: Port) -> Port:
    queries = w.scalar(w.shape_of(x), 1)
    count = w.reshape(queries, w.i64(-1), False)
    rows = w.rows(count, w.number(0), queries)
    inside = w(
        "GreaterEqual", [rows, w.net.const(np.zeros((1, 1, 1, 1), np.int64))], kind="boolean", auto_broadcast="numpy"
    )
    inside = w.add(w.net.const(np.array(True)), inside, "BitwiseAnd", 13)
    flags = w("Convert", [mask], kind="boolean", destination_type="boolean")
    shape = w("Convert", [dims], kind="i32", destination_type="i32")
    columns = w.unsqueezed(w.range(w.number(0, "i32"), w("Squeeze", [length])), 0, 1, 2)
    batch = w.scalar(dims, 0)
    allowed = w.add(inside, w.unmasked(flags, shape, columns, batch), "BitwiseAnd", 13)
    target = w("Concat", [w.reshape(batch, w.i64(-1), False), w.i64(1), count, length], axis=0)
    return w("Broadcast", [allowed, target], 3, mode="bidirectional")


def gpt2(seed: int, sizes: Sizes = GPT2_SMALL) -> Transformer:
    """Build a stateful GPT-2 decoder: input_ids, attention_mask, position_ids, beam_idx -> logits."""
    w = _Writer(Net("gpt2"), np.random.default_rng(seed))
    net, width = w.net, sizes.width
    ids, mask, positions = (net.parameter("i64", (-1, -1), n) for n in ("input_ids", "attention_mask", "position_ids"))
    beam = net.parameter("i32", (-1,), "beam_idx")
    batch = w.item(w.shape_of(ids), 0)
    ids = w.reshape(ids, w.i64(-1, 0), True)
    words, table = w.embedding("words", sizes.vocabulary, width, ids)
    x = w.add(words, w.embedding("positions", sizes.positions, width, positions)[0])
    dims = w.shape_of(ids)
    cache = _caches(w, batch, beam, sizes)
    allowed = _gpt2_mask(w, mask, dims, cache[0, "key"][1])
    row = w("Gather", [w.shape_of(table), w.i64(1), w.number(0)], kind="i64")
    back = w("Concat", [dims, row], axis=0)
    assigned: list[tuple[str, Port]] = []

    def dense(name: str, x: Port, out: int, of: int, shape: Port) -> Port:
        y = w.matmul(w.reshape(x, w.i64(-1, of), False), w.weight(f"{name}.weight", out, of))
        return w.reshape(w.add(w.weight(f"{name}.bias", out, like=(1, out)), y), shape, False)

    tripled = w("Concat", [dims, w.i64(3 * width)], axis=0)
    inner_shape = w("Concat", [dims, w.i64(sizes.inner)], axis=0)
    for k in range(sizes.layers):
        y = dense(f"{k}.qkv", w.norm(f"{k}.norm_1", x, width, 1e-5), 3 * width, width, tripled)
        query, key, value = net.layer("VariadicSplit", "opset1", [y, w.number(2), w.i64(width, width, -1)], {}, 3)
        query = w.split_heads(query, sizes)
        for part, new in (("key", key), ("value", value)):
            name, past = cache[k, part]
            assigned.append((name, w("Concat", [past, w.split_heads(new, sizes)], axis=-2)))
        y = w.attention(query, assigned[-2][1], assigned[-1][1], allowed, sizes)
        x = w.add(dense(f"{k}.attended", y, width, width, back), x)
        y = dense(f"{k}.inner", w.norm(f"{k}.norm_2", x, width, 1e-5), sizes.inner, width, inner_shape)
        y = w("Gelu", [y], 7, approximation_mode="TANH")
        x = w.add(x, dense(f"{k}.outer", y, width, sizes.inner, back))
    x = w.reshape(w.norm("norm", x, width, 1e-5), w.i64(0, 0, width), True)
    logits: Any = net.layer(
        "MatMul", "opset1", [x, table], {"transpose_a": False, "transpose_b": True}, names=["logits"]
    )
    for name, value in assigned:
        net.assign(name, value)
    net.result(logits)
    return Transformer(net.build(), w.weights, sizes)


def _caches(w: _Writer, batch: Port, beam: Port, sizes: Sizes) -> dict[tuple[int, str], tuple[str, Port]]:
    """Return the variable of keys or values and its content, reordered by beams, by (layer, part)."""
    cache, heads = {}, sizes.heads // sizes.shared
    for k in range(sizes.layers):
        for part in ("key", "value"):
            name = f"past_key_values.{k}.{part}present.{k}.{part}"
            empty = w("Concat", [batch, w.i64(heads), w.i64(0), w.i64(sizes.head)], axis=0)
            empty = w("Broadcast", [w.net.const(np.float32(0)), empty], 3, mode="numpy")
            value = w.net.read_value(name, "f32", (-1, heads, -1, sizes.head), empty)
            cache[k, part] = name, w("Gather", [value, beam, w.number(0)], 8, batch_dims=0)
    return cache


def _gpt2_mask(w: _Writer, mask: Port, dims: Port, past_keys: Port) -> Port:
    past, new = w.scalar(w.shape_of(past_keys), 2), w.scalar(dims, 1)
    batch = w.item(dims, 0)
    flags = w("Convert", [w.reshape(mask, w.i64(0, 0), True)], kind="boolean", destination_type="boolean")
    total, count = w.add(past, new), w.reshape(new, w.i64(1), False)
    return _causal(w, flags, batch, w("Squeeze", [batch]), past, total, count)


def _causal(w: _Writer, flags: Port, batch: Port, batches: Port, past: Port, total: Port, count: Port) -> Port:
    """Return the causal mask to add to scores of ``count`` queries after ``past`` of ``total`` keys. `batch` and
    `count` are vectors of one element, the other numbers scalars."""
    columns = w.unsqueezed(w.range(w.number(0, "i32"), total), 0, 1, 2)
    rows = w.rows(count, past, total)
    causal = w("LessEqual", [columns, rows], kind="boolean", auto_broadcast="numpy")
    causal = w.add(w.net.const(np.array(True)), causal, "BitwiseAnd", 13)
    allowed = w.unmasked(flags, w.shape_of(flags, "i32"), columns, batches)
    allowed = w.add(causal, allowed, "BitwiseAnd", 13)
    keys = w("Unsqueeze", [total, w.number(0, "i32")])
    target = w("Concat", [batch, w.i64(1), count, keys], axis=0)
    allowed = w("Broadcast", [allowed, target], 3, mode="bidirectional")
    return w(
        "Select",
        [allowed, w.net.const(np.float32(0)), w.net.const(np.float32(-65504))],
        kind="f32",
        auto_broadcast="numpy",
    )


def llama(seed: int, sizes: Sizes) -> Transformer:
    """Build a stateful Llama decoder: input_ids, attention_mask, position_ids, beam_idx -> logits."""
    w = _Writer(Net("llama"), np.random.default_rng(seed))
    write_llama(w, sizes)
    return Transformer(w.net.build(), w.weights, sizes)


def write_llama(w: _Writer, sizes: Sizes, tied: bool = False) -> None:
    """Build the net of `llama`. With ``tied``, the head shares the embedding's weights, and only the last token has
    logits, as OpenVINO GenAI slices models for text generation."""
    net, width, head, keys = w.net, sizes.width, sizes.head, sizes.heads // sizes.shared
    ids, mask, positions = (net.parameter("i64", (-1, -1), n) for n in ("input_ids", "attention_mask", "position_ids"))
    beam = net.parameter("i32", (-1,), "beam_idx")
    cache = _caches(w, w.item(w.shape_of(ids), 0), beam, sizes)
    x, table = w.embedding("words", sizes.vocabulary, width, ids)
    normed = w.rms("0.norm_1", x, width)
    rotary = _angles(w, positions, head)
    dims, past = w.shape_of(normed), w.scalar(w.shape_of(cache[0, "key"][1]), 2)
    batch, new = w.scalar(dims, 0), w.scalar(dims, 1)
    count, total = w.reshape(new, w.i64(1), False), w.add(past, new)
    flags = w("Convert", [mask], kind="boolean", destination_type="boolean")
    allowed = _causal(w, flags, w.reshape(batch, w.i64(1), False), batch, past, total, count)
    assigned: list[tuple[str, Port]] = []
    repeated: Port | None = None

    def dense(name: str, x: Port, out: int, of: int) -> Port:
        return w.matmul(x, w.weight(f"{name}.weight", out, of))

    def heads(name: str, x: Port, count: int) -> Port:
        return w.swapped_axes(w.reshape(dense(name, x, count * head, width), w.i64(0, 0, count, head), True))

    for k in range(sizes.layers):
        query = _rotated(w, heads(f"{k}.query", normed, sizes.heads), *rotary, head)
        parts = []
        for part in ("key", "value"):
            name, before = cache[k, part]
            y = heads(f"{k}.{part}", normed, keys)
            y = _rotated(w, y, *rotary, head) if part == "key" else y
            assigned.append((name, w("Concat", [before, y], axis=-2)))
            if repeated is None:
                both = w("Gather", [w.shape_of(assigned[0][1]), w.i64(0, 1), w.number(0)], 8, batch_dims=0)
                length = w.add(w.reshape(past, w.i64(1), False), count)
                repeated = w("Concat", [both, w.i64(sizes.shared), length, w.i64(head)], axis=0)
            y = w("Unsqueeze", [assigned[-1][1], w.number(2)])
            y = w("Broadcast", [y, repeated], 3, mode="bidirectional")
            parts.append(w.reshape(y, w.i64(0, sizes.heads, -1, head), True))
        y = dense(f"{k}.attended", w.attention(query, *parts, allowed, sizes), width, width)
        x = w.add(x, y)
        normed = w.rms(f"{k}.norm_2", x, width)
        y = w("Swish", [dense(f"{k}.gate", normed, sizes.inner, width)], 4)
        y = w.add(y, dense(f"{k}.up", normed, sizes.inner, width), "Multiply")
        x = w.add(x, dense(f"{k}.down", y, width, sizes.inner))
        normed = w.rms(f"{k + 1}.norm_1", x, width)
    if tied:
        normed = w("Slice", [normed, w.i64(-1), w.i64(2**63 - 1), w.i64(1), w.i64(1)], 8)
    else:
        table = w.weight("head.weight", sizes.vocabulary, width)
    logits: Any = net.layer(
        "MatMul", "opset1", [normed, table], {"transpose_a": False, "transpose_b": True}, names=["logits"]
    )
    for name, value in assigned:
        net.assign(name, value)
    net.result(logits)


def _angles(w: _Writer, positions: Port, head: int) -> tuple[Port, Port]:
    """Return cosines and sines, [batch, 1, time, head]."""
    where = w("Convert", [w("Unsqueeze", [positions, w.number(1)])], kind="f32", destination_type="f32")
    frequencies = w.net.const((10000 ** (-np.arange(0, head, 2) / head)).astype("f4").reshape(1, -1, 1))
    angles = w("MatMul", [frequencies, where], transpose_a=False, transpose_b=False)
    angles = w("Transpose", [angles, w.net.const(np.array([0, 2, 1], np.int32))])
    angles = w("Concat", [angles, angles], axis=-1)
    cos, sin = (w("Unsqueeze", [w(op, [angles]), w.number(1)]) for op in ("Cos", "Sin"))
    return cos, sin


def _rotated(w: _Writer, x: Port, cos: Port, sin: Port, head: int) -> Port:
    def half(start: int, stop: int) -> Port:
        return w("Slice", [x, w.i64(start), w.i64(stop), w.i64(1), w.i64(3)], 8)

    minus = w("Convert", [w.number(-1, "i32")], kind="f32", destination_type="f32")
    rotated = w("Concat", [w.add(half(head // 2, 2**63 - 1), minus, "Multiply"), half(0, head // 2)], axis=-1)
    return w.add(w.add(x, cos, "Multiply"), w.add(rotated, sin, "Multiply"))
