"""Remote tensors and contexts by openvino's names: they take and return openvino's values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import openvino as ov
import pytest

from ovgpu.compile import devices
from ovgpu.integrations.openvino import install, uninstall

from .test_openvino import X, doubled


@pytest.fixture
def card(emulated: str) -> Iterator[ov.Core]:
    """Yield an openvino Core with the emulated card."""
    devices.register_backend("NVIDIA", lambda: devices.open_backend(emulated))
    install("GPU")
    try:
        yield ov.Core()
    finally:
        uninstall()
        devices.unregister_backend("NVIDIA")


@pytest.mark.parametrize("name", ["NVIDIA", "GPU"])
def test_contexts(card: ov.Core, name: str) -> None:
    for context in (card.get_default_context(name), card.create_context(name, {})):
        assert isinstance(context, ov.RemoteContext) and context.get_device_name()
        tensor = context.create_tensor(ov.Type.f32, ov.Shape([3, 4]), {})
        assert isinstance(tensor, ov.RemoteTensor)
        assert tensor.get_shape() == ov.Shape([3, 4]) and type(tensor.shape) is ov.Shape
        assert tensor.get_element_type() == tensor.element_type == ov.Type.f32
        assert tensor.get_byte_size() == 48 and tensor.get_params()
        host = context.create_host_tensor(ov.Type.i32, ov.Shape([5]))
        assert type(host) is ov.Tensor and host.element_type == ov.Type.i32 and list(host.shape) == [5]


def test_copies(card: ov.Core) -> None:
    context = card.get_default_context("NVIDIA")
    first, second = (context.create_tensor(ov.Type.f32, ov.Shape([2, 3]), {}) for _ in range(2))
    first.copy_from(ov.Tensor(X))
    first.copy_to(second)
    found = ov.Tensor(ov.Type.f32, ov.Shape([2, 3]))
    second.copy_to(found)
    assert found.data.tolist() == X.tolist()
    with pytest.raises(RuntimeError, match="not equal"):
        first.copy_from(ov.Tensor(ov.Type.i32, ov.Shape([2, 3])))


def test_inferences(card: ov.Core) -> None:
    """Requests take remote tensors, and return the objects' likes."""
    context, request = card.get_default_context("GPU"), card.compile_model(doubled(), "GPU").create_infer_request()
    x, y = (context.create_tensor(ov.Type.f32, ov.Shape([2, 3]), {}) for _ in range(2))
    x.copy_from(ov.Tensor(X))
    request.set_input_tensor(x)
    request.set_output_tensor(0, y)
    request.infer()
    assert isinstance(request.get_input_tensor(), ov.RemoteTensor)
    found = ov.Tensor(ov.Type.f32, ov.Shape([2, 3]))
    request.get_output_tensor(0).copy_to(found)
    assert found.data.tolist() == (2 * X).tolist()
    assert np.asarray(y.data).tolist() == (2 * X).tolist()
    request.set_tensors({"x": x})
    assert request.infer()[0].tolist() == (2 * X).tolist()
