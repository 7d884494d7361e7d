"""Files that take their place when they are complete."""
from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ovgpu.replacement import Replacement


def write(path: Path, data: bytes, complete: bool = True) -> None:
    with Replacement(path) as new:
        new.file.write(data)
        new.complete = complete


def test_others_see_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    write(path, b"new", complete=False)
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]
    write(path, b"new")
    assert path.read_bytes() == b"new" and os.listdir(tmp_path) == ["file"]


def test_permissions_are_those_of_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a change of the umask, which would be that of all threads."""
    before = os.umask(0o027)
    try:
        monkeypatch.delattr(os, "umask")
        write(tmp_path / "file", b"")
    finally:
        monkeypatch.undo()
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """Which may show only when the file is closed."""
    path = tmp_path / "file"
    with pytest.raises(OSError, match="No space left"), Replacement(path) as new:
        new.complete, close = True, new.file.close

        def fail() -> None:
            close()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        new.file = type("File", (), {"name": new.file.name, "close": staticmethod(fail)})()  # type: ignore[assignment]
    assert not os.listdir(tmp_path)
