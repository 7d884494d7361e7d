#!/usr/bin/env bash
# An arrival at a cluster's barrier with release semantics, the default, fences the whole GPU in sm_90 machine code, not the cluster.
# Versions: nvidia-cuda-nvrtc 13.5.37, nvidia-cuda-nvdisasm 13.5.37.
# Source: PTX ISA, section on barrier.cluster; its release orders memory for the threads of the cluster alone.
# Expected from that: a fence of the cluster's scope. Seen: MEMBAR.ALL.GPU before the arrival, and none with .relaxed, which
# suffices to announce a new mbarrier after fence.mbarrier_init.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet nvidia-cuda-nvrtc==13.5.37 nvidia-cuda-nvdisasm==13.5.37
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import ctypes
import subprocess
import sys
from pathlib import Path

import nvidia

folder = Path(sys.argv[1])
packages = Path(next(iter(nvidia.__path__)))
nvrtc = ctypes.CDLL(str(next(packages.rglob("libnvrtc.so.*"))))
nvdisasm = next(packages.rglob("nvdisasm"))


def machine_code(arrival: str) -> str:
    """Return the instructions of a kernel that arrives at its cluster's barrier in some way, and waits for it."""
    source = f'''extern "C" __global__ void arrive(float* x) {{
      asm volatile("barrier.cluster.arrive{arrival}.aligned;" : : : "memory");
      asm volatile("barrier.cluster.wait.aligned;" : : : "memory");
    }}'''
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert not nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"arrive.cu", 0, None, None)
    options = (ctypes.c_char_p * 1)(b"-arch=sm_90")
    assert not nvrtc.nvrtcCompileProgram(program, 1, options)
    assert not nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    assert not nvrtc.nvrtcGetCUBIN(program, code)
    file = folder / "arrive.cubin"
    file.write_bytes(code.raw)
    return subprocess.run([str(nvdisasm), "-c", str(file)], check=True, capture_output=True, text=True).stdout


found = {name: "MEMBAR.ALL.GPU" in machine_code(name) for name in ("", ".release", ".relaxed")}
print("nvrtc and nvdisasm 13.5.37, sm_90")
print("expected: no fence of the scope of the GPU in any of them")
for name, fences in found.items():
    print(f"seen: barrier.cluster.arrive{name}: {'MEMBAR.ALL.GPU' if fences else 'no fence of the GPU'}")
sys.exit(found != {"": True, ".release": True, ".relaxed": False})
PYTHON
