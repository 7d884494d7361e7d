"""Sequences as bytes, and class FolderStore: files of sequences, from which a server goes on when it starts again."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from ovgpu._util.atomic_file import check_writable, replacing
from ovgpu.errors import Error
from ovgpu.serve.store import Answer, Checkpoint, Key, MemoryStore, StoreError, Taken
from ovgpu.serve.tensors import DATATYPES, datatype, from_bytes, to_bytes
from ovgpu.tensor import Tensor
from ovgpu.types import Type

log = logging.getLogger(__name__)

LENGTH = struct.Struct("<Q")  # of the header, which is JSON; the bytes of arrays follow
UNREADABLE = (OSError, ValueError, KeyError, TypeError, struct.error, Error)


def encode(key: Key, checkpoint: Checkpoint) -> bytes:
    """Return a sequence as bytes: a header, the variables and the outputs of the last step.

    Raises: Error for a state of strings.
    """
    variables, outputs, parts = [], [], list[Any]()  # the parts are bytes, or arrays of bytes
    for name, tensor in (checkpoint.state or {}).items():
        dtype = tensor.element_type
        if dtype is Type.string:
            raise Error(f"variable '{name}' has strings, which are not saved")
        parts.append(_bytes(tensor.read()))
        variables.append([datatype(f"variable '{name}'", dtype), list(tensor.shape), len(parts[-1]), name])
    answer = checkpoint.answer
    for array in answer.outputs if answer is not None else ():
        has_strings = array.dtype == object
        parts.append(to_bytes(array, Type.string) if has_strings else _bytes(array))
        outputs.append(["strings" if has_strings else array.dtype.str, list(array.shape), len(parts[-1])])
    header = {
        "model": key[0],
        "id": key[1],
        "version": checkpoint.version,
        "digest": checkpoint.digest,
        "steps": checkpoint.steps,
        "variables": None if checkpoint.state is None else variables,
        "answer": answer and [answer.number, answer.inputs.hex(), outputs],
    }
    text = json.dumps(header).encode()
    return b"".join([LENGTH.pack(len(text)), text, *parts])


def _bytes(array: Any) -> Any:
    """Return the bytes of an array, which may share its memory."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def decode(data: bytes) -> Checkpoint:
    """Return the checkpoint in the bytes that `encode` returned. Raise one of `UNREADABLE` for others."""
    at = LENGTH.size + LENGTH.unpack_from(data)[0]
    header = json.loads(data[LENGTH.size : at])

    def part(size: int) -> bytes:
        nonlocal at
        at += size
        if at > len(data):
            raise ValueError("its end is missing")
        return data[at - size : at]

    variables, answer = header["variables"], header["answer"]
    state = None if variables is None else dict[str, Tensor]()
    for dtype, shape, size, name in variables or ():
        array = np.frombuffer(bytearray(part(size)), DATATYPES[dtype].storage).reshape(shape)
        state[name] = Tensor.from_array(array, DATATYPES[dtype])  # type: ignore[index]
    last = None
    if answer is not None:
        outputs = [
            from_bytes("output", Type.string, tuple(shape), part(size))
            if dtype == "strings"
            else np.frombuffer(part(size), dtype).reshape(shape)
            for dtype, shape, size in answer[2]
        ]
        last = Answer(answer[0], bytes.fromhex(answer[1]), tuple(outputs))
    return Checkpoint(header["version"], header["digest"], header["steps"], state, last)


def _read_header(file: Path) -> Any:
    """Return the header of a file. Raise one of `UNREADABLE` if it is no file of a sequence."""
    with file.open("rb") as opened:
        (length,) = LENGTH.unpack(opened.read(LENGTH.size))
        return json.loads(opened.read(min(length, file.stat().st_size)))


