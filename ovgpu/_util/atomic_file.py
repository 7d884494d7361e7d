"""Files that replace others when they are complete: all of them, or none."""

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
    """Open a temporary file for each path; when the block ends without an exception, they replace what is there.

    If one file cannot be replaced, none is. Only a process that is killed meanwhile can leave some replaced: the first
    ones. With ``flush``, all new files are on disk before the first old one is replaced. A symbolic link stays, and the
    file that it leads to is replaced. A new file has the permissions of the old one. Devices and pipes are written to
    when all files are complete.

    Raises: OSError that names the path, for a directory or a read-only file among others.
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


class _Device:
    """A device or a pipe, and the file that is copied into it."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self.file = path, file

    def complete(self, flush: bool) -> None:
        """Rewind the file, which only this process reads: it need not be on disk."""
        self.file.seek(0)

    def write(self) -> None:
        from shutil import copyfileobj

        with _naming(self.path), self.path.open("wb") as device:
            copyfileobj(self.file, device)


class _Regular:
    """A file that is or will be at a path, and the temporary file that replaces it."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self.file = path, file
        self.temporary = Path(file.name)
        self.kept = self.temporary.with_name(self.temporary.name + ".old")
        self.exists = path.exists()

    def complete(self, flush: bool) -> None:
        with _naming(self.path):
            self.file.flush()
            if flush:
                os.fsync(self.file.fileno())
            self.file.close()

    def keep(self) -> None:
        """Give the file at the path a second name. File systems without hard links move it."""
        if self.exists:
            try:
                self.kept.hardlink_to(self.path)
            except OSError:
                with _naming(self.path):
                    self.path.replace(self.kept)

    def replace(self) -> None:
        with _naming(self.path):
            self.temporary.replace(self.path)

    def restore(self) -> None:
        """Undo `keep` and `replace`, whichever of them have been done."""
        if self.kept.exists():
            self.kept.replace(self.path)  # which does nothing where both are the same file
            self.kept.unlink(missing_ok=True)
        elif not self.exists and not self.temporary.exists():
            self.path.unlink()


@contextmanager
def _opened(path: Path) -> Iterator[_Device | _Regular]:
    with _naming(path):
        mode = path.stat().st_mode if path.exists() else None
        if mode is not None and stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if mode is not None and not os.access(path, os.W_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    if mode is not None and not stat.S_ISREG(mode):
        from tempfile import TemporaryFile  # takes time to import, for what is rare

        with TemporaryFile() as copied:
            yield _Device(path, copied)
        return
    path = Path(os.path.realpath(path))
    # Not by `tempfile`, whose files are private: to open them to others one would have to change the umask, of all
    # threads, to learn it.
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with _naming(path):
            file = temporary.open("xb")
        with file:
            if mode is not None:
                temporary.chmod(stat.S_IMODE(mode))
            yield _Regular(path, file)
    finally:
        temporary.unlink(missing_ok=True)


def _replace(targets: Sequence[_Regular]) -> None:
    """Rename all temporary files. From the last renaming on, the new files count; before it, the old ones."""
    *others, last = targets
    try:
        for target in others:
            target.keep()
        for target in targets:
            target.replace()
    finally:
        for target in others:
            if last.temporary.exists():
                target.restore()
            else:
                target.kept.unlink(missing_ok=True)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """OSError within the block names this path, instead of a temporary file or none."""
    try:
        yield
    except OSError as e:
        raise OSError(e.errno, e.strerror, str(path)) from None
