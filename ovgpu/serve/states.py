"""Files of sequences, which a server writes when it stops and reads when it starts again."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from ovgpu._util.atomic_file import check_writable, replacing
from ovgpu.errors import Error
from ovgpu.serve.engines import State
from ovgpu.serve.protocol import SequenceId
from ovgpu.serve.tensors import DATATYPES, datatype
from ovgpu.tensor import Tensor
from ovgpu.types import Type

log = logging.getLogger(__name__)

FIELDS = ("model", "version", "digest", "id", "steps")  # of a `StoredSequence`, in the header
HEADER = "sequence"  # name of the entry with JSON; the other entries have the bytes of variables, by index


@dataclass(frozen=True)
class StoredSequence:
    """Sequence of a version of a model, and the number of its steps. ``digest`` is that of the model's files, see
    `ModelFiles`."""

    model: str
    version: str
    digest: str
    id: SequenceId
    steps: int
    state: State


class StateFolder:
    """Folder with a file for each sequence that was open when a server stopped. Only the server's user can read them.

    The permissions of a folder that exists are left alone: others may use it as well. Raises: Error if files cannot be
    written there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_writable(folder / "sequence.npz")
        except OSError as error:
            raise Error(f"states cannot be saved in {folder}: {error}") from None

    def save(self, stored: StoredSequence) -> None:
        """Write a sequence. Raise Error for a state of strings, OSError if the file cannot be written."""
        variables, arrays = [], dict[str, Any]()
        for i, (name, tensor) in enumerate(stored.state.items()):
            dtype = tensor.element_type
            if dtype is Type.string:
                raise Error(f"variable '{name}' has strings, which are not saved")
            variables.append({"name": name, "type": datatype(f"variable '{name}'", dtype), "shape": list(tensor.shape)})
            arrays[str(i)] = np.frombuffer(tensor.read().tobytes(), np.uint8)
        header = {name: getattr(stored, name) for name in FIELDS} | {"variables": variables}
        arrays[HEADER] = np.frombuffer(json.dumps(header).encode(), np.uint8)
        with replacing(self._file(stored)) as (file,):
            os.fchmod(file.fileno(), 0o600)
            np.savez(file, **arrays)

    def remove(self, stored: StoredSequence) -> None:
        """Delete the file of a sequence."""
        self._file(stored).unlink(missing_ok=True)

    def _file(self, stored: StoredSequence) -> Path:
        name = sha256(json.dumps([stored.model, stored.id]).encode()).hexdigest()[:32]
        return self._folder / f"{name}.npz"

    def load(self) -> Iterator[StoredSequence]:
        """Yield the sequences of all files. Files that cannot be read are logged."""
        for file in sorted(self._folder.glob("*.npz")):
            try:
                yield self._read(file)
            except (OSError, ValueError, KeyError, TypeError, BadZipFile) as error:
                log.error("%s is no saved sequence: %s", file, error)

    @staticmethod
    def _read(file: Path) -> StoredSequence:
        with np.load(file, allow_pickle=False) as arrays:
            header = json.loads(arrays[HEADER].tobytes())
            state = {}
            for i, variable in enumerate(header["variables"]):
                dtype = DATATYPES[variable["type"]]
                array = np.frombuffer(arrays[str(i)], dtype.storage).reshape(variable["shape"])
                state[variable["name"]] = Tensor.from_array(array.copy(), dtype)
        return StoredSequence(**{name: header[name] for name in FIELDS}, state=state)
