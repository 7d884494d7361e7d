"""Models for ovgpu alone: their layers are of opsets that OpenVINO does not have, so that it reads none of them.

OpenVINO's process would end, or its work never, on some models that ovgpu must refuse, or compute with the values that
a test knows itself. No file that the tests write holds such a model in OpenVINO's own words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ovgpu.ir.read import _op_class, read_model
from ovgpu.ops.base.op import _registry

from .ir import Net, Variant

PREFIX = "private."  # begins the name of an opset that OpenVINO does not have
LAYER = re.compile(rb'<layer (?=[^>]*type="(?!Parameter"|Const"|Result")([^"]*)")([^>]*version=")([^"]*)')


def private(xml: bytes) -> bytes:
    """Return a model whose layers are of private opsets. Parameters, constants and results have none."""
    return LAYER.sub(rb"<layer \2%s\3" % PREFIX.encode(), xml)


@contextmanager
def private_opsets(xml: bytes) -> Iterator[None]:
    """Let ovgpu read a private model: each operation has the class that it has in its own opset."""
    added = set()
    for layer in LAYER.finditer(xml):
        name, version = (group.decode(errors="replace") for group in layer.group(1, 3))
        cls = _op_class(name, version.removeprefix(PREFIX))
        if version.startswith(PREFIX) and name in _registry and cls is not None and version not in _registry[name]:
            _registry[name][version] = cls
            added.add((name, version))
    try:
        yield
    finally:
        for name, version in added:
            del _registry[name][version]


def read_private(net: Net, variant: Variant = "static") -> Any:
    """Return the private model of a net, as ovgpu read it."""
    xml, weights = net.build(variant)
    xml = private(xml)
    with private_opsets(xml):
        return read_model(xml, weights)
