"""Where the kernel files are, and the modules compiled from them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from ovgpu.backends.cuda import errors, rt

_PACKAGE = Path(__file__).resolve().parents[2]


@cache
def folder() -> Path:
    """The folder of the ``.cu`` files: inside an installed package, beside it in a source tree."""
    for found in (_PACKAGE / "cuda_kernels", _PACKAGE.parent / "cuda_kernels"):
        if (found / "common.cuh").is_file():
            return found
    raise FileNotFoundError(f"cuda_kernels is neither in {_PACKAGE} nor beside it; ovgpu is not installed completely")


def source(file: str) -> str:
    """The text of a kernel file. It ends with a digest of the headers: CuPy finds compiled kernels again by text and
    options alone."""
    return f"{(folder() / file).read_text()}\n// headers: {headers()}\n"


@cache
def headers() -> str:
    """A digest of the header files."""
    from hashlib import sha256  # which loads OpenSSL

    digest = sha256()
    for header in sorted(folder().glob("*.cuh")):
        digest.update(header.read_bytes())
    return digest.hexdigest()


_functions: dict[tuple[int, str, str, bool, str], Any] = {}


def function(file: str, expression: str, cooperative: bool = False, prelude: str = "") -> Any:
    """The kernel ``expression`` (``softmax_rows<float, false, 4, 1>``) of a file behind a prelude, compiled on first
    use."""
    cupy = rt.cupy()
    key = (id(cupy), file, expression, cooperative, prelude)
    if key not in _functions:
        with errors.compiling(f"cuda_kernels/{file}, {expression},"):
            module = cupy.RawModule(code=prelude + source(file), options=("-std=c++17", f"-I{folder()}"),
                                    name_expressions=[expression], enable_cooperative_groups=cooperative)
            _functions[key] = module.get_function(expression)
    return _functions[key]
