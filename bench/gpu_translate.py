"""An IR model as a module of torch: what a torch user would write, so that it can be timed beside ovgpu.

Shapes must be static. Layers of constants are folded, and products of one tensor are merged, by ovgpu's own passes.
Convolutions and products have their bias, and norms their scale and shift, in one call; attention is
scaled_dot_product_attention, and an LSTM is `torch.nn.LSTM`. Only functions import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ovgpu
from ovgpu.model import Model, Node, Output
from ovgpu.passes import _graph
from ovgpu.passes.fold_constants import fold_constants
from ovgpu.passes.merge_products import merge_products

Array = NDArray[Any]
Rule = Callable[["Translator", Node, Sequence[Any]], Any]


def translated(ir: tuple[Any, Any]) -> Any:
    """Return a `torch.fx.GraphModule` that takes the model's inputs in order and returns a tuple of its results.

    States are buffers, which ``reset()`` sets to their initial values. Raises NotImplementedError for an operation that
    no rule translates.
    """
    return Translator(ovgpu.Core().read_model(*ir)).module


def constant_of(port: Output | None) -> Array | None:
    """Return the value of a constant, None for anything else."""
    value = _graph.constant_of(port)
    return None if value is None else np.asarray(value)  # of merged products it is made when it is read


def integers(port: Output) -> list[int]:
    """Return the elements of a constant of integers."""
    value = constant_of(port)
    if value is None:
        raise NotImplementedError(f"{port.node.friendly_name}: torch needs a constant here")
    return [int(n) for n in value.reshape(-1)]


def gates(array: Array, axis: int) -> Array:
    """Return the gates in torch's order, i f g o; OpenVINO's is f i c o."""
    parts = np.split(array, 4, axis)
    return np.concatenate([parts[k] for k in (1, 0, 2, 3)], axis)


class Translator:
    """The translation of a model, layer by layer."""

    def __init__(self, model: Model) -> None:
        import torch
        from torch import fx

        fold_constants(model)
        _scale_weights(model)
        merge_products(model)
        self.torch, self.F = torch, torch.nn.functional
        self.graph, self.root = fx.Graph(), torch.nn.Module()
        self.tracer = fx.proxy.GraphAppendingTracer(self.graph)
        self.values: dict[Output, Any] = {}
        self.initial: dict[str, Any] = {}
        for node in model.parameters:
            self.values[node.ports[0]] = self._proxy(self.graph.placeholder(f"x{len(self.values)}"))
        self.assigned: list[tuple[Any, Any]] = []  # states and what they become
        for node in model.get_ordered_ops():
            self._add(node)
        results = [self.kept(node.sources[0]).node for node in model.results]
        for state, value in self.assigned:  # when everything that reads a state has run
            state.copy_(value)
        self.graph.output(tuple(results))
        self.module = fx.GraphModule(self.root, self.graph)
        graph = self.module.graph
        graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output") or node.target == "copy_")
        self.module.recompile()
        used = {node.target for node in graph.nodes if node.op == "get_attr"}
        for name in [name for name, _ in self.module.named_buffers(recurse=False) if name not in used]:
            delattr(self.module, name)
        self.module.reset = self._reset

    def _proxy(self, node: Any) -> Any:
        return self.torch.fx.Proxy(node, self.tracer)

    def _reset(self) -> None:
        for name, value in self.initial.items():
            getattr(self.module, name).copy_(value)

    def _add(self, node: Node) -> None:
        name = node.op.name
        if name in ("Parameter", "Constant", "Result"):
            return
        rule = RULES.get(name)
        if rule is None:
            raise NotImplementedError(f"{node.friendly_name}: no rule translates {name} to torch")
        found = rule(self, node, node.sources)
        self.values |= zip(node.ports, found) if isinstance(found, (tuple, list)) else ((node.ports[0], found),)

    def __call__(self, port: Output) -> Any:
        """Return the value of a tensor in the graph; a constant becomes a buffer."""
        if port not in self.values:
            value = constant_of(port)
            assert value is not None, port.node.friendly_name
            self.values[port] = self.buffer(value)
        return self.values[port]

    def buffer(self, value: Array, name: str = "") -> Any:
        name = name or f"c{len(self.values)}_{sum(1 for _ in self.root.buffers())}"
        self.root.register_buffer(name, self.torch.from_numpy(np.array(value)))
        return self._proxy(self.graph.get_attr(name))

    def kept(self, port: Output) -> Any:
        """Return the value of a tensor, in memory of its own if it lies in that of a state."""
        first = port
        while first.node.op.name in VIEWS:
            first = first.node.sources[0]
        return self(port).clone() if first.node.op.name == "ReadValue" else self(port)

    def submodule(self, module: Any) -> Callable[..., Any]:
        """Add a module; return a function that adds a call of it."""
        name = f"m{sum(1 for _ in self.root.children())}"
        self.root.add_module(name, module)
        return lambda *args: self._proxy(self.graph.call_module(name, tuple(a.node for a in args)))

    def dtype(self, port: Output) -> Any:
        return self.torch.from_numpy(np.empty(0, port.spec.type.storage)).dtype


def _scale_weights(model: Model) -> None:
    """Multiply weights by the number by which a product is multiplied, such as the scale of queries."""
    for node in model.ops:
        scale = _graph.scalar_of(node.sources[1]) if node.op.name == "Multiply" else None
        product = node.sources[0].node if scale is not None else None
        if product is None or product.op.name != "MatMul" or not _is_linear(product):
            continue
        if len(product.ports[0].get_target_inputs()) == 1:
            scaled = constant_of(product.sources[1]) * scale
            weight = _graph.NodeBuilder(product).constant(scaled, node.ports[0].spec.type)
            product.sources[1] = weight
            node.ports[0].replace(product.ports[0])
    model.validate_nodes_and_infer_types()


# ---- layers


def _convolution(t: Translator, node: Node, sources: Sequence[Any], bias: Any = None) -> Any:
    op: Any = node.op
    weight, groups = constant_of(sources[1]), 1
    assert weight is not None and op.pads_begin == op.pads_end, node.friendly_name
    if op.name == "GroupConvolution":
        groups, weight = weight.shape[0], weight.reshape(-1, *weight.shape[2:])
    run = {3: t.F.conv1d, 4: t.F.conv2d}[weight.ndim]
    return run(t(sources[0]), t.buffer(weight), bias, op.strides, op.pads_begin, op.dilations, groups)


def _is_linear(node: Node) -> bool:
    weight = constant_of(node.sources[1])
    return weight is not None and weight.ndim == 2 and not node.op.transpose_a


def _matmul(t: Translator, node: Node, sources: Sequence[Any], bias: Any = None) -> Any:
    op: Any = node.op
    weight = constant_of(sources[1])
    if weight is not None and _is_linear(node):
        return t.F.linear(t(sources[0]), t.buffer(weight if op.transpose_b else weight.T), bias)
    a, b = (x.transpose(-1, -2) if flag else x for x, flag in zip(map(t, sources), (op.transpose_a, op.transpose_b)))
    return t.torch.matmul(a, b)


def _add(t: Translator, node: Node, sources: Sequence[Any]) -> Any:
    """An Add alone, or the bias of a convolution or a product, or the shift of a norm."""
    for port, other in (sources, sources[::-1]):
        bias = constant_of(other)
        found = None if bias is None else _biased(t, port.node, _shape(node), bias)
        if found is not None:
            return found
    return t(sources[0]) + t(sources[1])


def _vector(value: Array | None, shape: Sequence[int], axis: int) -> Array | None:
    """Return a constant as a vector if it varies along one axis of a tensor alone, else None."""
    along = (
        value is not None
        and value.size == shape[axis]
        and value.shape[axis % len(shape) - len(shape) :][:1] == (value.size,)
    )
    return value.reshape(-1) if along and value is not None else None


def _biased(t: Translator, node: Node, shape: Sequence[int], bias: Array) -> Any:
    """Return a layer and the constant that is added to it in one call of torch, None if there is no such call."""
    name = node.op.name
    if name in ("Convolution", "GroupConvolution"):
        vector = _vector(bias, shape, 1)
        return None if vector is None else _convolution(t, node, node.sources, t.buffer(vector))
    if name == "MatMul":
        vector = _vector(bias, shape, -1) if _is_linear(node) else None
        return None if vector is None else _matmul(t, node, node.sources, t.buffer(vector))
    return _norm(t, node, shape, bias) if name == "Multiply" else None


def _norm(t: Translator, scaled: Node, shape: Sequence[int], shift: Array) -> Any:
    """Return a layer norm or a group norm with a scale and a shift, None if the layers are no such norm."""
    port, scale = scaled.sources[0], constant_of(scaled.sources[1])
    assert port is not None
    before: Any = port.node
    axis = -1 if before.op.name == "MVN" else 1
    terms = [_vector(x, shape, axis) for x in (scale, shift)]
    if any(x is None for x in terms):
        return None
    if before.op.name == "MVN" and _is_layer_norm(before):
        return t.F.layer_norm(t(before.sources[0]), [shape[-1]], *map(t.buffer, terms), before.op.eps)
    if before.op.name == "Reshape" and before.sources[0].node.op.name == "MVN":
        norm = before.sources[0].node
        grouped = norm.sources[0].node
        if grouped.op.name == "Reshape" and _is_layer_norm(norm) and grouped.sources[0].spec.shape == port.spec.shape:
            return t.F.group_norm(t(grouped.sources[0]), _shape(grouped)[1], *map(t.buffer, terms), norm.op.eps)
    return None


def _is_layer_norm(node: Node) -> bool:
    rank, op = node.ports[0].spec.rank, node.op
    inside: bool = op.normalize_variance and op.eps_mode == "inside_sqrt"
    return inside and integers(node.sources[1]) in ([-1], [rank - 1])


def _mvn(t: Translator, node: Node, sources: Sequence[Any]) -> Any:
    x, axes, op = t(sources[0]), integers(sources[1]), node.op
    if _is_layer_norm(node):
        return t.F.layer_norm(x, [int(sources[0].spec.shape[-1])], eps=op.eps)
    if op.normalize_variance and op.eps_mode != "inside_sqrt":
        raise NotImplementedError(f"{node.friendly_name}: eps_mode {op.eps_mode}")
    y = x - x.mean(axes, keepdim=True)
    return y * t.torch.rsqrt((y * y).mean(axes, keepdim=True) + op.eps) if op.normalize_variance else y


def _max_pool(t: Translator, node: Node, sources: Sequence[Any]) -> Any:
    op: Any = node.op
    return t.F.max_pool2d(t(sources[0]), op.kernel, op.strides, op.pads_begin, getattr(op, "dilations", None) or 1)


def _gather(t: Translator, node: Node, sources: Sequence[Any]) -> Any:
    x, where, (axis,) = sources[0], constant_of(sources[1]), integers(sources[2])
    if where is None:
        if axis != 0 or x.spec.rank != 2:
            raise NotImplementedError(f"{node.friendly_name}: torch looks up rows of matrices alone")
        indices = sources[1].node  # torch takes the indices as they are
        return t.F.embedding(t(indices.sources[0] if indices.op.name == "Convert" else sources[1]), t(x))
    if np.array_equal(where.reshape(-1), np.arange(x.spec.shape[axis])):
        return t(x).reshape(_shape(node))
    if where.ndim == 0:
        return t(x).select(axis, int(where))
    return t(x).index_select(axis, t(sources[1]).reshape(-1)).reshape(_shape(node))


def _attention(t: Translator, node: Node, sources: Sequence[Any]) -> Any:
    mask = sources[3] if len(sources) > 3 and sources[3].spec.rank else None
    if mask is not None and mask.node.op.name == "Broadcast":
        mask = mask.node.sources[0]  # torch broadcasts it itself
    scale = constant_of(sources[4]) if len(sources) > 4 else None
    return t.F.scaled_dot_product_attention(
        *map(t, sources[:3]),
        None if mask is None else t(mask),
        is_causal=node.op.causal,
        scale=None if scale is None else float(scale),
    )


def _and(t: Translator, node: Node, sources: Sequence[Any]) -> Any:
    for at in range(2):
        value = constant_of(sources[at])
        if value is not None and value.all():
            return t(sources[1 - at])
    return t(sources[0]) & t(sources[1])


def _lstm_sequence(t: Translator, node: Node, sources: Sequence[Any]) -> Any:
    """`torch.nn.LSTM`, whose weights cuDNN wants in one piece: the module keeps them so."""
    torch = t.torch
    w, r, b = (gates(constant_of(port), 1) for port in sources[4:7])
    lstm = torch.nn.LSTM(w.shape[2], r.shape[2], batch_first=True, bidirectional=len(w) == 2)
    for k, suffix in zip(range(len(w)), ("", "_reverse")):
        for name, value in (("weight_ih", w[k]), ("weight_hh", r[k]), ("bias_ih", b[k]), ("bias_hh", 0 * b[k])):
            getattr(lstm, f"{name}_l0{suffix}").data = torch.from_numpy(np.ascontiguousarray(value))
    h, c = (
        t.buffer(x.swapaxes(0, 1)) if (x := constant_of(port)) is not None else t(port).transpose(0, 1)
        for port in sources[1:3]
    )
    found = t.submodule(_with_state(lstm))(t(sources[0]), h, c)
    y = found[0].unflatten(2, (len(w), r.shape[2])).transpose(1, 2)
    return y, found[1].transpose(0, 1), found[2].transpose(0, 1)


def _with_state(lstm: Any) -> Any:
    import torch

    class WithState(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = lstm

        def forward(self, x: Any, h: Any, c: Any) -> Any:
            y, (h, c) = self.lstm(x, (h.contiguous(), c.contiguous()))
            return y, h, c

    return WithState()


def _lstm_cell(t: Translator, node: Node, sources: Sequence[Any]) -> Any:
    w, r, b = (gates(constant_of(port), 0) for port in sources[3:6])
    weights = map(t.buffer, (w, r, b, 0 * b))
    found = t.torch.lstm_cell(t(sources[0]), [t(port) for port in sources[1:3]], *weights)
    return found[0], found[1]


def _read_value(t: Translator, node: Node, sources: Sequence[Any]) -> Any:
    initial = constant_of(sources[0])
    name = f"state_{node.op.variable_id}"
    t.initial[name] = t.torch.from_numpy(np.array(initial))
    return t.buffer(initial, name)


def _assign(t: Translator, node: Node, sources: Sequence[Any]) -> Any:
    t.assigned.append((t._proxy(t.graph.get_attr(f"state_{node.op.variable_id}")), t.kept(sources[0])))
    return t.assigned[-1][1]


def _split(t: Translator, node: Node, sources: Sequence[Any]) -> Any:
    (axis,) = integers(sources[1])
    parts = t.torch.split(t(sources[0]), [int(port.spec.shape[axis]) for port in node.ports], axis)
    return [parts[i] for i in range(len(node.ports))]


def _topk(t: Translator, node: Node, sources: Sequence[Any]) -> Any:
    found = t.torch.topk(t(sources[0]), integers(sources[1])[0], node.op.axis, node.op.mode == "max")
    return [found[0], found[1]]


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(node.ports[0].spec.shape)


def _merged_axes(t: Translator, node: Node, sources: Sequence[Any]) -> Any:
    return t(sources[0]).reshape(_shape(node))


def _by_name(name: str) -> Rule:
    return lambda t, node, s: getattr(t.torch, name)(*map(t, s))


VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Transpose", "Broadcast", "VariadicSplit", "Gather", "Convert")
RULES: dict[str, Rule] = {
    "Convolution": _convolution,
    "GroupConvolution": _convolution,
    "MatMul": _matmul,
    "Add": _add,
    "MVN": _mvn,
    "MaxPool": _max_pool,
    "Gather": _gather,
    "BitwiseAnd": _and,
    "ScaledDotProductAttention": _attention,
    "LSTMSequence": _lstm_sequence,
    "LSTMCell": _lstm_cell,
    "ReadValue": _read_value,
    "Assign": _assign,
    "Reshape": _merged_axes,
    "Unsqueeze": _merged_axes,
    "Squeeze": _merged_axes,
    **{name: _by_name(name.lower()) for name in ("Relu", "Sigmoid", "Tanh", "Sin", "Cos", "Exp", "Sqrt")},
    "Multiply": lambda t, node, s: t(s[0]) * t(s[1]),
    "Subtract": lambda t, node, s: t(s[0]) - t(s[1]),
    "Divide": lambda t, node, s: t(s[0]) / t(s[1]),
    "Swish": lambda t, node, s: t.F.silu(t(s[0])),
    "Gelu": lambda t, node, s: t.F.gelu(t(s[0]), approximate="none" if node.op.approximation_mode == "erf" else "tanh"),
    "Clamp": lambda t, node, s: t.F.hardtanh(t(s[0]), node.op.min, node.op.max),
    "Softmax": lambda t, node, s: t.torch.softmax(t(s[0]), node.op.axis),
    "ReduceMean": lambda t, node, s: t(s[0]).mean(integers(s[1]), keepdim=node.op.keep_dims),
    "ReduceMax": lambda t, node, s: t(s[0]).amax(integers(s[1]), keepdim=node.op.keep_dims),
    "TopK": _topk,
    "Transpose": lambda t, node, s: t(s[0]).permute(integers(s[1])),
    "Broadcast": lambda t, node, s: t.torch.broadcast_to(t(s[0]), _shape(node)),
    "Convert": lambda t, node, s: t(s[0]).to(t.dtype(node.ports[0])),
    "Concat": lambda t, node, s: t.torch.cat([t(port).expand(tuple(port.spec.shape)) for port in s], node.op.axis),
    "VariadicSplit": _split,
    "Interpolate": lambda t, node, s: t.F.interpolate(t(s[0]), _shape(node)[2:], mode=node.op.mode),
}
