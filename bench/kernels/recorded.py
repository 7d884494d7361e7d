"""Kernels that an emulated run requests, and their machine code for a card, as `ovgpu.backends.cuda.kernel_cache`
stores it.

The emulator compiles for the host, but requests kernels by the same keys as a card of its compute capability. The files
that it stores hold the source; `compile_all` replaces it by NVRTC's machine code.
"""

from __future__ import annotations

import json
import os
import pickle
import zlib
from concurrent.futures import ProcessPoolExecutor
from math import prod
from pathlib import Path

from ovgpu.backends.cuda import compiler, kernel_cache, rt
from ovgpu.backends.cuda.kernels import Kernel
from tests.emulator import nvrtc
from tests.emulator.kernel import MAGIC

CLUSTERS = "clusters.jsonl"
CAPABILITY = "90"  # the emulator's


def begin(folder: Path) -> None:
    """Make this process and those forked from it store the kernels that the emulator compiles, and append their
    launches in clusters to `CLUSTERS`."""
    os.environ["CUPY_CACHE_DIR"] = str(folder.resolve())
    fits, file = Kernel.fits_cluster, folder.resolve() / CLUSTERS

    def noted(kernel: Kernel, block: tuple[int, ...], shared: int, cluster: int) -> bool:
        row = {"key": kernel.key(), "name": kernel.name, "threads": prod(block), "shared": shared, "cluster": cluster}
        with file.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        return fits(kernel, block, shared, cluster)

    Kernel.fits_cluster = noted  # type: ignore[method-assign]
    rt.replaced = lambda: False
    compiler.default_threads = lambda: 0  # a file for each kernel has that kernel alone


def compile_all(folder: Path) -> tuple[int, list[str]]:
    """Replace recorded sources by machine code; return the number of kernels, and those that do not compile."""
    files = sorted((folder / "ovgpu").glob("*.cubin"))
    with ProcessPoolExecutor() as pool:
        wrong = [line for line in pool.map(compile_file, files, chunksize=8) if line]
    return len(files), wrong


def compile_file(path: Path) -> str:
    """Replace the source in a file by machine code; return "" if it compiles or has been compiled, else the error."""
    payload = kernel_cache.read(path)
    assert payload is not None
    symbol, _, recorded = payload.partition(b"\0")
    if not recorded.startswith(MAGIC):
        return ""
    source, options, names = pickle.loads(zlib.decompress(recorded[len(MAGIC) :]))
    flags = [option for option in options if not option.startswith("-I")]
    try:
        cubin = nvrtc.compile_source(source, f"sm_{CAPABILITY}", names, flags)
    except nvrtc.NvrtcError as e:
        path.unlink()
        return f"{names or symbol.decode()}: {str(e).splitlines()[0]}"
    real = cubin.lowered[names[0]] if names else symbol.decode()
    kernel_cache.write(path, real.encode() + b"\0" + cubin.code)
    return ""
