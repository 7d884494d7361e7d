"""DLPack of host memory, in the types that NumPy lacks, with torch where it is installed and with objects like it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ovgpu as ov
from ovgpu._util import dlpack
from tests.harness import Net

KINDS = {"bf16": ml_dtypes.bfloat16, "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2}
TORCH = {"bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}
VALUES = [[1.5, -2.0, 3.0], [4.0, 0.5, -6.0]]
OLD, NEW = {}, {"max_version": (1, 0)}


class Like:
    """A tensor of torch: it has no array of such a type, and its capsule is of the older or the newer kind."""

    def __init__(self, kind: str, versioned: bool) -> None:
        self.bits = np.array(VALUES, KINDS[kind])
        self.versioned = versioned

    def __array__(self, *args: Any, **options: Any) -> Any:
        raise TypeError("Got unsupported ScalarType BFloat16")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **options: Any) -> Any:
        if "max_version" in options and not self.versioned:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        return dlpack.to_dlpack(self.bits, **options)


def model(kind: str) -> Any:
    net = Net()
    net.result(net.layer("Relu", "opset1", [net.parameter(kind, (2, 3), "x")], outputs=[kind]))
    return ov.Core().read_model(*net.build())


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_objects(kind: str, versioned: bool) -> None:
    source = Like(kind, versioned)
    tensor = ov.Tensor(source)
    assert tensor.element_type.get_type_name() == kind and tensor.array.astype("f4").tolist() == VALUES
    if versioned:
        shared = ov.Tensor(source, shared_memory=True)
        assert np.shares_memory(shared.array, source.bits)


@pytest.mark.parametrize("options", [OLD, NEW], ids=["old", "new"])
@pytest.mark.parametrize(
    ("kind", "code", "bits"), [("bf16", 4, 16), ("f8e4m3", 10, 8), ("f8e5m2", 12, 8), ("f32", 2, 32)]
)
def test_capsules(kind: str, code: int, bits: int, options: Any) -> None:
    """The codes are those of dlpack.h."""
    tensor = ov.Tensor(getattr(ov.Type, kind), [2, 3])
    found = dlpack._type_of(tensor.__dlpack__(**options))
    assert (found.code, found.bits, found.lanes) == (code, bits, 1)
    with pytest.raises(TypeError, match="int is no DLPack capsule"):
        dlpack._type_of(3)


@pytest.mark.parametrize("kind", ["bf16"])
def test_inputs_and_results(kind: str, device: str) -> None:
    """Inputs may be such objects, and results are bits, or numbers on request."""
    compiled = ov.Core().compile_model(model(kind), device)
    request = compiled.create_infer_request()
    expected = np.maximum(VALUES, 0).tolist()
    for infer in (request.infer, compiled):
        for inputs in ([Like(kind, True)], {"x": Like(kind, False)}):
            bits = infer(inputs)[0]
            assert bits.dtype == np.float16 and bits.view(KINDS[kind]).astype("f4").tolist() == expected
            numbers = infer(inputs, ml_dtypes=True)[0]
            assert numbers.dtype == KINDS[kind] and numbers.astype("f4").tolist() == expected


@pytest.mark.parametrize("kind", KINDS)
def test_torch(kind: str) -> None:
    torch: Any = pytest.importorskip("torch", reason="torch comes with the extra `models` alone")
    source = torch.tensor(VALUES).to(getattr(torch, TORCH[kind]))
    tensor = ov.Tensor(source)
    assert tensor.element_type.get_type_name() == kind and tensor.array.astype("f4").tolist() == VALUES
    back = torch.from_dlpack(tensor)
    assert back.dtype == source.dtype and back.to(torch.float32).tolist() == VALUES
    assert back.data_ptr() == tensor.array.ctypes.data
    assert np.shares_memory(ov.Tensor(source, shared_memory=True).array, dlpack.from_dlpack(source))


def test_torch_in_and_out() -> None:
    torch: Any = pytest.importorskip("torch", reason="torch comes with the extra `models` alone")
    request = ov.Core().compile_model(model("bf16"), "CPU").create_infer_request()
    request.infer([torch.tensor(VALUES, dtype=torch.bfloat16)])
    found = torch.from_dlpack(request.get_output_tensor(0))
    assert found.dtype == torch.bfloat16 and found.tolist() == np.maximum(VALUES, 0).tolist()
