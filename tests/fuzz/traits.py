"""Traits of a model that explain differences: the sizes of its values, and the element types in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from lxml import etree

import ovgpu
from tests.harness.elements import ELEMENTS

from .corpus import Subject

FEW_LAYERS = 20
EXTREME = 1e15
MILLION = 1_000_000
REAL = {name: ELEMENTS[name].dtype for name in ("f64", "f32", "f16", "bf16")}
WIDE = {name: ELEMENTS[name].dtype for name in ("i64", "u64", "i32", "u32")}


def is_small(subject: Subject) -> bool:
    """Return whether a model has only a few layers."""
    return subject.xml.count(b"<layer ") <= FEW_LAYERS


def has_extreme_values(subject: Subject) -> bool:
    """Return whether a real constant or input has values that are not finite, or beyond `EXTREME`."""
    with np.errstate(all="ignore"):
        return any(not bool((np.abs(v.astype(np.float64)) < EXTREME).all()) for v in _values(subject, REAL))


def has_wide_integers(subject: Subject) -> bool:
    """Return whether an integer constant or input has values beyond i32, other than the greatest of i64, which stands
    for the end of an axis."""
    return any(
        bool((((v > 2**31 - 1) & (v != 2**63 - 1)) | (v.astype(np.float64) < -(2**31))).any())
        for v in _values(subject, WIDE)
    )


def has_millions(subject: Subject) -> bool:
    """Return whether an integer constant or input, which may be a trip count or a shift, is in the millions."""
    return any(bool((v.astype(np.float64) >= MILLION).any()) for v in _values(subject, WIDE))


def may_loop_forever(subject: Subject) -> bool:
    """Return whether an integer constant or input of one element, such as a trip count, is below 0."""
    return any(v.size == 1 and bool((v < 0).all()) for v in _values(subject, WIDE))


def has_zero_parameters(subject: Subject) -> bool:
    """Return whether a real constant or input of one element is 0 in f32."""
    with np.errstate(all="ignore"):
        return any(v.size == 1 and not v.astype(np.float32).any() for v in _values(subject, REAL))


def mixes_integers_and_reals(subject: Subject) -> bool:
    """Return whether an operation that computes in floating point has integers for inputs."""
    try:
        nodes: list[Any] = ovgpu.Core().read_model(subject.xml, subject.weights).get_ops()
    except ovgpu.Error:
        return False
    return any(getattr(node.op, "floating", False) and node.sources[0].spec.type.is_integral() for node in nodes)


def _values(subject: Subject, dtypes: dict[str, Any]) -> Iterator[Any]:
    """Yield inputs and constants of these element types."""
    yield from (array for call in subject.calls for array, kind in call if kind in dtypes)
    root = etree.fromstring(subject.xml, etree.XMLParser(recover=True, huge_tree=True))
    for data in () if root is None else root.iter("data"):
        dtype, offset, size = dtypes.get(data.get("element_type", "")), data.get("offset", ""), data.get("size", "")
        if dtype is not None and offset.isdigit() and size.isdigit():
            part = subject.weights[int(offset) : int(offset) + int(size)]
            yield np.frombuffer(part[: len(part) // dtype.itemsize * dtype.itemsize], dtype)
