"""Atomic replacement of files: either all new files replace the old ones, or none does."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replacing(*paths: Path, flush: bool = True) -> Iterator[list[IO[bytes]]]:
    """Open a temporary file for each path; if the block ends without an exception, they replace the files there.

    If one file cannot be replaced, none is. Only a process that is killed during the replacement can leave some of the
    files, the first ones, replaced. With ``flush``, all new files are on disk before the first old one is replaced. A
    symbolic link stays, and its target is replaced. A new file has the permissions of the old one. Devices and pipes
    are written to when all files are complete.

    Raises: OSError that names the path, for example for a directory or a read-only file.
    """
    with ExitStack() as stack:
        targets = [stack.enter_context(_opened(path)) for path in paths]
        yield [target.file for target in targets]
        for target in targets:
            target.complete(flush)
        for target in targets:
            if isinstance(target, _Device):
                target.write()
        regular = [target for target in targets if isinstance(target, _Regular)]
        if regular:
            _replace(regular)


def check_writable(*paths: Path) -> None:
    """Raise the OSError that `replacing` would raise, before the work whose result is to be written."""
    for path in paths:
        with _opened(path):
            pass


class _Device:
    """Device or pipe, and the temporary file that is copied into it."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self.file = path, file

    def complete(self, flush: bool) -> None:
        """Rewind the file. It need not be flushed, because only this process reads it."""
        self.file.seek(0)

    def write(self) -> None:
        from shutil import copyfileobj

        with _naming_path(self.path), self.path.open("wb") as device:
            copyfileobj(self.file, device)


class _Regular:
    """Regular file at a path, existing or not, and the temporary file that replaces it."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self.file = path, file
        self.temporary = Path(file.name)
        self.backup = self.temporary.with_name(self.temporary.name + ".old")
        self.exists = path.exists()

    def complete(self, flush: bool) -> None:
        with _naming_path(self.path):
            self.file.flush()
            if flush:
                os.fsync(self.file.fileno())
            self.file.close()

    def back_up(self) -> None:
        """Give the file at the path a second name, or move it on a file system without hard links."""
        if self.exists:
            try:
                self.backup.hardlink_to(self.path)
            except OSError:
                with _naming_path(self.path):
                    self.path.replace(self.backup)

    def replace(self) -> None:
        with _naming_path(self.path):
            self.temporary.replace(self.path)

    def restore(self) -> None:
        """Undo `back_up` and `replace`, as far as they have been done."""
        if self.backup.exists():
            self.backup.replace(self.path)  # does nothing if both are the same file
            self.backup.unlink(missing_ok=True)
        elif not self.exists and not self.temporary.exists():
            self.path.unlink()


@contextmanager
def _opened(path: Path) -> Iterator[_Device | _Regular]:
    with _naming_path(path):
        mode = path.stat().st_mode if path.exists() else None
        if mode is not None and stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if mode is not None and not os.access(path, os.W_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    if mode is not None and not stat.S_ISREG(mode):
        from tempfile import TemporaryFile  # slow to import, and rarely needed

        with TemporaryFile() as copied:
            yield _Device(path, copied)
        return
    path = Path(os.path.realpath(path))
    # `tempfile` makes private files. Giving them the usual permissions needs the umask, which can only be read by
    # changing it, for all threads.
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with _naming_path(path):
            file = temporary.open("xb")
        with file:
            if mode is not None:
                temporary.chmod(stat.S_IMODE(mode))
            yield _Regular(path, file)
    finally:
        temporary.unlink(missing_ok=True)


def _replace(targets: Sequence[_Regular]) -> None:
    """Rename all temporary files. Unless the last renaming succeeds, restore the old files."""
    *others, last = targets
    try:
        for target in others:
            target.back_up()
        for target in targets:
            target.replace()
    finally:
        for target in others:
            if last.temporary.exists():
                target.restore()
            else:
                target.backup.unlink(missing_ok=True)


@contextmanager
def _naming_path(path: Path) -> Iterator[None]:
    """Make an OSError of the block name this path, instead of a temporary file or no file."""
    try:
        yield
    except OSError as e:
        raise OSError(e.errno, e.strerror, str(path)) from None
