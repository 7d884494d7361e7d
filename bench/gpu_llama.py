"""The Llama decoder of `bench.workloads` in plain torch, with the same numbers.

The KV cache has its full capacity from the beginning. A step attends to a fixed number of keys, without a mask, so that
it reads no more than necessary and can be captured. Only functions import torch.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.gpu_engines import prompt
from bench.gpu_torch import Peer
from bench.networks.llama import Caches, Llama, Stored
from bench.workloads import Text

Array = NDArray[Any]
GROUP = 128
TILES = 8  # inner tiles of K in torch's layout of int4 weights


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
    products, including the head's, are torch's int4 kernels over random codes.
    """

    def __init__(self, model: Llama, device: str, kind: str, positions: int, int4: bool = False) -> None:
        import torch
        from torch.nn import functional as F

        sizes, dtype = model.sizes, getattr(torch, kind)
        self.device = device
        heads, keys, head, width = sizes.heads, sizes.heads // sizes.shared, sizes.head, sizes.width

        def layer(*names: str) -> Any:
            if int4:
                out = sum(model.matrices[f"{name}.weight"].shape[0] for name in names)
                return _dense_int4(out, model.matrices[f"{names[0]}.weight"].shape[1], device, len(names))
            parts = [decompressed(model.matrices[f"{name}.weight"], device, dtype) for name in names]
            return _dense(torch.cat(parts) if len(parts) > 1 else parts[0])

        def norm(name: str) -> Any:
            made = torch.nn.RMSNorm(width, 1e-6, device="meta")
            weight = torch.from_numpy(model.norms[f"{name}.weight"]).to(device, dtype)
            made.weight = torch.nn.Parameter(weight, requires_grad=False)
            return made

        class Layer(torch.nn.Module):
            key: Any
            value: Any

            def __init__(self, k: int) -> None:
                super().__init__()
                self.qkv = layer(*(f"{k}.{part}" for part in ("query", "key", "value")))
                self.attended, self.gated, self.down = (
                    layer(f"{k}.attended"),
                    layer(f"{k}.gate", f"{k}.up"),
                    layer(f"{k}.down"),
                )
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
                y = F.scaled_dot_product_attention(
                    q, self.key[:, :, :length], self.value[:, :, :length], is_causal=new > 1, enable_gqa=True
                )
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

    def fill(self, caches: Caches, length: int) -> None:
        """Set the first ``length`` rows of the KV cache."""
        import torch

        with torch.inference_mode():
            for k, layer in enumerate(self.module.layers):
                for part in ("key", "value"):
                    rows = torch.from_numpy(caches.of(k, part, length)).to(self.device)
                    getattr(layer, part)[:, :, :length].copy_(rows)


@lru_cache(2)  # a variant decompressed, and in torch's int4
def _network(model: Llama, device: str, kind: str, positions: int, int4: bool) -> Network:
    return Network(model, device, kind, positions, int4)


def peer(text: Text, mode: str, device: str, kind: str, int4: bool = False) -> Peer:
    """Return a step or a prompt in a mode of `bench.gpu_torch`, of that kind, or with torch's kernels for int4."""
    import torch

    assert text.llama is not None
    length = text.context or text.prompt
    net = _network(text.llama, device, "bfloat16" if int4 else kind, -(-length // 8192) * 8192, int4)
    tokens = np.array([[1]]) if text.context else prompt(text.sizes.vocabulary, length)
    if text.context:
        net.fill(Caches(text.sizes, length), length - 1)

    class Fixed(torch.nn.Module):
        def forward(self, tokens: Any, where: Any) -> Any:
            return net.module(tokens, where, length)

    return Peer(Fixed(), [tokens, np.arange(length - tokens.shape[1], length)], mode, device)
