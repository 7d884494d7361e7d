"""Small changes to a model that keep its document well formed, and often the model valid.

A change takes a draft and a random generator, and returns whether it found something to change.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from lxml import etree

from tests.harness.elements import ELEMENTS

from .corpus import Corpus, pick

Element = etree._Element
EXTENTS = [
    "-1",
    "0",
    "1",
    "2",
    "3",
    "4",
    "5",
    "7",
    "8",
    "16",
    "17",
    "33",
    "64",
    "100",
    "1000",
    "65536",
    "2147483647",
    "2147483648",
    "4294967296",
    "9223372036854775807",
]
NUMBERS = [
    "-9223372036854775808",
    "-2147483648",
    "-100",
    "-3",
    "-2",
    "-1",
    "0",
    "1",
    "2",
    "3",
    "4",
    "5",
    "8",
    "10",
    "100",
    "65536",
    "2147483647",
    "4294967296",
    "9223372036854775807",
    "0.5",
    "-0.5",
    "1e-30",
    "1e30",
    "inf",
    "nan",
]
DIMS = [*EXTENTS, "?", "1..3", "2..", "..4"]
TYPE_ATTRIBUTES = ("element_type", "destination_type", "output_type", "variable_type", "index_element_type")
REAL = {"f32": "<f4", "f64": "<f8", "f16": "<f2"}
SMALL_BYTES = 4096  # largest constant that gets random values


@dataclass
class Draft:
    """A model while it is changed."""

    root: Element
    weights: bytearray
    corpus: Corpus

    def scopes(self) -> list[Element]:
        """Return the model and the bodies in it."""
        return [e for e in self.root.iter() if e.find("layers") is not None and e.find("edges") is not None]

    def layers(self, type: str | None = None) -> list[Element]:
        return [e for e in self.root.iter("layer") if type in (None, e.get("type"))]

    def constants(self) -> list[Element]:
        """Return the <data> of constants."""
        return [data for layer in self.layers("Const") if (data := layer.find("data")) is not None]


Change = Callable[[Draft, random.Random], bool]
CHANGES: list[tuple[int, Change]] = []  # with their relative frequencies


def change(weight: int) -> Callable[[Change], Change]:
    """Register a function in `CHANGES` with a relative frequency."""

    def add(function: Change) -> Change:
        CHANGES.append((weight, function))
        return function

    return add


# ---- types and extents


@change(3)
def other_type(draft: Draft, rng: random.Random) -> bool:
    """Set another element type of an input, a constant or an attribute."""
    found = [(e, name) for e in draft.root.iter() for name in TYPE_ATTRIBUTES if e.get(name)]
    if not found:
        return False
    element, name = rng.choice(found)
    element.set(name, rng.choice([*ELEMENTS, "dynamic"]))
    if element in draft.constants() and rng.random() < 0.8:
        _refill(draft, element, rng)
    return True


@change(1)
def other_precision(draft: Draft, rng: random.Random) -> bool:
    """Set another type that a port declares."""
    return _set(
        rng,
        [e for e in draft.root.iter("port") if e.get("precision")],
        "precision",
        [e.precision for e in ELEMENTS.values()],
    )


@change(4)
def other_shape(draft: Draft, rng: random.Random) -> bool:
    """Set another extent or another rank of an input or a constant."""
    found = [e for e in draft.root.iter("data") if e.get("shape") is not None]
    if not found:
        return False
    data = rng.choice(found)
    constant = data.get("offset") is not None
    data.set("shape", _other_list(data.get("shape", ""), rng, EXTENTS if constant else DIMS))
    if constant and rng.random() < 0.8:
        _refill(draft, data, rng)
    return True


@change(1)
def other_dim(draft: Draft, rng: random.Random) -> bool:
    """Set another extent that a port declares."""
    found = list(draft.root.iter("dim"))
    if found:
        rng.choice(found).text = rng.choice(EXTENTS)
    return bool(found)


# ---- attributes


@change(6)
def other_number(draft: Draft, rng: random.Random) -> bool:
    """Set another number in an attribute, or another length of a list."""
    found = [
        (e, name)
        for e in draft.root.iter("data", "input", "output")
        for name, value in e.attrib.items()
        if name not in ("offset", "size") and _is_number(value.split(",")[0])
    ]
    if not found:
        return False
    element, name = rng.choice(found)
    element.set(name, _other_list(element.get(name, ""), rng, NUMBERS))
    return True


@change(3)
def other_word(draft: Draft, rng: random.Random) -> bool:
    """Set a value that another model of the corpus has in an attribute of this name."""
    found = [
        (e, name)
        for e in draft.root.iter("data", "input", "output")
        for name in e.attrib
        if len(draft.corpus.words.get(name, ())) > 1
    ]
    if not found:
        return False
    element, name = rng.choice(found)
    element.set(name, pick(rng, draft.corpus.words[name]))
    return True


@change(1)
def no_attribute(draft: Draft, rng: random.Random) -> bool:
    """Remove an attribute."""
    found = [(e, name) for e in draft.root.iter("data", "input", "output", "edge", "layer") for name in e.attrib]
    if found:
        element, name = rng.choice(found)
        del element.attrib[name]
    return bool(found)


# ---- constants


@change(4)
def other_values(draft: Draft, rng: random.Random) -> bool:
    """Set an element of a constant to a special number."""
    found = [data for data in draft.constants() if _integer(data, "size") > 0]
    if not found:
        return False
    data = rng.choice(found)
    kind = data.get("element_type", "")
    size = max(1, ELEMENTS[kind].bits // 8) if kind in ELEMENTS else 1
    at = _integer(data, "offset") + size * rng.randrange(max(1, _integer(data, "size") // size))
    if kind in REAL:
        with np.errstate(over="ignore"):
            draft.weights[at : at + size] = np.array(
                rng.choice([0, -1, 1e30, float("inf"), float("nan"), 0.5]), REAL[kind]
            ).tobytes()
    else:
        value = int(rng.choice([v for v in NUMBERS if v.lstrip("-").isdigit()]))
        draft.weights[at : at + size] = (value % 256**size).to_bytes(size, "little")
    return True


@change(1)
def other_offset(draft: Draft, rng: random.Random) -> bool:
    """Set another offset or size of a constant in the weights."""
    return _set(rng, draft.constants(), rng.choice(["offset", "size"]), [*EXTENTS, str(len(draft.weights)), "12", "24"])


@change(1)
def other_weights(draft: Draft, rng: random.Random) -> bool:
    """Cut the weights off, or make a part of them random."""
    if not draft.weights:
        return False
    if rng.random() < 0.5:
        del draft.weights[rng.randrange(len(draft.weights)) :]
    else:
        at = rng.randrange(len(draft.weights))
        part = draft.weights[at : at + SMALL_BYTES]
        draft.weights[at : at + SMALL_BYTES] = rng.randbytes(len(part))
    return True


@change(1)
def input_for_constant(draft: Draft, rng: random.Random) -> bool:
    """Turn a constant into an input, whose values are drawn."""
    found = draft.layers("Const")
    if not found:
        return False
    layer = rng.choice(found)
    layer.set("type", "Parameter")
    layer.set("version", "opset1")
    for name in ("offset", "size"):
        layer.find("data").attrib.pop(name, None)
    return True


# ---- edges, ports and layers


@change(3)
def other_edge(draft: Draft, rng: random.Random) -> bool:
    """Have an edge begin at another layer's output."""
    edges, ends = _edges(draft, rng)
    if edges and ends:
        edge, end = rng.choice(edges), rng.choice(ends)
        edge.set("from-layer", end[0])
        edge.set("from-port", end[1])
    return bool(edges and ends)


