"""Models in CACHE_DIR: `compile_model` of a file writes an entry there, and reads it the next time.

An entry belongs to one version of ovgpu, one device, one set of properties, and one state of the model's file. It
refers to an IR's .bin file, and holds the constants of a model of another format, which then need not be converted
again.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from ovgpu._util.atomic_file import replacing
from ovgpu.api.compiled_model_file import Cipher, read_file, write
from ovgpu.errors import Error
from ovgpu.model import Model
from ovgpu.version import OWN


class Entry:
    """Entry for the model in a file, compiled for a device with some properties. It may not exist yet."""

    def __init__(
        self,
        folder: str,
        model: Any,
        weights: Any,
        device: str,
        properties: Mapping[str, str],
        ciphers: Sequence[Cipher],
    ) -> None:
        self.files = Path(model), Path(weights) if weights else Path(model).with_suffix(".bin")
        self.device, self.properties, self._ciphers = device, properties, ciphers
        status = self.files[0].stat()
        state = *(str(path.resolve()) for path in self.files), status.st_size, status.st_mtime_ns
        digest = sha256(repr((OWN, device, sorted(properties.items()), state)).encode()).hexdigest()
        self.path = Path(folder, f"{digest[:32]}.blob")

    def read(self) -> Model | None:
        """Return the model, None if there is no entry or it cannot be used."""
        with suppress(OSError, Error):
            return read_file(self.path, self.device, *self._ciphers[1:]).model
        return None

    def write(self, model: Model) -> None:
        """Write the entry. Warn if that fails: the next process reads the model itself."""
        read_from = self.files if self.files[0].suffix == ".xml" else None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path, flush=False) as (file,):
                encrypt = self._ciphers[0] if self._ciphers else None
                write(file, self.device, self.properties, model, read_from=read_from, encrypt=encrypt)
        except (OSError, Error) as e:
            reason = getattr(e, "strerror", None) or e
            warnings.warn(f"CACHE_DIR {str(self.path.parent)!r} does not keep the model: {reason}", RuntimeWarning, 2)


def entry(
    folder: str,
    model: Any,
    weights: Any,
    device: str,
    properties: Mapping[str, str],
    ciphers: Sequence[Cipher] = (),
) -> Entry | None:
    """Return the entry for a model; None without a CACHE_DIR, or if the model and its weights are not in files.

    ``ciphers`` are the functions that encrypt and decrypt its XML, if the program has set any.
    """
    in_files = isinstance(model, (str, os.PathLike)) and isinstance(weights, (str, os.PathLike, type(None)))
    if not folder or not in_files or not os.path.isfile(model):
        return None
    return Entry(folder, model, weights, device, properties, ciphers)
