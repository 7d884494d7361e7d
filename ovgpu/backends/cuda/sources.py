"""The kernel files: where they are, and their text."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[2]


@cache
def folder() -> Path:
    """The folder of the ``.cu`` files: inside an installed package, beside it in a source tree."""
    for found in (_PACKAGE / "cuda_kernels", _PACKAGE.parent / "cuda_kernels"):
        if (found / "common.cuh").is_file():
            return found
    raise FileNotFoundError(f"cuda_kernels is neither in {_PACKAGE} nor beside it; ovgpu is not installed completely")


def source(file: str) -> str:
    """The text of a kernel file. It ends with a digest of the headers, so that kernels compiled with others are not
    taken for it."""
    return f"{(folder() / file).read_text()}\n// headers: {headers()}\n"


@cache
def headers() -> str:
    """A digest of the header files."""
    from hashlib import sha256  # which loads OpenSSL

    digest = sha256()
    for header in sorted(folder().glob("*.cuh")):
        digest.update(header.read_bytes())
    return digest.hexdigest()
