"""Class Link: calls between two processes of a server, over a pair of sockets. Large arrays are in shared memory.

A frame is `HEAD`, a `PLACE` for each array of the message, the message in pickle's format, and the bytes of arrays that
are not in shared memory. Only the server's own processes have the sockets: nobody else can send code in a pickle.
"""

from __future__ import annotations

import asyncio
import copyreg
import io
import logging
import pickle
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from struct import Struct
from typing import Any, cast
from weakref import finalize

import numpy as np

from ovgpu.serve.arena import Arena
from ovgpu.serve.errors import ServeError, Status, public

HEAD = Struct("<QBQQI")  # bytes of the frame; kind; number of the call; bytes of the pickle; number of arrays
PLACE = Struct("<qQ")  # offset in shared memory, or IN_FRAME; bytes
IN_FRAME = -1
CALL, TELL, RESULT, ERROR, CANCEL, FREE = range(6)  # kinds of frames
SHARED = 1 << 16  # bytes: arrays of as many, and larger ones, go through shared memory
LARGE = 1 << 18  # bytes: more than these are copied on another thread than the event loop's

log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]
Place = tuple[int, int]


class Link(asyncio.Protocol):
    """One end of a connection. Its functions are called on the thread of the event loop.

    ``functions`` are those that the other end calls, by name: coroutine functions for `call`, others for `tell`. Arrays
    that this end sends are written into ``sending``, and those of the other end are in ``receiving``, where they stay
    until nobody refers to them any more. If there is no room in ``sending``, they are part of the frame.
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]], sending: Arena, receiving: Arena) -> None:
        self._functions, self._sending, self._receiving = functions, sending, receiving
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}  # calls of this end
        self._running: dict[int, asyncio.Task[None]] = {}  # calls of the other end
        self._received = bytearray()
        self.shared = 0  # arrays that this end has sent through shared memory
        self.lost = asyncio.Event()  # set when the connection has ended

    async def call(self, function: str, *arguments: Any) -> Any:
        """Call a function of the other end, and return its result.

        If this task is cancelled, so is the call. Raises: ServeError if the call fails, or if the connection ends.
        """
        if self.lost.is_set():
            raise _ended()
        number, future = next(self._numbers), self._loop.create_future()
        self._waiting[number] = future
        try:
            await self._send(CALL, number, (function, arguments))
            return await future
        except asyncio.CancelledError:
            self._write(CANCEL, number)
            raise
        finally:
            del self._waiting[number]

    def tell(self, function: str, *arguments: Any) -> None:
        """Call a function of the other end, and do not wait for it. The arguments have no large arrays."""
        self._write(TELL, 0, (function, arguments))

    def close(self) -> None:
        """End the connection, after all frames were sent."""
        self._transport.close()

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop, self._transport = asyncio.get_running_loop(), cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set()
        for task in self._running.values():
            task.cancel()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(_ended())

    def data_received(self, data: bytes) -> None:
        if self._received:
            self._received += data
            if len(self._received) < HEAD.size or len(self._received) < HEAD.unpack_from(self._received)[0]:
                return
            data, self._received = bytes(self._received), bytearray()
        frames = memoryview(data)
        while len(frames) >= HEAD.size and len(frames) >= (length := HEAD.unpack_from(frames)[0]):
            self._take(frames[:length])
            frames = frames[length:]
        self._received += frames

    # ---- frames

    def _take(self, frame: memoryview) -> None:
        """Do as a frame says."""
        _, kind, number, pickled, arrays = HEAD.unpack_from(frame)
        at = HEAD.size + arrays * PLACE.size
        places = list(PLACE.iter_unpack(frame[HEAD.size : at]))
        message, at = frame[at : at + pickled], at + pickled
        found: list[Any] = []
        for offset, size in places:
            if kind == FREE:
                self._sending.release(offset, size)
            elif offset == IN_FRAME:
                found.append(frame[at : at + size])
                at += size
            else:
                found.append(self._shared(offset, size))
        content: Any = pickle.loads(message, buffers=found) if pickled else None
        if kind == CALL:
            task = self._loop.create_task(self._answer(number, *content))
            self._running[number] = task
            task.add_done_callback(lambda _: self._running.pop(number))
        elif kind == TELL:
            function, arguments = content
            self._functions[function](*arguments)
        elif kind == CANCEL and number in self._running:
            self._running[number].cancel()
        elif kind in (RESULT, ERROR) and (future := self._waiting.get(number)) is not None and not future.done():
            if kind == RESULT:
                future.set_result(content)
            else:
                future.set_exception(content)

    async def _answer(self, number: int, function: str, arguments: tuple[Any, ...]) -> None:
        """Call a function for the other end, and send its result or its error."""
        try:
            result = await self._functions[function](*arguments)
            del arguments  # their shared memory is free before the other end goes on
            await self._send(RESULT, number, result)
        except Exception as error:
            answer = public(error)
            if answer.status is Status.INTERNAL:
                log.error("%s failed", function, exc_info=error)
            error.__traceback__ = None  # its frames hold the arguments and the error itself: a cycle
            self._write(ERROR, number, answer)

    async def _send(self, kind: int, number: int, message: Any) -> None:
        """Send a frame. Large arrays are copied into shared memory before."""
        pickled, arrays = _pickled(message)
        places, copies, in_frame = list[Place](), list[tuple[Array, Array]](), list[Array]()
        for array in arrays:
            offset = self._sending.allocate(array.nbytes) if array.nbytes >= SHARED else None
            if offset is None:
                in_frame.append(array)
            else:
                copies.append((np.frombuffer(self._sending.memory, np.uint8, array.nbytes, offset), array))
            places.append((IN_FRAME if offset is None else offset, array.nbytes))
        if sum(array.nbytes for _, array in copies) < LARGE:
            _copy(copies)
        else:
            copying = self._loop.run_in_executor(None, _copy, copies)
            try:
                await asyncio.shield(copying)
            except asyncio.CancelledError:  # the thread goes on
                copying.add_done_callback(lambda _: self._release(places))
                raise
        self.shared += len(copies)
        self._write_frame(kind, number, pickled, places, in_frame)

    def _write(self, kind: int, number: int, message: Any = None) -> None:
        """Send a frame without large arrays."""
        pickled, arrays = (b"", []) if message is None else _pickled(message)
        self._write_frame(kind, number, pickled, [(IN_FRAME, array.nbytes) for array in arrays], arrays)

    def _write_frame(self, kind: int, number: int, pickled: bytes, places: list[Place], arrays: list[Array]) -> None:
        if self._transport.is_closing():
            return
        size = HEAD.size + PLACE.size * len(places) + len(pickled) + sum(array.nbytes for array in arrays)
        head = HEAD.pack(size, kind, number, len(pickled), len(places))
        parts: list[Any] = [head, *[PLACE.pack(*place) for place in places], pickled, *arrays]
        self._transport.write(b"".join(parts))

    # ---- shared memory

    def _shared(self, offset: int, size: int) -> Array:
        """Return bytes in shared memory. The other end may use them again when nobody refers to them any more."""
        found = np.frombuffer(self._receiving.memory, np.uint8, size, offset)
        finalize(found, self._free_from_thread, offset, size).atexit = False
        return found

    def _free_from_thread(self, offset: int, size: int) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._write_frame, FREE, 0, b"", [(offset, size)], [])

    def _release(self, places: list[Place]) -> None:
        for offset, size in places:
            if offset != IN_FRAME:
                self._sending.release(offset, size)


def _pickled(message: Any) -> tuple[bytes, list[Array]]:
    """Return a message in pickle's format, and the bytes of its arrays."""
    stream, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    pickler = pickle.Pickler(stream, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
    pickler.dispatch_table = REDUCTIONS
    pickler.dump(message)
    return stream.getvalue(), [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]


def _reduced(array: Array) -> Any:
    """Return how an array is pickled: its bytes apart, and its type by name.

    NumPy would pickle the bytes of bfloat16 with the message, and return other objects as types, by which batches know
    inputs that they need not convert.
    """
    if array.dtype.hasobject or not array.dtype.isbuiltin:
        return array.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return _restored, (pickle.PickleBuffer(flat), array.dtype.name, array.shape)


def _restored(data: Any, dtype: str, shape: tuple[int, ...]) -> Array:
    return np.frombuffer(data, np.dtype(dtype)).reshape(shape)


REDUCTIONS = {**copyreg.dispatch_table, np.ndarray: _reduced}


def _copy(copies: list[tuple[Array, Array]]) -> None:
    for target, source in copies:
        target[:] = source


def _ended() -> ServeError:
    return ServeError(Status.UNAVAILABLE, "another process of the server has ended", 1)
