"""Machine code of single kernels for one architecture, compiled by NVRTC as on a card and kept on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache

from bench.kernels import sass
from bench.kernels.flow import Flow
from ovgpu.backends.cuda import kernel_cache, kernels, sources
from tests.emulator import nvrtc
from tests.emulator.toolchain import cache_directory


@dataclass(frozen=True)
class MachineCode:
    """A kernel's cubin, its mangled name, and the resources that it uses."""

    symbol: str
    cubin: bytes
    usage: nvrtc.Usage

    @cached_property
    def starts_next(self) -> bool:
        """True if the kernel lets the next launch begin (griddepcontrol.launch_dependents)."""
        return any(instruction.name == "PREEXIT" for instruction in self.flow.instructions)

    @cached_property
    def flow(self) -> Flow:
        """The instructions with their loops."""
        return Flow(*sass.parse(sass.listing(self.cubin), self.symbol))


@lru_cache(4096)
def compiled(source: str, name: str, architecture: str, flags: tuple[str, ...], exported: bool = False) -> MachineCode:
    """Return the machine code of the kernel ``name``: a name expression, or an exported function of the source.

    Raises: NvrtcError if it does not compile, or if NVRTC is not installed.
    """
    version = ".".join(map(str, nvrtc.version()))
    key = hashlib.sha256("\0".join((source, name, architecture, *flags, version)).encode())
    path = cache_directory() / "cubins" / key.hexdigest()
    payload = kernel_cache.read(path)
    if payload is None:
        names: Sequence[str] = () if exported else (name,)
        cubin = nvrtc.compile_source(source, architecture, names, flags, name)
        symbol = cubin.lowered.get(name, name)
        head = json.dumps({"symbol": symbol, "usage": asdict(cubin.usage[symbol])})
        payload = head.encode() + b"\n" + cubin.code
        kernel_cache.write(path, payload)
    head_line, _, code = payload.partition(b"\n")
    found = json.loads(head_line)
    return MachineCode(found["symbol"], code, nvrtc.Usage(**found["usage"]))


def of_file(file: str, name: str, architecture: str, prelude: str = "") -> MachineCode:
    """Return the machine code of an instance of a file of cuda_kernels/; see `compiled`."""
    return compiled(prelude + sources.source(file), name, architecture, kernels.flags(file))
