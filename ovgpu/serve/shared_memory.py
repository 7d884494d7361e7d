"""System shared memory, an extension of Triton: tensors in regions that clients of the same machine have made."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from math import prod
from typing import Any
from weakref import finalize

from ovgpu.serve.engines import Port
from ovgpu.serve.errors import ServeError, Status, invalid
from ovgpu.serve.held_bytes import HeldBytes
from ovgpu.serve.protocol import NamedTensor, PlacedInput, Placement
from ovgpu.serve.tensors import from_bytes, to_bytes
from ovgpu.types import Type

FOLDER = "/dev/shm"  # where Linux has the objects of shm_open
MAX_REGIONS = 1024  # each has an open file
MAX_NAME = 255  # characters of a region's name, and bytes of a key
NO_CUDA = "CUDA shared memory is not supported: tensors may be in system shared memory"


@dataclass(eq=False)
class Region:
    """Part of a shared memory object, which stays open until nobody uses the region any more.

    NOTE: The object is read and written like a file. If it were mapped, and its owner made it smaller, the access would
    kill the process.
    """

    key: str
    offset: int
    size: int

    def __post_init__(self) -> None:
        try:
            self._file = os.open(f"{FOLDER}/{_object_name(self.key)}", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (OSError, UnicodeError):
            raise invalid(f"there is no shared memory '{self.key}' that the server may use") from None
        finalize(self, os.close, self._file)
        status = os.fstat(self._file)
        if not stat.S_ISREG(status.st_mode) or self.offset + self.size > status.st_size:
            raise invalid(f"shared memory '{self.key}' does not have {self.size} bytes from byte {self.offset} on")

    def read(self, offset: int, size: int) -> bytearray:
        """Return bytes. Raise ServeError if the object has become too small."""
        data, done = bytearray(size), 0
        while done < size:
            count = os.preadv(self._file, [memoryview(data)[done:]], self.offset + offset + done)
            if not count:
                raise self._shrunk()
            done += count
        return data

    def write(self, offset: int, data: bytes) -> None:
        """Write bytes. Raise ServeError if the object has become too small, or if the system has no memory for it."""
        if self.offset + offset + len(data) > os.fstat(self._file).st_size:
            raise self._shrunk()
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self._file, memoryview(data)[done:], self.offset + offset + done)
        except OSError as error:
            text = f"shared memory '{self.key}' cannot be written: {error.strerror}"
            raise ServeError(Status.RESOURCE_EXHAUSTED, text) from None

    def _shrunk(self) -> ServeError:
        return invalid(f"shared memory '{self.key}' has become smaller than the region")


class SharedMemory:
    """Regions by name. Unless ``enabled``, they cannot be registered.

    Inputs of a request have up to ``max_bytes`` there. All methods are called on the thread of one event loop.
    """

    def __init__(self, enabled: bool, held: HeldBytes, max_bytes: int) -> None:
        self.enabled, self._held, self._max_bytes = enabled, held, max_bytes
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: Any, offset: Any, size: Any) -> None:
        """Add a region: ``size`` bytes from ``offset`` on of the object ``key``. Raise ServeError if that fails."""
        self._check_enabled()
        if not 0 < len(name) <= MAX_NAME:
            raise invalid(f"the name of a region has 1 to {MAX_NAME} characters")
        if name in self._regions:
            raise ServeError(Status.ALREADY_EXISTS, f"there is a region '{name}' already")
        if not isinstance(key, str):
            raise invalid("the key of a region is no string")
        for value, least in ((offset, 0), (size, 1)):
            if type(value) is not int or not least <= value < 2**62:
                raise invalid(f"offset {offset!r} and byte_size {size!r} are no part of a shared memory")
        if len(self._regions) >= MAX_REGIONS:
            raise ServeError(Status.RESOURCE_EXHAUSTED, f"there are {MAX_REGIONS} regions already")
        self._regions[name] = Region(key, offset, size)

    def unregister(self, name: str = "") -> None:
        """Remove a region, if there is one of this name, or all. Inferences that use it still end."""
        self._check_enabled()
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def status(self, name: str = "") -> list[dict[str, Any]]:
        """Return the description of a region, or of all. Raise ServeError if there is none of this name."""
        self._check_enabled()
        regions = {name: self._find(name)} if name else self._regions
        return [
            {"name": name, "key": region.key, "offset": region.offset, "byte_size": region.size}
            for name, region in regions.items()
        ]

    def holding(self, inputs: Iterable[PlacedInput]) -> AbstractContextManager[None]:
        """Return a context in which the bytes of inputs count as held. Raise ServeError if they are too many."""
        size = sum(tensor.placement.size for tensor in inputs)
        if size > self._max_bytes:
            raise ServeError(
                Status.RESOURCE_EXHAUSTED, f"the inputs in shared memory have more than {self._max_bytes} bytes"
            )
        return self._held.holding(size)

    async def read(self, inputs: Iterable[PlacedInput]) -> list[NamedTensor]:
        """Return inputs with their values. Raise ServeError for a part that is in no region, or of a wrong size."""
        read = []
        for tensor in inputs:
            read.append(await asyncio.to_thread(_read, self.check(tensor.placement), tensor))
        return read

    async def write(self, output: NamedTensor, place: Placement) -> NamedTensor:
        """Write an output, and return it as placed. Raise ServeError if it has more bytes than the place."""
        region = self.check(place)
        data = await asyncio.to_thread(to_bytes, output.array, output.dtype)
        self._check_size(output.name, len(data), place)
        await asyncio.to_thread(region.write, place.offset, data)
        return replace(output, placed=True)

    def check_output(self, port: Port, place: Placement) -> None:
        """Raise ServeError if an output can never be written to a place."""
        self.check(place)
        if port.shape is not None and -1 not in port.shape and port.dtype is not Type.string:
            self._check_size(port.name, prod(port.shape) * port.dtype.size, place)

    @staticmethod
    def _check_size(name: str, size: int, place: Placement) -> None:
        if size > place.size:
            raise invalid(f"output '{name}' has {size} bytes, but shared_memory_byte_size is {place.size}")

    def check(self, place: Placement) -> Region:
        """Return the region of a part. Raise ServeError if there is none, or if it is too small."""
        region = self._find(place.region)
        if place.offset + place.size > region.size:
            raise invalid(
                f"region '{place.region}' of {region.size} bytes has no {place.size} bytes from byte {place.offset} on"
            )
        return region

    def _find(self, name: str) -> Region:
        self._check_enabled()
        region = self._regions.get(name)
        if region is None:
            raise ServeError(Status.NOT_FOUND, f"there is no region '{name}'")
        return region

    def _check_enabled(self) -> None:
        if not self.enabled:
            raise ServeError(Status.UNIMPLEMENTED, "the server takes no shared memory: start it with --shared-memory")


def _read(region: Region, tensor: PlacedInput) -> NamedTensor:
    data = memoryview(region.read(tensor.placement.offset, tensor.placement.size))
    return NamedTensor(tensor.name, tensor.dtype, from_bytes(tensor.name, tensor.dtype, tensor.shape, data))


def _object_name(key: str) -> str:
    """Return the name of the file of a shared memory object. Raise ServeError for a key that names something else."""
    name = key.removeprefix("/")
    if not re.fullmatch(r"[^/\0]+", name) or name in (".", "..") or len(name.encode(errors="replace")) > MAX_NAME:
        raise invalid(f"{key[:MAX_NAME]!r} is no name of a shared memory")
    return name
