"""The decoder of `bench.gpu_llama` in plain torch, with the same numbers, and ways to run it.

The KV cache has its full capacity from the beginning. A step attends to a fixed number of keys, without a mask, so that
it reads no more than necessary and can be captured. A measurement is of one length. Only functions import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bench.gpu_measure import HostClock, Timer
from bench.gpu_torch import Events

if TYPE_CHECKING:
    from bench.gpu_llama_model import Caches, Llama, Stored

Array = NDArray[Any]
MODES = ("eager", "graph", "compile")
GROUP = 128
TILES = 8  # inner tiles of K in torch's layout of int4 weights


def device_of() -> str | None:
    """Return torch's device, None if it has no GPU or is not installed."""
    try:
        import torch
    except ImportError:
        return None
    return "cuda" if torch.cuda.is_available() else None


def decompressed(stored: Stored, device: str, kind: Any) -> Any:
    """Return a matrix [out, in] on a device; codes are decompressed there."""
    import torch

    def moved(array: Array) -> Any:
        return torch.from_numpy(array).to(device)

    def codes(array: Array) -> Any:
        found = moved(array)
        if stored.kind[1] == "4":
            found = torch.stack([found & 15, found >> 4], -1).reshape(-1)
        found = found.to(torch.int16)
        return (found ^ 8) - 8 if stored.kind == "i4" else found

    out, of = stored.shape
    if stored.kind == "f16":
        return moved(stored.codes).reshape(out, of).to(kind)
    assert stored.scale is not None
    groups = stored.scale.size // out
    values = codes(stored.codes).reshape(out, groups, -1)
    if stored.zero is not None:
        values = values - codes(stored.zero).reshape(out, groups, 1)
    return (values * moved(stored.scale).reshape(out, groups, 1).float()).reshape(out, of).to(kind)


def _dense(weight: Any) -> Any:
    import torch

    out, of = weight.shape
    layer = torch.nn.Linear(of, out, bias=False, device="meta")
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    return layer


