"""Models that are served. New versions are loaded beside old ones, and replace them without losing a request."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from ovgpu._util import gc_pause
from ovgpu._util.short_turns import short_turns
from ovgpu.errors import Error
from ovgpu.serve.engines import Engine
from ovgpu.serve.errors import ServeError, Status, invalid, public
from ovgpu.serve.repository import ModelFiles, Repository, ServedFiles
from ovgpu.serve.statistics import Statistics

log = logging.getLogger(__name__)

COLLECT_SECONDS = 1.0

OpenEngine = Callable[..., Engine]
"""Function of a path and an `ovgpu.batching.gathering.Observer`. Named arguments replace fields of `EngineOptions`."""


@dataclass(frozen=True)
class LoadOptions:
    """Options of one load, which replace those of the server: fields of `EngineOptions` and the idle time of sequences.

    ``check`` raises Error for a version that is not as the client wants it.
    """

    engine: Mapping[str, Any] = field(default_factory=dict)
    idle_seconds: float | None = None
    check: Callable[[Version], None] = lambda version: None


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
        idle_seconds: float | None = None,
    ) -> None:
        """``digest`` is that of ``files``, for models whose states are saved. ``idle_seconds`` is a time of its own
        after which idle sequences end."""
        self.digest, self.idle_seconds = digest, idle_seconds
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

    def check_tensors(self) -> None:
        """Raise ServeError for a model that takes texts: its tensors are not served."""
        if self.engine.task:
            text = f"model '{self.name}' is for {self.engine.task}, by OpenAI's protocol"
            raise invalid(f'{text}: with `task = "tensors"` in ovgpu.toml, inferences are possible')

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
            closing = asyncio.get_running_loop().run_in_executor(None, self.engine.close)
            closing.add_done_callback(lambda _: _collect_later())


def _collect_later() -> None:
    """Collect garbage when all who used a version have let go of it, and no model is built and no graph is captured.

    The graph of a model is full of cycles, which hold its weights until a full collection: that may be hours away.
    """
    asyncio.get_running_loop().call_later(COLLECT_SECONDS, lambda: gc.collect() if gc.isenabled() else _collect_later())


class Models:
    """Models of a repository, each in the versions that its settings say: by default in the newest one.

    With ``digests``, versions with states have a digest.
    """

    def __init__(self, repository: Repository, open_engine: OpenEngine, max_queue: int, digests: bool = False) -> None:
        self._repository, self._open_engine, self._max_queue = repository, open_engine, max_queue
        self._digests = digests
        self.served: dict[str, dict[str, Version]] = {}  # by name and number
        self.current: dict[str, Version] = {}  # the versions of requests that name none
        self.retired: set[Version] = set()  # versions that still have inferences or sequences
        self._failed: dict[tuple[str, int], str] = {}  # reasons why versions were not loaded; 0 is for settings
        self._tried: dict[tuple[str, int], ModelFiles] = {}  # files of the last attempt
        self._seen: dict[str, ServedFiles] = {}  # files of the last scan
        self._unloaded: set[str] = set()  # models that clients have unloaded
        self._changing, self._finding = asyncio.Lock(), asyncio.Lock()

    @property
    def failures(self) -> dict[str, str]:
        """Reasons why models, or versions of them, were not loaded, by name of the model."""
        return {name: reason for (name, _), reason in self._failed.items()}

    def find(self, name: str, number: str = "") -> Version:
        """Return the version of a model, by default the current one. Raise ServeError if it is not loaded."""
        version = self.current.get(name)
        if version is None:
            known = name in self.failures or name in self._unloaded
            raise ServeError(
                Status.UNAVAILABLE if known else Status.NOT_FOUND,
                f"model '{name}' is not loaded" if known else f"there is no model '{name}'",
            )
        if number:
            served = self.served[name]
            if number not in served:
                raise ServeError(Status.NOT_FOUND, f"model '{name}' has version {', '.join(served)}, not {number}")
            return served[number]
        return version

    def serving(self, name: str = "") -> list[Version]:
        """Return the versions of a model, or of all, that are served."""
        names = [name] if name else self.served
        return [version for name in names for version in self.served.get(name, {}).values()]

    def versions(self) -> list[Version]:
        """Return all loaded versions, including retired ones."""
        return [*self.serving(), *self.retired]

    def missing(self) -> list[str]:
        """Return the names of models that could not be loaded in any version, and that no client has unloaded."""
        return [name for name in self.failures if name not in self.current and name not in self._unloaded]

    def has(self, name: str) -> bool:
        """Return whether the repository has a model, loaded or not."""
        return name in self.current or name in self._seen

    def index(self) -> list[tuple[str, str, str, str]]:
        """Return (name, version, state, reason) of each model of the repository."""
        rows = [(version.name, version.number, "READY", "") for version in self.serving()]
        for name, found in self._seen.items():
            for files in found.versions:
                number = str(files.version)
                if number not in self.served.get(name, ()):
                    reason = self._failed.get((name, files.version)) or self._failed.get((name, 0), "loading")
                    rows.append((name, number, "UNAVAILABLE", "unloaded" if name in self._unloaded else reason))
        return sorted(rows)

    async def refresh(self, settled: bool = True) -> None:
        """Load models that are new or have changed, and retire those whose files are gone.

        With ``settled``, files are left out that have changed since the last scan: they may be written right now.
        """
        async with self._changing:
            scanned = await asyncio.to_thread(self._repository.scan)
            seen, self._seen = self._seen, scanned
            for name, found in scanned.items():
                for files in found.versions if self._is_sound(name, found) and name not in self._unloaded else ():
                    before = seen[name].versions if name in seen else ()
                    if files != self._tried.get((name, files.version)) and (not settled or files in before):
                        await self._load(files)
                self._choose(name)
            for name in self.served.keys() - scanned.keys():
                log.info("model '%s' is gone", name)
                self._retire(name)
            known = {(name, number) for name, found in scanned.items() for number in (0, *found.numbers)}
            self._tried = {key: files for key, files in self._tried.items() if key in known}
            self._failed = {key: reason for key, reason in self._failed.items() if key in known}
            self._unloaded &= scanned.keys()

    async def load(self, name: str, options: LoadOptions | None = None) -> None:
        """Load the versions of a model, even if they are loaded already. Raise ServeError if that fails.

        The options are those of this load: a version that is loaded later has the server's again. If a load with
        options fails, a model that was unloaded stays so.
        """
        async with self._changing:
            self._seen = await asyncio.to_thread(self._repository.scan)
            if name not in self._seen:
                raise ServeError(Status.NOT_FOUND, f"there is no model '{name}' in the repository")
            unloaded = name in self._unloaded
            self._unloaded.discard(name)
            found = self._seen[name]
            for files in found.versions if self._is_sound(name, found) else ():
                await self._load(files, options)
            self._choose(name)
            failures = [self._failed[name, n] for n in (0, *found.numbers) if (name, n) in self._failed]
            if failures:
                if unloaded and options is not None:
                    self._unloaded.add(name)
                    self._retire(name)
                raise ServeError(Status.INVALID_ARGUMENT, f"model '{name}' was not loaded: {failures[0]}")

    async def unload(self, name: str) -> None:
        """Unload a model until `load` is called. Its inferences and sequences continue until they end."""
        async with self._changing:
            if name not in self._seen and name not in self.current:
                raise ServeError(Status.NOT_FOUND, f"there is no model '{name}' in the repository")
            self._unloaded.add(name)
            self._tried = {key: files for key, files in self._tried.items() if key[0] != name}
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
                    if version not in self.serving(name):
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
        for name in list(self.served):
            self._retire(name)
        for version in self.versions():
            await version.closed.wait()

    async def _load(self, files: ModelFiles, options: LoadOptions | None = None) -> None:
        """Load and warm up a version, and serve it. If that fails, the versions that are served stay."""
        key = files.name, files.version
        self._tried[key] = files
        try:
            version = await self._version(files, options)
        except Exception as error:
            self._failed[key] = str(public(error))
            return
        self._failed.pop(key, None)
        self._retire(files.name, version.number)
        self.served.setdefault(files.name, {})[version.number] = version
        self._choose(files.name)

    def _is_sound(self, name: str, found: ServedFiles) -> bool:
        """Return whether the settings of a model are well-formed. If not, its versions stay as they are."""
        reason = str(public(Error(found.error)))
        if not found.error:
            self._failed.pop((name, 0), None)
        elif self._failed.get((name, 0)) != reason:
            self._failed[name, 0] = reason
            log.error("model '%s': %s", name, found.error)
        return not found.error

    def _choose(self, name: str) -> None:
        """Retire versions that are not to be served any more, if the others are loaded, and choose the current one."""
        served, found = self.served.get(name, {}), self._seen[name]
        wanted = {str(number) for number in found.numbers}
        if not found.error and wanted <= served.keys():
            for number in served.keys() - wanted:
                self._retire(name, number)
        default = str(found.default)
        if served:
            self.current[name] = served[default if default in served else max(served, key=int)]

    async def _version(self, files: ModelFiles, options: LoadOptions | None = None) -> Version:
        """Load and warm up a version. Errors are logged and raised."""
        log.info("loading version %d of model '%s'", files.version, files.name)
        statistics, options = Statistics(), options or LoadOptions()
        engine: Engine | None = None
        try:
            engine = await asyncio.to_thread(self._opened, files, statistics, options)
            digest = await asyncio.to_thread(files.digest) if self._digests and engine.stateful else ""
            settings = files.settings
            version = Version(
                files,
                engine,
                statistics,
                settings.max_queue or self._max_queue,
                self.retired.discard,
                digest,
                settings.idle_seconds if options.idle_seconds is None else options.idle_seconds,
            )
            settings.check(files.path.name, engine)
            options.check(version)
        except Exception as error:
            log.error("version %d of model '%s' was not loaded: %s", files.version, files.name, error)
            if engine is not None:
                await asyncio.to_thread(engine.close)
            raise
        log.info("version %d of model '%s' is ready: %s", files.version, files.name, engine.description)
        return version

    def _opened(self, files: ModelFiles, statistics: Statistics, options: LoadOptions) -> Engine:
        """Return the engine of a version, after its warm-up, which does not count in the statistics.

        Meanwhile other models answer: their threads need not wait for long turns of this one, nor for the garbage
        collector, which stops all threads and would run again and again.
        """
        warming = True
        with short_turns(), gc_pause.paused():
            changes = {**files.settings.engine, **options.engine}
            try:
                observer = lambda run: None if warming else statistics.add_batch(run)
                engine = self._open_engine(files.path, observer, **changes)
            except RuntimeError as error:
                if isinstance(error, Error) or "properties" not in changes:
                    raise
                raise Error(str(error).partition(". ")[0]) from None  # of a property that the device lacks
            try:
                self._warm_up(files, engine)
            except BaseException:
                engine.close()
                raise
        warming = False
        return engine

    @staticmethod
    def _warm_up(files: ModelFiles, engine: Engine) -> None:
        """Run inferences of zeros, and those of the settings. Raise Error if one of the latter fails."""
        samples = files.settings.warm_up
        if samples != ():
            try:
                engine.warm_up()
            except Error as error:  # zeros may be no valid inputs
                log.info("model '%s' runs for the first time when a client asks for it: %s", files.name, error)
        for sample in samples or ():
            sample.run(engine)

    def _retire(self, name: str, number: str = "") -> None:
        """Retire a version of a model, or all of them."""
        served = self.served.get(name, {})
        for retired in [number] if number else list(served):
            version = served.pop(retired, None)
            if version is not None:
                self.retired.add(version)
                version.retire()
        if not served:
            self.served.pop(name, None)
            self.current.pop(name, None)
