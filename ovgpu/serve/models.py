"""Models that are served. New versions are loaded beside old ones, and replace them without losing a request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from ovgpu.batching.gathering import Observer
from ovgpu.errors import Error
from ovgpu.serve.engines import Engine
from ovgpu.serve.errors import ServeError, Status, public
from ovgpu.serve.repository import ModelFiles, Repository
from ovgpu.serve.statistics import Statistics

log = logging.getLogger(__name__)

OpenEngine = Callable[[Path, Observer], Engine]


class Version:
    """Loaded version of a model. After it was retired, it is closed as soon as nobody uses it any more."""

    def __init__(
        self,
        files: ModelFiles,
        engine: Engine,
        statistics: Statistics,
        max_queue: int,
        forget: Callable[[Version], None],
        digest: str = "",
    ) -> None:
        """``digest`` is that of ``files``, for models whose states are saved."""
        self.digest = digest
        self.name, self.number, self.files = files.name, str(files.version), files
        self.engine, self.statistics = engine, statistics
        self.in_flight = 0  # inferences that wait or run
        self.sequences = 0
        self._max_queue, self._forget = max_queue, forget
        self._retired = False
        self.closed = asyncio.Event()

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Return a context for an inference, which is counted. Raise ServeError if too many wait already."""
        if self.in_flight >= self._max_queue:
            raise ServeError(Status.UNAVAILABLE, f"{self.in_flight} inferences of model '{self.name}' wait already", 1)
        with self.used():
            yield

    @contextmanager
    def used(self) -> Iterator[None]:
        """Return a context in which the version stays open."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1
            self._close_if_unused()

    def add_sequence(self) -> None:
        """Count a sequence. The version stays open until it has ended."""
        self.sequences += 1

    def remove_sequence(self) -> None:
        """Count a sequence as ended."""
        self.sequences -= 1
        self._close_if_unused()

    def retire(self) -> None:
        """Close the version as soon as its inferences and sequences have ended."""
        self._retired = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._retired and not self.in_flight and not self.sequences and not self.closed.is_set():
            self.closed.set()
            self._forget(self)
            asyncio.get_running_loop().run_in_executor(None, self.engine.close)


class Models:
    """Models of a repository, each in its newest version. With ``digests``, versions with states have a digest."""

    def __init__(self, repository: Repository, open_engine: OpenEngine, max_queue: int, digests: bool = False) -> None:
        self._repository, self._open_engine, self._max_queue = repository, open_engine, max_queue
        self._digests = digests
        self.current: dict[str, Version] = {}
        self.retired: set[Version] = set()  # versions that still have inferences or sequences
        self.failures: dict[str, str] = {}  # reasons why models were not loaded, by name
        self._tried: dict[str, ModelFiles] = {}  # files of the last attempt
        self._seen: dict[str, ModelFiles] = {}  # files of the last scan
        self._unloaded: set[str] = set()  # models that clients have unloaded
        self._changing, self._finding = asyncio.Lock(), asyncio.Lock()

    def find(self, name: str, number: str = "") -> Version:
        """Return the version of a model, by default the current one. Raise ServeError if it is not loaded."""
        version = self.current.get(name)
        if version is None:
            known = name in self.failures or name in self._unloaded
            raise ServeError(
                Status.UNAVAILABLE if known else Status.NOT_FOUND,
                f"model '{name}' is not loaded" if known else f"there is no model '{name}'",
            )
        if number not in ("", version.number):
            raise ServeError(Status.NOT_FOUND, f"model '{name}' has version {version.number}, not {number}")
        return version

    def versions(self) -> list[Version]:
        """Return all loaded versions, including retired ones."""
        return [*self.current.values(), *self.retired]

    def missing(self) -> list[str]:
        """Return the names of models that could not be loaded in any version, and that no client has unloaded."""
        return [name for name in self.failures if name not in self.current and name not in self._unloaded]

    def index(self) -> list[tuple[str, str, str, str]]:
        """Return (name, version, state, reason) of each model of the repository."""
        rows = [(v.name, v.number, "READY", "") for v in self.current.values()]
        others = {name: files for name, files in self._seen.items() if name not in self.current}
        rows += [
            (
                name,
                str(files.version),
                "UNAVAILABLE",
                "unloaded" if name in self._unloaded else self.failures.get(name, "loading"),
            )
            for name, files in others.items()
        ]
        return sorted(rows)

    async def refresh(self, settled: bool = True) -> None:
        """Load models that are new or have changed, and retire those whose files are gone.

        With ``settled``, files are left out that have changed since the last scan: they may be written right now.
        """
        async with self._changing:
            scanned = await asyncio.to_thread(self._repository.scan)
            seen, self._seen = self._seen, scanned
            for name, files in scanned.items():
                if (
                    files != self._tried.get(name)
                    and name not in self._unloaded
                    and (not settled or seen.get(name) == files)
                ):
                    await self._load(files)
            for name in self.current.keys() - scanned.keys():
                log.info("model '%s' is gone", name)
                self._retire(name)
            self._tried = {name: files for name, files in self._tried.items() if name in scanned}
            self.failures = {name: reason for name, reason in self.failures.items() if name in scanned}
            self._unloaded &= scanned.keys()

    async def load(self, name: str) -> None:
        """Load the newest version of a model, even if it is loaded already. Raise ServeError if that fails."""
        async with self._changing:
            self._seen = await asyncio.to_thread(self._repository.scan)
            if name not in self._seen:
                raise ServeError(Status.NOT_FOUND, f"there is no model '{name}' in the repository")
            self._unloaded.discard(name)
            await self._load(self._seen[name])
            if name in self.failures:
                raise ServeError(Status.INVALID_ARGUMENT, f"model '{name}' was not loaded: {self.failures[name]}")

    async def unload(self, name: str) -> None:
        """Unload a model until `load` is called. Its inferences and sequences continue until they end."""
        async with self._changing:
            if name not in self._seen and name not in self.current:
                raise ServeError(Status.NOT_FOUND, f"there is no model '{name}' in the repository")
            self._unloaded.add(name)
            self._tried.pop(name, None)
            self._retire(name)

    @asynccontextmanager
    async def version(self, name: str, number: str) -> AsyncIterator[Version | None]:
        """Return a context with the version on which a sequence began, or with None if it cannot be loaded.

        A version that is not loaded any more is loaded for this, and closed when its sequences have ended.
        """
        with ExitStack() as stack:
            async with self._finding:
                version = next((v for v in self.versions() if (v.name, v.number) == (name, number)), None)
                if version is None:
                    version = await self._old_version(name, number)
                if version is not None:
                    stack.enter_context(version.used())
                    if version is not self.current.get(name):
                        self.retired.add(version)
                        version.retire()
            yield version

    async def _old_version(self, name: str, number: str) -> Version | None:
        files = await asyncio.to_thread(self._repository.version, name, number)
        try:
            return None if files is None else await self._version(files)
        except Exception:  # `_version` has logged it
            return None

    async def close(self) -> None:
        """Retire all versions, and wait until their inferences and sequences have ended."""
        for name in list(self.current):
            self._retire(name)
        for version in self.versions():
            await version.closed.wait()

    async def _load(self, files: ModelFiles) -> None:
        """Load and warm up a version, and make it the current one. If that fails, the current version stays."""
        self._tried[files.name] = files
        try:
            version = await self._version(files)
        except Exception as error:
            self.failures[files.name] = str(public(error))
            return
        self.failures.pop(files.name, None)
        self._retire(files.name)
        self.current[files.name] = version

    async def _version(self, files: ModelFiles) -> Version:
        """Load and warm up a version. Errors are logged and raised."""
        log.info("loading version %d of model '%s'", files.version, files.name)
        statistics = Statistics()
        try:
            engine = await asyncio.to_thread(self._opened, files, statistics)
            digest = await asyncio.to_thread(files.digest) if self._digests and engine.stateful else ""
        except Exception as error:
            log.error("version %d of model '%s' was not loaded: %s", files.version, files.name, error)
            raise
        log.info("version %d of model '%s' is ready: %s", files.version, files.name, engine.description)
        return Version(files, engine, statistics, self._max_queue, self.retired.discard, digest)

    def _opened(self, files: ModelFiles, statistics: Statistics) -> Engine:
        """Return the engine of a version, after its warm-up, which does not count in the statistics."""
        warming = True
        engine = self._open_engine(files.path, lambda run: None if warming else statistics.add_batch(run))
        try:
            engine.warm_up()
        except Error as error:  # zeros may be no valid inputs
            log.info("model '%s' runs for the first time when a client asks for it: %s", files.name, error)
        warming = False
        return engine

    def _retire(self, name: str) -> None:
        version = self.current.pop(name, None)
        if version is not None:
            self.retired.add(version)
            version.retire()