@change(2)
def swapped_inputs(draft: Draft, rng: random.Random) -> bool:
    """Exchange the ends of two edges of a scope."""
    edges, _ = _edges(draft, rng)
    if len(edges) < 2:
        return False
    first, second = rng.sample(edges, 2)
    for name in ("to-layer", "to-port"):
        a, b = first.get(name, "0"), second.get(name, "0")
        first.set(name, b)
        second.set(name, a)
    return True


@change(1)
def edges_changed(draft: Draft, rng: random.Random) -> bool:
    """Remove or double an edge, or change one of its numbers."""
    edges, _ = _edges(draft, rng)
    if not edges:
        return False
    edge = rng.choice(edges)
    what = rng.randrange(3)
    if what == 0:
        edge.getparent().remove(edge)
    elif what == 1:
        edge.addnext(copy.deepcopy(edge))
    else:
        edge.set(rng.choice(list(edge.attrib)), rng.choice(["0", "1", "2", "3", "-1", "99"]))
    return True


@change(2)
def fewer_inputs(draft: Draft, rng: random.Random) -> bool:
    """Remove the last input of a layer."""
    found = [layer for layer in draft.layers() if layer.findall("input/port")]
    if not found:
        return False
    layer = rng.choice(found)
    port = layer.findall("input/port")[-1]
    for edge in layer.getparent().getparent().findall("edges/edge"):
        if (edge.get("to-layer"), edge.get("to-port")) == (layer.get("id"), port.get("id")):
            edge.getparent().remove(edge)
    port.getparent().remove(port)
    return True


