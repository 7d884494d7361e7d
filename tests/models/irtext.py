"""A minimal writer of IR as XML text plus weights: such models need neither torch nor openvino to make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]

_TYPES = {
    "float32": ("f32", "FP32"),
    "float16": ("f16", "FP16"),
    "int64": ("i64", "I64"),
    "int32": ("i32", "I32"),
}


@dataclass(frozen=True)
class Value:
    """One output port of a layer: where it comes from, its dtype name and its shape."""

    layer: int
    port: int
    dtype: str
    shape: tuple[int, ...]


def _port(index: int, dtype: str, shape: Sequence[int], name: str = "") -> str:
    dims = "".join(f"<dim>{d}</dim>" for d in shape)
    names = f' names="{name}"' if name else ""
    return f'<port id="{index}" precision="{_TYPES[dtype][1]}"{names}>{dims}</port>'


class Graph:
    """Collects layers in order; `xml()` gives the net, `weights` the bytes of its constants.

    A body shares the weights of the graph around it: `Graph("body", weights=outer.weights)`.
    """

    def __init__(self, name: str, weights: bytearray | None = None) -> None:
        self.name = name
        self.weights = bytearray() if weights is None else weights
        self._layers: list[str] = []
        self._edges: list[str] = []

    def add(
        self,
        kind: str,
        inputs: Sequence[Value] = (),
        outputs: Sequence[tuple[str, Sequence[int]]] = (),
        *,
        version: str = "opset1",
        name: str = "",
        names: Sequence[str] = (),
        inner: str = "",
        **data: object,
    ) -> list[Value]:
        """Appends a layer with `data` attributes and `inner` XML.

        `outputs` are (dtype name, shape), `names` their tensor names if any.
        """
        index = len(self._layers)
        attributes = "".join(f' {key}="{value}"' for key, value in data.items())
        text = f'<layer id="{index}" name="{name or f"{kind}_{index}"}" type="{kind}" version="{version}">'
        text += f"<data{attributes}/>" if data else ""
        if inputs:
            text += "<input>" + "".join(_port(i, v.dtype, v.shape) for i, v in enumerate(inputs)) + "</input>"
        values = [Value(index, len(inputs) + i, d, tuple(s)) for i, (d, s) in enumerate(outputs)]
        if values:
            tensors = [*names, *[""] * len(values)]
            ports = (_port(v.port, v.dtype, v.shape, tensor) for v, tensor in zip(values, tensors))
            text += "<output>" + "".join(ports) + "</output>"
        self._layers.append(text + inner + "</layer>")
        self._edges += [
            f'<edge from-layer="{v.layer}" from-port="{v.port}" to-layer="{index}" to-port="{i}"/>'
            for i, v in enumerate(inputs)
        ]
        return values

    def parameter(self, dtype: str, shape: Sequence[int], name: str = "") -> Value:
        return self.add(
            "Parameter", (), [(dtype, shape)], name=name, names=[name],
            shape=",".join(map(str, shape)), element_type=_TYPES[dtype][0],
        )[0]  # fmt: skip

    def constant(self, array: Array, name: str = "") -> Value:
        offset, dtype = len(self.weights), array.dtype.name
        self.weights += array.tobytes()
        return self.add(
            "Const", (), [(dtype, array.shape)], name=name, element_type=_TYPES[dtype][0],
            shape=",".join(map(str, array.shape)), offset=offset, size=array.nbytes,
        )[0]  # fmt: skip

    def result(self, value: Value) -> int:
        """Ends the graph at `value`; returns the id of the Result layer."""
        self.add("Result", [value])
        return len(self._layers) - 1

    def parts(self) -> str:
        """The layers and edges alone, as a body holds them."""
        layers, edges = "\n".join(self._layers), "\n".join(self._edges)
        return f"<layers>\n{layers}\n</layers>\n<edges>\n{edges}\n</edges>"

    def xml(self) -> str:
        return f'<?xml version="1.0"?>\n<net name="{self.name}" version="11">\n{self.parts()}\n</net>\n'