def _dense_int4(out: int, of: int, device: str, seed: int) -> Any:
    """Return a layer of random int4 weights in torch's own layout, with scales and zero points for groups."""
    import torch

    class Int4(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            random = np.random.default_rng(seed)
            pool = random.integers(0, 256, 1 << 20, np.uint8)
            packed = torch.from_numpy(np.resize(pool, out * of // 2)).reshape(out, of // 2).to(device)
            if device == "cpu":
                wide = torch.stack([packed >> 4, packed & 15], -1).reshape(out, of).to(torch.int32)
                self.register_buffer("codes", torch.ops.aten._convert_weight_to_int4pack_for_cpu(wide, TILES))
            else:
                self.register_buffer("codes", torch.ops.aten._convert_weight_to_int4pack(packed, TILES))
            terms = torch.zeros(of // GROUP, out, 2, dtype=torch.bfloat16, device=device)
            terms[..., 0] = of**-0.5 / 4.6  # uniform codes have a standard deviation of 4.6
            self.register_buffer("terms", terms)

        def forward(self, x: Any) -> Any:
            aten = torch.ops.aten
            product = aten._weight_int4pack_mm_for_cpu if device == "cpu" else aten._weight_int4pack_mm
            return product(x.reshape(-1, of), self.codes, GROUP, self.terms).view(*x.shape[:-1], out)

    return Int4()


class Network:
    """The model as a torch module on a device, with a cache of ``positions`` tokens.

    Projections to queries, keys and values are one matrix, and so are the two of a gated layer. With ``int4`` all
    products, including the head's, are torch's int4 kernels over random codes. ``nbytes``: weights that a token reads.
    """

    def __init__(self, model: Llama, device: str, kind: str, positions: int, int4: bool = False) -> None:
        import torch
        from torch.nn import functional as F

        sizes, dtype = model.sizes, getattr(torch, kind)
        self.device, self.sizes = device, sizes
        heads, keys, head, width = sizes.heads, sizes.heads // sizes.shared, sizes.head, sizes.width
        self.nbytes = 0

        def layer(*names: str) -> Any:
            if int4:
                out = sum(model.matrices[f"{name}.weight"].shape[0] for name in names)
                made = _dense_int4(out, model.matrices[f"{names[0]}.weight"].shape[1], device, len(names))
                self.nbytes += made.codes.nbytes + made.terms.nbytes
                return made
            parts = [decompressed(model.matrices[f"{name}.weight"], device, dtype) for name in names]
            made = _dense(torch.cat(parts) if len(parts) > 1 else parts[0])
            self.nbytes += made.weight.nbytes
            return made

        def norm(name: str) -> Any:
            made = torch.nn.RMSNorm(width, 1e-6, device="meta")
            weight = torch.from_numpy(model.norms[f"{name}.weight"]).to(device, dtype)
            made.weight = torch.nn.Parameter(weight, requires_grad=False)
            self.nbytes += weight.nbytes
            return made

        class Layer(torch.nn.Module):
            key: Any
            value: Any

            def __init__(self, k: int) -> None:
                super().__init__()
                self.qkv = layer(*(f"{k}.{part}" for part in ("query", "key", "value")))
                self.attended, self.gated, self.down = (
                    layer(f"{k}.attended"), layer(f"{k}.gate", f"{k}.up"), layer(f"{k}.down"))
                self.norm_1, self.norm_2 = norm(f"{k}.norm_1"), norm(f"{k}.norm_2")
                for part in ("key", "value"):
                    self.register_buffer(part, torch.zeros(1, keys, positions, head, dtype=dtype, device=device))

            def forward(self, x: Any, where: Any, cos: Any, sin: Any, length: int) -> Any:
                new = x.shape[1]
                y = self.qkv(self.norm_1(x)).view(1, new, heads + 2 * keys, head).transpose(1, 2)
                q, k, v = y.split((heads, keys, keys), 1)
                q, k = (z * cos + torch.cat([-z[..., head // 2 :], z[..., : head // 2]], -1) * sin for z in (q, k))
                self.key.index_copy_(2, where, k)
                self.value.index_copy_(2, where, v)
                y = F.scaled_dot_product_attention(q, self.key[:, :, :length], self.value[:, :, :length],
                                                   is_causal=new > 1, enable_gqa=True)
                x = x + self.attended(y.transpose(1, 2).reshape(1, new, width))
                gate, up = self.gated(self.norm_2(x)).chunk(2, -1)
                return x + self.down(F.silu(gate) * up)

        class Module(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                table = decompressed(model.matrices["words.weight"], device, dtype)
                embedding: Any = torch.nn.Embedding
                self.words = embedding.from_pretrained(table)
                self.head = layer("words") if int4 else _dense(table)
                self.norm = norm(f"{sizes.layers}.norm_1")
                self.layers = torch.nn.ModuleList(Layer(k) for k in range(sizes.layers))
                frequencies = (10000 ** (-np.arange(0, head, 2) / head)).astype("f4")
                self.register_buffer("frequencies", torch.from_numpy(frequencies).to(device))

            def forward(self, tokens: Any, where: Any, length: int) -> Any:
                angles = where[:, None].float() * self.frequencies
                angles = torch.cat([angles, angles], -1)
                cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
                x = self.words(tokens)
                for each in self.layers:
                    x = each(x, where, cos, sin, length)
                return self.head(self.norm(x[:, -1:]))

        self.module = Module().eval().requires_grad_(False)
        if not int4:
            self.nbytes += self.module.head.weight.nbytes

    def fill(self, caches: Caches, length: int) -> None:
        """Set the first ``length`` rows of the KV cache."""
        import torch

        with torch.inference_mode():
            for k, layer in enumerate(self.module.layers):
                for part in ("key", "value"):
                    rows = torch.from_numpy(caches.of(k, part, length)).to(self.device)
                    getattr(layer, part)[:, :, :length].copy_(rows)


class Peer:
    """A network run in one of `MODES`, or eagerly: one token after ``length - 1`` others, or a prompt of ``tokens``.

    Inputs are on the device, at fixed addresses. A compiled network is captured into a CUDA graph as well.
    """

    def __init__(self, net: Network, mode: str, length: int, tokens: Array | None = None,
                 compile_mode: str = "max-autotune-no-cudagraphs") -> None:
        import torch

        self.tokens = np.array([[1]]) if tokens is None else tokens
        first = length - self.tokens.shape[1]
        self.inputs = [torch.from_numpy(x).to(net.device) for x in (self.tokens, np.arange(first, length))]
        self.length, self.cuda = length, net.device != "cpu"
        self.timer: Timer = Events() if self.cuda else HostClock()
        self.run: Any = net.module
        if mode == "compile":
            torch._dynamo.reset()
            self.run = torch.compile(net.module, mode=compile_mode, dynamic=False, fullgraph=True)
        self.graph: Any = None
        with torch.inference_mode():
            for _ in range(3):
                self._call()
            if self.cuda and (mode == "graph" or (mode == "compile" and compile_mode != "reduce-overhead")):
                self._capture()

    def _call(self) -> None:
        if self.graph is not None:
            self.graph.replay()
        else:
            self.logits = self.run(*self.inputs, self.length)

    def _capture(self) -> None:
        import torch

        cuda: Any = torch.cuda
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            self._call()
        cuda.current_stream().wait_stream(side)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            self._call()
        self.graph = graph

    def launch(self) -> None:
        """Start a step without waiting for it."""
        import torch

        with torch.inference_mode():
            self._call()

    def infer(self) -> Array:
        """Return the logits in f32 on the host, for tokens on the host."""
        import torch

        with torch.inference_mode():
            self.inputs[0].copy_(torch.from_numpy(self.tokens))
            self._call()
            found: Array = self.logits.float().cpu().numpy()
            return found
