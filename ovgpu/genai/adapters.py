"""LoRA adapters (Hu et al., arXiv 2106.09685): pairs of small matrices that change layers of a model."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from ovgpu.errors import Error
from ovgpu.genai.safetensors import Array, read_safetensors
from ovgpu.model import Model, Node, Output
from ovgpu.ops.arithmetic.arithmetic import Add
from ovgpu.ops.infrastructure.graph import Constant
from ovgpu.ops.matrix.matmul import MatMul
from ovgpu.types import Type

PREFIX = "base_model.model."  # of the names of layers, as PEFT writes them
PARTS = re.compile(r"(.*)[_.]lora[_.](A|B|down|up)\.weight")


class Adapter:
    """Adapter of a .safetensors file: ``path``, or a tensor with its contents (u8).

    Raises: RuntimeError for a file that cannot be read, or has no adapter of layers; TypeError for another argument.
    """

    def __init__(self, path: Any) -> None:
        self._layers: dict[str, tuple[Array, Array]] = {}  # matrices [rank, inputs] and [outputs, rank]
        tensors = self._read(path)
        found: dict[str, dict[str, Array]] = {}
        for name, tensor in tensors.items():
            parts = PARTS.fullmatch(name)
            if parts:
                found.setdefault(parts[1], {})["A" if parts[2] in ("A", "down") else "B"] = tensor
            elif name.endswith(("lm_head.weight", "embed_tokens.weight")):
                raise Error(f"{path!r} replaces all weights of {name}, which ovgpu.genai does not support")
        for name, pair in sorted(found.items()):
            a, b = pair.get("A"), pair.get("B")
            if a is None or b is None or a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
                raise Error(f"{path!r} has no pair of matrices [rank, inputs] and [outputs, rank] for the layer {name}")
            self._layers[name] = a, b
        if not self._layers:
            raise Error(f"{path!r} has no tensors named like LAYER.lora_A.weight and LAYER.lora_B.weight")

    @staticmethod
    def _read(path: Any) -> Mapping[str, Array]:
        if isinstance(path, (str, bytes, os.PathLike)):
            file = Path(os.fsdecode(path))
            if not file.is_file():
                raise Error(f"there is no adapter {file}")
            return read_safetensors(np.memmap(file, np.uint8, "r") if file.stat().st_size else b"", str(file))
        contents = getattr(path, "data", None)
        if not isinstance(contents, np.ndarray):
            raise TypeError(f"an Adapter is read from a path or a tensor, not {path!r}")
        return read_safetensors(np.ascontiguousarray(contents).view(np.uint8).ravel(), "the tensor")

    def layer(self, name: str) -> tuple[Array, Array] | None:
        """Return the matrices for a layer of a model, if the adapter changes that."""
        return next(
            (pair for key, pair in self._layers.items() if key.startswith(PREFIX) and key[len(PREFIX) :] in name), None
        )


class _Mode(IntEnum):
    MODE_AUTO = 0
    MODE_DYNAMIC = 1
    MODE_STATIC_RANK = 2
    MODE_STATIC = 3
    MODE_FUSE = 4


class AdapterConfig:
    """Adapters with their factors (alpha), by default 1.

    ``AdapterConfig(adapter, alpha)`` has one, ``AdapterConfig(adapters)`` a list of `Adapter` or of pairs with a
    factor, and `AdapterConfig()` none. The mode has no effect. As bool, it is whether there are adapters.

    Raises: TypeError for other arguments; RuntimeError for an adapter that is given twice.
    """

    Mode = _Mode

    def __init__(
        self, adapters: Any = (), alpha: Any = 1.0, mode: Any = _Mode.MODE_AUTO, *, adapter: Any = None
    ) -> None:
        if isinstance(alpha, _Mode):
            alpha, mode = 1.0, alpha
        if isinstance(adapters, _Mode):
            adapters, mode = (), adapters
        if not isinstance(mode, _Mode):
            raise TypeError(f"the mode of an AdapterConfig is an AdapterConfig.Mode, not {mode!r}")
        adapters = adapters if adapter is None else adapter
        self._alphas: dict[Adapter, float] = {}
        if isinstance(adapters, Adapter):
            self.add(adapters, alpha)
        elif isinstance(adapters, Iterable):
            self._extend(adapters)
        else:
            raise TypeError(f"an AdapterConfig has an Adapter, or a list of them, not {adapters!r}")

    def add(self, adapter: Adapter, alpha: float = 1.0) -> AdapterConfig:
        """Add an adapter, and return this object. Raises: RuntimeError if it is there already."""
        if not isinstance(adapter, Adapter):
            raise TypeError(f"an AdapterConfig has Adapters, not {adapter!r}")
        if adapter in self._alphas:
            raise Error("the adapter is there already: call set_alpha")
        self._alphas[adapter] = _checked(alpha)
        return self

    def remove(self, adapter: Adapter) -> AdapterConfig:
        """Remove an adapter, and return this object. Raises: RuntimeError if it is not there."""
        self.get_alpha(adapter)
        del self._alphas[adapter]
        return self

    def set_alpha(self, adapter: Adapter, alpha: float) -> AdapterConfig:
        """Set the factor of an adapter, and return this object. Raises: RuntimeError if it is not there."""
        self.get_alpha(adapter)
        self._alphas[adapter] = _checked(alpha)
        return self

    def get_alpha(self, adapter: Adapter) -> float:
        """Return the factor of an adapter. Raises: RuntimeError if it is not there."""
        if adapter not in self._alphas:
            raise Error("the adapter is not there: call add")
        return self._alphas[adapter]

    def get_adapters(self) -> list[Adapter]:
        """Return the adapters."""
        return [*self._alphas]

    def get_adapters_and_alphas(self) -> list[tuple[Adapter, float]]:
        """Return pairs of adapters and factors."""
        return [*self._alphas.items()]

    def set_adapters_and_alphas(self, adapters: Sequence[tuple[Adapter, float]]) -> None:
        """Replace all adapters by pairs of adapters and factors."""
        self._alphas = AdapterConfig(adapters)._alphas

    def __bool__(self) -> bool:
        return bool(self._alphas)

    def copy(self) -> AdapterConfig:
        """Return a copy, which has the same adapters."""
        return AdapterConfig(self.get_adapters_and_alphas())

    def _extend(self, adapters: Iterable[Any]) -> None:
        for each in adapters:
            self.add(*each) if isinstance(each, (tuple, list)) and len(each) == 2 else self.add(each)


def _checked(alpha: Any) -> float:
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not isfinite(alpha):
        raise TypeError(f"the factor of an adapter is a finite number, not {alpha!r}")
    return float(alpha)


def add_adapters(model: Model, adapters: Sequence[tuple[Adapter, float]]) -> None:
    """Add adapters with their factors to the products of a model, in place: ``x W + (x A) (alpha B)``.

    The matrices of several adapters are joined. Raises: Error if one changes no layer, or has matrices of another size.
    """
    used: set[Adapter] = set()
    for node in list(model.ops):
        name = node.friendly_name
        pairs = (
            [(adapter, alpha, adapter.layer(name)) for adapter, alpha in adapters] if node.op.name == "MatMul" else []
        )
        found = [(adapter, alpha, pair) for adapter, alpha, pair in pairs if pair is not None]
        if not found:
            continue
        used |= {adapter for adapter, _, _ in found}
        a = np.concatenate([np.asarray(pair[0], np.float32) for _, _, pair in found])
        b = np.concatenate([np.asarray(pair[1], np.float32) * np.float32(alpha) for _, alpha, pair in found], 1)
        (result,), source = node.ports, node.sources[0]
        assert source is not None
        if not (_fits(source, a.shape[1]) and _fits(result, b.shape[0])):
            raise Error(f"an adapter has matrices {list(a.shape)} and {list(b.shape)} for {name}, which do not fit it")
        low = Node(MatMul(transpose_b=True), [source, _constant(a, source)], name=f"{name}/lora_A").ports[0]
        change = Node(MatMul(transpose_b=True), [low, _constant(b, source)], name=f"{name}/lora_B").ports[0]
        total = Node(Add(), [result, change], name=f"{name}/lora").ports[0]
        result.replace(total)
        total.node.sources[0] = result
    if len(used) < len(adapters):
        raise Error(f"an adapter changes no layer of the model: names of its layers begin with {PREFIX}")
    model.changed()
    model.validate_nodes_and_infer_types()


def _fits(port: Output, extent: int) -> bool:
    shape = port.partial_shape
    return shape.rank.is_static and len(shape) > 0 and (shape[-1].is_dynamic or shape[-1].get_length() == extent)


def _constant(value: Array, like: Output) -> Output:
    kind = Type.f32 if like.element_type.is_dynamic() else like.element_type
    return Node(Constant(element_type=kind, value=value.astype(kind.storage)), []).ports[0]