@change(3)
def other_operation(draft: Draft, rng: random.Random) -> bool:
    """Give a layer another type with as many inputs and outputs, with or without its attributes."""
    found = [layer for layer in draft.layers() if layer.get("type") not in ("Parameter", "Const", "Result")]
    if not found:
        return False
    layer = rng.choice(found)
    others = {key: e for key, e in draft.corpus.layers.items() if _ports(e) == _ports(layer)}
    if not others:
        return False
    other = others[pick(rng, others)]
    layer.set("type", other.get("type", ""))
    layer.set("version", other.get("version", ""))
    if rng.random() < 0.8:
        for data in layer.findall("data"):
            layer.remove(data)
        for data in other.findall("data"):
            layer.insert(0, copy.deepcopy(data))
    return True


@change(1)
def other_version(draft: Draft, rng: random.Random) -> bool:
    """Give a layer another opset."""
    return _set(rng, draft.layers(), "version", [f"opset{n}" for n in range(1, 17)])


@change(3)
def inserted(draft: Draft, rng: random.Random) -> bool:
    """Put a layer of one input onto an edge."""
    edges, _ = _edges(draft, rng)
    others = {
        key: e
        for key, e in draft.corpus.layers.items()
        if _ports(e) == (1, 1) and e.get("type") not in ("Result", "Assign")
    }
    if not edges:
        return False
    edge, layer = rng.choice(edges), copy.deepcopy(others[pick(rng, others)])
    _add(draft, edge.getparent().getparent(), layer)
    onward = copy.deepcopy(edge)
    onward.set("from-layer", layer.get("id", ""))
    onward.set("from-port", "1")
    edge.set("to-layer", layer.get("id", ""))
    edge.set("to-port", "0")
    edge.addnext(onward)
    return True


@change(2)
def removed(draft: Draft, rng: random.Random) -> bool:
    """Remove a layer; its users read its first input instead."""
    found = [layer for layer in draft.layers() if layer.get("type") != "Parameter"]
    if not found:
        return False
    layer = rng.choice(found)
    edges = layer.getparent().getparent().findall("edges/edge")
    sources = [edge for edge in edges if edge.get("to-layer") == layer.get("id")]
    for edge in edges:
        if edge.get("from-layer") == layer.get("id") and sources:
            edge.set("from-layer", sources[0].get("from-layer", ""))
            edge.set("from-port", sources[0].get("from-port", ""))
    for edge in sources:
        edge.getparent().remove(edge)
    layer.getparent().remove(layer)
    return True


@change(1)
def doubled(draft: Draft, rng: random.Random) -> bool:
    """Double a layer; half of its users read the copy."""
    layer = rng.choice(draft.layers())
    scope = layer.getparent().getparent()
    twin = copy.deepcopy(layer)
    _add(draft, scope, twin)
    for edge in scope.findall("edges/edge"):
        if edge.get("to-layer") == layer.get("id"):
            other = copy.deepcopy(edge)
            other.set("to-layer", twin.get("id", ""))
            edge.addnext(other)
        elif edge.get("from-layer") == layer.get("id") and rng.random() < 0.5:
            edge.set("from-layer", twin.get("id", ""))
    return True


