"""Models, JSON files and runtime information in a model's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ovgpu.errors import Error
from ovgpu.ir._layers import model_rt_info
from ovgpu.ir._xml import parse

MODEL = "openvino_model.xml"
NO_GGUF = (
    "GGUF is not read: export the model from which the file was made into a folder, by "
    "`optimum-cli export openvino --model NAME FOLDER`"
)


def model_path(folder: Path) -> str:
    """Return the path of a folder's model. Raises: Error if there is none."""
    if (folder / MODEL).is_file():
        return str(folder / MODEL)
    if folder.suffix.lower() == ".gguf" or any(folder.glob("*.gguf")):
        raise Error(f"{folder}: {NO_GGUF}")
    raise Error(f"{folder} has no {MODEL}: `optimum-cli export openvino --model NAME {folder}` makes one")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one if there is no such file. Raises: Error for other contents."""
    return read_object(path) if path.is_file() else {}


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises: Error if there is none."""
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise Error(f"{path} cannot be read as JSON: {e}") from None
    if not isinstance(contents, dict):
        raise Error(f"{path} has no JSON object")
    return contents


def read_rt_info(path: Path) -> dict[str, Any]:
    """Return the runtime information of a model file; none if there is no such file. Raises: Error for no XML."""
    return rt_info_of(path.read_bytes(), str(path)) if path.is_file() else {}


def rt_info_of(xml: bytes, name: str) -> dict[str, Any]:
    """Return the runtime information of a model. Raises: Error for no XML, which names it."""
    return model_rt_info(parse(xml, name))
