"""The workloads of `bench.gpu` in plain torch, with the weights of the IR; and torch's ways to run them.

Only functions import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bench.gpu_measure import HostClock, Timer

if TYPE_CHECKING:
    from bench.gpu_workloads import Workload
    from tests.models.transformer import Sizes

Array = NDArray[Any]
MODES = ("eager", "graph", "compile", "compile+graph")


def elementwise() -> Any:
    """Return the module of the elementwise workload."""
    import torch

    class Elementwise(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.tanh(x * 0.5 + 1) * x

    return Elementwise()


def softmax() -> Any:
    """Return the module of the softmax workload."""
    import torch

    return torch.nn.Softmax(-1)


def topk(count: int) -> Any:
    """Return the module of the TopK workload."""
    import torch

    class TopK(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return tuple(torch.topk(x, count))

    return TopK()


def largest() -> Any:
    """Return the module of the ReduceMax workload."""
    import torch

    class Largest(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.amax(-1, keepdim=True)

    return Largest()


def normalize() -> Any:
    """Return the module of the MVN workload."""
    import torch

    class Normalize(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.nn.functional.layer_norm(x, x.shape[-1:])

    return Normalize()


def _dense(weights: Mapping[str, Array], name: str) -> Any:
    import torch

    out, of = weights[f"{name}.weight"].shape
    layer = torch.nn.Linear(of, out)
    layer.weight.data, layer.bias.data = (torch.from_numpy(weights[f"{name}.{part}"]) for part in ("weight", "bias"))
    return layer


def _norm(weights: Mapping[str, Array], name: str, eps: float) -> Any:
    import torch

    layer = torch.nn.LayerNorm(weights[f"{name}.weight"].size, eps)
    layer.weight.data, layer.bias.data = (torch.from_numpy(weights[f"{name}.{part}"]) for part in ("weight", "bias"))
    return layer


def _table(weights: Mapping[str, Array], name: str) -> Any:
    import torch

    return torch.nn.Embedding.from_pretrained(torch.from_numpy(weights[f"{name}.weight"]))


def bert(weights: Mapping[str, Array], sizes: Sizes) -> Any:
    """Return BERT: input_ids, attention_mask, token_type_ids [batch, time] -> [batch, time, width]."""
    import torch
    from torch.nn import functional as F

    class Layer(torch.nn.Module):
        def __init__(self, k: int) -> None:
            super().__init__()
            self.query, self.key, self.value, self.attended, self.inner, self.outer = (
                _dense(weights, f"{k}.{name}") for name in ("query", "key", "value", "attended", "inner", "outer"))
            self.norm_1, self.norm_2 = (_norm(weights, f"{k}.{name}", 1e-12) for name in ("norm_1", "norm_2"))

        def forward(self, x: Any, allowed: Any) -> Any:
            batch, time, width = x.shape
            q, k, v = (layer(x).view(batch, time, sizes.heads, sizes.head).transpose(1, 2)
                       for layer in (self.query, self.key, self.value))
            y = F.scaled_dot_product_attention(q, k, v, allowed).transpose(1, 2).reshape(batch, time, width)
            x = self.norm_1(self.attended(y) + x)
            return self.norm_2(self.outer(F.gelu(self.inner(x))) + x)

    class Bert(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.types, self.positions = (_table(weights, n) for n in ("words", "types", "positions"))
            self.norm = _norm(weights, "norm", 1e-12)
            self.layers = torch.nn.ModuleList(Layer(k) for k in range(sizes.layers))

        def forward(self, ids: Any, mask: Any, types: Any) -> Any:
            x = self.words(ids) + self.types(types) + self.positions.weight[: ids.shape[1]]
            x, allowed = self.norm(x), mask.bool()[:, None, None, :]
            for layer in self.layers:
                x = layer(x, allowed)
            return x

    return Bert()


def gpt2(weights: Mapping[str, Array], sizes: Sizes) -> Any:
    """Return GPT-2: tokens [1, new], position of the first of them [1] -> logits [1, new, vocabulary].

    The KV cache has its full capacity from the beginning, so that shapes are static and graphs can be captured.
    """
    import torch
    from torch.nn import functional as F

    class Layer(torch.nn.Module):
        def __init__(self, k: int) -> None:
            super().__init__()
            self.qkv, self.attended, self.inner, self.outer = (
                _dense(weights, f"{k}.{name}") for name in ("qkv", "attended", "inner", "outer"))
            self.norm_1, self.norm_2 = (_norm(weights, f"{k}.{name}", 1e-5) for name in ("norm_1", "norm_2"))
            for name in ("keys", "values"):
                self.register_buffer(name, torch.zeros(1, sizes.heads, sizes.positions, sizes.head))

        def forward(self, x: Any, where: Any, allowed: Any) -> Any:
            new = x.shape[1]
            q, k, v = (y.view(1, new, sizes.heads, sizes.head).transpose(1, 2)
                       for y in self.qkv(self.norm_1(x)).split(sizes.width, -1))
            self.keys.index_copy_(2, where, k)
            self.values.index_copy_(2, where, v)
            y = F.scaled_dot_product_attention(q, self.keys, self.values, allowed)
            x = x + self.attended(y.transpose(1, 2).reshape(1, new, sizes.width))
            return x + self.outer(F.gelu(self.inner(self.norm_2(x)), approximate="tanh"))

    class Gpt2(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.positions = (_table(weights, name) for name in ("words", "positions"))
            self.norm = _norm(weights, "norm", 1e-5)
            self.layers = torch.nn.ModuleList(Layer(k) for k in range(sizes.layers))
            self.register_buffer("every", torch.arange(sizes.positions))

        def forward(self, tokens: Any, first: Any) -> Any:
            where = first + self.every[: tokens.shape[1]]
            x = self.words(tokens) + self.positions(where)
            allowed = self.every[None, :] <= where[:, None]
            for layer in self.layers:
                x = layer(x, where, allowed)
            return F.linear(self.norm(x), self.words.weight)

    return Gpt2()


class Events:
    """`gpu_measure.Timer` with torch's events on its current stream."""

    def mark(self) -> Any:
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) / 1e3

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize()


