"""XML of untrusted files: no entities, no DTD, no network, bounded depth and size."""

from __future__ import annotations

from lxml import etree

from ovgpu.errors import ModelError

Element = etree._Element

MAX_BYTES = 1 << 30
"""Larger documents are refused; the largest language models have about 50 MB."""


def parse(text: bytes, source: str) -> Element:
    """The root element. Raises `ModelError` for what is no well-formed UTF-8 document without a DTD."""
    where = f" ({source})" if source else ""
    if len(text) > MAX_BYTES:
        raise ModelError(f"the XML is larger than {MAX_BYTES} bytes{where}")
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text:
        raise ModelError(f"the XML has a document type declaration, which is not allowed{where}")
    # The fixed encoding makes the search above reliable. libxml2 itself limits the depth to 256 elements and
    # the length of a text or attribute to 10 MB, as long as `huge_tree` is off.
    parser = etree.XMLParser(encoding="utf-8", resolve_entities=False, no_network=True, load_dtd=False,
                             huge_tree=False, remove_blank_text=True, remove_comments=True, remove_pis=True)
    try:
        return etree.fromstring(text, parser)
    except etree.XMLSyntaxError as e:
        raise ModelError(f"the XML is malformed: {e.msg or 'it is empty'}{where}") from None