class FolderStore(MemoryStore):
    """Folder with a file for each sequence that has a checkpoint, for one server at a time.

    Only the server's user can read the files. The permissions of a folder that exists are left alone: others may use it
    as well. Files of sequences that no model continues are deleted after ``idle`` seconds of the server.

    Raises: Error if files cannot be written there.
    """

    def __init__(self, folder: Path, idle: float) -> None:
        super().__init__(idle)
        self.is_shared = True
        self._folder, self._began, self._lock = folder, time.time(), -1
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_writable(folder / "new.sequence")
        except OSError as error:
            raise Error(f"states cannot be saved in {folder}: {error}") from None

    async def open(self, wanted: Callable[[Key, int], None]) -> None:
        """Lock the folder. Raise Error if another server uses it."""
        self._lock = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._unlock()
            raise Error(f"another server saves its states in {self._folder}") from None
        except OSError as error:  # some file systems have no locks
            log.warning("%s cannot be locked (%s): no other server may use it", self._folder, error.strerror)
        await super().open(wanted)

    async def close(self) -> None:
        self._unlock()
        await super().close()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    async def saved(self) -> list[tuple[Key, str]]:
        """Return (key, version) of the sequences of all files. Files that cannot be read are logged.

        Files that a server was writing when it was killed are deleted.
        """
        return await asyncio.to_thread(self._saved)

    def _saved(self) -> list[tuple[Key, str]]:
        for unfinished in self._folder.glob(".*.sequence.*"):  # of `replacing`, by a server that was killed
            unfinished.unlink(missing_ok=True)
        found = []
        for file in sorted(self._folder.glob("*.sequence")):
            try:
                header = _read_header(file)
                found.append(((header["model"], header["id"]), header["version"]))
            except UNREADABLE as error:
                log.error("%s is no saved sequence: %s", file, error)
        return found

    async def _begin(self, key: Key, ask: bool, anew: bool) -> int | None:
        entry = self._entry(key)
        if not anew and (entry is None or not entry.ended) and await self._read(key) is not None:
            return None
        epoch = await super()._begin(key, ask, anew)
        await self._change(self._remove, key)
        return epoch

    async def _claim(self, key: Key, ask: bool) -> Taken | None:
        entry = self._entry(key)
        if entry is not None and entry.ended:
            return await super()._claim(key, ask)
        checkpoint = await self._read(key)
        if checkpoint is None:
            return None
        epoch = await super()._begin(key, ask, True)
        assert epoch is not None
        return Taken(epoch, checkpoint)

    async def save(self, key: Key, epoch: int, checkpoint: Checkpoint | None) -> bool:
        """Write a checkpoint, or delete the last one."""
        if not await self.check(key, epoch):
            return False
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

    async def touch(self, held: Iterable[tuple[Key, int]]) -> None:
        held = list(held)
        await super().touch(held)
        await self._change(self._forget, [key for key, _ in held])

    def _forget(self, held: Sequence[Key]) -> None:
        """Delete the files of sequences that the server does not have, and that are too old."""
        ours, now = {self._file(key) for key in held}, time.time()
        for file in self._folder.glob("*.sequence"):
            with suppress(FileNotFoundError):
                if file not in ours and now - max(file.stat().st_mtime, self._began) > self._idle:
                    log.warning("%s is deleted: its sequence was idle for %g seconds", file, self._idle)
                    file.unlink()

    async def _read(self, key: Key) -> Checkpoint | None:
        """Return the checkpoint in the file of a sequence. None if there is no file, or it is malformed."""
        try:
            return await asyncio.to_thread(lambda: decode(self._file(key).read_bytes()))
        except FileNotFoundError:
            return None
        except UNREADABLE as error:
            log.error("sequence %r of model '%s' cannot be read: %s", key[1], key[0], error)
            if isinstance(error, OSError):  # the disk may recover
                raise StoreError("the state of the sequence cannot be read") from None
            return None

    @staticmethod
    async def _change(method: Any, *arguments: Any) -> None:
        try:
            await asyncio.to_thread(method, *arguments)
        except OSError as error:
            log.error("a sequence cannot be saved: %s", error)
            raise StoreError("the state of the sequence cannot be saved") from None

    def _file(self, key: Key) -> Path:
        name = sha256(json.dumps(key).encode()).hexdigest()[:32]
        return self._folder / f"{name}.sequence"

    def _write(self, key: Key, checkpoint: Checkpoint) -> None:
        data = encode(key, checkpoint)
        with replacing(self._file(key)) as (file,):
            os.fchmod(file.fileno(), 0o600)
            file.write(data)

    def _remove(self, key: Key) -> None:
        self._file(key).unlink(missing_ok=True)
