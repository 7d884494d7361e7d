"""Element types, bit layouts, dimensions, shapes and layouts: the vocabulary of all other modules."""

from __future__ import annotations

from .any import OVAny
from .element import TF32, Type
from .layout import Layout
from .packing import NF4, Array, nbytes, pack, unpack
from .shape import UNBOUNDED, Dimension, PartialShape, Shape, Strides

__all__ = [
    "NF4",
    "TF32",
    "UNBOUNDED",
    "Array",
    "Dimension",
    "Layout",
    "OVAny",
    "PartialShape",
    "Shape",
    "Strides",
    "Type",
    "nbytes",
    "pack",
    "unpack",
]
