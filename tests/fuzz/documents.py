"""Corrupted copies of documents."""

from __future__ import annotations

import copy
import random

from lxml import etree

VALUES = [
    "",
    "-1",
    "0",
    "1",
    "2",
    "7",
    "-9223372036854775808",
    "9223372036854775807",
    "18446744073709551616",
    "99999999999999999999999999",
    "1e309",
    "nan",
    "inf",
    "0.5",
    "x",
    "?",
    "...",
    "-5..3",
    "1..",
    ",",
    "1,,2",
    "4294967296,4294967296,4294967296",
    "1,2,3,4,5,6,7,8",
    "f32",
    "i64",
    "string",
    "dynamic",
    "boolean",
    "u1",
    "true",
    "opset1",
    "opset8",
    "opset13",
    "Parameter",
    "Result",
    "Const",
    "Add",
    "MatMul",
    "Reshape",
    "If",
    "ReadValue",
    "Assign",
    "TensorIterator",
    "Split",
    "Concat",
    "Convolution",
    "a" * 3000,
    "\u00e9\u4e2d",
    " 1 ",
]


def structure(xml: bytes, rng: random.Random) -> bytes:
    """Make one to three changes to elements and attributes; the document stays well formed."""
    root = etree.fromstring(xml)
    for _ in range(rng.randint(1, 3)):
        element = rng.choice(list(root.iter()))
        parent = element.getparent()
        change = rng.randrange(8)
        if change <= 2 and element.attrib:
            element.set(rng.choice(list(element.attrib)), rng.choice(VALUES))
        elif change == 3 and element.attrib:
            del element.attrib[rng.choice(list(element.attrib))]
        elif change == 4 and parent is not None:
            parent.remove(element)
        elif change == 5 and parent is not None:
            parent.insert(rng.randrange(len(parent) + 1), copy.deepcopy(element))
        elif change == 6 and parent is not None:
            parent.insert(rng.randrange(len(parent) + 1), element)
        elif change == 7:
            element.text = rng.choice(VALUES)
    return etree.tostring(root)


def text(xml: bytes, rng: random.Random) -> bytes:
    """Change, remove, double or insert bytes, or cut off the end."""
    data = bytearray(xml)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data))
        span = rng.choice([1, 2, 10, 300])
        change = rng.randrange(5)
        if change == 0:
            data[at] = rng.randrange(256)
        elif change == 1:
            del data[at : at + span]
        elif change == 2:
            data[at:at] = data[at : at + span]
        elif change == 3:
            data[at:at] = rng.choice([b"<", b">", b"&", b'"', b"\0", b"\xff", b"]]>", b"<!--", b"&lt;", b"9" * 30])
        elif at > 1:
            del data[at:]
        if not data:
            return b" "
    return bytes(data)
