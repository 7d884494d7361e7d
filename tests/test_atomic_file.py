"""Atomic replacement of a file. `tests/ir/test_files.py` tests the replacement of several files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ovgpu._util import atomic_file
from ovgpu._util.atomic_file import replacing


def write(path: Path, data: bytes) -> None:
    with replacing(path) as (file,):
        file.write(data)


def test_others_see_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="no"), replacing(path) as (file,):
        file.write(b"new")
        raise ValueError("no")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]
    write(path, b"new")
    assert path.read_bytes() == b"new" and os.listdir(tmp_path) == ["file"]


def test_permissions_are_those_of_any_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The umask is not changed, because all threads share it."""
    before = os.umask(0o027)
    try:
        monkeypatch.delattr(os, "umask")
        write(tmp_path / "file", b"")
    finally:
        monkeypatch.undo()
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk may show only when the last bytes are written."""

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic_file.os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/file'$"):
        write(tmp_path / "file", b"data")
    assert not os.listdir(tmp_path)
