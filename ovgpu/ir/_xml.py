"""XML: a parser for untrusted files (no entities, no DTD, no network, bounded depth) and a writer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from lxml import etree

from ovgpu.errors import ModelError

Element = etree._Element

MAX_BYTES = 1 << 30
"""Larger documents are rejected; those of the largest language models have about 50 MB."""


def parse(text: bytes, source: str) -> Element:
    """Return the root element. Raises `ModelError` unless ``text`` is well-formed UTF-8 without a DTD."""
    where = f" ({source})" if source else ""
    if len(text) > MAX_BYTES:
        raise ModelError(f"the XML is larger than {MAX_BYTES} bytes{where}")
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text:
        raise ModelError(f"the XML has a document type declaration, which is not allowed{where}")
    # The fixed encoding makes the search above reliable. libxml2 itself limits the depth to 256 elements and
    # the length of a text or attribute to 10 MB, as long as `huge_tree` is off.
    parser = etree.XMLParser(
        encoding="utf-8",
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        huge_tree=False,
        remove_blank_text=True,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        return etree.fromstring(text, parser)
    except etree.XMLSyntaxError as e:
        raise ModelError(f"the XML is malformed: {e.msg or 'it is empty'}{where}") from None


# ---- writing

FORBIDDEN = "[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
ATTRIBUTE_ESCAPES = {"\n": "&#10;", "\r": "&#13;", "\t": "&#9;"}


@dataclass
class Lines:
    """Writer of indented lines of XML."""

    file: IO[bytes]
    depth: int = 0

    def put(self, line: str) -> None:
        self.file.write(b"\t" * self.depth + line.encode() + b"\n")

    def empty(self, tag: str, **attributes: Any) -> None:
        """Write an element without content. Attributes that are None are omitted."""
        self.put(f"<{_open(tag, attributes)} />")

    @contextmanager
    def element(self, tag: str, **attributes: Any) -> Iterator[None]:
        self.put(f"<{_open(tag, attributes)}>")
        self.depth += 1
        yield
        self.depth -= 1
        self.put(f"</{tag}>")


def _open(tag: str, attributes: dict[str, Any]) -> str:
    from xml.sax.saxutils import quoteattr  # imports urllib, which readers do not need

    parts = [tag]
    for name, value in attributes.items():
        if value is not None:
            text = str(value)
            if re.search(FORBIDDEN, text):
                raise ModelError(f"{name}={text[:60]!r} has characters that XML cannot hold")
            parts.append(f"{name}={quoteattr(text, ATTRIBUTE_ESCAPES)}")
    return " ".join(parts)
