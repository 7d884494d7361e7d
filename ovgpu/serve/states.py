"""Sequences as bytes, and class FolderStore: files of sequences, from which a server goes on when it starts again."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from ovgpu._util.atomic_file import check_writable, replacing
from ovgpu.errors import Error
from ovgpu.serve.store import Answer, Checkpoint, Key, MemoryStore, StoreError, Taken
from ovgpu.serve.tensors import DATATYPES, datatype, from_bytes, to_bytes
from ovgpu.tensor import Tensor
from ovgpu.types import Type

log = logging.getLogger(__name__)

HEADER = "sequence"  # name of the entry with JSON; the others are arrays: of variables, and of outputs of the last step
UNREADABLE = (OSError, ValueError, KeyError, TypeError, BadZipFile, Error)


def encode(key: Key, checkpoint: Checkpoint) -> bytes:
    """Return a sequence as bytes, in NumPy's format for several arrays. Raise Error for a state of strings."""
    variables, arrays = [], dict[str, Any]()
    for i, (name, tensor) in enumerate((checkpoint.state or {}).items()):
        dtype = tensor.element_type
        if dtype is Type.string:
            raise Error(f"variable '{name}' has strings, which are not saved")
        variables.append({"name": name, "type": datatype(f"variable '{name}'", dtype), "shape": list(tensor.shape)})
        arrays[f"variable {i}"] = np.frombuffer(tensor.read().tobytes(), np.uint8)
    header: dict[str, Any] = {
        "model": key[0],
        "id": key[1],
        "version": checkpoint.version,
        "digest": checkpoint.digest,
        "steps": checkpoint.steps,
        "ended": checkpoint.state is None,
        "variables": variables,
    }
    answer = checkpoint.answer
    if answer is not None:
        header["answer"] = {"number": answer.number, "inputs": answer.inputs.hex(), "strings": {}}
        for i, array in enumerate(answer.outputs):
            if array.dtype == object:
                header["answer"]["strings"][str(i)] = list(array.shape)
                array = np.frombuffer(to_bytes(array, Type.string), np.uint8)
            arrays[f"output {i}"] = array
        header["answer"]["outputs"] = len(answer.outputs)
    arrays[HEADER] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    file = BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def decode(source: bytes | Path) -> Checkpoint:
    """Return the checkpoint in the bytes that `encode` returned, or in a file. Raise one of `UNREADABLE` for others."""
    with np.load(BytesIO(source) if isinstance(source, bytes) else source, allow_pickle=False) as arrays:
        header = json.loads(arrays[HEADER].tobytes())
        state = None if header["ended"] else dict[str, Tensor]()
        for i, variable in enumerate(header["variables"]):
            dtype = DATATYPES[variable["type"]]
            array = np.frombuffer(arrays[f"variable {i}"], dtype.storage).reshape(variable["shape"])
            if state is not None:
                state[variable["name"]] = Tensor.from_array(array.copy(), dtype)
        answer = None
        if given := header.get("answer"):
            outputs = [arrays[f"output {i}"] for i in range(given["outputs"])]
            for i, shape in given["strings"].items():
                outputs[int(i)] = from_bytes("output", Type.string, tuple(shape), outputs[int(i)].tobytes())
            answer = Answer(given["number"], bytes.fromhex(given["inputs"]), tuple(outputs))
    return Checkpoint(header["version"], header["digest"], header["steps"], state, answer)


class FolderStore(MemoryStore):
    """Folder with a file for each sequence that has a checkpoint, for one server at a time.

    Only the server's user can read the files. The permissions of a folder that exists are left alone: others may use it
    as well. Raises: Error if files cannot be written there.
    """

    def __init__(self, folder: Path, idle: float) -> None:
        super().__init__(idle)
        self.is_shared = True
        self._folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_writable(folder / "sequence.npz")
        except OSError as error:
            raise Error(f"states cannot be saved in {folder}: {error}") from None

    async def saved(self) -> list[tuple[Key, str]]:
        """Return (key, version) of the sequences of all files. Files that cannot be read are logged."""
        return await asyncio.to_thread(self._saved)

    def _saved(self) -> list[tuple[Key, str]]:
        found = []
        for file in sorted(self._folder.glob("*.npz")):
            try:
                with np.load(file, allow_pickle=False) as arrays:
                    header = json.loads(arrays[HEADER].tobytes())
                found.append(((header["model"], header["id"]), header["version"]))
            except UNREADABLE as error:
                log.error("%s is no saved sequence: %s", file, error)
        return found

    async def start(self, key: Key, anew: bool = True) -> int | None:
        epoch = await super().start(key, anew)
        await self._change(self._remove, key)
        return epoch

    async def _claim(self, key: Key, ask: bool) -> Taken | None:
        entry = self._entry(key)
        if entry is not None and entry.ended:
            return await super()._claim(key, ask)
        try:
            checkpoint = await asyncio.to_thread(decode, self._file(key))
        except FileNotFoundError:
            return None
        except UNREADABLE as error:
            log.error("sequence %r of model '%s' cannot be read: %s", key[1], key[0], error)
            return None
        epoch = await super().start(key)
        assert epoch is not None
        return Taken(epoch, checkpoint)

    async def save(self, key: Key, epoch: int, checkpoint: Checkpoint | None) -> bool:
        """Write a checkpoint, or delete the last one."""
        if checkpoint is None:
            await self._change(self._remove, key)
        else:
            await self._change(self._write, key, checkpoint)
        return await super().save(key, epoch, None)

    async def release(self, key: Key, epoch: int, checkpoint: Checkpoint | None) -> None:
        if checkpoint is not None:
            await self._change(self._write, key, checkpoint)
        self._entries.pop(key, None)

    async def end(self, key: Key, epoch: int, checkpoint: Checkpoint | None) -> None:
        await self._change(self._remove, key)
        await super().end(key, epoch, checkpoint)

    @staticmethod
    async def _change(method: Any, *arguments: Any) -> None:
        try:
            await asyncio.to_thread(method, *arguments)
        except OSError as error:
            log.error("a sequence cannot be saved: %s", error)
            raise StoreError("the state of the sequence cannot be saved") from None

    def _file(self, key: Key) -> Path:
        name = sha256(json.dumps(key).encode()).hexdigest()[:32]
        return self._folder / f"{name}.npz"

    def _write(self, key: Key, checkpoint: Checkpoint) -> None:
        data = encode(key, checkpoint)
        with replacing(self._file(key)) as (file,):
            os.fchmod(file.fileno(), 0o600)
            file.write(data)

    def _remove(self, key: Key) -> None:
        self._file(key).unlink(missing_ok=True)