@change(1)
def more_results(draft: Draft, rng: random.Random) -> bool:
    """Add a result of the model that shows a value inside it."""
    edges, ends = draft.root.find("edges"), _ends(draft.root)
    if edges is None or not ends:
        return False
    layer = etree.fromstring('<layer type="Result" version="opset1"><input><port id="0"/></input></layer>')
    _add(draft, draft.root, layer)
    source, port = rng.choice(ends)
    etree.SubElement(
        edges, "edge", {"from-layer": source, "from-port": port, "to-layer": layer.get("id", ""), "to-port": "0"}
    )
    return True


@change(1)
def reordered(draft: Draft, rng: random.Random) -> bool:
    """Shuffle the layers of a scope, and so the numbers of inputs and outputs."""
    layers = rng.choice(draft.scopes()).find("layers")
    order = list(layers)
    rng.shuffle(order)
    layers[:] = order
    return len(order) > 1


# ---- how changes are made


def _refill(draft: Draft, data: Element, rng: random.Random) -> None:
    """Give a constant its own random values, as many as it declares, unless these are too many."""
    count = 1
    for extent in filter(None, data.get("shape", "").split(",")):
        count *= int(extent) if extent.isdigit() else 0
    kind = ELEMENTS.get(data.get("element_type", ""))
    if kind is None or kind.name == "string" or (size := kind.nbytes(count)) > SMALL_BYTES:
        return
    data.set("offset", str(len(draft.weights)))
    data.set("size", str(size))
    small = kind.name[0] in "iu" and kind.bits >= 8
    for _ in range(count if small else 0):
        draft.weights += rng.randrange(4).to_bytes(kind.bits // 8, "little")
    if not small:
        draft.weights += rng.randbytes(size)


def _other_list(text: str, rng: random.Random, values: list[str]) -> str:
    """Return a list that differs by one element, or in length."""
    items = text.split(",") if text else []
    what = rng.randrange(6)
    if what == 0 or not items:
        items.insert(rng.randrange(len(items) + 1), rng.choice(values))
    elif what == 1:
        del items[rng.randrange(len(items))]
    elif what == 2 and _is_number(items[0]):
        at = rng.randrange(len(items))
        items[at] = str(_number(items[at]) + rng.choice([-1, 1])) if _is_number(items[at]) else items[at]
    else:
        items[rng.randrange(len(items))] = rng.choice(values)
    return ",".join(items)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _integer(data: Element, name: str) -> int:
    """Return an attribute that is a number, or else 0."""
    text = data.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def _number(text: str) -> Any:
    return int(text) if text.lstrip("-").isdigit() else float(text)


def _set(rng: random.Random, elements: list[Element], name: str, values: list[str]) -> bool:
    """Set an attribute of one of the elements."""
    if elements:
        rng.choice(elements).set(name, rng.choice(values))
    return bool(elements)


def _ports(layer: Element) -> tuple[int, int]:
    return len(layer.findall("input/port")), len(layer.findall("output/port"))


def _ends(scope: Element) -> list[tuple[str, str]]:
    """Return the outputs of the layers of a scope, by the numbers of layer and port."""
    return [
        (layer.get("id", ""), port.get("id", ""))
        for layer in scope.findall("layers/layer")
        for port in layer.findall("output/port")
    ]


def _edges(draft: Draft, rng: random.Random) -> tuple[list[Element], list[tuple[str, str]]]:
    """Return the edges of a scope, and the outputs in it."""
    scopes = draft.scopes()
    scope = rng.choice(scopes) if scopes else draft.root
    return scope.findall("edges/edge"), _ends(scope)


def _add(draft: Draft, scope: Element, layer: Element) -> None:
    """Add a layer to a scope, with a number and a name of its own."""
    number = 1 + max((int(e.get("id", "")) for e in draft.layers() if e.get("id", "").isdigit()), default=0)
    layer.set("id", str(number))
    layer.set("name", f"added_{number}")
    scope.find("layers").append(layer)
