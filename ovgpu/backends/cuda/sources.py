"""The kernels' source files: their folder and their text."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[2]


@cache
def folder() -> Path:
    """Return the folder of the ``.cu`` files: inside an installed package, beside it in a source tree."""
    for path in (_PACKAGE / "cuda_kernels", _PACKAGE.parent / "cuda_kernels"):
        if (path / "common.cuh").is_file():
            return path
    raise FileNotFoundError(f"cuda_kernels is neither in {_PACKAGE} nor beside it; ovgpu is not installed completely")


def source(file: str) -> str:
    """Return the text of a kernel file, with a digest of the headers at its end: it is part of the cache key."""
    return f"{(folder() / file).read_text()}\n// headers: {headers()}\n"


@cache
def headers() -> str:
    """Return the SHA-256 digest of the header files, in hexadecimal."""
    from hashlib import sha256  # here, since it loads OpenSSL

    digest = sha256()
    for header in sorted(folder().glob("*.cuh")):
        digest.update(header.read_bytes())
    return digest.hexdigest()
