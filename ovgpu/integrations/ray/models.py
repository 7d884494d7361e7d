"""Models that workers of Ray read: files on every node, or one copy in Ray's object store."""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import ray

from ovgpu.api.core import Core
from ovgpu.ir import is_other_format, model_file, serialize
from ovgpu.model import Model


@dataclass(frozen=True)
class SharedModel:
    """Model in Ray's object store, made by `share`. It can be sent to workers, and takes no memory there.

    Each node fetches the weights once, and its workers map the same memory.
    """

    xml: bytes
    weights: Any  # ray.ObjectRef of an array of bytes

    def read(self) -> Model:
        """Return the model. Its constants are views of the object store."""
        return Core().read_model(self.xml, ray.get(self.weights))


def share(model: Any) -> SharedModel:
    """Put a model into Ray's object store, for workers on nodes that cannot read its files.

    ``model`` is a file, as for `Core.read_model`, or a model of ovgpu or openvino. The object is freed when nothing
    refers to it any more, and lost with the process that called `share`.

    Raises: ModelError for a malformed file.
    """
    if isinstance(model, (str, os.PathLike)) and not is_other_format(model):
        Core().read_model(model)  # raises errors here rather than in every worker
        return _put(model_file(Path(model)))
    with TemporaryDirectory() as folder:
        serialize(model if hasattr(model, "get_ops") else Core().read_model(model), Path(folder) / "model.xml")
        return _put(Path(folder) / "model.xml")


def _put(path: Path) -> SharedModel:
    weights = path.with_suffix(".bin")
    data = np.memmap(weights, np.uint8, "r") if _has_bytes(weights) else np.empty(0, np.uint8)
    return SharedModel(path.read_bytes(), ray.put(np.asarray(data)))


def _has_bytes(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0


def digest(model: Any) -> str:
    """Return a digest of a model's files, which is the same for a file and what `share` makes of it."""
    if isinstance(model, SharedModel):
        parts = [model.xml, *([weights] if len(weights := ray.get(model.weights)) else [])]
    elif hasattr(model, "get_ops"):
        with TemporaryDirectory() as folder:
            serialize(model, Path(folder) / "model.xml")
            return digest(Path(folder) / "model.xml")
    else:
        path = Path(model) if is_other_format(model) else model_file(Path(model))
        parts = [np.memmap(file, np.uint8, "r") for file in (path, path.with_suffix(".bin")) if _has_bytes(file)]
    return sha256(b"".join([sha256(part).digest() for part in parts])).hexdigest()


def read(model: Any) -> Any:
    """Return the model of a `SharedModel` or of a file, or ``model`` itself."""
    if isinstance(model, SharedModel):
        return model.read()
    return model if hasattr(model, "get_ops") else Core().read_model(model)
