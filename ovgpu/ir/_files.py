"""Lookup of a model's XML: at the path of a file or folder, or in a str or bytes object itself."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ovgpu.errors import ModelError
from ovgpu.ir._xml import MAX_BYTES

OTHER_FORMATS = (".onnx", ".pdmodel", ".pb", ".pt", ".pth", ".tflite")
XML_START = re.compile(rb"(\xef\xbb\xbf)?[ \t\r\n]*<")
UTF16 = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16", b"<\0": "utf-16-le", b"\0<": "utf-16-be"}
TOKENIZERS = ("openvino_tokenizer.xml", "openvino_detokenizer.xml")
LFS_POINTER = b"version https://git-lfs.github.com/"


@dataclass(frozen=True)
class Document:
    """XML of a model, in UTF-8."""

    text: bytes
    source: str = ""
    """The file name, for messages."""
    weights: Path | None = None
    """The .bin file beside it."""


def is_onnx(model: Any) -> bool:
    """Return whether a model is the path or the contents of an ONNX file."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        return bytes(model[:1]) == b"\b"  # the key of ModelProto.ir_version
    return isinstance(model, (str, os.PathLike)) and os.fsdecode(model).lower().endswith(OTHER_FORMATS[0])


def is_other_format(model: Any) -> bool:
    """Return whether a model is the path of a file in another format of openvino, or the contents of an ONNX file."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        return is_onnx(model)
    if not isinstance(model, (str, os.PathLike)) or is_xml_text(model):
        return False
    path = os.fsdecode(model)
    return path.lower().endswith(OTHER_FORMATS) or os.path.isfile(os.path.join(path, "saved_model.pb"))


def document(model: Any) -> Document:
    """Return the XML in ``model``, or in the file or folder at that path. Raises: ModelError if there is none."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        text = bytes(model)
        if text[:2] in UTF16 or _is_xml(text) or b"\n" in text:
            return Document(_utf8(text, "the XML"))
        model = os.fsdecode(text)
    elif is_xml_text(model):
        return Document(model.encode("utf-8", "surrogatepass"))
    if not isinstance(model, (str, os.PathLike)):
        raise TypeError(f"a model is a path, or XML as str or bytes, not {type(model).__name__}")
    if not os.fspath(model):
        raise ModelError("the model cannot be read: its path is empty")
    path = Path(os.fsdecode(model))
    try:
        path = model_file(path)
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)  # one byte too many, which `parse` rejects; a device may be endless
    except (OSError, ValueError) as e:
        raise ModelError(f"the model cannot be read: {path}: {getattr(e, 'strerror', None) or e}") from None
    return Document(_utf8(text, path.name), path.name, path.with_suffix(".bin"))


def is_xml_text(model: Any) -> bool:
    """Return whether a model is given as the text of its XML."""
    return isinstance(model, str) and model.lstrip("\ufeff \t\r\n")[:1] == "<"


def model_file(folder: Path) -> Path:
    """Return the path of the .xml in a folder: openvino_model.xml (optimum-intel's name), else the only .xml file.

    The models of a tokenizer, which openvino_tokenizers writes beside a model, do not count unless they are alone. The
    path of a file is returned unchanged. Raises: ModelError if the folder has no model, or several.
    """
    if not folder.is_dir():
        return folder
    xml_files = sorted(folder.glob("*.xml"))
    candidates = [path for path in xml_files if path.name not in TOKENIZERS] or xml_files
    preferred = folder / "openvino_model.xml"
    if preferred in candidates:
        return preferred
    if len(candidates) == 1:
        return candidates[0]
    names = ", ".join(path.name for path in candidates[:5]) + (", ..." if len(candidates) > 5 else "")
    raise ModelError(
        f"the folder {folder} has {f'several .xml files ({names})' if candidates else 'no .xml file'}: "
        "read_model takes the path of the .xml file of an OpenVINO IR"
    )


def _utf8(text: bytes, name: str) -> bytes:
    """Return XML as UTF-8. UTF-16 is converted, because OpenVINO reads it as well."""
    if text[:2] in UTF16:
        try:
            return text.decode(UTF16[text[:2]]).encode()
        except UnicodeError as e:
            raise ModelError(f"{name} is malformed: it begins as UTF-16, but {e}") from None
    if not _is_xml(text):
        if is_lfs_pointer(text):
            contents = "it is a pointer of Git LFS, and `git lfs pull` fetches the file itself"
        elif name.endswith(".bin"):
            contents = "it has the weights"
        else:
            contents = f"it begins with {text[:20]!r}" if text.strip() else "it is empty"
        raise ModelError(f"{name} is no OpenVINO IR, whose .xml file begins with '<': {contents}")
    return text


def _is_xml(text: bytes) -> bool:
    return XML_START.match(text) is not None


def is_lfs_pointer(text: bytes) -> bool:
    """Return whether a file with this text is a Git LFS pointer, in place of a large file that was not fetched."""
    return text[: len(LFS_POINTER)] == LFS_POINTER
