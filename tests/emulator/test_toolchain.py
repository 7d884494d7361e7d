"""Compilation and its cache: keyed by content, safe between processes, with a clear error without a compiler."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from . import cupy_emu, toolchain
from .toolchain import EmulatorError

ROOT = Path(__file__).parents[2]
SOFTMAX = f"""
import numpy as np
from {__package__}.test_kernels import CODE, ORDERS, matmul_error, softmax_error
from {__package__} import cupy_emu
for order in ORDERS:
    with cupy_emu.thread_order(order):
        assert softmax_error(CODE, np.dtype(np.float32), "softmax<float>") < 1e-6
        assert matmul_error(CODE) < 1e-4
"""


def python(code: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, **environment},
    )  # fmt: skip


def test_without_a_compiler() -> None:
    code = f"""
from {__package__} import cupy_emu, toolchain
try:
    cupy_emu.zeros(3)
except toolchain.EmulatorError as error:
    print(error)
"""
    out, _ = python(code, PATH="").communicate()
    assert "compiles kernels with g++, which is not installed; install it" in out


@pytest.mark.long
def test_processes_share_an_empty_cache(tmp_path: Path) -> None:
    both = [python(SOFTMAX, OVGPU_EMU_CACHE=str(tmp_path)) for _ in range(2)]
    for process in both:
        out, _ = process.communicate()
        assert process.returncode == 0, out
    names = [path.name for path in tmp_path.iterdir()]
    assert sorted(Path(name).suffix for name in names) == ["", ".so", ".so", ".so"]  # nothing temporary


@pytest.mark.parametrize(
    ("fma", "options", "contracted"), [("1", (), True), ("1", ("--fmad=false",), False), (None, (), False)]
)
def test_contraction(
    fma: str | None, options: tuple[str, ...], contracted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With pytest --fma, a product and a sum are rounded once if the processor can, but not where NVRTC would not."""
    monkeypatch.delenv("OVGPU_EMU_FMA", raising=False)
    if fma is not None:
        monkeypatch.setenv("OVGPU_EMU_FMA", fma)
    x = cupy_emu.asarray(np.array([1 + 2**-12, -1 - 2**-11], np.float32))
    code = 'extern "C" __global__ void kernel(float* x) { x[0] = x[0] * x[0] + x[1]; }'
    cupy_emu.RawKernel(code, "kernel", options)((1,), (1,), (x,))
    can = toolchain._needs_mfma() or platform.machine() not in ("x86_64", "AMD64")
    assert x.get()[0] == (2**-24 if contracted and can else 0)


def test_portable_context_switch() -> None:
    process = python(SOFTMAX, OVGPU_EMU_FLAGS="-DOVGPU_EMU_UCONTEXT")
    out, _ = process.communicate()
    assert process.returncode == 0, out


def test_included_files_are_part_of_the_key(tmp_path: Path) -> None:
    (tmp_path / "outer.cuh").write_text('#include "inner.cuh"\n')
    (tmp_path / "inner.cuh").write_text("// 1")
    code = '#include "outer.cuh"\nextern "C" __global__ void kernel() {}'
    before = toolchain.included_text(code, [tmp_path])
    assert "// 1" in before
    (tmp_path / "inner.cuh").write_text("// 2")
    assert toolchain.included_text(code, [tmp_path]) != before


def test_compile_errors_show_the_line() -> None:
    with pytest.raises(EmulatorError, match=r"kernel.cu:2"):
        toolchain.compile_library('#line 1 "kernel.cu"\n\nint f() { return missing; }')


def test_functions_that_are_declared_only() -> None:
    code = 'extern "C" float missing(float);\nextern "C" __global__ float f() { return missing(1); }'
    with pytest.raises(EmulatorError, match="undefined symbol: missing"):
        toolchain.compile_library(code)


def test_faults_outside_kernels_are_not_swallowed() -> None:
    code = f"""
import ctypes, faulthandler
from {__package__} import cupy_emu
faulthandler.enable()
cupy_emu.ElementwiseKernel("T x", "T y", "y = x", "keep")(cupy_emu.zeros(3))
ctypes.string_at(8)
"""
    process = python(code)
    out, _ = process.communicate()
    assert process.returncode < 0 and "Segmentation fault" in out
