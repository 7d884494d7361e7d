"""What goes wrong on the device: one clear error, and a request that goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cuda import elementwise, sources
from tests.api import nets
from tests.emulator import cupy_emu
from tests.harness.ir import Net

X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)


def compiled(emulated: str, ir: tuple[bytes, bytes]) -> Any:
    core = ov.Core()
    return core.compile_model(core.read_model(*ir), emulated)


def softmax() -> tuple[bytes, bytes]:
    net = Net("softmax")
    x = net.parameter("f32", (2, 3), "x")
    net.result(net.layer("Softmax", "opset8", [x], {"axis": 1}, name="sm"))
    return net.build()


# ---- kernels that do not compile


def broken(log: str) -> type:
    class RawModule:
        """Does not compile."""

        def __init__(self, **_: Any) -> None:
            pass

        def get_function(self, _: str) -> Any:
            raise cupy_emu.cuda.compiler.CompileException(log)

    return RawModule


LOG = "\n\n".join(f"softmax.cu({n}): error: no" for n in range(20))


def test_a_kernel_that_does_not_compile(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request = compiled(emulated, softmax()).create_infer_request()
    monkeypatch.setattr(sources, "_functions", {})
    monkeypatch.setattr(cupy_emu, "RawModule", broken(LOG))
    with pytest.raises(ov.OpError) as raised:
        request.infer(X)
    first, *lines = str(raised.value).splitlines()
    assert first.startswith("[Softmax] cuda_kernels/softmax.cu, softmax_rows<") and first.endswith("does not compile:")
    assert lines[0] == "softmax.cu(0): error: no" and lines[11] == "softmax.cu(11): error: no"
    assert lines[12].startswith("... and 8 lines more (layer 'sm'") and len(lines) == 13
    monkeypatch.undo()
    np.testing.assert_allclose(request.infer(X)[0].sum(1), 1, rtol=1e-6)


def test_a_generated_kernel_that_does_not_compile(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request = compiled(emulated, nets.one((-1, 3))).create_infer_request()
    elementwise._kernel.cache_clear()
    monkeypatch.setattr(cupy_emu, "RawModule", broken('kernel.cu(1): cannot open source file "cuda_fp16.h"'))
    with pytest.raises(ov.OpError, match=r'^\[Abs\] the generated kernel \w+ does not compile:\nkernel.cu\(1\): .*\n'
                                         r'If it is one of CUDA\'s headers: pip install "ovgpu\[cuda13\]" .* \(layer'):
        request.infer(X)
    monkeypatch.undo()
    np.testing.assert_array_equal(request.infer(X)[0], np.abs(X))
