"""Reduction of a mutant to the smallest model that still shows its finding."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from lxml import etree

from .corpus import Corpus, Subject
from .mutants import mutated

Holds = Callable[[Subject], bool]
TRIALS = 400  # models to try, at most

PRECISIONS = {
    "FP32": "f32",
    "FP16": "f16",
    "FP64": "f64",
    "BF16": "bf16",
    "I64": "i64",
    "I32": "i32",
    "U8": "u8",
    "I8": "i8",
    "BOOL": "boolean",
}


def reduced(subject: Subject, changes: Sequence[int], corpus: Corpus, holds: Holds) -> Subject:
    """Return a mutant without the changes, inferences and layers that its finding does not need."""
    found, left = mutated(subject, changes, corpus), list(changes)
    for change in changes:
        fewer = [other for other in left if other != change]
        if fewer != left and holds(mutated(subject, fewer, corpus)):
            found, left = mutated(subject, fewer, corpus), fewer
    for calls in ([], found.calls[:1]):
        if len(calls) < len(found.calls) and holds(replace(found, calls=calls or [[]])):
            found = replace(found, calls=calls or [[]])
            break
    trials = iter(range(TRIALS))
    shrunk = True
    while shrunk:
        shrunk = False
        for smaller in smaller_models(found):
            if next(trials, None) is None:
                return compacted(found, holds)
            if holds(smaller):
                found, shrunk = smaller, True
                break
    return compacted(found, holds)


def smaller_models(subject: Subject) -> Iterator[Subject]:
    """Yield models with fewer layers: without a result or an assignment and the layers that only it needs, or with an
    input instead of a layer. The largest steps come first."""
    try:
        root = etree.fromstring(subject.xml)
    except etree.XMLSyntaxError:
        return
    layers = root.findall("layers/layer")
    results = [layer for layer in layers if layer.get("type") == "Result"]
    assigns = [layer for layer in layers if layer.get("type") == "Assign"]
    for last in assigns + (results if len(results) > 1 else []):
        yield _with(subject, _pruned(root, {last.get("id", "")}))
    bare = _pruned(root, set())
    if len(bare.findall("layers/layer")) < len(layers):
        yield _with(subject, bare)
    inner = [layer for layer in layers if layer.get("type") not in ("Parameter", "Const", "Result", "Assign")]
    for layer in reversed(inner):  # a cut at a later layer removes more layers
        cut = _cut(root, layer.get("id", ""))
        if cut is not None:
            yield _with(subject, cut)


def compacted(subject: Subject, holds: Holds) -> Subject:
    """Return the subject with no more weights than its constants need."""
    try:
        root, weights = etree.fromstring(subject.xml), bytearray()
        for data in root.iter("data"):
            if data.get("offset") is not None:
                begin, size = int(data.get("offset", "")), int(data.get("size", ""))
                data.set("offset", str(len(weights)))
                weights += subject.weights[begin : begin + size]
    except (ValueError, etree.XMLSyntaxError):
        return subject
    found = replace(subject, xml=etree.tostring(root), weights=bytes(weights))
    return found if len(weights) < len(subject.weights) and holds(found) else subject


def _with(subject: Subject, root: etree._Element) -> Subject:
    """Return the subject with another document, and the values of the inputs that are left."""
    parameters = [layer.get("id") for layer in root.findall("layers/layer[@type='Parameter']")]
    old = etree.fromstring(subject.xml).findall("layers/layer[@type='Parameter']")
    number = {layer.get("id"): i for i, layer in enumerate(old)}
    calls = [[call[number[i]] for i in parameters if i in number and number[i] < len(call)] for call in subject.calls]
    return replace(subject, xml=etree.tostring(root), calls=calls)


def _pruned(root: etree._Element, without: set[str]) -> etree._Element:
    """Return a copy without some layers, and without those that no result needs any more."""
    root = copy.deepcopy(root)
    layers = {layer.get("id", ""): layer for layer in root.findall("layers/layer")}
    edges = root.findall("edges/edge")
    needed = [i for i, layer in layers.items() if layer.get("type") in ("Result", "Assign") and i not in without]
    for i in needed:  # the loop extends the list
        needed += [
            source
            for edge in edges
            if edge.get("to-layer") == i and (source := edge.get("from-layer", "")) not in needed
        ]
    for i, layer in layers.items():
        if i not in needed:
            layer.getparent().remove(layer)
    for edge in edges:
        if edge.get("to-layer") not in needed:
            edge.getparent().remove(edge)
    return root


def _cut(root: etree._Element, number: str) -> etree._Element | None:
    """Return a copy with an input in place of a layer, None unless the layer has one output of a known type."""
    root = copy.deepcopy(root)
    layer = next(e for e in root.findall("layers/layer") if e.get("id") == number)
    ports = layer.findall("output/port")
    kind = PRECISIONS.get(ports[0].get("precision", "")) if len(ports) == 1 else None
    if kind is None or (layer.get("type") == "ReadValue"):
        return None
    shape = ",".join((dim.text or "").replace("-1", "?") for dim in ports[0].findall("dim"))
    for child in layer.findall("data") + layer.findall("input"):
        layer.remove(child)
    layer.set("type", "Parameter")
    layer.set("version", "opset1")
    layer.insert(0, etree.Element("data", {"shape": shape, "element_type": kind}))
    for edge in root.findall("edges/edge"):
        if edge.get("to-layer") == number:
            edge.getparent().remove(edge)
    return _pruned(root, set())
