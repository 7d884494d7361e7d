"""Layers of an IR file, unparsed: names, ports, attribute texts, runtime information."""

from __future__ import annotations

import re
from typing import Any

from lxml import etree

from ovgpu.errors import ModelError
from ovgpu.ir._xml import Element
from ovgpu.types import PartialShape, Type


class Layer:
    """One ``<layer>``. ``inputs`` and ``outputs`` map the port ids of the file to indices."""

    def __init__(self, element: Element, source: str) -> None:
        self.element, self.source = element, source
        attributes: Any = dict(element.attrib)
        self.id, self.type, self.version = (
            attributes.get("id", ""),
            attributes.get("type", ""),
            attributes.get("version", ""),
        )
        self.name = attributes.get("name") or f"{self.type}_{self.id}"
        for attribute in ("id", "type", "version"):
            if attribute not in attributes:
                raise self.error(f"attribute '{attribute}' of the layer is missing")
        self.texts: dict[str, str] = {}
        """The attributes in ``<data>``."""
        self.input_ports: list[Element] = []
        self.output_ports: list[Element] = []
        self.rt_info: dict[str, Any] = {}
        for part in element:
            if part.tag == "data":
                self.texts = dict(part.attrib)  # type: ignore[arg-type]
            elif part.tag == "input":
                self.input_ports += part.iterchildren("port")
            elif part.tag == "output":
                self.output_ports += part.iterchildren("port")
            elif part.tag == "rt_info":
                self.rt_info = read_rt_info(part)
        self.inputs = self._index_by_id(self.input_ports)
        self.outputs = self._index_by_id(self.output_ports)

    @property
    def source_location(self) -> str:
        """Location of the layer for messages, in the same form as for a node."""
        return ", ".join(part for part in (f"layer '{self.name}'", f"id {self.id}", self.source) if part)

    def error(self, message: str) -> ModelError:
        return ModelError(f"[{self.type or 'layer'}] {message} ({self.source_location})")

    def _index_by_id(self, elements: list[Element]) -> dict[str, int]:
        ports: dict[str, int] = {}
        for element in elements:
            name = element.get("id")
            if name is None:
                raise self.error("a port has no id")
            if name in ports:
                raise self.error(f"two ports have id {name}")
            ports[name] = len(ports)
        return ports

    def declared(self, port: Element) -> tuple[Type, PartialShape]:
        """Return the element type and shape that a port declares. Raises ModelError if they are invalid."""
        texts = [(dim.text or "").strip() for dim in port.iterfind("dim")]
        try:
            dtype = Type.parse(port.get("precision", "dynamic"))
            return dtype, PartialShape.dynamic() if texts == ["..."] else PartialShape(texts)
        except (ValueError, TypeError, RuntimeError) as e:
            raise self.error(f"port {port.get('id')}: {e}") from None

    def integer(self, element: Element, attribute: str, default: int | None = None) -> int:
        """Return an integer attribute. Raises ModelError if it is not an integer, or absent without a default."""
        text = element.get(attribute)
        if text is None:
            if default is None:
                raise self.error(f"<{element.tag}> has no '{attribute}'")
            return default
        try:
            return integer(text)
        except ValueError:
            raise self.error(f"<{element.tag}> has {attribute}={text!r}, which is not an integer") from None


def integer(text: str) -> int:
    """Return ``text`` as an integer of at most 20 digits, signed or not. Raises ValueError for other texts."""
    if not (
        (text.isdecimal() and text.isascii() and len(text) <= 20)  # fast path for nearly all texts
        or re.fullmatch(r"\s*[+-]?[0-9]{1,20}\s*", text)
    ):
        raise ValueError(f"{text[:40]!r} is not an integer")
    return int(text)


# ---- tensor names


def split_names(text: str) -> set[str]:
    """Return the names in a comma-separated list; a comma in a name is written ``\\,``."""
    if "\\" not in text:
        return {name for name in text.split(",") if name}
    return {name.replace("\\,", ",") for name in re.split(r"(?<!\\),", text) if name}


def join_names(names: set[str]) -> str:
    """Return the names as a comma-separated list, the inverse of `split_names`."""
    return ",".join(name.replace(",", "\\,") for name in sorted(names))


# ---- runtime information


def read_rt_info(element: Element | None, prefix: str = "user_data") -> dict[str, Any]:
    """Return the runtime information of a layer or a port, under the keys that OpenVINO uses.

    ``<attribute name="layout" version="0" layout="[N,C]"/>`` becomes ``"layout_0": {"layout": "[N,C]"}``, and
    ``<user_data name="x" value="y"/>`` becomes ``"user_datax": "y"``; user data may nest.
    """
    info: dict[str, Any] = {}
    for item in () if element is None else element:
        name, version = item.get("name"), item.get("version")
        if item.tag == "attribute" and name is not None and version is not None:
            info[f"{name}_{version}"] = {
                str(key): str(value) for key, value in item.attrib.items() if key not in ("name", "version")
            }
        elif item.tag == "user_data" and name is not None:
            info[prefix + name] = read_rt_info(item, "") if item.get("value") is None else item.get("value")
    return info


def read_meta(element: Element) -> dict[str, Any]:
    """Return a model's runtime information: ``<key value="text"/>`` or ``<info name="key" value="text"/>``, nested."""
    info: dict[str, Any] = {}
    for item in element:
        value = item.get("value", item.get("unset_cli_parameters") if item.tag == "unset" else None)
        info[item.get("name") or str(item.tag)] = read_meta(item) if value is None else value
    return info


def model_rt_info(root: Element) -> dict[str, Any]:
    """Return the runtime information of a ``<net>``, in the current form or in the <meta_data> of older files."""
    present = root.find("rt_info")
    if present is not None:
        return read_meta(present)
    info: dict[str, Any] = {}
    old = root.find("meta_data")
    if old is not None:
        info = read_meta(old)
        if "cli_parameters" in info:
            info["conversion_parameters"] = info.pop("cli_parameters")
    quantization = root.find("quantization_parameters")
    if quantization is not None:
        info["optimization"] = read_meta(quantization)
        config = quantization.find("config")
        if config is not None:
            info["optimization"]["config"] = _inner_text(config)
    return info


def _inner_text(element: Element) -> str:
    """Return the contents of an element as XML text on one line, with single spaces, as OpenVINO does."""
    text = etree.tostring(element, encoding="unicode", with_tail=False)
    inner = text[text.index(">") + 1 :].removesuffix(f"</{element.tag}>")
    return re.sub(" +", " ", re.sub("[\r\n]", "", inner))
