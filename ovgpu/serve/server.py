"""Class Server: start and stop, signals, and files that are read again."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ovgpu.errors import Error
from ovgpu.runtime.printing import counted
from ovgpu.serve.client_sequence import Checkpoints
from ovgpu.serve.engines import EngineOptions
from ovgpu.serve.front_ends import FrontEnds
from ovgpu.serve.interfaces import MIB, Interfaces, shown
from ovgpu.serve.models import Models, OpenEngine
from ovgpu.serve.openai.opening import open_served_engine
from ovgpu.serve.repository import Repository
from ovgpu.serve.sequences import OpenSequences
from ovgpu.serve.service import Service
from ovgpu.serve.shared_memory import SharedMemory
from ovgpu.serve.states import FolderStore
from ovgpu.serve.store import SequenceStore, open_store

log = logging.getLogger(__name__)

MAX_PROCESSES = 64
MAX_SECONDS = 86_400  # of the time for which a server stops


@dataclass(frozen=True)
class ServerOptions:
    """Options of a server; see ``ovgpu serve --help``. A port of 0 means any free one."""

    path: Path
    name: str = ""
    engine: EngineOptions = field(default_factory=EngineOptions)
    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = 8001
    max_queue: int = 1024
    idle_seconds: float = 300.0
    poll_seconds: float = 1.0
    body_mib: int = 64
    json_mib: int = 8
    held_mib: int = 1024
    max_calls: int = 1024
    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False
    state_dir: Path | None = None
    state_store: str | None = None
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    discard_states: bool = False
    grace_seconds: float = 30.0
    drain_seconds: float = 0.0
    keep_going: bool = False
    allowed_hosts: tuple[str, ...] = ()
    shared_memory: bool = False
    processes: int = 1


class Server:
    """Server of the models under a path. `run` serves until `stop` is called or a signal arrives.

    Raises: Error for options that do not fit each other, or would let anyone on a network call the server.
    """

    def __init__(self, options: ServerOptions, opener: OpenEngine | None = None) -> None:
        self._options = options
        self._read_files = self._signature()
        self._interfaces = (Interfaces if options.processes == 1 else FrontEnds)(options)
        _check_numbers(options)
        self._repository = Repository(options.path, options.name)
        self._opener = opener or partial(_open_engine, options.engine)
        self.held = self._interfaces.held
        self.port = self.grpc_port = 0  # until `run` has opened them
        self.service: Service | None = None  # while `run` does
        self._stop: asyncio.Event | None = None
        self._drained = asyncio.Event()
        self._changed = asyncio.Event()  # set to read files again
        self._loop: asyncio.AbstractEventLoop | None = None

    def stop(self) -> None:
        """Stop serving, from any thread: see `run`."""
        if self._loop is not None and self._stop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._stop.set)

    def reload(self) -> None:
        """Read the tokens, the certificate and the repository again, as on SIGHUP, from any thread.

        If that fails, the log has the reason, and the old ones stay.
        """
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._changed.set)

    async def run(self, ready: asyncio.Event | None = None) -> None:
        """Serve until `stop`, SIGTERM or SIGINT. Then drain, refuse new inferences, and wait for running ones to end.

        ``ready`` is set when the models are loaded. A second signal ends draining, and the next one running inferences
        as well. Raises: Error if a port cannot be opened, if no model can be loaded and the option ``keep_going`` is
        not set, or if sequences could not be saved.
        """
        options = self._options
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._handle_signals()
        _allow_open_files()
        store = _store(options)
        models = Models(self._repository, self._opener, options.max_queue, digests=store is not None)
        sequences = OpenSequences(
            options.idle_seconds, models.version, store, options.checkpoints, options.discard_states
        )
        memory = SharedMemory(options.shared_memory, self.held, options.body_mib * MIB)
        self.service = service = Service(models, sequences, options.keep_going, memory=memory)
        interfaces = self._interfaces
        await interfaces.start(service)
        self.port, self.grpc_port = interfaces.port, interfaces.grpc_port
        log.info(
            "REST on %s, gRPC on %s",
            shown(interfaces.address, self.port),
            shown(interfaces.address, self.grpc_port) if self.grpc_port else "no port",
        )
        serving = interfaces.serving
        watching: list[asyncio.Task[None]] = []
        try:
            starting = asyncio.create_task(service.start())
            stopping = asyncio.create_task(self._stop.wait())
            await asyncio.wait((starting, stopping, serving), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                watching = [
                    asyncio.create_task(work)
                    for work in (sequences.sweep_regularly(), self._poll(models), self._reload_when_changed(models))
                ]
                if ready is not None:
                    ready.set()
                log.info("ready: %s", ", ".join(models.current) or "no models")
                await asyncio.wait((stopping, serving), return_when=asyncio.FIRST_COMPLETED)
                if stopping.done():
                    await self._drain(service)
        finally:
            self._drained.set()
            log.info("stopping")
            for task in watching:
                task.cancel()
            lost = await service.stop(options.grace_seconds)
            try:
                await interfaces.stop(options.grace_seconds)
            finally:
                await models.close()
            log.info("stopped")
        if lost:
            raise Error(f"{counted(lost, 'sequence')} could not be saved: the log has the reasons")

    def _handle_signals(self) -> None:
        assert self._loop is not None and self._stop is not None
        with suppress(ValueError, RuntimeError):  # raised if the loop is not on the main thread
            for signal_number in (signal.SIGTERM, signal.SIGINT):
                self._loop.add_signal_handler(signal_number, self._signalled)
            self._loop.add_signal_handler(signal.SIGHUP, self._changed.set)

    def _signalled(self) -> None:
        assert self._stop is not None
        if self._stop.is_set() and not self._drained.is_set():
            self._drained.set()
        elif self._stop.is_set():
            for task in asyncio.all_tasks():
                task.cancel()
        self._stop.set()

    async def _drain(self, service: Service) -> None:
        """Serve for some time without being ready: load balancers and clients learn that other servers must answer."""
        service.draining = True
        self._interfaces.drain()
        if self._options.drain_seconds:
            log.info("not ready any more; stopping in %g seconds", self._options.drain_seconds)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), self._options.drain_seconds)
        self._drained.set()

    async def _poll(self, models: Models) -> None:
        """Look for new models, tokens and certificates regularly. Files that change right now wait for another time."""
        read = before = self._read_files
        while self._options.poll_seconds:
            await asyncio.sleep(self._options.poll_seconds)
            found = self._signature()
            if found == before != read:
                self._interfaces.reload()
                read = found
            before = found
            await self._refresh(models)

    def _signature(self) -> list[tuple[int, int, int] | None]:
        """Return what tells of changes of the files of tokens, certificate and key."""
        options, found = self._options, list[tuple[int, int, int] | None]()
        for file in (options.token_file, options.tls_cert, options.tls_key):
            try:
                status = file.stat() if file else None
            except OSError:  # it is replaced right now
                status = None
            found.append(status and (status.st_ino, status.st_size, status.st_mtime_ns))
        return found

    @staticmethod
    async def _refresh(models: Models, settled: bool = True) -> None:
        try:
            await models.refresh(settled)
        except Exception:
            log.exception("the repository cannot be read")

    async def _reload_when_changed(self, models: Models) -> None:
        """Read the tokens, the certificate and the repository again whenever `reload` or a signal asks for it."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._interfaces.reload()
            await self._refresh(models, settled=False)
            log.info("repository: read again")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop: uvloop's, which takes a third less time than asyncio's, where it is installed."""
    try:
        from uvloop import new_event_loop
    except ImportError:  # there is none for Windows
        return asyncio.new_event_loop()
    return new_event_loop()


def _check_numbers(options: ServerOptions) -> None:
    """Raise Error for ports and limits that make no sense."""
    for port in (options.port, options.grpc_port or 0):
        if not 0 <= port < 1 << 16:
            raise Error(f"there is no port {port}")
    if not 1 <= options.processes <= MAX_PROCESSES:
        raise Error(f"--processes {options.processes} is not from 1 to {MAX_PROCESSES}")
    if options.processes > 1 and not hasattr(os, "memfd_create"):
        raise Error("--processes needs Linux")
    if not 0 < options.body_mib <= options.held_mib // options.processes:
        each = "" if options.processes == 1 else f" / --processes {options.processes}"
        raise Error(f"--max-body-mib {options.body_mib} is not from 1 to --max-held-mib {options.held_mib}{each}")
    if options.state_dir and options.state_store:
        raise Error("--state-dir and --state-store exclude each other")
    if options.checkpoints and not (options.state_dir or options.state_store):
        raise Error("checkpoints need --state-dir or --state-store")
    if options.checkpoints.steps < 0 or options.checkpoints.seconds < 0:
        raise Error("--checkpoint-steps and --checkpoint-seconds must not be negative")
    engine = options.engine
    for name, value in (
        ("max-queue", options.max_queue),
        ("max-json-mib", options.json_mib),
        ("max-calls", options.max_calls),
        ("idle-seconds", options.idle_seconds),
        ("max-batch-size", engine.max_batch_size),
        ("max-sequences", engine.max_sequences),
        ("requests", engine.requests),
    ):
        if value <= 0:
            raise Error(f"--{name} {value} is not positive")
    for name, seconds in (("drain-seconds", options.drain_seconds), ("grace-seconds", options.grace_seconds)):
        if not 0 <= seconds <= MAX_SECONDS:
            raise Error(f"--{name} {seconds:g} is not from 0 to {MAX_SECONDS}")


def _store(options: ServerOptions) -> SequenceStore | None:
    if options.state_store:
        return open_store(options.state_store, options.idle_seconds)
    return FolderStore(options.state_dir, options.idle_seconds) if options.state_dir else None


def _open_engine(options: EngineOptions, path: Path, observer: Any, **changes: Any) -> Any:
    properties = {**options.properties, **changes.pop("properties", {})}
    return open_served_engine(path, replace(options, properties=properties, **changes), observer)


def _allow_open_files() -> None:
    """Raise the limit of open files, which also limits connections, to the maximum that the system allows."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