class Peer:
    """A workload in torch, run in one of `MODES`. f32 stays f32, or is rounded to TF32 by products if ``tf32``."""

    def __init__(self, workload: Workload, mode: str, device: str, tf32: bool = False) -> None:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        if mode not in MODES:
            raise ValueError(f"no such mode: {mode}")
        if mode == "graph" and device == "cpu":
            raise RuntimeError("a host captures no graphs")
        self.workload, self.mode, self.device = workload, mode, device
        self.timer: Timer = HostClock()
        self.flush: Callable[[], object] | None = None
        if device != "cpu":
            self.timer = Events()
            if workload.bandwidth:
                size = 2 * torch.cuda.get_device_properties(0).L2_cache_size
                self.flush = partial(torch.empty(size, dtype=torch.uint8, device=device).fill_, 1)
        self.module = workload.module().eval().requires_grad_(False).to(device)
        self.run: Callable[..., Any] = self.module
        if mode.startswith("compile"):
            options: dict[str, Any] = {"mode": "max-autotune"} if mode.endswith("graph") else {}
            self.run = torch.compile(self.module, dynamic=False, **options)
        self.decodes = workload.prompt is not None
        given = [np.zeros((1, 1), np.int64), np.zeros(1, np.int64)] if self.decodes else [*workload.inputs.values()]
        self.inputs = [torch.from_numpy(x).to(device) for x in given]
        self.graph: Any = None
        self.outputs: Any = None
        self.position = 0
        with torch.inference_mode():
            for _ in range(3):
                self._call()
            if mode == "graph":
                self._capture()

    def _call(self) -> None:
        if self.graph is not None:
            self.graph.replay()
        else:
            found = self.run(*self.inputs)
            self.outputs = found if isinstance(found, tuple) else (found,)

    def _capture(self) -> None:
        import torch

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._call()
        self.graph = graph

    def begin(self) -> None:
        """Feed the prompt of a decoder."""
        if self.decodes:
            import torch

            prompt = self.workload.prompt
            with torch.inference_mode():
                self.module(torch.from_numpy(prompt).to(self.device), torch.zeros(1, dtype=torch.int64).to(self.device))
            self.position = prompt.shape[1]

    def call(self) -> None:
        """Run an inference with inputs and outputs on the device, and wait for it."""
        self.launch()
        self.timer.synchronize()

    def launch(self) -> None:
        import torch

        with torch.inference_mode():
            self._call()

    def infer(self, token: int = 0) -> list[Array]:
        """Run an inference from host arrays to host arrays."""
        import torch

        given = [*self.workload.inputs.values()]
        if self.decodes:
            given = [np.array([[token]]), np.array([self.position])]
            self.position += 1
        with torch.inference_mode():
            for target, value in zip(self.inputs, given):
                target.copy_(torch.from_numpy(value))
            self._call()
            return [y.cpu().numpy() for y in self.outputs]
